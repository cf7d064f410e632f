//! What the application is told of a stream in its notification queue.

use std::rc::Rc;
use std::time::{Duration, Instant};

use isolane_attach::layout::notice;

use crate::service::{Hostile, Notifier};

/// The entries that are due: one, or none.
pub(super) struct Notices {
    id: u32,
    queue: Option<Rc<Notifier>>,
    is_due: bool,
}

impl Notices {
    /// One is due at once: an engine before this one may have died between noticing and telling.
    pub fn new(id: u32, queue: Option<Rc<Notifier>>) -> Notices {
        Notices { id, is_due: queue.is_some(), queue }
    }

    /// Of which stream.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The application has asked to be told.
    pub fn owe(&mut self) {
        self.is_due = self.queue.is_some();
    }

    /// Tells it, if the queue has room.
    ///
    /// # Errors
    /// [`Hostile`].
    pub fn tell(&mut self) -> Result<(), Hostile> {
        if self.is_due
            && let Some(queue) = &self.queue
        {
            self.is_due = !queue.push(&notice::entry(self.id))?;
        }
        Ok(())
    }

    /// When to try again: the application's thread does not empty its queue.
    pub fn deadline(&self) -> Option<Instant> {
        self.is_due.then(|| Instant::now() + RETRY)
    }
}

/// When an entry is tried again for which a queue had no room.
const RETRY: Duration = Duration::from_millis(1);
