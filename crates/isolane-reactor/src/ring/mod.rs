//! Sleep, readiness and files by io_uring.
//!
//! A cold lane has one poll request in the ring; it comes back with the lane's first bytes and is made again
//! when the lane cools. While the reactor spins, looking costs no system call: the completion queue and the
//! kernel's "work for you" flag lie in shared memory.
//!
//! Operations on files are submitted together, once a turn. Those that the kernel carries out meanwhile, out
//! of its page cache, are done by then. Those that a device carries out are submitted in small groups
//! instead, so that it begins with the first of many while we are still at the others.
//!
//! Each file has its own bound, so one that hangs holds up no other: see [`files`].

mod files;
mod probe;
mod raw;

pub(crate) use probe::open;

use crate::file::Checked;
use crate::key::{Key, Kind};
use crate::poller::{Occurrence, Wait};
use crate::waker::silence;
use files::Files;
use raw::{Completion, RawRing};
use rustix::event::PollFlags;
use rustix::fd::BorrowedFd;
use std::fs::File;
use std::io;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Ring {
    raw: RawRing,
    is_doorbell_armed: bool,
    files: Files,
    /// Operations were started since the kernel was last listened to.
    has_started_files: bool,
    /// What was started was not done at once: a device works on it.
    are_files_slow: bool,
}

impl Ring {
    fn new(raw: RawRing) -> Ring {
        let (files, has_started_files, are_files_slow) = (Files::default(), false, false);
        Ring { raw, is_doorbell_armed: false, files, has_started_files, are_files_slow }
    }

    /// Whether the kernel refused a request because the ring belongs to another thread.
    pub fn is_of_another_thread(error: &io::Error) -> bool {
        raw::is_of_another_thread(error)
    }

    /// Opens another ring, for the calling thread. File operations that were started here go on there;
    /// nothing else is armed.
    ///
    /// # Errors
    /// The kernel's; or file operations were started in the old thread, which alone can bring them back.
    pub fn reopen(&mut self) -> io::Result<()> {
        let ring = open().map_err(io::Error::other)?;
        let Some(started) = self.raw.abandon() else {
            return Err(io::Error::other(
                "file operations are in flight in the thread that the ring belongs to",
            ));
        };
        let later = self.files.take_later();
        *self = ring;
        for (token, file, operation) in started.into_iter().chain(later) {
            let group = self.files.find(&file);
            self.start_or_wait(group, token, &file, operation);
        }
        Ok(())
    }

    pub fn arm_read(&mut self, socket: BorrowedFd<'_>, key: Key) {
        self.raw.poll(socket, PollFlags::IN | PollFlags::RDHUP, key);
    }

    pub fn arm_write(&mut self, socket: BorrowedFd<'_>, key: Key) {
        self.raw.poll(socket, PollFlags::OUT, key);
    }

    /// Takes a poll request back, lest it keep a closed socket open.
    pub fn disarm(&mut self, key: Key) {
        self.raw.cancel_poll(key);
    }

    pub fn submit_file(&mut self, token: u64, file: &Arc<File>, operation: Checked) -> Result<(), Checked> {
        if !RawRing::can_do(operation.operation().kind) {
            return Err(operation);
        }
        let group = self.files.find(file);
        if self.files.may_hang(group) {
            return Err(operation);
        }
        self.start_or_wait(group, token, file, operation);
        Ok(())
    }

    fn start_or_wait(&mut self, group: u32, token: u64, file: &Arc<File>, operation: Checked) {
        let Some(operation) = self.files.enter(group, token, file, operation) else { return };
        self.has_started_files = true;
        self.raw.submit_file(token, file, operation, group);
        if self.are_files_slow && self.raw.files_unsubmitted() >= FILES_GROUP {
            // An error that lasts comes again when the kernel is next listened to, and is told then.
            let _ = self.raw.enter(None);
        }
    }

    pub fn collect(
        &mut self,
        wait: Wait,
        doorbell: BorrowedFd<'_>,
        occurrences: &mut Vec<Occurrence>,
    ) -> io::Result<()> {
        match wait {
            Wait::No { .. } if self.raw.wants_enter() => self.raw.enter(None)?,
            Wait::No { .. } => {}
            Wait::For(timeout) => {
                if !self.is_doorbell_armed {
                    self.is_doorbell_armed = true;
                    self.raw.poll(doorbell, PollFlags::IN, Key::new(Kind::Doorbell, 0));
                }
                self.raw.enter(Some(timeout))?;
            }
        }
        for _ in 0..COMPLETIONS_MAX {
            let Some(completion) = self.raw.next_completion() else { break };
            self.translate(completion, doorbell, occurrences);
        }
        let is_busy = self.raw.files_in_flight() > 0;
        if std::mem::take(&mut self.has_started_files) || is_busy {
            self.are_files_slow = is_busy;
        }
        Ok(())
    }

    fn translate(
        &mut self,
        completion: Completion,
        doorbell: BorrowedFd<'_>,
        occurrences: &mut Vec<Occurrence>,
    ) {
        match completion {
            Completion::File(finished, group) => {
                occurrences.push(Occurrence::File(finished));
                if let Some((token, file, operation)) = self.files.leave(group) {
                    self.raw.submit_file(token, &file, operation, group);
                }
            }
            Completion::Poll { key, ready } => match key.kind {
                Kind::Read => {
                    let is_hung_up = !(ready - PollFlags::IN).is_empty();
                    occurrences.push(Occurrence::Readable { key, is_hung_up });
                }
                Kind::Write => occurrences.push(Occurrence::Writable { key }),
                Kind::Listener => occurrences.push(Occurrence::Acceptable { index: key.index }),
                _ => {
                    self.is_doorbell_armed = false;
                    silence(doorbell);
                    occurrences.push(Occurrence::Doorbell);
                }
            },
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Accepted operations are carried out; the raw ring waits for those that it has.
        for (token, file, operation) in self.files.take_later() {
            self.raw.submit_file(token, &file, operation, 0);
        }
        if self.is_doorbell_armed {
            self.disarm(Key::new(Kind::Doorbell, 0));
        }
    }
}

/// Bounds the work of one turn.
const COMPLETIONS_MAX: usize = 256;
/// File operations that are submitted together to a device. Fewer would cost more calls than they save time.
const FILES_GROUP: usize = 8;
