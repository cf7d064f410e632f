//! The trait [`Volume`].

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use isolane_memory::{Buffer, PageTable, Payload, Pool};
use isolane_reactor::file::FileOp;
use uuid::Uuid;

use crate::{
    Condition, Extent, Identity, OpenError, Request, Step, Task, VolumeDescription, VolumeError, VolumeInfo,
    VolumeTree,
};

/// Block storage shared by all cores.
///
/// ```
/// use isolane_memory::Pool;
/// use isolane_volume::{Request, Step, open, spec};
///
/// let volume = open(&spec::parse("mem:1M")?)?;
/// let mut pool = Pool::new(16);
/// match volume.start(Request::Read { lba: 0, blocks: 8 }, &mut pool) {
///     Step::Done(outcome) => assert_eq!(outcome?.to_vec(), [0; 4096]),
///     Step::File(..) | Step::Pending(_) | Step::Retry(_) => unreachable!("memory completes immediately"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Volume: Send + Sync {
    /// Returns name, features, identity, and the size at the open. They do not change while the volume is open.
    fn description(&self) -> &VolumeDescription;

    /// Returns the present number of blocks, which [`Volume::resize`] changes.
    fn blocks(&self) -> u64 {
        self.info().blocks
    }

    /// Adopts the present size of its storage, or `bytes` of it, which grows a file that is shorter. Returns the
    /// number of blocks. Requests in flight continue. May block: not for the data path.
    ///
    /// # Errors
    /// If the volume has a fixed size, would lose blocks without `may_shrink`, or the storage cannot grow.
    fn resize(&self, _bytes: Option<u64>, _may_shrink: bool) -> Result<u64, OpenError> {
        Err(OpenError::new(
            self.name(),
            "volumes of its kind have a fixed size",
            "replace it by a larger volume",
        ))
    }

    /// Returns size and features.
    fn info(&self) -> &VolumeInfo {
        &self.description().info
    }

    /// Returns the identity.
    fn identity(&self) -> &Identity {
        &self.description().identity
    }

    /// Returns the identities of the stores that hold the blocks, which are the same under any requested identity.
    fn stores(&self) -> Vec<Uuid> {
        vec![self.identity().uuid]
    }

    /// Returns the name for log lines.
    fn name(&self) -> &str {
        &self.description().name
    }

    /// Returns the error of all later writes, until the volume is opened again.
    fn failure(&self) -> Option<VolumeError> {
        None
    }

    /// Returns the conditions of the volume and of its members that an operator should know. May take a few system
    /// calls.
    fn conditions(&self) -> Vec<Condition> {
        Vec::new()
    }

    /// Returns the volume and its members as plain data for statistics. May take locks: not for the data path.
    fn tree(&self) -> VolumeTree {
        VolumeTree::new(self.name(), "")
    }

    /// Returns its members, in the order of the members of its tree.
    fn members(&self) -> Vec<Arc<dyn Volume>> {
        Vec::new()
    }

    /// Lets reads avoid one member while the others have its data, or ends that. Returns `false` if the volume cannot.
    fn avoid_member(&self, _position: usize, _is_avoided: bool) -> bool {
        false
    }

    /// Returns the file that [`Step::File`] operations apply to.
    fn file(&self) -> Option<&Arc<File>> {
        None
    }

    /// Returns the pages of its blocks, if they are in memory of this process.
    fn memory(&self) -> Option<&PageTable> {
        None
    }

    /// Whether reads take memory of the calling core's pool.
    fn reads_into_pool(&self) -> bool {
        self.file().is_some()
    }

    /// Takes the parts of the volume that the calling core drives from now on. Each is taken once.
    fn take_core_parts(&self) -> Vec<Box<dyn CorePart>> {
        Vec::new()
    }

    /// Reads blocks if possible without file I/O and pool memory. `None`: use [`Volume::start`].
    fn try_read(&self, _lba: u64, _blocks: u64, _pool: &mut Pool) -> Option<Payload> {
        None
    }

    /// Writes blocks if possible immediately and with final durability. `Err` returns the data: use
    /// [`Volume::start`].
    fn try_write(&self, _lba: u64, _blocks: u64, data: Buffer, _pool: &mut Pool) -> Result<(), Buffer> {
        Err(data)
    }

    /// Hints that a command on the block at `lba` follows soon, so that the volume can prefetch what the command
    /// needs into the processor's cache. The block need not exist.
    fn prefetch(&self, _lba: u64, _upcoming: Upcoming) {}

    /// Returns the extent at `lba`: between 1 and `blocks` blocks, all of which exist. A hole can be reported as data. Takes
    /// at most a few system calls.
    fn extent(&self, _lba: u64, blocks: u64) -> Extent {
        Extent { blocks, is_hole: false }
    }

    /// Starts a request. `pool` is the pool of the calling core.
    fn start(&self, request: Request, pool: &mut Pool) -> Step;

    /// Continues after the file operation of a [`Step::File`], or after the completion of a [`Step::Pending`],
    /// which the default completes.
    fn resume(&self, task: Task, _result: io::Result<usize>, _operation: FileOp, _pool: &mut Pool) -> Step {
        Step::Done(task.into_outcome())
    }
}

impl fmt::Debug for dyn Volume {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Part of a volume that one core drives in its own thread, such as a connection.
///
/// The core turns it after requests, when its descriptor is readable, and at its deadline. Dropping it does not wait;
/// requests complete without the core then.
pub trait CorePart: Send {
    /// Returns a descriptor that becomes readable when the part has work during a wait.
    fn wait_fd(&self) -> BorrowedFd<'_>;

    /// Does all work that is possible without blocking. Returns whether there was any.
    fn turn(&mut self) -> bool;

    /// Prepares for a wait, and returns when a turn is due even if nothing happens. `None`: now.
    fn prepare_wait(&mut self) -> Option<Instant>;

    /// Ends a wait.
    fn finish_wait(&mut self);
}

/// An access that is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upcoming {
    /// A read after one or two commands.
    Read,
    /// A write after one or two commands.
    Write,
    /// Either, after a few more; what leads to the block should be fetched now, the block later.
    Later,
}
