//! The process that starts the engine's, keeps what must outlive it, and starts the next.
//!
//! It owns the socket on which clients knock, and a shelf of records with descriptors, which the engine fills
//! and the next one is handed ([`store`](crate::store)). It reads records only to find those of a session that has
//! ended two engines, knows no client and does no work of theirs: so there is little for it to die of. Its own death is the end of the engine
//! ([`supervised`]), and of all sessions.
//!
//! An engine that dies again and again is started again with growing pauses. One whose program does not live long
//! enough to serve, or speaks another [version](crate::store), is followed by the program that the supervisor
//! runs; an upgrade to such a program leaves the engine that runs. Invariant: the next engine is
//! begins only when no thread of the last one is left, and it is handed all that the last one has deposited.

mod blame;
mod child;
mod seat;
mod shelf;
mod supervised;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::EngineError;
use crate::reserve::Reserve;
use crate::store::{ToEngine, ToSupervisor};

use blame::Blame;
use child::{Child, End, Stage};
use seat::Seat;
use shelf::Shelf;
pub use supervised::supervised;

/// What to supervise.
pub struct Options {
    /// Where clients attach.
    pub path: PathBuf,
    /// Who may attach beside this process's user and root, as in [`Config`](crate::Config): the socket is opened to
    /// all users then, and the engine looks who they are.
    pub allowed_uids: Vec<u32>,
    /// The engine's program: it is to call [`supervised`] with its standard input. Asked for each start.
    pub program: Box<dyn FnMut(Program) -> Command>,
    /// Called once, when the first engine serves.
    pub on_ready: Box<dyn FnMut()>,
}

/// Which program an engine is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// What is in the program's file when the engine is started.
    Newest,
    /// What the supervisor runs itself: it works, and speaks as the supervisor does.
    Own,
}

/// What somebody wants of a supervisor: each becomes readable, and is read, when it is wanted.
#[derive(Debug)]
pub struct Wishes {
    /// To end in order; a second time, at once.
    pub stop: OwnedFd,
    /// To start the engine anew, maybe from a newer program.
    pub upgrade: OwnedFd,
    /// To have printed who is attached, and what they have.
    pub show: OwnedFd,
}

/// The supervisor.
struct Supervisor {
    options: Options,
    wishes: Wishes,
    seat: Seat,
    shelf: Shelf,
    blame: Blame,
    /// For the start of the next engine.
    reserve: Reserve,
    epoch: u64,
    /// What is started next.
    program: Program,
    /// A process that is to be the next engine, while the one before still serves.
    next: Option<Child>,
    was_ready: bool,
    pause: Duration,
}

/// What is to become of the engine that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    /// It serves until it dies.
    Serve,
    /// It makes room for the next, and is killed if it takes too long.
    Replace(Instant),
    /// It ends in order, and is killed if it takes too long.
    Stop(Instant),
}

/// Supervises an engine until somebody wants it to end.
///
/// # Errors
/// [`EngineError`], if there is no engine at all. One that has served is started again whatever it dies of.
pub fn supervise(options: Options, wishes: Wishes) -> Result<(), EngineError> {
    // Each stream costs a descriptor here and two there.
    isolane_reactor::core::raise_descriptor_limit()
        .map_err(|error| EngineError::system("cannot have more descriptors", error))?;
    let seat = Seat::take(&options.path, &options.allowed_uids)?;
    let (shelf, blame) = (Shelf::default(), Blame::new()?);
    let mut supervisor = Supervisor {
        options,
        wishes,
        seat,
        shelf,
        blame,
        reserve: Reserve::take(RESERVE),
        epoch: 0,
        program: Program::Newest,
        next: None,
        was_ready: false,
        pause: Duration::ZERO,
    };
    while supervisor.run_engine()? {}
    Ok(())
}

impl Supervisor {
    /// Starts an engine and attends it to its end; true if there is to be another.
    fn run_engine(&mut self) -> Result<bool, EngineError> {
        self.epoch += 1;
        let started = Instant::now();
        let mut child = match self.next.take().map_or_else(|| self.start(self.program), Ok) {
            Ok(child) => child,
            // A program may run that has no file any more.
            Err(error) if self.was_ready || self.program == Program::Newest => {
                return self.on_unstartable(&error);
            }
            Err(error) => return Err(error),
        };
        if child.stage() == Stage::Here {
            self.hand_over(&mut child);
        }
        let mut aim = Aim::Serve;
        let end = loop {
            if let Some(end) = self.attend(&mut child, &mut aim)? {
                break end;
            }
        };
        if matches!(aim, Aim::Stop(_)) {
            log::info!("the engine has ended ({})", end.how);
            return Ok(false);
        }
        if !self.was_ready {
            return Err(EngineError::Start { why: end.how });
        }
        if matches!(aim, Aim::Replace(_)) {
            return Ok(true);
        }
        if !end.is_killed {
            self.blame.on_death(&mut self.shelf);
        }
        if child.stage() != Stage::Ready && child.program() == Program::Newest && !end.is_killed {
            self.go_back(&format!("{} has ended before it served ({})", child.file(), end.how));
            return Ok(true);
        }
        log::error!("the engine has died ({}) and is started again", end.how);
        self.rest(started.elapsed())
    }

    fn start(&mut self, program: Program) -> Result<Child, EngineError> {
        self.reserve.release();
        let started = Child::start(program, &mut (self.options.program)(program));
        self.reserve.refill();
        started
    }

    /// There is an engine to be, but no process of it.
    fn on_unstartable(&mut self, error: &EngineError) -> Result<bool, EngineError> {
        if self.program == Program::Newest {
            self.go_back(&error.to_string());
            return Ok(true);
        }
        log::error!("{error}; it is tried again");
        self.rest(Duration::ZERO)
    }

    /// The program's file is no engine that lives: what works is the one that this process runs.
    fn go_back(&mut self, why: &str) {
        self.program = Program::Own;
        log::error!(
            "{why}; the engine goes on with the program that the supervisor runs. Put one there that works, and send \
             SIGHUP"
        );
    }

    fn hand_over(&self, child: &mut Child) {
        self.blame.clear();
        child.hand_over(self.shelf.keys(), self.epoch);
    }

    /// Waits for the next that happens, and acts on it. Returns how the engine has ended, if it has.
    fn attend(&mut self, child: &mut Child, aim: &mut Aim) -> Result<Option<End>, EngineError> {
        child.flush(&self.shelf, &self.seat, &self.blame);
        let until = match *aim {
            Aim::Serve => None,
            Aim::Replace(until) | Aim::Stop(until) => Some(until),
        };
        let [dies, link, stop, upgrade, show, next] = self.wait(child, until)?;
        let now = Instant::now();
        if until.is_some_and(|until| now >= until) {
            child.kill();
        }
        child.on_time(now);
        if link {
            while let Some((message, descriptors)) = child.receive() {
                self.on_message(child, aim, message, descriptors);
            }
        }
        if stop && drained(&self.wishes.stop) {
            match aim {
                Aim::Stop(_) => {
                    log::info!("asked once more: the engine is killed");
                    child.kill();
                }
                _ => {
                    log::info!("asked to end: the engine ends in order");
                    self.stop(child, aim);
                }
            }
        }
        if show && drained(&self.wishes.show) {
            match child.stage() {
                Stage::Silent(_) | Stage::Here => {
                    log::info!("the engine has only just been started: ask it again")
                }
                Stage::Entrusted | Stage::Ready => child.say(ToEngine::Show),
            }
        }
        if upgrade && drained(&self.wishes.upgrade) && *aim == Aim::Serve && self.next.is_none() {
            self.prepare_next();
        }
        if self.attend_next(next, now)? && *aim == Aim::Serve {
            log::info!("the engine is started anew, from {}", self.next.as_ref().map_or("", Child::file));
            self.program = Program::Newest;
            *aim = Aim::Replace(now + HALT_MAX);
            child.say(ToEngine::Halt);
        }
        // What it has said last was heard above.
        if dies { child.wait().map(Some) } else { Ok(None) }
    }

    /// Starts a process of what the program's file is now. The engine makes room for it once it has said that it
    /// can take its place.
    fn prepare_next(&mut self) {
        match self.start(Program::Newest) {
            Ok(next) => self.next = Some(next),
            Err(error) => decline(&error.to_string()),
        }
    }

    /// Hears the process that is to be the next engine; true if it can take the place of the one that runs.
    fn attend_next(&mut self, is_ready: bool, now: Instant) -> Result<bool, EngineError> {
        let Some(next) = &mut self.next else { return Ok(false) };
        next.on_time(now);
        if !is_ready || next.stage() == Stage::Here {
            return Ok(next.stage() == Stage::Here);
        }
        if next.has_hung_up() {
            let end = next.wait()?;
            decline(&format!("{} cannot take its place ({})", next.file(), end.how));
            self.next = None;
            return Ok(false);
        }
        match next.receive() {
            Some((ToSupervisor::Here { version }, _)) => next.on_here(version),
            Some(_) => next.on_silence(),
            None => {}
        }
        Ok(next.stage() == Stage::Here)
    }

    fn on_message(
        &mut self,
        child: &mut Child,
        aim: &mut Aim,
        message: ToSupervisor,
        descriptors: Vec<OwnedFd>,
    ) {
        match message {
            ToSupervisor::Here { version } => {
                child.on_here(version);
                if child.stage() == Stage::Here {
                    self.hand_over(child);
                }
            }
            ToSupervisor::Deposit { key, record } => {
                self.shelf.put(key, record, descriptors);
                child.say(ToEngine::Deposited { key });
            }
            ToSupervisor::Withdraw { key } => self.shelf.remove(key),
            ToSupervisor::Ready => {
                child.on_ready();
                if !std::mem::replace(&mut self.was_ready, true) {
                    (self.options.on_ready)();
                }
            }
            ToSupervisor::Idle => {
                log::info!("nobody has been attached for a while: the engine ends");
                self.stop(child, aim);
            }
        }
    }

    fn stop(&mut self, child: &mut Child, aim: &mut Aim) {
        // Nobody is to find an engine that ends.
        self.seat.leave();
        self.next = None;
        *aim = Aim::Stop(Instant::now() + STOP_MAX);
        match child.stage() {
            Stage::Silent(_) | Stage::Here => child.kill(),
            Stage::Entrusted | Stage::Ready => child.say(ToEngine::Stop),
        }
    }

    /// Which have become ready: the engine's end, what it says (or room to say more to it), the three wishes, and
    /// what the next engine says.
    fn wait(&self, child: &Child, until: Option<Instant>) -> Result<[bool; 6], EngineError> {
        let link = PollFlags::IN | if child.has_more_to_say() { PollFlags::OUT } else { PollFlags::empty() };
        let mut watched = [
            PollFd::from_borrowed_fd(child.process(), PollFlags::IN),
            PollFd::from_borrowed_fd(child.link(), link),
            PollFd::new(&self.wishes.stop, PollFlags::IN),
            PollFd::new(&self.wishes.upgrade, PollFlags::IN),
            PollFd::new(&self.wishes.show, PollFlags::IN),
            // Nobody's link: nothing is to be heard.
            PollFd::new(&self.wishes.upgrade, PollFlags::empty()),
        ];
        if let Some(next) = self.next.as_ref().filter(|next| next.stage() != Stage::Here) {
            let source = if next.has_hung_up() { next.process() } else { next.link() };
            watched[5] = PollFd::from_borrowed_fd(source, PollFlags::IN);
        }
        // An engine that has hung up is about to end; nothing more is heard of it.
        let is_deaf = child.has_hung_up();
        if is_deaf {
            watched[1] = PollFd::new(&self.wishes.stop, PollFlags::empty());
        }
        let deadlines = [Some(child), self.next.as_ref()].into_iter().flatten().filter_map(Child::deadline);
        let left = until.into_iter().chain(deadlines);
        let left = left.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.chain(child.is_crowded().then_some(CROWDED)).min().map(timespec);
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(EngineError::system("cannot wait for the engine", error)),
        }
        let ready = std::array::from_fn(|at: usize| !watched[at].revents().is_empty());
        let [dies, link, stop, upgrade, show, next] = ready;
        Ok([dies, (link || dies) && !is_deaf, stop, upgrade, show, next])
    }

    /// Pauses before the next start, longer each time if the last engine has not lived long. False if somebody
    /// wants no other.
    fn rest(&mut self, lived: Duration) -> Result<bool, EngineError> {
        if lived >= LIFE_MIN {
            self.pause = Duration::ZERO;
            return Ok(true);
        }
        let pause = self.pause;
        self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        let mut watched = [PollFd::new(&self.wishes.stop, PollFlags::IN)];
        match poll(&mut watched, Some(&timespec(pause))) {
            Ok(count) => Ok(count == 0),
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(EngineError::system("cannot wait to start the engine again", error)),
        }
    }
}

/// There is no next engine yet.
fn decline(why: &str) {
    log::error!(
        "the engine is not started anew, and goes on as it is: {why}; put a program there that works, and send SIGHUP \
         once more"
    );
}

/// Reads what made a wish readable; false if there was nothing.
fn drained(wish: &OwnedFd) -> bool {
    let mut bytes = [0u8; 64];
    matches!(rustix::io::read(wish.as_fd(), &mut bytes[..]), Ok(count) if count > 0)
}

fn timespec(timeout: Duration) -> Timespec {
    // Rounded up, so that who wakes too early does not spin.
    let timeout = Duration::from_millis(timeout.as_nanos().div_ceil(1_000_000) as u64);
    Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: i32::MAX.into(), tv_nsec: 0 })
}

impl From<io::Error> for EngineError {
    fn from(source: io::Error) -> EngineError {
        EngineError::system("cannot start the engine's process", source)
    }
}

/// An engine that has lived so long did not die of how it was started.
const LIFE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How soon it is tried again to tell an engine what the kernel did not take.
const CROWDED: Duration = Duration::from_millis(2);
/// Descriptors that the start of an engine takes, and some more.
const RESERVE: usize = 16;
/// How long an engine may take to end in order; it has less itself.
const STOP_MAX: Duration = Duration::from_secs(8);
/// How long it may take to make room.
const HALT_MAX: Duration = Duration::from_secs(2);
