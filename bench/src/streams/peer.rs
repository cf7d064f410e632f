//! The other end of the connection: a thread with a plain socket.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use super::options::Work;
use super::transport::{spin, write_all};
use crate::cpu::pin;

/// Starts the peer on a core. Returns the application's socket and the thread, which ends with the connection.
pub fn start(work: Work, size: usize, core: usize) -> io::Result<(TcpStream, JoinHandle<io::Result<()>>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let app_end = TcpStream::connect(listener.local_addr()?)?;
    let (peer_end, _) = listener.accept()?;
    peer_end.set_nodelay(true)?;
    let run = move || {
        pin(core)?;
        let result = match work {
            Work::Transmit | Work::Compute => drain(peer_end),
            Work::Receive => send(peer_end),
            Work::Echo => echo(peer_end, size),
        };
        // The application may close or reset the connection.
        result.or_else(|error| if is_end(&error) { Ok(()) } else { Err(error) })
    };
    Ok((app_end, thread::Builder::new().name("peer".to_owned()).spawn(run)?))
}

fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof)
}

fn drain(mut socket: TcpStream) -> io::Result<()> {
    let mut bytes = vec![0; BULK_BYTES];
    while socket.read(&mut bytes)? > 0 {}
    Ok(())
}

/// Sends long writes, so that the reader is the busy side.
fn send(mut socket: TcpStream) -> io::Result<()> {
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
            count => write_all(&message[..count], |rest| socket.write(rest))?,
        }
    }
}

const BULK_BYTES: usize = 256 << 10;
