//! A stream as an object of a core.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use isolane_attach::control::{End, StreamPlace, remedy};
use isolane_attach::layout::notice;
use isolane_ring::{Flag, Memory};
use rustix::net::sockopt;

use super::{Kept, Machine, Ready, Refusal, Stop};
use crate::service::{self, Built, Ending, Hostile, Looked, Notifier, Plan, Service, Turn};

/// What it takes to adopt the socket: it is looked at, and nothing is changed until the plan is carried out. That
/// must not be before the supervisor has what is to be kept.
///
/// # Errors
/// [`Refusal`].
pub(crate) fn adopt(socket: OwnedFd, place: StreamPlace, cores: &[usize]) -> Result<Plan, Refusal> {
    let kept = Kept::of(socket.as_fd(), place)?;
    Ok(plan(socket, kept, cores)?)
}

/// What it takes to go on with a stream that an engine before this one had, from its note.
///
/// # Errors
/// Why that cannot be.
pub(crate) fn resume(socket: OwnedFd, note: &[u8], cores: &[usize]) -> Result<Plan, String> {
    let note = note.try_into().map_err(|_| format!("its note has {} bytes", note.len()))?;
    plan(socket, Kept::decode(note), cores).map_err(|error| format!("{error}{}", remedy(&error)))
}

fn plan(socket: OwnedFd, kept: Kept, cores: &[usize]) -> io::Result<Plan> {
    let duplicate = socket.try_clone()?;
    let build = move |at: service::Place| {
        let stream =
            Stream::new(socket, &at.memory, kept, at.id, at.queue).map_err(|stop| stop.to_string())?;
        Ok(Built { service: Box::new(stream), answer: Some(Vec::new()) })
    };
    Ok(Plan {
        // Where its packets arrive.
        core: sockopt::socket_incoming_cpu(&duplicate)
            .ok()
            .and_then(|arrives| cores.iter().position(|core| *core == arrives as usize))
            .map(|index| index as u32),
        build: Box::new(build),
        kept: service::Kept { note: kept.encode().to_vec(), descriptors: vec![duplicate] },
    })
}

/// A stream on its core.
struct Stream {
    machine: Machine,
    id: u32,
    queue: Option<Rc<Notifier>>,
    /// The core is to tell of bytes.
    hears_reads: bool,
    /// An entry in the queue is due.
    owes_notice: bool,
    ending: Option<Ending>,
}

impl Stream {
    fn new(
        socket: OwnedFd,
        memory: &Memory,
        kept: Kept,
        id: u32,
        queue: Option<Rc<Notifier>>,
    ) -> Result<Stream, Stop> {
        let machine = Machine::take_up(socket, memory, kept)?;
        // The engine before may have died between noticing and telling.
        let owes_notice = queue.is_some();
        Ok(Stream { machine, id, queue, hears_reads: true, owes_notice, ending: None })
    }

    fn try_look(&mut self, now: Instant) -> Result<Looked, Stop> {
        match self.ending {
            None => {}
            Some(Ending::Asked(End::Release) | Ending::Stopped) => {
                self.machine.hand_back()?;
                return Ok(Looked::Ended(Ok(())));
            }
            Some(Ending::Asked(End::Close) | Ending::Orphaned) => self.machine.close(now),
        }
        let looked = self.machine.look(now)?;
        self.owes_notice |= looked.notifies && self.queue.is_some();
        if looked.is_over {
            self.machine.hand_back()?;
            return Ok(Looked::Ended(Ok(())));
        }
        if self.hears_reads != self.machine.hears_reads() {
            self.hears_reads = self.machine.hears_reads();
            return Ok(Looked::Hears { reads: self.hears_reads });
        }
        Ok(if looked.is_busy { Looked::Worked } else { Looked::Nothing })
    }

    fn tell(&mut self) -> Result<(), Hostile> {
        if self.owes_notice
            && let Some(queue) = &self.queue
        {
            self.owes_notice = !queue.push(&notice::entry(self.id))?;
        }
        Ok(())
    }

    /// What a stream that cannot go on comes to.
    fn stop(&mut self, stop: Stop) -> Result<Looked, Hostile> {
        self.machine.give_up();
        match stop {
            Stop::Impossible(error) => Err(error.into()),
            stop => Ok(Looked::Ended(Err(stop.to_string()))),
        }
    }
}

impl Service for Stream {
    fn look(&mut self, turn: &Turn) -> Result<Looked, Hostile> {
        let looked = self.try_look(turn.now).or_else(|stop| self.stop(stop))?;
        self.tell()?;
        Ok(looked)
    }

    fn rest(&mut self, turn: &Turn) -> Result<Looked, Hostile> {
        // Its end is not begun yet.
        if self.ending.is_some() && !self.machine.is_closing() {
            return self.look(turn);
        }
        match self.machine.rest() {
            Ok(true) => Ok(Looked::Nothing),
            Ok(false) => Ok(Looked::Worked),
            Err(stop) => self.stop(stop),
        }
    }

    fn on_ready(&mut self, ready: service::Ready) {
        self.machine.on_ready(Ready {
            reads: ready.readable,
            urges: ready.urgent,
            writes: ready.writable,
            hangs: ready.hung_up || ready.finished,
        });
    }

    fn on_unwatched(&mut self, _why: &str) -> bool {
        // Its application waits to hear that it was adopted. Where this fails, so will what it does next.
        let _ = self.machine.hand_back();
        false
    }

    fn on_end(&mut self, ending: Ending) {
        // Asked again by the next session of the client's life; a stream that closes goes on closing.
        let closes = matches!(self.ending, Some(Ending::Orphaned | Ending::Asked(End::Close)));
        if !(closes && ending == Ending::Stopped) {
            self.ending = Some(ending);
        }
    }

    fn told(&self) -> &Flag {
        self.machine.told()
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.machine.socket())
    }

    fn deadline(&self) -> Option<Instant> {
        // The application's thread does not empty its queue; it is told once it does.
        let notice = self.owes_notice.then(|| Instant::now() + RETRY);
        self.machine.deadline().into_iter().chain(notice).min()
    }
}

/// When an entry is tried again for which a queue had no room.
const RETRY: Duration = Duration::from_millis(1);
