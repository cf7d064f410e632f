//! A volume in a regular file or a block device.
//!
//! * [`machine`]: what to do with the file for a request, without the file. Runs on a simulated disk as well.
//! * `open`, `create`, `lock`, `direct`, `mark`: how a file becomes a volume.
//!
//! The rules it keeps (durability on Linux files):
//! * Direct I/O where the file system has it at this block size, the page cache elsewhere, never both.
//! * A completed write may still be in a cache: that is told as a volatile write cache. With `fua`, or
//!   `write-through`, a write completes after its data is durable: by RWF_DSYNC on direct files, by a sync of
//!   its own on buffered ones.
//! * The size of a file that may hang is asked for by its own threads, and never by a core, which other volumes
//!   need.
//! * After a failed sync nothing is written any more until the volume is opened anew, on any core: the kernel
//!   reports such an error once and then calls the pages clean.
//!   No promise is kept back from its host for long, but until the results of all syncs are known that ran at
//!   the same time on other cores, because an error is reported to only one of two that overlap.
//! * Ranges are punched and zeroed without changing the file's size; a discard of a device is never taken for
//!   zeroes.

mod abilities;
mod claims;
mod create;
mod direct;
mod health;
mod holder;
mod in_flight;
mod lock;
pub mod machine;
mod mark;
mod open;
mod task;
mod zeroing;

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use isolane_memory::Pool;
use isolane_reactor::file::Operation;

pub use abilities::Abilities;
pub use machine::FileMachine;
pub use task::Task;
use task::Work;

use crate::{Generation, Geometry, Identity, Request, Step, Volume, VolumeError};

/// A volume in a regular file or a block device, locked against other targets while it is open.
#[derive(Debug)]
pub struct FileVolume {
    machine: FileMachine,
    file: Arc<File>,
    is_device: bool,
    /// A regular file whose size the kernel may have to wait for, for ever.
    may_hang: bool,
    generation: Option<Generation>,
    /// Requests since the file's size was last checked.
    unchecked: AtomicU32,
}

impl FileVolume {
    /// A truncated file would silently grow again under a write, with zeroes where data was. So its size is
    /// checked before and after everything that promises durability; before every write of the last block,
    /// since no other can give the file its full size again; and before some others, to notice it early. Not
    /// before reads: even a count of them, in memory that all cores share, would cost each more than the check.
    fn must_check(&self, request: &Request) -> bool {
        let (is_promise, end) = match request {
            Request::Read { .. } | Request::Rest(_) => return false,
            Request::Flush => (true, 0),
            Request::Write { lba, blocks, fua, .. } | Request::WriteZeroes { lba, blocks, fua, .. } => {
                (*fua, lba.saturating_add(*blocks))
            }
            Request::Deallocate { fua, .. } => (*fua, 0),
        };
        let geometry = self.geometry();
        is_promise
            || !geometry.volatile_cache
            || end >= geometry.blocks
            || self.unchecked.fetch_add(1, Ordering::Relaxed).is_multiple_of(CHECK_EVERY)
    }

    fn check_size(&self) -> Result<(), VolumeError> {
        if self.is_device {
            return Ok(());
        }
        let size = self.file.metadata().map(|metadata| metadata.len());
        self.machine.judge_size(size)
    }

    /// Starts a request that needs no check of the size any more.
    fn go_on(&self, request: Request, pool: &mut Pool) -> Step {
        let is_promise = matches!(&request, Request::Rest(task) if task.is_promise());
        let step = self.machine.start(request, pool);
        self.confirm(is_promise, step)
    }

    /// Takes a promise back if the file has been truncated since it was given.
    fn confirm(&self, is_promise: bool, step: Step) -> Step {
        match (&step, is_promise) {
            (Step::Done(Ok(_)), true) if self.may_hang => ask_for_size(None),
            (Step::Done(Ok(_)), true) => self.check_size().err().map_or(step, Step::failed),
            _ => step,
        }
    }
}

impl Volume for FileVolume {
    fn geometry(&self) -> &Geometry {
        self.machine.geometry()
    }

    fn identity(&self) -> &Identity {
        self.machine.identity()
    }

    fn generation(&self) -> Option<Generation> {
        self.generation
    }

    fn name(&self) -> &str {
        self.machine.name()
    }

    fn file(&self) -> Option<&Arc<File>> {
        Some(&self.file)
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        match self.must_check(&request) {
            false => self.go_on(request, pool),
            true if self.may_hang => ask_for_size(Some(request)),
            true => match self.check_size() {
                Ok(()) => self.go_on(request, pool),
                Err(error) => refuse(request, error, pool),
            },
        }
    }

    fn resume(&self, task: Task, result: io::Result<usize>, operation: Operation, pool: &mut Pool) -> Step {
        if let Task(Work::Check { before }) = task {
            let size = result.map(|size| size as u64);
            return match (self.machine.judge_size(size), before) {
                (Ok(()), Some(request)) => self.go_on(*request, pool),
                (Ok(()), None) => Step::done(),
                (Err(error), Some(request)) => refuse(*request, error, pool),
                (Err(error), None) => Step::failed(error),
            };
        }
        let is_promise = task.is_promise();
        let step = self.machine.resume(task, result, operation, pool);
        self.confirm(is_promise, step)
    }
}

/// Has the file's own threads ask for its size, so that no core waits for the answer.
fn ask_for_size(before: Option<Request>) -> Step {
    Step::File(Operation::size(), Task(Work::Check { before: before.map(Box::new) }))
}

fn refuse(request: Request, error: VolumeError, pool: &mut Pool) -> Step {
    if let Request::Write { data, .. } = request {
        pool.recycle_buffer(data);
    }
    Step::failed(error)
}

const CHECK_EVERY: u32 = 64;

#[cfg(test)]
mod tests;
