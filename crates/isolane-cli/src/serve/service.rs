//! Reports the state of the target to the service manager that started it, as sd_notify(3) describes; without one,
//! nothing happens.
//!
//! The watchdog is fed only while every reactor turns: if one stays in a turn, as in a call that hangs, the service
//! manager ends and restarts the target after `WatchdogSec`.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};

use isolane_target::{Target, Turn};
use sd_notify::NotifyState;

use crate::failure::{Context, Failure};

/// The watchdog of the service manager, if it has one, which is fed until this is dropped.
pub struct Service(Option<(Sender<()>, JoinHandle<()>)>);

impl Service {
    /// Reports that the target accepts connections.
    ///
    /// # Errors
    /// If the watchdog cannot be fed, because the service manager would end the target.
    pub fn start(target: &Target, status: &str) -> Result<Service, Failure> {
        notify(&[NotifyState::Ready, NotifyState::Status(status)]);
        let Some(period) = sd_notify::watchdog_enabled() else { return Ok(Service(None)) };
        let (stop, stopped) = mpsc::channel();
        let source = target.source();
        let feed = move || {
            let mut watch = Watch::default();
            let is_served = || stopped.recv_timeout(period / FEEDS) == Err(RecvTimeoutError::Timeout);
            while is_served() {
                if watch.turns(&source.turns()) {
                    notify(&[NotifyState::Watchdog]);
                }
            }
        };
        let thread = thread::Builder::new().name("watchdog".into()).spawn(feed);
        let thread = thread.context("cannot feed the watchdog of the service manager")?;
        Ok(Service(Some((stop, thread))))
    }

    /// Reports that the target shuts down; service managers then watch it no more.
    pub fn stop(self) {
        notify(&[NotifyState::Stopping, NotifyState::Status("completing commands in flight")]);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        log::limited!(Warn, "cannot reach the service manager at $NOTIFY_SOCKET: {error}");
    }
}

/// The last turns of the reactors.
#[derive(Default)]
struct Watch(Vec<Turn>);

impl Watch {
    /// Returns `true` if no reactor has been in one turn since the last call.
    fn turns(&mut self, now: &[Turn]) -> bool {
        let before = std::mem::replace(&mut self.0, now.to_vec());
        !now.iter().any(|turn| turn.phase.is_some() && before.iter().any(|last| is_same(last, turn)))
    }
}

fn is_same(one: &Turn, other: &Turn) -> bool {
    (one.core, one.number) == (other.core, other.number) && one.phase.is_some()
}

/// Feeds of the watchdog in each of its periods, so that one that is late or left out has no effect.
const FEEDS: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(core: u32, number: u64, phase: Option<&'static str>) -> Turn {
        Turn { core, thread: 1, number, phase }
    }

    #[test]
    fn reactor_that_stays_in_a_turn_is_noticed() {
        let mut watch = Watch::default();
        let stuck = turn(1, 7, Some("volume"));
        assert!(watch.turns(&[turn(0, 3, Some("send")), stuck]), "seen once");
        assert!(!watch.turns(&[turn(0, 4, Some("send")), stuck]));
        assert!(!watch.turns(&[turn(0, 5, None), turn(1, 7, Some("send"))]), "a later part of the same turn");
        assert!(watch.turns(&[turn(0, 5, None), turn(1, 8, Some("volume"))]), "the first one sleeps");
        assert!(watch.turns(&[]), "the target has ended");
    }
}
