//! Progress: the drivers of a device's lanes.
//!
//! By default, threads that poll drive them, and a thread of the library takes over when none has polled for
//! [`IDLE`]. It then sleeps until a lane is ready. A dedicated thread drives the lanes without ever sleeping; other
//! threads then make no system call.
//!
//! Invariant: a lane that becomes ready is driven, by a polling thread or within [`IDLE`] by the library's.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use isolane_memory::MemoryRegion;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};

use super::contention;

/// Driver of the lanes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgressMode {
    /// The threads that poll; a thread of the library while none does.
    #[default]
    Polling,
    /// A thread on this core, which never sleeps.
    Dedicated {
        /// Number of the core.
        core: usize,
    },
}

impl fmt::Display for ProgressMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProgressMode::Polling => formatter.write_str("polling"),
            ProgressMode::Dedicated { core } => write!(formatter, "thread:{core}"),
        }
    }
}

impl FromStr for ProgressMode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<ProgressMode, Self::Err> {
        match text.strip_prefix("thread:").map(str::parse) {
            Some(Ok(core)) => Ok(ProgressMode::Dedicated { core }),
            None if text == "polling" => Ok(ProgressMode::Polling),
            _ => Err("not a mode: write polling, or for example thread:1"),
        }
    }
}

/// What the drivers of a device drive: a queue pair, or a port of datagrams.
pub(super) trait Driven: Send + Sync {
    fn number(&self) -> u32;

    /// Stops using memory.
    fn revoke(&self, region: &Arc<MemoryRegion>);

    /// Returns `false` if it is marked already.
    fn mark_pending(&self) -> bool;

    /// Sends pending data. Returns whether a receive has ended early.
    fn send_pending(&self) -> bool;

    /// Receives arrived data, unless another thread does. Returns whether something remains to be sent: an
    /// acknowledgment, which the program's response can carry.
    fn try_drive(&self) -> bool;

    /// Receives and sends until the lane blocks. Returns whether it must be continued.
    fn drive(&self) -> bool;
}

/// The lanes of a device.
pub(super) struct Progress {
    mode: ProgressMode,
    driven_set: RwLock<DrivenSet>,
    /// Queue pairs that have something to send.
    pending: Mutex<Vec<Arc<dyn Driven>>>,
    epoll: OwnedFd,
    /// Wakes the library's thread.
    wake: OwnedFd,
    /// Counts the calls of [`Progress::drive`] by threads that poll.
    polls: AtomicU64,
    /// The library's thread waits for lanes, because no thread polls.
    is_taken_over: AtomicBool,
    is_stopping: AtomicBool,
    /// Tasks to wake when the caller holds no lock.
    wakers: Mutex<Vec<Waker>>,
    has_wakers: AtomicBool,
    /// A thread that polls sleeps until a lane is ready.
    is_awaited: AtomicBool,
    /// Number of other threads that sleep between polls.
    sleepers: AtomicUsize,
    sleeping: Mutex<()>,
    arrived: Condvar,
}

#[derive(Default)]
struct DrivenSet {
    list: Vec<Arc<dyn Driven>>,
    by_number: HashMap<u32, Arc<dyn Driven>>,
}

impl Progress {
    pub(super) fn new(mode: ProgressMode) -> io::Result<Progress> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        Ok(Progress {
            mode,
            driven_set: RwLock::default(),
            pending: Mutex::default(),
            epoll,
            wake,
            polls: AtomicU64::new(0),
            is_taken_over: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            wakers: Mutex::default(),
            has_wakers: AtomicBool::new(false),
            is_awaited: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            sleeping: Mutex::default(),
            arrived: Condvar::new(),
        })
    }

    /// Starts the library's thread, which drives the lanes while no thread polls.
    pub(super) fn start(self: &Arc<Self>) -> io::Result<JoinHandle<()>> {
        let progress = Arc::clone(self);
        thread::Builder::new().name("isolane-verbs".into()).spawn(move || progress.run())
    }

    /// Ends the library's thread.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        self.wake_thread();
    }

    /// Adds a queue pair, which has no lane yet.
    pub(super) fn add(&self, driven: Arc<dyn Driven>) -> io::Result<()> {
        let mut driven_set = self.driven_set.write();
        let number = driven.number();
        if driven_set.by_number.contains_key(&number) {
            let text = format!("queue pair {number} exists; choose another number");
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        driven_set.list.push(Arc::clone(&driven));
        driven_set.by_number.insert(number, driven);
        let count = driven_set.list.len();
        drop(driven_set);
        if count == FEW_LANES + 1 {
            // From now on, only edges are seen; data that polls left unread has none.
            self.drive_all();
        }
        Ok(())
    }

    /// Makes all queue pairs stop using memory that is no longer registered. Only the registration holds the region
    /// afterwards.
    pub(super) fn revoke(&self, region: &Arc<MemoryRegion>) {
        if Arc::strong_count(region) > 1 {
            let driven_set = self.driven_set.read().list.clone();
            driven_set.iter().for_each(|driven| driven.revoke(region));
            self.wake_tasks();
        }
    }

    /// Watches the descriptor of a new lane of a queue pair.
    pub(super) fn watch(&self, number: u32, lane: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, lane, epoll::EventData::new_u64(number.into()), flags)?)
    }

    pub(super) fn remove(&self, number: u32) {
        // The end of the lane removes its descriptor.
        let mut driven_set = self.driven_set.write();
        driven_set.list.retain(|driven| driven.number() != number);
        driven_set.by_number.remove(&number);
    }

    /// Locks a mutex that is held only for short times.
    pub(super) fn lock<'a, T>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        if self.mode == ProgressMode::Polling {
            return mutex.lock();
        }
        // A sleeping lock would be a system call.
        loop {
            match mutex.try_lock() {
                Some(guard) => return guard,
                None => std::hint::spin_loop(),
            }
        }
    }

    /// Whether a request is sent when it is posted, because no thread polls that would send it soon.
    pub(super) fn sends_at_once(&self) -> bool {
        self.is_taken_over.load(Ordering::Relaxed) || self.is_awaited.load(Ordering::Relaxed)
    }

    /// Whether the calling thread may make system calls.
    pub(super) fn is_shared(&self) -> bool {
        self.mode == ProgressMode::Polling
    }

    /// Makes the next driver send the data of a queue pair.
    pub(super) fn mark_pending(&self, driven: &Arc<dyn Driven>) {
        if driven.mark_pending() {
            self.add_pending(Arc::clone(driven));
        }
    }

    /// Makes the next driver send the data of a queue pair that was not marked.
    pub(super) fn add_pending(&self, driven: Arc<dyn Driven>) {
        self.lock(&self.pending).push(driven);
        // The thread reads the list after it has taken over.
        if self.is_taken_over.load(Ordering::SeqCst) {
            self.wake_thread();
        }
    }

    /// Drives all lanes once. Returns `false` if only the dedicated thread does that.
    pub(super) fn drive(&self) -> bool {
        if self.mode != ProgressMode::Polling && !self.has_stopped() {
            return false;
        }
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.turn();
        self.wake_tasks();
        true
    }

    /// Wakes a task at the next [`Progress::wake_tasks`], because it can drop a queue pair whose lock the caller holds.
    pub(super) fn wake_later(&self, waker: Waker) {
        self.lock(&self.wakers).push(waker);
        self.has_wakers.store(true, Ordering::SeqCst);
    }

    /// Wakes tasks. The caller holds no lock.
    pub(super) fn wake_tasks(&self) {
        if self.has_wakers.load(Ordering::Relaxed) && self.has_wakers.swap(false, Ordering::SeqCst) {
            let wakers = std::mem::take(&mut *self.lock(&self.wakers));
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Polls as [`Progress::drive`], but sleeps for a short time until a lane is ready. If another thread does that, sleeps
    /// until a completion arrives or `is_ready`.
    pub(super) fn sleep(&self, is_ready: impl FnOnce() -> bool) {
        self.polls.fetch_add(1, Ordering::Relaxed);
        if self.is_awaited.swap(true, Ordering::SeqCst) {
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            let mut sleeping = self.sleeping.lock();
            let timed_out =
                !is_ready() && self.arrived.wait_for(&mut sleeping, contention::MAX_SLEEP).timed_out();
            drop(sleeping);
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
            if timed_out {
                // The other thread can have lost its core.
                self.turn();
                self.wake_tasks();
            }
            return;
        }
        self.send_pending();
        if !is_ready() {
            let mut events = [NO_EVENT; MAX_EVENTS];
            let events = self.ready(&mut events, Some(contention::MAX_SLEEP));
            self.drive_ready(&self.driven_set.read(), events);
        }
        self.is_awaited.store(false, Ordering::SeqCst);
        self.wake_tasks();
    }

    /// Wakes the threads that sleep between polls, after a completion has arrived.
    pub(super) fn wake_sleepers(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.sleeping.lock());
            self.arrived.notify_all();
        }
    }

    /// Whether the device is gone, so that only threads that poll drive its lanes.
    pub(super) fn has_stopped(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Makes the library's thread take over now, because the caller sleeps.
    pub(super) fn hand_over(&self) {
        if self.mode == ProgressMode::Polling && !self.is_taken_over.swap(true, Ordering::SeqCst) {
            self.wake_thread();
        }
    }

    /// Drives all lanes once, on the dedicated thread.
    pub(super) fn turn_dedicated(&self) {
        self.turn();
        self.wake_tasks();
    }

    /// Sends pending data, then receives from all lanes, or from the ready ones if there are many.
    fn turn(&self) {
        self.send_pending();
        let driven_set = self.driven_set.read();
        if driven_set.list.len() <= FEW_LANES {
            for driven in &driven_set.list {
                if driven.try_drive() {
                    self.mark_pending(driven);
                }
            }
            return;
        }
        let mut events = [NO_EVENT; MAX_EVENTS];
        self.drive_ready(&driven_set, self.ready(&mut events, Some(Duration::ZERO)));
    }

    /// Waits for edges of lanes.
    fn ready<'e>(&self, events: &'e mut [epoll::Event], timeout: Option<Duration>) -> &'e [epoll::Event] {
        // `epoll_wait` rounds a timeout up to milliseconds.
        if let Some(timeout) = timeout.filter(|timeout| !timeout.is_zero()) {
            let _ = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timespec(timeout)));
        }
        let timeout = timeout.map(|_| timespec(Duration::ZERO));
        let count = epoll::wait(&self.epoll, &mut *events, timeout.as_ref());
        &events[..count.unwrap_or(0)]
    }

    /// Drives the ready lanes, whose edges no other thread sees.
    fn drive_ready(&self, driven_set: &DrivenSet, events: &[epoll::Event]) {
        let ready = events.iter().filter_map(|event| driven_set.by_number.get(&(event.data.u64() as u32)));
        ready.for_each(|driven| self.drive_one(driven));
    }

    /// Sends pending data.
    fn send_pending(&self) {
        let pending = std::mem::take(&mut *self.lock(&self.pending));
        let unread = pending.iter().filter(|driven| driven.send_pending());
        unread.for_each(|driven| self.drive_one(driven));
    }

    /// Drives one lane until it blocks.
    fn drive_one(&self, driven: &Arc<dyn Driven>) {
        if driven.drive() {
            self.mark_pending(driven);
        }
    }

    fn run(&self) {
        let (mut polls, mut is_caught_up) = (u64::MAX, false);
        while !self.is_stopping.load(Ordering::SeqCst) {
            let polls_now = self.polls.load(Ordering::SeqCst);
            is_caught_up &= polls_now == polls;
            if polls_now != polls && !self.is_taken_over.load(Ordering::SeqCst) {
                polls = polls_now;
                let mut wake = [PollFd::new(&self.wake, PollFlags::IN)];
                let _ = poll(&mut wake, Some(&timespec(IDLE)));
                self.clear_wake();
                continue;
            }
            self.is_taken_over.store(true, Ordering::SeqCst);
            polls = self.polls.load(Ordering::SeqCst);
            // A thread that polls leaves data unread that it does not expect.
            if !is_caught_up {
                self.drive_all();
                is_caught_up = true;
            }
            self.send_pending();
            self.wake_tasks();
            self.wait();
            self.wake_tasks();
            self.clear_wake();
            if self.polls.load(Ordering::SeqCst) != polls {
                self.is_taken_over.store(false, Ordering::SeqCst);
            }
        }
    }

    /// Waits until a lane is ready, and drives it.
    fn wait(&self) {
        let timeout = (!self.pending.lock().is_empty()).then_some(Duration::ZERO);
        let mut events = [NO_EVENT; MAX_EVENTS];
        let events = self.ready(&mut events, timeout);
        self.drive_ready(&self.driven_set.read(), events);
    }

    /// Reads and writes each lane until it blocks.
    fn drive_all(&self) {
        let driven_set = self.driven_set.read().list.clone();
        driven_set.iter().for_each(|driven| self.drive_one(driven));
    }

    fn wake_thread(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn clear_wake(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }
}

pub(super) fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}

/// After this time without a poll, the library's thread drives the lanes.
const IDLE: Duration = Duration::from_micros(500);
/// Number of lanes up to which a poll tries each of them instead of asking which are ready.
const FEW_LANES: usize = 16;
const MAX_EVENTS: usize = 64;
const WAKE: u64 = u64::MAX;
const NO_EVENT: epoll::Event =
    epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
