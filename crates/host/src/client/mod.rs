//! The core of the host: one association, driven in the caller's thread.
//!
//! ```text
//! submit ─ Task ─ backlog ─ pump ─ Lane::submit        turn: Lane::transmit ─ Reactor::turn ─ Lane::receive ─ on_answer ─ finish
//! ```
//!
//! One thread, no lock, one `sendmsg` per lane and turn. It has no thread of its own on the data path: only connecting
//! anew and the questions of a [`fence`](crate::fence) run elsewhere. Invariants: each request is answered with exactly
//! one completion; a request goes through the lane it was submitted to.
//!
//! Files: `task` splits requests, `flow` leads them through, `command` makes NVMe commands of them, `lane` moves bytes,
//! `holding` holds back for more, `keeper` keeps the association alive, `link` loses and regains it, `replay` decides what is repeated.

mod command;
mod farewell;
mod flow;
mod holding;
mod keeper;
mod lane;
mod link;
mod replay;
mod task;
mod tasks;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_reactor::{Config, Event, Reactor, Token, Waker, mailbox};

use self::flow::Run;
use self::holding::Holding;
pub(crate) use self::lane::describe;
use self::lane::{Answer, Lane, Loss};
pub(crate) use self::link::Message;
use self::link::{Link, Place};
use self::replay::Replay;
use self::task::Shape;
use self::tasks::Tasks;
use crate::classes::{Class, Classes};
use crate::error::ConnectError;
use crate::info::{Info, NamespaceInfo};
use crate::options::Options;
use crate::request::{Completion, Request};
use crate::setup::{self, Plan};
use crate::uri::Uri;

/// How long a turn waits when nothing happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    None,
    /// Until then.
    Until(Instant),
    /// Until something happens.
    Forever,
}

/// One association with one volume, driven by its caller.
///
/// ```no_run
/// use isolane_host::{Buffer, Client, Options, Request, Wait};
///
/// # fn main() -> Result<(), isolane_host::ConnectError> {
/// let uri = "nvme+tcp://127.0.0.1:4420".parse().expect("a well-formed URI");
/// let mut client = Client::connect(&uri, Options::default())?;
/// for tag in 0..32 {
///     client.submit(0, Request::Read { lba: tag * 8, buffer: Buffer::contiguous(4096) }, tag);
/// }
/// let mut completions = Vec::new();
/// while completions.len() < 32 {
///     client.turn(&mut completions, Wait::Forever);
/// }
/// client.close();
/// # Ok(())
/// # }
/// ```
///
/// Turn it at least twice per keep-alive timeout, or the target ends the association; the client then connects anew.
pub struct Client {
    plan: Arc<Plan>,
    info: Info,
    namespace: NamespaceInfo,
    shape: Shape,
    link: Link,
    tasks: Tasks,
    /// The lanes that there are, and what they were when the client connected.
    classes: Classes,
    classes_first: Classes,
    /// Parts that wait for room, by lane.
    backlogs: Vec<VecDeque<Run>>,
    replay: Replay,
    holding: Holding,
    finished: Vec<Completion>,
    reactor: Reactor,
    sender: mailbox::Sender<Message>,
    messages: mailbox::Receiver<Message>,
    events: Vec<Event>,
    answers: Vec<Answer>,
    overflow: Box<[u8]>,
    now: Instant,
    housekeeping: Instant,
    is_woken: bool,
    /// Lanes have more to send than their share of the last turn.
    has_more: bool,
}

impl Client {
    /// Connects and chooses the volume: the URI's namespace, or the only one.
    ///
    /// # Errors
    /// Why there is no connection, and what to do.
    pub fn connect(uri: &Uri, options: Options) -> Result<Client, ConnectError> {
        let plan = Arc::new(Plan { uri: uri.clone(), options });
        let association = setup::associate(&plan)?;
        let namespace = association.info.choose(uri.nsid)?.clone();
        let shape = shape_of(&namespace, &association.info)?;
        let classes = association.info.negotiated.lanes;
        let reactor = Reactor::new(config(&plan.options)).map_err(|error| no_reactor(&error))?;
        let (sender, messages) = mailbox::unbounded(reactor.waker());
        let now = Instant::now();
        let mut client = Client {
            info: association.info.clone(),
            namespace,
            shape,
            link: Link::starting(),
            tasks: Tasks::default(),
            classes,
            classes_first: classes,
            backlogs: vec![VecDeque::new(); classes.total()],
            replay: Replay::default(),
            holding: Holding::new(plan.options.hold),
            finished: Vec::new(),
            reactor,
            sender,
            messages,
            events: Vec::new(),
            answers: Vec::new(),
            overflow: vec![0; OVERFLOW_BYTES].into_boxed_slice(),
            now,
            housekeeping: now,
            is_woken: false,
            has_more: false,
            plan,
        };
        client.raise(association)?;
        log::info!("{}: connected", client.info.address);
        Ok(client)
    }

    /// What the target told when the association was made.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The namespace that requests go to.
    pub fn namespace(&self) -> &NamespaceInfo {
        &self.namespace
    }

    /// What a sleeping turn sleeps in, for a log line.
    pub fn io_description(&self) -> &str {
        self.reactor.io_description()
    }

    /// Something that ends a waiting turn from any thread.
    pub fn waker(&self) -> Waker {
        self.reactor.waker()
    }

    /// Requests without a completion yet.
    pub fn outstanding(&self) -> usize {
        self.tasks.len() + self.finished.len()
    }

    /// When the client wants to be turned even if nothing happens.
    pub(crate) fn housekeeping(&self) -> Instant {
        self.housekeeping
    }

    /// Whether the association is up; while it is not, requests wait.
    pub fn is_up(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }

    /// The lanes that requests of this client are spread over, by class.
    pub fn lanes(&self) -> Classes {
        self.classes_first
    }

    /// Takes a request in; `tag` comes back in its completion. It is sent by the next turn, together with all others. What
    /// cannot be taken is completed with an error by the next turn.
    ///
    /// `lane` counts from 0 within the class that serves the request: reads go to the read class if it has lanes, all else
    /// to the default class.
    pub fn submit(&mut self, lane: usize, request: Request, tag: u64) {
        let class = Class::of(&request);
        self.submit_to(class, lane, request, tag);
    }

    /// As [`Client::submit`], for a request that asks for a class. If that has no lanes, another
    /// [serves](Classes::serving) it.
    pub fn submit_to(&mut self, class: Class, lane: usize, request: Request, tag: u64) {
        self.holding.note(&request);
        match self.admit(class, lane, request, tag) {
            Ok(task) => self.enqueue(task),
            Err(completion) => self.finished.push(completion),
        }
    }

    /// One turn: sends what is queued, receives what has come, and appends completions. Waits as told if there is nothing
    /// to do; a [`Client::waker`] ends the wait. Returns how many completions were appended.
    pub fn turn(&mut self, completions: &mut Vec<Completion>, wait: Wait) -> usize {
        let before = completions.len();
        self.is_woken = false;
        self.transmit();
        loop {
            self.turn_once(wait);
            completions.append(&mut self.finished);
            if completions.len() > before || self.is_woken || wait.is_over(self.now) {
                return completions.len() - before;
            }
        }
    }

    /// Ends the association in order. What is still in flight gets no completion.
    pub fn close(mut self) {
        self.part();
    }

    fn turn_once(&mut self, wait: Wait) {
        let is_busy = !self.finished.is_empty() || self.has_more || self.holding.is_holding();
        let deadline = if is_busy { Some(self.now) } else { wait.deadline(self.now) };
        let deadline = deadline.map_or(self.housekeeping, |deadline| deadline.min(self.housekeeping));
        let mut events = std::mem::take(&mut self.events);
        if let Err(error) = self.reactor.turn(Some(deadline), &mut events) {
            self.lose(&Loss::Socket(error.to_string()));
            self.fail_all(ConnectError::System { what: "a turn of the reactor", source: Arc::new(error) });
        }
        self.now = self.reactor.now();
        for event in events.drain(..) {
            self.on_event(event);
        }
        self.events = events;
        if self.now >= self.housekeeping {
            self.keep_house();
        }
        self.transmit();
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Readable(token) => self.receive(token),
            Event::Writable(token) => {
                if let Link::Up(up) = &mut self.link {
                    up.lane_mut(token).into_iter().for_each(|lane| lane.on_writable());
                }
            }
            Event::Woken => {
                self.is_woken = true;
                while let Some(message) = self.messages.poll() {
                    self.on_message(message);
                }
            }
            Event::Accepted { .. } | Event::File(_) => {}
        }
    }

    fn receive(&mut self, token: Token) {
        let Link::Up(up) = &mut self.link else { return };
        let Some(place) = up.place(token) else { return };
        let lane = up.at_mut(place);
        let received = lane.receive(&mut self.reactor, &mut self.overflow, self.now, &mut self.answers);
        let handled = self.handle_answers(place);
        match (received.and(handled), place) {
            (Err(loss), _) => self.lose(&loss),
            (Ok(()), Place::Lane(lane)) => self.pump(lane),
            (Ok(()), Place::Admin) => {}
        }
    }

    /// Acts on what a connection has answered.
    fn handle_answers(&mut self, place: Place) -> Result<(), Loss> {
        if self.answers.is_empty() {
            return Ok(());
        }
        let mut answers = std::mem::take(&mut self.answers);
        let handled = answers.drain(..).try_for_each(|answer| match place {
            Place::Lane(_) => {
                self.on_answer(answer);
                Ok(())
            }
            Place::Admin => self.on_admin_answer(answer),
        });
        self.answers = answers;
        handled
    }

    /// Sends what the lanes have queued, unless it is held. With several lanes each has its share of a turn, lest the others,
    /// those for reads and urgent requests before all, wait for megabytes of one.
    pub(crate) fn transmit(&mut self) {
        let is_held = self.holding.holds(self.tasks.len(), self.now);
        self.has_more = false;
        let Link::Up(up) = &mut self.link else { return };
        if !up.wants_transmit() {
            return;
        }
        let share = if up.lanes.len() > 1 { SHARE_BYTES } else { usize::MAX };
        let (reactor, now, answers) = (&mut self.reactor, self.now, &mut self.answers);
        let mut lanes = up.lanes.iter_mut().rev().filter(|_| !is_held);
        let sent = lanes.try_for_each(|lane| lane.transmit(reactor, share, now, answers));
        let sent = sent.and_then(|()| up.keeper.transmit(reactor, now));
        self.has_more = share < usize::MAX && !is_held && up.lanes.iter().any(Lane::wants_transmit);
        self.answer_lanes();
        if let Err(loss) = sent {
            self.lose(&loss);
        }
    }

    fn answer_lanes(&mut self) {
        // Only the admin connection's answers can show a loss.
        let _ = self.handle_answers(Place::Lane(0));
    }

    /// What needs no exact time: keep alive, commands without an answer, the next attempt to connect.
    fn keep_house(&mut self) {
        if let Err(loss) = self.tell_time().and_then(|()| self.check_patience()) {
            self.lose(&loss);
        }
        self.try_to_connect();
        self.housekeeping = self.now + self.housekeeping_interval();
    }

    fn tell_time(&mut self) -> Result<(), Loss> {
        let Link::Up(up) = &mut self.link else { return Ok(()) };
        let (now, answers) = (self.now, &mut self.answers);
        let told = up.lanes.iter_mut().try_for_each(|lane| lane.handle_timeout(now, answers));
        let told = told.and_then(|()| up.keeper.handle_timeout(now));
        self.answer_lanes();
        told
    }

    /// Looks for commands without an answer.
    fn check_patience(&mut self) -> Result<(), Loss> {
        let (now, patience) = (self.now, self.plan.options.command_timeout);
        for task in self.tasks.iter_mut().filter(|task| task.in_flight > 0) {
            if now.saturating_duration_since(*task.seen_in_flight.get_or_insert(now)) >= patience {
                return Err(Loss::CommandTimeout);
            }
        }
        Ok(())
    }

    fn housekeeping_interval(&self) -> Duration {
        let options = &self.plan.options;
        let finest = match (&self.link, options.keep_alive) {
            (Link::Down(outage), _) => outage.wait(self.now),
            (_, Duration::ZERO) => HOUSEKEEPING_MAX,
            (_, keep_alive) => keep_alive / 8,
        };
        finest.min(options.command_timeout / 4).clamp(HOUSEKEEPING_MIN, HOUSEKEEPING_MAX)
    }
}

impl Wait {
    fn deadline(self, now: Instant) -> Option<Instant> {
        match self {
            Wait::None => Some(now),
            Wait::Until(deadline) => Some(deadline),
            Wait::Forever => None,
        }
    }

    fn is_over(self, now: Instant) -> bool {
        self.deadline(now).is_some_and(|deadline| now >= deadline)
    }
}

/// What requests are checked against and split by.
fn shape_of(namespace: &NamespaceInfo, info: &Info) -> Result<Shape, ConnectError> {
    let unsupported =
        |what: &str| Err(ConnectError::Unsupported(format!("namespace {} {what}", namespace.nsid)));
    if namespace.metadata_bytes != 0 {
        return unsupported("has blocks with metadata");
    }
    if !namespace.block_bytes.is_power_of_two() || !(512..=65_536).contains(&namespace.block_bytes) {
        return unsupported("has blocks that are not 512 bytes to 64 KiB long");
    }
    if namespace.len_bytes() > i64::MAX as u64 {
        return unsupported("has more bytes than a file can have");
    }
    let part_blocks = info.negotiated.transfer_bytes_max / namespace.block_bytes as usize;
    Ok(Shape {
        block_bytes: namespace.block_bytes,
        capacity_blocks: namespace.blocks,
        // NLB has 16 bits and is 0's based.
        part_blocks: part_blocks.clamp(1, 65_536) as u32,
    })
}

fn config(options: &Options) -> Config {
    Config { io: options.io, mode: options.mode, spin: options.spin, core: None }
}

fn no_reactor(error: &isolane_reactor::ReactorError) -> ConnectError {
    ConnectError::System { what: "a reactor", source: Arc::new(std::io::Error::other(error.to_string())) }
}

/// Where bytes go that have no other place yet. Large enough for what a deep queue of small reads sends at once, small
/// enough for the second level of the cache.
const OVERFLOW_BYTES: usize = 128 * 1024;

/// What each of several lanes sends in one turn, about.
const SHARE_BYTES: usize = 256 * 1024;

/// Bounds of the time between two looks at what needs no exact time.
const HOUSEKEEPING_MIN: Duration = Duration::from_millis(1);
const HOUSEKEEPING_MAX: Duration = Duration::from_millis(250);
