//! File threads: a few per file, for operations that io_uring cannot start without blocking, and
//! for all operations on epoll.
//!
//! Threads start on demand. Dropping the workers waits for all operations in flight.

use crate::clock;
use crate::file::{FileCompletion, FileJob, FileOp, FileOpKind};
use crate::mailbox::{self, Receiver, Sender};
use crate::sys;
use crate::waker::Waker;
use isolane_memory::Buffer;
use parking_lot::{Condvar, Mutex};
use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use rustix::io::{Errno, ReadWriteFlags, preadv, pwritev2};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Instant;

pub(crate) struct Workers {
    groups: Vec<FileThreads>,
    done: Receiver<FileCompletion>,
    done_sender: Sender<FileCompletion>,
    in_flight: usize,
    /// Number of operations that found all threads of their file busy.
    waits: u64,
}

/// Threads of one file. A file that hangs blocks only its own threads.
struct FileThreads {
    /// Weak, so that it does not keep the file open.
    file: Weak<File>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<JobQueue>,
    changed: Condvar,
}

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<FileJob>,
    idle_threads: usize,
    closing: bool,
}

impl Workers {
    pub fn new(waker: Waker) -> Workers {
        // Bounded by the operations in flight.
        let (done_sender, done) = mailbox::unbounded(waker);
        Workers { groups: Vec::new(), done, done_sender, in_flight: 0, waits: 0 }
    }

    pub fn submit(&mut self, job: FileJob) {
        self.in_flight += 1;
        let is_of = |group: &FileThreads| std::ptr::eq(group.file.as_ptr(), Arc::as_ptr(&job.file));
        let index = self.groups.iter().position(is_of).unwrap_or_else(|| {
            // A queued job keeps its file open, so these groups are idle.
            self.groups.retain(|group| group.file.strong_count() > 0);
            self.groups.push(FileThreads::new(&job.file));
            self.groups.len() - 1
        });
        let is_waiting = self.groups[index].submit(job, &self.done_sender);
        self.waits += u64::from(is_waiting);
    }

    pub fn waits(&self) -> u64 {
        self.waits
    }

    /// Registers an operation that completes outside of the reactor.
    pub fn register(&mut self, token: u64) -> ExternalOp {
        self.in_flight += 1;
        let result = Err(io::ErrorKind::BrokenPipe.into());
        ExternalOp { token, result, done: self.done_sender.clone() }
    }

    /// Returns a completed operation.
    pub fn poll(&mut self) -> Option<FileCompletion> {
        if self.in_flight == 0 {
            return None;
        }
        let finished = self.done.poll()?;
        self.in_flight -= 1;
        Some(finished)
    }
}

/// An operation that completes outside of the reactor, on any thread. Dropping it fails the operation.
#[derive(Debug)]
pub struct ExternalOp {
    token: u64,
    result: io::Result<usize>,
    done: Sender<FileCompletion>,
}

impl ExternalOp {
    /// Completes the operation and wakes its reactor.
    pub fn complete(mut self) {
        self.result = Ok(0);
    }
}

impl Drop for ExternalOp {
    fn drop(&mut self) {
        let result = std::mem::replace(&mut self.result, Ok(0));
        // Fails if the reactor was dropped.
        let (token, operation) = (self.token, FileOp::sync());
        let _ = self.done.send(FileCompletion { token, result, operation, thread: None });
    }
}

impl FileThreads {
    fn new(file: &Arc<File>) -> FileThreads {
        let shared = Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new() });
        FileThreads { file: Arc::downgrade(file), shared, threads: Vec::new() }
    }

    /// Returns `true` if the job waits for a busy thread.
    fn submit(&mut self, job: FileJob, done: &Sender<FileCompletion>) -> bool {
        let mut queue = self.shared.queue.lock();
        queue.jobs.push_back(job);
        let is_waiting = queue.jobs.len() > queue.idle_threads;
        let needs_thread = is_waiting && self.threads.len() < MAX_THREADS;
        drop(queue);
        self.shared.changed.notify_one();
        if needs_thread {
            self.start_thread(done);
        }
        is_waiting && !needs_thread
    }

    fn start_thread(&mut self, done: &Sender<FileCompletion>) {
        let (shared, sender) = (self.shared.clone(), done.clone());
        let name = format!("isolane-file-{}", self.threads.len());
        match thread::Builder::new().name(name).spawn(move || work(&shared, &sender)) {
            Ok(thread) => self.threads.push(thread),
            Err(error) if self.threads.is_empty() => {
                log::limited!(
                    Warn,
                    "cannot spawn file thread: {error}; running file operations on the reactor thread"
                );
                self.run_inline(done);
            }
            // The running threads do the work.
            Err(_) => {}
        }
    }

    /// Completes all jobs on the calling thread, because no thread could be started.
    fn run_inline(&mut self, done: &Sender<FileCompletion>) {
        let jobs = std::mem::take(&mut self.shared.queue.lock().jobs);
        for job in jobs {
            // The receiver is part of `Workers` and outlives this call.
            let _ = done.send(run(job));
        }
    }
}

impl Drop for FileThreads {
    fn drop(&mut self) {
        self.shared.queue.lock().closing = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has no operation in flight.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared, done: &Sender<FileCompletion>) {
    crate::cpu::unpin();
    while let Some(job) = next_job(shared) {
        if done.send(run(job)).is_err() {
            return;
        }
    }
}

/// Waits for a job. Returns `None` when the queue is empty and the workers are being dropped.
fn next_job(shared: &Shared) -> Option<FileJob> {
    let mut queue = shared.queue.lock();
    loop {
        if let Some(job) = queue.jobs.pop_front() {
            return Some(job);
        }
        if queue.closing {
            return None;
        }
        queue.idle_threads += 1;
        shared.changed.wait(&mut queue);
        queue.idle_threads -= 1;
    }
}

fn run(mut job: FileJob) -> FileCompletion {
    let started = clock::now();
    let result = loop {
        let (file, operation) = job.parts_mut();
        match execute(file, operation) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => break result,
        }
    };
    FileCompletion { thread: Some((started, clock::now())), ..job.complete(result) }
}

fn execute(file: &File, operation: &mut FileOp) -> io::Result<usize> {
    let FileOp { kind, offset, len, .. } = *operation;
    match kind {
        FileOpKind::Read => read(file, operation),
        FileOpKind::Write { durable } => write(file, operation, durable),
        FileOpKind::Sync => fdatasync(file).map(|()| 0).map_err(Errno::into),
        FileOpKind::Size => size(file),
        FileOpKind::PunchHole
        | FileOpKind::ZeroRange
        | FileOpKind::DeviceDiscard
        | FileOpKind::DeviceZero => {
            let started = Instant::now();
            let result = change_range(file, kind, offset, len);
            operation.duration = started.elapsed();
            result
        }
    }
}

fn change_range(file: &File, kind: FileOpKind, offset: u64, len: u64) -> io::Result<usize> {
    match kind {
        FileOpKind::PunchHole => allocate(file, FallocateFlags::PUNCH_HOLE, offset, len),
        FileOpKind::ZeroRange => allocate(file, FallocateFlags::ZERO_RANGE, offset, len),
        FileOpKind::DeviceDiscard => sys::discard(file, offset, len).map(|()| 0),
        FileOpKind::DeviceZero => sys::zero(file, offset, len).map(|()| 0),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn size(file: &File) -> io::Result<usize> {
    usize::try_from(file.metadata()?.len()).map_err(|_| Errno::OVERFLOW.into())
}

fn allocate(file: &File, flags: FallocateFlags, offset: u64, len: u64) -> io::Result<usize> {
    fallocate(file, flags | FallocateFlags::KEEP_SIZE, offset, len)?;
    Ok(0)
}

fn read(file: &File, operation: &mut FileOp) -> io::Result<usize> {
    let (start, len, offset) = (operation.buffer_offset, operation.len as usize, operation.offset);
    let buffer = operation.buffer.as_mut().ok_or(io::ErrorKind::InvalidInput)?;
    let mut slices: SmallVec<[IoSliceMut<'_>; SLICES]> =
        buffer.io_slices_mut(start, len).take(MAX_SLICES).map(|(slice, _)| slice).collect();
    Ok(preadv(file, &mut slices, offset)?)
}

fn write(file: &File, operation: &FileOp, durable: bool) -> io::Result<usize> {
    let (start, len) = (operation.buffer_offset, operation.len as usize);
    let buffer: &Buffer = operation.buffer.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
    let slices: SmallVec<[IoSlice<'_>; SLICES]> =
        buffer.io_slices(start, len).take(MAX_SLICES).map(|(slice, _)| slice).collect();
    let flags = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
    Ok(pwritev2(file, &slices, operation.offset, flags)?)
}

/// Threads per file.
const MAX_THREADS: usize = 8;
const SLICES: usize = 32;
/// Limit of segments per call (`IOV_MAX`); a longer operation completes short.
const MAX_SLICES: usize = 1024;
