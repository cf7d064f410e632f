//! The application's end of a connection: its own socket, or a stream of an engine.

use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::net::TcpStream;

use isolane_attach::Session;
use isolane_attach::stream::Stream;
use rustix::net::{SendFlags, send};

use super::options::{Via, Work};

/// The application's end of a connection.
pub enum Transport {
    /// A socket, non-blocking for work that spins.
    Native(TcpStream),
    /// A socket with a write buffer.
    Buffered(BufWriter<TcpStream>),
    /// A socket that is written with `MSG_MORE`.
    More(TcpStream),
    /// A stream of the engine.
    Engine(Box<Stream>),
}

impl Transport {
    /// Wraps a connected socket.
    pub fn new(work: Work, via: Via, socket: TcpStream, session: Option<&Session>) -> io::Result<Transport> {
        socket.set_nodelay(via != Via::Nagle)?;
        match (via, session) {
            (Via::Buffered, _) => Ok(Transport::Buffered(BufWriter::with_capacity(BUFFER_BYTES, socket))),
            (Via::More, _) => Ok(Transport::More(socket)),
            (Via::Engine, Some(session)) => Ok(Transport::Engine(Box::new(Stream::adopt(session, socket)?))),
            _ => {
                socket.set_nonblocking(work == Work::Echo)?;
                Ok(Transport::Native(socket))
            }
        }
    }

    /// Writes a complete message.
    pub fn write(&mut self, message: &[u8]) -> io::Result<()> {
        match self {
            Transport::Native(socket) => write_all(message, |rest| socket.write(rest)),
            Transport::Buffered(socket) => socket.write_all(message),
            Transport::More(socket) => {
                write_all(message, |rest| Ok(send(&*socket, rest, SendFlags::MORE | SendFlags::NOSIGNAL)?))
            }
            Transport::Engine(stream) => stream.write_all(message),
        }
    }

    /// Reads up to one message; waits for the first byte.
    pub fn read(&mut self, message: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Native(socket) | Transport::More(socket) => socket.read(message),
            Transport::Buffered(socket) => socket.get_mut().read(message),
            Transport::Engine(stream) => stream.read(message),
        }
    }

    /// Reads a complete message, spinning.
    pub fn read_spinning(&mut self, message: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < message.len() {
            let remaining = &mut message[filled..];
            let count = spin(|| match self {
                Transport::Engine(stream) => stream.try_read(remaining),
                _ => self.read(remaining),
            })?;
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            filled += count;
        }
        Ok(())
    }
}

/// Writes a complete message by repeated calls.
pub fn write_all(message: &[u8], mut write: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<()> {
    let mut sent = 0;
    while sent < message.len() {
        sent += spin(|| write(&message[sent..]))?;
    }
    Ok(())
}

/// Repeats a call until it no longer fails with `WouldBlock`.
pub fn spin(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            result => return result,
        }
    }
}

const BUFFER_BYTES: usize = 64 << 10;
