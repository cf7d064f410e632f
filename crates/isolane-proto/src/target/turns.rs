//! Whose turn it is among long transfers of one connection: the one with the shortest rest, but every
//! [`AGEING`]th turn goes to the one that waits longest, so that nothing long starves.
//!
//! It does not know what is transferred. Invariant: those that wait stand in the order in which they came.

/// Those that wait for a turn.
pub(super) struct Turns<T> {
    waiting: Vec<Waiter<T>>,
    turns: u8,
}

struct Waiter<T> {
    left: usize,
    what: T,
}

impl<T> Turns<T> {
    pub(super) const fn new() -> Turns<T> {
        Turns { waiting: Vec::new(), turns: 0 }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Waits from now on, with `left` bytes to go.
    pub(super) fn enter(&mut self, what: T, left: usize) {
        self.waiting.push(Waiter { left, what });
    }

    /// Whose turn it is among those that `may` have one, if there is any; [`Turns::take`] ends the turn.
    pub(super) fn next(&mut self, mut may: impl FnMut(&T) -> bool) -> Option<Turn<'_, T>> {
        let is_for_oldest = self.turns % AGEING == AGEING - 1;
        let mut able = self.waiting.iter().enumerate().filter(|(_, waiter)| may(&waiter.what));
        let (at, _) = match is_for_oldest {
            true => able.next(),
            false => able.min_by_key(|(_, waiter)| waiter.left),
        }?;
        Some(Turn { at, all: self })
    }

    /// Those that wait, whoever's turn it is.
    pub(super) fn each_mut(&mut self, each: impl FnMut(&mut T)) {
        self.waiting.iter_mut().map(|waiter| &mut waiter.what).for_each(each);
    }

    /// Gives all up.
    pub(super) fn clear(&mut self) {
        self.waiting = Vec::new();
    }
}

/// A turn that can be used or left alone.
pub(super) struct Turn<'a, T> {
    at: usize,
    all: &'a mut Turns<T>,
}

impl<T> Turn<'_, T> {
    /// Bytes to go.
    pub(super) fn left(&self) -> usize {
        self.all.waiting[self.at].left
    }

    pub(super) fn what(&mut self) -> &mut T {
        &mut self.all.waiting[self.at].what
    }

    /// Uses the turn for so many bytes; gives back who has none left.
    pub(super) fn take(self, count: usize) -> Option<T> {
        self.all.turns = self.all.turns.wrapping_add(1);
        let waiter = &mut self.all.waiting[self.at];
        waiter.left -= count;
        (waiter.left == 0).then(|| self.all.waiting.remove(self.at).what)
    }
}

/// One turn in so many goes to who waits longest.
const AGEING: u8 = 4;
const _: () = assert!(AGEING.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;

    fn take(turns: &mut Turns<char>, count: usize) -> char {
        let mut turn = turns.next(|_| true).expect("somebody waits");
        let count = count.min(turn.left());
        let who = *turn.what();
        turn.take(count);
        who
    }

    #[test]
    fn the_shortest_rest_goes_first_and_one_turn_in_four_to_the_oldest() {
        let mut turns = Turns::new();
        turns.enter('a', 400);
        turns.enter('b', 300);
        turns.enter('c', 200);
        let order: String = (0..9).map(|_| take(&mut turns, 100)).collect();
        assert_eq!(order, "ccbabbaaa");
        assert!(turns.is_empty());
    }

    #[test]
    fn nothing_starves_whatever_comes_in_later() {
        let mut turns = Turns::new();
        turns.enter('a', 1000);
        let order: String = (0..40)
            .map(|_| {
                turns.enter('s', 1);
                take(&mut turns, 100)
            })
            .collect();
        assert_eq!(order.chars().filter(|who| *who == 'a').count(), 10);
        assert_eq!(order.find('a'), Some(3));
    }

    #[test]
    fn who_may_not_is_passed_over() {
        let mut turns = Turns::new();
        turns.enter('a', 1);
        turns.enter('b', 2);
        assert_eq!(turns.next(|who| *who != 'a').map(|mut turn| *turn.what()), Some('b'));
        assert!(turns.next(|_| false).is_none());
        assert_eq!(turns.len(), 2);
    }
}
