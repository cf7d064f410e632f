//! Reports the state of the target to the service manager that started it, as sd_notify(3) describes; without one,
//! nothing happens. Takes the listening sockets that it opened, as sd_listen_fds(3) describes.
//!
//! The watchdog is fed only while every reactor turns: if one stays in a turn, as in a call that hangs, the service
//! manager ends and restarts the target after `WatchdogSec`.

use std::env;
use std::fmt::Display;
use std::net::TcpListener;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};

use isolane_reactor::inherited;
use isolane_target::{Target, Turn};
use rustix::fd::{AsFd, RawFd};
use rustix::net::{AddressFamily, SocketType, sockopt};
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

/// Returns the listening sockets that the service manager has opened for this process.
///
/// # Errors
/// If one of them is not a TCP socket that listens, or was taken before.
pub fn sockets() -> Result<Vec<Arc<TcpListener>>, Failure> {
    let numbers = passed(|name| env::var(name).ok(), std::process::id())?;
    numbers.map(|number| socket(number).map(Arc::new)).collect()
}

/// Returns the numbers of the descriptors that the environment announces for the process `id`.
fn passed(variable: impl Fn(&str) -> Option<String>, id: u32) -> Result<Range<RawFd>, Failure> {
    if variable("LISTEN_PID").and_then(|text| text.parse().ok()) != Some(id) {
        return Ok(0..0);
    }
    let text = variable("LISTEN_FDS").unwrap_or_default();
    match text.parse() {
        Ok(count @ 0..=MAX_PASSED) => Ok(FIRST_PASSED..FIRST_PASSED + count),
        _ => Err(of_sockets(format!(
            "LISTEN_FDS is {text:?}, not a number of at most {MAX_PASSED} descriptors"
        ))),
    }
}

fn socket(number: RawFd) -> Result<TcpListener, Failure> {
    let invalid = |reason: &dyn Display| of_sockets(format!("descriptor {number}: {reason}"));
    let socket = inherited::take(number).map_err(|error| invalid(&error))?;
    let listens = sockopt::socket_acceptconn(socket.as_fd()).is_ok_and(|listens| listens);
    let is_stream = sockopt::socket_type(socket.as_fd()) == Ok(SocketType::STREAM);
    let is_ip = sockopt::socket_domain(socket.as_fd())
        .is_ok_and(|family| [AddressFamily::INET, AddressFamily::INET6].contains(&family));
    if listens && is_stream && is_ip {
        return Ok(TcpListener::from(socket));
    }
    Err(invalid(&"it is not a TCP socket that listens"))
}

fn of_sockets(reason: String) -> Failure {
    Failure::new("cannot use the sockets of the service manager", reason)
        .with_hint("let the socket unit have ListenStream= with the address of each port, and Accept=no")
}

/// Number of the first descriptor that a service manager passes.
const FIRST_PASSED: RawFd = 3;
/// Limit of descriptors that a service manager passes.
const MAX_PASSED: RawFd = 1024;

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
    fn sockets_are_for_the_process_that_the_environment_names() {
        let passed = |pid: &'static str, count: &'static str| {
            passed(|name| Some(if name == "LISTEN_PID" { pid } else { count }.to_owned()), 7)
        };
        assert_eq!(passed("7", "2").unwrap(), 3..5);
        for other in ["8", "", "x"] {
            assert!(passed(other, "2").unwrap().is_empty(), "{other}");
        }
        for count in ["", "-1", "x", "1025", "99999999999"] {
            assert!(passed("7", count).unwrap_err().to_string().contains("LISTEN_FDS"), "{count}");
        }
        let no_socket = tempfile::tempfile().unwrap();
        let number = std::os::fd::IntoRawFd::into_raw_fd(rustix::io::dup(&no_socket).unwrap());
        assert!(socket(number).unwrap_err().to_string().contains("not a TCP socket"));
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
