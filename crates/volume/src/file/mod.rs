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
//! * After a failed sync nothing is written any more until the volume is opened anew, on any core: the kernel
//!   reports such an error once and then calls the pages clean.
//! * On buffered files one sync runs at a time, because an error is reported to only one of two that overlap.
//! * Ranges are punched and zeroed without changing the file's size; a discard of a device is never taken for
//!   zeroes.

mod abilities;
mod claims;
mod create;
mod direct;
mod health;
mod holder;
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

use crate::{Geometry, Identity, Request, Step, Volume};

/// A volume in a regular file or a block device, locked against other targets while it is open.
#[derive(Debug)]
pub struct FileVolume {
    machine: FileMachine,
    file: Arc<File>,
    is_device: bool,
    /// Requests since the file's size was last checked.
    unchecked: AtomicU32,
}

impl FileVolume {
    /// A truncated file would silently grow again under a write, with zeroes where data was. So its size is
    /// checked before everything that promises durability, and now and then.
    fn check_size(&self, request: &Request) {
        let is_promise = match request {
            Request::Read { .. } => return,
            Request::Flush => true,
            Request::Write { fua, .. }
            | Request::WriteZeroes { fua, .. }
            | Request::Deallocate { fua, .. } => *fua,
        };
        let is_promise = is_promise || !self.geometry().volatile_cache;
        if self.is_device
            || !(is_promise || self.unchecked.fetch_add(1, Ordering::Relaxed).is_multiple_of(CHECK_EVERY))
        {
            return;
        }
        if self.file.metadata().is_ok_and(|metadata| metadata.len() < self.geometry().bytes()) {
            self.machine.note_shrunk();
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

    fn name(&self) -> &str {
        self.machine.name()
    }

    fn file(&self) -> Option<&Arc<File>> {
        Some(&self.file)
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        self.check_size(&request);
        self.machine.start(request, pool)
    }

    fn resume(&self, task: Task, result: io::Result<usize>, operation: Operation, pool: &mut Pool) -> Step {
        self.machine.resume(task, result, operation, pool)
    }
}

const CHECK_EVERY: u32 = 64;

#[cfg(test)]
mod tests;
