//! Notification of an application about a stream.

use std::rc::Rc;
use std::time::{Duration, Instant};

use isolane_engine_api::layout::notification;

use crate::object::{Notifier, ProtocolViolation};

/// At most one entry that is due in a notification queue.
pub(super) struct PendingNotification {
    id: u32,
    queue: Option<Rc<Notifier>>,
    due: bool,
}

impl PendingNotification {
    /// An entry is due initially: a previous engine may have ended before it sent one.
    pub fn new(id: u32, queue: Option<Rc<Notifier>>) -> PendingNotification {
        PendingNotification { id, due: queue.is_some(), queue }
    }

    /// ID of the stream.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Called when the application must be notified.
    pub fn mark_due(&mut self) {
        self.due = self.queue.is_some();
    }

    /// Sends a due entry, if the queue has space.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn send(&mut self) -> Result<(), ProtocolViolation> {
        if self.due
            && let Some(queue) = &self.queue
        {
            self.due = !queue.push(&notification::entry(self.id))?;
        }
        Ok(())
    }

    /// Time of the next attempt, if the application has not emptied its queue.
    pub fn deadline(&self) -> Option<Instant> {
        self.due.then(|| Instant::now() + RETRY_DELAY)
    }
}

/// Delay before an entry is sent again to a full queue.
const RETRY_DELAY: Duration = Duration::from_millis(1);
