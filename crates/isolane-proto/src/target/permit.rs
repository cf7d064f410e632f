//! Permits: tokens of accepted commands.
//!
//! Invariant: every accepted command that is not completed has one permit, held by the driver or, while
//! write data arrives, by the connection.

/// The right and the duty to answer one command.
///
/// It must reach [`Connection::complete`](super::Connection::complete),
/// [`Connection::complete_with_data`](super::Connection::complete_with_data),
/// [`Connection::receive_into`](super::Connection::receive_into), [`Connection::request_data`](super::Connection::request_data)
/// or [`Connection::abandon`](super::Connection::abandon), or, when the queue is gone, [`Permit::forfeit`]. Dropping it
/// otherwise is a bug that debug builds report by a panic.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an accepted command must be answered or abandoned"]
pub struct Permit {
    pub(super) slot: u16,
    pub(super) generation: u32,
    pub(super) cid: u16,
}

impl Permit {
    /// The command identifier the host chose.
    pub fn cid(&self) -> u16 {
        self.cid
    }

    /// The command's place in the queue: below the queue's size and free to index a table of the driver's,
    /// until the permit is given back.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// Gives the permit up because its queue no longer exists.
    pub fn forfeit(self) {
        std::mem::forget(self);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        debug_assert!(
            std::thread::panicking(),
            "the command with CID {:#06x} was dropped unanswered",
            self.cid
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "dropped unanswered")]
    fn dropping_permit_panics() {
        drop(Permit { slot: 1, generation: 2, cid: 3 });
    }

    #[test]
    fn permit_can_be_forfeited() {
        Permit { slot: 1, generation: 2, cid: 3 }.forfeit();
    }
}
