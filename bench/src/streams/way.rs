//! The application's end of the connection: a socket of its own, or a stream of an engine.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use isolane_attach::Session;
use isolane_attach::stream::Stream;

use super::options::Via;

/// An end that blocks, or looks once.
pub enum Way {
    /// A socket, and whether it blocks now.
    Native { socket: TcpStream, is_blocking: bool },
    /// A stream of the engine.
    Engine(Box<Stream>),
}

impl Way {
    /// The end over `socket`.
    pub fn new(via: Via, socket: TcpStream, session: Option<&Session>) -> io::Result<Way> {
        socket.set_nodelay(true)?;
        match (via, session) {
            (Via::Engine, Some(session)) => Ok(Way::Engine(Box::new(Stream::adopt(session, socket)?))),
            _ => Ok(Way::Native { socket, is_blocking: true }),
        }
    }

    /// Writes all of a message.
    pub fn write(&mut self, message: &[u8]) -> io::Result<()> {
        self.block(true)?;
        match self {
            Way::Native { socket, .. } => socket.write_all(message),
            Way::Engine(stream) => stream.write_all(message),
        }
    }

    /// Reads what is there, at most as much as a message; waits if there is nothing.
    pub fn read(&mut self, message: &mut [u8]) -> io::Result<usize> {
        self.block(true)?;
        match self {
            Way::Native { socket, .. } => socket.read(message),
            Way::Engine(stream) => stream.read(message),
        }
    }

    /// Reads all of a message, looking again and again.
    pub fn spin(&mut self, message: &mut [u8]) -> io::Result<()> {
        self.block(false)?;
        let mut filled = 0;
        while filled < message.len() {
            let read = match self {
                Way::Native { socket, .. } => socket.read(&mut message[filled..]),
                Way::Engine(stream) => stream.try_read(&mut message[filled..]),
            };
            match read {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all of a message on an end that spins.
    pub fn write_spinning(&mut self, message: &[u8]) -> io::Result<()> {
        match self {
            Way::Native { socket, .. } => socket.write_all(message),
            Way::Engine(stream) => stream.write_all(message),
        }
    }

    fn block(&mut self, wants: bool) -> io::Result<()> {
        match self {
            Way::Native { socket, is_blocking } if *is_blocking != wants => {
                *is_blocking = wants;
                socket.set_nonblocking(!wants)
            }
            _ => Ok(()),
        }
    }
}
