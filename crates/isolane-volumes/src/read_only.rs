//! Filter that rejects changes.

use std::fs::File;
use std::io;
use std::sync::Arc;

use isolane_memory::{Payload, Pool};
use isolane_reactor::file::FileOp;
use isolane_volume::{
    Condition, CorePart, Identity, OpenError, Request, Step, Task, Volume, VolumeDescription, VolumeInfo,
};
use uuid::Uuid;

use crate::parts::Parts;

/// A volume whose blocks cannot be changed. Requests that it accepts go to the inner volume unchanged, so it costs
/// nothing.
pub struct ReadOnly {
    description: VolumeDescription,
    inner: Arc<dyn Volume>,
}

impl ReadOnly {
    /// Creates the filter.
    pub fn new(name: String, identity: Identity, inner: Arc<dyn Volume>) -> ReadOnly {
        let info = VolumeInfo { read_only: true, ..inner.info().clone() };
        let generation = inner.description().generation;
        ReadOnly { description: VolumeDescription { name, info, identity, generation }, inner }
    }
}

pub(crate) fn open(parts: Parts) -> Result<Arc<dyn Volume>, OpenError> {
    let inner = Arc::clone(parts.first());
    let identity = parts.identity(|| inner.identity().clone());
    Ok(Arc::new(ReadOnly::new(parts.name, identity, inner)))
}

impl Volume for ReadOnly {
    fn description(&self) -> &VolumeDescription {
        &self.description
    }

    fn stores(&self) -> Vec<Uuid> {
        self.inner.stores()
    }

    fn conditions(&self) -> Vec<Condition> {
        self.inner.conditions()
    }

    fn file(&self) -> Option<&Arc<File>> {
        self.inner.file()
    }

    fn reads_into_pool(&self) -> bool {
        self.inner.reads_into_pool()
    }

    fn take_core_parts(&self) -> Vec<Box<dyn CorePart>> {
        self.inner.take_core_parts()
    }

    fn try_read(&self, lba: u64, blocks: u64, pool: &mut Pool) -> Option<Payload> {
        self.inner.try_read(lba, blocks, pool)
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        match request.check(self.info()) {
            Ok(()) => self.inner.start(request, pool),
            Err(error) => request.fail(error, pool),
        }
    }

    fn resume(&self, task: Task, result: io::Result<usize>, operation: FileOp, pool: &mut Pool) -> Step {
        self.inner.resume(task, result, operation, pool)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Driver;
    use isolane_volume::VolumeError;

    #[test]
    fn rejects_changes_and_serves_reads() {
        let mut driver = Driver::open("read-only:mem:1M");
        assert!(driver.volume.info().read_only);
        assert_eq!(driver.write(0, &[1; 512], true), Err(VolumeError::ReadOnly));
        assert_eq!(driver.zero(0, 1), Err(VolumeError::ReadOnly));
        assert_eq!(driver.deallocate(0, 1), Err(VolumeError::ReadOnly));
        assert_eq!(driver.read(7, 2), Ok(vec![0; 1024]));
        assert_eq!(driver.flush(), Ok(()));
    }
}
