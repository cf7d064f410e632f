//! Driver of requests to volumes outside of a target, on the calling thread.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::mpsc;
use std::time::Instant;

use isolane_memory::{Payload, Pool};
use isolane_reactor::{Event, Mode, Reactor, ReactorConfig};
use isolane_volume::nested::{Executor, Member};
use isolane_volume::{NestedIo, Request, Step, Task, VolumeError};

use crate::EIO;

/// Runs one future at a time.
pub(crate) struct Driver {
    reactor: Reactor,
    executor: Executor,
    pool: Pool,
    /// Operations of members by token.
    members: HashMap<u64, Member>,
    next_token: u64,
}

impl Driver {
    /// Creates a driver that sleeps while it waits.
    pub fn new() -> io::Result<Driver> {
        let config = ReactorConfig { mode: Mode::Sleep, ..ReactorConfig::default() };
        let reactor = Reactor::new(config).map_err(io::Error::other)?;
        let (executor, pool) = (Executor::default(), Pool::new(MAX_PAGES));
        Ok(Driver { reactor, executor, pool, members: HashMap::new(), next_token: OUTER + 1 })
    }

    /// Runs requests to volumes, and returns their result.
    pub fn run<T, F>(&mut self, run: impl FnOnce(NestedIo) -> F) -> Result<T, VolumeError>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (sender, result) = mpsc::channel();
        let step = Step::nested(Request::Flush, |io, _| {
            let future = run(io);
            async move {
                // The receiver waits for it.
                let _ = sender.send(future.await);
                Ok(Payload::default())
            }
        });
        let Step::Pending(mut pending) = step else { unreachable!("a nested request is pending") };
        let task = Task::from(&pending);
        pending.take_nested().into_iter().for_each(|nested| self.executor.start(nested));
        pending.register(self.reactor.register_external(OUTER));
        let (mut events, mut is_done) = (Vec::new(), false);
        while !is_done {
            self.submit_operations();
            let turn = self.reactor.turn(self.executor.deadline(), &mut events);
            turn.map_err(|error| VolumeError::ReadFailed {
                raw_os_error: error.raw_os_error().unwrap_or(0),
            })?;
            for event in events.drain(..) {
                let Event::File(completion) = event else { continue };
                is_done |= completion.token == OUTER;
                if let Some(member) = self.members.remove(&completion.token) {
                    let (result, operation) = (completion.result, completion.operation);
                    self.executor.resume(member, result, operation, Instant::now(), &mut self.pool);
                }
            }
        }
        task.into_outcome()?;
        result.recv().map_err(|_| VolumeError::ReadFailed { raw_os_error: EIO })
    }

    fn submit_operations(&mut self) {
        while let Some(operation) = self.executor.poll(Instant::now(), &mut self.pool) {
            let token = self.next_token;
            self.next_token += 1;
            self.members.insert(token, operation.submit(token, &mut self.reactor));
        }
    }
}

const MAX_PAGES: usize = 256;
const OUTER: u64 = 0;
