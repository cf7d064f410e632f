//! Spinning and sleeping: until the engine has answered, somebody calls, or time is over.

use std::time::{Duration, Instant};

use isolane_reactor::waker::silence;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::link::Link;
use super::{Client, opening};
use crate::client::Wait;
use crate::error::ConnectError;

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
            self.give_up(error);
        }
        self.spin.on_slept(now.elapsed());
        true
    }

    /// Sleeps, unless there is something to do after all.
    fn sleep(&mut self, timeout: Option<Duration>) -> Result<(), ConnectError> {
        let Link::Up(opened) = &mut self.link else { return self.sleep_armed(timeout) };
        opened.notify.arm();
        let has_come = opened.has_outcomes().map_err(super::impossible)? || self.queue.arm()?;
        let outcome = if has_come { Ok(()) } else { self.sleep_armed(timeout) };
        if let Link::Up(opened) = &mut self.link {
            opened.notify.disarm();
        }
        // While the engine is not there, its end of the bell is its supervisor's.
        self.queue.disarm()?;
        while self.queue.take()?.is_some() {}
        outcome
    }

    fn sleep_armed(&mut self, timeout: Option<Duration>) -> Result<(), ConnectError> {
        if self.signals.have_come() && matches!(self.link, Link::Up(_)) || !self.sleeper.try_sleep() {
            return Ok(());
        }
        let mut watched = [
            PollFd::from_borrowed_fd(self.queue.end(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.sleeper.doorbell(), PollFlags::IN),
        ];
        let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap_or(FOREVER));
        let slept = poll(&mut watched, timeout.as_ref());
        let has_rung = watched[1].revents().contains(PollFlags::IN);
        self.sleeper.awake();
        if has_rung {
            silence(self.sleeper.doorbell());
        }
        match slept {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(opening::system("to wait for the engine", error.into())),
        }
    }
}

/// How often a client that nobody waits for is looked at.
const LOOK: Duration = Duration::from_millis(250);
const FOREVER: Timespec = Timespec { tv_sec: i32::MAX as i64, tv_nsec: 0 };
