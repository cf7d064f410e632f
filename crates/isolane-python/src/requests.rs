//! Table of the requests of a connection.
//!
//! Invariant: a request keeps its memory until its completion has arrived, also if the program has dropped it.

use std::sync::Arc;

use isolane_verbs::{Completion, Status};

use crate::memory::Registered;

/// Requests by their id, which is the index of the slot.
#[derive(Default)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Number of requests in flight: of the send queue, and receives.
    pub(crate) in_flight: [usize; 2],
    /// A thread waits in the completion queue for all.
    pub(crate) has_leader: bool,
    /// An event loop waits for the notice.
    pub(crate) is_watched: bool,
    /// Text of the first failure, which has ended the connection.
    pub(crate) first_failure: Option<String>,
}

/// A request, for messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Description {
    pub(crate) operation: &'static str,
    pub(crate) len: usize,
    pub(crate) is_receive: bool,
}

/// Result of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    /// Number of received bytes, and immediate data.
    Success(u64, Option<u32>),
    Failed(Status),
    /// The connection was closed by this program.
    Closed,
}

enum Slot {
    Free,
    Pending { description: Description, memory: Option<Arc<Registered>>, is_abandoned: bool },
    Done(Description, Outcome),
}

impl Table {
    /// Adds a request that keeps `memory`. Returns its id.
    pub(crate) fn insert(&mut self, description: Description, memory: Option<Arc<Registered>>) -> usize {
        self.in_flight[usize::from(description.is_receive)] += 1;
        let slot = Slot::Pending { description, memory, is_abandoned: false };
        match self.free.pop() {
            Some(id) => {
                self.slots[id] = slot;
                id
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        }
    }

    /// Returns the result of a request that has completed.
    pub(crate) fn outcome(&self, id: usize) -> Option<(Description, Outcome)> {
        match self.slots[id] {
            Slot::Done(description, outcome) => Some((description, outcome)),
            _ => None,
        }
    }

    /// Records a completion. Returns the memory that its request kept, which the caller drops without a lock.
    pub(crate) fn complete(&mut self, completion: &Completion) -> Option<Arc<Registered>> {
        let outcome = match completion.status {
            Status::Success => Outcome::Success(completion.length, completion.immediate),
            status => Outcome::Failed(status),
        };
        self.finish(completion.id as usize, outcome)
    }

    /// Ends all requests in flight, because the connection was closed. Returns the memory that they kept.
    pub(crate) fn close(&mut self) -> Vec<Arc<Registered>> {
        (0..self.slots.len()).filter_map(|id| self.finish(id, Outcome::Closed)).collect()
    }

    fn finish(&mut self, id: usize, outcome: Outcome) -> Option<Arc<Registered>> {
        let slot = self.slots.get_mut(id)?;
        let Slot::Pending { description, memory, is_abandoned } = slot else { return None };
        let (description, memory, is_abandoned) = (*description, memory.take(), *is_abandoned);
        self.in_flight[usize::from(description.is_receive)] -= 1;
        *slot = if is_abandoned { Slot::Free } else { Slot::Done(description, outcome) };
        if is_abandoned {
            self.free.push(id);
        }
        memory
    }

    /// Removes a request that was not posted. Returns its memory.
    pub(crate) fn cancel(&mut self, id: usize) -> Option<Arc<Registered>> {
        let memory = self.finish(id, Outcome::Closed);
        self.release(id);
        memory
    }

    /// The program no longer needs the result of a request.
    pub(crate) fn release(&mut self, id: usize) {
        match &mut self.slots[id] {
            Slot::Pending { is_abandoned, .. } => *is_abandoned = true,
            slot => {
                *slot = Slot::Free;
                self.free.push(id);
            }
        }
    }
}
