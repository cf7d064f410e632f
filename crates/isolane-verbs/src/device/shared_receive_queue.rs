//! Shared receive queue of a device: its posts continue the queue pairs that wait for one.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::progress::{Driven, Progress};
use crate::connection::ReceiveQueue;
use crate::memory::ProtectionDomain;
use crate::types::{PostError, ReceiveRequest};

/// Receives for many queue pairs of a device.
pub struct SharedReceiveQueue {
    queue: Arc<ReceiveQueue>,
    progress: Arc<Progress>,
    /// Queue pairs that have refused a request for lack of a receive.
    waiting: Mutex<Vec<Weak<dyn Driven>>>,
}

impl SharedReceiveQueue {
    pub(super) fn new(
        progress: Arc<Progress>,
        domain: Arc<ProtectionDomain>,
        max_receives: usize,
        max_sge: usize,
    ) -> SharedReceiveQueue {
        let queue = Arc::new(ReceiveQueue::new(domain, max_receives, max_sge));
        SharedReceiveQueue { queue, progress, waiting: Mutex::default() }
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`PostError::Full`] or [`PostError::Sges`].
    pub fn post(&self, request: ReceiveRequest) -> Result<(), PostError> {
        self.queue.post(request)?;
        let waiting = std::mem::take(&mut *self.progress.lock(&self.waiting));
        waiting.iter().filter_map(Weak::upgrade).for_each(|driven| self.progress.mark_pending(&driven));
        Ok(())
    }

    /// Removes the oldest receive with an identifier. Returns `false` if a queue pair has it, or there is none.
    pub fn cancel(&self, id: u64) -> bool {
        self.queue.cancel(id)
    }

    /// Requests one [`AsyncEvent::LimitReached`](crate::AsyncEvent::LimitReached) when fewer than `limit` receives are
    /// left; 0 requests none.
    pub fn arm(&self, limit: usize) {
        self.queue.arm(limit);
    }

    /// Returns the limit that is armed.
    pub fn limit(&self) -> usize {
        self.queue.limit()
    }

    /// Number of posted receives.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether no receive is posted.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn queue(&self) -> &Arc<ReceiveQueue> {
        &self.queue
    }

    /// Continues a queue pair after the next post.
    pub(super) fn wait(&self, driven: Weak<dyn Driven>) {
        self.progress.lock(&self.waiting).push(driven);
    }
}
