//! A stream as an object of a core.
//!
//! One that cannot go on stays until its application ends it: only then is it known what the application has read,
//! and whether it can have the socket back.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use isolane_attach::control::{End, StreamPlace};
use isolane_attach::stream::Origin;
use isolane_ring::Flag;
use parking_lot::Mutex;
use rustix::net::sockopt;

use super::lost::Lost;
use super::notices::Notices;
use super::{Kept, Machine, Refusal, Stop};
use crate::Config;
use crate::closer::Socket;
use crate::service::{self, Built, Ending, Hostile, Looked, Place, Plan, Ready, Service, Turn};

/// What it takes to adopt the socket: it is looked at, and nothing is changed until the plan is carried out. That
/// must not be before the supervisor has what is to be kept.
///
/// # Errors
/// [`Refusal`].
pub(crate) fn adopt(socket: OwnedFd, place: StreamPlace, config: &Config) -> Result<Plan, Refusal> {
    let kept = Kept::of(socket.as_fd(), place)?;
    let duplicate = socket.try_clone()?;
    // If nobody builds it, the control thread does not close it either.
    let socket = Socket::new(socket);
    let locks = config.needless_lock;
    let build = move |at: Place| {
        let notices = Notices::new(at.id, at.queue);
        let machine =
            Machine::take_up(socket.into_inner(), &at.memory, kept).map_err(|stop| stop.to_string())?;
        Ok(Stream::new(machine, notices, false).built(&kept, locks))
    };
    Ok(Plan {
        // Where its packets arrive.
        core: sockopt::socket_incoming_cpu(&duplicate)
            .ok()
            .and_then(|arrives| config.cores.iter().position(|core| *core == arrives as usize))
            .map(|index| index as u32),
        build: Box::new(build),
        left: service::Left { note: kept.encode().to_vec(), descriptors: vec![duplicate] },
    })
}

/// What it takes to go on with a stream that an engine before this one had, from its note. If that cannot be,
/// for example because there is no descriptor left for its socket, its application is told so by what is built.
///
/// # Errors
/// Why the note is none.
pub(crate) fn resume(socket: Result<OwnedFd, String>, note: &[u8], config: &Config) -> Result<Plan, String> {
    let note = note.try_into().map_err(|_| format!("its note has {} bytes", note.len()))?;
    let (kept, locks) = (Kept::decode(note), config.needless_lock);
    let build = move |at: Place| {
        let (session, id) = (at.session, at.id);
        let notices = Notices::new(id, at.queue);
        let spare = socket.as_ref().ok().and_then(|socket| socket.try_clone().ok());
        let machine = socket
            .and_then(|socket| Machine::take_up(socket, &at.memory, kept).map_err(|stop| stop.to_string()));
        match machine {
            Ok(machine) => Ok(Stream::new(machine, notices, true).built(&kept, locks)),
            Err(why) => {
                log::warn!("session {session}: its stream {id} ends, for it cannot be taken up again: {why}");
                let lost = Lost::new(&at.memory, &kept, why, notices, spare);
                lost.map(|lost| built(&kept, lost)).map_err(|error| error.to_string())
            }
        }
    };
    Ok(Plan { core: None, build: Box::new(build), left: service::Left::default() })
}

fn built(kept: &Kept, service: impl Service + 'static) -> Built {
    let origin = Origin { written: kept.written, is_inline: kept.is_inline };
    Built { service: Box::new(service), answer: Some(origin.encode()) }
}

/// A stream on its core.
struct Stream {
    machine: Machine,
    notices: Notices,
    /// An engine before this one had it, and its application knows that.
    is_resumed: bool,
    /// The core is to tell of bytes.
    hears_reads: bool,
    /// It cannot go on, and its application was told so.
    is_broken: bool,
    ending: Option<Ending>,
}

impl Stream {
    fn new(machine: Machine, notices: Notices, is_resumed: bool) -> Stream {
        Stream { machine, notices, is_resumed, hears_reads: true, is_broken: false, ending: None }
    }

    fn built(self, kept: &Kept, locks: bool) -> Built {
        match locks {
            false => built(kept, self),
            true => built(kept, Locked { stream: self, lock: Mutex::new(()) }),
        }
    }

    fn try_look(&mut self, now: Instant) -> Result<Looked, Stop> {
        match self.ending {
            None if self.is_broken => return Ok(Looked::Nothing),
            None => {}
            Some(Ending::Asked(End::Close) | Ending::Orphaned) if self.is_broken => {
                self.machine.cut_off()?;
                return Ok(Looked::Ended(Ok(())));
            }
            Some(Ending::Asked(End::Close) | Ending::Orphaned) => self.machine.close(now),
            Some(_) => {
                self.machine.hand_back()?;
                return Ok(Looked::Ended(Ok(())));
            }
        }
        let looked = self.machine.look()?;
        if looked.notifies {
            self.notices.owe();
        }
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

    /// What a stream that cannot go on comes to.
    fn stop(&mut self, stop: Stop) -> Result<Looked, Hostile> {
        match stop {
            Stop::Impossible(error) => {
                self.machine.abandon();
                Err(error.into())
            }
            stop if self.ending.is_some() => {
                self.machine.abandon();
                Ok(Looked::Ended(Err(stop.to_string())))
            }
            stop => {
                self.break_off(&stop.to_string());
                Ok(Looked::Worked)
            }
        }
    }

    fn break_off(&mut self, why: &str) {
        log::debug!("stream {} cannot go on: {why}", self.notices.id());
        self.is_broken = true;
        self.machine.give_up();
        self.notices.owe();
    }
}

impl Service for Stream {
    fn look(&mut self, turn: &Turn) -> Result<Looked, Hostile> {
        let looked = self.try_look(turn.now).or_else(|stop| self.stop(stop))?;
        self.notices.tell()?;
        Ok(looked)
    }

    fn rest(&mut self, turn: &Turn) -> Result<Looked, Hostile> {
        // Its end is not begun yet.
        if self.is_broken || (self.ending.is_some() && !self.machine.is_closing()) {
            return self.look(turn);
        }
        match self.machine.rest() {
            Ok(true) => Ok(Looked::Nothing),
            Ok(false) => Ok(Looked::Worked),
            Err(stop) => self.stop(stop),
        }
    }

    fn on_ready(&mut self, ready: Ready) {
        self.machine.on_ready(ready);
    }

    fn on_unwatched(&mut self, why: &str) -> bool {
        if self.is_resumed {
            self.break_off(why);
        } else {
            // Nobody has read or written anything yet, so that it can be handed back.
            let _ = self.machine.hand_back();
        }
        self.is_resumed
    }

    fn relieve(&mut self, turn: &Turn) -> bool {
        self.machine.relieve(turn.now)
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
        self.notices.deadline()
    }
}

/// A stream behind a lock that nobody else wants ([`Config::needless_lock`]). It is a service of its own, so that
/// without it nothing is asked at a look.
struct Locked {
    stream: Stream,
    lock: Mutex<()>,
}

impl Service for Locked {
    fn look(&mut self, turn: &Turn) -> Result<Looked, Hostile> {
        let _guard = self.lock.lock();
        self.stream.look(turn)
    }

    fn rest(&mut self, turn: &Turn) -> Result<Looked, Hostile> {
        let _guard = self.lock.lock();
        self.stream.rest(turn)
    }

    fn on_ready(&mut self, ready: Ready) {
        self.stream.on_ready(ready);
    }

    fn on_unwatched(&mut self, why: &str) -> bool {
        self.stream.on_unwatched(why)
    }

    fn relieve(&mut self, turn: &Turn) -> bool {
        self.stream.relieve(turn)
    }

    fn on_end(&mut self, ending: Ending) {
        self.stream.on_end(ending);
    }

    fn told(&self) -> &Flag {
        self.stream.told()
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        self.stream.source()
    }

    fn deadline(&self) -> Option<Instant> {
        self.stream.deadline()
    }
}
