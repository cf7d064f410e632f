//! Reads zeroes, drops writes: what is left is the cost of everything else.

use std::io;

use isolane_memory::{Payload, Pool};
use isolane_reactor::file::Operation;

use crate::{Generation, Geometry, Identity, Request, RestartLoss, Step, Task, Volume};

/// A volume of zeroes that forgets what is written to it.
#[derive(Debug)]
pub struct NullVolume {
    geometry: Geometry,
    identity: Identity,
    name: String,
    generation: Generation,
}

impl NullVolume {
    /// A volume of the given size.
    pub fn new(name: String, geometry: Geometry, identity: Identity) -> NullVolume {
        NullVolume { geometry, identity, name, generation: Generation::of_program(RestartLoss::Nothing) }
    }
}

impl Volume for NullVolume {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }

    /// It keeps no write, so that a restart takes none away.
    fn generation(&self) -> Option<Generation> {
        Some(self.generation)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        let checked = self.geometry.check(&request);
        let blocks = match request {
            Request::Read { blocks, .. } => blocks,
            Request::Write { data, .. } => {
                pool.recycle_buffer(data);
                0
            }
            Request::Flush | Request::WriteZeroes { .. } | Request::Deallocate { .. } => 0,
            Request::Rest(_) => unreachable!("a null volume leaves no rest"),
        };
        Step::Done(checked.map(|()| Payload::zeroes(blocks as usize * self.geometry.block_size as usize)))
    }

    fn resume(&self, _: Task, _: io::Result<usize>, _: Operation, _: &mut Pool) -> Step {
        unreachable!("a null volume asks for no file operation")
    }
}

#[cfg(test)]
mod tests {
    use crate::{Request, Step, VolumeError, open, spec};
    use isolane_memory::{Buffer, Pool};

    #[test]
    fn what_is_written_reads_as_zeroes() {
        let volume = open(&spec::parse("null:1T,block-size=4096").unwrap()).unwrap();
        assert_eq!(volume.geometry().blocks, 1 << 28);
        let mut pool = Pool::new(4);
        let mut data = Buffer::contiguous(8192);
        data.place(0, &[1; 8192]);
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
