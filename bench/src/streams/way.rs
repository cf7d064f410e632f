//! The application's end of the connection: a socket of its own, or a stream of an engine.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use isolane_attach::Session;
use isolane_attach::stream::Stream;

use super::options::{Via, Work};

/// An end.
pub enum Way {
    /// A socket, which does not block where the work is to spin.
    Native(TcpStream),
    /// A stream of the engine.
    Engine(Box<Stream>),
}

impl Way {
    /// The end over `socket`.
    pub fn new(work: Work, via: Via, socket: TcpStream, session: Option<&Session>) -> io::Result<Way> {
        socket.set_nodelay(true)?;
        match (via, session) {
            (Via::Engine, Some(session)) => Ok(Way::Engine(Box::new(Stream::adopt(session, socket)?))),
            _ => {
                socket.set_nonblocking(work == Work::Echo)?;
                Ok(Way::Native(socket))
            }
        }
    }

    /// Writes all of a message.
    pub fn write(&mut self, message: &[u8]) -> io::Result<()> {
        match self {
            Way::Native(socket) => write_all(socket, message),
            Way::Engine(stream) => stream.write_all(message),
        }
    }

    /// Reads what is there, at most as much as a message; waits if there is nothing.
    pub fn read(&mut self, message: &mut [u8]) -> io::Result<usize> {
        match self {
            Way::Native(socket) => socket.read(message),
            Way::Engine(stream) => stream.read(message),
        }
    }

    /// Reads all of a message, looking again and again.
    pub fn spin(&mut self, message: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < message.len() {
            let rest = &mut message[filled..];
            filled += match spin(|| match self {
                Way::Native(socket) => socket.read(rest),
                Way::Engine(stream) => stream.try_read(rest),
            })? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => count,
            };
        }
        Ok(())
    }
}

/// Writes all, whether the socket blocks or not.
pub fn write_all(socket: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let mut sent = 0;
    while sent < message.len() {
        sent += spin(|| socket.write(&message[sent..]))?;
    }
    Ok(())
}

/// Calls again and again until there is something to be done.
pub fn spin(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            done => return done,
        }
    }
}
