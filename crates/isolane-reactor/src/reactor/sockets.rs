//! The sockets of a reactor: coming, going, and one system call for each receive and send.

use super::Reactor;
use crate::key::{Key, Kind};
use crate::lanes::Lane;
use crate::ledger::Ledger;
use crate::{Received, Token, socket, vectors};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io::{self, IoSlice, IoSliceMut};

/// A socket between two reactors. What is known about sends without a copy goes with it: the kernel numbers
/// them through.
#[derive(Debug)]
pub struct Detached {
    socket: OwnedFd,
    ledger: Option<Box<Ledger>>,
}

impl Reactor {
    /// Takes in a socket that is connected or connecting, and makes it non-blocking.
    ///
    /// # Errors
    /// The kernel's.
    pub fn add(&mut self, socket: impl Into<OwnedFd>) -> io::Result<Token> {
        let socket = socket.into();
        socket::set_nonblocking(&socket)?;
        let lane = self.lanes.insert(socket);
        let token = lane.token;
        if let Err(error) = self.poller.register(lane.socket.as_fd(), lane.key(Kind::Read)) {
            self.lanes.remove(token);
            return Err(error);
        }
        Ok(token)
    }

    /// Gives a socket back; drop it to close the connection. `None` if the token names nothing, or memory was
    /// lent for it that is still out: such a one can only be closed.
    pub fn remove(&mut self, token: Token) -> Option<OwnedFd> {
        self.detach(token).map(|detached| detached.socket)
    }

    /// As [`Reactor::remove`], for a socket that goes to another reactor.
    pub fn detach(&mut self, token: Token) -> Option<Detached> {
        if self.has_lent(token) {
            return None;
        }
        let lane = self.lanes.remove(token)?;
        self.poller.unregister(lane.socket.as_fd(), lane.armed());
        Some(Detached { socket: lane.socket, ledger: lane.ledger })
    }

    /// Takes in a socket that comes from another reactor.
    ///
    /// # Errors
    /// The kernel's; then the socket is closed.
    pub fn attach(&mut self, detached: Detached) -> io::Result<Token> {
        let token = self.add(detached.socket)?;
        if let Some(lane) = self.lanes.get_mut(token) {
            lane.ledger = detached.ledger;
        }
        Ok(token)
    }

    /// A socket, to set its options.
    pub fn socket(&self, token: Token) -> Option<BorrowedFd<'_>> {
        self.lanes.get(token).map(|lane| lane.socket.as_fd())
    }

    /// Receives into `plan`, in its order, what there is now. After the end or an error the socket is
    /// reported as readable no more.
    ///
    /// # Errors
    /// The kernel's (the connection is lost), or `NotFound` if the token names nothing. Never `WouldBlock`.
    pub fn receive(&mut self, token: Token, plan: &mut [IoSliceMut<'_>]) -> io::Result<Received> {
        let counts_misses = self.was_busy || self.lanes.is_crowded();
        let mut tries = self.tries_beyond_first();
        let lane = self.lanes.get_mut(token).ok_or(io::ErrorKind::NotFound)?;
        let room = vectors::bytes_mut(plan);
        if room == 0 {
            return Ok(Received::Nothing);
        }
        if lane.wants_write {
            tries = 0;
        }
        loop {
            match socket::receive(&lane.socket, plan) {
                Ok(0) => {
                    lane.is_paused = true;
                    return Ok(Received::End);
                }
                Ok(count) => {
                    lane.on_received(count < room);
                    self.is_busy = true;
                    return Ok(Received::Bytes(count));
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock if tries > 0 && !self.sleeper.is_notified() => tries -= 1,
                    io::ErrorKind::WouldBlock => {
                        lane.on_missed(counts_misses);
                        return Ok(Received::Nothing);
                    }
                    io::ErrorKind::Interrupted => {}
                    _ => {
                        lane.is_paused = true;
                        return Err(error);
                    }
                },
            }
        }
    }

    /// How often a vain receive is repeated at once: not at all, unless this reactor spins in vain and there
    /// is nobody else to look after. A turn that does nothing takes about as long as the kernel does, and
    /// bytes that come meanwhile wait for it.
    fn tries_beyond_first(&self) -> u32 {
        let is_busy = self.was_busy || self.is_busy || self.files_in_flight > 0;
        let is_waiting = !is_busy && self.lanes.is_one_active() && self.spin.is_spinning(self.now);
        if is_waiting { TRIES_ALONE } else { 0 }
    }

    /// Sends once from `plan`, in its order, and returns how many bytes the kernel took. If that is less than
    /// offered (0 if the socket is full), one [`Event::Writable`] follows when it takes more.
    ///
    /// # Errors
    /// The kernel's (the connection is lost), or `NotFound` if the token names nothing. Never `WouldBlock`.
    pub fn send(&mut self, token: Token, plan: &[IoSlice<'_>]) -> io::Result<usize> {
        let lane = self.lanes.get_mut(token).ok_or(io::ErrorKind::NotFound)?;
        let offered = vectors::bytes(plan);
        let sent = loop {
            match socket::send(&lane.socket, plan) {
                Ok(count) => break count,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => break 0,
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        };
        self.on_sent(token, sent, sent < offered)?;
        Ok(sent)
    }

    pub(super) fn on_sent(&mut self, token: Token, sent: usize, is_short: bool) -> io::Result<()> {
        self.is_busy |= sent > 0;
        match is_short {
            true => self.want_write(token)?,
            // What was sent is mostly answered soon.
            false => self.lanes.activate(token),
        }
        Ok(())
    }

    /// Tells the peer that no more is sent.
    ///
    /// # Errors
    /// The kernel's, or `NotFound` if the token names nothing.
    pub fn shutdown_write(&mut self, token: Token) -> io::Result<()> {
        let lane = self.lanes.get(token).ok_or(io::ErrorKind::NotFound)?;
        Ok(rustix::net::shutdown(&lane.socket, rustix::net::Shutdown::Write)?)
    }

    /// Reports one [`Event::Writable`] when the socket takes bytes: for a socket that still connects. A send
    /// that takes less than offered implies it.
    ///
    /// # Errors
    /// The kernel's, or `NotFound` if the token names nothing.
    pub fn want_write(&mut self, token: Token) -> io::Result<()> {
        let lane = self.lanes.get_mut(token).ok_or(io::ErrorKind::NotFound)?;
        lane.wants_write = true;
        if !std::mem::replace(&mut lane.is_write_armed, true) {
            self.poller.arm_write(lane.socket.as_fd(), lane.key(Kind::Write))?;
        }
        Ok(())
    }

    /// Reports no more [`Event::Readable`] of this socket until [`Reactor::resume`]: its driver has no room.
    pub fn pause(&mut self, token: Token) {
        if let Some(lane) = self.lanes.get_mut(token) {
            lane.is_paused = true;
        }
    }

    /// Ends a pause.
    pub fn resume(&mut self, token: Token) {
        if let Some(lane) = self.lanes.get_mut(token) {
            lane.is_paused = false;
            lane.is_ready = true;
            self.lanes.activate(token);
        }
    }
}

impl Lane {
    /// The keys under which the kernel holds requests for this lane.
    pub(super) fn armed(&self) -> impl Iterator<Item = Key> {
        let read = self.is_read_armed.then(|| self.key(Kind::Read));
        let write = self.is_write_armed.then(|| self.key(Kind::Write));
        read.into_iter().chain(write)
    }
}

/// Few enough that what else may happen, a timer or a new connection, waits for a microsecond or so.
const TRIES_ALONE: u32 = 3;
