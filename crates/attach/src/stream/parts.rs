//! A connection that was taken back, and what is left to do for it.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

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

impl Parts {
    /// Does that, for as long as `timeout` allows between two bits of progress; for ever if `None`. Whether the socket
    /// blocks makes no difference.
    ///
    /// # Errors
    /// `WouldBlock` if time has run out; the system's. The connection is closed then.
    pub fn finish(self, timeout: Option<Duration>) -> io::Result<TcpStream> {
        let Parts { socket, unsent, is_shut } = self;
        let mut bytes = unsent.as_slice();
        while !bytes.is_empty() {
            match send(&socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::AGAIN) => wait_for_room(None, socket.as_fd(), moment(timeout))?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if is_shut {
            socket.shutdown(Shutdown::Write)?;
        }
        Ok(socket)
    }
}
