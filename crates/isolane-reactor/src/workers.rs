//! A few threads for each file that carry out its operations: those that the ring cannot start without waiting,
//! and all on machines without one.
//!
//! Threads start as they are needed. Dropping the workers waits until all operations in flight are done.

use crate::file::{Checked, Finished, Kind, Operation};
use crate::kernel;
use crate::mailbox::{self, Receiver, Sender};
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

pub(crate) struct Workers {
    crews: Vec<Crew>,
    done: Receiver<Finished>,
    done_sender: Sender<Finished>,
    in_flight: usize,
}

/// The threads of one file. No other waits for them, so a file that hangs holds up no other.
struct Crew {
    /// Does not keep it open.
    file: Weak<File>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle_threads: usize,
    is_closing: bool,
}

struct Job {
    token: u64,
    file: Arc<File>,
    operation: Checked,
}

impl Workers {
    pub fn new(waker: Waker) -> Workers {
        // As many messages as operations in flight.
        let (done_sender, done) = mailbox::unbounded(waker);
        Workers { crews: Vec::new(), done, done_sender, in_flight: 0 }
    }

    pub fn submit(&mut self, token: u64, file: &Arc<File>, operation: Checked) {
        self.in_flight += 1;
        let job = Job { token, file: file.clone(), operation };
        let is_of = |crew: &Crew| std::ptr::eq(crew.file.as_ptr(), Arc::as_ptr(file));
        let index = self.crews.iter().position(is_of).unwrap_or_else(|| {
            // Their jobs would keep their files open.
            self.crews.retain(|crew| crew.file.strong_count() > 0);
            self.crews.push(Crew::new(file));
            self.crews.len() - 1
        });
        self.crews[index].submit(job, &self.done_sender);
    }

    /// An operation that is done.
    pub fn poll(&mut self) -> Option<Finished> {
        if self.in_flight == 0 {
            return None;
        }
        let finished = self.done.poll()?;
        self.in_flight -= 1;
        Some(finished)
    }
}

impl Crew {
    fn new(file: &Arc<File>) -> Crew {
        let shared = Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new() });
        Crew { file: Arc::downgrade(file), shared, threads: Vec::new() }
    }

    fn submit(&mut self, job: Job, done: &Sender<Finished>) {
        let mut queue = self.shared.queue.lock();
        queue.jobs.push_back(job);
        let needs_thread = queue.jobs.len() > queue.idle_threads && self.threads.len() < THREADS_MAX;
        drop(queue);
        self.shared.changed.notify_one();
        if needs_thread {
            self.start_thread(done);
        }
    }

    fn start_thread(&mut self, done: &Sender<Finished>) {
        let (shared, sender) = (self.shared.clone(), done.clone());
        let name = format!("isolane-file-{}", self.threads.len());
        match thread::Builder::new().name(name).spawn(move || work(&shared, &sender)) {
            Ok(thread) => self.threads.push(thread),
            Err(error) if self.threads.is_empty() => {
                log::warn!(
                    "cannot start a thread for files: {error}; files are served by the reactor itself"
                );
                self.work_here(done);
            }
            // Those that run do the work.
            Err(_) => {}
        }
    }

    /// Without any thread the operations must still end.
    fn work_here(&mut self, done: &Sender<Finished>) {
        let jobs = std::mem::take(&mut self.shared.queue.lock().jobs);
        for job in jobs {
            // The receiver is our own.
            let _ = done.send(job.run());
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.queue.lock().is_closing = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing in flight any more.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared, done: &Sender<Finished>) {
    crate::core::unpin();
    while let Some(job) = next_job(shared) {
        if done.send(job.run()).is_err() {
            return;
        }
    }
}

/// Waits for work. `None` when all is done and the workers are being dropped.
fn next_job(shared: &Shared) -> Option<Job> {
    let mut queue = shared.queue.lock();
    loop {
        if let Some(job) = queue.jobs.pop_front() {
            return Some(job);
        }
        if queue.is_closing {
            return None;
        }
        queue.idle_threads += 1;
        shared.changed.wait(&mut queue);
        queue.idle_threads -= 1;
    }
}

impl Job {
    fn run(mut self) -> Finished {
        let result = loop {
            match execute(&self.file, self.operation.operation_mut()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        Finished { token: self.token, result, operation: self.operation.into_operation() }
    }
}

fn execute(file: &File, operation: &mut Operation) -> io::Result<usize> {
    let Operation { kind, offset, len, .. } = *operation;
    match kind {
        Kind::Read => read(file, operation),
        Kind::Write { durable } => write(file, operation, durable),
        Kind::Sync => fdatasync(file).map(|()| 0).map_err(Errno::into),
        Kind::Size => size(file),
        Kind::PunchHole => allocate(file, FallocateFlags::PUNCH_HOLE, offset, len),
        Kind::ZeroRange => allocate(file, FallocateFlags::ZERO_RANGE, offset, len),
        Kind::DeviceDiscard => kernel::discard(file, offset, len).map(|()| 0),
        Kind::DeviceZero => kernel::zero(file, offset, len).map(|()| 0),
    }
}

fn size(file: &File) -> io::Result<usize> {
    usize::try_from(file.metadata()?.len()).map_err(|_| Errno::OVERFLOW.into())
}

fn allocate(file: &File, flags: FallocateFlags, offset: u64, len: u64) -> io::Result<usize> {
    fallocate(file, flags | FallocateFlags::KEEP_SIZE, offset, len)?;
    Ok(0)
}

fn read(file: &File, operation: &mut Operation) -> io::Result<usize> {
    let (start, len, offset) = (operation.buffer_offset, operation.len as usize, operation.offset);
    let buffer = operation.buffer.as_mut().ok_or(io::ErrorKind::InvalidInput)?;
    let mut slices: SmallVec<[IoSliceMut<'_>; SLICES]> =
        buffer.io_slices_mut(start, len).take(SLICES_MAX).map(|(slice, _)| slice).collect();
    Ok(preadv(file, &mut slices, offset)?)
}

fn write(file: &File, operation: &Operation, durable: bool) -> io::Result<usize> {
    let (start, len) = (operation.buffer_offset, operation.len as usize);
    let buffer: &Buffer = operation.buffer.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
    let slices: SmallVec<[IoSlice<'_>; SLICES]> =
        buffer.io_slices(start, len).take(SLICES_MAX).map(|(slice, _)| slice).collect();
    let flags = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
    Ok(pwritev2(file, &slices, operation.offset, flags)?)
}

/// Of one file.
const THREADS_MAX: usize = 8;
const SLICES: usize = 32;
/// The kernel takes no more pieces at once (`IOV_MAX`); the rest is a short transfer.
const SLICES_MAX: usize = 1024;
