//! Descriptors held back, for what must be possible when there are no others: to tell a client so, and to start
//! the next engine.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};

/// So many descriptors, as far as there were so many.
#[derive(Debug)]
pub(crate) struct Reserve {
    held: Vec<OwnedFd>,
    count: usize,
}

impl Reserve {
    pub fn take(count: usize) -> Reserve {
        let mut reserve = Reserve { held: Vec::new(), count };
        reserve.refill();
        reserve
    }

    /// What an engine of so many cores holds back: enough for the threads of the next one, which has all
    /// descriptors of its clients by then.
    pub fn of_engine(cores: usize) -> Reserve {
        Reserve::take(16 + 4 * cores)
    }

    /// Gives them to whoever needs some now.
    pub fn release(&mut self) {
        self.held.clear();
    }

    /// Takes as many again as there are.
    pub fn refill(&mut self) {
        while self.held.len() < self.count
            && let Ok(descriptor) = eventfd(0, EventfdFlags::CLOEXEC)
        {
            self.held.push(descriptor);
        }
    }
}
