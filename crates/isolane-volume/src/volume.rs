//! The trait, and what a volume says about itself.

use std::fs::File;
use std::io;
use std::sync::Arc;

use isolane_memory::{Buffer, Payload, Pool};
use isolane_reactor::file::Operation;

use crate::{BlockRange, Generation, Identity, Request, Step, Task, VolumeError};

/// Storage in blocks, shared by all cores.
///
/// ```
/// use isolane_memory::Pool;
/// use isolane_volume::{Request, Step, open, spec};
///
/// let volume = open(&spec::parse("mem:1M")?)?;
/// let mut pool = Pool::new(16);
/// match volume.start(Request::Read { lba: 0, blocks: 8 }, &mut pool) {
///     Step::Done(outcome) => assert_eq!(outcome?.to_vec(), [0; 4096]),
///     Step::File(..) | Step::Later(_) => unreachable!("memory answers at once"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Volume: Send + Sync {
    /// Size and abilities. They do not change while the volume is open.
    fn geometry(&self) -> &Geometry;

    /// Who it is, the same after every restart where the volume outlives one.
    fn identity(&self) -> &Identity;

    /// Returns the generation, which changes whenever completed writes may have been lost. It does not change
    /// while the volume is open. `None` if it is not known: a host then cannot tell a restart from a network
    /// break.
    fn generation(&self) -> Option<Generation> {
        None
    }

    /// What to call it in a log line: its path, or `mem:1G`.
    fn name(&self) -> &str;

    /// The file that [`Step::File`] operations are for.
    fn file(&self) -> Option<&Arc<File>> {
        None
    }

    /// Reads blocks that can be had at once, without the pool's memory and without a file. `None`:
    /// [`Volume::start`] the read. The payload may be of pages that the pool looks at: see
    /// [`Pool::end_turn`].
    fn read_now(&self, _lba: u64, _blocks: u64, _pool: &mut Pool) -> Option<Payload> {
        None
    }

    /// Writes blocks if that can be done at once, and is then as durable as it ever gets. `Err` gives the
    /// data back: [`Volume::start`] the write.
    fn write_now(&self, _lba: u64, _blocks: u64, data: Buffer, _pool: &mut Pool) -> Result<(), Buffer> {
        Err(data)
    }

    /// A hint: a command on the block at `lba` follows soon. The volume may fetch into the processor's cache
    /// what it will look at then. The block need not exist.
    fn foresee(&self, _lba: u64, _soon: Soon) {}

    /// Starts a request. Memory is taken from and given back to `pool`, the one of the calling core. What a read
    /// returns may be of pages that the pool looks at, as with [`Volume::read_now`].
    fn start(&self, request: Request, pool: &mut Pool) -> Step;

    /// Goes on after a file operation that [`Step::File`] asked for.
    fn resume(&self, task: Task, result: io::Result<usize>, operation: Operation, pool: &mut Pool) -> Step;
}

/// How soon something is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Soon {
    /// After one or two commands.
    Next,
    /// After a few more; what leads to the block's data should be fetched now, the data later.
    AfterNext,
}

/// Size and abilities of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes in a block: 512 or 4,096.
    pub block_size: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Nothing can be written.
    pub read_only: bool,
    /// A completed write without `fua` may be lost at a power cut until the next flush.
    pub volatile_cache: bool,
    /// Deallocate has an effect.
    pub deallocate: bool,
    /// Deallocated blocks read as zeroes (DLFEAT).
    pub zeroes_after_deallocate: bool,
}

impl Geometry {
    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_size)
    }

    /// Checks that a range of blocks exists, and returns its offset and length in bytes.
    #[inline]
    pub(crate) fn locate(&self, lba: u64, blocks: u64) -> Result<(u64, u64), VolumeError> {
        if lba.checked_add(blocks).is_none_or(|end| end > self.blocks) {
            return Err(VolumeError::OutOfRange { lba, blocks, volume_blocks: self.blocks });
        }
        let block_size = u64::from(self.block_size);
        Ok((lba * block_size, blocks * block_size))
    }

    /// Checks a request for everything that does not depend on the state of the volume.
    pub(crate) fn check(&self, request: &Request) -> Result<(), VolumeError> {
        if self.read_only && request.is_change() {
            return Err(VolumeError::ReadOnly);
        }
        match request {
            Request::Flush | Request::Rest(_) => Ok(()),
            Request::Read { lba, blocks } | Request::WriteZeroes { lba, blocks, .. } => {
                self.locate(*lba, *blocks).map(drop)
            }
            Request::Write { lba, blocks, data, .. } => {
                let (_, len) = self.locate(*lba, *blocks)?;
                let given = data.len();
                if given as u64 == len {
                    Ok(())
                } else {
                    Err(VolumeError::WrongLength { given, blocks: *blocks })
                }
            }
            Request::Deallocate { ranges, .. } => {
                ranges.iter().try_for_each(|BlockRange { lba, blocks }| self.locate(*lba, *blocks).map(drop))
            }
        }
    }
}

/// Block sizes that can be served, in bytes.
pub const BLOCK_SIZES: [u32; 2] = [512, 4096];
