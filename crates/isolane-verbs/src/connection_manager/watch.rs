//! Sockets that the agent watches, by number.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

/// Sockets with numbers; a closed one leaves it.
pub(super) struct Watch {
    epoll: OwnedFd,
    wake: OwnedFd,
}

impl Watch {
    pub(super) fn new() -> io::Result<Watch> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let watch = Watch { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, wake };
        watch.add(&watch.wake, 0)?;
        Ok(watch)
    }

    /// Watches a socket for input.
    pub(super) fn add(&self, socket: impl AsFd, number: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?)
    }

    /// Ignores the input of a socket.
    pub(super) fn pause(&self, socket: impl AsFd, number: u64) -> io::Result<()> {
        let none = epoll::EventFlags::empty();
        Ok(epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(number), none)?)
    }

    /// Watches a paused socket for input.
    pub(super) fn resume(&self, socket: impl AsFd, number: u64) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?)
    }

    /// Ends the current or the next wait.
    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Waits for events. Returns the numbers of sockets that have some, and of no socket, which is 0.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Vec<u64> {
        let timeout = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        let empty = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [empty; 64];
        let count = epoll::wait(&self.epoll, &mut events[..], timeout.as_ref()).unwrap_or(0);
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        events[..count].iter().map(|event| event.data.u64()).collect()
    }
}
