//! io_uring backend: sleep, readiness, and files.
//!
//! An idle socket has one poll request in the ring, which completes with its first bytes and is
//! submitted again when the socket becomes idle again. While the reactor spins, polling costs no
//! system call: the completion queue and the kernel's task-run flag are in shared memory.
//!
//! File operations are submitted together once a turn; operations served from the page cache
//! complete during the call. Operations on a slow device are submitted in small groups, so that the
//! device starts on the first while more are prepared.
//!
//! Each file has an in-flight limit, so a file that hangs does not block others: see [`files`].

mod files;
mod probe;
mod raw;

pub(crate) use probe::open;
pub(crate) use raw::is_wrong_thread;

use crate::event::{BackendEvent, PollWait};
use crate::file::FileJob;
use crate::key::{Key, Kind};
use crate::waker::drain_eventfd;
use files::Files;
use raw::{Completion, RawUring};
use rustix::event::PollFlags;
use rustix::fd::BorrowedFd;
use std::io;

pub(crate) struct Uring {
    raw: RawUring,
    doorbell_armed: bool,
    files: Files,
    /// Operations were started since the last collection.
    started_files: bool,
    /// Started operations did not complete immediately: a device executes them.
    files_slow: bool,
}

impl Uring {
    fn new(raw: RawUring) -> Uring {
        let (files, started_files, files_slow) = (Files::default(), false, false);
        Uring { raw, doorbell_armed: false, files, started_files, files_slow }
    }

    /// Opens a new ring for the calling thread. Unsubmitted file operations move to it; nothing
    /// else is armed.
    ///
    /// # Errors
    /// The error of the system call; or file operations were submitted by the old thread, which
    /// alone can complete them.
    pub fn reopen(&mut self) -> io::Result<()> {
        let ring = open().map_err(io::Error::other)?;
        let Some(started) = self.raw.abandon() else {
            return Err(io::Error::other("file operations are in flight on the thread that owns the ring"));
        };
        let queued = self.files.take_queued();
        *self = ring;
        for job in started.into_iter().chain(queued) {
            let group = self.files.find(&job.file);
            self.start_or_queue(group, job);
        }
        Ok(())
    }

    pub fn arm_read(&mut self, socket: BorrowedFd<'_>, key: Key) {
        self.raw.poll(socket, PollFlags::IN | PollFlags::RDHUP, key);
    }

    pub fn arm_write(&mut self, socket: BorrowedFd<'_>, key: Key) {
        self.raw.poll(socket, PollFlags::OUT, key);
    }

    /// Cancels a poll request, so that it does not keep a closed socket open.
    pub fn disarm(&mut self, key: Key) {
        self.raw.cancel_poll(key);
    }

    pub fn submit_file(&mut self, job: FileJob) -> Result<(), FileJob> {
        if !RawUring::supports(job.operation().kind) {
            return Err(job);
        }
        let group = self.files.find(&job.file);
        if self.files.can_hang(group) {
            return Err(job);
        }
        self.start_or_queue(group, job);
        Ok(())
    }

    fn start_or_queue(&mut self, group: u32, job: FileJob) {
        let Some(job) = self.files.enter(group, job) else { return };
        self.started_files = true;
        self.raw.submit_file(job, group);
        if self.files_slow && self.raw.files_unsubmitted() >= FILES_GROUP {
            // A persistent error is reported by the next `collect`.
            let _ = self.raw.enter(None);
        }
    }

    pub fn collect(
        &mut self,
        wait: PollWait,
        doorbell: BorrowedFd<'_>,
        backend_events: &mut Vec<BackendEvent>,
    ) -> io::Result<()> {
        match wait {
            PollWait::No { .. } if self.raw.wants_enter() => self.raw.enter(None)?,
            PollWait::No { .. } => {}
            PollWait::For(timeout) => {
                if !self.doorbell_armed {
                    self.doorbell_armed = true;
                    self.raw.poll(doorbell, PollFlags::IN, Key::new(Kind::Doorbell, 0));
                }
                self.raw.enter(Some(timeout))?;
            }
        }
        for _ in 0..MAX_COMPLETIONS {
            let Some(completion) = self.raw.next_completion() else { break };
            self.translate(completion, doorbell, backend_events);
        }
        let is_busy = self.raw.files_in_flight() > 0;
        if std::mem::take(&mut self.started_files) || is_busy {
            self.files_slow = is_busy;
        }
        Ok(())
    }

    fn translate(
        &mut self,
        completion: Completion,
        doorbell: BorrowedFd<'_>,
        backend_events: &mut Vec<BackendEvent>,
    ) {
        match completion {
            Completion::File(finished, group) => {
                backend_events.push(BackendEvent::File(finished));
                if let Some(job) = self.files.leave(group) {
                    self.raw.submit_file(job, group);
                }
            }
            Completion::Poll { key, ready } => match key.kind {
                Kind::Read => {
                    let hung_up = !(ready - PollFlags::IN).is_empty();
                    backend_events.push(BackendEvent::Readable { key, hung_up });
                }
                Kind::Write => backend_events.push(BackendEvent::Writable { key }),
                Kind::Listener => backend_events.push(BackendEvent::Acceptable { index: key.index }),
                _ => {
                    self.doorbell_armed = false;
                    drain_eventfd(doorbell);
                    backend_events.push(BackendEvent::Doorbell);
                }
            },
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // Accepted operations are executed; the raw ring waits for its own.
        for job in self.files.take_queued() {
            self.raw.submit_file(job, 0);
        }
        if self.doorbell_armed {
            self.disarm(Key::new(Kind::Doorbell, 0));
        }
    }
}

/// Limit per turn.
const MAX_COMPLETIONS: usize = 256;
/// File operations submitted together to a device. Smaller groups cost more system calls than they
/// save.
const FILES_GROUP: usize = 8;
