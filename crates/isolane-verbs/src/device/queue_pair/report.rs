//! Completions of a queue pair on their way to the completion queues.
//!
//! Invariant: a receive succeeds only if all messages before it are in the queue.

use super::{QueuePairContext, SharedQueuePair};
use crate::types::{CompletedOperation, Completion, Queue, Status, WorkCompletion};

impl SharedQueuePair {
    /// Moves completions to their queues. If one has no room for them, the queue pair fails.
    pub(super) fn report_completions(&self, context: &mut QueuePairContext) {
        let mut is_flooded = false;
        while let Some(queue) = context.connection.next_completion() {
            let completions = match queue {
                Queue::Send => &self.config.send_queue,
                Queue::Receive => &self.config.receive_queue,
            };
            // Nothing but the program limits WRITEs that consume no receive. They must not take the room of other queue pairs.
            let mut room = match self.config.write_id {
                Some(_) if queue == Queue::Receive => completions.free_half(),
                _ => usize::MAX,
            };
            let report = |mut done: Completion| {
                if is_flooded && queue == Queue::Receive {
                    (done.status, done.length, done.immediate) = (Status::Flushed, 0, None);
                }
                if self.config.on_completion.as_ref().is_some_and(|is_queued| !is_queued(queue, &done)) {
                    return None;
                }
                if done.operation == CompletedOperation::ReceiveWrite && (is_flooded || room == 0) {
                    is_flooded = true;
                    return None;
                }
                room = room.saturating_sub(1);
                Some(WorkCompletion { queue_pair: self.number, completion: done })
            };
            let finished = std::iter::from_fn(|| context.connection.poll_completion_of(queue));
            let observer = context.observer.as_deref_mut().filter(|_| queue == Queue::Send);
            let is_intact = completions.extend(finished.filter_map(report), observer);
            if !is_intact || is_flooded {
                context.connection.fail();
            }
        }
    }
}
