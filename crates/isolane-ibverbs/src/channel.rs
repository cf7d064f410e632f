//! Channels: events for a program, with a descriptor that is readable while there are any.
//!
//! Invariant: the counter of the descriptor is the number of events, or greater for the moment in which one is taken.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::ffi::Result;

/// Events of one kind.
pub(crate) struct Channel<T> {
    events: Mutex<VecDeque<T>>,
    descriptor: OwnedFd,
}

impl<T> Channel<T> {
    pub(crate) fn new() -> Result<Channel<T>> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?;
        Ok(Channel { events: Mutex::default(), descriptor })
    }

    pub(crate) fn fd(&self) -> c_int {
        self.descriptor.as_raw_fd()
    }

    pub(crate) fn push(&self, event: T) {
        self.events.lock().push_back(event);
        let _ = rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes());
    }

    /// Waits for the next event, unless the program has made the descriptor non-blocking.
    ///
    /// # Errors
    /// `EAGAIN` or `EINTR`.
    pub(crate) fn next(&self) -> Result<T> {
        loop {
            rustix::io::read(&self.descriptor, &mut [0; 8])?;
            // Events of a destroyed object are gone.
            if let Some(event) = self.events.lock().pop_front() {
                return Ok(event);
            }
        }
    }

    /// Returns the number of some events.
    pub(crate) fn count(&self, mut is_counted: impl FnMut(&T) -> bool) -> usize {
        self.events.lock().iter().filter(|event| is_counted(event)).count()
    }

    /// Removes events, because their object is destroyed.
    pub(crate) fn remove(&self, mut is_removed: impl FnMut(&T) -> bool) {
        let mut events = self.events.lock();
        let before = events.len();
        events.retain(|event| !is_removed(event));
        for _ in events.len()..before {
            let mut readable = [PollFd::new(&self.descriptor, PollFlags::IN)];
            if poll(&mut readable, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1) {
                let _ = rustix::io::read(&self.descriptor, &mut [0; 8]);
            }
        }
    }
}

/// Events of an object that the program has taken and not acknowledged. The object lives until all are acknowledged.
#[derive(Default)]
pub(crate) struct Unacknowledged {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Unacknowledged {
    pub(crate) fn add(&self) {
        *self.count.lock() += 1;
    }

    pub(crate) fn acknowledge(&self, count: u64) {
        let mut left = self.count.lock();
        *left = left.saturating_sub(count);
        self.changed.notify_all();
    }

    pub(crate) fn wait(&self) {
        let mut left = self.count.lock();
        while *left > 0 {
            self.changed.wait(&mut left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_is_readable_while_there_are_events() {
        let channel = Channel::new().unwrap();
        let is_readable = || {
            let mut readable = [PollFd::new(&channel.descriptor, PollFlags::IN)];
            poll(&mut readable, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
        };
        assert!(!is_readable());
        (0..4).for_each(|event| channel.push(event));
        channel.remove(|event| event % 2 == 0);
        assert_eq!((channel.next(), is_readable()), (Ok(1), true));
        assert_eq!((channel.next(), is_readable()), (Ok(3), false));
    }
}
