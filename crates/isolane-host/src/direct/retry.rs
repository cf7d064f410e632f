//! Retry of commands that the target refused for now: an error status without Do Not Retry (DNR).
//!
//! A completed command has no unknown fate, so it can be sent again without a fence, after the delay that its
//! status selects (CRD): one of three delays of Identify Controller (CRDT1-3), in units of 100 ms, if the
//! host has enabled them (ACRE of Host Behavior Support); otherwise immediately. Like any other write, it
//! waits for fences of lost associations (see `replay`).
//!
//! Invariants: a part is sent again at most [`MAX_RETRIES`] times, and waits no longer than a command may
//! take.
//!
//! Commands that sync are an exception: a Flush, and a write with FUA. After a failed sync, a second one may
//! succeed without the data, because the system below reports the failure once. So they are retried only if
//! their status means that they were not executed.

use std::time::{Duration, Instant};

use isolane_wire::Status;

use super::Direct;
use crate::client_state::ClientState;
use crate::connect::RetryDelays;
use crate::error::RequestError;
use crate::operation::Operation;
use crate::request_table::{Part, PartRange, RequestSlot};

/// Maximum number of retries of one command.
pub(super) const MAX_RETRIES: u8 = 5;

/// Statuses of commands that were not executed.
const UNEXECUTED: [Status; 11] = [
    Status::ABORTED_BY_REQUEST,
    Status::ABORTED_SQ_DELETION,
    Status::ABORTED_PREEMPT,
    Status::SANITIZE_IN_PROGRESS,
    Status::COMMAND_INTERRUPTED,
    Status::TRANSIENT_TRANSPORT_ERROR,
    Status::NAMESPACE_NOT_READY,
    Status::FORMAT_IN_PROGRESS,
    Status::ANA_PERSISTENT_LOSS,
    Status::ANA_INACCESSIBLE,
    Status::ANA_TRANSITION,
];

/// Parts that wait to be sent again.
#[derive(Debug)]
pub(super) struct Retries {
    delays: RetryDelays,
    longest: Duration,
    waiting: Vec<(Instant, Part)>,
}

impl Retries {
    /// A command whose delay exceeds `longest` fails.
    pub(super) fn new(longest: Duration) -> Retries {
        Retries { delays: RetryDelays::default(), longest, waiting: Vec::new() }
    }

    /// Sets the delays of a new association.
    pub(super) fn set_delays(&mut self, delays: RetryDelays) {
        self.delays = delays;
    }

    /// Returns the delay before the next retry of a command, or `None` if it must not be retried.
    fn delay(&self, status: Status, operation: &Operation, retries: u8) -> Option<Duration> {
        let is_unexecuted = UNEXECUTED.iter().any(|unexecuted| status.is(*unexecuted));
        if status.dnr() || retries >= MAX_RETRIES || (operation.is_sync() && !is_unexecuted) {
            return None;
        }
        let delay = match status.crd() {
            0 => Duration::ZERO,
            crd => self.delays[usize::from(crd) - 1],
        };
        Some(delay).filter(|delay| *delay <= self.longest)
    }

    /// Schedules a retry of a part if its status allows one. Returns when it is due.
    fn schedule(
        &mut self,
        part: Part,
        request: &mut RequestSlot,
        status: Status,
        now: Instant,
    ) -> Option<Instant> {
        let delay = self.delay(status, &request.operation, request.retries(part.index))?;
        request.record_retry(part.index);
        let due = now + delay;
        self.waiting.push((due, part));
        Some(due)
    }

    /// Returns when the next part is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.iter().map(|(due, _)| *due).min()
    }

    fn take_due(&mut self, now: Instant) -> Vec<Part> {
        self.waiting.extract_if(.., |(due, _)| now >= *due).map(|(_, part)| part).collect()
    }

    /// Drops all retries, because all requests have failed.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }
}

impl Direct {
    /// Handles the error status of a part: retries it now or later, or fails its request.
    pub(super) fn on_error_status(&mut self, state: &mut ClientState, part: Part, status: Status) {
        let Some(request) = state.requests.get_mut(part.slot) else { return };
        let due =
            if !request.has_failed() { self.retries.schedule(part, request, status, self.now) } else { None };
        match due {
            Some(due) => {
                log::debug!("{}: {status}, retrying command", state.info.address);
                self.housekeeping = self.housekeeping.min(due);
            }
            None => state.complete_part(part, Err(error_of(status))),
        }
    }

    /// Sends the parts whose delay has passed.
    pub(super) fn send_due_retries(&mut self, state: &mut ClientState) {
        for part in self.retries.take_due(self.now) {
            let Some(request) = state.requests.get(part.slot) else { continue };
            let lane = request.lane;
            self.backlogs[lane].push_front(PartRange::one(part));
            self.pump(state, lane);
        }
    }
}

fn error_of(status: Status) -> RequestError {
    if status.is(Status::TRANSIENT_TRANSPORT_ERROR) {
        RequestError::DataDigest
    } else {
        RequestError::Status(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_table::tests::read;

    const MS: Duration = Duration::from_millis(1);
    const WRITE: Operation = Operation::Write { fua: false };

    fn retries() -> Retries {
        let mut retries = Retries::new(30_000 * MS);
        retries.set_delays([100 * MS, 2500 * MS, 6_553_500 * MS]);
        retries
    }

    #[test]
    fn delay_follows_dnr_and_crd() {
        let retries = retries();
        let delay = |status| retries.delay(status, &WRITE, 0);
        assert_eq!(delay(Status::WRITE_FAULT), Some(Duration::ZERO));
        assert_eq!(delay(Status::WRITE_FAULT.with_crd(1)), Some(100 * MS));
        assert_eq!(delay(Status::new(7, 0xc0).with_crd(2)), Some(2500 * MS), "a vendor's status");
        assert_eq!(delay(Status::WRITE_FAULT.with_crd(3)), None, "longer than a command may take");
        assert_eq!(delay(Status::WRITE_FAULT.with_crd(1).with_dnr(true)), None);
        assert_eq!(retries.delay(Status::WRITE_FAULT, &WRITE, MAX_RETRIES - 1), Some(Duration::ZERO));
        assert_eq!(retries.delay(Status::WRITE_FAULT, &WRITE, MAX_RETRIES), None);
    }

    #[test]
    fn retries_flush_only_if_not_executed() {
        let delay = |status| retries().delay(status, &Operation::Flush(Default::default()), 0);
        for status in UNEXECUTED {
            assert_eq!(delay(status), Some(Duration::ZERO), "{status}");
            assert_eq!(delay(status.with_dnr(true)), None, "{status}");
        }
        for status in [Status::WRITE_FAULT, Status::INTERNAL_ERROR, Status::DATA_TRANSFER_ERROR] {
            assert_eq!(delay(status), None, "{status}");
        }
    }

    #[test]
    fn counts_retries_of_each_part() {
        let (mut retries, mut request, start) = (retries(), read(0, 20), Instant::now());
        let part = |index| Part { slot: 0, index };
        let soon = Status::NAMESPACE_NOT_READY.with_crd(1);
        assert_eq!(retries.schedule(part(1), &mut request, soon, start), Some(start + 100 * MS));
        assert_eq!(retries.schedule(part(0), &mut request, soon.with_crd(2), start), Some(start + 2500 * MS));
        assert_eq!(retries.next(), Some(start + 100 * MS));
        assert_eq!(retries.take_due(start + 99 * MS), []);
        assert_eq!(retries.take_due(start + 100 * MS), [part(1)]);
        for _ in 1..MAX_RETRIES {
            assert!(retries.schedule(part(1), &mut request, soon, start).is_some());
        }
        assert_eq!(retries.schedule(part(1), &mut request, soon, start), None);
        assert!(retries.schedule(part(2), &mut request, soon, start).is_some());
    }
}
