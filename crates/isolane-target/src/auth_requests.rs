//! Exponentiations of hosts that authenticate, which wait for a side thread.
//!
//! Invariant: the number of requests is bounded, and one address cannot use up the queue.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Weak;

use isolane_proto::auth::Work;
use parking_lot::{Condvar, Mutex};

use crate::slab::LaneId;

/// An exponentiation, and the lane that waits for it.
pub(crate) struct AuthRequest {
    pub work: Work,
    pub lane: LaneId,
    /// Core that owns the lane.
    pub core: usize,
    pub peer: IpAddr,
    /// Dropped when the lane no longer waits: its connection has ended, at the latest because its time to
    /// authenticate is over.
    pub waits: Weak<()>,
}

/// Requests of all cores that no thread has taken.
#[derive(Default)]
pub(crate) struct AuthRequests {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<AuthRequest>,
    is_closed: bool,
}

impl AuthRequests {
    /// Queues a request. Returns `false` if too many wait.
    pub(crate) fn send(&self, request: AuthRequest) -> bool {
        let mut queue = self.queue.lock();
        queue.requests.retain(|waiting| waiting.waits.strong_count() > 0);
        let of_peer = queue.requests.iter().filter(|waiting| waiting.peer == request.peer).count();
        if queue.is_closed || queue.requests.len() >= MAX_REQUESTS || of_peer >= MAX_REQUESTS_OF_PEER {
            return false;
        }
        queue.requests.push_back(request);
        self.changed.notify_one();
        true
    }

    /// Ends the threads after the exponentiations in progress.
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.is_closed = true;
        queue.requests.clear();
        self.changed.notify_all();
    }

    /// Waits for a request that a lane waits for; `None` once the queue is closed.
    pub(crate) fn next(&self) -> Option<AuthRequest> {
        let mut queue = self.queue.lock();
        loop {
            if queue.is_closed {
                return None;
            }
            match queue.requests.pop_front() {
                Some(request) if request.waits.strong_count() > 0 => return Some(request),
                Some(_) => {}
                None => self.changed.wait(&mut queue),
            }
        }
    }
}

/// Most exponentiations that wait: about a second of them with FFDHE3072.
const MAX_REQUESTS: usize = 256;
/// The same for hosts at one address: enough for all queues of one host at the same time.
const MAX_REQUESTS_OF_PEER: usize = MAX_REQUESTS / 2;
