//! Thread that reads and changes lights.
//!
//! Invariant: two changes of one slot start at least [`PAUSE`] apart.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use super::{Interface, Light, LightError, Slot};
use crate::system::Root;

/// Shortest time between two changes of one slot.
pub const PAUSE: Duration = Duration::from_secs(5);

/// Time for a result after the limit of a child process.
const GRACE: Duration = Duration::from_secs(1);

/// Handle of the thread, which ends when the handle is dropped and all changes are made.
#[derive(Debug)]
pub struct Writer {
    jobs: Sender<Job>,
    pause: Duration,
    limit: fn(Interface) -> Duration,
}

type Job = Box<dyn FnOnce(&Root, &mut Pauses) + Send>;

/// Times from which the next change of each slot is allowed.
#[derive(Debug)]
struct Pauses {
    pause: Duration,
    next: BTreeMap<String, Instant>,
}

/// Result that is not known yet.
#[derive(Debug)]
pub struct Pending<T> {
    slot: String,
    deadline: Instant,
    limit: Duration,
    result: Receiver<Result<T, LightError>>,
}

impl Writer {
    /// Starts the thread.
    ///
    /// # Errors
    /// The error of the system.
    pub fn start(root: Root) -> io::Result<Writer> {
        Writer::with_times(root, PAUSE, Interface::limit)
    }

    pub(crate) fn with_times(
        root: Root,
        pause: Duration,
        limit: fn(Interface) -> Duration,
    ) -> io::Result<Writer> {
        let (jobs, received) = mpsc::channel::<Job>();
        let mut pauses = Pauses { pause, next: BTreeMap::new() };
        let run = move || received.iter().for_each(|job| job(&root, &mut pauses));
        std::thread::Builder::new().name("lights".into()).spawn(run)?;
        Ok(Writer { jobs, pause, limit })
    }

    /// Reads the lights of a slot that are on. The result is `None` if the interface cannot read them.
    pub fn read(&self, slot: &Slot) -> Pending<Option<Vec<Light>>> {
        let own = slot.clone();
        self.send(slot, Duration::ZERO, move |root, _| own.read(root))
    }

    /// Switches a light on or off.
    pub fn set(&self, slot: &Slot, light: Light, on: bool) -> Pending<()> {
        let (own, limit) = (slot.clone(), (self.limit)(slot.interface));
        self.send(slot, self.pause, move |root, pauses| {
            let now = Instant::now();
            std::thread::sleep(pauses.reserve(&own.shown(), now) - now);
            own.write(root, light, on, limit)
        })
    }

    fn send<T: Send + 'static>(
        &self,
        slot: &Slot,
        pause: Duration,
        f: impl FnOnce(&Root, &mut Pauses) -> Result<T, LightError> + Send + 'static,
    ) -> Pending<T> {
        let (sender, result) = mpsc::channel();
        // The caller may have stopped waiting.
        let job = Box::new(move |root: &Root, pauses: &mut Pauses| _ = sender.send(f(root, pauses)));
        // If the thread has ended, the sender of the result is dropped with the job.
        let _ = self.jobs.send(job);
        let grace = if slot.interface == Interface::Ledctl { GRACE } else { Duration::ZERO };
        let limit = (self.limit)(slot.interface) + pause + grace;
        Pending { slot: slot.shown(), deadline: Instant::now() + limit, limit, result }
    }
}

impl<T> Pending<T> {
    /// Waits for the result.
    ///
    /// # Errors
    /// The light cannot be read or changed, or there is no result within the limit of its interface.
    pub fn wait(self) -> Result<T, LightError> {
        self.wait_for(self.limit)
    }

    /// Waits for the result, for at most `limit`.
    ///
    /// # Errors
    /// As [`Pending::wait`], or there is no result within `limit`.
    pub fn wait_for(&self, limit: Duration) -> Result<T, LightError> {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        self.result.recv_timeout(remaining.min(limit)).unwrap_or_else(|_| Err(self.no_response(limit)))
    }

    /// Returns the result if it is known, or if there is none within the limit of its interface.
    pub fn poll(&self) -> Option<Result<T, LightError>> {
        match self.result.try_recv() {
            Ok(result) => Some(result),
            Err(_) => (Instant::now() >= self.deadline).then(|| Err(self.no_response(self.limit))),
        }
    }

    fn no_response(&self, limit: Duration) -> LightError {
        LightError::NoResponse { slot: self.slot.clone(), limit: limit.min(self.limit) }
    }
}

impl Pauses {
    /// Returns the start of a change that is requested now.
    fn reserve(&mut self, slot: &str, now: Instant) -> Instant {
        let start = self.next.get(slot).map_or(now, |next| now.max(*next));
        self.next.insert(slot.to_owned(), start + self.pause);
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_changes_of_one_slot() {
        let mut pauses = Pauses { pause: PAUSE, next: BTreeMap::new() };
        let now = Instant::now();
        let second = Duration::from_secs(1);
        assert_eq!(pauses.reserve("a", now), now);
        assert_eq!(pauses.reserve("b", now), now, "another slot does not wait");
        assert_eq!(pauses.reserve("a", now + second), now + PAUSE);
        assert_eq!(pauses.reserve("a", now + second), now + 2 * PAUSE);
        assert_eq!(pauses.reserve("a", now + 60 * second), now + 60 * second);
    }
}
