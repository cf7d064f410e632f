//! Shared receives of a device: a shared receive queue whose posts continue the queue pairs that wait for one.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::progress::{Member, Progress};
use crate::connection::{PostError, SharedReceiveQueue};
use crate::memory::ProtectionDomain;
use crate::work::ReceiveRequest;

/// Receives for many queue pairs of a device.
pub struct SharedReceives {
    queue: Arc<SharedReceiveQueue>,
    progress: Arc<Progress>,
    /// Queue pairs that have refused a request for lack of a receive.
    waiting: Mutex<Vec<Weak<dyn Member>>>,
}

impl SharedReceives {
    pub(super) fn new(
        progress: Arc<Progress>,
        domain: Arc<ProtectionDomain>,
        max_receives: usize,
        max_elements: usize,
    ) -> SharedReceives {
        let queue = Arc::new(SharedReceiveQueue::new(domain, max_receives, max_elements));
        SharedReceives { queue, progress, waiting: Mutex::default() }
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`PostError::Full`] or [`PostError::Elements`].
    pub fn post(&self, request: ReceiveRequest) -> Result<(), PostError> {
        self.queue.post(request)?;
        let waiting = std::mem::take(&mut *self.progress.lock(&self.waiting));
        waiting.iter().filter_map(Weak::upgrade).for_each(|member| self.progress.mark_pending(&member));
        Ok(())
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

    pub(super) fn queue(&self) -> &Arc<SharedReceiveQueue> {
        &self.queue
    }

    /// Continues a queue pair after the next post.
    pub(super) fn wait(&self, member: Weak<dyn Member>) {
        self.progress.lock(&self.waiting).push(member);
    }
}
