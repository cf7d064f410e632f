//! Zero-copy sends (S7, `MSG_ZEROCOPY`).
//!
//! The reactor keeps the memory of a send until the kernel reports its completion, also when the
//! socket is closed or the reactor is dropped: a closed socket with sends in flight lingers until
//! they complete. If the peer does not read for `LINGER_TIMEOUT`, the connection is reset. Memory
//! that the kernel does not release even then is leaked.

use super::Reactor;
use crate::socket_table::SocketEntry;
use crate::zerocopy_tracker::{ZeroCopyCompletion, ZeroCopyTracker};
use crate::{Token, errqueue};
use isolane_memory::ZeroCopySend;
use isolane_tcp::{iovec, socket};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::Shutdown;
use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

/// Result of one send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Bytes sent, from the start of the plan.
    pub bytes: usize,
    /// The kernel still reads the plan's memory: [`Reactor::track_zerocopy`] must follow.
    pub zerocopy: bool,
}

/// Zero-copy sends in flight.
#[derive(Debug, Default)]
pub(super) struct ZeroCopy {
    /// Completed sends, not yet polled.
    released: Vec<(Token, ZeroCopySend)>,
    /// Closed sockets with sends in flight.
    lingering: Vec<Lingering>,
    /// Sends in flight on all sockets.
    sends: usize,
    next_poll: Option<Instant>,
}

#[derive(Debug)]
struct Lingering {
    token: Token,
    socket: OwnedFd,
    zerocopy: ZeroCopyTracker,
    since: Instant,
    reset: bool,
}

impl Reactor {
    /// Enables [`Reactor::send_zerocopy`] on this socket.
    ///
    /// # Errors
    /// The error of `setsockopt`, or `NotFound` if the token is stale.
    pub fn enable_zerocopy(&mut self, token: Token) -> io::Result<()> {
        let entry = self.sockets.get_mut(token).ok_or(io::ErrorKind::NotFound)?;
        socket::enable_zerocopy(&entry.socket)?;
        entry.zerocopy = Some(Box::default());
        Ok(())
    }

    /// Sends like [`Reactor::send`], without a copy if that is enabled, possible, and useful. If
    /// [`Sent::zerocopy`] is set, the caller must pass the memory to [`Reactor::track_zerocopy`]
    /// before the next call.
    ///
    /// # Errors
    /// As [`Reactor::send`].
    pub fn send_zerocopy(&mut self, token: Token, plan: &[IoSlice<'_>]) -> io::Result<Sent> {
        self.reap(token);
        let entry = self.sockets.get_mut(token).ok_or(io::ErrorKind::NotFound)?;
        let SocketEntry { socket, zerocopy: Some(zerocopy), .. } = entry else {
            return self.send_copied(token, plan);
        };
        if !zerocopy.is_useful() {
            return self.send_copied(token, plan);
        }
        let offered = iovec::bytes(plan);
        match socket::send_zerocopy(&*socket, plan) {
            Ok(bytes) => {
                zerocopy.on_sent();
                self.zerocopy.sends += 1;
                // The kernel holds the bytes, so they are in flight in any case. The next send
                // reports a broken socket.
                let _ = self.on_sent(token, bytes, bytes < offered);
                Ok(Sent { bytes, zerocopy: true })
            }
            Err(error) => {
                if error.raw_os_error() == Some(libc::ENOBUFS) {
                    zerocopy.on_enobufs();
                }
                // A plain send reports and handles every other error.
                self.send_copied(token, plan)
            }
        }
    }

    fn send_copied(&mut self, token: Token, plan: &[IoSlice<'_>]) -> io::Result<Sent> {
        Ok(Sent { bytes: self.send(token, plan)?, zerocopy: false })
    }

    /// Records the memory of the last send on this socket. [`Reactor::poll_released`] returns it
    /// after completion.
    pub fn track_zerocopy(&mut self, token: Token, lent: ZeroCopySend) {
        if let Some(zerocopy) = self.sockets.get_mut(token).and_then(|entry| entry.zerocopy.as_mut()) {
            zerocopy.track(lent);
        }
    }

    /// Returns memory released by the kernel and the socket it was sent on, which may be closed.
    pub fn poll_released(&mut self) -> Option<(Token, ZeroCopySend)> {
        self.zerocopy.released.pop()
    }

    /// Whether the socket has zero-copy sends in flight.
    pub fn has_zerocopy_in_flight(&self, token: Token) -> bool {
        self.sockets.get(token).is_some_and(|entry| {
            entry.zerocopy.as_ref().is_some_and(|zerocopy| zerocopy.has_zerocopy_in_flight())
        })
    }

    /// Closes a socket, immediately or when its zero-copy sends have completed.
    pub fn close(&mut self, token: Token) {
        self.reap(token);
        let Some(entry) = self.sockets.remove(token) else { return };
        self.backend.unregister(entry.socket.as_fd(), entry.armed());
        let SocketEntry { socket, zerocopy, .. } = entry;
        let Some(zerocopy) = zerocopy.filter(|zerocopy| zerocopy.has_zerocopy_in_flight()) else { return };
        // The kernel still sends queued bytes, as after a plain close. An error means that the
        // connection is already gone.
        let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        let lingering = Lingering { token, socket, zerocopy: *zerocopy, since: self.now, reset: false };
        self.zerocopy.lingering.push(lingering);
    }

    /// Returns the number of closed sockets with sends in flight.
    pub fn lingering_count(&self) -> usize {
        self.zerocopy.lingering.len()
    }

    /// Reaps completions of one socket.
    pub(super) fn reap(&mut self, token: Token) {
        let Some(entry) = self.sockets.get_mut(token) else { return };
        if let Some(zerocopy) = entry.zerocopy.as_mut().filter(|zerocopy| zerocopy.has_zerocopy_in_flight()) {
            self.zerocopy.complete(token, &entry.socket, zerocopy);
        }
    }

    /// Reaps completions of all sockets, at most once per `POLL_INTERVAL`.
    pub(super) fn reap_due(&mut self) {
        if self.zerocopy.sends == 0 || self.zerocopy.next_poll.is_some_and(|next| self.now < next) {
            return;
        }
        self.zerocopy.next_poll = Some(self.now + POLL_INTERVAL);
        for token in self.sockets.with_zerocopy_in_flight() {
            self.reap(token);
        }
        self.zerocopy.poll_lingering(self.now);
    }

    /// Limits the sleep, because the kernel may not signal completions.
    pub(super) fn zerocopy_timeout(&self) -> Option<Instant> {
        (self.zerocopy.sends > 0).then(|| self.now + POLL_INTERVAL)
    }

    /// Waits for all sends on drop: first `DRAIN_TIMEOUT` normally, then as long after resetting
    /// the connections.
    pub(super) fn drain_zerocopy(&mut self) {
        for token in self.sockets.with_zerocopy_in_flight() {
            self.close(token);
        }
        for graceful in [true, false] {
            let end = Instant::now() + DRAIN_TIMEOUT;
            while self.zerocopy.sends > 0 && Instant::now() < end {
                let age = if graceful { Duration::ZERO } else { LINGER_TIMEOUT };
                self.zerocopy.poll_lingering(self.now + age);
                std::thread::sleep(DRAIN_STEP);
            }
        }
        for closed in self.zerocopy.lingering.drain(..) {
            leak(closed);
        }
    }
}

impl ZeroCopy {
    /// Reads the completions of one socket.
    fn complete(&mut self, token: Token, socket: &OwnedFd, zerocopy: &mut ZeroCopyTracker) {
        for _ in 0..MAX_COMPLETIONS_PER_POLL {
            let Ok(Some(notice)) = errqueue::next(socket) else { return };
            self.apply(token, zerocopy, notice);
        }
    }

    fn apply(&mut self, token: Token, zerocopy: &mut ZeroCopyTracker, notice: ZeroCopyCompletion) {
        let ZeroCopy { released, sends, .. } = self;
        let first_copy = zerocopy.complete(notice, |lent| {
            *sends -= 1;
            released.push((token, lent));
        });
        if first_copy {
            log::debug!(
                "socket {}: kernel copies zero-copy sends, falling back to plain sends",
                token.index()
            );
        }
    }

    /// Closes sockets without sends in flight, and resets or leaks those past their timeout.
    fn poll_lingering(&mut self, now: Instant) {
        for mut closed in std::mem::take(&mut self.lingering) {
            self.complete(closed.token, &closed.socket, &mut closed.zerocopy);
            let age = now.saturating_duration_since(closed.since);
            if age >= LINGER_TIMEOUT && !std::mem::replace(&mut closed.reset, true) {
                // The reset ends transmission, so pending sends complete.
                let _ = rustix::net::connect_unspec(&closed.socket);
                self.complete(closed.token, &closed.socket, &mut closed.zerocopy);
            }
            match closed.zerocopy.has_zerocopy_in_flight() {
                true if age >= LEAK_TIMEOUT => self.sends -= leak(closed),
                true => self.lingering.push(closed),
                false => {}
            }
        }
    }
}

/// The kernel may still read this memory, so it is never freed.
fn leak(closed: Lingering) -> usize {
    let count = closed.zerocopy.forget();
    log::error!("kernel did not release the memory of {count} sends, leaking it");
    count
}

/// Interval between completion polls, because the kernel may not signal them.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Completions read per poll; each covers many sends.
const MAX_COMPLETIONS_PER_POLL: usize = 64;
/// Time after which a closed connection whose peer does not read is reset.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);
const LEAK_TIMEOUT: Duration = Duration::from_secs(35);
/// Length of each of the two drain phases on drop.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
const DRAIN_STEP: Duration = Duration::from_millis(1);
