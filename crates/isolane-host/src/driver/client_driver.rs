//! State that the leader of a service drives: the client, and the choice of a lane for each request.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_queue::ArrayQueue;

use crate::caller_queue::{CallerQueue, ReplyGuard, Submission};
use crate::client::Client;
use crate::error::RequestError;
use crate::info::{ConnectionStatus, EngineStatus};
use crate::lane_class::{LaneClass, LaneCounts};
use crate::reply::Reply;
use crate::request::{Completion, Request, Wait};

/// Maximum number of requests submitted in one turn, unless one caller alone has more.
const SUBMISSIONS_PER_TURN: usize = 256;

/// Maximum number of listed callers.
const MAX_CALLERS: usize = 1024;

/// Maximum number of queued messages.
pub(super) const MAX_MESSAGES: usize = 1024;

/// Work for the next leader.
pub(super) struct SubmissionQueue {
    /// Callers with submissions, each once.
    pub callers: ArrayQueue<Arc<CallerQueue>>,
    pub messages: ArrayQueue<Message>,
}

impl Default for SubmissionQueue {
    fn default() -> SubmissionQueue {
        SubmissionQueue { callers: ArrayQueue::new(MAX_CALLERS), messages: ArrayQueue::new(MAX_MESSAGES) }
    }
}

impl SubmissionQueue {
    pub fn is_empty(&self) -> bool {
        self.callers.is_empty() && self.messages.is_empty()
    }

    /// Fails all work.
    pub fn reject_all(&self) {
        while let Some(message) = self.messages.pop() {
            message.reject(RequestError::Closed);
        }
        while let Some(caller) = self.callers.pop() {
            caller.reject_all();
        }
    }
}

/// Message to the leader.
pub(super) enum Message {
    /// A request. Its fields drop in order: the buffer before the reply.
    Request { class: LaneClass, request: Request, reply: Reply },
    /// Requests the status of the client.
    Status(oneshot::Sender<ClientStatus>),
}

impl Message {
    pub fn reject(self, error: RequestError) {
        // Dropping a status request reports that there are no connections.
        let Message::Request { request, reply, .. } = self else { return };
        let rejected = Completion { tag: 0, result: Err(error), buffer: request.into_buffer() };
        reply.deliver(rejected).into_iter().for_each(|caller| caller.wake());
    }
}

/// Connections of a client.
#[derive(Default)]
pub(super) struct ClientStatus {
    pub connections: Vec<ConnectionStatus>,
    /// The engine that owns them, if they are not the client's.
    pub engine: Option<EngineStatus>,
}

/// A client, driven by the leader.
pub(super) struct ClientDriver {
    client: Client,
    /// The last lane used of each class.
    lanes_last: LaneCounts,
    /// Whether the last request came from a future: then only the service's thread drives the client.
    pub serving_futures: bool,
}

impl ClientDriver {
    pub fn new(client: Client) -> ClientDriver {
        let lanes_last = LaneCounts { default: 0, read: 0, poll: 0 };
        ClientDriver { client, lanes_last, serving_futures: false }
    }

    /// Requests without a completion.
    pub fn outstanding(&self) -> usize {
        self.client.outstanding()
    }

    /// Returns when the client must be turned even if nothing happens.
    pub fn housekeeping(&self) -> Instant {
        self.client.housekeeping()
    }

    /// Submits queued requests, turns the client once, and returns the number of outstanding requests.
    pub fn turn(&mut self, queue: &SubmissionQueue, wait: Wait) -> usize {
        let took_all = self.submit_queued(queue);
        self.client.turn(&mut Vec::new(), if took_all { wait } else { Wait::None });
        self.client.outstanding()
    }

    /// Submits all requests of one caller. Returns their number.
    pub fn submit_all(&mut self, caller: &Arc<CallerQueue>) -> usize {
        let mut count = 0;
        while let Some(Submission { class, request, tag }) = caller.take_submission() {
            let (class, lane) = self.next_lane(class, request.is_read());
            self.client.submit_with(class, lane, request, Reply::Caller(ReplyGuard::new(caller, tag)));
            count += 1;
        }
        count
    }

    /// Closes the association, then drops the replies of requests without a completion.
    pub fn close(self) {
        self.client.close();
    }

    /// Submits a bounded number of requests. Returns `false` if more may be queued.
    fn submit_queued(&mut self, queue: &SubmissionQueue) -> bool {
        let mut count = 0;
        while count < SUBMISSIONS_PER_TURN {
            if let Some(caller) = queue.callers.pop() {
                caller.on_dequeued();
                count += self.submit_all(&caller).max(1);
                self.serving_futures = false;
            } else if let Some(message) = queue.messages.pop() {
                self.handle_message(message);
                count += 1;
            } else {
                return true;
            }
        }
        false
    }

    fn handle_message(&mut self, message: Message) {
        match message {
            Message::Request { class, request, reply } => {
                self.serving_futures |= matches!(reply, Reply::Future(_));
                let (class, lane) = self.next_lane(class, request.is_read());
                self.client.submit_with(class, lane, request, reply);
            }
            Message::Status(sender) => {
                let (connections, engine) = (self.client.connections(), self.client.engine());
                // A dropped receiver needs no status.
                let _ = sender.send(ClientStatus { connections, engine });
            }
        }
    }

    /// Returns the class that serves a request, and its lanes in turn.
    fn next_lane(&mut self, class: LaneClass, is_read: bool) -> (LaneClass, usize) {
        let lanes = self.client.lanes();
        let class = lanes.serving(class, is_read);
        let lane = self.lanes_last.count_mut(class);
        *lane = if *lane + 1 < lanes.count(class) { *lane + 1 } else { 0 };
        (class, *lane)
    }
}
