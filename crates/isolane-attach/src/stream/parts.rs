//! A connection that was taken back, and what is left to do for it.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendFlags, send, sockopt};

use super::waiting::{moment, wait_for_room};

/// A connection that no engine has any more, and what its application has asked for that is not done yet.
#[derive(Debug)]
pub struct Parts {
    /// The connection.
    pub socket: TcpStream,
    /// What was written: to be sent before anything else.
    pub unsent: Vec<u8>,
    /// Nothing is to be sent behind that: then shut it down for writing.
    pub is_shut: bool,
}

/// Why a connection is not what it would be without an engine. If it was taken back it is in here, with what is left
/// to do; dropped with bytes that are not sent, it is reset: the peer is not to take what it has for all.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unfinished {
    error: io::Error,
    parts: Option<Parts>,
}

impl Parts {
    /// Does that, for as long as `timeout` allows between two bits of progress; for ever if `None`. Whether the socket
    /// blocks makes no difference.
    ///
    /// # Errors
    /// `WouldBlock` if time has run out; the system's. [`Unfinished::into_parts`] has what is left.
    pub fn finish(mut self, timeout: Option<Duration>) -> Result<TcpStream, Unfinished> {
        match self.send_rest(timeout) {
            Ok(()) => Ok(self.socket),
            Err(error) => Err(Unfinished::new(error, Some(self))),
        }
    }

    fn send_rest(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let mut sent = 0;
        let mut outcome = Ok(());
        while outcome.is_ok() && sent < self.unsent.len() {
            match send(&self.socket, &self.unsent[sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::AGAIN) => outcome = wait_for_room(None, self.socket.as_fd(), moment(timeout)),
                Err(Errno::INTR) => {}
                Err(error) => outcome = Err(error.into()),
            }
        }
        self.unsent.drain(..sent);
        outcome?;
        if self.is_shut { self.socket.shutdown(Shutdown::Write) } else { Ok(()) }
    }
}

impl Unfinished {
    pub(super) fn new(error: io::Error, parts: Option<Parts>) -> Unfinished {
        Unfinished { error, parts }
    }

    /// Why.
    pub fn error(&self) -> &io::Error {
        &self.error
    }

    /// The connection, and what is left to do: to be gone on with. `None` if the engine has not given it back.
    pub fn into_parts(mut self) -> Option<Parts> {
        self.parts.take()
    }
}

impl From<Unfinished> for io::Error {
    fn from(mut unfinished: Unfinished) -> io::Error {
        std::mem::replace(&mut unfinished.error, io::ErrorKind::Other.into())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(parts) = self.parts.as_ref().filter(|parts| !parts.unsent.is_empty()) {
            // It fails only if there is no connection any more.
            let _ = sockopt::set_socket_linger(&parts.socket, Some(Duration::ZERO));
        }
    }
}
