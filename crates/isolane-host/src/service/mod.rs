//! One client shared by threads, with a thread that drives it while no caller does.
//!
//! The client is behind a lock that no caller waits for: the thread that holds it *leads*. A caller that finds
//! another thread leading queues its requests, wakes the leader, and spins or sleeps until they complete. Every
//! thread that queues a request, or stops leading, then checks again: if there is work and no leader, it unparks
//! the service's thread.
//!
//! A caller that has all outstanding requests and stops leading, to take some of them, soon leads again. Then the
//! service's thread only watches: it leads once such callers have stayed away for [`WATCH_INTERVAL`], and until one
//! waits again.
//!
//! A caller queues first and then checks for a leader; a leader releases the lock first and then checks for
//! requests. With a full fence between the two steps on both sides, at least one of them sees the other.
//!
//! Invariants: while a request has no completion, a thread leads or has been woken to lead; a panic while leading
//! closes the volume, because the client is in an unknown state; the client, and with it every buffer, is dropped
//! before the replies.

mod map;
mod queue;
mod spin_wait;
#[cfg(test)]
mod tests;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use isolane_reactor::{clock, cpu};
use oneshot::{AsyncReceiver, Sender};
use parking_lot::{Mutex, MutexGuard};

pub(crate) use self::map::{CallerCore, ServiceMap, flush_class};
use self::queue::{ClientStatus, MAX_MESSAGES, Message, SubmissionQueue};
use self::spin_wait::{SpinWait, Spinners};
use crate::caller_queue::CallerQueue;
use crate::client::Client;
use crate::connect::fence::Fences;
use crate::error::{ConnectError, RequestError};
use crate::info::{Info, NamespaceInfo};
use crate::lane_class::LaneClass;
use crate::observed::ClientCells;
use crate::options::{IoChoice, Mode, Options};
use crate::reply::Reply;
use crate::request::{Request, Wait};
use crate::uri::Uri;

/// Time that closing waits for requests in flight.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Time between housekeeping turns of the service's thread while callers lead.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(250);

/// Time without a caller that leads after which the service's thread leads for its requests.
const WATCH_INTERVAL: Duration = Duration::from_micros(500);

/// Maximum number of requests submitted in one turn, unless one caller alone has more.
const SUBMISSIONS_PER_TURN: usize = 256;

/// Idle queues kept for later blocking calls.
const MAX_IDLE_CALLERS: usize = 256;

/// One client, and the thread that drives it.
pub(crate) struct Service {
    /// `None` once the volume is closed.
    client: Mutex<Option<Client>>,
    queue: SubmissionQueue,
    waker: isolane_reactor::Waker,
    /// The service's own thread.
    thread: Thread,
    /// Requests without a completion when a leader last released the client.
    outstanding: AtomicUsize,
    spinners: Spinners,
    /// Whether the service's thread leaves the outstanding requests to the caller that led last.
    watching: AtomicBool,
    /// How often callers left requests to be watched. Leaders write it.
    watched: AtomicUsize,
    stopping: AtomicBool,
    closed: AtomicBool,
    /// Whether callers may lead.
    inline: bool,
    /// Whether the last request came from a future: then only the service's thread leads for long.
    serving_futures: AtomicBool,
    /// The core that its thread is pinned to.
    pub core: Option<usize>,
    /// Description of the target, as of the first connection.
    pub info: Info,
    pub namespace: NamespaceInfo,
    /// Numbers of the client; `None` if it records none.
    pub cells: Option<Arc<ClientCells>>,
    /// Queues of blocking calls that have ended.
    pub idle_callers: ArrayQueue<Arc<CallerQueue>>,
    /// Dropped when the thread ends; `None` from then on.
    on_exit: Mutex<Option<Vec<Sender<()>>>>,
}

/// Stops the service when it is dropped.
pub(crate) struct ServiceOwner(Arc<Service>);

impl Deref for ServiceOwner {
    type Target = Service;

    fn deref(&self) -> &Service {
        &self.0
    }
}

impl Drop for ServiceOwner {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Limit of one wait for completions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitLimit {
    /// Whether the thread polls instead of sleeping.
    pub polls: bool,
    pub deadline: Option<Instant>,
}

impl WaitLimit {
    /// Returns the wait of one turn.
    fn wait(self) -> Wait {
        match self.deadline {
            _ if self.polls => Wait::None,
            Some(deadline) => Wait::Until(deadline),
            None => Wait::Forever,
        }
    }

    /// Returns whether the deadline has passed. Reads the clock only if there is one.
    pub(crate) fn is_over(self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

impl Service {
    /// Starts a thread, pinned to `core`, that connects and then drives the client. All services of a volume share
    /// `fences`.
    pub(crate) fn start(
        uri: Uri,
        options: Options,
        core: Option<usize>,
        fences: Arc<Fences>,
    ) -> Result<impl Future<Output = Result<ServiceOwner, ConnectError>>, ConnectError> {
        let (sender, receiver) = oneshot::async_channel();
        let thread = thread::Builder::new().name("isolane-volume".to_owned());
        let spawned = thread.spawn(move || match Service::connect(&uri, options, core, fences) {
            Ok(service) => {
                let _notifier = ExitNotifier(&service);
                // Without a receiver, this stops the service.
                drop(sender.send(Ok(ServiceOwner(Arc::clone(&service)))));
                service.run_thread();
            }
            Err(error) => drop(sender.send(Err(on_core(core, error)))),
        });
        spawned.map_err(|source| ConnectError::system("a thread", source))?;
        Ok(async {
            let ended = "the volume's thread ended while connecting";
            receiver.await.unwrap_or_else(|_| Err(ConnectError::Unsupported(ended.to_owned())))
        })
    }

    fn connect(
        uri: &Uri,
        mut options: Options,
        core: Option<usize>,
        fences: Arc<Fences>,
    ) -> Result<Arc<Service>, ConnectError> {
        if let Some(core) = core {
            cpu::pin(core).map_err(|source| ConnectError::Core { core, source: Arc::new(source) })?;
        }
        let inline = options.inline_submit && options.io != IoChoice::Uring;
        if inline {
            // A ring belongs to one thread.
            options.io = IoChoice::Epoll;
        }
        let spin = if options.mode == Mode::Sleep { Duration::ZERO } else { options.spin };
        let mut client = Client::connect_sharing_fences(uri, options, fences)?;
        Ok(Arc::new(Service {
            waker: client.waker(),
            info: client.info().clone(),
            namespace: client.namespace().clone(),
            cells: client.observer().cells().cloned(),
            client: Mutex::new(Some(client)),
            queue: SubmissionQueue::default(),
            thread: thread::current(),
            outstanding: AtomicUsize::new(0),
            spinners: Spinners::new(spin),
            watching: AtomicBool::new(false),
            watched: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            inline,
            serving_futures: AtomicBool::new(false),
            core,
            idle_callers: ArrayQueue::new(MAX_IDLE_CALLERS),
            on_exit: Mutex::new(Some(Vec::new())),
        }))
    }

    /// Leads while no caller does, and turns the idle client for housekeeping.
    fn run_thread(&self) {
        let mut watched = self.watched.load(Ordering::Relaxed);
        while !self.is_stopping() {
            if self.watching.load(Ordering::Acquire) {
                let last = std::mem::replace(&mut watched, self.watched.load(Ordering::Relaxed));
                if last != watched {
                    thread::park_timeout(WATCH_INTERVAL);
                    continue;
                }
                self.watching.store(false, Ordering::SeqCst);
            }
            let mut heir = None;
            let next = self.try_lead(None).and_then(|mut leader| {
                let next = self.lead_until_idle(leader.client()?, &mut heir);
                leader.hands_over = heir.is_some();
                Some(next)
            });
            heir.into_iter().for_each(|heir| heir.wake());
            if !self.is_stopping() {
                let now = Instant::now();
                let wait = next.map_or(HOUSEKEEPING_INTERVAL, |next| next.saturating_duration_since(now));
                thread::park_timeout(wait);
            }
        }
        let Some(mut leader) = self.leader(self.client.lock(), None) else { return };
        let Some(client) = leader.client() else { return };
        client.observer().set_leader(None);
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        let mut outstanding = self.drive(client, Wait::None);
        while (outstanding > 0 || !self.queue.is_empty()) && Instant::now() < deadline {
            outstanding = self.drive(client, Wait::Until(deadline));
        }
        // Requests without a completion fail.
        leader.take().into_iter().for_each(Client::close);
    }

    /// Drives the client until no work is left, the volume stops, or a caller can lead: that is the `heir`. Returns the
    /// next time for housekeeping.
    fn lead_until_idle(&self, client: &mut Client, heir: &mut Option<Arc<CallerQueue>>) -> Instant {
        let mut wait = Wait::None;
        client.observer().set_leader(None);
        loop {
            let mut last = None;
            let outstanding = self.drive_for(client, wait, &mut last);
            let stays = !self.inline || self.serving_futures.load(Ordering::Relaxed);
            if !stays {
                *heir = last.filter(|caller| outstanding + caller.completions() == caller.own_if_waiting());
            }
            let is_idle = !stays && outstanding == 0 && self.queue.is_empty();
            if self.is_stopping() || is_idle || heir.is_some() {
                return client.housekeeping();
            }
            wait = Wait::Forever;
        }
    }

    /// Submits queued requests, turns the client once, and returns the number of outstanding requests.
    fn drive(&self, client: &mut Client, wait: Wait) -> usize {
        self.drive_for(client, wait, &mut None)
    }

    /// Returns the `last` caller that submitted requests, too.
    fn drive_for(&self, client: &mut Client, wait: Wait, last: &mut Option<Arc<CallerQueue>>) -> usize {
        let took_all = self.submit_queued(client, last);
        client.turn(&mut Vec::new(), if took_all { wait } else { Wait::None });
        client.outstanding()
    }

    /// Submits a bounded number of requests. Returns `false` if more may be queued.
    fn submit_queued(&self, client: &mut Client, last: &mut Option<Arc<CallerQueue>>) -> bool {
        let mut count = 0;
        while count < SUBMISSIONS_PER_TURN {
            if let Some(caller) = self.queue.callers.pop() {
                let submitted = caller.listed_at();
                caller.on_dequeued();
                count += client.submit_all(&caller, submitted).max(1);
                self.serving_futures.store(false, Ordering::Relaxed);
                *last = Some(caller);
            } else if let Some(message) = self.queue.messages.pop() {
                self.handle_message(client, message);
                count += 1;
            } else {
                return true;
            }
        }
        false
    }

    fn handle_message(&self, client: &mut Client, message: Message) {
        match message {
            Message::Request { class, request, reply, submitted } => {
                if let Reply::Future(_) = reply {
                    self.serving_futures.store(true, Ordering::Relaxed);
                }
                client.submit_with(class, None, request, reply, submitted);
            }
            Message::Status(sender) => {
                let (connections, engine) = (client.connections(), client.engine());
                // A dropped receiver needs no status.
                let _ = sender.send(ClientStatus { connections, engine });
            }
        }
    }

    /// Queues a request for the leader.
    pub(crate) fn post(&self, class: LaneClass, request: Request, reply: Reply) {
        let submitted = clock::now();
        self.post_message(Message::Request { class, request, reply, submitted });
    }

    /// Requests the status of the client from the leader.
    pub(crate) fn request_status(&self) -> AsyncReceiver<ClientStatus> {
        let (sender, receiver) = oneshot::async_channel();
        self.post_message(Message::Status(sender));
        receiver
    }

    fn post_message(&self, message: Message) {
        if let Err(message) = self.queue.messages.push(message) {
            return message.reject(RequestError::TooMany(MAX_MESSAGES));
        }
        self.wake_leader();
        self.reject_if_closed(None);
    }

    /// Submits the queued requests of a caller, which has `outstanding` requests, without waiting. Drives the client once
    /// in this thread if it `may_lead`.
    pub(crate) fn send(&self, caller: &Arc<CallerQueue>, outstanding: usize, may_lead: bool) {
        if !caller.has_submissions() {
            return;
        }
        if may_lead
            && self.inline
            && !self.is_stopping()
            && let Some(mut leader) = self.try_lead(Some((caller, outstanding)))
            && let Some(client) = leader.client()
        {
            client.submit_all(caller, caller.listed_at());
            self.drive(client, Wait::None);
            return;
        }
        self.enqueue(caller);
        self.wake_thread_if_idle();
        self.reject_if_closed(Some(caller));
    }

    /// Leaves all requests of a caller to other threads: it waits without leading.
    pub(crate) fn hand_over(&self, caller: &Arc<CallerQueue>) {
        self.send(caller, 0, false);
        if self.watching.load(Ordering::Relaxed) {
            self.wake_thread_if_idle();
        }
    }

    /// Waits until the caller, which has `outstanding` requests, has a completion, or until the limit. Drives the
    /// client in this thread if it `may_lead`.
    pub(crate) fn wait<'a>(
        &'a self,
        caller: &'a Arc<CallerQueue>,
        outstanding: usize,
        limit: WaitLimit,
        may_lead: bool,
    ) {
        if !may_lead {
            self.hand_over(caller);
        } else if caller.has_completions() {
            self.send(caller, outstanding, true);
        }
        let may_lead = may_lead && self.inline;
        let mut spin = SpinWait::new(&self.spinners, may_lead);
        let mut is_enqueued = false;
        while !caller.has_completions() {
            if may_lead
                && !self.is_stopping()
                && let Some(mut leader) = self.try_lead(Some((caller, outstanding)))
                && let Some(client) = leader.client()
            {
                client.observer().set_leader(Some(caller));
                client.submit_all(caller, caller.listed_at());
                let mut is_over = false;
                while !is_over && !caller.has_completions() && !self.is_stopping() {
                    self.drive(client, limit.wait());
                    is_over = limit.is_over();
                }
                if is_over {
                    break;
                }
                continue;
            }
            if !std::mem::replace(&mut is_enqueued, true) && caller.has_submissions() {
                caller.set_waiting(if may_lead { outstanding } else { 0 });
                self.enqueue(caller);
                self.reject_if_closed(Some(caller));
                continue;
            }
            if spin.should_spin() {
                std::hint::spin_loop();
                continue;
            }
            if limit.is_over() {
                break;
            }
            caller.sleep(limit.deadline, || may_lead && !self.is_stopping() && !self.client.is_locked());
        }
        if is_enqueued {
            caller.set_waiting(0);
        }
        if spin.end() {
            self.recheck_after_release(false);
        }
    }

    /// Returns the spin time of a caller that waits for several services.
    pub(crate) fn spin_wait(&self) -> SpinWait<'_> {
        SpinWait::new(&self.spinners, false)
    }

    /// Begins to close the client. The result is ready when the thread has ended.
    pub(crate) fn close(&self) -> AsyncReceiver<()> {
        let (sender, receiver) = oneshot::async_channel();
        match &mut *self.on_exit.lock() {
            Some(waiting) => waiting.push(sender),
            None => drop(sender),
        }
        self.stop();
        receiver
    }

    /// Makes the service's thread the only leader, which closes the client.
    fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.waker.wake();
        self.thread.unpark();
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Returns `None` if another thread leads or the volume is closed.
    fn try_lead<'a>(&'a self, own: Option<OwnRequests<'a>>) -> Option<Leader<'a>> {
        if self.client.is_locked() { None } else { self.leader(self.client.try_lock()?, own) }
    }

    fn leader<'a>(
        &'a self,
        client: MutexGuard<'a, Option<Client>>,
        own: Option<OwnRequests<'a>>,
    ) -> Option<Leader<'a>> {
        client.as_ref()?;
        self.spinners.on_lead();
        Some(Leader { service: self, client: Some(client), own, hands_over: false })
    }

    /// Lists a caller with submissions, and wakes the leader if there is one.
    fn enqueue(&self, caller: &Arc<CallerQueue>) {
        let mut unlisted = caller.try_enqueue().then(|| Arc::clone(caller));
        while let Some(caller) = unlisted {
            unlisted = self.queue.callers.push(caller).err();
            if unlisted.is_some() {
                // The list is full, which a leader soon changes.
                self.wake_leader();
                self.reject_if_closed(None);
                thread::yield_now();
            }
        }
        self.waker.wake();
    }

    /// Wakes the leader or, without one, the service's thread.
    fn wake_leader(&self) {
        self.waker.wake();
        self.wake_thread_if_idle();
    }

    fn wake_thread_if_idle(&self) {
        fence(Ordering::SeqCst);
        if !self.client.is_locked() {
            self.wake_thread();
        }
    }

    /// Wakes the service's thread to lead.
    fn wake_thread(&self) {
        self.watching.store(false, Ordering::SeqCst);
        self.thread.unpark();
    }

    /// Must be called by every thread that led, or was counted on to lead, and no longer does. `returns` if a caller that
    /// has all outstanding requests leads soon.
    fn recheck_after_release(&self, returns: bool) {
        fence(Ordering::SeqCst);
        let stopping = self.is_stopping();
        let must_lead = !self.queue.is_empty() || stopping;
        let has_work = self.outstanding.load(Ordering::Relaxed) > 0 || must_lead;
        let has_spinner = self.spinners.has_leaders() && !stopping;
        if !has_work || self.client.is_locked() || has_spinner {
            return;
        }
        if must_lead || !returns {
            self.wake_thread();
        } else if !self.watching.swap(true, Ordering::AcqRel) {
            self.thread.unpark();
        }
    }

    /// If the volume is closed, fails all queued requests and all requests of `caller`.
    fn reject_if_closed(&self, caller: Option<&Arc<CallerQueue>>) {
        fence(Ordering::SeqCst);
        if self.closed.load(Ordering::Relaxed) {
            self.queue.reject_all();
            caller.into_iter().for_each(|caller| caller.reject_all());
        }
    }
}

/// Adds the core to an error.
pub(crate) fn on_core(core: Option<usize>, error: ConnectError) -> ConnectError {
    match (core, error) {
        (Some(core), error) if !matches!(error, ConnectError::Core { .. }) => {
            ConnectError::OnCore { core, source: Box::new(error) }
        }
        (_, error) => error,
    }
}

/// Reports the end of a service's thread, also after a panic.
struct ExitNotifier<'a>(&'a Service);

impl Drop for ExitNotifier<'_> {
    fn drop(&mut self) {
        self.0.on_exit.lock().take();
    }
}

/// The exclusive right to drive the client, until it is dropped.
struct Leader<'a> {
    service: &'a Service,
    /// Holds a client until [`Leader::take`].
    client: Option<MutexGuard<'a, Option<Client>>>,
    own: Option<OwnRequests<'a>>,
    /// Whether a caller leads next.
    hands_over: bool,
}

/// The caller that leads, and the number of its requests whose completions it has not taken.
type OwnRequests<'a> = (&'a CallerQueue, usize);

impl Leader<'_> {
    fn client(&mut self) -> Option<&mut Client> {
        self.client.as_deref_mut()?.as_mut()
    }

    /// Removes the client for good.
    fn take(&mut self) -> Option<Client> {
        self.service.stopping.store(true, Ordering::Release);
        self.client.as_deref_mut()?.take()
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            // The client is in an unknown state and must not be turned again.
            drop(self.take());
        }
        let outstanding = self.client().map(|client| client.outstanding());
        self.service.outstanding.store(outstanding.unwrap_or_default(), Ordering::Relaxed);
        if outstanding.is_none() {
            self.service.closed.store(true, Ordering::SeqCst);
            self.service.reject_if_closed(None);
        }
        let is_own = |(caller, own): OwnRequests<'_>| {
            outstanding
                .is_some_and(|outstanding| outstanding > 0 && outstanding + caller.completions() == own)
        };
        let returns = self.hands_over || self.own.is_some_and(is_own);
        if self.hands_over {
            // The service's thread need not wake itself.
            self.service.watching.store(true, Ordering::Relaxed);
        }
        if returns {
            let watched = self.service.watched.load(Ordering::Relaxed);
            self.service.watched.store(watched.wrapping_add(1), Ordering::Relaxed);
        }
        drop(self.client.take());
        self.service.recheck_after_release(returns);
    }
}
