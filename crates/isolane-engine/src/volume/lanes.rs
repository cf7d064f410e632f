//! The client of a volume on one core, shared by all sessions there that have opened it.
//!
//! It takes commands from queues by turns, at most as many as its lanes take, and hands out what has
//! completed. All of it belongs to the thread of its core. Invariant: who waits for a turn, or has something
//! to take, and is not looked at, is woken.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use isolane_host::attached::wire::Answer;
use isolane_host::{Class, Client, Completion, ConnectError, Era, Options, Request, Uri, Wait};
use parking_lot::Mutex;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use super::ledger::Ledger;

/// A client, or what is to become one.
pub(super) struct Lanes {
    state: State,
    members: HashMap<u32, Member>,
    member_next: u32,
    /// Those that want to submit while others do, in their order.
    line: VecDeque<u32>,
    /// Commands that each of them has asked to have on a lane.
    depth: u16,
    /// Commands that all may have under way.
    capacity: usize,
    turned: Option<Instant>,
    until: Option<Instant>,
    completions: Vec<Completion>,
}

enum State {
    Connecting { outcome: mpsc::Receiver<Result<Client, ConnectError>>, waiting: Waiting },
    // In a box, because it is large and comes late.
    Up(Box<Client>),
    Failed(String),
    Closed,
}

/// Whom the connecting thread wakes.
type Waiting = Arc<Mutex<Vec<Arc<OwnedFd>>>>;

/// What is to be connected to, and by what it is known.
pub(super) struct Wanted {
    pub key: Key,
    pub uri: Uri,
    pub options: Options,
    pub ledger: Arc<Ledger>,
}

/// URI and options: who asks for the same has the same.
pub(super) type Key = (String, Vec<u8>);

/// One queue's part.
struct Member {
    waker: Rc<Waker>,
    done: Vec<Done>,
}

/// A completion, and the era of the target that it belongs to.
pub(super) type Done = (Completion, Era);

/// Wakes a queue that is not looked at, through the descriptor that its core watches.
pub(super) struct Waker {
    source: OwnedFd,
    bell: Arc<OwnedFd>,
    is_cold: Cell<bool>,
    has_client: Cell<bool>,
}

thread_local! {
    /// Those of this core.
    static OPEN: RefCell<HashMap<Key, Weak<RefCell<Lanes>>>> = RefCell::default();
}

impl Lanes {
    /// Those that are there, or new ones that begin to connect.
    pub fn of(wanted: Wanted, waker: &Rc<Waker>) -> Result<Rc<RefCell<Lanes>>, String> {
        OPEN.with_borrow_mut(|open| {
            open.retain(|_, lanes| lanes.strong_count() > 0);
            if let Some(lanes) = open.get(&wanted.key).and_then(Weak::upgrade)
                && lanes.borrow().is_usable()
            {
                return Ok(lanes);
            }
            let key = wanted.key.clone();
            let lanes = Rc::new(RefCell::new(Lanes::begin(wanted, waker)?));
            open.insert(key, Rc::downgrade(&lanes));
            Ok(lanes)
        })
    }

    fn begin(wanted: Wanted, waker: &Rc<Waker>) -> Result<Lanes, String> {
        let waiting = Waiting::default();
        waiting.lock().push(Arc::clone(&waker.bell));
        let (sender, outcome) = mpsc::sync_channel(1);
        let to_wake = Arc::clone(&waiting);
        let Wanted { uri, options, ledger, .. } = wanted;
        let depth = options.depth;
        let permit = Permit::take().ok_or_else(|| {
            format!("{CONNECTING_MAX} volumes are being connected to, which is the limit: try again later")
        })?;
        let connect = move || {
            let _permit = permit;
            let left = ledger.left(uri.nqn);
            let connect = |depth| {
                let options = Options { depth, ..options.clone() };
                Client::connect_after(&uri, options, &ledger.clerk(), &left)
            };
            let connected = match connect(depth.max(SHARED_DEPTH)) {
                // What was asked for may do nevertheless; if not, the error is about that.
                Err(ConnectError::Depth { max, .. }) if depth < SHARED_DEPTH => connect(max.max(depth)),
                outcome => outcome,
            };
            let connected = connected.map(|mut client| {
                client.leave_losses_to_caller();
                client
            });
            if let Err(mpsc::SendError(Ok(client))) = sender.send(connected) {
                // Nobody wants it any more.
                client.close();
            }
            to_wake.lock().iter().for_each(|bell| ring(bell));
        };
        let thread = std::thread::Builder::new().name("isolane-connect".into()).spawn(connect);
        thread.map_err(|error| format!("no thread to connect: {error}"))?;
        Ok(Lanes {
            state: State::Connecting { outcome, waiting },
            members: HashMap::new(),
            member_next: 0,
            line: VecDeque::new(),
            depth,
            capacity: 0,
            turned: None,
            until: None,
            completions: Vec::new(),
        })
    }

    /// Whether the target is connected to, as far as is known.
    pub fn is_up(&self) -> bool {
        matches!(&self.state, State::Up(client) if client.is_up())
    }

    fn is_usable(&self) -> bool {
        match &self.state {
            State::Connecting { .. } => true,
            // Who comes while it is not connected is to hear at once whether it can be.
            State::Up(client) => client.is_up(),
            State::Failed(_) | State::Closed => false,
        }
    }

    /// One more queue; its number.
    pub fn join(&mut self, waker: &Rc<Waker>) -> u32 {
        if let State::Connecting { waiting, .. } = &self.state {
            waiting.lock().push(Arc::clone(&waker.bell));
            // It may be done already.
            ring(&waker.bell);
        }
        self.member_next += 1;
        self.members.insert(self.member_next, Member { waker: Rc::clone(waker), done: Vec::new() });
        self.member_next
    }

    /// A queue is no more. What of its commands completes later is dropped.
    pub fn leave(&mut self, member: u32) {
        self.members.remove(&member);
        self.leave_line(member);
    }

    /// What the volume is, once it is known.
    pub fn poll_connected(&mut self) -> Option<Result<Answer, String>> {
        if let State::Connecting { outcome, .. } = &self.state {
            let outcome = match outcome.try_recv() {
                Err(mpsc::TryRecvError::Empty) => return None,
                Err(mpsc::TryRecvError::Disconnected) => Err("the connecting thread has ended".to_owned()),
                Ok(outcome) => outcome.map_err(|error| error.to_string()),
            };
            self.on_connected(outcome);
        }
        match &self.state {
            State::Up(client) => {
                let mut answer = Answer::of(client.info(), client.namespace());
                answer.0.negotiated.depth = self.depth;
                Some(Ok(answer))
            }
            State::Failed(why) => Some(Err(why.clone())),
            State::Connecting { .. } | State::Closed => None,
        }
    }

    fn on_connected(&mut self, outcome: Result<Client, String>) {
        self.state = match outcome {
            Ok(client) => {
                self.capacity = client.lanes().total() * usize::from(client.info().negotiated.depth);
                State::Up(Box::new(client))
            }
            Err(why) => State::Failed(why),
        };
        self.members.values().for_each(|member| member.waker.wake());
    }

    /// Has the queue's source hear of the client.
    pub fn watch(&self, waker: &Waker) -> io::Result<()> {
        let State::Up(client) = &self.state else { return Ok(()) };
        match client.descriptor().filter(|_| !waker.has_client.replace(true)) {
            Some(descriptor) => {
                Ok(epoll::add(&waker.source, descriptor, EventData::new_u64(1), EventFlags::IN)?)
            }
            None => Ok(()),
        }
    }

    /// Whether a queue that has something to submit may do so now. If not it stands in line, and is woken.
    pub fn may_submit(&mut self, member: u32) -> bool {
        let is_first = self.line.front().is_none_or(|first| *first == member);
        if is_first && self.has_room() {
            self.line.pop_front();
            return true;
        }
        self.stand_in_line(member);
        false
    }

    /// It has had its turn and wants another.
    pub fn stand_in_line(&mut self, member: u32) {
        if !self.line.contains(&member) {
            self.line.push_back(member);
        }
    }

    /// It wants no turn.
    pub fn leave_line(&mut self, member: u32) {
        if self.line.contains(&member) {
            self.line.retain(|waiting| *waiting != member);
            self.wake_first();
        }
    }

    pub fn has_room(&self) -> bool {
        matches!(&self.state, State::Up(client) if client.outstanding() < self.capacity)
    }

    /// Whether others wait for their turn.
    pub fn is_contended(&self) -> bool {
        !self.line.is_empty()
    }

    /// Takes a command of a queue in; `flight` comes back with it.
    pub fn submit(&mut self, member: u32, flight: u32, class: Class, lane: usize, request: Request) {
        let tag = u64::from(member) << 32 | u64::from(flight);
        if let State::Up(client) = &mut self.state {
            client.submit_to(class, lane, request, tag);
        }
    }

    /// Turns the client once in each turn of the core, and deals out what has completed.
    pub fn turn(&mut self, now: Instant) {
        let State::Up(client) = &mut self.state else { return };
        if self.turned.replace(now) == Some(now) {
            return;
        }
        client.end_rest();
        // A turn that connects anew brings no completion of the new association.
        let era = client.era();
        client.turn(&mut self.completions, Wait::None);
        if self.completions.is_empty() {
            return;
        }
        for completion in self.completions.drain(..) {
            // Of those that left nobody wants to know.
            let Some(member) = self.members.get_mut(&((completion.tag >> 32) as u32)) else { continue };
            member.waker.wake();
            member.done.push((completion, era));
        }
        self.wake_first();
    }

    /// What has completed for a queue.
    pub fn take_done(&mut self, member: u32, done: &mut Vec<Done>) {
        if let Some(member) = self.members.get_mut(&member).filter(|member| !member.done.is_empty()) {
            done.append(&mut member.done);
        }
    }

    /// Whether the client rests, so that nobody has to look. It is woken by its descriptor, which all sources
    /// watch.
    pub fn try_rest(&mut self) -> bool {
        let State::Up(client) = &mut self.state else { return true };
        client.end_rest();
        self.until = client.try_rest();
        self.until.is_some()
    }

    /// When it is to be looked at in any case.
    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Whoever is first in line is looked at, if it may submit now.
    pub fn wake_first(&self) {
        if let Some(first) = self.line.front().and_then(|first| self.members.get(first))
            && self.has_room()
        {
            first.waker.wake();
        }
    }
}

/// To have a thread that connects.
struct Permit;

/// Of all cores. A thread lives until it has connected or its time is over, also if its session has gone.
static CONNECTING: AtomicUsize = AtomicUsize::new(0);

impl Permit {
    fn take() -> Option<Permit> {
        let one_more = |count: usize| (count < CONNECTING_MAX).then_some(count + 1);
        CONNECTING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok().map(|_| Permit)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        CONNECTING.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        let State::Up(client) = std::mem::replace(&mut self.state, State::Closed) else { return };
        // To part in order takes time.
        let close = move || client.close();
        if let Err(error) = std::thread::Builder::new().name("isolane-close".into()).spawn(close) {
            log::warn!("no thread to end an association in order: {error}");
        }
    }
}

impl Waker {
    pub fn new() -> io::Result<Rc<Waker>> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let source = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&source, &bell, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Rc::new(Waker { source, bell, is_cold: Cell::new(false), has_client: Cell::new(false) }))
    }

    /// What its core watches.
    pub fn source(&self) -> &OwnedFd {
        &self.source
    }

    /// The queue is not looked at from now on.
    pub fn cool(&self) {
        self.is_cold.set(true);
    }

    /// The queue is looked at again.
    pub fn heat(&self) {
        self.is_cold.set(false);
    }

    /// The core says that the source is ready.
    pub fn quiet(&self) {
        let mut count = [0u8; 8];
        // Nothing to read means that somebody else has rung.
        let _ = rustix::io::read(self.bell.as_fd(), &mut count[..]);
    }

    fn wake(&self) {
        if self.is_cold.replace(false) {
            ring(&self.bell);
        }
    }
}

fn ring(bell: &OwnedFd) {
    // The only failure of a non-blocking eventfd is a full counter, and then it rings already.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Volumes that are connected to at the same time.
const CONNECTING_MAX: usize = 64;
/// Lanes are at least so deep, as most targets let them be, so that several who ask for little at a time do not
/// wait for each other.
const SHARED_DEPTH: u16 = 127;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_threads_connect_and_no_more() {
        let permits: Vec<Permit> = std::iter::from_fn(Permit::take).collect();
        assert_eq!(permits.len(), CONNECTING_MAX);
        drop(permits);
        assert!(Permit::take().is_some());
    }
}
