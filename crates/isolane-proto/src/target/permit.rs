//! Permits: tokens of accepted commands.
//!
//! Invariant: every accepted command that is not completed has one permit, held by the driver or,
//! while write data arrives, by the connection.

/// The right and the obligation to complete one command.
///
/// It must reach [`Connection::complete`](super::Connection::complete),
/// [`Connection::complete_with_data`](super::Connection::complete_with_data),
/// [`Connection::receive_into`](super::Connection::receive_into),
/// [`Connection::request_data`](super::Connection::request_data),
/// [`Connection::abandon`](super::Connection::abandon), or, after the connection was dropped,
/// [`Permit::forfeit`]. Dropping it otherwise is a bug that debug builds report by a panic.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an accepted command must be completed or abandoned"]
pub struct Permit {
    pub(super) slot: u16,
    pub(super) generation: u32,
    pub(super) cid: u16,
}

impl Permit {
    /// The command identifier, chosen by the host.
    pub fn cid(&self) -> u16 {
        self.cid
    }

    /// The slot of the command: less than the queue size and unique while the permit exists, so
    /// that drivers can use it as an index.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// Drops the permit, because its connection no longer exists.
    pub fn forfeit(self) {
        std::mem::forget(self);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        debug_assert!(
            std::thread::panicking(),
            "the command with CID {:#06x} was dropped without completion",
            self.cid
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "dropped without completion")]
    fn dropping_permit_panics() {
        drop(Permit { slot: 1, generation: 2, cid: 3 });
    }

    #[test]
    fn permit_can_be_forfeited() {
        Permit { slot: 1, generation: 2, cid: 3 }.forfeit();
    }
}
