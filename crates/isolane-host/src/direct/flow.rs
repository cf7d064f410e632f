//! Requests that are not sent at once as one command: queued on a lane, sent in parts, completed.
//!
//! Invariant: a part is in exactly one place: in a backlog, in flight, behind a fence, waiting for its retry, or
//! done.

use std::collections::VecDeque;

use isolane_proto::host::{Completed, SubmitSlot};

use super::association::Link;
use super::{Direct, command};
use crate::client_state::ClientState;
use crate::connect::fence::FenceEffect;
use crate::error::RequestError;
use crate::lane_class::LaneCounts;
use crate::operation::Operation;
use crate::reply::Reply;
use crate::request::{BlockRange, Request};
use crate::request_table::{Part, PartRange};

impl Direct {
    /// Returns a slot for a request that is sent now, as one command; `None` if it must wait.
    #[inline(always)]
    pub(crate) fn vacancy(&mut self, lane: usize) -> Option<SubmitSlot<'_>> {
        let must_wait = !self.backlogs[lane].is_empty() || !self.replay.is_clear();
        match &mut self.link {
            Link::Up(live) if !must_wait => live.lanes[lane].conn.reserve().ok(),
            _ => None,
        }
    }

    /// Queues all parts of a request.
    pub(crate) fn enqueue(
        &mut self,
        state: &mut ClientState,
        lane: usize,
        range: BlockRange,
        request: Request,
        reply: Reply,
        submitted: u64,
    ) {
        let (slot, request) = state.insert(reply, lane, request, range, submitted);
        self.backlogs[lane].push_back(PartRange::all(slot, request));
        self.pump(state, lane);
    }

    /// Queues parts after the waiting ones.
    pub(super) fn requeue(&mut self, state: &mut ClientState, parts: PartRange) {
        let Some(request) = state.requests.get(parts.slot) else { return };
        let lane = request.lane;
        self.backlogs[lane].push_back(parts);
        self.pump(state, lane);
    }

    /// Moves everything that waits to the lanes of the same class in a new association.
    pub(super) fn remap_backlog(&mut self, state: &mut ClientState, lanes: LaneCounts) {
        if lanes == state.current_lanes {
            return;
        }
        for request in state.requests.iter_mut() {
            request.lane =
                lanes.remap(&state.current_lanes, request.lane, request.operation == Operation::Read);
        }
        let waiting = std::mem::replace(&mut self.backlogs, vec![VecDeque::new(); lanes.total()]);
        for parts in waiting.into_iter().flatten() {
            let Some(request) = state.requests.get(parts.slot) else { continue };
            self.backlogs[request.lane].push_back(parts);
        }
        state.current_lanes = lanes;
    }

    /// Sends waiting parts while the lane has capacity.
    pub(super) fn pump(&mut self, state: &mut ClientState, lane: usize) {
        while let Some(parts) = self.backlogs[lane].front_mut()
            && let Link::Up(live) = &self.link
            && live.lanes[lane].conn.capacity() > 0
        {
            let unsent = *parts;
            let (part, is_last) = parts.take();
            if is_last {
                self.backlogs[lane].pop_front();
            }
            let must_wait = self.send_part(state, lane, part);
            if must_wait {
                // The rest waits with it: the request cannot complete without it, and may have very many parts.
                if !is_last {
                    self.backlogs[lane].pop_front();
                }
                self.replay.hold(unsent);
            }
        }
    }

    /// Sends a part, unless its request has failed. Returns `true` if it must wait for a fence instead.
    fn send_part(&mut self, state: &mut ClientState, lane: usize, part: Part) -> bool {
        let (Link::Up(live), Some(request)) = (&mut self.link, state.requests.get_mut(part.slot)) else {
            return false;
        };
        match self.replay.holds_back(request, part.index) {
            Some(FenceEffect::Wait) if !request.has_failed() => return true,
            Some(FenceEffect::Fail) => request.fail(RequestError::Fenced),
            _ => {}
        }
        if request.has_failed() {
            request.remaining -= 1;
            state.requests.finish_if_done(part.slot);
            return false;
        }
        let Ok(vacancy) = live.lanes[lane].conn.reserve() else {
            self.backlogs[lane].push_front(PartRange::one(part));
            return false;
        };
        let nsid = state.namespace.nsid;
        if let Some((request, range, buffer)) = state.begin_part(part) {
            let (entry, data) = command::command_of(&request.operation, range, buffer, nsid);
            vacancy.submit(entry, data, part.tag());
        }
        false
    }

    /// Processes a completion that is not the success of a request's only command.
    pub(super) fn on_completed(&mut self, state: &mut ClientState, completed: Completed) {
        let part = Part::from_tag(completed.tag);
        let Some(request) = state.requests.get_mut(part.slot) else { return };
        request.in_flight -= 1;
        request.seen_in_flight = None;
        request.record_answer();
        request.return_buffer(part.index, completed.buffer);
        match completed.entry.status {
            status if !status.is_success() => self.on_error_status(state, part, status),
            _ if completed.digest_ok => state.complete_part(part, Ok(())),
            _ if request.repeats < MAX_REPEATS && !request.has_failed() => {
                request.repeats += 1;
                self.backlogs[request.lane].push_front(PartRange::one(part));
            }
            _ => state.complete_part(part, Err(RequestError::DataDigest)),
        }
    }
}

/// Maximum number of repetitions of reads whose data failed the digest check.
const MAX_REPEATS: u8 = 3;
