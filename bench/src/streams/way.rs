//! The application's end of the connection: a socket of its own, or a stream of an engine.

use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::net::TcpStream;

use isolane_attach::Session;
use isolane_attach::stream::Stream;
use rustix::net::{SendFlags, send};

use super::options::{Via, Work};

/// An end.
pub enum Way {
    /// A socket, which does not block where the work is to spin.
    Native(TcpStream),
    /// A socket behind a buffer, for transmitting.
    Buffered(BufWriter<TcpStream>),
    /// A socket whose kernel is told that more follows, for transmitting.
    More(TcpStream),
    /// A stream of the engine.
    Engine(Box<Stream>),
}

impl Way {
    /// The end over `socket`.
    pub fn new(work: Work, via: Via, socket: TcpStream, session: Option<&Session>) -> io::Result<Way> {
        socket.set_nodelay(via != Via::Nagle)?;
        match (via, session) {
            (Via::Buffered, _) => Ok(Way::Buffered(BufWriter::with_capacity(BUFFER_BYTES, socket))),
            (Via::More, _) => Ok(Way::More(socket)),
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
            Way::Buffered(socket) => socket.write_all(message),
            Way::More(socket) => send_all(socket, message),
            Way::Engine(stream) => stream.write_all(message),
        }
    }

    /// Reads what is there, at most as much as a message; waits if there is nothing.
    pub fn read(&mut self, message: &mut [u8]) -> io::Result<usize> {
        match self {
            Way::Native(socket) | Way::More(socket) => socket.read(message),
            Way::Buffered(socket) => socket.get_mut().read(message),
            Way::Engine(stream) => stream.read(message),
        }
    }

    /// Reads all of a message, looking again and again.
    pub fn spin(&mut self, message: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < message.len() {
            let rest = &mut message[filled..];
            filled += match spin(|| match self {
                Way::Native(socket) | Way::More(socket) => socket.read(rest),
                Way::Buffered(socket) => socket.get_mut().read(rest),
                Way::Engine(stream) => stream.try_read(rest),
            })? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => count,
            };
        }
        Ok(())
    }
}

/// Sends all, and says that more follows.
fn send_all(socket: &TcpStream, message: &[u8]) -> io::Result<()> {
    let mut sent = 0;
    while sent < message.len() {
        sent += send(socket, &message[sent..], SendFlags::MORE | SendFlags::NOSIGNAL)?;
    }
    Ok(())
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

/// Bytes that a buffered writer combines.
const BUFFER_BYTES: usize = 64 << 10;
