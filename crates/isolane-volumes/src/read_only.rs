//! Filter that rejects changes: `read-only:A`, or `read-only:A,from=30s,for=10s` in a period, as a failing device does.

use std::fs::File;
use std::io;
use std::sync::Arc;

use isolane_memory::{Payload, Pool};
use isolane_reactor::file::FileOp;
use isolane_volume::{
    Condition, CorePart, Extent, Identity, NestedIo, OpenError, Outcome, Request, Step, Task, Volume,
    VolumeDescription, VolumeError, VolumeInfo, VolumeTree,
};
use uuid::Uuid;

use crate::nested_volume::{NestedVolume, Runner};
use crate::parts::Parts;
use crate::scope::Scope;

/// A volume whose blocks cannot be changed. Requests that it accepts go to the inner volume unchanged, so it costs
/// nothing.
pub struct ReadOnly {
    description: VolumeDescription,
    /// `None` for the group of `inner`.
    group: Option<String>,
    inner: Arc<dyn Volume>,
}

impl ReadOnly {
    /// Creates the filter.
    pub fn new(name: String, identity: Identity, inner: Arc<dyn Volume>) -> ReadOnly {
        let info = VolumeInfo { read_only: true, ..inner.info().clone() };
        let generation = inner.description().generation;
        let description = VolumeDescription { name, info, identity, generation };
        ReadOnly { description, group: None, inner }
    }
}

pub(crate) fn open(parts: Parts) -> Result<Arc<dyn Volume>, OpenError> {
    let inner = Arc::clone(parts.first());
    if !parts.options.is_empty() {
        let scope = Scope::parse(&parts)?;
        return Ok(NestedVolume::filter(parts, ReadOnlyPeriod { inner, scope }));
    }
    let identity = parts.identity(|| inner.identity().clone());
    Ok(Arc::new(ReadOnly { group: parts.group, ..ReadOnly::new(parts.name, identity, inner) }))
}

/// Behavior of a volume whose blocks cannot be changed in a period.
struct ReadOnlyPeriod {
    inner: Arc<dyn Volume>,
    scope: Scope,
}

impl Runner for ReadOnlyPeriod {
    async fn run(self: Arc<Self>, io: NestedIo, request: Request) -> Outcome {
        if request.is_change() && self.scope.includes(&request) {
            return Err(VolumeError::ReadOnly);
        }
        io.start(&self.inner, request).await
    }
}

impl Volume for ReadOnly {
    fn description(&self) -> &VolumeDescription {
        &self.description
    }

    fn members(&self) -> Vec<Arc<dyn Volume>> {
        vec![Arc::clone(&self.inner)]
    }

    fn tree(&self) -> VolumeTree {
        let inner = self.inner.tree();
        let group = self.group.clone().or_else(|| inner.group.clone());
        VolumeTree { group, members: vec![inner], ..VolumeTree::new(self.name(), "read-only") }
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

    fn extent(&self, lba: u64, blocks: u64) -> Extent {
        self.inner.extent(lba, blocks)
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

    #[test]
    fn rejects_changes_in_period() {
        for (period, result) in [("from=0s", Err(VolumeError::ReadOnly)), ("from=1000s,for=1s", Ok(()))] {
            let mut driver = Driver::open(&format!("read-only:mem:1M,{period}"));
            assert!(!driver.volume.info().read_only);
            assert_eq!(driver.write(0, &[1; 512], true), result, "{period}");
            assert_eq!(driver.zero(0, 1), result, "{period}");
            assert_eq!(driver.read(7, 2), Ok(vec![0; 1024]));
        }
    }
}
