//! Wait of a client: spins and sleeps until an outcome arrives, a waker is called, or the deadline passes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_attach::{Allocation, AttachError, Session};
use isolane_reactor::Waker;
use isolane_reactor::waker::Sleeper;
use isolane_shm::{InvalidIndex, ShmRef, WakeFlag};

use super::EngineVolume;
use super::link::Link;
use crate::client_state::ClientState;
use crate::error::ConnectError;
use crate::request::Wait;

/// Flag in the session's memory that the client's thread sleeps on. The engine and wakers wake it.
pub(super) struct FutexWaiter {
    flag: Arc<ShmRef<WakeFlag>>,
    sleeper: Sleeper,
    allocation: Allocation,
}

impl FutexWaiter {
    pub fn new(session: &Session) -> Result<FutexWaiter, ConnectError> {
        let allocation = session.alloc(WakeFlag::BYTES)?;
        allocation.clear(WakeFlag::BYTES)?;
        let flag = session.memory().flag(allocation.offset()).map_err(AttachError::from)?;
        let flag = Arc::new(flag);
        let clone = Arc::clone(&flag);
        Ok(FutexWaiter { flag, sleeper: Sleeper::with_callback(move || clone.force_wake()), allocation })
    }

    /// Offset of the flag.
    pub fn offset(&self) -> u64 {
        self.allocation.offset()
    }

    pub fn waker(&self) -> Waker {
        self.sleeper.waker()
    }

    /// Returns whether a waker was called since the last call.
    #[inline]
    pub fn was_woken(&self) -> bool {
        self.sleeper.take_notification()
    }

    /// Sleeps until woken, unless `poll` finds work after the flag is armed.
    fn sleep(
        &self,
        timeout: Option<Duration>,
        poll: impl FnOnce() -> Result<bool, InvalidIndex>,
    ) -> Result<(), InvalidIndex> {
        self.flag.arm();
        let outcome = poll();
        if outcome == Ok(false) && self.sleeper.try_sleep() {
            self.flag.wait(timeout);
            self.sleeper.finish_sleep();
        }
        self.flag.disarm();
        outcome.map(drop)
    }
}

impl EngineVolume {
    /// Returns when the client must be turned even if nothing happens.
    pub(crate) fn housekeeping(&self) -> Instant {
        let latest = Instant::now() + HOUSEKEEPING_INTERVAL;
        self.link_due().map_or(latest, |due| due.min(latest))
    }

    /// Waits briefly for work. Returns `false` once the wait is over.
    pub(super) fn idle(&mut self, state: &mut ClientState, wait: Wait) -> bool {
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
            self.spin.yield_cpu();
            return true;
        }
        let until = until.into_iter().chain(self.link_due()).min();
        if let Err(error) = self.sleep(until.map(|until| until.saturating_duration_since(now))) {
            self.abandon(state, super::invalid_index(error));
        }
        self.spin.on_slept(now.elapsed());
        true
    }

    /// Sleeps unless there is work.
    fn sleep(&mut self, timeout: Option<Duration>) -> Result<(), InvalidIndex> {
        let EngineVolume { waiter, link, events, .. } = self;
        waiter.sleep(timeout, || match link {
            Link::Up(opened) => Ok(events.is_set() || opened.has_outcomes()?),
            _ => Ok(false),
        })
    }
}

/// Interval of housekeeping turns.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(250);
