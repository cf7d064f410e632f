//! The ring's queues and the operations that the kernel holds. All of the ring's `unsafe` is here.
//!
//! The invariant: memory whose address is in the kernel's hands (a file operation's buffer and the list of
//! its pieces) is owned by [`RawRing::flights`] from before its submission until after its completion was
//! taken, and dropping the ring waits for all completions. A buffer that is moved keeps its bytes where they
//! are.

#![allow(unsafe_code)]

use crate::file::{Checked, Finished, Kind as FileKind, Operation};
use crate::key::{Key, Kind};
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, opcode, squeue};
use rustix::event::PollFlags;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::{Errno, ReadWriteFlags};
use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) struct RawRing {
    ring: IoUring,
    /// Requests that found the submission queue full.
    waiting: VecDeque<squeue::Entry>,
    flights: Vec<Flight>,
    free: Vec<u32>,
    polls_in_flight: usize,
    files_unsubmitted: usize,
    /// The kernel may have been told of one of the file operations in flight.
    are_files_told: bool,
    /// It is used by another thread than its own, from which it takes no request.
    is_abandoned: bool,
    enter_flags: EnterFlags,
}

/// The kernel's word on a request.
pub(super) enum Completion {
    Poll {
        key: Key,
        ready: PollFlags,
    },
    /// With the number that the operation's file was submitted with.
    File(Finished, u32),
}

/// A file operation, by its token.
pub(super) type Started = (u64, Arc<File>, Checked);

/// A file operation in the kernel's hands. The list of pieces keeps its capacity for the next one.
#[derive(Default)]
struct Flight {
    token: u64,
    /// The submitter's number of the file.
    group: u32,
    /// Keeps the descriptor open.
    file: Option<Arc<File>>,
    operation: Option<Checked>,
    pieces: Vec<Piece>,
}

/// The C `iovec`.
#[repr(C)]
struct Piece {
    start: *const u8,
    len: usize,
}

// SAFETY: it points into the buffer of the operation that is kept beside it, which may be sent itself, and
// goes with it.
unsafe impl Send for Piece {}

impl RawRing {
    pub fn new(ring: IoUring) -> RawRing {
        let mut enter_flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        if ring.params().is_feature_no_iowait() {
            enter_flags |= EnterFlags::NO_IOWAIT;
        }
        let (waiting, flights, free) = (VecDeque::new(), Vec::new(), Vec::new());
        RawRing {
            ring,
            waiting,
            flights,
            free,
            polls_in_flight: 0,
            files_unsubmitted: 0,
            are_files_told: false,
            is_abandoned: false,
            enter_flags,
        }
    }

    /// Asks for one completion when the file is ready for any of `wanted`, or broken.
    pub fn poll(&mut self, file: BorrowedFd<'_>, wanted: PollFlags, key: Key) {
        self.polls_in_flight += 1;
        let entry = opcode::PollAdd::new(Fd(file.as_raw_fd()), u32::from(wanted.bits())).build();
        self.push(entry.user_data(key.to_bits()));
    }

    /// Ends a poll request.
    pub fn cancel_poll(&mut self, key: Key) {
        let entry = opcode::PollRemove::new(key.to_bits()).build();
        self.push(entry.user_data(key.to_ending_bits()));
    }

    /// Whether operations of this kind go through the ring: those that the kernel may carry out at once. All
    /// others it would leave to threads that the files of a ring share, so that one could hold up another.
    pub fn can_do(kind: FileKind) -> bool {
        matches!(kind, FileKind::Read | FileKind::Write { .. })
    }

    /// Starts a file operation, of a kind that the ring has. `group` comes back with its completion.
    pub fn submit_file(&mut self, token: u64, file: &Arc<File>, operation: Checked, group: u32) {
        self.are_files_told &= self.files_in_flight() > 0;
        let index = self.free.pop().unwrap_or_else(|| {
            self.flights.push(Flight::default());
            (self.flights.len() - 1) as u32
        });
        let flight = &mut self.flights[index as usize];
        flight.group = group;
        let entry = flight.take_off(token, file, operation);
        self.push(entry.user_data(Key::new(Kind::File, index).to_bits()));
        self.files_unsubmitted += 1;
    }

    pub fn files_in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// Operations that the kernel has not been told of.
    pub fn files_unsubmitted(&self) -> usize {
        self.files_unsubmitted
    }

    /// Takes the file operations back, if the kernel was told of none of them. The ring is of no use any
    /// more.
    pub fn abandon(&mut self) -> Option<Vec<Started>> {
        if self.are_files_told && self.files_in_flight() > 0 {
            return None;
        }
        self.is_abandoned = true;
        self.free.clear();
        Some(self.flights.drain(..).filter_map(Flight::turn_back).collect())
    }

    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: polls and their removals name no memory. The memory named by file operations is owned by
        // their flight.
        if !self.waiting.is_empty() || unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.waiting.push_back(entry);
        }
    }

    /// Whether there is something to submit, or the kernel has completions that it delivers only when asked.
    /// Looks at shared memory only.
    pub fn wants_enter(&mut self) -> bool {
        let submissions = self.ring.submission();
        !submissions.is_empty()
            || submissions.taskrun()
            || submissions.cq_overflow()
            || !self.waiting.is_empty()
    }

    /// Submits, lets the kernel deliver, and with `wait` sleeps until there is a completion or the time is
    /// over. May return early.
    pub fn enter(&mut self, wait: Option<Option<Duration>>) -> io::Result<()> {
        self.files_unsubmitted = 0;
        let submissions_count = self.fill_submissions();
        let completions_min = u32::from(wait.is_some() && self.waiting.is_empty());
        let time = wait.flatten().map(Timespec::from).unwrap_or_default();
        let args = match wait.flatten() {
            Some(_) => SubmitArgs::new().timespec(&time),
            None => SubmitArgs::new(),
        };
        let (submitter, flags) = (self.ring.submitter(), self.enter_flags.bits());
        // SAFETY: the flags announce the extended argument, which lives until the call returns.
        let entered = unsafe { submitter.enter(submissions_count, completions_min, flags, Some(&args)) };
        let entered =
            entered.map(drop).or_else(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
                // The time is over, a signal came, or the kernel wants its completions taken first.
                Some(Errno::TIME | Errno::INTR | Errno::AGAIN | Errno::BUSY) => Ok(()),
                _ => Err(error),
            });
        // A thread that the ring does not belong to is turned away before anything is read.
        self.are_files_told |= !entered.as_ref().is_err_and(is_of_another_thread);
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

    /// The next completion that somebody waits for.
    pub fn next_completion(&mut self) -> Option<Completion> {
        loop {
            let entry = self.ring.completion().next()?;
            if let Some(key) = Key::from_ending_bits(entry.user_data()) {
                self.on_cancelled(key, entry.result());
                continue;
            }
            let Some(key) = Key::from_bits(entry.user_data()) else { continue };
            match key.kind {
                Kind::File => {
                    let (finished, group) = self.land(key.index, entry.result());
                    return Some(Completion::File(finished, group));
                }
                _ => {
                    self.polls_in_flight -= 1;
                    // A poll that failed reports its file as broken: whoever uses the file then sees the
                    // reason.
                    let ready =
                        u16::try_from(entry.result()).map_or(PollFlags::ERR, PollFlags::from_bits_retain);
                    return Some(Completion::Poll { key, ready });
                }
            }
        }
    }

    /// A poll request that was just being looked at was not ended, and waits on if nothing was there after
    /// all.
    fn on_cancelled(&mut self, key: Key, result: i32) {
        if result == -Errno::ALREADY.raw_os_error() {
            self.cancel_poll(key);
        }
    }

    fn land(&mut self, index: u32, result: i32) -> (Finished, u32) {
        self.free.push(index);
        let flight = &mut self.flights[index as usize];
        (flight.land(result), flight.group)
    }

    /// Waits until the kernel has let go of all memory, and for a while until it has let go of polled
    /// sockets, which stay open as long.
    fn drain(&mut self) -> io::Result<()> {
        if self.is_abandoned {
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

impl Drop for RawRing {
    fn drop(&mut self) {
        // Closing it ends polls in any case.
        if let Err(error) = self.drain()
            && self.files_in_flight() > 0
        {
            log::error!("io_uring broke with file operations in flight: {error}; their memory is given up");
            std::mem::forget(std::mem::take(&mut self.flights));
        }
    }
}

/// Whether the kernel refused a request because the ring belongs to another thread.
pub(super) fn is_of_another_thread(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::EXIST.raw_os_error())
}

impl fmt::Debug for RawRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (files, polls) = (self.files_in_flight(), self.polls_in_flight);
        f.debug_struct("RawRing").field("files", &files).field("polls", &polls).finish_non_exhaustive()
    }
}

impl Flight {
    fn turn_back(self) -> Option<Started> {
        Some((self.token, self.file?, self.operation?))
    }

    /// Takes the operation in and describes it to the kernel.
    fn take_off(&mut self, token: u64, file: &Arc<File>, checked: Checked) -> squeue::Entry {
        let operation = checked.operation();
        self.pieces.clear();
        if let Some(buffer) = &operation.buffer {
            let parts = buffer.raw_parts(operation.buffer_offset, operation.len as usize);
            self.pieces.extend(parts.take(PIECES_MAX).map(|(start, len)| Piece { start, len }));
        }
        let entry = self.describe(Fd(file.as_raw_fd()), operation);
        self.token = token;
        self.file = Some(file.clone());
        self.operation = Some(checked);
        entry
    }

    fn describe(&self, file: Fd, operation: &Operation) -> squeue::Entry {
        let &Operation { kind, offset, .. } = operation;
        match kind {
            FileKind::Read => self.describe_read(file, offset),
            FileKind::Write { durable } => {
                let flags = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
                self.describe_write(file, offset, flags.bits() as i32)
            }
            FileKind::Sync
            | FileKind::Size
            | FileKind::PunchHole
            | FileKind::ZeroRange
            | FileKind::DeviceDiscard
            | FileKind::DeviceZero => unreachable!("{kind:?} does not go through the ring"),
        }
    }

    /// One piece needs no list, which the kernel would have to fetch.
    fn describe_read(&self, file: Fd, offset: u64) -> squeue::Entry {
        match self.pieces[..] {
            [Piece { start, len }] => {
                opcode::Read::new(file, start.cast_mut(), at_most(len)).offset(offset).build()
            }
            _ => opcode::Readv::new(file, self.list(), self.pieces.len() as u32).offset(offset).build(),
        }
    }

    fn describe_write(&self, file: Fd, offset: u64, flags: i32) -> squeue::Entry {
        match self.pieces[..] {
            [Piece { start, len }] => {
                opcode::Write::new(file, start, at_most(len)).offset(offset).rw_flags(flags).build()
            }
            _ => {
                let write = opcode::Writev::new(file, self.list(), self.pieces.len() as u32);
                write.offset(offset).rw_flags(flags).build()
            }
        }
    }

    fn list(&self) -> *const libc::iovec {
        self.pieces.as_ptr().cast()
    }

    fn land(&mut self, result: i32) -> Finished {
        self.file = None;
        let operation = self.operation.take().map_or_else(Operation::sync, Checked::into_operation);
        let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
        Finished { token: self.token, result, operation }
    }
}

/// What the kernel moves at once; the rest is a short transfer.
fn at_most(len: usize) -> u32 {
    len.min(TRANSFER_BYTES_MAX) as u32
}

const DRAIN_POLLS: Duration = Duration::from_secs(1);
const DRAIN_STEP: Duration = Duration::from_millis(100);
/// `MAX_RW_COUNT`.
const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;
/// The kernel takes no more pieces at once (`IOV_MAX`); the rest is a short transfer.
const PIECES_MAX: usize = 1024;
