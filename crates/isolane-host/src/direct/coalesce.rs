//! Coalescing: delays requests so that more of them are sent together (H9).
//!
//! Requests are delayed only while others are in flight. Flush, Force Unit Access, requests for the poll
//! class, and the admin queue are never delayed: lanes of the poll class always send, and without such lanes
//! an urgent request ends the delay for all.
//!
//! Invariant: no request is delayed longer than [`Coalesce::time`] after the turn that could have sent it.

use std::time::Instant;

use crate::lane_class::{LaneClass, LaneCounts};
use crate::options::Coalesce;
use crate::request::Request;

/// Requests delayed now.
#[derive(Debug)]
pub(crate) struct Coalescer {
    limits: Option<Coalesce>,
    requests: usize,
    bytes: usize,
    urgent: bool,
    since: Option<Instant>,
}

impl Coalescer {
    pub(super) fn new(limits: Option<Coalesce>) -> Coalescer {
        Coalescer { limits, requests: 0, bytes: 0, urgent: false, since: None }
    }

    /// Adds a request for a class. Returns whether it can be delayed.
    #[inline]
    pub(crate) fn add(&mut self, class: LaneClass, classes: &LaneCounts, request: &Request) -> bool {
        let is_polled = class == LaneClass::Poll;
        if self.limits.is_none() || is_polled && classes.poll > 0 {
            return false;
        }
        self.requests += 1;
        self.urgent |= is_polled;
        match request {
            Request::Read { .. } => {}
            Request::Write { buffer, fua, .. } => {
                self.bytes += buffer.len();
                self.urgent |= fua;
            }
            Request::WriteZeroes { fua, .. } => self.urgent |= fua,
            Request::Deallocate { .. } => {}
            Request::Flush => self.urgent = true,
        }
        true
    }

    /// Returns whether to delay sending. `outstanding` includes the delayed requests. After `false`, no
    /// request is delayed.
    #[inline]
    pub(super) fn should_wait(&mut self, outstanding: usize, now: Instant) -> bool {
        let Some(limits) = &self.limits else { return false };
        if self.requests == 0 {
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let is_full = self.requests >= limits.requests || self.bytes >= limits.bytes;
        let is_over = now.saturating_duration_since(since) >= limits.time;
        if !is_full && !is_over && !self.urgent && outstanding > self.requests {
            return true;
        }
        *self = Coalescer::new(self.limits);
        false
    }

    /// Returns whether requests are delayed, so that a turn must not sleep.
    #[inline]
    pub(super) fn is_delaying(&self) -> bool {
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

    fn coalescer(requests: impl IntoIterator<Item = Request>) -> Coalescer {
        let mut coalescer = Coalescer::new(Some(Coalesce::default()));
        requests.into_iter().for_each(|request| note(&mut coalescer, LaneClass::Default, request));
        coalescer
    }

    fn note(coalescer: &mut Coalescer, class: LaneClass, request: Request) {
        coalescer.add(class, &LaneCounts { default: 1, read: 0, poll: 0 }, &request);
    }

    #[test]
    fn never_delays_single_request() {
        let now = Instant::now();
        assert!(!coalescer([read()]).should_wait(1, now));
        assert!(!coalescer([read(), read()]).should_wait(2, now), "no other request is in flight");
        assert!(coalescer([read()]).should_wait(2, now));
    }

    #[test]
    fn each_limit_ends_delay() {
        let now = Instant::now();
        assert!(coalescer((0..15).map(|_| read())).should_wait(100, now));
        assert!(!coalescer((0..16).map(|_| read())).should_wait(100, now));
        assert!(!coalescer((0..2).map(|_| write(32_768, false))).should_wait(100, now));
        let mut held = coalescer([read()]);
        assert!(held.should_wait(100, now) && held.is_delaying());
        assert!(held.should_wait(100, now + Duration::from_micros(49)));
        assert!(!held.should_wait(100, now + Duration::from_micros(50)) && !held.is_delaying());
        assert!(!held.should_wait(100, now + Duration::from_micros(99)), "the remainder is not delayed");
    }

    #[test]
    fn never_delays_flush_and_fua() {
        let now = Instant::now();
        assert!(!coalescer([read(), Request::Flush]).should_wait(100, now));
        assert!(!coalescer([read(), write(512, true)]).should_wait(100, now));
        assert!(coalescer([read(), write(512, false)]).should_wait(100, now));
    }

    #[test]
    fn poll_request_ends_delay_on_shared_lane() {
        let now = Instant::now();
        let mut held = coalescer([read()]);
        held.add(LaneClass::Poll, &LaneCounts { default: 1, read: 0, poll: 1 }, &read());
        assert!(held.should_wait(100, now), "it has a separate lane");
        note(&mut held, LaneClass::Poll, read());
        assert!(!held.should_wait(100, now));
    }

    #[test]
    fn delays_nothing_without_limits() {
        let mut coalescer = Coalescer::new(None);
        note(&mut coalescer, LaneClass::Default, read());
        assert!(!coalescer.should_wait(100, Instant::now()));
    }
}
