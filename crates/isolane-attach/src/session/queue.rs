//! What one thread of the application is told.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use isolane_ring::entries::{Entry, Receiver};
use isolane_ring::{Bell, Flag, Shared};
use rustix::net::{Shutdown, shutdown};

use super::{Room, Session, Watcher};
use crate::AttachError;
use crate::control::{OpenQueue, Request};
use crate::layout::QueuePlace;

/// A notification queue: one thread sleeps on it, whatever happens on whichever core of the engine.
#[derive(Debug)]
pub struct Queue {
    id: u32,
    bell: Arc<OwnBell>,
    rings: Vec<Receiver>,
    /// Which ring is looked at first.
    next: usize,
    session: Session,
    /// Where it is, until it is closed.
    room: Option<Room>,
}

/// Its bell, which breaks when the session is over: whoever sleeps on it hears that, though an engine that still
/// has something to send may have the other end.
#[derive(Debug)]
struct OwnBell(Bell<Shared<Flag>>);

impl Watcher for OwnBell {
    fn on_restarted(&self, _epoch: u64) {}

    fn on_over(&self) {
        // It fails only if it is broken already.
        let _ = shutdown(self.0.end(), Shutdown::Both);
    }
}

impl Queue {
    pub(super) fn open(session: &Session, entries: u32) -> Result<Queue, AttachError> {
        let cores = session.cores().len() as u32;
        let bytes = QueuePlace::bytes(cores, entries);
        let room = session.take(bytes)?;
        room.clear(bytes)?;
        let place = QueuePlace { offset: room.offset(), cores, entries };
        let memory = session.memory();
        let rings = (0..cores).map(|core| {
            let refused = || AttachError::Refused {
                what: "the queue",
                why: format!("{entries} entries are no power of two, or too many"),
            };
            Ok(Receiver::new(memory, place.ring(core).ok_or_else(refused)?)?)
        });
        let rings = rings.collect::<Result<_, AttachError>>()?;
        let (bell, theirs) = Bell::new(memory.flag(place.flag())?)
            .map_err(|error| AttachError::system("cannot make a bell", error))?;
        let id = session.next_id();
        session.ask("a queue", &Request::OpenQueue(OpenQueue { queue: id, place }), &[theirs.as_fd()])?;
        let bell = Arc::new(OwnBell(bell));
        let watcher: Arc<dyn Watcher> = Arc::clone(&bell) as _;
        session.watch(Arc::downgrade(&watcher));
        Ok(Queue { id, bell, rings, next: 0, session: session.clone(), room: Some(room) })
    }

    /// Its name, for objects to be opened.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The next entry, of whichever core, without waiting.
    ///
    /// # Errors
    /// [`AttachError::Impossible`].
    pub fn take(&mut self) -> Result<Option<Entry>, AttachError> {
        self.session.check_process()?;
        for _ in 0..self.rings.len() {
            let ring = &mut self.rings[self.next];
            if let Some(entry) = ring.pop() {
                return Ok(Some(entry));
            }
            ring.publish();
            if ring.refresh()? > 0 {
                return Ok(ring.pop());
            }
            self.next = (self.next + 1) % self.rings.len();
        }
        Ok(None)
    }

    /// Sleeps until there is an entry; false if time ran out, or if something else has woken it.
    ///
    /// # Errors
    /// [`AttachError::Over`], [`AttachError::Impossible`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, AttachError> {
        let Queue { bell, rings, session, .. } = self;
        session.check()?;
        bell.0.wait(timeout, || any(rings).map_err(Asleep)).map_err(|Asleep(error)| why(session, error))?;
        any(rings)
    }

    /// Arms the bell, so that [`Queue::end`] becomes readable when something comes; true if something is
    /// there already. For who sleeps on other things as well; [`Queue::disarm`] once awake.
    ///
    /// # Errors
    /// [`AttachError::Impossible`].
    pub fn arm(&mut self) -> Result<bool, AttachError> {
        self.session.check_process()?;
        self.bell.0.flag().arm();
        any(&mut self.rings)
    }

    /// Asks for no more rings, and forgets those that came.
    ///
    /// # Errors
    /// [`AttachError::Over`].
    pub fn disarm(&mut self) -> Result<(), AttachError> {
        self.session.check_process()?;
        self.bell.0.flag().disarm();
        self.bell.0.quiet().map_err(|error| why(&self.session, AttachError::of_bell(error)))
    }

    /// What becomes readable, also when the session is over.
    pub fn end(&self) -> BorrowedFd<'_> {
        self.bell.0.end()
    }
}

/// Why a sleep has failed.
struct Asleep(AttachError);

impl From<std::io::Error> for Asleep {
    fn from(source: std::io::Error) -> Asleep {
        Asleep(AttachError::of_bell(source))
    }
}

/// If the session is over, that it is, and why; otherwise this.
fn why(session: &Session, error: AttachError) -> AttachError {
    session.check().err().unwrap_or(error)
}

fn any(rings: &mut [Receiver]) -> Result<bool, AttachError> {
    for ring in rings {
        if ring.refresh()? > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Drop for Queue {
    fn drop(&mut self) {
        if let Some(room) = self.room.take() {
            // If the session is over, so is the queue.
            let _ = self.session.close(self.id, room);
        }
    }
}
