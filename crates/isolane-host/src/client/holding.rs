//! Holding requests back for a moment, so that more of them go out in one send (H9).
//!
//! Only while others are in flight: a request that would go alone waits for nobody, and so does one without
//! which nothing else comes. Flush, Force Unit Access, what asks for the poll class, and everything on the
//! admin queue are never held: lanes of the poll class are sent from in any case, and where there are none an
//! urgent request ends the hold for all. Invariant: nothing is held longer than [`Hold::time`] beyond the
//! turn that could have sent it.

use std::time::Instant;

use crate::classes::{Class, Classes};
use crate::options::Hold;
use crate::request::Request;

/// What is held back now.
#[derive(Debug)]
pub(super) struct Holding {
    hold: Option<Hold>,
    requests: usize,
    bytes: usize,
    is_urgent: bool,
    since: Option<Instant>,
}

impl Holding {
    pub(super) fn new(hold: Option<Hold>) -> Holding {
        Holding { hold, requests: 0, bytes: 0, is_urgent: false, since: None }
    }

    /// A request comes in that asks for a class.
    #[inline]
    pub(super) fn note(&mut self, class: Class, classes: &Classes, request: &Request) {
        let is_polled = class == Class::Poll;
        if self.hold.is_none() || is_polled && classes.poll > 0 {
            return;
        }
        self.requests += 1;
        self.is_urgent |= is_polled;
        match request {
            Request::Read { .. } => {}
            Request::Write { buffer, fua, .. } => {
                self.bytes += buffer.len();
                self.is_urgent |= fua;
            }
            Request::WriteZeroes { fua, .. } => self.is_urgent |= fua,
            Request::Deallocate { .. } => {}
            Request::Flush => self.is_urgent = true,
        }
    }

    /// Whether to send nothing yet; `outstanding` counts the held requests, too. If not, nothing is held any
    /// more.
    #[inline]
    pub(super) fn holds(&mut self, outstanding: usize, now: Instant) -> bool {
        let Some(hold) = &self.hold else { return false };
        if self.requests == 0 {
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let is_full = self.requests >= hold.requests || self.bytes >= hold.bytes;
        let is_over = now.saturating_duration_since(since) >= hold.time;
        if !is_full && !is_over && !self.is_urgent && outstanding > self.requests {
            return true;
        }
        *self = Holding::new(self.hold);
        false
    }

    /// Whether something is held, so that a turn must not sleep.
    #[inline]
    pub(super) fn is_holding(&self) -> bool {
        self.since.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isolane_memory::Buffer;
    use std::time::Duration;

    fn read() -> Request {
        Request::Read { lba: 0, buffer: Buffer::contiguous(512) }
    }

    fn write(bytes: usize, fua: bool) -> Request {
        Request::Write { lba: 0, buffer: Buffer::contiguous(bytes), fua }
    }

    fn holding(requests: impl IntoIterator<Item = Request>) -> Holding {
        let mut holding = Holding::new(Some(Hold::default()));
        requests.into_iter().for_each(|request| note(&mut holding, Class::Default, request));
        holding
    }

    fn note(holding: &mut Holding, class: Class, request: Request) {
        holding.note(class, &Classes { default: 1, read: 0, poll: 0 }, &request);
    }

    #[test]
    fn a_lone_request_is_never_held() {
        let now = Instant::now();
        assert!(!holding([read()]).holds(1, now));
        assert!(!holding([read(), read()]).holds(2, now), "nothing comes without them");
        assert!(holding([read()]).holds(2, now));
    }

    #[test]
    fn a_number_of_requests_or_of_bytes_or_a_time_ends_the_hold() {
        let now = Instant::now();
        assert!(holding((0..15).map(|_| read())).holds(100, now));
        assert!(!holding((0..16).map(|_| read())).holds(100, now));
        assert!(!holding((0..2).map(|_| write(32_768, false))).holds(100, now));
        let mut held = holding([read()]);
        assert!(held.holds(100, now) && held.is_holding());
        assert!(held.holds(100, now + Duration::from_micros(49)));
        assert!(!held.holds(100, now + Duration::from_micros(50)) && !held.is_holding());
        assert!(!held.holds(100, now + Duration::from_micros(99)), "what is left to send is not held");
    }

    #[test]
    fn flush_and_force_unit_access_are_never_held() {
        let now = Instant::now();
        assert!(!holding([read(), Request::Flush]).holds(100, now));
        assert!(!holding([read(), write(512, true)]).holds(100, now));
        assert!(holding([read(), write(512, false)]).holds(100, now));
    }

    #[test]
    fn what_asks_for_the_poll_class_is_not_held_and_ends_the_hold_only_where_it_shares_a_lane() {
        let now = Instant::now();
        let mut held = holding([read()]);
        held.note(Class::Poll, &Classes { default: 1, read: 0, poll: 1 }, &read());
        assert!(held.holds(100, now), "it has a lane of its own");
        note(&mut held, Class::Poll, read());
        assert!(!held.holds(100, now));
    }

    #[test]
    fn without_a_hold_nothing_is_held() {
        let mut holding = Holding::new(None);
        note(&mut holding, Class::Default, read());
        assert!(!holding.holds(100, Instant::now()));
    }
}
