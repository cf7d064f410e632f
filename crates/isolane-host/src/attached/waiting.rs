//! Spinning and sleeping: until the engine has answered, somebody calls, or time is over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_attach::{Room, Session};
use isolane_reactor::Waker;
use isolane_reactor::waker::Sleeper;
use isolane_ring::{Flag, Impossible, Shared};

use super::link::Link;
use super::{Client, opening};
use crate::client::Wait;
use crate::error::ConnectError;

/// What the client's thread sleeps on: a flag in the session's memory, where the engine wakes it, and a waker
/// as well.
pub(super) struct Bed {
    flag: Arc<Shared<Flag>>,
    sleeper: Sleeper,
    room: Room,
}

impl Bed {
    pub fn new(session: &Session) -> Result<Bed, ConnectError> {
        let room = session.take(Flag::BYTES).map_err(opening::at_engine)?;
        room.clear(Flag::BYTES).map_err(opening::at_engine)?;
        let flag = session.memory().flag(room.offset()).map_err(|error| opening::at_engine(error.into()))?;
        let flag = Arc::new(flag);
        let theirs = Arc::clone(&flag);
        Ok(Bed { flag, sleeper: Sleeper::calling(move || theirs.rouse_anyway()), room })
    }

    /// Where the flag is.
    pub fn place(&self) -> u64 {
        self.room.offset()
    }

    pub fn waker(&self) -> Waker {
        self.sleeper.waker()
    }

    /// Whether a waker has called since the last time that this was asked.
    #[inline]
    pub fn was_woken(&self) -> bool {
        self.sleeper.take_notification()
    }

    /// Sleeps until somebody calls, unless `look` finds something to do once that would be heard.
    fn sleep(
        &self,
        timeout: Option<Duration>,
        look: impl FnOnce() -> Result<bool, Impossible>,
    ) -> Result<(), Impossible> {
        self.flag.arm();
        let outcome = look();
        if outcome == Ok(false) && self.sleeper.try_sleep() {
            self.flag.wait(timeout);
            self.sleeper.awake();
        }
        self.flag.disarm();
        outcome.map(drop)
    }
}

impl Client {
    /// When the client wants to be turned even if nothing happens.
    pub(crate) fn housekeeping(&self) -> Instant {
        let usual = Instant::now() + LOOK;
        self.link_due().map_or(usual, |due| due.min(usual))
    }

    /// There was nothing to do: waits a little. False if the wait is over.
    pub(super) fn idle(&mut self, wait: Wait) -> bool {
        if wait == Wait::None {
            return false;
        }
        let now = Instant::now();
        if std::mem::take(&mut self.has_worked) {
            self.spin.on_work(now);
        }
        let until = match wait {
            Wait::Until(until) if now >= until => return false,
            Wait::Until(until) => Some(until),
            _ => None,
        };
        if self.spin.is_spinning(now) {
            self.spin.give_way();
            return true;
        }
        let until = until.into_iter().chain(self.link_due()).min();
        if let Err(error) = self.sleep(until.map(|until| until.saturating_duration_since(now))) {
            self.give_up(super::impossible(error));
        }
        self.spin.on_slept(now.elapsed());
        true
    }

    /// Sleeps, unless there is something to do after all.
    fn sleep(&mut self, timeout: Option<Duration>) -> Result<(), Impossible> {
        let Client { bed, link, signals, .. } = self;
        bed.sleep(timeout, || match link {
            Link::Up(opened) => Ok(signals.have_come() || opened.has_outcomes()?),
            _ => Ok(false),
        })
    }
}

/// How often a client that nobody waits for is looked at.
const LOOK: Duration = Duration::from_millis(250);
