//! Queues of a ring and operations in flight. All `unsafe` of the ring is in this file.
//!
//! Invariant: memory whose address the kernel holds (the buffer and the iovecs of a file operation)
//! is owned by [`RawUring::in_flight`] from before its submission until after its completion, and
//! dropping the ring waits for all completions. Moving a buffer does not move its bytes.

#![allow(unsafe_code)]

use crate::file::{FileCompletion, FileJob, FileOp, FileOpKind};
use crate::key::{Key, Kind};
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, opcode, squeue};
use rustix::event::PollFlags;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::{Errno, ReadWriteFlags};
use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

pub(super) struct RawUring {
    ring: IoUring,
    /// Requests waiting for space in the submission queue.
    waiting: VecDeque<squeue::Entry>,
    in_flight: Vec<InFlightOp>,
    free: Vec<u32>,
    polls_in_flight: usize,
    files_unsubmitted: usize,
    /// The kernel may have received one of the file operations in flight.
    files_submitted: bool,
    /// The ring is used by another thread than its owner, whose requests it rejects.
    abandoned: bool,
    enter_flags: EnterFlags,
}

/// Completion of a request.
pub(super) enum Completion {
    Poll {
        key: Key,
        ready: PollFlags,
    },
    /// A file operation and the group that it was submitted with.
    File(FileCompletion, u32),
}

/// A file operation in flight. The iovecs keep their capacity for the next one.
#[derive(Default)]
struct InFlightOp {
    /// The submitter's number of the file.
    group: u32,
    /// Keeps the descriptor open.
    job: Option<FileJob>,
    iovecs: Vec<IoVec>,
}

/// The C `iovec`.
#[repr(C)]
struct IoVec {
    start: *const u8,
    len: usize,
}

// SAFETY: it points into the buffer of the operation stored next to it, which is `Send` and moves with it.
unsafe impl Send for IoVec {}

impl RawUring {
    pub fn new(ring: IoUring) -> RawUring {
        let mut enter_flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        if ring.params().is_feature_no_iowait() {
            enter_flags |= EnterFlags::NO_IOWAIT;
        }
        let (waiting, in_flight, free) = (VecDeque::new(), Vec::new(), Vec::new());
        RawUring {
            ring,
            waiting,
            in_flight,
            free,
            polls_in_flight: 0,
            files_unsubmitted: 0,
            files_submitted: false,
            abandoned: false,
            enter_flags,
        }
    }

    /// Requests one completion when the file becomes ready for any of `wanted`, or breaks.
    pub fn poll(&mut self, file: BorrowedFd<'_>, wanted: PollFlags, key: Key) {
        self.polls_in_flight += 1;
        let entry = opcode::PollAdd::new(Fd(file.as_raw_fd()), u32::from(wanted.bits())).build();
        self.push(entry.user_data(key.to_bits()));
    }

    /// Cancels a poll request.
    pub fn cancel_poll(&mut self, key: Key) {
        let entry = opcode::PollRemove::new(key.to_bits()).build();
        self.push(entry.user_data(key.to_cancel_bits()));
    }

    /// Whether operations of this kind use the ring: kinds that the kernel may complete without
    /// blocking. It would execute all others on threads shared by all files, so that one file could
    /// block another.
    pub fn supports(kind: FileOpKind) -> bool {
        matches!(kind, FileOpKind::Read | FileOpKind::Write { .. })
    }

    /// Starts a file operation of a supported kind. Its completion returns `group`.
    pub fn submit_file(&mut self, job: FileJob, group: u32) {
        self.files_submitted &= self.files_in_flight() > 0;
        let index = self.free.pop().unwrap_or_else(|| {
            self.in_flight.push(InFlightOp::default());
            (self.in_flight.len() - 1) as u32
        });
        let op = &mut self.in_flight[index as usize];
        op.group = group;
        let entry = op.prepare(job);
        self.push(entry.user_data(Key::new(Kind::File, index).to_bits()));
        self.files_unsubmitted += 1;
    }

    pub fn files_in_flight(&self) -> usize {
        self.in_flight.len() - self.free.len()
    }

    /// Returns the number of operations not yet submitted to the kernel.
    pub fn files_unsubmitted(&self) -> usize {
        self.files_unsubmitted
    }

    /// Reclaims the file operations if none was submitted. The ring is unusable afterwards.
    pub fn abandon(&mut self) -> Option<Vec<FileJob>> {
        if self.files_submitted && self.files_in_flight() > 0 {
            return None;
        }
        self.abandoned = true;
        self.free.clear();
        Some(self.in_flight.drain(..).filter_map(|op| op.job).collect())
    }

    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: polls and their removals name no memory. The memory named by file operations is owned by
        // their `InFlightOp`.
        if !self.waiting.is_empty() || unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.waiting.push_back(entry);
        }
    }

    /// Whether there are requests to submit, or completions that the kernel delivers on demand
    /// only. Reads shared memory only.
    pub fn wants_enter(&mut self) -> bool {
        let submissions = self.ring.submission();
        !submissions.is_empty()
            || submissions.taskrun()
            || submissions.cq_overflow()
            || !self.waiting.is_empty()
    }

    /// Submits requests and collects completions; with `wait`, sleeps until a completion or the
    /// timeout. May return early.
    pub fn enter(&mut self, wait: Option<Option<Duration>>) -> io::Result<()> {
        self.files_unsubmitted = 0;
        let submission_count = self.fill_submissions();
        let min_completions = u32::from(wait.is_some() && self.waiting.is_empty());
        let time = wait.flatten().map(Timespec::from).unwrap_or_default();
        let args = match wait.flatten() {
            Some(_) => SubmitArgs::new().timespec(&time),
            None => SubmitArgs::new(),
        };
        let (submitter, flags) = (self.ring.submitter(), self.enter_flags.bits());
        // SAFETY: the flags announce the extended argument, which lives until the call returns.
        let entered = unsafe { submitter.enter(submission_count, min_completions, flags, Some(&args)) };
        let entered =
            entered.map(drop).or_else(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
                // A timeout, a signal, or the completion queue is full.
                Some(Errno::TIME | Errno::INTR | Errno::AGAIN | Errno::BUSY) => Ok(()),
                _ => Err(error),
            });
        // The kernel rejects a wrong thread before it reads any request.
        self.files_submitted |= !entered.as_ref().is_err_and(is_wrong_thread);
        entered
    }

    fn fill_submissions(&mut self) -> u32 {
        let mut submissions = self.ring.submission();
        while let Some(entry) = self.waiting.front() {
            // SAFETY: as in `push`.
            if unsafe { submissions.push(entry) }.is_err() {
                break;
            }
            self.waiting.pop_front();
        }
        submissions.len() as u32
    }

    /// Returns the next completion.
    pub fn next_completion(&mut self) -> Option<Completion> {
        loop {
            let entry = self.ring.completion().next()?;
            if let Some(key) = Key::from_cancel_bits(entry.user_data()) {
                self.on_cancelled(key, entry.result());
                continue;
            }
            let Some(key) = Key::from_bits(entry.user_data()) else { continue };
            match key.kind {
                Kind::File => {
                    if let Some(completion) = self.finish(key.index, entry.result()) {
                        return Some(completion);
                    }
                }
                _ => {
                    self.polls_in_flight -= 1;
                    // A failed poll reports its file as broken: the next use of the file returns
                    // the error.
                    let ready =
                        u16::try_from(entry.result()).map_or(PollFlags::ERR, PollFlags::from_bits_retain);
                    return Some(Completion::Poll { key, ready });
                }
            }
        }
    }

    /// Repeats the cancellation of a poll that was being evaluated, which stays armed if the file
    /// was not ready.
    fn on_cancelled(&mut self, key: Key, result: i32) {
        if result == -Errno::ALREADY.raw_os_error() {
            self.cancel_poll(key);
        }
    }

    fn finish(&mut self, index: u32, result: i32) -> Option<Completion> {
        let op = &mut self.in_flight[index as usize];
        let (job, group) = (op.job.take()?, op.group);
        self.free.push(index);
        let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
        Some(Completion::File(job.complete(result), group))
    }

    /// Waits until the kernel has released all memory, and for up to `DRAIN_POLLS` until it has
    /// released polled sockets, which stay open until then.
    fn drain(&mut self) -> io::Result<()> {
        if self.abandoned {
            return Ok(());
        }
        let end = Instant::now() + DRAIN_POLLS;
        while self.files_in_flight() > 0 || (self.polls_in_flight > 0 && Instant::now() < end) {
            self.enter(Some(Some(DRAIN_STEP)))?;
            while self.next_completion().is_some() {}
        }
        Ok(())
    }
}

impl Drop for RawUring {
    fn drop(&mut self) {
        // Closing the ring cancels polls in any case.
        if let Err(error) = self.drain()
            && self.files_in_flight() > 0
        {
            log::error!("io_uring failed with file operations in flight: {error}; leaking their memory");
            std::mem::forget(std::mem::take(&mut self.in_flight));
        }
    }
}

/// Whether the kernel rejected a request because the ring belongs to another thread.
pub(crate) fn is_wrong_thread(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::EXIST.raw_os_error())
}

impl InFlightOp {
    /// Stores the operation and builds its submission entry.
    fn prepare(&mut self, job: FileJob) -> squeue::Entry {
        let operation = job.operation();
        self.iovecs.clear();
        if let Some(buffer) = &operation.buffer {
            let parts = buffer.raw_parts(operation.buffer_offset, operation.len as usize);
            self.iovecs.extend(parts.take(MAX_IOVECS).map(|(start, len)| IoVec { start, len }));
        }
        let entry = self.describe(Fd(job.file.as_raw_fd()), operation);
        self.job = Some(job);
        entry
    }

    fn describe(&self, file: Fd, operation: &FileOp) -> squeue::Entry {
        let &FileOp { kind, offset, .. } = operation;
        match kind {
            FileOpKind::Read => self.describe_read(file, offset),
            FileOpKind::Write { durable } => {
                let flags = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
                self.describe_write(file, offset, flags.bits() as i32)
            }
            _ => unreachable!("{kind:?} bypasses the ring"),
        }
    }

    /// A single segment avoids an iovec list that the kernel would have to copy.
    fn describe_read(&self, file: Fd, offset: u64) -> squeue::Entry {
        match self.iovecs[..] {
            [IoVec { start, len }] => {
                opcode::Read::new(file, start.cast_mut(), clamp_len(len)).offset(offset).build()
            }
            _ => opcode::Readv::new(file, self.iovecs_ptr(), self.iovecs.len() as u32).offset(offset).build(),
        }
    }

    fn describe_write(&self, file: Fd, offset: u64, flags: i32) -> squeue::Entry {
        match self.iovecs[..] {
            [IoVec { start, len }] => {
                opcode::Write::new(file, start, clamp_len(len)).offset(offset).rw_flags(flags).build()
            }
            _ => {
                let write = opcode::Writev::new(file, self.iovecs_ptr(), self.iovecs.len() as u32);
                write.offset(offset).rw_flags(flags).build()
            }
        }
    }

    fn iovecs_ptr(&self) -> *const libc::iovec {
        self.iovecs.as_ptr().cast()
    }
}

/// Clamps a length to the kernel's limit; a longer operation completes short.
fn clamp_len(len: usize) -> u32 {
    len.min(MAX_TRANSFER_BYTES) as u32
}

const DRAIN_POLLS: Duration = Duration::from_secs(1);
const DRAIN_STEP: Duration = Duration::from_millis(100);
/// `MAX_RW_COUNT`.
const MAX_TRANSFER_BYTES: usize = 0x7fff_f000;
/// Limit of iovecs per call (`IOV_MAX`); a longer operation completes short.
const MAX_IOVECS: usize = 1024;
