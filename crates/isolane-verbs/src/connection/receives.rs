//! Receives of a queue pair: posted by the program, then bound to requests of the peer.
//!
//! The peer names with each request how many requests before it consume a receive, so that a receive is bound to the
//! right request whatever arrives first.
//!
//! Invariant: receives are bound in the order of posting, and complete in that order.

use std::collections::VecDeque;
use std::sync::Arc;

use isolane_memory::MemoryRegion;
use smallvec::SmallVec;

use super::receive_queue::ReceiveQueue;
use super::{Finished, Nak};
use crate::memory::{ProtectionDomain, Right, Spans, is_among, part, truncate};
use crate::types::{
    AsyncEvent, CompletedOperation, Completion, Limits, PostError, Queue, ReceiveRequest, Status,
};
use crate::wire::{NakCode, Segment, Syndrome};

/// The receives of a queue pair.
#[derive(Default)]
pub(super) struct Receives {
    posted: VecDeque<ReceiveRequest>,
    /// Where receives come from instead of `posted`.
    shared: Option<Arc<ReceiveQueue>>,
    /// Receives that requests of the peer consume.
    bound: VecDeque<Bound>,
    /// Number of requests of the peer that have consumed a receive and completed it.
    completed: u16,
    /// Number of receives posted, modulo 2¹⁶.
    posted_count: u16,
    /// Value of `posted_count` that the peer knows.
    advertised: u16,
    readiness: Readiness,
    /// The last message that found no receive.
    not_ready_message: u32,
    /// Index of the first receive that was missing since the peer has confirmed `rnr_count`.
    missing_receive: u8,
    /// A receive was missing once.
    was_not_ready: bool,
    /// The peer has sent a request with the current `rnr_count`.
    is_rnr_count_confirmed: bool,
    /// How often this end was not ready, and then had a receive again, modulo 2⁸.
    rnr_count: u8,
    /// The last change of `rnr_count` is not reported.
    is_ready_pending: bool,
}

/// Report about receives.
pub(super) struct Report {
    pub(super) message: u32,
    pub(super) syndrome: Syndrome,
    pub(super) receive: u8,
    pub(super) rnr_count: u8,
}

/// A receive that a request consumes.
struct Bound {
    request: ReceiveRequest,
    /// The message that it is for, once it has begun to arrive.
    message: Option<u32>,
    /// Where its bytes go: `None` if that is not allowed, and empty while one segment with all bytes is arriving.
    spans: Option<Spans>,
    capacity: u64,
}

impl Bound {
    /// Finds where its bytes go. Its spans are empty before.
    fn find_spans(&mut self, shared: Option<&ReceiveQueue>, domain: &ProtectionDomain) {
        let (domain, sges) = (shared.map_or(domain, ReceiveQueue::domain), &self.request.data);
        if !self.spans.as_mut().is_some_and(|spans| domain.fill_spans(sges, Right::LocalWrite, spans)) {
            self.spans = None;
        }
    }
}

/// Whether the peer can send requests that consume receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Readiness {
    #[default]
    Ready,
    /// A request was discarded, which is not reported.
    NotReady,
    /// The peer waits.
    Waiting,
}

impl Receives {
    pub(super) fn new(shared: Option<Arc<ReceiveQueue>>) -> Receives {
        Receives { shared, ..Receives::default() }
    }

    pub(super) fn post(&mut self, request: ReceiveRequest, limits: &Limits) -> Result<(), PostError> {
        if self.shared.is_some() {
            return Err(PostError::SharedReceiveQueue);
        }
        if self.posted.len() >= limits.receives {
            return Err(PostError::Full(self.posted.len()));
        }
        let sges = request.data.len();
        if sges > limits.sges {
            return Err(PostError::Sges { sges, limit: limits.sges });
        }
        self.posted_count = self.posted_count.wrapping_add(1);
        self.posted.push_back(request);
        Ok(())
    }

    /// Removes the last posted receive with an identifier that was not promised to the peer. Returns `false` if there is
    /// none.
    pub(super) fn cancel(&mut self, id: u64) -> bool {
        let unpromised = usize::from(self.posted_count.wrapping_sub(self.advertised));
        let mut found = self.posted.iter().rev().take(unpromised);
        let Some(behind) = found.position(|request| request.id == id) else { return false };
        self.posted.remove(self.posted.len() - 1 - behind);
        self.posted_count = self.posted_count.wrapping_sub(1);
        true
    }

    /// Binds the receive with index `receive`, and all before it, to requests of the peer. Returns its place, or `None`
    /// if the shared queue has too few: the request is discarded, as all from that receive on are, until the peer sends
    /// them again with the next `rnr_count`.
    #[inline]
    pub(super) fn bind(
        &mut self,
        message: u32,
        receive: u8,
        rnr_count: u8,
        domain: &ProtectionDomain,
        finished: &mut Finished,
    ) -> Result<Option<usize>, NakCode> {
        let at = usize::from(receive.wrapping_sub(self.completed as u8));
        if at >= MAX_BOUND {
            return Err(NakCode::Sequence);
        }
        if self.shared.is_some() {
            let is_affected = usize::from(receive.wrapping_sub(self.missing_receive)) < MAX_BOUND;
            let is_current = self.readiness == Readiness::Ready && rnr_count == self.rnr_count;
            if !is_current && (is_affected || at >= self.bound.len()) {
                return Ok(None);
            }
        }
        while self.bound.len() <= at {
            let request = match &self.shared {
                None => self.posted.pop_front().ok_or(NakCode::InvalidRequest)?,
                Some(shared) => {
                    let Some(taken) = shared.take() else {
                        if self.is_rnr_count_confirmed || !self.was_not_ready {
                            let index = self.completed as u8;
                            self.missing_receive = index.wrapping_add(self.bound.len() as u8);
                        }
                        (self.not_ready_message, self.readiness) = (message, Readiness::NotReady);
                        self.was_not_ready = true;
                        return Ok(None);
                    };
                    if taken.limit_reached {
                        finished.events.push_back(AsyncEvent::LimitReached);
                    }
                    taken.request
                }
            };
            let capacity = request.data.iter().map(|sge| u64::from(sge.length)).sum();
            self.bound.push_back(Bound { request, message: None, spans: Some(Spans::new()), capacity });
            if let Some(bound) = self.bound.back_mut() {
                bound.find_spans(self.shared.as_deref(), domain);
            }
        }
        Ok(Some(at))
    }

    /// Binds the receive with index `receive` to a message that has arrived completely. Returns `false` if the shared queue
    /// has no receive.
    pub(super) fn bind_complete(
        &mut self,
        message: u32,
        receive: u8,
        domain: &ProtectionDomain,
        finished: &mut Finished,
    ) -> Result<bool, NakCode> {
        self.bind(message, receive, self.rnr_count, domain, finished).map(|at| at.is_some())
    }

    /// Adds where the payload of a segment of a SEND goes, from `start` on in its request, to the empty `spans`. `false` if
    /// a receive is missing. A message can follow one of the same request if it `continues` that.
    pub(super) fn place(
        &mut self,
        segment: &Segment,
        continues: bool,
        start: u64,
        domain: &ProtectionDomain,
        spans: &mut Spans,
        finished: &mut Finished,
    ) -> Result<bool, Nak> {
        let at = self.bind(segment.message, segment.receive, segment.rnr_count, domain, finished)?;
        let Some(at) = at else { return Ok(false) };
        self.is_rnr_count_confirmed |= segment.rnr_count == self.rnr_count;
        let bound = &mut self.bound[at];
        if bound.message.is_some_and(|owner| owner != segment.message && !continues) {
            return Err(NakCode::Sequence.into());
        }
        bound.message = Some(segment.message);
        let nak = |code, status| Nak { code, receive: Some(status) };
        if bound.spans.as_ref().is_some_and(SmallVec::is_empty) && bound.capacity > 0 {
            // The lane of a segment with all bytes has ended.
            bound.find_spans(self.shared.as_deref(), domain);
        }
        let all = bound.spans.as_mut();
        let all = all.ok_or_else(|| nak(NakCode::RemoteOperation, Status::LocalProtection))?;
        let length = segment.length;
        if start + u64::from(length) > bound.capacity {
            return Err(nak(NakCode::InvalidRequest, Status::LocalLength));
        }
        let is_whole = length == segment.size && !segment.flags.continued() && start == 0;
        if is_whole {
            std::mem::swap(all, spans);
            truncate(spans, length as usize);
        } else {
            *spans = part(all, start as usize, length as usize);
        }
        Ok(true)
    }

    /// Returns the identifier of the oldest bound receive, if it has the index `receive`. Its request has consumed it.
    #[inline]
    pub(super) fn consume(&mut self, receive: u8) -> Option<u64> {
        if receive != self.completed as u8 {
            return None;
        }
        let id = self.bound.front()?.request.id;
        self.bound.pop_front();
        // All receives before that are complete.
        if self.missing_receive == receive {
            self.missing_receive = self.missing_receive.wrapping_add(1);
        }
        self.completed = self.completed.wrapping_add(1);
        Some(id)
    }

    /// Whether receives come from a shared queue.
    pub(super) fn are_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Whether no receive is left for the next request.
    pub(super) fn are_used_up(&self) -> bool {
        self.posted.is_empty() && self.bound.is_empty()
    }

    /// Whether a request of the peer fills memory of a region.
    pub(super) fn uses(&self, region: &Arc<MemoryRegion>) -> bool {
        let mut in_use = self.bound.iter().filter(|bound| bound.message.is_some());
        in_use.any(|bound| bound.spans.as_ref().is_some_and(|spans| is_among(spans, region)))
    }

    /// Whether a request was discarded, or the shared queue has a receive for which the peer waits.
    pub(super) fn has_report(&self) -> bool {
        self.readiness == Readiness::NotReady || self.is_ready_pending || self.has_awaited_receive()
    }

    /// Whether the peer waits for a receive.
    pub(super) fn awaits_receive(&self) -> bool {
        self.readiness == Readiness::Waiting
    }

    /// Returns the next report about receives.
    pub(super) fn next_report(&mut self) -> Option<Report> {
        let (message, receive) = (self.not_ready_message, self.missing_receive);
        let syndrome = if self.readiness == Readiness::NotReady {
            self.readiness = Readiness::Waiting;
            Syndrome::ReceiverNotReady
        } else if self.has_awaited_receive() {
            (self.readiness, self.rnr_count) = (Readiness::Ready, self.rnr_count.wrapping_add(1));
            self.is_rnr_count_confirmed = false;
            Syndrome::ReceiverReady
        } else if self.readiness == Readiness::Ready && self.is_ready_pending {
            Syndrome::ReceiverReady
        } else {
            return None;
        };
        self.is_ready_pending = false;
        Some(Report { message, syndrome, receive, rnr_count: self.rnr_count })
    }

    /// The last report can be lost.
    pub(super) fn report_again(&mut self) {
        match self.readiness {
            Readiness::Ready => self.is_ready_pending = self.was_not_ready,
            Readiness::NotReady | Readiness::Waiting => self.readiness = Readiness::NotReady,
        }
    }

    fn has_awaited_receive(&self) -> bool {
        self.awaits_receive() && self.shared.as_ref().is_some_and(|shared| !shared.is_empty())
    }

    /// Whether the peer has used every receive that it knows, and there are others.
    pub(super) fn lacks_credits(&self) -> bool {
        let bound = self.completed.wrapping_add(self.bound.len() as u16);
        self.advertised == bound && self.posted_count != self.advertised
    }

    /// Returns the number of posted receives, for a segment that is sent now.
    pub(super) fn advertise(&mut self) -> u16 {
        self.advertised = self.posted_count;
        self.posted_count
    }

    /// Completes all receives as flushed.
    pub(super) fn flush(&mut self, finished: &mut Finished) {
        (self.readiness, self.is_ready_pending) = (Readiness::Ready, false);
        let bound = self.bound.drain(..).map(|bound| bound.request);
        for request in bound.chain(self.posted.drain(..)) {
            complete(request.id, Status::Flushed, finished);
        }
        if self.shared.is_some() {
            finished.events.push_back(AsyncEvent::LastReceive);
        }
    }
}

/// Completes a receive with an error.
pub(super) fn complete(id: u64, status: Status, finished: &mut Finished) {
    let completion = Completion {
        id,
        status,
        operation: CompletedOperation::Receive,
        length: 0,
        immediate: None,
        solicited: false,
        source: None,
    };
    finished.completions.push_back((Queue::Receive, completion));
}

/// Maximum number of requests in flight that consume a receive, where their order can differ: half of the indices.
pub(super) const MAX_BOUND: usize = 128;
