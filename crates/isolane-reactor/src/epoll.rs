//! Readiness by epoll, for machines without a usable io_uring.
//!
//! Everything is registered edge-triggered: the kernel speaks once per change, and the table of lanes
//! remembers. So arming costs nothing, and what a spinning reactor received on its own leaves no trace here.

use crate::key::{Key, Kind};
use crate::poller::{Occurrence, Wait};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

pub(crate) struct Epoll {
    epoll: OwnedFd,
    looks_skipped: u32,
}

impl Epoll {
    pub fn new(doorbell: BorrowedFd<'_>) -> io::Result<Epoll> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let data = EventData::new_u64(Key::new(Kind::Doorbell, 0).to_bits());
        epoll::add(&epoll, doorbell, data, EventFlags::IN | EventFlags::ET)?;
        Ok(Epoll { epoll, looks_skipped: 0 })
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub fn register(&mut self, socket: BorrowedFd<'_>, key: Key) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(key.to_bits()), READ)?)
    }

    pub fn unregister(&mut self, socket: BorrowedFd<'_>) {
        // It fails only if the socket was never registered, and then there is nothing to do.
        let _ = epoll::delete(&self.epoll, socket);
    }

    /// A modification looks at once, so this is also right for a socket that had room all the time.
    pub fn arm_write(&mut self, socket: BorrowedFd<'_>, key: Key) -> io::Result<()> {
        let data = EventData::new_u64(Key { kind: Kind::Read, ..key }.to_bits());
        Ok(epoll::modify(&self.epoll, socket, data, READ | EventFlags::OUT)?)
    }

    pub fn collect(&mut self, wait: Wait, occurrences: &mut Vec<Occurrence>) -> io::Result<()> {
        let timeout = match wait {
            Wait::No { is_urgent } => {
                self.looks_skipped += 1;
                if !is_urgent && self.looks_skipped < LOOKS_SKIPPED_MAX {
                    return Ok(());
                }
                Some(Timespec { tv_sec: 0, tv_nsec: 0 })
            }
            Wait::For(timeout) => timeout.map(whole_milliseconds),
        };
        self.looks_skipped = 0;
        // Not kept between turns: an event could hold a pointer, which would tie the reactor to its thread.
        let mut space = [MaybeUninit::uninit(); EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut space[..], timeout.as_ref()) {
            Ok((events, _)) => events.iter().for_each(|event| translate(*event, occurrences)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

fn translate(event: Event, occurrences: &mut Vec<Occurrence>) {
    let (data, flags) = (event.data, event.flags);
    let Some(key) = Key::from_bits(data.u64()) else { return };
    match key.kind {
        Kind::Doorbell => occurrences.push(Occurrence::Doorbell),
        Kind::Listener => occurrences.push(Occurrence::Acceptable { index: key.index }),
        _ => {
            let is_hung_up = flags.intersects(END);
            if is_hung_up || flags.contains(EventFlags::IN) {
                occurrences.push(Occurrence::Readable { key, is_hung_up });
            }
            if flags.intersects(BROKEN | EventFlags::OUT) {
                occurrences.push(Occurrence::Writable { key });
            }
        }
    }
}

/// Rounded up: the older system call counts in milliseconds, and a wait that ends early would spin.
fn whole_milliseconds(timeout: Duration) -> Timespec {
    let milliseconds = timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i64;
    Timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 }
}

const EVENTS_MAX: usize = 256;
/// Beside hot lanes, cold ones are looked after every so many turns.
const LOOKS_SKIPPED_MAX: u32 = 16;
const READ: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);
const BROKEN: EventFlags = EventFlags::HUP.union(EventFlags::ERR);
const END: EventFlags = BROKEN.union(EventFlags::RDHUP);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_never_ends_early() {
        let rounded = whole_milliseconds(Duration::from_micros(1_500_001));
        assert_eq!((rounded.tv_sec, rounded.tv_nsec), (1, 501_000_000));
        assert_eq!(whole_milliseconds(Duration::from_nanos(1)).tv_nsec, 1_000_000);
    }
}
