//! One connection in use: a socket of the reactor and the protocol state of its queue.
//!
//! Invariant: after a [`DisconnectReason`], only [`Lane::abandon`] may be called.

use std::io::{self, IoSlice};
use std::time::Instant;

use isolane_connection::{ReceivePlan, TransmitPlan};
use isolane_proto::host::{Abandoned, Completed, Connection};
use isolane_reactor::{Reactor, Received, Token, clock};

use super::graceful_close;
use crate::connect::{BlockingConnection, describe};
use crate::difference::Difference;

/// Reason for the loss of a connection.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum DisconnectReason {
    #[error("the target closed the connection")]
    Closed,
    #[error("connection lost: {0}")]
    Socket(String),
    #[error("{0}")]
    Violation(String),
    #[error("namespace {nsid} is another volume: {difference}")]
    VolumeChanged { nsid: u32, difference: Difference },
    #[error("command timed out")]
    CommandTimeout,
    #[error("Keep Alive timed out")]
    KeepAliveTimeout,
}

/// One connection in use.
pub(crate) struct Lane {
    pub token: Token,
    pub conn: Connection,
    /// Whether the socket's send buffer is full.
    pub blocked: bool,
    /// When data was last received, on the [`clock`].
    pub received_at: u64,
}

impl Lane {
    /// Registers a connection with the reactor.
    pub(crate) fn adopt(connection: BlockingConnection, reactor: &mut Reactor) -> io::Result<Lane> {
        let token = reactor.add(connection.stream)?;
        Ok(Lane { token, conn: connection.queue, blocked: false, received_at: 0 })
    }

    /// Returns whether there is data to send that the socket accepts.
    #[inline]
    pub(crate) fn wants_transmit(&self) -> bool {
        !self.blocked && self.conn.wants_transmit()
    }

    /// Sends about `max_bytes` of the queued data, with one call if the socket accepts all of it.
    pub(crate) fn send(&mut self, reactor: &mut Reactor, max_bytes: usize) -> Result<(), DisconnectReason> {
        let mut remaining = max_bytes;
        while remaining > 0 && self.wants_transmit() {
            let mut plan = TransmitPlan::new();
            self.conn.fill_transmit_plan(&mut plan);
            let (slices, offered) = if plan.bytes() <= remaining {
                (&plan[..], plan.bytes())
            } else {
                truncate_plan(&plan, remaining)
            };
            let taken = reactor.send(self.token, slices).map_err(broken)?;
            drop(plan);
            self.conn.handle_transmitted(taken);
            self.blocked = taken < offered;
            remaining = remaining.saturating_sub(taken);
        }
        Ok(())
    }

    /// Receives a bounded amount, until commands complete or no data is left, and passes on the completions. The
    /// caller sends follow-up commands before it receives more, so that the target can work on them.
    pub(crate) fn receive(
        &mut self,
        reactor: &mut Reactor,
        overflow: &mut [u8],
        now: Instant,
        mut complete: impl FnMut(Completed, u64),
    ) -> Result<(), DisconnectReason> {
        for _ in 0..RECEIVES_PER_TURN {
            let mut plan = ReceivePlan::new();
            self.conn.fill_receive_plan(overflow, &mut plan);
            let capacity: usize = plan.iter().map(|slice| slice.len()).sum();
            let received = reactor.receive(self.token, &mut plan).map_err(broken)?;
            drop(plan);
            let count = match received {
                Received::Bytes(count) => count,
                Received::WouldBlock => return Ok(()),
                Received::Eof => return Err(DisconnectReason::Closed),
            };
            self.received_at = clock::now();
            self.conn.handle_received(count);
            let mut is_done = count < capacity;
            while let Some(entry) = self.conn.poll_completion(overflow, now) {
                complete(self.conn.finish(entry), self.received_at);
                is_done = true;
            }
            self.check_event()?;
            if is_done {
                break;
            }
        }
        Ok(())
    }

    /// Takes commands that had failed and complete only now that their data has been sent.
    pub(crate) fn take_deferred(
        &mut self,
        now: Instant,
        completed: &mut Vec<Completed>,
    ) -> Result<(), DisconnectReason> {
        if self.conn.has_deferred_completions() { self.take_events(now, completed) } else { Ok(()) }
    }

    /// Handles the connection's timeout if it has passed.
    pub(crate) fn handle_timeout(
        &mut self,
        now: Instant,
        completed: &mut Vec<Completed>,
    ) -> Result<(), DisconnectReason> {
        if self.conn.poll_timeout().is_none_or(|deadline| now < deadline) {
            return Ok(());
        }
        self.conn.handle_timeout(now);
        self.take_events(now, completed)
    }

    /// Takes completions for which nothing was received.
    #[cold]
    fn take_events(&mut self, now: Instant, completed: &mut Vec<Completed>) -> Result<(), DisconnectReason> {
        while let Some(entry) = self.conn.poll_completion(&[], now) {
            completed.push(self.conn.finish(entry));
        }
        self.check_event()
    }

    /// Returns an error if the connection can no longer be used.
    fn check_event(&mut self) -> Result<(), DisconnectReason> {
        match self.conn.take_event() {
            Some(event) => Err(DisconnectReason::Violation(describe(&event))),
            None => Ok(()),
        }
    }

    /// Closes the connection so that data in its send buffer does not arrive later, and returns every command without
    /// a completion.
    pub(crate) fn abandon(mut self, reactor: &mut Reactor) -> Vec<Abandoned> {
        let sent_all = self.send(reactor, usize::MAX).is_ok();
        match reactor.remove(self.token) {
            Some(socket) if sent_all && self.conn.is_finished_sending() => {
                graceful_close::close_gracefully(socket)
            }
            Some(socket) => graceful_close::reset(&socket),
            None => {}
        }
        self.conn.abandon_all()
    }

    /// Removes the connection from the reactor for a last exchange.
    pub(crate) fn into_parts(self, reactor: &mut Reactor) -> Option<(rustix::fd::OwnedFd, Connection)> {
        Some((reactor.remove(self.token)?, self.conn))
    }
}

/// Returns the slices of a plan up to the one that reaches `max_bytes`, and their size in bytes.
fn truncate_plan<'p, 'a>(plan: &'p [IoSlice<'a>], max_bytes: usize) -> (&'p [IoSlice<'a>], usize) {
    let (mut count, mut bytes) = (0, 0);
    while bytes < max_bytes && count < plan.len() {
        bytes += plan[count].len();
        count += 1;
    }
    (&plan[..count], bytes)
}

fn broken(error: io::Error) -> DisconnectReason {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => DisconnectReason::Closed,
        _ => DisconnectReason::Socket(error.to_string()),
    }
}

/// Maximum number of receives in one turn, so that no lane starves the others.
const RECEIVES_PER_TURN: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_ends_after_slice_that_reaches_it() {
        let bytes = [0; 100];
        let plan: Vec<IoSlice<'_>> = [24, 100, 24, 100].map(|len| IoSlice::new(&bytes[..len])).to_vec();
        let share = |max_bytes| {
            let (slices, bytes) = truncate_plan(&plan, max_bytes);
            (slices.len(), bytes)
        };
        assert_eq!((share(1), share(24), share(25)), ((1, 24), (1, 24), (2, 124)));
        assert_eq!((share(248), share(usize::MAX)), ((4, 248), (4, 248)));
    }
}
