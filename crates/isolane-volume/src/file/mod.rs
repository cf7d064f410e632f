//! A volume in a regular file or a block device.
//!
//! * [`state_machine`]: the next operation of each request, without I/O. Also runs on a simulated disk.
//! * `resize`: another size while it is open.
//! * `open`, `create`, `lock`, `direct`, `identity_xattr`: opening a file as a volume.
//!
//! Invariants (durability on Linux files):
//! * Direct I/O if the file system supports it at this block size, else the page cache; never both.
//! * Completed writes may still be in a cache, reported as a volatile write cache. With `fua` or
//!   `write-through`, a write completes after its data is durable: by RWF_DSYNC on direct files, by a
//!   following sync on buffered ones.
//! * The size of a file that can hang is queried by its file threads, never by a core, which other
//!   volumes need.
//! * After a failed sync no core writes until the volume is reopened: the kernel reports such an error
//!   once and then marks the pages clean. A durable completion is delayed until the results of all syncs
//!   that overlapped on other cores are known, because only one of two overlapping syncs gets the error.
//!   A volume that has failed drops its clean pages when it is closed: the disk may not have their data.
//! * Punching and zeroing ranges keep the file's size; a discard of a device is never assumed to zero.

mod create;
mod direct;
mod features;
pub(crate) mod health;
mod identity_xattr;
mod in_flight;
mod lock;
mod lock_owner;
mod open;
pub(crate) mod range_lock;
mod resize;
pub mod state_machine;
pub(crate) mod zeroing;

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use isolane_memory::Pool;
use isolane_reactor::file::FileOp;
use rustix::fs::{Advice, SeekFrom, fadvise, seek};
use rustix::io::Errno;

use crate::file_watch::Watch;
pub use crate::inherited_files::{close_inherited, inherit};
pub use features::Features;
pub use state_machine::FileStateMachine;

use crate::request::task::TaskState;
use crate::{
    Condition, Extent, OpenError, Request, Step, Task, Volume, VolumeDescription, VolumeError, VolumeTree,
    tree,
};

/// A volume in a regular file or a block device, locked against other targets while it is open.
#[derive(Debug)]
pub struct FileVolume {
    machine: FileStateMachine,
    file: Arc<File>,
    is_device: bool,
    /// The file of sysfs with the size of a device.
    device_size: Option<PathBuf>,
    /// A regular file whose size query can block indefinitely.
    can_hang: bool,
    /// Requests since the last size check.
    unchecked: AtomicU32,
    watch: Option<Watch>,
    /// Without links.
    path: PathBuf,
    group: Option<String>,
}

impl FileVolume {
    /// Whether the size must be checked before `request`. A write to a truncated file would
    /// silently grow it again, with zeroes in place of data. So the size is checked before and
    /// after every request that guarantees durability; before every write of the last block, since
    /// only that restores the full size; and before a share of the others, for early detection. Not
    /// before reads: a shared counter would cost each read more than the check.
    fn must_check(&self, request: &Request) -> bool {
        let (is_promise, end) = match request {
            Request::Read { .. } | Request::Continue(_) => return false,
            Request::Flush => (true, 0),
            Request::Write { lba, blocks, fua, .. } | Request::WriteZeroes { lba, blocks, fua, .. } => {
                (*fua, lba.saturating_add(*blocks))
            }
            Request::Deallocate { fua, .. } => (*fua, 0),
        };
        let info = self.info();
        is_promise
            || !info.volatile_cache
            || end >= self.blocks()
            || self.unchecked.fetch_add(1, Ordering::Relaxed).is_multiple_of(CHECK_EVERY)
    }

    fn check_size(&self) -> Result<(), VolumeError> {
        if self.is_device {
            return Ok(());
        }
        let size = self.file.metadata().map(|metadata| metadata.len());
        self.machine.check_size(size)
    }

    /// Returns the extent at a block, if the file system reports extents and the file was not truncated.
    fn find_extent(&self, lba: u64, blocks: u64) -> Option<Extent> {
        let block_size = u64::from(self.info().block_size);
        let (start, end) = (lba * block_size, (lba + blocks) * block_size);
        let data = match seek(&self.file, SeekFrom::Data(start)) {
            // The last extent is a hole, unless the file was truncated: reads there report that.
            Err(Errno::NXIO) => self.check_size().ok().map(|()| end)?,
            found => found.ok()?.min(end),
        };
        // A block is a hole only if all of it is.
        let hole_blocks = (data - start) / block_size;
        if hole_blocks > 0 {
            return Some(Extent { blocks: hole_blocks, is_hole: true });
        }
        let hole = seek(&self.file, SeekFrom::Hole(data)).ok()?.min(end);
        Some(Extent { blocks: (hole - start).div_ceil(block_size).max(1), is_hole: false })
    }

    /// Starts a request after the size check.
    fn proceed(&self, request: Request, pool: &mut Pool) -> Step {
        let is_promise = matches!(&request, Request::Continue(task) if task.is_promise());
        let step = self.machine.start(request, pool);
        self.confirm(is_promise, step)
    }

    /// Returns ENXIO in place of the results of a device that is gone: it has no blocks, so writes find no space, reads the
    /// end, and syncs fail.
    fn recognize_gone(&self, result: io::Result<usize>, operation: &FileOp) -> io::Result<usize> {
        let can_be_gone = match &result {
            Ok(done) => *done == 0 && operation.buffer.is_some(),
            Err(error) => !error.raw_os_error().is_some_and(health::is_interrupted),
        };
        if can_be_gone && self.has_no_blocks() { Err(Errno::NXIO.into()) } else { result }
    }

    /// Asks sysfs, because a query of the device can wait for an operation that hangs.
    fn has_no_blocks(&self) -> bool {
        let Some(path) = &self.device_size else { return false };
        match fs::read_to_string(path) {
            Ok(sectors) => sectors.trim() == "0",
            Err(error) => error.kind() == ErrorKind::NotFound && Path::new(SYSFS_DEVICES).is_dir(),
        }
    }

    /// Fails a durable completion if the file was truncated in the meantime.
    fn confirm(&self, is_promise: bool, step: Step) -> Step {
        match (&step, is_promise) {
            (Step::Done(Ok(_)), true) if self.can_hang => query_size(None),
            (Step::Done(Ok(_)), true) => self.check_size().err().map_or(step, Step::failed),
            _ => step,
        }
    }
}

impl Volume for FileVolume {
    fn description(&self) -> &VolumeDescription {
        self.machine.description()
    }

    fn blocks(&self) -> u64 {
        self.machine.blocks()
    }

    fn resize(&self, bytes: Option<u64>, may_shrink: bool) -> Result<u64, OpenError> {
        let blocks = resize::measure(self, bytes, may_shrink)?;
        self.machine.set_blocks(blocks);
        Ok(blocks)
    }

    fn failure(&self) -> Option<VolumeError> {
        self.machine.failure()
    }

    fn tree(&self) -> VolumeTree {
        let kind = if self.is_device { tree::kind::DEVICE } else { tree::kind::FILE };
        let path = Some(self.path.clone());
        VolumeTree { path, group: self.group.clone(), ..VolumeTree::new(self.name(), kind) }
    }

    fn file(&self) -> Option<&Arc<File>> {
        Some(&self.file)
    }

    fn conditions(&self) -> Vec<Condition> {
        let trouble = self.watch.as_ref().and_then(Watch::trouble);
        let failure = |text| Condition { name: self.name().to_owned(), text, is_failure: true };
        trouble.into_iter().map(failure).collect()
    }

    fn extent(&self, lba: u64, blocks: u64) -> Extent {
        // A network file system could block the core.
        let is_known = !self.is_device && !self.can_hang;
        let found = if is_known { self.find_extent(lba, blocks) } else { None };
        found.unwrap_or(Extent { blocks, is_hole: false })
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        match self.must_check(&request) {
            false => self.proceed(request, pool),
            true if self.can_hang => query_size(Some(request)),
            true => match self.check_size() {
                Ok(()) => self.proceed(request, pool),
                Err(error) => request.fail(error, pool),
            },
        }
    }

    fn resume(&self, task: Task, result: io::Result<usize>, operation: FileOp, pool: &mut Pool) -> Step {
        if let Task(TaskState::Check { before }) = task {
            let size = result.map(|size| size as u64);
            return match (self.machine.check_size(size), before) {
                (Ok(()), Some(request)) => self.proceed(*request, pool),
                (Ok(()), None) => Step::done(),
                (Err(error), Some(request)) => request.fail(error, pool),
                (Err(error), None) => Step::failed(error),
            };
        }
        let is_promise = task.is_promise();
        let result = self.recognize_gone(result, &operation);
        let step = self.machine.resume(task, result, operation, pool);
        self.confirm(is_promise, step)
    }
}

impl Drop for FileVolume {
    /// Drops pages that a failed sync has left as clean, so that later reads show what the disk has. Releases the lock, which
    /// otherwise stays while a child of `fork` has the descriptor. If operations of the file are left, the last of them
    /// does.
    fn drop(&mut self) {
        if self.failure().is_some()
            && let Err(error) = fadvise(&self.file, 0, None, Advice::DontNeed)
        {
            log::warn!("{}: cannot drop its pages from the page cache: {error}", self.name());
        }
        if !self.is_device
            && Arc::strong_count(&self.file) == 1
            && let Err(error) = isolane_reactor::file::unlock(&self.file)
        {
            log::warn!("{}: cannot release its lock: {error}", self.name());
        }
    }
}

/// Queries the size on the file's threads, so that no core blocks.
fn query_size(before: Option<Request>) -> Step {
    Step::File(FileOp::size(), Task(TaskState::Check { before: before.map(Box::new) }))
}

const CHECK_EVERY: u32 = 64;
/// Directory with a link for each block device.
const SYSFS_DEVICES: &str = "/sys/dev/block";

#[cfg(test)]
mod tests;
