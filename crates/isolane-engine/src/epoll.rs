//! Event wait of an engine thread. All sources are edge-triggered, because an adopted socket stays readable
//! until the application has read.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use isolane_reactor::waker::{Sleeper, drain_eventfd};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use crate::object::Ready;

/// Epoll instance of a thread, with its wakeup descriptor.
#[derive(Debug)]
pub(crate) struct Epoll {
    epoll: OwnedFd,
    sleeper: Sleeper,
}

/// Readiness of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// Key that the source was registered with.
    pub key: u64,
    pub ready: Ready,
}

impl Epoll {
    pub fn new() -> io::Result<Epoll> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let sleeper = Sleeper::new()?;
        let data = EventData::new_u64(DOORBELL);
        epoll::add(&epoll, sleeper.doorbell(), data, EventFlags::IN | EventFlags::ET)?;
        Ok(Epoll { epoll, sleeper })
    }

    /// Wakeup state of the thread.
    pub fn sleeper(&self) -> &Sleeper {
        &self.sleeper
    }

    /// Watches a source for all events. `key` must not be `u64::MAX`.
    pub fn add(&self, source: impl AsFd, key: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, source, EventData::new_u64(key), ALL)?)
    }

    /// Turns read events of a source on or off. Turning them on reports pending data again.
    pub fn set_read_interest(&self, source: impl AsFd, key: u64, reads: bool) {
        let flags = if reads { ALL } else { ALL.difference(READ) };
        // Fails only for an unregistered source, which has no events anyway.
        let _ = epoll::modify(&self.epoll, source, EventData::new_u64(key), flags);
    }

    /// Stops watching a source.
    pub fn remove(&self, source: impl AsFd) {
        // Fails only for an unregistered source.
        let _ = epoll::delete(&self.epoll, source);
    }

    /// Collects pending events without waiting.
    pub fn poll(&self, events: &mut Vec<Event>) -> io::Result<()> {
        self.wait(Some(Duration::ZERO), events)
    }

    /// Sleeps until an event, a wakeup, or the deadline.
    pub fn sleep(&self, deadline: Option<Instant>, events: &mut Vec<Event>) -> io::Result<()> {
        if !self.sleeper.try_sleep() {
            return self.poll(events);
        }
        // Rounded up: an older system call counts in milliseconds, and a sleep that ends early would spin.
        let timeout = deadline.map(|deadline| {
            let remaining = deadline.saturating_duration_since(Instant::now());
            Duration::from_millis(remaining.as_nanos().div_ceil(1_000_000) as u64)
        });
        let result = self.wait(timeout, events);
        self.sleeper.finish_sleep();
        result
    }

    fn wait(&self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        let timeout = timeout.map(isolane_shm::timespec);
        let mut space = [MaybeUninit::uninit(); MAX_EVENTS];
        let found = match epoll::wait(&self.epoll, &mut space[..], timeout.as_ref()) {
            Ok((found, _)) => found,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for event in found {
            let (data, flags) = (event.data, event.flags);
            match data.u64() {
                DOORBELL => drain_eventfd(self.sleeper.doorbell()),
                key => events.push(Event { key, ready: ready(flags) }),
            }
        }
        Ok(())
    }
}

fn ready(flags: EventFlags) -> Ready {
    let hung_up = flags.intersects(EventFlags::HUP.union(EventFlags::ERR));
    Ready {
        readable: hung_up || flags.intersects(READ.union(EventFlags::RDHUP)),
        urgent: flags.contains(EventFlags::PRI),
        writable: hung_up || flags.contains(EventFlags::OUT),
        finished: flags.contains(EventFlags::RDHUP),
        hung_up,
    }
}

const MAX_EVENTS: usize = 256;
const DOORBELL: u64 = u64::MAX;
const READ: EventFlags = EventFlags::IN.union(EventFlags::PRI);
const ALL: EventFlags = READ.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn reports_reads_only_while_requested() {
        let (epoll, (ours, mut peer_end)) = (Epoll::new().unwrap(), UnixStream::pair().unwrap());
        let is_readable = || {
            let mut events = Vec::new();
            epoll.poll(&mut events).unwrap();
            events.iter().any(|event| event.key == 7 && event.ready.readable)
        };
        epoll.add(&ours, 7).unwrap();
        peer_end.write_all(&[1]).unwrap();
        assert!(is_readable());
        epoll.set_read_interest(&ours, 7, false);
        peer_end.write_all(&[1]).unwrap();
        assert!(!is_readable());
        epoll.set_read_interest(&ours, 7, true);
        assert!(is_readable());
        peer_end.write_all(&[1]).unwrap();
        assert!(is_readable());
        epoll.set_read_interest(&ours, 7, false);
        drop(peer_end);
        assert!(is_readable(), "a hangup is always reported");
    }
}
