//! Requests to one volume on the reactor of the calling thread, for servers other than the target.
//!
//! The driver owns the reactor and the pool, and passes both to each call. Its turn is:
//!
//! 1. [`Reactor::turn`], then [`VolumeQueue::begin_turn`].
//! 2. Each event to [`VolumeQueue::handle_file`] or [`VolumeQueue::handle_readable`]; new requests to
//!    [`VolumeQueue::start`].
//! 3. [`VolumeQueue::end_turn`], and [`VolumeQueue::poll`] until it returns `None`.
//!
//! Invariant: each started request completes exactly once, in any order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_memory::Pool;
use isolane_reactor::file::FileCompletion;
use isolane_reactor::{Reactor, Token};
use slotmap::{DefaultKey, Key, KeyData, SlotMap};

use crate::nested::{Executor, Member};
use crate::request::task::TaskState;
use crate::{CoreParts, Outcome, Pending, Request, Step, Task, Volume};

/// Requests of one thread to one volume.
pub struct VolumeQueue {
    /// Dropped first: the end of the volume waits for requests that the parts complete.
    parts: CoreParts,
    volume: Arc<dyn Volume>,
    executor: Executor,
    /// Operations in the reactor, by their tokens.
    work: SlotMap<DefaultKey, Work>,
    /// Requests that the volume could not start, with their tags.
    blocked: VecDeque<(u64, Request)>,
    completed: VecDeque<(u64, Outcome)>,
    in_flight: usize,
    now: Instant,
}

/// An operation in the reactor.
enum Work {
    Own { tag: u64, task: Task },
    Member(Member),
}

impl VolumeQueue {
    /// Takes the parts of the volume, which this thread drives from now on.
    pub fn new(volume: Arc<dyn Volume>, reactor: &mut Reactor) -> VolumeQueue {
        let now = Instant::now();
        let mut parts = CoreParts::default();
        parts.take(0, &*volume, reactor, now);
        VolumeQueue {
            parts,
            volume,
            executor: Executor::default(),
            work: SlotMap::default(),
            blocked: VecDeque::new(),
            completed: VecDeque::new(),
            in_flight: 0,
            now,
        }
    }

    /// Returns the volume.
    pub fn volume(&self) -> &Arc<dyn Volume> {
        &self.volume
    }

    /// Returns the number of requests that have not completed.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the requests that complete outside of the driver.
    pub(crate) fn pending(&self) -> Vec<Pending> {
        let pending = self.work.values().filter_map(|work| match work {
            Work::Own { task: Task(TaskState::Pending(pending)), .. } => Some(pending.share()),
            _ => None,
        });
        pending.collect()
    }

    /// Starts a request; its completion has `tag`.
    pub fn start(&mut self, tag: u64, request: Request, reactor: &mut Reactor, pool: &mut Pool) {
        self.in_flight += 1;
        let step = self.volume.start(request, pool);
        self.advance(tag, step, reactor, pool);
    }

    /// Continues a request that another thread started at the volume, with the step that it got.
    pub fn adopt(&mut self, tag: u64, step: Step, reactor: &mut Reactor, pool: &mut Pool) {
        self.in_flight += 1;
        self.advance(tag, step, reactor, pool);
    }

    /// Returns a completed request.
    pub fn poll(&mut self) -> Option<(u64, Outcome)> {
        self.completed.pop_front()
    }

    /// Starts a turn after the reactor's.
    pub fn begin_turn(&mut self, now: Instant) {
        self.now = now;
        self.parts.finish_waits();
    }

    /// Handles a readable descriptor. Ignores those of the driver.
    pub fn handle_readable(&mut self, token: Token) {
        self.parts.handle_readable(token);
    }

    /// Handles a file operation, or the completion of a pending request.
    pub fn handle_file(&mut self, finished: FileCompletion, reactor: &mut Reactor, pool: &mut Pool) {
        let FileCompletion { token, result, operation, .. } = finished;
        match self.work.remove(KeyData::from_ffi(token).into()) {
            Some(Work::Own { tag, task }) => {
                let step = self.volume.resume(task, result, operation, pool);
                self.advance(tag, step, reactor, pool);
            }
            Some(Work::Member(member)) => {
                self.executor.resume(member, result, operation, self.now, pool);
                self.run_nested(reactor, pool);
            }
            None => log::error!("{}: an unknown operation completed", self.volume.name()),
        }
    }

    /// Retries requests, and drives the parts of the volume.
    pub fn end_turn(&mut self, reactor: &mut Reactor, pool: &mut Pool) {
        for _ in 0..self.blocked.len().min(RETRIES_PER_TURN) {
            let Some((tag, request)) = self.blocked.pop_front() else { break };
            let step = self.volume.start(request, pool);
            self.advance(tag, step, reactor, pool);
        }
        if self.executor.has_work(self.now) {
            self.run_nested(reactor, pool);
        }
        self.parts.drive(reactor, self.now);
    }

    /// Returns the latest start of the next turn.
    pub fn deadline(&self) -> Option<Instant> {
        let retry = (!self.blocked.is_empty()).then(|| self.now + RETRY_DELAY);
        let done = (!self.completed.is_empty()).then_some(self.now);
        [retry, done, self.executor.deadline(), self.parts.deadline()].into_iter().flatten().min()
    }

    fn advance(&mut self, tag: u64, step: Step, reactor: &mut Reactor, pool: &mut Pool) {
        match step {
            Step::Done(outcome) => {
                self.in_flight -= 1;
                self.completed.push_back((tag, outcome));
            }
            Step::File(operation, task) => {
                let token = self.work.insert(Work::Own { tag, task }).data().as_ffi();
                match self.volume.file() {
                    Some(file) => reactor.submit_file(token, file, operation),
                    None => unreachable!("a volume without a file requested a file operation"),
                }
            }
            Step::Pending(mut pending) => {
                let nested = pending.take_nested();
                let token = self.work.insert(Work::Own { tag, task: Task::from(&pending) }).data().as_ffi();
                pending.register(reactor.register_external(token));
                if let Some(nested) = nested {
                    self.executor.start(nested);
                    self.run_nested(reactor, pool);
                }
            }
            Step::Retry(request) => self.blocked.push_back((tag, request)),
        }
    }

    /// Submits the operations of nested requests.
    fn run_nested(&mut self, reactor: &mut Reactor, pool: &mut Pool) {
        while let Some(operation) = self.executor.poll(self.now, pool) {
            self.work.insert_with_key(|token| Work::Member(operation.submit(token.data().as_ffi(), reactor)));
        }
    }
}

/// Number of requests that one turn retries.
const RETRIES_PER_TURN: usize = 64;
/// Delay before requests are retried.
const RETRY_DELAY: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use isolane_memory::{Buffer, Payload};
    use isolane_reactor::{Event, ReactorConfig};
    use smallvec::smallvec;

    use super::*;
    use crate::{BlockRange, open, spec};

    /// Starts the requests together, and returns their outcomes in the order of their tags.
    fn run(volume: &Arc<dyn Volume>, requests: Vec<Request>) -> Vec<Outcome> {
        let (mut reactor, mut pool) = (Reactor::new(ReactorConfig::default()).unwrap(), Pool::new(1024));
        let mut queue = VolumeQueue::new(Arc::clone(volume), &mut reactor);
        let count = requests.len();
        for (tag, request) in requests.into_iter().enumerate() {
            queue.start(tag as u64, request, &mut reactor, &mut pool);
        }
        let (mut outcomes, mut events) = (Vec::new(), Vec::new());
        let limit = Instant::now() + Duration::from_secs(60);
        while outcomes.len() < count {
            assert!(Instant::now() < limit, "{} of {count} requests completed", outcomes.len());
            reactor.turn(queue.deadline().or(Some(limit)), &mut events).unwrap();
            queue.begin_turn(reactor.now());
            for event in events.drain(..) {
                if let Event::File(finished) = event {
                    queue.handle_file(finished, &mut reactor, &mut pool);
                }
            }
            queue.end_turn(&mut reactor, &mut pool);
            outcomes.extend(std::iter::from_fn(|| queue.poll()));
        }
        assert_eq!(queue.in_flight(), 0);
        let tags: HashSet<u64> = outcomes.iter().map(|(tag, _)| *tag).collect();
        assert_eq!(tags.len(), count);
        outcomes.sort_by_key(|(tag, _)| *tag);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }

    fn write(lba: u64, fill: u8) -> Request {
        let mut data = Buffer::contiguous(4096);
        data.copy_in(0, &[fill; 4096]);
        Request::Write { lba, blocks: 8, data, fua: fill == 3 }
    }

    #[test]
    fn completes_requests_of_files_and_memory() {
        let dir = tempfile::tempdir().unwrap();
        let file = format!("{},size=64M", dir.path().join("disk").display());
        for text in ["mem:64M", &file] {
            let volume = open(&spec::parse(text).unwrap()).unwrap();
            // Writes of the same blocks wait for each other.
            let writes = run(&volume, (0..4).flat_map(|fill| [write(0, fill), write(8, fill)]).collect());
            assert!(writes.iter().all(Result::is_ok), "{text}: {writes:?}");
            let ranges = smallvec![BlockRange { lba: 8, blocks: 8 }];
            let changes = vec![
                Request::Flush,
                Request::Deallocate { ranges, fua: false },
                Request::WriteZeroes { lba: 16, blocks: 100_000, fua: false, deallocate: true },
            ];
            assert!(run(&volume, changes).iter().all(Result::is_ok), "{text}");
            let reads = run(&volume, vec![Request::Read { lba: 0, blocks: 16 }]);
            let bytes = reads[0].as_ref().map(Payload::to_vec).unwrap();
            assert!(bytes[..4096].iter().all(|byte| *byte == bytes[0] && *byte < 4), "{text}: torn blocks");
            assert_eq!(bytes[4096..], [0; 4096], "{text}");
            let outside = run(&volume, vec![Request::Read { lba: 1 << 40, blocks: 1 }]);
            assert!(outside[0].is_err(), "{text}");
        }
    }
}
