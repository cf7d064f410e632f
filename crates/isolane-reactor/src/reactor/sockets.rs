//! Adding, removing, reading, and writing sockets.

use super::Reactor;
use crate::key::{Key, Kind};
use crate::socket_table::SocketEntry;
use crate::zerocopy_tracker::ZeroCopyTracker;
use crate::{Received, Token};
use isolane_tcp::{iovec, socket};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io::{self, IoSlice, IoSliceMut};

/// A socket moving between two reactors, with its zero-copy state: the kernel numbers zero-copy
/// sends per socket.
#[derive(Debug)]
pub struct Detached {
    socket: OwnedFd,
    zerocopy: Option<Box<ZeroCopyTracker>>,
}

impl Reactor {
    /// Adds a connected or connecting socket and makes it non-blocking.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn add(&mut self, socket: impl Into<OwnedFd>) -> io::Result<Token> {
        let socket = socket.into();
        rustix::io::ioctl_fionbio(&socket, true)?;
        let entry = self.sockets.insert(socket);
        let token = entry.token;
        if let Err(error) = self.backend.register(entry.socket.as_fd(), entry.key(Kind::Read)) {
            self.sockets.remove(token);
            return Err(error);
        }
        Ok(token)
    }

    /// Watches a descriptor that the driver reads itself: after each [`Readable`](crate::Event::Readable), it calls
    /// [`Reactor::on_read`].
    ///
    /// # Errors
    /// The error of the system call.
    pub fn watch(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<Token> {
        self.add(descriptor.try_clone_to_owned()?)
    }

    /// Records a read of a watched descriptor, and whether it found anything.
    pub fn on_read(&mut self, token: Token, found: bool) {
        let counts = self.was_busy || self.sockets.over_hot_limit();
        self.busy |= found;
        match self.sockets.get_mut(token) {
            Some(entry) if found => entry.on_received(true),
            Some(entry) => entry.on_empty_read(counts),
            None => {}
        }
    }

    /// Removes a socket; drop it to close the connection. Returns `None` if the token is stale or
    /// zero-copy sends are in flight; use [`Reactor::close`] then.
    pub fn remove(&mut self, token: Token) -> Option<OwnedFd> {
        self.detach(token).map(|detached| detached.socket)
    }

    /// Removes a socket, as [`Reactor::remove`], for another reactor.
    pub fn detach(&mut self, token: Token) -> Option<Detached> {
        if self.has_zerocopy_in_flight(token) {
            return None;
        }
        let entry = self.sockets.remove(token)?;
        self.backend.unregister(entry.socket.as_fd(), entry.armed());
        Some(Detached { socket: entry.socket, zerocopy: entry.zerocopy })
    }

    /// Adds a socket from another reactor.
    ///
    /// # Errors
    /// The error of the system call; the socket is closed.
    pub fn attach(&mut self, detached: Detached) -> io::Result<Token> {
        let token = self.add(detached.socket)?;
        if let Some(entry) = self.sockets.get_mut(token) {
            entry.zerocopy = detached.zerocopy;
        }
        Ok(token)
    }

    /// Returns a socket, to set its options.
    pub fn socket(&self, token: Token) -> Option<BorrowedFd<'_>> {
        self.sockets.get(token).map(|entry| entry.socket.as_fd())
    }

    /// Receives available bytes into `plan`, in order. After the end of the stream or an error the
    /// socket is no longer reported as readable.
    ///
    /// # Errors
    /// The socket's error (the connection is lost), or `NotFound` if the token is stale. Never `WouldBlock`.
    pub fn receive(&mut self, token: Token, plan: &mut [IoSliceMut<'_>]) -> io::Result<Received> {
        let count_empty_reads = self.was_busy || self.sockets.over_hot_limit();
        let mut attempts = self.extra_read_attempts();
        let entry = self.sockets.get_mut(token).ok_or(io::ErrorKind::NotFound)?;
        let capacity = iovec::bytes_mut(plan);
        if capacity == 0 {
            return Ok(Received::WouldBlock);
        }
        if entry.wants_write {
            attempts = 0;
        }
        loop {
            match socket::receive(&entry.socket, plan) {
                Ok(0) => {
                    entry.paused = true;
                    return Ok(Received::Eof);
                }
                Ok(count) => {
                    entry.on_received(count < capacity);
                    self.busy = true;
                    return Ok(Received::Bytes(count));
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock if attempts > 0 && !self.sleeper.is_notified() => attempts -= 1,
                    io::ErrorKind::WouldBlock => {
                        entry.on_empty_read(count_empty_reads);
                        return Ok(Received::WouldBlock);
                    }
                    io::ErrorKind::Interrupted => {}
                    _ => {
                        entry.paused = true;
                        return Err(error);
                    }
                },
            }
        }
    }

    /// Returns how often to repeat an empty read immediately: not at all, unless this reactor spins
    /// with nothing else to poll. An idle turn takes about as long as a system call, and bytes that
    /// arrive during the turn would wait for it.
    fn extra_read_attempts(&self) -> u32 {
        let is_busy = self.was_busy || self.busy || self.files_in_flight > 0;
        let waiting = !is_busy && self.sockets.is_one_active() && self.spin.is_spinning(self.now);
        if waiting { ATTEMPTS_WHEN_IDLE } else { 0 }
    }

    /// Sends once from `plan`, in order, and returns the number of bytes sent. After a short send
    /// (0 if the socket is full), one [`Writable`](crate::Event::Writable) follows when the socket accepts more.
    ///
    /// # Errors
    /// The socket's error (the connection is lost), or `NotFound` if the token is stale. Never `WouldBlock`.
    pub fn send(&mut self, token: Token, plan: &[IoSlice<'_>]) -> io::Result<usize> {
        let entry = self.sockets.get_mut(token).ok_or(io::ErrorKind::NotFound)?;
        let offered = iovec::bytes(plan);
        let sent = loop {
            match socket::send(&entry.socket, plan) {
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
        self.busy |= sent > 0;
        if is_short {
            self.want_write(token)?
        } else {
            // A response usually follows soon.
            self.sockets.activate(token)
        }
        Ok(())
    }

    /// Shuts down the sending direction.
    ///
    /// # Errors
    /// The error of the system call, or `NotFound` if the token is stale.
    pub fn shutdown_write(&mut self, token: Token) -> io::Result<()> {
        let entry = self.sockets.get(token).ok_or(io::ErrorKind::NotFound)?;
        Ok(rustix::net::shutdown(&entry.socket, rustix::net::Shutdown::Write)?)
    }

    /// Reports one [`Writable`](crate::Event::Writable) when the socket becomes writable.
    fn want_write(&mut self, token: Token) -> io::Result<()> {
        let entry = self.sockets.get_mut(token).ok_or(io::ErrorKind::NotFound)?;
        entry.wants_write = true;
        if !std::mem::replace(&mut entry.write_armed, true) {
            self.backend.arm_write(entry.socket.as_fd(), entry.key(Kind::Write))?;
        }
        Ok(())
    }

    /// Suppresses [`Readable`](crate::Event::Readable) for this socket until [`Reactor::resume`].
    pub fn pause(&mut self, token: Token) {
        if let Some(entry) = self.sockets.get_mut(token) {
            entry.paused = true;
        }
    }

    /// Resumes a paused socket.
    pub fn resume(&mut self, token: Token) {
        if let Some(entry) = self.sockets.get_mut(token) {
            entry.paused = false;
            entry.ready = true;
            self.sockets.activate(token);
        }
    }
}

impl SocketEntry {
    /// Returns the keys of the socket's armed requests.
    pub(super) fn armed(&self) -> impl Iterator<Item = Key> {
        let read = self.read_armed.then(|| self.key(Kind::Read));
        let write = self.write_armed.then(|| self.key(Kind::Write));
        read.into_iter().chain(write)
    }
}

/// Few enough that other events wait for about a microsecond only.
const ATTEMPTS_WHEN_IDLE: u32 = 3;
