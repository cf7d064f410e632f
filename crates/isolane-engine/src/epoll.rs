//! What a thread of the engine sleeps on: an epoll in which everything is edge-triggered, because the kernel's
//! queue of an adopted socket stays readable while the application has not read.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use isolane_reactor::waker::{Sleeper, silence};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use crate::service::Ready;

/// What can be watched by a thread, and how it sleeps.
#[derive(Debug)]
pub(crate) struct Epoll {
    epoll: OwnedFd,
    sleeper: Sleeper,
}

/// Something is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// What it was registered by.
    pub key: u64,
    /// What it is ready for.
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

    /// Who wakes the thread.
    pub fn sleeper(&self) -> &Sleeper {
        &self.sleeper
    }

    /// Watches for all that may happen to it. `key` is anything but `u64::MAX`.
    pub fn add(&self, source: impl AsFd, key: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, source, EventData::new_u64(key), ALL)?)
    }

    /// Watches for what may be read as well, or not; if it may be now, that is told once more.
    pub fn hear(&self, source: impl AsFd, key: u64, reads: bool) {
        let flags = if reads { ALL } else { ALL.difference(READ) };
        // It fails only for what was never registered, and then nothing is told anyway.
        let _ = epoll::modify(&self.epoll, source, EventData::new_u64(key), flags);
    }

    /// Watches no more.
    pub fn remove(&self, source: impl AsFd) {
        // It fails only for what was never registered, and then there is nothing to do.
        let _ = epoll::delete(&self.epoll, source);
    }

    /// What is ready now.
    pub fn look(&self, events: &mut Vec<Event>) -> io::Result<()> {
        self.wait(Some(Duration::ZERO), events)
    }

    /// Sleeps until something is ready, somebody calls, or a moment has come.
    pub fn sleep(&self, until: Option<Instant>, events: &mut Vec<Event>) -> io::Result<()> {
        if !self.sleeper.try_sleep() {
            return self.look(events);
        }
        // Rounded up: an older system call counts in milliseconds, and a sleep that ends early would spin.
        let timeout = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            Duration::from_millis(left.as_nanos().div_ceil(1_000_000) as u64)
        });
        let outcome = self.wait(timeout, events);
        self.sleeper.awake();
        outcome
    }

    fn wait(&self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        let timeout = timeout.map(isolane_ring::timespec);
        let mut space = [MaybeUninit::uninit(); EVENTS_MAX];
        let found = match epoll::wait(&self.epoll, &mut space[..], timeout.as_ref()) {
            Ok((found, _)) => found,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for event in found {
            let (data, flags) = (event.data, event.flags);
            match data.u64() {
                DOORBELL => silence(self.sleeper.doorbell()),
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

const EVENTS_MAX: usize = 256;
const DOORBELL: u64 = u64::MAX;
const READ: EventFlags = EventFlags::IN.union(EventFlags::PRI);
const ALL: EventFlags = READ.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_may_be_read_is_told_only_to_who_wants_to_hear_and_then_at_once() {
        let (epoll, (ours, mut theirs)) = (Epoll::new().unwrap(), UnixStream::pair().unwrap());
        let hears = || {
            let mut events = Vec::new();
            epoll.look(&mut events).unwrap();
            events.iter().any(|event| event.key == 7 && event.ready.readable)
        };
        epoll.add(&ours, 7).unwrap();
        theirs.write_all(&[1]).unwrap();
        assert!(hears());
        epoll.hear(&ours, 7, false);
        theirs.write_all(&[1]).unwrap();
        assert!(!hears());
        epoll.hear(&ours, 7, true);
        assert!(hears());
        theirs.write_all(&[1]).unwrap();
        assert!(hears());
        epoll.hear(&ours, 7, false);
        drop(theirs);
        assert!(hears(), "an end is always told");
    }
}
