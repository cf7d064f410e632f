//! The core of the host: one association, driven in the caller's thread.
//!
//! ```text
//! submit ─ admit ─ Lane::vacancy (waits: Task ─ backlog ─ pump)
//! turn: Lane::transmit ─ Reactor::turn ─ Lane::receive ─ Ends::take (rare: on_answer ─ finish)
//! ```
//!
//! One thread, no lock, one `sendmsg` per lane and turn. It has no thread of its own on the data path: only
//! connecting anew and the questions of a [`fence`](crate::fence) run elsewhere. Invariants: each request is
//! answered with exactly one completion; a request goes through the lane it was submitted to.
//!
//! Files: `turn` sends and receives, `housekeeping` looks at the clock, `task` splits requests that fit the
//! volume's `shape` and their buffers in `pieces`, `flow` leads them through, `command` makes NVMe commands
//! of them, `lane` moves bytes, `holding` holds back for more, `keeper` keeps the association alive, `link`
//! loses and regains it (while it is there it is `up`), `replay` decides what is repeated after a loss,
//! `retry` what is after a refusal, `connections` tells where they are.

mod command;
mod connections;
mod farewell;
mod flow;
mod holding;
mod housekeeping;
mod keeper;
mod lane;
mod link;
mod pieces;
mod replay;
mod rest;
mod retry;
pub(crate) mod shape;
pub(crate) mod task;
pub(crate) mod tasks;
#[cfg(test)]
mod tests;
mod turn;
mod up;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use isolane_proto::host::Completed;
use isolane_reactor::{Config, Event, Reactor, Waker, mailbox};

pub use self::connections::ConnectionStatus;
use self::flow::Run;
use self::holding::Holding;
pub(crate) use self::lane::describe;
use self::link::Link;
pub(crate) use self::link::Message;
use self::replay::Replay;
use self::retry::Retries;
pub(crate) use self::retry::RetryDelays;
use self::shape::Shape;
use self::tasks::Tasks;
pub use self::turn::Wait;
use crate::classes::{Class, Classes};
use crate::error::ConnectError;
use crate::fence::Fences;
use crate::info::{Info, NamespaceInfo};
use crate::options::Options;
use crate::predecessor::{Note, Predecessor, Witness};
use crate::request::{Completion, Request};
use crate::setup::{self, Plan};
use crate::unflushed::{Era, Unflushed};
use crate::uri::Uri;

/// One association with one volume; see [`crate::Client`].
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
    retries: Retries,
    unflushed: Unflushed,
    holding: Holding,
    finished: Vec<Completion>,
    reactor: Reactor,
    sender: mailbox::Sender<Message>,
    messages: mailbox::Receiver<Message>,
    events: Vec<Event>,
    answers: Vec<Completed>,
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
    /// Why there is no connection, and what to do. [`ConnectError::Unsupported`] if the options or the URI
    /// name cores: those are for volumes, which have a thread on each.
    pub fn connect(uri: &Uri, options: Options) -> Result<Client, ConnectError> {
        let plan = Plan { uri: uri.clone(), options, witness: None };
        Client::check_options(&plan)?;
        Client::connect_with(plan, Arc::default(), |_| ())
    }

    /// Connects in the place of a process that was killed, and lets a witness know of every association, so
    /// that this process may be killed, too. Nothing is written before all that were left are known dead, by
    /// the rule of [`fence`](crate::fence); they had ended, with all of their connections, before this call.
    /// Each goes with the key of its note. If this process is killed its connections are reset.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_after(
        uri: &Uri,
        options: Options,
        witness: &Arc<dyn Witness>,
        left: &[(u64, Predecessor)],
    ) -> Result<Client, ConnectError> {
        let died = Instant::now();
        let plan = Plan { uri: uri.clone(), options, witness: Some(Arc::clone(witness)) };
        Client::check_options(&plan)?;
        let fences = Arc::<Fences>::default();
        Client::connect_with(plan, Arc::clone(&fences), |plan| {
            for (key, left) in left {
                fences.raise_for(left, Note::of(witness, *key), died, plan);
            }
        })
    }

    fn check_options(plan: &Plan) -> Result<(), ConnectError> {
        if !plan.options.cores.is_empty() || !plan.uri.cores.is_empty() {
            let several =
                "cores for a client, which its one caller drives; leave them out, or connect a volume";
            return Err(ConnectError::Unsupported(several.to_owned()));
        }
        match plan.options.lanes {
            0 => Err(ConnectError::without_default_lane()),
            _ => Ok(()),
        }
    }

    /// Connects as one of several clients of a volume, whose writes wait for the fences of each.
    pub(crate) fn connect_beside(
        uri: &Uri,
        options: Options,
        fences: Arc<Fences>,
    ) -> Result<Client, ConnectError> {
        Client::connect_with(Plan { uri: uri.clone(), options, witness: None }, fences, |_| ())
    }

    /// `before_use` is called before anything is written.
    fn connect_with(
        plan: Plan,
        fences: Arc<Fences>,
        before_use: impl FnOnce(&Plan),
    ) -> Result<Client, ConnectError> {
        let plan = Arc::new(plan);
        let association = setup::associate(&plan)?;
        let namespace = association.info.choose(plan.uri.nsid)?.clone();
        let shape = Shape::of(&namespace, &association.info)?;
        let classes = association.info.negotiated.lanes;
        let reactor = Reactor::new(config(&plan.options)).map_err(|error| no_reactor(&error))?;
        let (sender, messages) = mailbox::unbounded(reactor.waker());
        fences.join(sender.clone());
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
            replay: Replay::new(fences),
            retries: Retries::new(plan.options.command_timeout),
            unflushed: Unflushed::new(),
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
        before_use(&client.plan);
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

    /// Whether the client has given up.
    pub fn is_over(&self) -> bool {
        self.end_reason().is_some()
    }

    pub fn end_reason(&self) -> Option<&ConnectError> {
        match &self.link {
            Link::Closed(error) => Some(error),
            _ => None,
        }
    }

    /// The lanes that requests of this client are spread over, by class.
    pub fn lanes(&self) -> Classes {
        self.classes_first
    }

    /// As [`crate::Client::era`].
    pub fn era(&self) -> Era {
        self.unflushed.era()
    }

    /// As [`crate::Client::leave_losses_to_caller`].
    pub fn leave_losses_to_caller(&mut self) {
        self.unflushed.leave_to_caller();
    }

    /// As [`crate::Client::submit`].
    #[cfg(test)]
    pub fn submit(&mut self, lane: usize, request: Request, tag: u64) {
        let class = Class::of(&request);
        self.submit_to(class, lane, request, tag);
    }

    /// As [`Client::submit`], for a request that asks for a class. If that has no lanes, another
    /// [serves](Classes::serving) it.
    pub fn submit_to(&mut self, class: Class, lane: usize, request: Request, tag: u64) {
        self.holding.note(class, &self.classes, &request);
        match self.check(class, lane, &request) {
            Ok((lane, range)) => self.admit(lane, range, request, tag),
            Err(error) => self.refuse(error, request, tag),
        }
    }

    /// Ends the association in order. What is still in flight gets no completion.
    pub fn close(mut self) {
        self.part();
    }
}

fn config(options: &Options) -> Config {
    Config { io: options.io, mode: options.mode, spin: options.spin, core: None }
}

fn no_reactor(error: &isolane_reactor::ReactorError) -> ConnectError {
    ConnectError::System { what: "a reactor", source: Arc::new(std::io::Error::other(error.to_string())) }
}

/// Where bytes go that have no other place yet. Large enough for what a deep queue of small reads sends at
/// once, small enough for the second level of the cache.
const OVERFLOW_BYTES: usize = 128 * 1024;
