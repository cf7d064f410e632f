//! Queue of receives for many queue pairs, without the list of those that wait.
//!
//! Invariant: each receive goes to one queue pair, in the order of posting.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::memory::ProtectionDomain;
use crate::types::{PostError, ReceiveRequest};

/// Receives for many queue pairs.
pub struct ReceiveQueue {
    domain: Arc<ProtectionDomain>,
    max_receives: usize,
    max_sge: usize,
    receives: Mutex<Receives>,
}

#[derive(Default)]
struct Receives {
    requests: VecDeque<ReceiveRequest>,
    /// Number of receives below which an event is due; 0 for none.
    limit: usize,
}

/// A receive, and whether fewer than the limit are left.
pub(crate) struct Taken {
    pub(crate) request: ReceiveRequest,
    pub(crate) limit_reached: bool,
}

impl ReceiveQueue {
    /// Creates a queue of at most `max_receives` receives with up to `max_sge` SGEs each, in memory of
    /// `domain`.
    pub fn new(domain: Arc<ProtectionDomain>, max_receives: usize, max_sge: usize) -> Self {
        ReceiveQueue { domain, max_receives, max_sge, receives: Mutex::default() }
    }

    /// Posts a receive. Queue pairs that wait for one send again after their next
    /// [`fill_transmit_plan`](super::ReliableConnection::fill_transmit_plan).
    ///
    /// # Errors
    /// [`PostError::Full`] or [`PostError::Sges`].
    pub fn post(&self, request: ReceiveRequest) -> Result<(), PostError> {
        let sges = request.data.len();
        if sges > self.max_sge {
            return Err(PostError::Sges { sges, limit: self.max_sge });
        }
        let mut receives = self.receives.lock();
        if receives.requests.len() >= self.max_receives {
            return Err(PostError::Full(receives.requests.len()));
        }
        receives.requests.push_back(request);
        Ok(())
    }

    /// Removes the oldest receive with an identifier. Returns `false` if there is none.
    pub fn cancel(&self, id: u64) -> bool {
        let requests = &mut self.receives.lock().requests;
        let found = requests.iter().position(|request| request.id == id);
        found.is_some_and(|at| requests.remove(at).is_some())
    }

    /// Requests one [`AsyncEvent::LimitReached`](crate::AsyncEvent::LimitReached), when fewer than `limit` receives
    /// are left; 0 requests none.
    pub fn arm(&self, limit: usize) {
        self.receives.lock().limit = limit;
    }

    /// Returns the limit that is armed.
    pub fn limit(&self) -> usize {
        self.receives.lock().limit
    }

    /// Number of posted receives.
    pub fn len(&self) -> usize {
        self.receives.lock().requests.len()
    }

    /// Whether no receive is posted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the oldest receive.
    pub(crate) fn take(&self) -> Option<Taken> {
        self.take_if(|_| true)
    }

    /// Takes the oldest receive if it is suitable.
    pub(crate) fn take_if(&self, is_suitable: impl FnOnce(&ReceiveRequest) -> bool) -> Option<Taken> {
        let mut receives = self.receives.lock();
        receives.requests.front().filter(|request| is_suitable(request))?;
        let request = receives.requests.pop_front()?;
        let limit_reached = receives.requests.len() < receives.limit;
        if limit_reached {
            receives.limit = 0;
        }
        Some(Taken { request, limit_reached })
    }

    /// Returns the domain of the memory of its receives.
    pub(crate) fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::SgeList;

    fn request(id: u64) -> ReceiveRequest {
        ReceiveRequest { id, data: SgeList::new() }
    }

    #[test]
    fn is_bounded_and_in_order() {
        let queue = ReceiveQueue::new(Arc::default(), 2, 0);
        queue.post(request(1)).unwrap();
        queue.post(request(2)).unwrap();
        assert_eq!(queue.post(request(3)), Err(PostError::Full(2)));
        let ids: Vec<u64> = std::iter::from_fn(|| queue.take()).map(|taken| taken.request.id).collect();
        assert_eq!((ids, queue.is_empty()), (vec![1, 2], true));
    }

    #[test]
    fn reports_its_limit_once() {
        let queue = ReceiveQueue::new(Arc::default(), 8, 0);
        (0..4).for_each(|id| queue.post(request(id)).unwrap());
        queue.arm(3);
        let reports: Vec<bool> =
            std::iter::from_fn(|| queue.take()).map(|taken| taken.limit_reached).collect();
        assert_eq!(reports, [false, true, false, false]);
    }
}
