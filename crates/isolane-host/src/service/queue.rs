//! Requests and other work that callers queue for the leader of a service.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use crate::caller_queue::CallerQueue;
use crate::error::RequestError;
use crate::info::{ConnectionStatus, EngineStatus};
use crate::lane_class::LaneClass;
use crate::reply::Reply;
use crate::request::{Completion, Request};

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
    Request { class: LaneClass, request: Request, reply: Reply, submitted: u64 },
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
pub(crate) struct ClientStatus {
    pub connections: Vec<ConnectionStatus>,
    /// The engine that owns them, if they are not the client's.
    pub engine: Option<EngineStatus>,
}
