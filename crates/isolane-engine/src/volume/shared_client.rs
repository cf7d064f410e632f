//! Client of a volume on one core, shared by all sessions that have opened it there.
//!
//! Queues submit in turn, up to the capacity of the lanes, and each receives its completions. All state belongs
//! to the thread of the core.
//!
//! Invariant: an idle queue is woken when it has its turn or a completion.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use isolane_host::{
    Client, Completion, ConnectError, Era, Info, LaneClass, Options, Request, RequestTimes, Uri, Wait,
};
use parking_lot::Mutex;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use super::journal::AssociationRegistry;

/// Shared client, from the start of its connect on.
pub(super) struct SharedClient {
    state: State,
    members: HashMap<u32, Member>,
    last_member: u32,
    /// Members that wait for their turn to submit, in order.
    submit_queue: VecDeque<u32>,
    /// Requested depth of a lane, in commands.
    depth: u16,
    /// Maximum number of commands in flight, of all members.
    capacity: usize,
    /// Time of the last turn.
    turned: Option<Instant>,
    deadline: Option<Instant>,
    completions: Vec<Completion>,
    times: Vec<RequestTimes>,
    /// Number of all earlier entries of `times`.
    earlier_times: u64,
}

enum State {
    Connecting { result: mpsc::Receiver<Result<Client, ConnectError>>, wakeups: Wakeups },
    Up(Box<Client>),
    Failed(String),
    Closed,
}

/// Wakeups of the queues that wait for the connecting thread.
type Wakeups = Arc<Mutex<Vec<Arc<OwnedFd>>>>;

/// Parameters of a client.
pub(super) struct ClientParams {
    pub key: ClientKey,
    pub uri: Uri,
    pub options: Options,
    pub registry: Arc<AssociationRegistry>,
}

/// URI and options; equal keys share a client.
pub(super) type ClientKey = (String, Vec<u8>);

/// Queue of a client.
struct Member {
    waker: Rc<QueueWaker>,
    completed: Vec<Completed>,
    /// Times of these completions, and the number of the last entry among all of the client.
    times: Vec<RequestTimes>,
    last_times: Option<u64>,
}

/// Completion, with the era of the target that it belongs to.
pub(super) type Completed = (Completion, Era);

/// Wakes an idle queue through the descriptor that its core watches.
pub(super) struct QueueWaker {
    /// Epoll instance with the eventfd and the client's descriptor.
    source: OwnedFd,
    eventfd: Arc<OwnedFd>,
    idle: Cell<bool>,
    watches_client: Cell<bool>,
}

thread_local! {
    /// Clients of this core.
    static CLIENTS: RefCell<HashMap<ClientKey, Weak<RefCell<SharedClient>>>> = RefCell::default();
}

impl SharedClient {
    /// Returns the client with these parameters, or a new one that starts to connect.
    pub fn open(params: ClientParams, waker: &Rc<QueueWaker>) -> Result<Rc<RefCell<SharedClient>>, String> {
        CLIENTS.with_borrow_mut(|clients| {
            clients.retain(|_, client| client.strong_count() > 0);
            if let Some(client) = clients.get(&params.key).and_then(Weak::upgrade)
                && client.borrow().is_usable()
            {
                return Ok(client);
            }
            let key = params.key.clone();
            let client = Rc::new(RefCell::new(SharedClient::connect(params, waker)?));
            clients.insert(key, Rc::downgrade(&client));
            Ok(client)
        })
    }

    fn connect(params: ClientParams, waker: &Rc<QueueWaker>) -> Result<SharedClient, String> {
        let wakeups = Wakeups::default();
        wakeups.lock().push(Arc::clone(&waker.eventfd));
        let (sender, result) = mpsc::sync_channel(1);
        let to_wake = Arc::clone(&wakeups);
        let ClientParams { uri, options, registry, .. } = params;
        let depth = options.depth;
        let permit = Permit::acquire().ok_or_else(|| {
            format!("{MAX_CONNECTING} volumes are connecting, which is the limit; try again later")
        })?;
        let connect = move || {
            let _permit = permit;
            let orphaned = registry.orphaned(uri.nqn);
            let connect = |depth| {
                let options = Options { depth, ..options.clone() };
                Client::connect_with_journal(&uri, options, &registry.client_journal(), &orphaned)
            };
            let connected = match connect(depth.max(MIN_SHARED_DEPTH)) {
                // Falls back to the requested depth; its error is the one to report.
                Err(ConnectError::Depth { max, .. }) if depth < MIN_SHARED_DEPTH => connect(max.max(depth)),
                result => result,
            };
            let connected = connected.map(|mut client| {
                client.leave_losses_to_caller();
                client.leave_times_to_caller();
                client
            });
            if let Err(mpsc::SendError(Ok(client))) = sender.send(connected) {
                // All queues were closed in the meantime.
                client.close();
            }
            to_wake.lock().iter().for_each(|eventfd| signal(eventfd));
        };
        let thread = std::thread::Builder::new().name("isolane-connect".into()).spawn(connect);
        thread.map_err(|error| format!("cannot start a thread to connect: {error}"))?;
        Ok(SharedClient {
            state: State::Connecting { result, wakeups },
            members: HashMap::new(),
            last_member: 0,
            submit_queue: VecDeque::new(),
            depth,
            capacity: 0,
            turned: None,
            deadline: None,
            completions: Vec::new(),
            times: Vec::new(),
            earlier_times: 0,
        })
    }

    /// Whether the client is connected, as far as known.
    pub fn is_up(&self) -> bool {
        matches!(&self.state, State::Up(client) if client.is_connected())
    }

    /// A new queue must not wait for a client that has lost its connection, but learn whether it can connect.
    fn is_usable(&self) -> bool {
        matches!(self.state, State::Connecting { .. }) || self.is_up()
    }

    /// Adds a queue. Returns its member number.
    pub fn join(&mut self, waker: &Rc<QueueWaker>) -> u32 {
        if let State::Connecting { wakeups, .. } = &self.state {
            wakeups.lock().push(Arc::clone(&waker.eventfd));
            // The thread may have signaled before.
            signal(&waker.eventfd);
        }
        self.last_member += 1;
        let (completed, times) = (Vec::new(), Vec::new());
        let member = Member { waker: Rc::clone(waker), completed, times, last_times: None };
        self.members.insert(self.last_member, member);
        self.last_member
    }

    /// Removes a queue. Later completions of its commands are dropped.
    pub fn leave(&mut self, member: u32) {
        self.members.remove(&member);
        self.dequeue(member);
    }

    /// Returns the description of the volume, with only its namespace, or the error of the connect, once known.
    pub fn poll_connected(&mut self) -> Option<Result<Info, String>> {
        if let State::Connecting { result, .. } = &self.state {
            let result = match result.try_recv() {
                Err(mpsc::TryRecvError::Empty) => return None,
                Err(mpsc::TryRecvError::Disconnected) => Err("the connecting thread has ended".to_owned()),
                Ok(result) => result.map_err(|error| error.to_string()),
            };
            self.on_connected(result);
        }
        match &self.state {
            State::Up(client) => {
                let mut info = Info { namespaces: vec![client.namespace().clone()], ..client.info().clone() };
                info.negotiated.depth = self.depth.min(info.negotiated.depth);
                Some(Ok(info))
            }
            State::Failed(reason) => Some(Err(reason.clone())),
            State::Connecting { .. } | State::Closed => None,
        }
    }

    fn on_connected(&mut self, result: Result<Client, String>) {
        self.state = match result {
            Ok(client) => {
                self.capacity = client.lanes().total() * usize::from(client.info().negotiated.depth);
                State::Up(Box::new(client))
            }
            Err(reason) => State::Failed(reason),
        };
        self.members.values().for_each(|member| member.waker.wake());
    }

    /// Adds the client's descriptor to the source of a queue.
    pub fn watch(&self, waker: &QueueWaker) -> io::Result<()> {
        let State::Up(client) = &self.state else { return Ok(()) };
        match client.wait_fd().filter(|_| !waker.watches_client.replace(true)) {
            Some(descriptor) => {
                Ok(epoll::add(&waker.source, descriptor, EventData::new_u64(1), EventFlags::IN)?)
            }
            None => Ok(()),
        }
    }

    /// Whether a queue may submit now. Otherwise it is queued, and woken at its turn.
    pub fn start_submit(&mut self, member: u32) -> bool {
        let is_first = self.submit_queue.front().is_none_or(|first| *first == member);
        if is_first && self.has_capacity() {
            self.submit_queue.pop_front();
            return true;
        }
        self.enqueue(member);
        false
    }

    /// Queues a member for its next turn.
    pub fn enqueue(&mut self, member: u32) {
        if !self.submit_queue.contains(&member) {
            self.submit_queue.push_back(member);
        }
    }

    /// Removes a member from the queue.
    pub fn dequeue(&mut self, member: u32) {
        if self.submit_queue.contains(&member) {
            self.submit_queue.retain(|waiting| *waiting != member);
            self.wake_next();
        }
    }

    pub fn has_capacity(&self) -> bool {
        matches!(&self.state, State::Up(client) if client.outstanding() < self.capacity)
    }

    /// Whether members wait for their turn.
    pub fn is_contended(&self) -> bool {
        !self.submit_queue.is_empty()
    }

    /// Submits a command of a member, polled at `polled`, whose completion returns `slot`.
    pub fn submit(
        &mut self,
        (member, slot): (u32, u32),
        (class, lane): (LaneClass, usize),
        request: Request,
        polled: u64,
    ) {
        let tag = u64::from(member) << 32 | u64::from(slot);
        if let State::Up(client) = &mut self.state {
            client.submit_at(class, lane, request, tag, polled);
        }
    }

    /// Runs the client once per turn of the core, and distributes completions to the members.
    pub fn turn(&mut self, now: Instant) {
        let State::Up(client) = &mut self.state else { return };
        if self.turned.replace(now) == Some(now) {
            return;
        }
        client.finish_wait();
        // A turn that reconnects returns no completion of the new association.
        let era = client.era();
        client.turn(&mut self.completions, Wait::None);
        if self.completions.is_empty() {
            return;
        }
        client.take_times(&mut self.times);
        let (mut at, mut passed) = (0, 0);
        for completion in self.completions.drain(..) {
            // Only successful requests have times.
            let times = self.times.get(at).filter(|_| completion.result.is_ok());
            let times = times.map(|times| (times, self.earlier_times + at as u64));
            passed += u64::from(times.is_some());
            if times.is_some_and(|(times, _)| passed == times.count) {
                (at, passed) = (at + 1, 0);
            }
            // Completions of members that have left are dropped.
            let Some(member) = self.members.get_mut(&((completion.tag >> 32) as u32)) else { continue };
            member.waker.wake();
            member.completed.push((completion, era));
            member.add_times(times);
        }
        self.earlier_times += self.times.len() as u64;
        self.times.clear();
        self.wake_next();
    }

    /// Moves the completions of a member to `completed`, and their times, unless they are not recorded, to `times`.
    pub fn take_completed(
        &mut self,
        member: u32,
        completed: &mut Vec<Completed>,
        times: &mut Vec<RequestTimes>,
    ) {
        let Some(member) = self.members.get_mut(&member).filter(|member| !member.completed.is_empty()) else {
            return;
        };
        completed.append(&mut member.completed);
        times.append(&mut member.times);
        member.last_times = None;
    }

    /// Prepares the client to be polled no longer until its descriptor, which all sources contain, is ready.
    /// Returns `false` if it must be polled.
    pub fn prepare_wait(&mut self) -> bool {
        let State::Up(client) = &mut self.state else { return true };
        client.finish_wait();
        self.deadline = client.prepare_wait();
        self.deadline.is_some()
    }

    /// Time of the next poll of an idle client.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Wakes the first waiting member if it can submit.
    pub fn wake_next(&self) {
        if let Some(first) = self.submit_queue.front().and_then(|first| self.members.get(first))
            && self.has_capacity()
        {
            first.waker.wake();
        }
    }
}

impl Member {
    /// Adds the times of a completion, with their number.
    #[inline]
    fn add_times(&mut self, times: Option<(&RequestTimes, u64)>) {
        let Some((times, number)) = times else { return };
        match self.times.last_mut().filter(|_| self.last_times == Some(number)) {
            Some(last) => last.count += 1,
            None => {
                self.times.push(RequestTimes { count: 1, ..*times });
                self.last_times = Some(number);
            }
        }
    }
}

/// Permit for a connecting thread.
struct Permit;

/// Connecting threads of all cores. A thread ends after its connect or timeout, even if its session has ended.
static CONNECTING: AtomicUsize = AtomicUsize::new(0);

impl Permit {
    fn acquire() -> Option<Permit> {
        let add_one = |count: usize| (count < MAX_CONNECTING).then_some(count + 1);
        CONNECTING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add_one).ok().map(|_| Permit)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        CONNECTING.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for SharedClient {
    fn drop(&mut self) {
        let State::Up(client) = std::mem::replace(&mut self.state, State::Closed) else { return };
        // A clean disconnect blocks.
        let close = move || client.close();
        if let Err(error) = std::thread::Builder::new().name("isolane-close".into()).spawn(close) {
            log::warn!("cannot spawn close thread: {error}");
        }
    }
}

impl QueueWaker {
    pub fn new() -> io::Result<Rc<QueueWaker>> {
        let eventfd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let source = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&source, &eventfd, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Rc::new(QueueWaker { source, eventfd, idle: Cell::new(false), watches_client: Cell::new(false) }))
    }

    /// Descriptor that the core watches.
    pub fn source(&self) -> &OwnedFd {
        &self.source
    }

    /// Records whether the queue may be polled no longer, so that it needs wakeups.
    pub fn set_idle(&self, idle: bool) {
        self.idle.set(idle);
    }

    /// Called when the source is ready.
    pub fn clear(&self) {
        let mut count = [0u8; 8];
        // Fails if only the client's descriptor is ready.
        let _ = rustix::io::read(self.eventfd.as_fd(), &mut count[..]);
    }

    fn wake(&self) {
        if self.idle.replace(false) {
            signal(&self.eventfd);
        }
    }
}

fn signal(eventfd: &OwnedFd) {
    // Fails only if the counter is full, which is a signal.
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

/// Maximum number of concurrent connects.
const MAX_CONNECTING: usize = 64;
/// Minimum depth of a lane, accepted by most targets, so that several shallow members do not wait for each other.
const MIN_SHARED_DEPTH: u16 = 127;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_concurrent_connects() {
        let permits: Vec<Permit> = std::iter::from_fn(Permit::acquire).collect();
        assert_eq!(permits.len(), MAX_CONNECTING);
        drop(permits);
        assert!(Permit::acquire().is_some());
    }
}
