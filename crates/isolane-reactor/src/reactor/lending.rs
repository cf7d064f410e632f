//! Sends that copy nothing (S7, `MSG_ZEROCOPY`): the kernel reads from our memory until it says that it is
//! done.
//!
//! The reactor keeps what was lent, also when its socket is closed and when the reactor is dropped: a socket
//! with something out lingers until the kernel has given it back. If the peer takes nothing for too long the
//! connection is reset, after which nothing is sent any more; and memory that does not come back even then is
//! never used again.

use super::Reactor;
use crate::lanes::Lane;
use crate::ledger::{Ledger, Notice};
use crate::{Token, kernel, notices, socket, vectors};
use isolane_memory::Lent;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::Shutdown;
use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

/// What the kernel took of one send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Bytes, from the start of the plan.
    pub bytes: usize,
    /// The kernel still reads from the plan's memory: [`Reactor::lend`] must follow.
    pub is_lent: bool,
}

/// What was lent, and how to get it back.
#[derive(Debug, Default)]
pub(super) struct Lending {
    /// What came back.
    returned: Vec<(Token, Lent)>,
    /// Closed sockets that still have something out.
    lingering: Vec<Lingering>,
    /// Sends that are out, of all sockets.
    sends: usize,
    next_look: Option<Instant>,
}

#[derive(Debug)]
struct Lingering {
    token: Token,
    socket: OwnedFd,
    ledger: Ledger,
    since: Instant,
    is_reset: bool,
}

impl Reactor {
    /// Makes [`Reactor::send_lent`] possible on this socket.
    ///
    /// # Errors
    /// The kernel's, or `NotFound` if the token names nothing.
    pub fn enable_zero_copy(&mut self, token: Token) -> io::Result<()> {
        let lane = self.lanes.get_mut(token).ok_or(io::ErrorKind::NotFound)?;
        kernel::set_zero_copy(&lane.socket)?;
        lane.ledger = Some(Box::default());
        Ok(())
    }

    /// Like [`Reactor::send`], without a copy if that is enabled, possible and useful. If the answer says
    /// that memory was lent, tell with [`Reactor::lend`] at once what the bytes lie in.
    ///
    /// # Errors
    /// As [`Reactor::send`].
    pub fn send_lent(&mut self, token: Token, plan: &[IoSlice<'_>]) -> io::Result<Sent> {
        self.take_back(token);
        let lane = self.lanes.get_mut(token).ok_or(io::ErrorKind::NotFound)?;
        let Lane { socket, ledger: Some(ledger), .. } = lane else { return self.send_copied(token, plan) };
        if !ledger.is_useful() {
            return self.send_copied(token, plan);
        }
        let offered = vectors::bytes(plan);
        match socket::send_zero_copy(&*socket, plan) {
            Ok(bytes) => {
                ledger.on_sent();
                self.lending.sends += 1;
                // The kernel has the bytes, so they are lent in any case; what is wrong with the socket the
                // next send meets.
                let _ = self.on_sent(token, bytes, bytes < offered);
                Ok(Sent { bytes, is_lent: true })
            }
            Err(error) => {
                if error.raw_os_error() == Some(libc::ENOBUFS) {
                    ledger.on_short();
                }
                // Whatever else it is, the usual way meets it again and knows what to do.
                self.send_copied(token, plan)
            }
        }
    }

    fn send_copied(&mut self, token: Token, plan: &[IoSlice<'_>]) -> io::Result<Sent> {
        Ok(Sent { bytes: self.send(token, plan)?, is_lent: false })
    }

    /// What the last send of this socket was made of. It comes back by [`Reactor::poll_returned`].
    pub fn lend(&mut self, token: Token, lent: Lent) {
        if let Some(ledger) = self.lanes.get_mut(token).and_then(|lane| lane.ledger.as_mut()) {
            ledger.lend(lent);
        }
    }

    /// Something that the kernel has given back, and the socket that it was lent for, which may be closed.
    pub fn poll_returned(&mut self) -> Option<(Token, Lent)> {
        self.lending.returned.pop()
    }

    /// Whether something of this socket is out.
    pub fn has_lent(&self, token: Token) -> bool {
        self.lanes.get(token).is_some_and(|lane| lane.ledger.as_ref().is_some_and(|ledger| ledger.has_lent()))
    }

    /// Closes a socket: at once, or when the kernel has given back what was lent to it.
    pub fn close(&mut self, token: Token) {
        self.take_back(token);
        let Some(lane) = self.lanes.remove(token) else { return };
        self.poller.unregister(lane.socket.as_fd(), lane.armed());
        let Lane { socket, ledger, .. } = lane;
        let Some(ledger) = ledger.filter(|ledger| ledger.has_lent()) else { return };
        // What the kernel has is still sent, as it is after a plain close. If this fails there is no
        // connection any more.
        let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        let lingering = Lingering { token, socket, ledger: *ledger, since: self.now, is_reset: false };
        self.lending.lingering.push(lingering);
    }

    /// Closed sockets that still have something out.
    pub fn lingering_count(&self) -> usize {
        self.lending.lingering.len()
    }

    /// Asks for what a socket has lent.
    pub(super) fn take_back(&mut self, token: Token) {
        let Some(lane) = self.lanes.get_mut(token) else { return };
        if let Some(ledger) = lane.ledger.as_mut().filter(|ledger| ledger.has_lent()) {
            self.lending.settle(token, &lane.socket, ledger);
        }
    }

    /// Asks for everything that is out, now and then.
    pub(super) fn take_back_due(&mut self) {
        if self.lending.sends == 0 || self.lending.next_look.is_some_and(|next| self.now < next) {
            return;
        }
        self.lending.next_look = Some(self.now + LOOK);
        for token in self.lanes.lenders() {
            self.take_back(token);
        }
        self.lending.see_to_lingering(self.now);
    }

    /// How long to sleep at most, because the kernel may say nothing when it gives back.
    pub(super) fn lending_timeout(&self) -> Option<Instant> {
        (self.lending.sends > 0).then(|| self.now + LOOK)
    }

    /// The end of the reactor: waits for what is out, first patiently, then by resetting the connections.
    pub(super) fn end_lending(&mut self) {
        for token in self.lanes.lenders() {
            self.close(token);
        }
        for is_patient in [true, false] {
            let end = Instant::now() + END_PATIENCE;
            while self.lending.sends > 0 && Instant::now() < end {
                let age = if is_patient { Duration::ZERO } else { LINGER };
                self.lending.see_to_lingering(self.now + age);
                std::thread::sleep(END_STEP);
            }
        }
        for closed in self.lending.lingering.drain(..) {
            give_up(closed);
        }
    }
}

impl Lending {
    /// Reads what the kernel has to say about a socket.
    fn settle(&mut self, token: Token, socket: &OwnedFd, ledger: &mut Ledger) {
        for _ in 0..NOTICES_MAX {
            let Ok(Some(notice)) = notices::next(socket) else { return };
            self.apply(token, ledger, notice);
        }
    }

    fn apply(&mut self, token: Token, ledger: &mut Ledger, notice: Notice) {
        let Lending { returned, sends, .. } = self;
        let is_news = ledger.settle(notice, |lent| {
            *sends -= 1;
            returned.push((token, lent));
        });
        if is_news {
            log::debug!(
                "the kernel copies what is sent on socket {}: it is not asked to do without any more",
                token.index()
            );
        }
    }

    /// Closes what has nothing out any more, and loses patience with the rest.
    fn see_to_lingering(&mut self, now: Instant) {
        for mut closed in std::mem::take(&mut self.lingering) {
            self.settle(closed.token, &closed.socket, &mut closed.ledger);
            let age = now.saturating_duration_since(closed.since);
            if age >= LINGER && !std::mem::replace(&mut closed.is_reset, true) {
                // Nothing is sent any more, and what waited to be sent comes back.
                let _ = rustix::net::connect_unspec(&closed.socket);
                self.settle(closed.token, &closed.socket, &mut closed.ledger);
            }
            match closed.ledger.has_lent() {
                true if age >= GIVE_UP => self.sends -= give_up(closed),
                true => self.lingering.push(closed),
                false => {}
            }
        }
    }
}

/// The kernel keeps it: so must we, for ever.
fn give_up(closed: Lingering) -> usize {
    let count = closed.ledger.forget();
    log::error!("the kernel did not give back the memory of {count} sends; it is never used again");
    count
}

/// How often it is asked what came back, if the kernel does not say it by itself.
const LOOK: Duration = Duration::from_millis(20);
/// Notices read at a time; each gives back many sends.
const NOTICES_MAX: usize = 64;
/// A closed connection whose peer takes nothing for so long is reset.
const LINGER: Duration = Duration::from_secs(5);
const GIVE_UP: Duration = Duration::from_secs(35);
/// How long the end of a reactor waits, twice.
const END_PATIENCE: Duration = Duration::from_millis(500);
const END_STEP: Duration = Duration::from_millis(1);
