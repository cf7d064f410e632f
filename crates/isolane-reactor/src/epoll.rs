//! epoll backend, for machines without a usable io_uring.
//!
//! Everything is registered edge-triggered: the kernel notifies once per change, and the socket
//! table keeps the state. So arming costs nothing, and a spinning reactor's own receives need no
//! update here.

use crate::event::{BackendEvent, PollWait};
use crate::key::{Key, Kind};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

pub(crate) struct Epoll {
    epoll: OwnedFd,
    skipped_polls: u32,
}

impl Epoll {
    pub fn new(doorbell: BorrowedFd<'_>) -> io::Result<Epoll> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let data = EventData::new_u64(Key::new(Kind::Doorbell, 0).to_bits());
        epoll::add(&epoll, doorbell, data, EventFlags::IN | EventFlags::ET)?;
        Ok(Epoll { epoll, skipped_polls: 0 })
    }

    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub fn register(&mut self, socket: BorrowedFd<'_>, key: Key) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(key.to_bits()), READ)?)
    }

    pub fn unregister(&mut self, socket: BorrowedFd<'_>) {
        // Fails only if the socket was never registered.
        let _ = epoll::delete(&self.epoll, socket);
    }

    /// Modifies the registration, which also reports a socket that is already writable.
    pub fn arm_write(&mut self, socket: BorrowedFd<'_>, key: Key) -> io::Result<()> {
        let data = EventData::new_u64(Key { kind: Kind::Read, ..key }.to_bits());
        Ok(epoll::modify(&self.epoll, socket, data, READ | EventFlags::OUT)?)
    }

    pub fn collect(&mut self, wait: PollWait, backend_events: &mut Vec<BackendEvent>) -> io::Result<()> {
        let timeout = match wait {
            PollWait::No { urgent } => {
                self.skipped_polls += 1;
                if !urgent && self.skipped_polls < MAX_SKIPPED_POLLS {
                    return Ok(());
                }
                Some(Timespec { tv_sec: 0, tv_nsec: 0 })
            }
            PollWait::For(timeout) => timeout.map(round_up_to_millis),
        };
        self.skipped_polls = 0;
        // On the stack: an event can hold a pointer, which would make the reactor `!Send`.
        let mut space = [MaybeUninit::uninit(); MAX_EVENTS];
        match epoll::wait(&self.epoll, &mut space[..], timeout.as_ref()) {
            Ok((events, _)) => events.iter().for_each(|event| translate(*event, backend_events)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

fn translate(event: Event, backend_events: &mut Vec<BackendEvent>) {
    let (data, flags) = (event.data, event.flags);
    let Some(key) = Key::from_bits(data.u64()) else { return };
    match key.kind {
        Kind::Doorbell => backend_events.push(BackendEvent::Doorbell),
        Kind::Listener => backend_events.push(BackendEvent::Acceptable { index: key.index }),
        _ => {
            let hung_up = flags.intersects(END);
            if hung_up || flags.contains(EventFlags::IN) {
                backend_events.push(BackendEvent::Readable { key, hung_up });
            }
            if flags.intersects(BROKEN | EventFlags::OUT) {
                backend_events.push(BackendEvent::Writable { key });
            }
        }
    }
}

/// Rounds up, because the older system call counts milliseconds and a wait that ends early would
/// spin.
fn round_up_to_millis(timeout: Duration) -> Timespec {
    let milliseconds = timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i64;
    Timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 }
}

const MAX_EVENTS: usize = 256;
/// Turns between polls of the kernel while some sockets are hot.
const MAX_SKIPPED_POLLS: u32 = 16;
const READ: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);
const BROKEN: EventFlags = EventFlags::HUP.union(EventFlags::ERR);
const END: EventFlags = BROKEN.union(EventFlags::RDHUP);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_round_up() {
        let rounded = round_up_to_millis(Duration::from_micros(1_500_001));
        assert_eq!((rounded.tv_sec, rounded.tv_nsec), (1, 501_000_000));
        assert_eq!(round_up_to_millis(Duration::from_nanos(1)).tv_nsec, 1_000_000);
    }
}
