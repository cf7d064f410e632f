//! The other end: a thread with plain sockets.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, poll};

use super::options::Work;
use super::way::{spin, write_all};
use crate::core::pin;

/// Starts the peer on its core. Returns the application's sockets, and the thread, which ends with the
/// connections. Several are only for transmitting.
pub fn start(
    work: Work,
    size: usize,
    core: usize,
    connections: u16,
) -> io::Result<(Vec<TcpStream>, JoinHandle<io::Result<()>>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let (mut ours, mut all) = (Vec::new(), Vec::new());
    for _ in 0..connections {
        ours.push(TcpStream::connect(listener.local_addr()?)?);
        let (theirs, _) = listener.accept()?;
        theirs.set_nodelay(true)?;
        all.push(theirs);
    }
    let life = move || {
        pin(core)?;
        let ended = match (work, all.pop()) {
            (_, None) => Ok(()),
            (Work::Transmit, Some(last)) if !all.is_empty() => {
                all.push(last);
                take_all(all)
            }
            (Work::Transmit | Work::Compute, Some(theirs)) => take(theirs),
            (Work::Receive, Some(theirs)) => give(theirs),
            (Work::Echo, Some(theirs)) => echo(theirs, size),
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

/// Takes from each what is there, and sleeps when all are empty.
fn take_all(mut sockets: Vec<TcpStream>) -> io::Result<()> {
    let mut bytes = vec![0; BULK_BYTES];
    while !sockets.is_empty() {
        let mut watched: Vec<_> = sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        match poll(&mut watched, None) {
            Err(rustix::io::Errno::INTR) => continue,
            outcome => outcome?,
        };
        let mut ready: Vec<_> = watched.iter().map(|watched| !watched.revents().is_empty()).collect();
        for (socket, is_ready) in sockets.iter_mut().zip(&mut ready) {
            // From now on it says whether the connection has ended.
            *is_ready = *is_ready && ends(socket.read(&mut bytes))?;
        }
        let mut ended = ready.into_iter();
        sockets.retain(|_| ended.next() == Some(false));
    }
    Ok(())
}

fn ends(outcome: io::Result<usize>) -> io::Result<bool> {
    match outcome {
        Ok(count) => Ok(count == 0),
        Err(error) if is_end(&error) => Ok(true),
        Err(error) => Err(error),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_from_all_connections_until_the_last_ends() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let pair = |_| {
            let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (ours, listener.accept().unwrap().0)
        };
        let (ours, theirs): (Vec<_>, Vec<_>) = (0..3).map(pair).collect();
        let peer = thread::spawn(move || take_all(theirs));
        // More than the kernel keeps of any of them.
        let bytes = vec![7; 8 << 20];
        for mut socket in ours {
            socket.write_all(&bytes).unwrap();
        }
        peer.join().unwrap().unwrap();
    }
}
