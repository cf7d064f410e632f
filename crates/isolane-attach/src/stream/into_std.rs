//! A connection taken back from the engine, and the remaining work on it.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SendFlags, send, sockopt};

use super::wait::{deadline, wait_for_socket};

/// A connection released by the engine, and the operations that it has not completed.
#[derive(Debug)]
pub struct Parts {
    /// The connection.
    pub socket: TcpStream,
    /// Written data, to be sent before anything else.
    pub unsent: Vec<u8>,
    /// Shut the connection down for writing after sending it.
    pub shut_down: bool,
}

/// Failure of [`Stream::into_std`](super::Stream::into_std). Holds the connection if the engine released it. If dropped
/// with unsent data, the connection is reset, so that the peer cannot mistake it for complete.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct IntoStdError {
    error: io::Error,
    parts: Option<Parts>,
}

impl Parts {
    /// Completes the operations. `timeout` limits the time without progress; `None` waits indefinitely. `O_NONBLOCK` of
    /// the socket has no effect.
    ///
    /// # Errors
    /// `WouldBlock` on timeout; the system's. [`IntoStdError::into_parts`] returns the remaining operations.
    pub fn finish(mut self, timeout: Option<Duration>) -> Result<TcpStream, IntoStdError> {
        match self.send_unsent(timeout) {
            Ok(()) => Ok(self.socket),
            Err(error) => Err(IntoStdError::new(error, Some(self))),
        }
    }

    fn send_unsent(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let mut sent = 0;
        let mut result = Ok(());
        while result.is_ok() && sent < self.unsent.len() {
            match send(&self.socket, &self.unsent[sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::AGAIN) => {
                    result = wait_for_socket(None, self.socket.as_fd(), PollFlags::OUT, deadline(timeout))
                }
                Err(Errno::INTR) => {}
                Err(error) => result = Err(error.into()),
            }
        }
        self.unsent.drain(..sent);
        result?;
        if self.shut_down { self.socket.shutdown(Shutdown::Write) } else { Ok(()) }
    }
}

impl IntoStdError {
    pub(super) fn new(error: io::Error, parts: Option<Parts>) -> IntoStdError {
        IntoStdError { error, parts }
    }

    /// Returns the error.
    pub fn error(&self) -> &io::Error {
        &self.error
    }

    /// Returns the connection and the remaining operations, or `None` if the engine has not released it.
    pub fn into_parts(mut self) -> Option<Parts> {
        self.parts.take()
    }
}

impl From<IntoStdError> for io::Error {
    fn from(mut error: IntoStdError) -> io::Error {
        std::mem::replace(&mut error.error, io::ErrorKind::Other.into())
    }
}

impl Drop for IntoStdError {
    fn drop(&mut self) {
        if let Some(parts) = self.parts.as_ref().filter(|parts| !parts.unsent.is_empty()) {
            // Fails only if the connection is closed.
            let _ = sockopt::set_socket_linger(&parts.socket, Some(Duration::ZERO));
        }
    }
}
