//! A volume for any number of threads, without a reactor in each: one thread drives it with a [`VolumeQueue`].
//!
//! A caller starts its request in its own thread, so that volumes in memory complete there. The driver gets a request
//! only if it needs file operations, members, or memory; it then completes without the caller.
//!
//! Invariants:
//! * Each submitted request completes exactly once, in any order; with an error if the driver has failed.
//! * A completed request uses no memory of its caller, also if the driver has failed.
//! * A completed read with a destination holds no memory of a pool, however late its completion is taken.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crossbeam_queue::SegQueue;
use isolane_memory::{Buffer, PAGE_SIZE, Pool};
use isolane_reactor::{Event, Parker, Reactor, ReactorConfig, ReactorError, Waker};
use rustix::io::Errno;
use slotmap::{DefaultKey, Key, KeyData, SlotMap};

use crate::{Outcome, Pending, Request, Step, Volume, VolumeError, VolumeQueue};

/// A volume and the thread that drives it, which ends with this value.
pub struct VolumeThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    volume: Arc<dyn Volume>,
    inbox: SegQueue<Message>,
    waker: Waker,
    is_stopping: AtomicBool,
    has_failed: AtomicBool,
}

/// A request that its caller started.
struct Message {
    step: Step,
    reply: Reply,
}

/// Obligation to complete one request.
struct Reply {
    tag: u64,
    /// Where the data of a read must be copied.
    destination: Option<Buffer>,
    to: Option<Arc<Completions>>,
}

/// Completions of one queue, until its thread takes them.
#[derive(Default)]
struct Completions {
    outcomes: SegQueue<(u64, Outcome)>,
    parker: Parker,
}

impl VolumeThread {
    /// Starts the thread. The volume must have no other driver.
    ///
    /// # Errors
    /// No reactor, or no thread.
    pub fn start(volume: Arc<dyn Volume>, config: ReactorConfig) -> Result<Arc<VolumeThread>, ReactorError> {
        let (sender, started) = mpsc::channel();
        let drive = move || match Reactor::new(config) {
            Err(error) => drop(sender.send(Err(error))),
            Ok(reactor) => {
                let shared = Arc::new(Shared {
                    volume,
                    inbox: SegQueue::new(),
                    waker: reactor.waker(),
                    is_stopping: AtomicBool::new(false),
                    has_failed: AtomicBool::new(false),
                });
                let guard = FailureGuard(Arc::clone(&shared));
                let is_received = sender.send(Ok(Arc::clone(&shared))).is_ok();
                if is_received {
                    Driver::new(shared, reactor).run();
                }
                drop(guard);
            }
        };
        let setup = |error| ReactorError::Setup { what: "a thread", error };
        let thread = thread::Builder::new().name("isolane-volume".to_owned()).spawn(drive).map_err(setup)?;
        let shared = started.recv().unwrap_or_else(|error| Err(setup(io::Error::other(error))))?;
        Ok(Arc::new(VolumeThread { shared, thread: Some(thread) }))
    }

    /// Returns the volume.
    pub fn volume(&self) -> &Arc<dyn Volume> {
        &self.shared.volume
    }

    /// Returns a queue for one thread at a time. Its requests complete even if it is dropped.
    pub fn queue(self: &Arc<Self>) -> ThreadQueue {
        ThreadQueue {
            thread: Arc::clone(self),
            completions: Arc::default(),
            inline: VecDeque::new(),
            pool: Pool::new(QUEUE_POOL_BYTES / PAGE_SIZE),
            is_leaf: self.shared.volume.members().is_empty(),
            outstanding: 0,
            has_unsent: false,
        }
    }
}

impl Drop for VolumeThread {
    /// Waits for the requests in flight.
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        self.shared.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Requests of one thread.
pub struct ThreadQueue {
    thread: Arc<VolumeThread>,
    completions: Arc<Completions>,
    /// Requests that completed when they were started.
    inline: VecDeque<(u64, Outcome)>,
    pool: Pool,
    is_leaf: bool,
    outstanding: usize,
    /// The driver has not been woken.
    has_unsent: bool,
}

impl ThreadQueue {
    /// Returns the volume.
    pub fn volume(&self) -> &Arc<dyn Volume> {
        self.thread.volume()
    }

    /// Returns the number of requests whose completion was not taken.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Whether the volume has no members. Then it holds no reference to the memory of a completed request.
    pub fn is_leaf(&self) -> bool {
        self.is_leaf
    }

    /// Starts a request; its completion has `tag`. [`ThreadQueue::send`] or a wait sends it to the driver.
    ///
    /// A read fills `destination`, which has its length, and completes with it; without a copy if the volume has no
    /// members and reads into pages, and the destination is aligned to pages. Without a destination, it completes with
    /// memory of a pool or of the volume.
    pub fn submit(&mut self, tag: u64, request: Request, mut destination: Option<Buffer>) {
        self.outstanding += 1;
        // Members could take it for a part of another request.
        if let Some(buffer) = destination.take_if(|buffer| self.is_leaf && buffer.is_aligned(PAGE_SIZE)) {
            self.pool.set_destination(buffer);
        }
        let step = self.thread.shared.volume.start(request, &mut self.pool);
        let destination = self.pool.take_destination().or(destination);
        match step {
            Step::Done(outcome) => {
                self.inline.push_back((tag, finish(outcome, destination, &mut self.pool)));
            }
            step => {
                let reply = Reply { tag, destination, to: Some(Arc::clone(&self.completions)) };
                self.thread.shared.inbox.push(Message { step, reply });
                self.has_unsent = true;
            }
        }
    }

    /// Sends the started requests to the driver.
    pub fn send(&mut self) {
        if std::mem::take(&mut self.has_unsent) {
            let shared = &self.thread.shared;
            shared.waker.wake();
            fence(Ordering::SeqCst);
            if shared.has_failed.load(Ordering::Relaxed) {
                shared.fail_all();
            }
        }
    }

    /// Returns a completed request.
    pub fn poll(&mut self) -> Option<(u64, Outcome)> {
        let completed = self.inline.pop_front().or_else(|| self.completions.outcomes.pop())?;
        self.outstanding -= 1;
        Some(completed)
    }

    /// Sends the started requests, and waits for a completion, or until the deadline. Returns immediately without
    /// requests.
    pub fn wait(&mut self, deadline: Option<Instant>) {
        self.send();
        if self.outstanding > 0 && !self.has_completions() {
            self.completions.parker.sleep(deadline, || self.has_completions());
        }
    }

    /// Returns the descriptor that becomes readable when a request completes after [`ThreadQueue::arm`].
    ///
    /// # Errors
    /// The system's, if there is no descriptor yet.
    pub fn wait_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.completions.parker.wait_fd()
    }

    /// Sends the started requests, and requests one notification at [`ThreadQueue::wait_fd`]. Returns `false` if there
    /// is a completion already: take it instead of waiting.
    ///
    /// # Errors
    /// The system's, if there is no descriptor yet.
    pub fn arm(&mut self) -> io::Result<bool> {
        self.send();
        self.completions.parker.arm(|| self.has_completions())
    }

    /// Ends a wait at [`ThreadQueue::wait_fd`], and clears the descriptor.
    pub fn disarm(&mut self) {
        self.completions.parker.disarm();
    }

    /// Returns whether [`ThreadQueue::poll`] returns a request now.
    pub fn has_completions(&self) -> bool {
        !self.inline.is_empty() || !self.completions.outcomes.is_empty()
    }
}

impl Drop for ThreadQueue {
    fn drop(&mut self) {
        self.send();
    }
}

impl Shared {
    /// Fails the requests that no driver will take.
    fn fail_all(&self) {
        while let Some(Message { step, reply }) = self.inbox.pop() {
            let pending = if let Step::Pending(pending) = &step { Some(pending.share()) } else { None };
            // Completes a request whose work was left to the driver.
            drop(step);
            drop(pending.map(Unfinished));
            drop(reply);
        }
    }
}

impl Reply {
    /// Completes the request, and returns the queue to wake.
    fn complete(mut self, outcome: Outcome, pool: &mut Pool) -> Option<Arc<Completions>> {
        let to = self.to.take()?;
        to.outcomes.push((self.tag, finish(outcome, self.destination.take(), pool)));
        Some(to)
    }
}

/// Copies the data of a request to its destination.
fn finish(outcome: Outcome, destination: Option<Buffer>, pool: &mut Pool) -> Outcome {
    let data = outcome?;
    let Some(mut destination) = destination else { return Ok(data) };
    let mut at = 0;
    for slice in data.slices(0, data.len()) {
        destination.copy_in(at, slice);
        at += slice.len();
    }
    pool.recycle_payload(data);
    Ok(destination.into_payload())
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.destination = None;
        if let Some(to) = self.to.take() {
            to.outcomes
                .push((self.tag, Err(VolumeError::ReadFailed { raw_os_error: Errno::IO.raw_os_error() })));
            to.parker.wake();
        }
    }
}

/// Fails requests once the driver has ended, also by a panic.
struct FailureGuard(Arc<Shared>);

impl Drop for FailureGuard {
    fn drop(&mut self) {
        self.0.has_failed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.0.fail_all();
    }
}

/// A request that completes outside of a driver that has failed. Until then, it can use memory of its caller.
struct Unfinished(Pending);

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// State of the thread.
struct Driver {
    /// Before the reactor, which waits for the operations of the volume when it is dropped.
    queue: VolumeQueue,
    shared: Arc<Shared>,
    pool: Pool,
    reactor: Reactor,
    /// Requests when the driver fails. After the queue, which can complete them.
    unfinished: Vec<Unfinished>,
    /// After the reactor, which can have memory of the requests.
    replies: SlotMap<DefaultKey, Reply>,
    events: Vec<Event>,
    /// Queues with completions of this turn.
    to_wake: Vec<Arc<Completions>>,
}

impl Driver {
    fn new(shared: Arc<Shared>, mut reactor: Reactor) -> Driver {
        Driver {
            queue: VolumeQueue::new(Arc::clone(&shared.volume), &mut reactor),
            shared,
            pool: Pool::new(DRIVER_POOL_BYTES / PAGE_SIZE),
            reactor,
            unfinished: Vec::new(),
            replies: SlotMap::default(),
            events: Vec::new(),
            to_wake: Vec::new(),
        }
    }

    fn run(mut self) {
        while !self.has_ended() {
            if let Err(error) = self.turn() {
                log::error!(
                    "{}: the reactor failed: {error}; open the volume again",
                    self.shared.volume.name()
                );
                return;
            }
        }
    }

    fn has_ended(&self) -> bool {
        let is_stopping = self.shared.is_stopping.load(Ordering::Acquire);
        is_stopping && self.queue.in_flight() == 0 && self.shared.inbox.is_empty()
    }

    fn turn(&mut self) -> io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        let deadline = self.queue.deadline();
        let turned = self.reactor.turn(deadline, &mut events);
        self.queue.begin_turn(self.reactor.now());
        for event in events.drain(..) {
            match event {
                Event::File(finished) => {
                    self.queue.handle_file(finished, &mut self.reactor, &mut self.pool);
                }
                Event::Readable(token) => self.queue.handle_readable(token),
                Event::Writable(_) | Event::Woken | Event::Accepted { .. } => {}
            }
        }
        self.events = events;
        for _ in 0..MESSAGES_PER_TURN {
            let Some(Message { step, reply }) = self.shared.inbox.pop() else { break };
            let tag = self.replies.insert(reply).data().as_ffi();
            self.queue.adopt(tag, step, &mut self.reactor, &mut self.pool);
        }
        if !self.shared.inbox.is_empty() {
            self.shared.waker.wake();
        }
        self.complete();
        self.queue.end_turn(&mut self.reactor, &mut self.pool);
        self.complete();
        self.to_wake.drain(..).for_each(|completions| completions.parker.wake());
        turned
    }

    /// Passes completions to their queues.
    fn complete(&mut self) {
        while let Some((tag, outcome)) = self.queue.poll() {
            let reply = self.replies.remove(KeyData::from_ffi(tag).into());
            let Some(to) = reply.and_then(|reply| reply.complete(outcome, &mut self.pool)) else { continue };
            if !self.to_wake.last().is_some_and(|last| Arc::ptr_eq(last, &to)) {
                self.to_wake.push(to);
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.unfinished = self.queue.pending().into_iter().map(Unfinished).collect();
    }
}

/// Memory of one queue, for data that its volume does not read into a destination.
const QUEUE_POOL_BYTES: usize = 8 << 20;
/// Memory of requests for which a queue has none.
const DRIVER_POOL_BYTES: usize = 128 << 20;
/// Requests that one turn takes.
const MESSAGES_PER_TURN: usize = 256;

#[cfg(test)]
mod tests;
