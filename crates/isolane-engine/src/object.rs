//! Objects of an engine, and how a kind of objects plugs in.
//!
//! A kind is registered as an [`ObjectKind`]. On the **control thread** it makes an [`ObjectBuilder`] from a
//! request: everything that can fail, block, or be refused happens there. On the **core** the builder makes a
//! [`PolledObject`], which belongs to the thread of that core from then on.
//!
//! An *active* object is polled every turn; an *idle* one is not polled until the application rings its
//! doorbell, a [`PolledObject::source`] becomes ready, or [`PolledObject::deadline`] passes. The application
//! rings only if the `need_wakeup` flag is armed. An object arms the flag and polls again before it becomes
//! idle, so that no wakeup is lost.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use isolane_engine_api::{CloseMode, MAX_DESCRIPTORS, SessionLimits, hint};
use isolane_shm::entries::{Entry, Sender};
use isolane_shm::{Bell, InvalidIndex, MemoryError, SharedMemory, ShmRef, WakeFlag};

use crate::close_threads::Socket;
use crate::observed::{Observer, Owner};

/// Kind of objects, on the control thread.
pub trait ObjectKind: Send {
    /// Plural name, for messages.
    fn name(&self) -> &'static str;

    /// ID of the kind, unique in its engine ([`isolane_engine_api::kind`]).
    fn id(&self) -> u16;

    /// Maximum number of objects of a session.
    fn max_objects(&self, limits: &SessionLimits) -> u32;

    /// Numbers of descriptors that a request can have, at most [`MAX_DESCRIPTORS`].
    fn descriptors(&self) -> RangeInclusive<usize>;

    /// Decodes and validates the parameters of a request, with its descriptors.
    ///
    /// # Errors
    /// [`Rejection`].
    fn open(&self, params: &[u8], descriptors: Vec<OwnedFd>) -> Result<ObjectBuilder, Rejection>;

    /// Continues an object of a previous engine, from its [`RecoveryState`]; a kind without such state is never
    /// asked. Descriptors may be missing.
    ///
    /// # Errors
    /// [`Rejection`], which ends the session.
    fn resume(
        &self,
        params: &[u8],
        note: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<ObjectBuilder, Rejection> {
        let _ = (params, note, descriptors);
        Err(Rejection::Violation(format!("{} are not stored", self.name())))
    }

    /// Describes an object in the engine's status, if it has a separate line there.
    fn describe(&self, params: &[u8]) -> Option<String> {
        let _ = params;
        None
    }

    /// Does periodic work that is due.
    fn on_timer(&self, now: Instant) {
        let _ = now;
    }

    /// Time of the next call of [`ObjectKind::on_timer`], at the latest.
    fn deadline(&self, now: Instant) -> Option<Instant> {
        let _ = now;
        None
    }
}

/// Reason for not granting a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The request is refused; the session continues.
    Refused(String),
    /// As `Refused`, because the system or the engine lacks resources, which is logged.
    Exhausted(String),
    /// The client violated the protocol.
    Violation(String),
}

impl Rejection {
    pub(crate) fn violation(error: impl ToString) -> Rejection {
        Rejection::Violation(error.to_string())
    }

    /// Rejection after a failed system call.
    pub(crate) fn system(error: &io::Error) -> Rejection {
        Rejection::Exhausted(format!("the engine: {error}{}", hint(error)))
    }
}

/// Object on its core.
pub trait PolledObject {
    /// Does pending work, at most a quantum. Never blocks.
    ///
    /// # Errors
    /// [`ProtocolViolation`] by the client, which ends its session and drops this object.
    fn poll(&mut self, turn: &Turn) -> Result<PollStatus, ProtocolViolation>;

    /// Called when the kernel reports a source ready (edge-triggered), before the next poll.
    fn on_ready(&mut self, source: usize, ready: Ready);

    /// Called when the application has rung the doorbell of the object, before the next poll. `at` is the time that
    /// it has written, in nanoseconds of CLOCK_MONOTONIC; it can be any number, and 0 means none.
    fn on_doorbell(&mut self, at: u64) {
        let _ = at;
    }

    /// Called if a source cannot be watched. Returns `true` to stay registered until the application closes
    /// the object; otherwise the object restores its resources and is dropped.
    fn on_watch_failed(&mut self, reason: &str) -> bool {
        let _ = reason;
        false
    }

    /// Called when the session has reached a limit. Abandons the object if it is closing and stalled. Returns
    /// whether it must be polled.
    fn relieve(&mut self, turn: &Turn) -> bool {
        let _ = turn;
        false
    }

    /// Called when the object must close; later polls finish the work and return [`PollStatus::Closed`]. May be
    /// called again with a more urgent reason.
    fn on_close(&mut self, reason: CloseReason);

    /// Flag that the application takes before it rings a doorbell.
    fn need_wakeup(&self) -> &WakeFlag;

    /// Called after some idle time: arms `need_wakeup` and polls again. Any status but [`PollStatus::Idle`]
    /// keeps the object active.
    ///
    /// # Errors
    /// As [`PolledObject::poll`].
    fn prepare_idle(&mut self, turn: &Turn) -> Result<PollStatus, ProtocolViolation> {
        self.need_wakeup().arm();
        let status = self.poll(turn);
        if status != Ok(PollStatus::Idle) {
            self.need_wakeup().disarm();
        }
        status
    }

    /// Descriptors that the core watches as long as the object lives, for all events unless
    /// [`PollStatus::SetReadInterest`] changes that: numbered from 0, up to the first `None`, at most
    /// [`MAX_SOURCES`].
    fn source(&self, index: usize) -> Option<BorrowedFd<'_>> {
        let _ = index;
        None
    }

    /// Time of the next poll of an idle object. Read when the object becomes idle.
    fn deadline(&self) -> Option<Instant> {
        None
    }
}

/// Maximum number of sources of an object.
pub const MAX_SOURCES: usize = 32;

/// Context of all polls of one turn.
#[derive(Debug)]
pub struct Turn {
    /// Start of the turn.
    pub now: Instant,
}

/// Result of a poll.
#[derive(Debug, PartialEq, Eq)]
pub enum PollStatus {
    /// Work was done; there may be more.
    Busy,
    /// No work was done, but some is expected soon: the object stays active.
    Pending,
    /// No work was done.
    Idle,
    /// Work was done, and read events of a source are turned on or off.
    SetReadInterest {
        /// Index of the source.
        source: usize,
        /// New state of read events.
        reads: bool,
    },
    /// The object is open, with this answer for its application. Only if [`BuiltObject::answer`] was `None`.
    Opened(Vec<u8>),
    /// The object is closed, with an error or cleanly. It is dropped.
    Closed(Result<(), String>),
}

/// Readiness of a source, as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Data, an end of file, or an error can be read.
    pub readable: bool,
    /// Urgent data can be read.
    pub urgent: bool,
    /// Data can be written.
    pub writable: bool,
    /// The peer sends no more data.
    pub finished: bool,
    /// The source failed, or both directions are closed.
    pub hung_up: bool,
}

/// Reason for closing an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Request of the application.
    Requested(CloseMode),
    /// The application has exited or disconnected.
    ClientGone,
    /// The engine shuts down; the application continues without it.
    Shutdown,
}

/// Action of a client that its protocol does not allow, with a description.
#[derive(Debug, PartialEq, Eq)]
pub struct ProtocolViolation(pub String);

impl From<InvalidIndex> for ProtocolViolation {
    fn from(error: InvalidIndex) -> ProtocolViolation {
        ProtocolViolation(error.to_string())
    }
}

impl From<MemoryError> for ProtocolViolation {
    fn from(error: MemoryError) -> ProtocolViolation {
        ProtocolViolation(error.to_string())
    }
}

/// Validated request for an object, which its core builds.
pub struct ObjectBuilder {
    /// Preferred core, by index; the application's choice takes precedence.
    pub core: Option<u32>,
    /// Builds the object on the thread of its core.
    pub build: BuildFn,
    /// State to store for the next engine. Empty if the application reopens the object after a restart.
    pub recovery: RecoveryState,
}

/// Builds an object on its core. The error is sent to the application.
pub type BuildFn = Box<dyn FnOnce(ObjectContext) -> Result<BuiltObject, String> + Send>;

/// State of an object that the supervisor stores in addition to the request that opened it.
#[derive(Debug, Default)]
pub struct RecoveryState {
    /// Encoded state, at most [`RecoveryState::MAX_NOTE_BYTES`].
    pub note: Vec<u8>,
    /// Duplicates of descriptors, at most [`RecoveryState::MAX_DESCRIPTORS`].
    pub descriptors: Vec<OwnedFd>,
}

impl RecoveryState {
    pub(crate) fn is_empty(&self) -> bool {
        self.note.is_empty() && self.descriptors.is_empty()
    }

    /// Maximum length of a note, in bytes.
    pub const MAX_NOTE_BYTES: usize = 128;
    /// Maximum number of descriptors.
    pub const MAX_DESCRIPTORS: usize = MAX_DESCRIPTORS;
}

/// Environment of a new object.
#[derive(Debug)]
pub struct ObjectContext {
    /// Core, by index.
    pub core: u32,
    /// Session of the client.
    pub session: u32,
    /// ID of the object in its session.
    pub id: u32,
    /// Memory of the session.
    pub memory: SharedMemory,
    /// Queue for notifications of the application.
    pub queue: Option<Rc<Notifier>>,
    /// Name of the application, for people.
    pub application: Arc<str>,
    /// Writer of the numbers of the core.
    pub(crate) observer: Rc<Observer>,
}

impl ObjectContext {
    /// Returns the owner of the object.
    pub(crate) fn owner(&self) -> Owner {
        Owner { session: self.session, application: Arc::clone(&self.application) }
    }
}

/// Built object.
pub struct BuiltObject {
    /// The object.
    pub object: Box<dyn PolledObject>,
    /// Answer for the application; `None` if a poll returns it later ([`PollStatus::Opened`]).
    pub answer: Option<Vec<u8>>,
}

impl fmt::Debug for ObjectBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ObjectBuilder");
        debug.field("core", &self.core).field("recovery", &self.recovery).finish_non_exhaustive()
    }
}

/// A core's end of a notification queue. Entries of a turn are published at its end, which wakes the
/// application's thread.
pub struct Notifier {
    /// `None` once the queue is closed.
    end: RefCell<Option<(Sender, ClientBell)>>,
    dirty: Cell<bool>,
    all_dirty: Rc<Dirty>,
}

/// Doorbell whose socket the client provided.
pub(crate) type ClientBell = Bell<ShmRef<WakeFlag>, Socket>;

/// Notifiers to publish at the end of the turn.
pub(crate) type Dirty = RefCell<Vec<Rc<Notifier>>>;

impl Notifier {
    pub(crate) fn new(sender: Sender, bell: ClientBell, all_dirty: Rc<Dirty>) -> Rc<Notifier> {
        Rc::new(Notifier { end: RefCell::new(Some((sender, bell))), dirty: Cell::new(false), all_dirty })
    }

    /// Queues an entry for the application. Returns `false` if the ring is full. Entries for a closed queue are
    /// dropped.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn push(self: &Rc<Self>, entry: &Entry) -> Result<bool, ProtocolViolation> {
        let mut end = self.end.borrow_mut();
        let Some((sender, _)) = &mut *end else { return Ok(true) };
        if !sender.push(entry)? {
            return Ok(false);
        }
        if !self.dirty.replace(true) {
            self.all_dirty.borrow_mut().push(Rc::clone(self));
        }
        Ok(true)
    }

    pub(crate) fn publish(&self) {
        self.dirty.set(false);
        if let Some((sender, bell)) = &*self.end.borrow() {
            sender.publish();
            bell.ring();
        }
    }

    /// Drops the core's end of the queue.
    pub(crate) fn close(&self) {
        *self.end.borrow_mut() = None;
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier").field("dirty", &self.dirty).finish_non_exhaustive()
    }
}

/// Remedy for an engine that has no descriptors.
pub(crate) const NO_DESCRIPTORS: &str =
    "; close others, or start the engine with a higher limit of descriptors (`ulimit -n`)";
