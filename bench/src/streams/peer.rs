//! The other end: a thread with a plain socket.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use super::options::Work;
use super::way::{spin, write_all};
use crate::core::pin;

/// Starts the peer on its core. Returns the application's socket, and the thread, which ends with the
/// connection.
pub fn start(work: Work, size: usize, core: usize) -> io::Result<(TcpStream, JoinHandle<io::Result<()>>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let ours = TcpStream::connect(listener.local_addr()?)?;
    let (theirs, _) = listener.accept()?;
    theirs.set_nodelay(true)?;
    let life = move || {
        pin(core)?;
        let ended = match work {
            Work::Transmit | Work::Compute => take(theirs),
            Work::Receive => give(theirs),
            Work::Echo => echo(theirs, size),
        };
        // The application ends the connection as it likes.
        ended.or_else(|error| if is_end(&error) { Ok(()) } else { Err(error) })
    };
    Ok((ours, thread::Builder::new().name("peer".to_owned()).spawn(life)?))
}

fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof)
}

fn take(mut socket: TcpStream) -> io::Result<()> {
    let mut bytes = vec![0; BULK_BYTES];
    while socket.read(&mut bytes)? > 0 {}
    Ok(())
}

/// Long writes, so that the reader is the busy side.
fn give(mut socket: TcpStream) -> io::Result<()> {
    let bytes = vec![7; BULK_BYTES];
    loop {
        socket.write_all(&bytes)?;
    }
}

fn echo(mut socket: TcpStream, size: usize) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    let mut message = vec![0; size];
    loop {
        match spin(|| socket.read(&mut message))? {
            0 => return Ok(()),
            count => write_all(&mut socket, &message[..count])?,
        }
    }
}

const BULK_BYTES: usize = 256 << 10;
