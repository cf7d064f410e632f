//! Stages of the commands of one queue.
//!
//! | stage | from → to |
//! |---|---|
//! | `ring` | the application pushes the command → the poll that takes it |
//! | `held` … `deliver` | the stages of the client; `held` includes the time until the client has the command |
//! | `outcome` | the end of the client's turn → the outcome is published |
//! | `notice` | → the application takes it |
//!
//! The times of a push and of a take are the application's word. A push cannot be before the last poll that found no
//! command, a take not before the publication, and neither in the future: that bounds the stages. They change nothing
//! but the numbers of their own volume. Without a time of the take, `notice` is 0.
//!
//! Invariant: `published` has at most one entry for each outcome in the ring.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use isolane_host::{NamespaceInfo, RequestTimes};
use isolane_observe::cells::StageTimes;
use isolane_observe::stage::Operation;
use isolane_reactor::clock;

use crate::observed::{Commands, Observer, Owner, Source, VolumeCells, on_our_clock};

/// Times of the commands of one queue.
pub(super) struct CommandTimes {
    observer: Rc<Observer>,
    /// `None` if nothing is recorded.
    cells: Option<Arc<VolumeCells>>,
    /// Time of the last poll that found no command.
    last_empty: u64,
    /// Times of the completions of this turn, and the first of them that has commands left.
    runs: Vec<RequestTimes>,
    run: usize,
    completed: Vec<Completed>,
    /// Commands whose outcomes the application has not taken yet, as far as is known.
    published: VecDeque<Published>,
}

/// Consecutive commands that completed alike.
struct Completed {
    /// Index of their times.
    run: usize,
    push: Push,
    count: u64,
}

/// Commands whose outcomes were published at once.
struct Published {
    /// Position in the ring after these outcomes.
    end: u64,
    /// Time of the publication.
    at: u64,
    commands: Commands,
}

impl Default for Push {
    fn default() -> Push {
        Push { ring_ns: 0, lba: 0, operation: Operation::Read, bytes: 0 }
    }
}

/// What is known of a command when it is taken from its ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Push {
    /// Time in the ring, in nanoseconds.
    pub ring_ns: u64,
    /// First block.
    pub lba: u64,
    /// Kind of the command.
    pub operation: Operation,
    /// Length of the payload.
    pub bytes: u64,
}

/// The poll that takes commands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Poll {
    /// Its time on the [`clock`]; 0 if nothing is recorded.
    pub at: u64,
    /// Its time on the clock that the application can read.
    monotonic: u64,
    /// Maximum time of a command in the ring.
    longest: u64,
}

impl Poll {
    /// Returns how long a command that was pushed at this time has been in the ring; 0 without a time.
    #[inline]
    pub fn ring_ns(&self, pushed: u64) -> u64 {
        match pushed {
            0 => 0,
            pushed => self.monotonic.saturating_sub(pushed).min(self.longest),
        }
    }
}

impl CommandTimes {
    /// For a queue whose ring is empty until now.
    pub fn new(observer: &Rc<Observer>, owner: Owner, uri: &str) -> CommandTimes {
        CommandTimes {
            cells: observer.add(owner, Source::Volume(uri.to_owned())),
            last_empty: observer.now(),
            observer: Rc::clone(observer),
            runs: Vec::new(),
            run: 0,
            completed: Vec::new(),
            published: VecDeque::new(),
        }
    }

    /// Called when the volume is open.
    pub fn on_opened(&self, namespace: &NamespaceInfo) {
        self.cells.iter().for_each(|cells| cells.set_namespace(namespace));
    }

    /// Called when a poll of this turn has found the ring empty, or has taken all commands.
    #[inline]
    pub fn on_empty(&mut self) {
        self.last_empty = self.observer.turn_ns();
    }

    /// Called before commands are taken.
    #[inline]
    pub fn on_poll(&self) -> Poll {
        match self.cells {
            None => Poll::default(),
            Some(_) => {
                let (at, monotonic) = (self.observer.now(), clock::monotonic());
                Poll { at, monotonic, longest: at.saturating_sub(self.last_empty) }
            }
        }
    }

    /// Returns the list for the times of the next completions.
    pub fn runs(&mut self) -> &mut Vec<RequestTimes> {
        &mut self.runs
    }

    /// Records a failure.
    #[cold]
    pub fn on_failed(&self, push: &Push) {
        self.cells.iter().for_each(|cells| cells.add_error(push.operation, push.bytes));
    }

    /// Records the next success.
    #[inline]
    pub fn on_completed(&mut self, push: Push) {
        while self.runs.get(self.run).is_some_and(|run| run.count == 0) {
            self.run += 1;
        }
        let Some(run) = self.runs.get_mut(self.run) else { return };
        run.count -= 1;
        match self.completed.last_mut() {
            Some(last) if last.run == self.run && last.push.ring_ns == push.ring_ns => last.count += 1,
            _ => self.completed.push(Completed { run: self.run, push, count: 1 }),
        }
    }

    /// Called when the outcomes of all these completions are published, the last one before position `end`.
    pub fn on_published(&mut self, end: u64) {
        if self.cells.is_some() && !self.completed.is_empty() {
            let at = self.observer.now();
            for Completed { run, push, count } in &self.completed {
                let run = &self.runs[*run];
                let RequestTimes { operation, bytes, .. } = *run;
                let (stages, lba) = (stages(run, push.ring_ns, at), push.lba);
                let commands = Commands { operation, bytes, count: *count, stages, lba };
                self.published.push_back(Published { end, at, commands });
            }
        }
        self.completed.clear();
        self.runs.clear();
        self.run = 0;
    }

    /// Returns `true` if there are outcomes that the application has not taken yet.
    #[inline]
    pub fn has_published(&self) -> bool {
        !self.published.is_empty()
    }

    /// Records the commands whose outcomes the application has taken: all before position `taken`. `at` is the time of
    /// that, on the clock that the application can read; 0 if it tells none.
    #[inline]
    pub fn on_taken(&mut self, taken: u64, at: u64) {
        if self.published.front().is_some_and(|first| first.end <= taken) {
            let (monotonic, now) = (clock::monotonic(), self.observer.now());
            self.record_taken(taken, on_our_clock(at, now, monotonic), now);
        }
    }

    fn record_taken(&mut self, taken: u64, taken_at: u64, now: u64) {
        while let Some(Published { end, at, mut commands }) = self.published.pop_front() {
            if end > taken {
                self.published.push_front(Published { end, at, commands });
                return;
            }
            commands.stages[NOTICE] = taken_at.saturating_sub(at);
            self.cells.iter().for_each(|cells| self.observer.record(cells, &commands, now));
        }
    }
}

/// Position of the stage in [`Side::stages`](isolane_observe::stage::Side::stages).
const NOTICE: usize = 7;

impl Drop for CommandTimes {
    fn drop(&mut self) {
        self.cells.iter().for_each(|cells| self.observer.close(cells, Instant::now()));
    }
}

/// Returns the stages of commands whose outcomes were published at `now`.
fn stages(run: &RequestTimes, ring_ns: u64, now: u64) -> StageTimes {
    let [inbox, held, send, wait, data, deliver, ..] = run.stages;
    let outcome = now.saturating_sub(run.at);
    [ring_ns, inbox + held, send, wait, data, deliver, outcome, 0, 0]
}

#[cfg(test)]
mod tests {
    use isolane_observe::snapshot::Series;
    use isolane_observe::stage::{Side, Stage};

    use super::*;
    use crate::observed::Observed;

    fn run(count: u64, at: u64) -> RequestTimes {
        let stages = [1, 2, 4, 8, 16, 32, 0, 0, 0];
        RequestTimes { count, operation: Operation::Read, bytes: 4096, stages, at }
    }

    fn times(is_on: bool) -> (CommandTimes, Arc<Observed>) {
        let observed = Arc::new(Observed::new(is_on, &[0]));
        let observer = Observer::new(Arc::clone(&observed), 0);
        let owner = Owner { session: 1, application: Arc::from("fio (PID 7)") };
        (CommandTimes::new(&observer, owner, "uri"), observed)
    }

    fn series(observed: &Observed) -> Option<Series> {
        observed.volumes.all().0.iter().flat_map(|cells| cells.copy()).next()
    }

    /// Publishes an outcome at each of these times, as the only one of its turn.
    fn publish(times: &mut CommandTimes, at: &[u64]) {
        for (at, end) in at.iter().zip(1..) {
            times.runs().push(run(1, 0));
            times.on_completed(Push::default());
            times.on_published(end);
            times.published.back_mut().expect("one was published").at = *at;
        }
    }

    #[test]
    fn stages_add_up_to_the_total() {
        let (mut times, observed) = times(true);
        times.runs().extend([run(3, 0), run(0, 0), run(1, u64::MAX)]);
        for ring_ns in [100, 100, 200, 300] {
            times.on_completed(Push { ring_ns, ..Push::default() });
        }
        assert_eq!(times.completed.iter().map(|it| it.count).collect::<Vec<_>>(), [2, 1, 1]);
        times.on_completed(Push::default());
        times.on_failed(&Push::default());
        times.on_published(9);
        assert!(times.runs.is_empty() && times.completed.is_empty() && times.has_published());
        times.on_taken(8, clock::monotonic());
        assert_eq!(series(&observed).map_or(0, |series| series.total.count()), 0, "one is not taken");
        let late = times.published[0].at + 1_000_000;
        while clock::now() < late {}
        times.on_taken(9, clock::monotonic());
        assert!(!times.has_published());
        let series = series(&observed).expect("numbers");
        let sum: u64 = Side::Engine.stages().iter().map(|stage| series.stage_sum_ns(*stage)).sum();
        assert_eq!((series.total.count(), series.total.sum_ns()), (4, sum));
        assert_eq!((series.errors, series.bytes), (1, 4 * 4096));
        assert_eq!((series.stage_sum_ns(Stage::Ring), series.stage_sum_ns(Stage::Held)), (700, 4 * 3));
        assert!(series.stage_sum_ns(Stage::Outcome) > 0 && series.stage_sum_ns(Stage::Notice) > 0);
    }

    #[test]
    fn records_batches_that_were_taken() {
        let (mut times, observed) = times(true);
        publish(&mut times, &[1000, 3000, 6000]);
        times.record_taken(2, 5000, 7000);
        assert_eq!(times.published.iter().map(|it| it.end).collect::<Vec<_>>(), [3]);
        assert_eq!(series(&observed).expect("numbers").stage_sum_ns(Stage::Notice), 4000 + 2000);
        times.record_taken(3, 6500, 7000);
        assert_eq!(series(&observed).expect("numbers").stage_sum_ns(Stage::Notice), 6000 + 500);
        assert!(!times.has_published());
    }

    #[test]
    fn bounds_times_of_takes() {
        for (at, taken) in [(8_500, 4_500), (9_000, 5_000), (u64::MAX, 5_000), (3_000, 0), (1, 0), (0, 0)] {
            assert_eq!(on_our_clock(at, 5_000, 9_000), taken, "{at}");
        }
        let (mut times, observed) = times(true);
        publish(&mut times, &[4_600]);
        times.record_taken(u64::MAX, on_our_clock(8_500, 5_000, 9_000), 5_000);
        assert_eq!(series(&observed).expect("numbers").stage_sum_ns(Stage::Notice), 0, "before it");
    }

    #[test]
    fn bounds_the_times_that_applications_write() {
        let poll = Poll { at: 5_000, monotonic: 9_000, longest: 1_000 };
        for (pushed, ring_ns) in
            [(8_500, 500), (9_000, 0), (9_001, 0), (u64::MAX, 0), (7_999, 1_000), (1, 1_000), (0, 0)]
        {
            assert_eq!(poll.ring_ns(pushed), ring_ns, "{pushed}");
        }
    }

    #[test]
    fn records_nothing_if_off() {
        let (mut times, observed) = times(false);
        times.on_completed(Push::default());
        times.on_published(1);
        assert!(!times.has_published());
        assert_eq!((times.on_poll().at, times.on_poll().ring_ns(1)), (0, 0));
        assert!(observed.volumes.all().0.is_empty());
    }
}
