//! The other end of the connections: a thread with plain sockets.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, poll};

use super::options::Work;
use super::transport::{spin, write_all};
use crate::cpu::pin;

/// Starts the peer on a core. Returns the application's sockets and the thread, which ends with the connections.
/// Only transmission uses several connections.
pub fn start(
    work: Work,
    size: usize,
    core: usize,
    connections: u16,
) -> io::Result<(Vec<TcpStream>, JoinHandle<io::Result<()>>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let (mut app_ends, mut peer_ends) = (Vec::new(), Vec::new());
    for _ in 0..connections {
        app_ends.push(TcpStream::connect(listener.local_addr()?)?);
        let (peer_end, _) = listener.accept()?;
        peer_end.set_nodelay(true)?;
        peer_ends.push(peer_end);
    }
    let run = move || {
        pin(core)?;
        let result = match work {
            Work::Transmit if peer_ends.len() > 1 => drain_all(peer_ends),
            Work::Transmit | Work::Compute => drain(peer_ends.remove(0)),
            Work::Receive => send(peer_ends.remove(0)),
            Work::Echo => echo(peer_ends.remove(0), size),
        };
        // The application may close or reset the connection.
        result.or_else(|error| if is_end(&error) { Ok(()) } else { Err(error) })
    };
    Ok((app_ends, thread::Builder::new().name("peer".to_owned()).spawn(run)?))
}

fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof)
}

fn drain(mut socket: TcpStream) -> io::Result<()> {
    let mut bytes = vec![0; BULK_BYTES];
    while socket.read(&mut bytes)? > 0 {}
    Ok(())
}

/// Reads available bytes of all sockets, and sleeps while all are empty.
fn drain_all(mut sockets: Vec<TcpStream>) -> io::Result<()> {
    let mut bytes = vec![0; BULK_BYTES];
    while !sockets.is_empty() {
        let mut watched: Vec<_> = sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        match poll(&mut watched, None) {
            Err(rustix::io::Errno::INTR) => continue,
            result => result?,
        };
        let mut ended: Vec<_> = watched.iter().map(|watched| !watched.revents().is_empty()).collect();
        for (socket, ended) in sockets.iter_mut().zip(&mut ended) {
            *ended = *ended && has_ended(socket.read(&mut bytes))?;
        }
        let mut ended = ended.into_iter();
        sockets.retain(|_| ended.next() == Some(false));
    }
    Ok(())
}

fn has_ended(read: io::Result<usize>) -> io::Result<bool> {
    match read {
        Ok(count) => Ok(count == 0),
        Err(error) if is_end(&error) => Ok(true),
        Err(error) => Err(error),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drains_all_connections_until_the_last_ends() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let pair = |_| {
            let app_end = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (app_end, listener.accept().unwrap().0)
        };
        let (app_ends, peer_ends): (Vec<_>, Vec<_>) = (0..3).map(pair).collect();
        let peer = thread::spawn(move || drain_all(peer_ends));
        // More than the kernel buffers.
        let bytes = vec![7; 8 << 20];
        for mut socket in app_ends {
            socket.write_all(&bytes).unwrap();
        }
        peer.join().unwrap().unwrap();
    }
}
