//! Order of the long transfers of one connection: shortest remaining first.
//!
//! Every [`AGING_INTERVAL`]th transfer is the oldest, so that no transfer starves.
//!
//! Invariant: waiting transfers are in arrival order.

/// The waiting transfers.
pub(super) struct TransferScheduler<T> {
    waiting: Vec<Waiter<T>>,
    /// Number of turns, modulo 256.
    turns: u8,
}

struct Waiter<T> {
    left: usize,
    what: T,
}

impl<T> TransferScheduler<T> {
    pub(super) const fn new() -> TransferScheduler<T> {
        TransferScheduler { waiting: Vec::new(), turns: 0 }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Adds a transfer with `left` remaining bytes.
    pub(super) fn push(&mut self, what: T, left: usize) {
        self.waiting.push(Waiter { left, what });
    }

    /// The next transfer that is `eligible`; [`ScheduledTransfer::take`] ends its turn.
    pub(super) fn next(&mut self, mut eligible: impl FnMut(&T) -> bool) -> Option<ScheduledTransfer<'_, T>> {
        let is_for_oldest = self.turns % AGING_INTERVAL == AGING_INTERVAL - 1;
        let mut candidates = self.waiting.iter().enumerate().filter(|(_, waiter)| eligible(&waiter.what));
        let (at, _) =
            if is_for_oldest { candidates.next() } else { candidates.min_by_key(|(_, waiter)| waiter.left) }?;
        Some(ScheduledTransfer { at, all: self })
    }

    /// Drops all transfers.
    pub(super) fn clear(&mut self) {
        self.waiting = Vec::new();
    }
}

/// A scheduled transfer, whose turn can be used or skipped.
pub(super) struct ScheduledTransfer<'a, T> {
    at: usize,
    all: &'a mut TransferScheduler<T>,
}

impl<T> ScheduledTransfer<'_, T> {
    /// Remaining bytes.
    pub(super) fn left(&self) -> usize {
        self.all.waiting[self.at].left
    }

    pub(super) fn what(&mut self) -> &mut T {
        &mut self.all.waiting[self.at].what
    }

    /// Uses the turn for `count` bytes. Returns the transfer if no bytes remain.
    pub(super) fn take(self, count: usize) -> Option<T> {
        self.all.turns = self.all.turns.wrapping_add(1);
        let waiter = &mut self.all.waiting[self.at];
        waiter.left -= count;
        (waiter.left == 0).then(|| self.all.waiting.remove(self.at).what)
    }
}

/// Every turn with this number goes to the oldest transfer.
const AGING_INTERVAL: u8 = 4;
const _: () = assert!(AGING_INTERVAL.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;

    fn take(turns: &mut TransferScheduler<char>, count: usize) -> char {
        let mut turn = turns.next(|_| true).expect("a waiting transfer");
        let count = count.min(turn.left());
        let name = *turn.what();
        turn.take(count);
        name
    }

    #[test]
    fn shortest_first_but_every_fourth_turn_oldest() {
        let mut turns = TransferScheduler::new();
        turns.push('a', 400);
        turns.push('b', 300);
        turns.push('c', 200);
        let order: String = (0..9).map(|_| take(&mut turns, 100)).collect();
        assert_eq!(order, "ccbabbaaa");
        assert!(turns.is_empty());
    }

    #[test]
    fn long_transfer_does_not_starve() {
        let mut turns = TransferScheduler::new();
        turns.push('a', 1000);
        let order: String = (0..40)
            .map(|_| {
                turns.push('s', 1);
                take(&mut turns, 100)
            })
            .collect();
        assert_eq!(order.chars().filter(|who| *who == 'a').count(), 10);
        assert_eq!(order.find('a'), Some(3));
    }

    #[test]
    fn skips_ineligible_transfers() {
        let mut turns = TransferScheduler::new();
        turns.push('a', 1);
        turns.push('b', 2);
        assert_eq!(turns.next(|who| *who != 'a').map(|mut turn| *turn.what()), Some('b'));
        assert!(turns.next(|_| false).is_none());
        assert_eq!(turns.len(), 2);
    }
}
