//! Times of the bytes of a stream: `tx` and `rx`.
//!
//! Each poll compares the positions of the stream with those of the poll before, so a time of the application is known
//! to one turn of the core. After idle time, it is the time of the doorbell, which the application writes: not before
//! the last poll, and not in the future. It changes nothing but the numbers of the application's own streams.
//!
//! Invariant: the times of bytes in progress take a bounded memory, which is allocated when the stream is opened.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use isolane_observe::stage::Operation;
use isolane_reactor::clock;

use crate::observed::{Moved, Observer, Owner, Source, VolumeCells, on_our_clock};

/// Positions of a stream, in bytes from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Positions {
    /// Published by the application.
    pub pushed: u64,
    /// Accepted by the kernel.
    pub sent: u64,
    /// Received from the kernel.
    pub received: u64,
    /// Fetched by the application.
    pub fetched: u64,
}

/// Times of one stream.
pub(super) struct StreamTimes {
    observer: Rc<Observer>,
    /// `None` if nothing is recorded.
    cells: Option<Arc<VolumeCells>>,
    /// Positions at the last poll, and the start of its turn.
    last: Positions,
    polled: u64,
    /// The stream is not polled until its doorbell is rung or its socket is ready.
    idle: bool,
    /// Time of the first doorbell since the last poll; 0 without one.
    rung: u64,
    tx: Pending,
    rx: Pending,
}

/// Bytes of one direction that are in the engine.
#[derive(Debug)]
struct Pending {
    /// Position up to which bytes are recorded.
    done: u64,
    /// Ends of runs of bytes, and the times at which they came.
    runs: VecDeque<(u64, u64)>,
}

impl StreamTimes {
    /// For a stream at these positions. Bytes that it has received are not recorded.
    pub fn new(observer: &Rc<Observer>, owner: Owner, at: &Positions) -> StreamTimes {
        let cells = observer.add(owner, Source::Streams);
        let runs = if cells.is_some() { MAX_RUNS } else { 0 };
        StreamTimes {
            observer: Rc::clone(observer),
            cells,
            last: Positions { pushed: at.sent, ..*at },
            polled: observer.turn_ns(),
            idle: true,
            rung: 0,
            tx: Pending { done: at.sent, runs: VecDeque::with_capacity(runs) },
            rx: Pending { done: at.received, runs: VecDeque::with_capacity(runs) },
        }
    }

    /// Called when the application has rung at a time that it has written.
    pub fn on_doorbell(&mut self, at: u64) {
        if self.cells.is_some() && at > 0 && self.rung == 0 {
            let (monotonic, now) = (clock::monotonic(), self.observer.now());
            self.rung = self.bound(on_our_clock(at, now, monotonic));
        }
    }

    fn bound(&self, at: u64) -> u64 {
        at.max(self.polled).max(1)
    }

    /// Called after a poll.
    #[inline]
    pub fn on_poll(&mut self, at: &Positions) {
        if self.cells.is_some() {
            let turn = self.observer.turn_ns();
            if *at != self.last {
                self.record(at, turn);
            }
            (self.polled, self.idle, self.rung) = (turn, false, 0);
        }
    }

    /// Called when the stream is not polled again until the application or the kernel requests it.
    pub fn on_idle(&mut self) {
        self.idle = true;
    }

    fn record(&mut self, at: &Positions, turn: u64) {
        let StreamTimes { observer, cells: Some(cells), last, tx, rx, .. } = self else { return };
        let has_moved = at.sent != last.sent || at.received != last.received;
        let now = if has_moved { observer.now() } else { turn };
        let (pushed, fetched) = match (self.rung, self.idle) {
            (0, false) => (self.polled, turn),
            (0, true) => (turn, turn),
            (rung, _) => (rung, rung),
        };
        tx.add(at.pushed, pushed);
        tx.remove(at.sent, |bytes, since| {
            let ns = now.saturating_sub(since);
            observer.record_stream(cells, &Moved { operation: Operation::Write, stage: TX, bytes, ns }, now);
        });
        rx.add(at.received, now);
        rx.remove(at.fetched, |bytes, since| {
            let ns = fetched.saturating_sub(since);
            observer.record_stream(cells, &Moved { operation: Operation::Read, stage: RX, bytes, ns }, now);
        });
        self.last = *at;
    }
}

impl Pending {
    /// Adds the bytes before position `end` that came at a time. If there are too many runs, they count to the last one.
    #[inline]
    fn add(&mut self, end: u64, at: u64) {
        let last = self.runs.back().map_or(self.done, |(end, _)| *end);
        if end <= last {
            return;
        }
        if self.runs.len() < MAX_RUNS {
            self.runs.push_back((end, at));
        } else if let Some(last) = self.runs.back_mut() {
            last.0 = end;
        }
    }

    /// Removes the runs before position `to`, and calls `record` with the length and the time of each.
    #[inline]
    fn remove(&mut self, to: u64, mut record: impl FnMut(u64, u64)) {
        while let Some((end, at)) = self.runs.front().copied().filter(|(end, _)| *end <= to) {
            self.runs.pop_front();
            record(end - self.done, at);
            self.done = end;
        }
    }
}

impl Drop for StreamTimes {
    fn drop(&mut self) {
        self.cells.iter().for_each(|cells| self.observer.close(cells, Instant::now()));
    }
}

/// Positions of the stages in [`Side::stages`](isolane_observe::stage::Side::stages).
const TX: usize = 0;
const RX: usize = 1;
/// Runs of bytes of one direction that are timed separately.
const MAX_RUNS: usize = 8;

#[cfg(test)]
mod tests {
    use isolane_observe::snapshot::Series;
    use isolane_observe::stage::{Side, Stage};

    use super::*;
    use crate::observed::Observed;

    fn times(is_on: bool) -> (StreamTimes, Arc<Observed>) {
        let observed = Arc::new(Observed::new(is_on, &[0]));
        let observer = Observer::new(Arc::clone(&observed), 0);
        let owner = Owner { session: 1, application: Arc::from("fio (PID 7)") };
        (StreamTimes::new(&observer, owner, &Positions::default()), observed)
    }

    fn series(observed: &Observed, operation: Operation) -> Option<Series> {
        observed.volumes.all().0.iter().flat_map(|cells| cells.copy()).find(|at| at.operation == operation)
    }

    #[test]
    fn stages_add_up_to_the_total() {
        let (mut times, observed) = times(true);
        let at = |pushed, sent, received, fetched| Positions { pushed, sent, received, fetched };
        times.record(&at(64, 0, 0, 0), 1_000);
        (times.polled, times.idle) = (1_000, false);
        times.record(&at(128, 0, 64, 0), 5_000);
        let received_ns = times.rx.runs[0].1;
        assert_eq!(times.tx.runs, [(64, 1_000), (128, 1_000)]);
        times.record(&at(128, 128, 64, 0), 9_000);
        times.record(&at(128, 128, 64, 64), received_ns + 700);
        for (operation, stage, count) in [(Operation::Write, Stage::Tx, 2), (Operation::Read, Stage::Rx, 1)] {
            let series = series(&observed, operation).expect("numbers");
            let sum: u64 = Side::Stream.stages().iter().map(|stage| series.stage_sum_ns(*stage)).sum();
            assert_eq!((series.total.count(), series.total.sum_ns(), series.bytes), (count, sum, count * 64));
            assert_eq!((series.side, series.stage_sum_ns(stage)), (Side::Stream, sum));
        }
        assert_eq!(series(&observed, Operation::Read).expect("numbers").stage_sum_ns(Stage::Rx), 700);
    }

    #[test]
    fn counts_runs_beyond_the_limit_to_the_last() {
        let mut pending = Pending { done: 0, runs: VecDeque::with_capacity(MAX_RUNS) };
        let capacity = pending.runs.capacity();
        for at in 1..=3 * MAX_RUNS as u64 {
            pending.add(at * 10, at);
            pending.add(at * 10, at + 1);
        }
        assert_eq!((pending.runs.len(), pending.runs.capacity()), (MAX_RUNS, capacity));
        let mut removed = Vec::new();
        pending.remove(239, |bytes, at| removed.push((bytes, at)));
        assert_eq!(removed, [1, 2, 3, 4, 5, 6, 7].map(|at| (10, at)), "the last run is not complete");
        pending.remove(240, |bytes, at| removed.push((bytes, at)));
        assert_eq!(removed.last(), Some(&(170, 8)));
    }

    #[test]
    fn takes_time_of_doorbell_after_idle_time() {
        let (mut times, observed) = times(true);
        let pushed = |pushed| Positions { pushed, ..Positions::default() };
        (times.polled, times.rung) = (1_000, 2_000);
        times.record(&pushed(1), 3_000);
        times.rung = 0;
        times.record(&pushed(2), 4_000);
        times.idle = false;
        times.record(&pushed(3), 5_000);
        assert_eq!(times.tx.runs, [(1, 2_000), (2, 4_000), (3, 1_000)]);
        assert_eq!([0, 999, 1_001].map(|at| times.bound(at)), [1_000, 1_000, 1_001]);
        assert!(series(&observed, Operation::Write).is_none());
    }

    #[test]
    fn records_nothing_if_off() {
        let (mut times, observed) = times(false);
        times.on_doorbell(1);
        times.on_poll(&Positions { pushed: 1, sent: 1, received: 1, fetched: 1 });
        assert_eq!((times.rung, times.tx.runs.capacity()), (0, 0));
        assert!(observed.volumes.all().0.is_empty());
    }
}
