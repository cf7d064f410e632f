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
    /// The program has closed the connection: no completion changes anything.
    is_closed: bool,
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
    Pending(Pending),
    Done(Description, Outcome),
}

struct Pending {
    description: Description,
    memory: Option<Arc<Registered>>,
    is_abandoned: bool,
    /// Number of parts in flight, and 1 while more can be posted.
    parts: usize,
    failure: Option<Status>,
}

impl Table {
    /// Adds a request that keeps `memory`. Returns its id.
    pub(crate) fn insert(&mut self, description: Description, memory: Option<Arc<Registered>>) -> usize {
        self.in_flight[usize::from(description.is_receive)] += 1;
        self.open(description, memory)
    }

    /// Adds a batch that keeps `memory`, without parts. Returns its id. It is in flight until [`Table::seal`].
    pub(crate) fn open(&mut self, description: Description, memory: Option<Arc<Registered>>) -> usize {
        let pending = Pending { description, memory, is_abandoned: false, parts: 1, failure: None };
        let slot = Slot::Pending(pending);
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

    /// Adds parts to an open batch. Returns `false` if the connection is closed.
    pub(crate) fn add_parts(&mut self, id: usize, count: usize) -> bool {
        let Slot::Pending(pending) = &mut self.slots[id] else { return false };
        pending.parts += count;
        self.in_flight[0] += count;
        true
    }

    /// Removes parts of an open batch that were not posted.
    pub(crate) fn remove_parts(&mut self, id: usize, count: usize) {
        if let Slot::Pending(pending) = &mut self.slots[id] {
            pending.parts -= count;
            self.in_flight[0] -= count;
        }
    }

    /// Ends the posting of a batch. Returns the memory that it kept, if it has completed.
    pub(crate) fn seal(&mut self, id: usize) -> Option<Arc<Registered>> {
        self.end_part(id, None)
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
        let id = completion.id as usize;
        let Some(Slot::Pending(pending)) = self.slots.get_mut(id).filter(|_| !self.is_closed) else {
            return None;
        };
        self.in_flight[usize::from(pending.description.is_receive)] -= 1;
        if completion.status != Status::Success {
            pending.failure.get_or_insert(completion.status);
        }
        self.end_part(id, Some(completion))
    }

    /// Ends all requests in flight, because the connection was closed. Returns the memory that they kept.
    pub(crate) fn close(&mut self) -> Vec<Arc<Registered>> {
        (self.in_flight, self.is_closed) = ([0, 0], true);
        (0..self.slots.len()).filter_map(|id| self.finish(id, Outcome::Closed)).collect()
    }

    /// Finishes a request with its last part.
    fn end_part(&mut self, id: usize, completion: Option<&Completion>) -> Option<Arc<Registered>> {
        let Slot::Pending(pending) = &mut self.slots[id] else { return None };
        pending.parts -= 1;
        if pending.parts > 0 {
            return None;
        }
        let received = completion.map_or((0, None), |last| (last.length, last.immediate));
        let outcome = pending.failure.map_or(Outcome::Success(received.0, received.1), Outcome::Failed);
        self.finish(id, outcome)
    }

    fn finish(&mut self, id: usize, outcome: Outcome) -> Option<Arc<Registered>> {
        let Slot::Pending(pending) = &mut self.slots[id] else { return None };
        let (description, memory, is_abandoned) =
            (pending.description, pending.memory.take(), pending.is_abandoned);
        self.slots[id] = if is_abandoned { Slot::Free } else { Slot::Done(description, outcome) };
        if is_abandoned {
            self.free.push(id);
        }
        memory
    }

    /// Removes a request that was not posted. Returns its memory.
    pub(crate) fn cancel(&mut self, id: usize) -> Option<Arc<Registered>> {
        if let Slot::Pending(pending) = &self.slots[id] {
            self.in_flight[usize::from(pending.description.is_receive)] -= 1;
        }
        self.abandon(id)
    }

    /// Ends the posting of a batch that the program does not need. Returns the memory that it kept, if it has completed.
    pub(crate) fn abandon(&mut self, id: usize) -> Option<Arc<Registered>> {
        match &mut self.slots[id] {
            Slot::Pending(pending) => {
                pending.is_abandoned = true;
                self.seal(id)
            }
            _ => {
                self.release(id);
                None
            }
        }
    }

    /// The program no longer needs the result of a request.
    pub(crate) fn release(&mut self, id: usize) {
        match &mut self.slots[id] {
            Slot::Pending(pending) => pending.is_abandoned = true,
            slot => {
                *slot = Slot::Free;
                self.free.push(id);
            }
        }
    }
}
