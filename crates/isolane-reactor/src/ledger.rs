//! What one socket has lent to the kernel, and when it is given back: no I/O.
//!
//! The kernel numbers the sends of a socket that copy nothing, from 0, and gives back ranges of numbers,
//! mostly in order (`MSG_ZEROCOPY`). Invariant: what was lent by a send stays here until the number of that
//! send was given back; a number that is not out is ignored.

use isolane_memory::Lent;
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The number of the next send.
    next: u32,
    /// Sends that are out, the oldest first; those given back out of order are empty.
    out: VecDeque<Option<Lent>>,
    /// The kernel copies on this route in any case.
    is_copied: bool,
    /// The kernel had no memory to keep accounts with; true until something is given back.
    is_short: bool,
}

/// What the kernel gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub first: u32,
    pub last: u32,
    /// It has copied nevertheless.
    pub is_copied: bool,
}

impl Ledger {
    /// Whether it is worth trying to send without a copy.
    pub fn is_useful(&self) -> bool {
        !self.is_copied && !self.is_short && self.out.len() < SENDS_MAX
    }

    /// Whether something is out.
    pub fn has_lent(&self) -> bool {
        !self.out.is_empty()
    }

    /// The kernel has taken a send; [`Ledger::lend`] says what lies behind it.
    pub fn on_sent(&mut self) {
        self.next = self.next.wrapping_add(1);
        self.out.push_back(Some(Lent::default()));
    }

    /// What the last send was made of.
    pub fn lend(&mut self, lent: Lent) {
        if let Some(Some(last)) = self.out.back_mut() {
            *last = lent;
        }
    }

    /// The kernel refused for want of memory.
    pub fn on_short(&mut self) {
        // With nothing out nothing would end the shortage.
        self.is_short = self.has_lent();
        self.is_copied |= !self.has_lent();
    }

    /// The kernel gives sends back. True if that tells for the first time that it copies.
    pub fn settle(&mut self, notice: Notice, mut give_back: impl FnMut(Lent)) -> bool {
        let oldest = self.next.wrapping_sub(self.out.len() as u32);
        let first = notice.first.wrapping_sub(oldest) as usize;
        let count = notice.last.wrapping_sub(notice.first) as usize + 1;
        if first < self.out.len() {
            self.is_short = false;
            self.out.iter_mut().skip(first).take(count).filter_map(Option::take).for_each(&mut give_back);
        }
        while let Some(None) = self.out.front() {
            self.out.pop_front();
        }
        notice.is_copied && !std::mem::replace(&mut self.is_copied, true)
    }

    /// Never lets go of what is still out: the kernel may read it at any time.
    pub fn forget(self) -> usize {
        let out: Vec<Lent> = self.out.into_iter().flatten().collect();
        let count = out.len();
        std::mem::forget(out);
        count
    }
}

/// Sends of one socket that may be out: more wait.
const SENDS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// A ledger whose sends so far were of 1, 2, 3, … bytes.
    fn ledger(sends: usize, first: u32) -> Ledger {
        let mut ledger = Ledger { next: first, ..Ledger::default() };
        for bytes in 1..=sends {
            ledger.on_sent();
            ledger.lend(Lent { bytes, ..Lent::default() });
        }
        ledger
    }

    fn settle(ledger: &mut Ledger, first: u32, last: u32) -> Vec<usize> {
        let mut back = Vec::new();
        ledger.settle(Notice { first, last, is_copied: false }, |lent| back.push(lent.bytes));
        back
    }

    #[test]
    fn what_was_lent_comes_back_by_its_number() {
        let mut ledger = ledger(3, 0);
        assert_eq!(settle(&mut ledger, 0, 0), [1]);
        assert!(ledger.has_lent());
        assert_eq!(settle(&mut ledger, 1, 2), [2, 3]);
        assert!(!ledger.has_lent());
    }

    #[test]
    fn a_later_send_given_back_first_frees_nothing_of_an_earlier_one() {
        let mut ledger = ledger(3, 0);
        assert_eq!(settle(&mut ledger, 1, 2), [2, 3]);
        assert!(ledger.has_lent());
        ledger.on_sent();
        assert_eq!(settle(&mut ledger, 0, 0), [1]);
        assert_eq!(settle(&mut ledger, 3, 3), [0]);
        assert!(!ledger.has_lent());
    }

    #[test]
    fn what_is_given_back_twice_or_was_never_out_is_ignored() {
        let mut ledger = ledger(2, 0);
        assert_eq!(settle(&mut ledger, 0, 0), [1]);
        assert_eq!(settle(&mut ledger, 0, 0), [0usize; 0]);
        assert_eq!(settle(&mut ledger, 7, 9), [0usize; 0]);
        assert_eq!(settle(&mut ledger, 1, u32::MAX), [2]);
    }

    #[test]
    fn numbers_begin_again_after_the_last() {
        let mut ledger = ledger(4, u32::MAX - 1);
        assert_eq!(settle(&mut ledger, u32::MAX - 1, 0), [1, 2, 3]);
        assert_eq!(settle(&mut ledger, 1, 1), [4]);
    }

    #[test]
    fn a_kernel_that_copies_is_told_once_and_asked_no_more() {
        let mut ledger = ledger(2, 0);
        assert!(ledger.is_useful());
        assert!(ledger.settle(Notice { first: 0, last: 0, is_copied: true }, drop));
        assert!(!ledger.settle(Notice { first: 1, last: 1, is_copied: true }, drop));
        assert!(!ledger.is_useful());
    }

    #[test]
    fn a_shortage_ends_when_something_is_given_back_and_with_nothing_out_it_is_for_good() {
        let mut ledger = ledger(1, 0);
        ledger.on_short();
        assert!(!ledger.is_useful());
        settle(&mut ledger, 0, 0);
        assert!(ledger.is_useful());
        ledger.on_short();
        assert!(!ledger.is_useful());
    }
}
