//! Requests that a volume completes later, from the same reactor or from any other thread.
//!
//! A volume returns [`Step::Pending`] and keeps the [`Completer`]. The driver registers the completion with its
//! reactor, which is woken when the request completes.
//!
//! Invariant: every pending request completes exactly once; dropping its completer fails it.

use std::any::Any;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use isolane_reactor::ExternalOp;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::{Outcome, Request, Step};
use crate::VolumeError;

impl Step {
    /// Returns a step that leaves `request` pending, and the handle that completes it.
    ///
    /// ```
    /// use isolane_memory::Payload;
    /// use isolane_volume::{Request, Step};
    ///
    /// let request = Request::Read { lba: 0, blocks: 8 };
    /// let (completer, step) = Step::pending(&request);
    /// std::thread::spawn(move || completer.complete(Ok(Payload::from(vec![0; 4096]))));
    /// assert!(matches!(step, Step::Pending(_)));
    /// ```
    pub fn pending(request: &Request) -> (Completer, Step) {
        let shared = Arc::new(Mutex::new(State::Unregistered));
        let pending = Pending { shared: Arc::clone(&shared), change: request.is_change(), work: None };
        (Completer { shared, change: pending.change, completed: false }, Step::Pending(pending))
    }
}

/// Completes a pending request, from any thread.
#[derive(Debug)]
pub struct Completer {
    shared: Arc<Mutex<State>>,
    change: bool,
    completed: bool,
}

/// A pending request, for the driver of the volume.
#[derive(Debug)]
pub struct Pending {
    shared: Arc<Mutex<State>>,
    pub(crate) change: bool,
    /// Work that the driver does to complete the request; see [`nested`](crate::nested).
    work: Option<Box<dyn Any + Send>>,
}

#[derive(Debug)]
enum State {
    /// Neither registered nor completed.
    Unregistered,
    /// The completion wakes this reactor.
    Registered(ExternalOp),
    Completed(Outcome),
    /// The driver has taken the outcome.
    Taken,
}

impl Completer {
    /// Completes the request: with the data of a read, or an empty payload for all others.
    pub fn complete(mut self, outcome: Outcome) {
        self.completed = true;
        self.finish(outcome);
    }

    fn finish(&self, outcome: Outcome) {
        if let State::Registered(op) = replace(&self.shared, State::Completed(outcome)) {
            op.complete();
        }
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        if !self.completed {
            self.finish(Err(failure(self.change)));
        }
    }
}

impl Pending {
    /// Registers the completion with the reactor that waits for it.
    pub fn register(&self, op: ExternalOp) {
        let mut state = self.shared.lock();
        match &*state {
            State::Unregistered => *state = State::Registered(op),
            State::Registered(_) | State::Completed(_) | State::Taken => op.complete(),
        }
    }

    pub(crate) fn attach_work(&mut self, work: Box<dyn Any + Send>) {
        self.work = Some(work);
    }

    pub(crate) fn take_work(&mut self) -> Option<Box<dyn Any + Send>> {
        self.work.take()
    }

    pub(crate) fn share(&self) -> Pending {
        Pending { shared: Arc::clone(&self.shared), change: self.change, work: None }
    }

    /// Waits until the request has completed, without a reactor.
    pub(crate) fn wait(&self) {
        while matches!(*self.shared.lock(), State::Unregistered | State::Registered(_)) {
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Takes the outcome of a completed request.
    pub(super) fn into_outcome(self) -> Outcome {
        match replace(&self.shared, State::Taken) {
            State::Completed(outcome) => outcome,
            State::Unregistered | State::Registered(_) | State::Taken => Err(failure(self.change)),
        }
    }
}

fn replace(shared: &Mutex<State>, state: State) -> State {
    std::mem::replace(&mut *shared.lock(), state)
}

fn failure(change: bool) -> VolumeError {
    let raw_os_error = Errno::IO.raw_os_error();
    if change { VolumeError::WriteFailed { raw_os_error } } else { VolumeError::ReadFailed { raw_os_error } }
}

/// Interval of checks after a driver has failed.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use isolane_memory::Payload;
    use isolane_reactor::{Event, Reactor, ReactorConfig};

    use super::*;
    use crate::Task;

    /// Registers the step, calls `then`, and waits for the outcome.
    fn wait(step: Step, then: impl FnOnce()) -> Outcome {
        let Step::Pending(pending) = step else { panic!("{step:?}") };
        let mut reactor = Reactor::new(ReactorConfig::default()).unwrap();
        let task = Task::from(&pending);
        pending.register(reactor.register_external(7));
        then();
        let (mut events, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(60));
        while reactor.files_in_flight() > 0 {
            reactor.turn(Some(deadline), &mut events).unwrap();
            assert!(Instant::now() < deadline, "no completion");
        }
        assert!(events.iter().any(|event| matches!(event, Event::File(finished) if finished.token == 7)));
        task.into_outcome()
    }

    fn read() -> (Completer, Step) {
        Step::pending(&Request::Read { lba: 0, blocks: 1 })
    }

    #[test]
    fn completes_from_another_thread() {
        let (completer, step) = read();
        let other = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            completer.complete(Ok(Payload::from(vec![5; 512])));
        });
        assert_eq!(wait(step, || ()).unwrap().to_vec(), [5; 512]);
        other.join().unwrap();
    }

    #[test]
    fn completes_before_and_after_registration() {
        let (completer, step) = read();
        completer.complete(Ok(Payload::default()));
        assert!(wait(step, || ()).is_ok());
        let (completer, step) = read();
        assert!(wait(step, || completer.complete(Ok(Payload::default()))).is_ok());
    }

    #[test]
    fn dropped_completer_fails_the_request() {
        let (completer, step) = Step::pending(&Request::Flush);
        drop(completer);
        assert_eq!(wait(step, || ()).unwrap_err(), VolumeError::ReadFailed { raw_os_error: 5 });
        let (completer, step) = read();
        assert!(wait(step, || drop(completer)).is_err());
    }
}
