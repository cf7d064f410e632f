//! Null volume: reads zeroes and drops writes, to measure all other costs.

use std::io;

use isolane_memory::{Payload, Pool};
use isolane_reactor::file::FileOp;

use crate::{
    Extent, Generation, Identity, Request, RestartLoss, Step, Task, Volume, VolumeDescription, VolumeInfo,
    VolumeTree, tree,
};

/// A volume that reads zeroes and drops writes.
#[derive(Debug)]
pub struct NullVolume {
    description: VolumeDescription,
    group: Option<String>,
}

impl NullVolume {
    /// Creates a volume of the given size.
    pub fn new(name: String, info: VolumeInfo, identity: Identity) -> NullVolume {
        // A restart loses nothing, because the volume keeps no write.
        let generation = Some(Generation::of_process(RestartLoss::Nothing));
        NullVolume { description: VolumeDescription { name, info, identity, generation }, group: None }
    }

    /// Sets the group of volumes that are expected to behave alike.
    #[must_use]
    pub fn with_group(self, group: Option<String>) -> NullVolume {
        NullVolume { group, ..self }
    }
}

impl Volume for NullVolume {
    fn description(&self) -> &VolumeDescription {
        &self.description
    }

    fn tree(&self) -> VolumeTree {
        VolumeTree { group: self.group.clone(), ..VolumeTree::new(self.name(), tree::kind::NULL) }
    }

    fn extent(&self, _: u64, blocks: u64) -> Extent {
        Extent { blocks, is_hole: true }
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        let checked = request.check(self.info());
        let blocks = match request {
            Request::Read { blocks, .. } => blocks,
            Request::Write { data, .. } => {
                pool.recycle_buffer(data);
                0
            }
            Request::Flush | Request::WriteZeroes { .. } | Request::Deallocate { .. } => 0,
            Request::Continue(_) => unreachable!("a null volume never retries"),
        };
        Step::Done(checked.map(|()| Payload::zeroes(blocks as usize * self.info().block_size as usize)))
    }

    fn resume(&self, _: Task, _: io::Result<usize>, _: FileOp, _: &mut Pool) -> Step {
        unreachable!("a null volume has no file operations")
    }
}

#[cfg(test)]
mod tests {
    use crate::{Request, Step, VolumeError, open, spec};
    use isolane_memory::{Buffer, Pool};

    #[test]
    fn reads_zeroes_after_write() {
        let volume = open(&spec::parse("null:1T,block-size=4096").unwrap()).unwrap();
        assert_eq!(volume.info().blocks, 1 << 28);
        let mut pool = Pool::new(4);
        let mut data = Buffer::contiguous(8192);
        data.copy_in(0, &[1; 8192]);
        let write = Request::Write { lba: 5, blocks: 2, data, fua: true };
        assert!(matches!(volume.start(write, &mut pool), Step::Done(Ok(_))));
        let Step::Done(Ok(read)) = volume.start(Request::Read { lba: 5, blocks: 20 }, &mut pool) else {
            panic!()
        };
        assert_eq!(read.to_vec(), vec![0; 81920]);
        let outside = volume.start(Request::Read { lba: 0, blocks: u64::MAX }, &mut pool);
        assert!(matches!(outside, Step::Done(Err(VolumeError::OutOfRange { .. }))));
    }
}
