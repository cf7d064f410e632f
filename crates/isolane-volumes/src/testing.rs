//! Driver of volumes for tests: an executor and a reactor, as in the target.

use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_memory::{Buffer, Pool};
use isolane_reactor::{Event, Reactor, ReactorConfig};
use isolane_volume::nested::{Executor, Member};
use isolane_volume::{BlockRange, Outcome, Request, Step, Task, Volume, VolumeError};

/// Executes requests to one volume, one at a time.
pub(crate) struct Driver {
    pub volume: Arc<dyn Volume>,
    reactor: Reactor,
    executor: Executor,
    pub pool: Pool,
    /// Operations of members by token.
    members: Vec<Option<Member>>,
}

impl Driver {
    pub fn open(text: &str) -> Driver {
        Driver::new(crate::open(&crate::parse(text).unwrap()).unwrap())
    }

    pub fn new(volume: Arc<dyn Volume>) -> Driver {
        let reactor = Reactor::new(ReactorConfig::default()).unwrap();
        Driver { volume, reactor, executor: Executor::default(), pool: Pool::new(1024), members: Vec::new() }
    }

    pub fn read(&mut self, lba: u64, blocks: u64) -> Result<Vec<u8>, VolumeError> {
        self.run(Request::Read { lba, blocks }).map(|payload| payload.to_vec())
    }

    pub fn write(&mut self, lba: u64, bytes: &[u8], fua: bool) -> Result<(), VolumeError> {
        let mut data = self.pool.buffer(bytes.len()).unwrap();
        data.copy_in(0, bytes);
        self.write_buffer(lba, data, fua)
    }

    pub fn write_buffer(&mut self, lba: u64, data: Buffer, fua: bool) -> Result<(), VolumeError> {
        let blocks = data.len() as u64 / u64::from(self.volume.info().block_size);
        self.run(Request::Write { lba, blocks, data, fua }).map(drop)
    }

    pub fn zero(&mut self, lba: u64, blocks: u64) -> Result<(), VolumeError> {
        self.run(Request::WriteZeroes { lba, blocks, fua: true, deallocate: true }).map(drop)
    }

    pub fn deallocate(&mut self, lba: u64, blocks: u64) -> Result<(), VolumeError> {
        let ranges = [BlockRange { lba, blocks }].into_iter().collect();
        self.run(Request::Deallocate { ranges, fua: false }).map(drop)
    }

    pub fn flush(&mut self) -> Result<(), VolumeError> {
        self.run(Request::Flush).map(drop)
    }

    /// Runs a request to its end.
    pub fn run(&mut self, request: Request) -> Outcome {
        let volume = Arc::clone(&self.volume);
        let mut step = volume.start(request, &mut self.pool);
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let task = match step {
                Step::Done(outcome) => return outcome,
                Step::Retry(request) => {
                    assert!(Instant::now() < deadline, "{}: no progress", volume.name());
                    step = volume.start(request, &mut self.pool);
                    continue;
                }
                Step::File(operation, task) => {
                    self.reactor.submit_file(OUTER, volume.file().unwrap(), operation);
                    task
                }
                Step::Pending(mut pending) => {
                    let task = Task::from(&pending);
                    pending.take_nested().into_iter().for_each(|nested| self.executor.start(nested));
                    pending.register(self.reactor.register_external(OUTER));
                    task
                }
            };
            let completion = self.wait(deadline);
            step = volume.resume(task, completion.result, completion.operation, &mut self.pool);
        }
    }

    /// Drives the members until the outer operation completes.
    fn wait(&mut self, deadline: Instant) -> isolane_reactor::file::FileCompletion {
        let mut events = Vec::new();
        loop {
            self.submit_operations();
            assert!(Instant::now() < deadline, "{}: no completion", self.volume.name());
            let until = self.executor.deadline().map_or(deadline, |at| at.min(deadline));
            self.reactor.turn(Some(until), &mut events).unwrap();
            for event in events.drain(..) {
                let Event::File(completion) = event else { continue };
                if completion.token == OUTER {
                    return completion;
                }
                let member = self.members[completion.token as usize].take().unwrap();
                let (result, operation) = (completion.result, completion.operation);
                self.executor.resume(member, result, operation, Instant::now(), &mut self.pool);
            }
        }
    }

    fn submit_operations(&mut self) {
        while let Some(operation) = self.executor.poll(Instant::now(), &mut self.pool) {
            let token = self.members.len() as u64;
            self.members.push(Some(operation.submit(token, &mut self.reactor)));
        }
    }
}

/// Token of the request to the outer volume.
const OUTER: u64 = u64::MAX;
