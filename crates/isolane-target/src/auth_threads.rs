//! Side threads that run the exponentiations of hosts that authenticate, and post the results to the cores.
//!
//! An exponentiation takes up to some tens of milliseconds, during which a core would serve nothing.
//!
//! Invariant: the number of threads, and of requests that wait, is bounded; one address cannot use up the queue; and
//! no core waits for a thread.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use isolane_proto::auth::Work;
use parking_lot::{Condvar, Mutex};

use crate::shared::{Message, Shared};
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
    fn next(&self) -> Option<AuthRequest> {
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

/// Starts the threads.
///
/// # Errors
/// The error of the system. [`AuthRequests::close`] ends the threads that run already.
pub(crate) fn spawn(shared: &Arc<Shared>) -> std::io::Result<Vec<JoinHandle<()>>> {
    let spawn = |_| {
        let shared = Arc::clone(shared);
        thread::Builder::new().name("isolane-auth".to_owned()).spawn(move || serve(&shared))
    };
    (0..THREADS).map(spawn).collect()
}

fn serve(shared: &Shared) {
    // Handshakes yield to I/O. A system that refuses this serves them with the same priority.
    let _ = rustix::process::nice(NICE);
    while let Some(AuthRequest { work, lane, core, .. }) = shared.auth_requests.next() {
        shared.post(core, Message::Computed { lane, computed: Box::new(work.run()) });
    }
}

const THREADS: usize = 2;
/// Most exponentiations that wait: about a second of them with FFDHE3072.
const MAX_REQUESTS: usize = 256;
/// The same for hosts at one address: enough for all queues of one host at the same time.
const MAX_REQUESTS_OF_PEER: usize = MAX_REQUESTS / 2;
const NICE: i32 = 10;
