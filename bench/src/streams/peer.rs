//! The other end of the connections: a thread with plain sockets.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

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
            Work::Transmit | Work::Compute => drain_all(peer_ends),
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

/// Reads all sockets until their ends, with one thread each, all on the same core.
fn drain_all(sockets: Vec<TcpStream>) -> io::Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = sockets.into_iter().map(|socket| scope.spawn(|| drain(socket))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("the thread does not panic"))
    })
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
