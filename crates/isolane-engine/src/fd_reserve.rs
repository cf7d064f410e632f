//! Descriptors held in reserve for work that must succeed when the process has no others: rejecting a client
//! with a reason, and starting the next engine.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};

/// Up to `count` placeholder descriptors.
#[derive(Debug)]
pub(crate) struct FdReserve {
    held: Vec<OwnedFd>,
    count: usize,
}

impl FdReserve {
    pub fn new(count: usize) -> FdReserve {
        let mut reserve = FdReserve { held: Vec::new(), count };
        reserve.refill();
        reserve
    }

    /// Reserve of an engine: enough for the threads of the next one, which inherits all descriptors of clients.
    pub fn for_engine(cores: usize) -> FdReserve {
        FdReserve::new(16 + 4 * cores)
    }

    /// Closes the placeholders.
    pub fn release(&mut self) {
        self.held.clear();
    }

    /// Opens as many placeholders as the limit allows.
    pub fn refill(&mut self) {
        while self.held.len() < self.count
            && let Ok(descriptor) = eventfd(0, EventfdFlags::CLOEXEC)
        {
            self.held.push(descriptor);
        }
    }
}
