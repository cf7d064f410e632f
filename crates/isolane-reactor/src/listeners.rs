//! Listeners of a reactor.
//!
//! When the process runs out of descriptors or memory, a listener backs off: the connection stays
//! in the kernel's queue, and the reactor does not spin on it.

use crate::Event;
use crate::backend::Backend;
use crate::key::{Key, Kind};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub(crate) struct Listeners {
    list: Vec<Listener>,
    next_index: u32,
    /// New connections stay in the kernel's queues.
    pub paused: bool,
}

#[derive(Debug)]
struct Listener {
    /// Its number, which no other listener gets.
    index: u32,
    socket: TcpListener,
    /// The queue may hold connections.
    ready: bool,
    /// A read notification is pending.
    armed: bool,
    /// End of the back-off.
    retry_at: Option<Instant>,
    /// The last accept ran out of resources, and that was logged.
    out_of_fds: bool,
}

impl Listeners {
    pub fn insert(&mut self, socket: TcpListener, backend: &mut Backend) -> io::Result<usize> {
        socket.set_nonblocking(true)?;
        let index = self.next_index;
        backend.register(socket.as_fd(), Key::new(Kind::Listener, index))?;
        self.next_index += 1;
        self.list.push(Listener {
            index,
            socket,
            ready: true,
            armed: false,
            retry_at: None,
            out_of_fds: false,
        });
        Ok(index as usize)
    }

    /// Closes one listener. Returns the connections that wait at it, because the kernel would reset them.
    pub fn remove(&mut self, index: usize, backend: &mut Backend) -> Vec<(TcpStream, SocketAddr)> {
        let found = self.list.iter().position(|listener| listener.index as usize == index);
        let mut waiting = Vec::new();
        if let Some(listener) = found.map(|position| self.list.remove(position)) {
            waiting = accept_waiting(&listener.socket);
            // The io_uring can hold the socket for longer. Without it, this fails only for a socket that does not listen.
            let _ = rustix::net::shutdown(&listener.socket, rustix::net::Shutdown::Both);
            drop(listener.unregister(backend));
        }
        waiting
    }

    /// Removes all listeners and returns them.
    pub fn take(&mut self, backend: &mut Backend) -> Vec<TcpListener> {
        self.list.drain(..).map(|listener| listener.unregister(backend)).collect()
    }

    /// Returns the listening sockets, in the order of their indices.
    pub fn sockets(&self) -> impl Iterator<Item = &TcpListener> {
        self.list.iter().map(|listener| &listener.socket)
    }

    pub fn remove_all(&mut self, backend: &mut Backend) {
        drop(self.take(backend));
    }

    /// Handles a notification.
    pub fn on_acceptable(&mut self, index: u32) {
        if let Some(listener) = self.list.iter_mut().find(|listener| listener.index == index) {
            listener.ready = true;
            listener.armed = false;
        }
    }

    /// Marks all listeners unarmed after the backend was reopened.
    pub fn on_disarmed(&mut self) {
        self.list.iter_mut().for_each(|listener| listener.armed = false);
    }

    /// Accepts a bounded number of connections and arms empty listeners.
    pub fn accept(&mut self, now: Instant, backend: &mut Backend, events: &mut Vec<Event>) {
        if self.paused {
            return;
        }
        for listener in &mut self.list {
            listener.accept(now, events);
            if !listener.ready && !listener.armed {
                listener.armed = true;
                backend.arm_read(listener.socket.as_fd(), Key::new(Kind::Listener, listener.index));
            }
        }
    }

    /// Returns the earliest end of a back-off.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let active = self.list.iter().filter(|_| !self.paused);
        active.filter_map(|listener| listener.retry_at).min()
    }

    /// Whether a connection may be waiting on a listener that is not backing off.
    pub fn is_ready(&self) -> bool {
        !self.paused && self.list.iter().any(|listener| listener.ready && listener.retry_at.is_none())
    }
}

impl Listener {
    fn unregister(self, backend: &mut Backend) -> TcpListener {
        let armed = self.armed.then_some(Key::new(Kind::Listener, self.index));
        backend.unregister(self.socket.as_fd(), armed);
        self.socket
    }

    fn accept(&mut self, now: Instant, events: &mut Vec<Event>) {
        if self.retry_at.is_some_and(|end| now < end) {
            return;
        }
        self.retry_at = None;
        for _ in 0..MAX_ACCEPTS {
            if !self.ready {
                return;
            }
            match self.socket.accept() {
                Ok((socket, peer)) => {
                    self.out_of_fds = false;
                    events.push(Event::Accepted { listener: self.index as usize, socket, peer });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.ready = false,
                Err(error) if is_out_of_resources(&error) => return self.back_off(&error, now),
                // The connection broke before it was accepted; accept(2) lists the errors.
                Err(error) => log::debug!("connection lost before accept: {error}"),
            }
        }
    }

    fn back_off(&mut self, error: &io::Error, now: Instant) {
        self.retry_at = Some(now + RETRY_DELAY);
        if !self.out_of_fds {
            self.out_of_fds = true;
            log::limited!(
                Warn,
                "cannot accept connections: {error}; raise the limit of open files (retrying every {} ms)",
                RETRY_DELAY.as_millis()
            );
        }
    }
}

/// Accepts all connections that wait at a listener that does not block.
pub fn accept_waiting(socket: &TcpListener) -> Vec<(TcpStream, SocketAddr)> {
    let mut waiting = Vec::new();
    for _ in 0..MAX_WAITING {
        match socket.accept() {
            Ok(accepted) => waiting.push(accepted),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock || is_out_of_resources(&error) => break,
            Err(error) => log::debug!("connection lost before accept: {error}"),
        }
    }
    waiting
}

fn is_out_of_resources(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

/// Limit per listener and turn.
const MAX_ACCEPTS: usize = 16;
/// Maximum number of connections that wait at a listener that closes.
const MAX_WAITING: usize = 4096;
const RETRY_DELAY: Duration = Duration::from_millis(100);
