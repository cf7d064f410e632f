//! What an object is, and how a kind of objects plugs in.
//!
//! A kind of objects has two sides. On the **control thread** it makes a [`Plan`] of what a client asks for
//! (`control/plan.rs` calls it by kind): everything that may fail, wait for the system or be refused is done
//! there. On the **core** the plan builds a [`Service`], which from then on belongs to that core's thread
//! alone.
//!
//! A service is *hot* while its core looks at it every turn, and *cold* when it has been idle for a while. Who
//! makes a cold one hot: the application, by a doorbell, which it rings only if it finds the `told` flag armed;
//! the kernel, if what [`Service::source`] names becomes ready; time ([`Service::deadline`]). The core arms
//! the flag and looks once more before a service becomes cold, so that nothing is missed.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use isolane_attach::control::End;
use isolane_ring::entries::{Entry, Sender};
use isolane_ring::{Bell, Flag, Impossible, Memory, MemoryError, Shared};

use crate::closer::Socket;

/// An object on its core.
pub trait Service {
    /// Does what there is to do, a quantum of it at most. Never waits.
    ///
    /// # Errors
    /// [`Hostile`], if the client did what cannot be: its session is dropped, and this object with it.
    fn look(&mut self, turn: &Turn) -> Result<Looked, Hostile>;

    /// The kernel says that [`Service::source`] is ready; it says so once for each change (edge-triggered). A
    /// look follows.
    fn on_ready(&mut self, ready: Ready);

    /// Its core cannot watch its source, so that it cannot go on: leaves what it works on as it was before, and is
    /// dropped. Unless it says that it stays, because an application has it already, which is to end it.
    fn on_unwatched(&mut self, why: &str) -> bool {
        let _ = why;
        false
    }

    /// Its session has as many objects as it may have, or no memory left: what only waits for somebody else, and has done so for long, ends.
    /// Tells whether it is to be looked at.
    fn relieve(&mut self, turn: &Turn) -> bool {
        let _ = turn;
        false
    }

    /// It is to end: the next looks do what that takes, the last says [`Looked::Ended`]. May come again, with
    /// something more urgent.
    fn on_end(&mut self, ending: Ending);

    /// The flag that the application takes before it rings a doorbell.
    fn told(&self) -> &Flag;

    /// It has been idle for a while, and is to become cold: arms the flag, and looks once more. Whatever is found
    /// keeps it hot.
    ///
    /// # Errors
    /// As [`Service::look`].
    fn rest(&mut self, turn: &Turn) -> Result<Looked, Hostile> {
        self.told().arm();
        let looked = self.look(turn);
        if looked != Ok(Looked::Nothing) {
            self.told().disarm();
        }
        looked
    }

    /// What its core is to watch in its epoll, as long as it lives; for all that may happen to it, until it says
    /// otherwise ([`Looked::Hears`]).
    fn source(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// When it is to be looked at again though nobody calls. Asked when it becomes cold.
    fn deadline(&self) -> Option<Instant> {
        None
    }
}

/// What all looks of a turn share.
#[derive(Debug)]
pub struct Turn {
    /// When it began.
    pub now: Instant,
}

/// What came of a look.
#[derive(Debug, PartialEq, Eq)]
pub enum Looked {
    /// There was something to do. There may be more.
    Worked,
    /// There was nothing to do, but there soon may be: it stays hot.
    Awaiting,
    /// There was nothing to do.
    Nothing,
    /// It worked, and from now on is to be told of what may be read, or not to be.
    Hears {
        /// To be told.
        reads: bool,
    },
    /// It is there now, with this answer to its application. For those whose [`Built::answer`] was missing.
    Opened(Vec<u8>),
    /// It has ended, in order or not. It is dropped, and not looked at again.
    Ended(Result<(), String>),
}

/// What the kernel says about a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Something may be read, or the other side has ended.
    pub readable: bool,
    /// Among it, a byte that is urgent.
    pub urgent: bool,
    /// Something may be written.
    pub writable: bool,
    /// The other side says nothing more, in order or not.
    pub finished: bool,
    /// It is broken, or over in both directions.
    pub hung_up: bool,
}

/// Why an object ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Its application said so.
    Asked(End),
    /// Its application has gone, in order or not.
    Orphaned,
    /// The engine ends in order. The application lives on, without it.
    Stopped,
}

/// What a client did that cannot be.
#[derive(Debug, PartialEq, Eq)]
pub struct Hostile(pub String);

impl From<Impossible> for Hostile {
    fn from(error: Impossible) -> Hostile {
        Hostile(error.to_string())
    }
}

impl From<MemoryError> for Hostile {
    fn from(error: MemoryError) -> Hostile {
        Hostile(error.to_string())
    }
}

/// How an object is made on its core.
pub struct Plan {
    /// On which core, by index, it would be best; what the application asked for goes first.
    pub core: Option<u32>,
    /// Makes it, on the thread of its core.
    pub build: Build,
    /// What the next engine needs, if this one is killed. Nothing, if its application opens it anew then: it hears
    /// of the restart, and its object is not there any more.
    pub left: Left,
}

/// Makes an object on its core; why not, is told to the application.
pub type Build = Box<dyn FnOnce(Place) -> Result<Built, String> + Send>;

/// What an object leaves with the supervisor, beside the request that it was opened by.
#[derive(Debug, Default)]
pub struct Left {
    /// What the kind of objects needs to know, at most [`Left::NOTE_BYTES_MAX`].
    pub note: Vec<u8>,
    /// Duplicates, at most [`Left::DESCRIPTORS_MAX`].
    pub descriptors: Vec<OwnedFd>,
}

impl Left {
    /// Whether the next engine needs nothing.
    pub fn is_nothing(&self) -> bool {
        self.note.is_empty() && self.descriptors.is_empty()
    }

    /// Bytes of the longest note.
    pub const NOTE_BYTES_MAX: usize = 128;
    /// The most descriptors.
    pub const DESCRIPTORS_MAX: usize = 2;
}

/// Where an object is made.
#[derive(Debug)]
pub struct Place {
    /// The core, by index.
    pub core: u32,
    /// The client, as in the log.
    pub session: u32,
    /// The object's name.
    pub id: u32,
    /// The memory of the session. It lives as long as somebody holds it.
    pub memory: Memory,
    /// Where the application is told of it.
    pub queue: Option<Rc<Notifier>>,
}

/// What was made.
pub struct Built {
    /// The object.
    pub service: Box<dyn Service>,
    /// What its application is told; none if that comes later, by [`Looked::Opened`].
    pub answer: Option<Vec<u8>>,
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("core", &self.core).field("left", &self.left).finish_non_exhaustive()
    }
}

/// One core's end of an application thread's notification queue. What is pushed in a turn is published, and
/// the thread woken, at its end.
pub struct Notifier {
    /// None once the queue is closed.
    end: RefCell<Option<(Sender, Rung)>>,
    is_dirty: Cell<bool>,
    dirty: Rc<Dirty>,
}

/// What a client has given to be woken by.
type Rung = Bell<Shared<Flag>, Socket>;

/// Those to be published at the end of the turn.
pub(crate) type Dirty = RefCell<Vec<Rc<Notifier>>>;

impl Notifier {
    pub(crate) fn new(sender: Sender, bell: Rung, dirty: Rc<Dirty>) -> Rc<Notifier> {
        Rc::new(Notifier { end: RefCell::new(Some((sender, bell))), is_dirty: Cell::new(false), dirty })
    }

    /// Tells the application something. Returns false if its ring is full, so that it is not told: it has made
    /// its ring too small, or does not look at it. Who has closed its queue is told nothing, and wants it so.
    ///
    /// # Errors
    /// [`Hostile`].
    pub fn push(self: &Rc<Self>, entry: &Entry) -> Result<bool, Hostile> {
        let mut end = self.end.borrow_mut();
        let Some((sender, _)) = &mut *end else { return Ok(true) };
        if !sender.push(entry)? {
            return Ok(false);
        }
        if !self.is_dirty.replace(true) {
            self.dirty.borrow_mut().push(Rc::clone(self));
        }
        Ok(true)
    }

    pub(crate) fn publish(&self) {
        self.is_dirty.set(false);
        if let Some((sender, bell)) = &*self.end.borrow() {
            sender.publish();
            bell.ring();
        }
    }

    /// Nothing is written to the queue any more.
    pub(crate) fn close(&self) {
        *self.end.borrow_mut() = None;
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier").field("is_dirty", &self.is_dirty).finish_non_exhaustive()
    }
}
