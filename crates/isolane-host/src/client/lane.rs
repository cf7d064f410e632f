//! One connection in use: a socket of the reactor and the queue on it.
//!
//! It moves bytes and says what came of them; what a command was for is the client's business. Invariant:
//! after a [`Loss`] the lane is only good for [`Lane::abandon`].

use std::io::{self, IoSlice};
use std::time::Instant;

use isolane_proto::host::{Abandoned, Completed, Event, Queue, Refusal, Vacancy};
use isolane_proto::queue::{ReceivePlan, TransmitPlan};
use isolane_reactor::{Reactor, Received, Token};

use super::farewell;
use crate::difference::Difference;
use crate::setup::Connection;

/// Why a connection is no more.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Loss {
    #[error("the target closed the connection")]
    Closed,
    #[error("the connection broke: {0}")]
    Socket(String),
    #[error("{0}")]
    Misbehaved(String),
    #[error("namespace {nsid} is another volume: {difference}")]
    VolumeChanged { nsid: u32, difference: Difference },
    #[error("a command was not answered in time")]
    CommandTimeout,
    #[error("Keep Alive was not answered in time")]
    KeepAliveTimeout,
}

/// Who gets the commands that end on a lane.
pub(crate) trait Recipient {
    fn take(&mut self, completed: Completed);
}

impl Recipient for Vec<Completed> {
    fn take(&mut self, completed: Completed) {
        self.push(completed);
    }
}

/// One connection in use.
pub(crate) struct Lane {
    token: Token,
    queue: Queue,
    is_stuck: bool,
}

impl Lane {
    /// Takes a connection into the reactor.
    pub(crate) fn adopt(connection: Connection, reactor: &mut Reactor) -> io::Result<Lane> {
        let token = reactor.add(connection.stream)?;
        Ok(Lane { token, queue: connection.queue, is_stuck: false })
    }

    pub(crate) fn token(&self) -> Token {
        self.token
    }

    /// Commands in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    /// Commands that fit now.
    pub(crate) fn room(&self) -> usize {
        self.queue.room()
    }

    /// Room for a command, which is sent by the next [`Lane::transmit`].
    #[inline]
    pub(crate) fn vacancy(&mut self) -> Result<Vacancy<'_>, Refusal> {
        self.queue.vacancy()
    }

    /// Whether there is something to send that the socket takes.
    #[inline]
    pub(crate) fn wants_transmit(&self) -> bool {
        !self.is_stuck && self.queue.wants_transmit()
    }

    /// Sends what is queued, about `bytes_max` at most: everything in one call where the socket takes it.
    /// Hands out commands that had failed already and end only now that their data has been sent.
    pub(crate) fn transmit(
        &mut self,
        reactor: &mut Reactor,
        bytes_max: usize,
        now: Instant,
        ended: &mut impl Recipient,
    ) -> Result<(), Loss> {
        if !self.wants_transmit() {
            return Ok(());
        }
        self.send(reactor, bytes_max)?;
        match self.queue.has_lingering() {
            true => self.take_events(&[], now, ended).map(drop),
            false => Ok(()),
        }
    }

    fn send(&mut self, reactor: &mut Reactor, bytes_max: usize) -> Result<(), Loss> {
        let mut left = bytes_max;
        while left > 0 && self.wants_transmit() {
            let mut plan = TransmitPlan::new();
            self.queue.fill_transmit_plan(&mut plan);
            let (slices, offered) = match plan.bytes() <= left {
                true => (&plan[..], plan.bytes()),
                false => shortened(&plan, left),
            };
            let taken = reactor.send(self.token, slices).map_err(broken)?;
            drop(plan);
            self.queue.handle_transmitted(taken);
            self.is_stuck = taken < offered;
            left = left.saturating_sub(taken);
        }
        Ok(())
    }

    /// The socket takes bytes again.
    pub(crate) fn on_writable(&mut self) {
        self.is_stuck = false;
    }

    /// Receives until commands have ended or nothing more is there, a bounded amount, and hands out those
    /// that ended. What follows on them is sent before more is received: the target works on it meanwhile.
    pub(crate) fn receive(
        &mut self,
        reactor: &mut Reactor,
        overflow: &mut [u8],
        now: Instant,
        ended: &mut impl Recipient,
    ) -> Result<(), Loss> {
        for _ in 0..RECEIVES_PER_TURN {
            let mut plan = ReceivePlan::new();
            self.queue.fill_receive_plan(overflow, &mut plan);
            let room: usize = plan.iter().map(|slice| slice.len()).sum();
            let received = reactor.receive(self.token, &mut plan).map_err(broken)?;
            drop(plan);
            let count = match received {
                Received::Bytes(count) => count,
                Received::Nothing => return Ok(()),
                Received::End => return Err(Loss::Closed),
            };
            self.queue.handle_received(count);
            let count_ended = self.take_events(overflow, now, ended)?;
            if count < room || count_ended > 0 {
                break;
            }
        }
        Ok(())
    }

    /// Says how many commands ended.
    fn take_events(
        &mut self,
        overflow: &[u8],
        now: Instant,
        ended: &mut impl Recipient,
    ) -> Result<usize, Loss> {
        let mut count = 0;
        loop {
            while let Some(completed) = self.queue.poll_completed(overflow) {
                ended.take(completed);
                count += 1;
            }
            match self.queue.poll_event(overflow, now) {
                Some(Event::Completed(completed)) => take_unusual(ended, completed),
                Some(event) => return Err(Loss::Misbehaved(describe(&event))),
                None => return Ok(count),
            }
            count += 1;
        }
    }

    /// Tells the queue the time if it waits for it.
    pub(crate) fn handle_timeout(&mut self, now: Instant, ended: &mut impl Recipient) -> Result<(), Loss> {
        if self.queue.poll_timeout().is_none_or(|deadline| now < deadline) {
            return Ok(());
        }
        self.queue.handle_timeout(now);
        self.take_events(&[], now, ended).map(drop)
    }

    /// Ends the connection so that what its send buffer holds does not arrive later, and hands back every
    /// command that was not answered.
    pub(crate) fn abandon(mut self, reactor: &mut Reactor) -> Vec<Abandoned> {
        let said_all = self.send(reactor, usize::MAX).is_ok();
        match reactor.remove(self.token) {
            Some(socket) if said_all && self.queue.is_finished_sending() => farewell::part_in_peace(socket),
            Some(socket) => farewell::reset(&socket),
            None => {}
        }
        self.queue.abandon_all()
    }

    /// Takes the connection out of the reactor for a last exchange.
    pub(crate) fn into_parts(self, reactor: &mut Reactor) -> Option<(rustix::fd::OwnedFd, Queue)> {
        Some((reactor.remove(self.token)?, self.queue))
    }
}

/// Not inlined: the usual way of a command's end stays short.
#[inline(never)]
fn take_unusual(ended: &mut impl Recipient, completed: Completed) {
    ended.take(completed);
}

/// An event that ends a connection, in words.
pub(crate) fn describe(event: &Event) -> String {
    match event {
        Event::Fatal(error) => error.to_string(),
        Event::Terminated(request) => {
            format!("it ended the connection with {:?} at {:#x}", request.fes, request.fei)
        }
        Event::Connected(_) => "it repeated the handshake".to_owned(),
        Event::Completed(_) => "it answered a command that was not expected now".to_owned(),
    }
}

/// The slices of a plan up to the one that reaches `bytes_max`, and their bytes.
fn shortened<'p, 'a>(plan: &'p [IoSlice<'a>], bytes_max: usize) -> (&'p [IoSlice<'a>], usize) {
    let (mut count, mut bytes) = (0, 0);
    while bytes < bytes_max && count < plan.len() {
        bytes += plan[count].len();
        count += 1;
    }
    (&plan[..count], bytes)
}

fn broken(error: io::Error) -> Loss {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Loss::Closed,
        _ => Loss::Socket(error.to_string()),
    }
}

/// Receives in one turn at most, so that no lane starves the others.
const RECEIVES_PER_TURN: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_ends_behind_the_slice_that_reaches_it() {
        let bytes = [0; 100];
        let plan: Vec<IoSlice<'_>> = [24, 100, 24, 100].map(|len| IoSlice::new(&bytes[..len])).to_vec();
        let share = |bytes_max| {
            let (slices, bytes) = shortened(&plan, bytes_max);
            (slices.len(), bytes)
        };
        assert_eq!((share(1), share(24), share(25)), ((1, 24), (1, 24), (2, 124)));
        assert_eq!((share(248), share(usize::MAX)), ((4, 248), (4, 248)));
    }
}
