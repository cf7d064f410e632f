//! Retry of commands that the target refused for now: an error status without Do Not Retry (DNR).
//!
//! A command that has completed has no fate left to wait for, so it may be sent again without a fence of its
//! own, after the delay that its status selects (CRD): one of the three of Identify Controller (CRDT1-3), in
//! units of 100 ms, which hold once the host has enabled them (ACRE of Host Behavior Support), else at once.
//! Like any other write it waits for fences of lost associations (see `replay`). Invariants: a part is sent again at most [`RETRIES_MAX`] times, and waits
//! no longer than a command may take.
//!
//! Commands that sync are an exception: a Flush, and a write with FUA. After a failed sync a second one may
//! succeed without the data, because the system below reports the failure once. So they are sent again only if
//! their status says that they were not executed.

use std::time::{Duration, Instant};

use isolane_wire::Status;

use super::Client;
use super::flow::Run;
use super::task::{Operation, Part, Task};
use crate::error::RequestError;

/// Times that one command is sent again.
pub(super) const RETRIES_MAX: u8 = 5;

/// What CRD selects from, after "no delay": CRDT1-3.
pub(crate) type RetryDelays = [Duration; 3];

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
    /// `longest`: a command that is to wait for longer fails.
    pub(super) fn new(longest: Duration) -> Retries {
        Retries { delays: RetryDelays::default(), longest, waiting: Vec::new() }
    }

    /// The delays of a new association.
    pub(super) fn set_delays(&mut self, delays: RetryDelays) {
        self.delays = delays;
    }

    /// How long to wait before a command is sent again that was `retries` times before; `None`: not again.
    fn delay(&self, status: Status, operation: &Operation, retries: u8) -> Option<Duration> {
        let is_unexecuted = UNEXECUTED.iter().any(|unexecuted| status.is(*unexecuted));
        if status.dnr() || retries >= RETRIES_MAX || (operation.is_sync() && !is_unexecuted) {
            return None;
        }
        let delay = match status.crd() {
            0 => Duration::ZERO,
            crd => self.delays[usize::from(crd) - 1],
        };
        Some(delay).filter(|delay| *delay <= self.longest)
    }

    /// Has a part wait if it is to be sent again; says until when.
    fn admit(&mut self, part: Part, task: &mut Task, status: Status, now: Instant) -> Option<Instant> {
        let delay = self.delay(status, &task.operation, task.retries(part.part))?;
        task.note_retry(part.part);
        let due = now + delay;
        self.waiting.push((due, part));
        Some(due)
    }

    /// When the next part is due; `None` if none waits for a time.
    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.iter().map(|(due, _)| *due).min()
    }

    fn take_due(&mut self, now: Instant) -> Vec<Part> {
        self.waiting.extract_if(.., |(due, _)| now >= *due).map(|(_, part)| part).collect()
    }

    /// All requests have failed.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }
}

impl Client {
    /// A command has failed with this status: its part is sent again, now or later, or its task fails.
    pub(super) fn on_refused(&mut self, part: Part, status: Status) {
        let Some(task) = self.tasks.get_mut(part.task) else { return };
        let due = match task.has_failed() {
            false => self.retries.admit(part, task, status, self.now),
            true => None,
        };
        match due {
            Some(due) => {
                log::debug!("{}: {status}, command sent again", self.info.address);
                self.housekeeping = self.housekeeping.min(due);
            }
            None => {
                task.fail(error_of(status));
                task.left -= 1;
            }
        }
    }

    /// Sends the parts again whose delay has passed.
    pub(super) fn send_due_retries(&mut self) {
        for part in self.retries.take_due(self.now) {
            let Some(task) = self.tasks.get(part.task) else { continue };
            let lane = task.lane;
            self.backlogs[lane].push_front(Run::one(part));
            self.pump(lane);
        }
    }
}

fn error_of(status: Status) -> RequestError {
    match status.is(Status::TRANSIENT_TRANSPORT_ERROR) {
        true => RequestError::Damaged,
        false => RequestError::Status(status),
    }
}

#[cfg(test)]
mod tests {
    use super::super::task::tests::read;
    use super::*;

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
        assert_eq!(retries.delay(Status::WRITE_FAULT, &WRITE, RETRIES_MAX - 1), Some(Duration::ZERO));
        assert_eq!(retries.delay(Status::WRITE_FAULT, &WRITE, RETRIES_MAX), None);
    }

    #[test]
    fn flush_is_retried_only_if_it_was_not_executed() {
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
    fn parts_wait_for_their_delay_and_are_counted_each() {
        let (mut retries, mut task, start) = (retries(), read(0, 20), Instant::now());
        let part = |part| Part { task: 0, part };
        let soon = Status::NAMESPACE_NOT_READY.with_crd(1);
        assert_eq!(retries.admit(part(1), &mut task, soon, start), Some(start + 100 * MS));
        assert_eq!(retries.admit(part(0), &mut task, soon.with_crd(2), start), Some(start + 2500 * MS));
        assert_eq!(retries.next(), Some(start + 100 * MS));
        assert_eq!(retries.take_due(start + 99 * MS), []);
        assert_eq!(retries.take_due(start + 100 * MS), [part(1)]);
        for _ in 1..RETRIES_MAX {
            assert!(retries.admit(part(1), &mut task, soon, start).is_some());
        }
        assert_eq!(retries.admit(part(1), &mut task, soon, start), None);
        assert!(retries.admit(part(2), &mut task, soon, start).is_some());
    }
}
