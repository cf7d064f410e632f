//! Where connections come in.
//!
//! When the process has no descriptor or memory left for a connection, accepting rests for a while: the
//! connection stays in the kernel's queue, and the reactor does not spin on it.

use crate::key::{Key, Kind};
use crate::poller::Poller;
use crate::{Event, ListenerToken};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::io;
use std::net::TcpListener;
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub(crate) struct Listeners {
    slots: Vec<Option<Listener>>,
}

#[derive(Debug)]
struct Listener {
    socket: TcpListener,
    /// Not known to have nobody waiting.
    is_ready: bool,
    /// The kernel will say when somebody comes.
    is_armed: bool,
    /// Accepting rests until then.
    rests_until: Option<Instant>,
    /// The last accept found no room, and that was logged.
    is_starved: bool,
}

impl Listeners {
    pub fn insert(&mut self, socket: TcpListener, poller: &mut Poller) -> io::Result<ListenerToken> {
        socket.set_nonblocking(true)?;
        let index = self.slots.len() as u32;
        poller.register(socket.as_fd(), Key::new(Kind::Listener, index))?;
        let listener =
            Listener { socket, is_ready: true, is_armed: false, rests_until: None, is_starved: false };
        self.slots.push(Some(listener));
        Ok(ListenerToken(index))
    }

    pub fn remove(&mut self, token: ListenerToken, poller: &mut Poller) {
        if let Some(listener) = self.slots.get_mut(token.index()).and_then(Option::take) {
            let armed = listener.is_armed.then_some(Key::new(Kind::Listener, token.0));
            poller.unregister(listener.socket.as_fd(), armed);
        }
    }

    pub fn remove_all(&mut self, poller: &mut Poller) {
        for index in 0..self.slots.len() {
            self.remove(ListenerToken(index as u32), poller);
        }
    }

    /// The kernel said that somebody waits.
    pub fn on_acceptable(&mut self, index: u32) {
        if let Some(Some(listener)) = self.slots.get_mut(index as usize) {
            listener.is_ready = true;
            listener.is_armed = false;
        }
    }

    /// The kernel has forgotten what it was asked.
    pub fn on_disarmed(&mut self) {
        self.slots.iter_mut().flatten().for_each(|listener| listener.is_armed = false);
    }

    /// Accepts a bounded number of connections, and arms what is found empty.
    pub fn accept(&mut self, now: Instant, poller: &mut Poller, events: &mut Vec<Event>) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Some(listener) = slot else { continue };
            listener.accept(ListenerToken(index as u32), now, events);
            if !listener.is_ready && !listener.is_armed {
                listener.is_armed = true;
                poller.arm_read(listener.socket.as_fd(), Key::new(Kind::Listener, index as u32));
            }
        }
    }

    /// When a rest is over.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.slots.iter().flatten().filter_map(|listener| listener.rests_until).min()
    }

    /// Whether somebody may be waiting who can be accepted now.
    pub fn is_ready(&self) -> bool {
        self.slots.iter().flatten().any(|listener| listener.is_ready && listener.rests_until.is_none())
    }
}

impl Listener {
    fn accept(&mut self, token: ListenerToken, now: Instant, events: &mut Vec<Event>) {
        if self.rests_until.is_some_and(|end| now < end) {
            return;
        }
        self.rests_until = None;
        for _ in 0..ACCEPTS_MAX {
            if !self.is_ready {
                return;
            }
            match self.socket.accept() {
                Ok((socket, peer)) => {
                    self.is_starved = false;
                    events.push(Event::Accepted { listener: token, socket, peer });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_ready = false,
                Err(error) if is_starvation(&error) => return self.rest(&error, now),
                // That one connection broke before it was accepted (accept(2) lists the ways).
                Err(error) => log::debug!("a connection was lost before it was accepted: {error}"),
            }
        }
    }

    fn rest(&mut self, error: &io::Error, now: Instant) {
        self.rests_until = Some(now + REST);
        if !self.is_starved {
            self.is_starved = true;
            log::warn!(
                "cannot accept a connection: {error}; raise the limit of open files; tried again every {} ms",
                REST.as_millis()
            );
        }
    }
}

fn is_starvation(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

/// Of one listener in one turn.
const ACCEPTS_MAX: usize = 16;
const REST: Duration = Duration::from_millis(100);
