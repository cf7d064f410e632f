//! Lanes: the byte streams under queue pairs.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use isolane_tcp::socket;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

/// A byte stream that keeps the order and loses nothing until it ends.
pub trait Lane: Send {
    /// Receives into `plan`, in order. `Ok(0)` is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived; any other error ends the lane.
    fn receive(&mut self, plan: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Sends bytes from the start of `plan`, and returns their number.
    ///
    /// # Errors
    /// `WouldBlock` if there is no space; any other error ends the lane.
    fn send(&mut self, plan: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Ends the outgoing direction.
    fn shutdown(&mut self);

    /// The descriptor of which `epoll` reports an edge when `receive` or `send` can continue.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// A lane over a TCP connection, which must be non-blocking.
pub struct TcpLane(pub TcpStream);

impl Lane for TcpLane {
    fn receive(&mut self, plan: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        socket::receive(&self.0, plan)
    }

    fn send(&mut self, plan: &[IoSlice<'_>]) -> io::Result<usize> {
        socket::send(&self.0, plan)
    }

    fn shutdown(&mut self) {
        // It fails only if the connection has ended.
        let _ = self.0.shutdown(Shutdown::Write);
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One end of a lane in the memory of this process.
pub struct MemoryLane {
    incoming: Arc<Mutex<Pipe>>,
    outgoing: Arc<Mutex<Pipe>>,
    /// Written by the other end when this one can continue; never read.
    event: Arc<OwnedFd>,
    peer_event: Arc<OwnedFd>,
}

#[derive(Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    is_closed: bool,
}

impl MemoryLane {
    /// Returns the two ends of a lane.
    ///
    /// # Errors
    /// If the system refuses a descriptor.
    pub fn pair() -> io::Result<(MemoryLane, MemoryLane)> {
        let event = || new_event().map(Arc::new);
        let (incoming, outgoing) = (Arc::default(), Arc::default());
        let near = MemoryLane { incoming, outgoing, event: event()?, peer_event: event()? };
        let far = MemoryLane {
            incoming: Arc::clone(&near.outgoing),
            outgoing: Arc::clone(&near.incoming),
            event: Arc::clone(&near.peer_event),
            peer_event: Arc::clone(&near.event),
        };
        Ok((near, far))
    }

    /// Returns a lane that receives what it sends.
    ///
    /// # Errors
    /// If the system refuses a descriptor.
    pub fn loopback() -> io::Result<MemoryLane> {
        let event = Arc::new(new_event()?);
        let pipe = Arc::default();
        Ok(MemoryLane {
            incoming: Arc::clone(&pipe),
            outgoing: pipe,
            event: Arc::clone(&event),
            peer_event: event,
        })
    }

    fn wake_peer(&self) {
        let _ = rustix::io::write(&self.peer_event, &1_u64.to_ne_bytes());
    }
}

fn new_event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

impl Lane for MemoryLane {
    fn receive(&mut self, plan: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut pipe = self.incoming.lock();
        if pipe.bytes.is_empty() {
            return if pipe.is_closed { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let was_full = pipe.bytes.len() >= PIPE_BYTES;
        let count = io::Read::read_vectored(&mut pipe.bytes, plan)?;
        if was_full {
            self.wake_peer();
        }
        Ok(count)
    }

    fn send(&mut self, plan: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut pipe = self.outgoing.lock();
        if pipe.is_closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if pipe.bytes.len() >= PIPE_BYTES {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = io::Write::write_vectored(&mut pipe.bytes, plan)?;
        self.wake_peer();
        Ok(count)
    }

    fn shutdown(&mut self) {
        self.outgoing.lock().is_closed = true;
        self.wake_peer();
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Drop for MemoryLane {
    fn drop(&mut self) {
        self.incoming.lock().is_closed = true;
        self.outgoing.lock().is_closed = true;
        self.wake_peer();
    }
}

/// Number of unread bytes from which a pipe in memory is full.
const PIPE_BYTES: usize = 1 << 20;
