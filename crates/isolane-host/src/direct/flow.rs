//! Path of a request: accepted, queued on its lane, sent in parts, completed.
//!
//! Invariant: a part is in exactly one place: in a backlog, in flight, behind a fence, waiting for its retry, or
//! done.

use std::collections::VecDeque;
use std::sync::Arc;

use isolane_proto::host::{Completed, Data};

use super::association::Link;
use super::{Client, command};
use crate::connect::fence::FenceEffect;
use crate::error::RequestError;
use crate::lane_class::{LaneClass, LaneCounts};
use crate::reply::Reply;
use crate::request::{BlockRange, Request};
use crate::request_table::{Operation, Part, PartRange};

impl Client {
    /// Submits a request, as [`crate::Client::submit_to`].
    pub(crate) fn submit_with(&mut self, class: LaneClass, lane: usize, request: Request, reply: Reply) {
        self.coalescer.add(class, &self.lanes, &request);
        match self.check(class, lane, &request) {
            Ok((lane, range)) => self.accept(lane, range, request, reply),
            Err(error) => self.state.requests.reject(error, request, reply),
        }
    }

    /// Returns the index of the request's lane, and its blocks.
    #[inline]
    fn check(
        &self,
        class: LaneClass,
        lane: usize,
        request: &Request,
    ) -> Result<(usize, BlockRange), RequestError> {
        if let Link::Closed(error) = &self.link {
            return Err(RequestError::Lost(Arc::clone(error)));
        }
        self.state.check_capacity()?;
        let lane = self.index_of(class, lane, request.is_read())?;
        Ok((lane, self.state.limits.check(request)?))
    }

    /// Sends a single command at once if nothing precedes it; otherwise queues the request.
    #[inline(always)]
    fn accept(&mut self, lane: usize, range: BlockRange, request: Request, reply: Reply) {
        let must_wait = !self.backlogs[lane].is_empty() || !self.replay.is_clear();
        let is_single = self.state.limits.parts(&range) == 1;
        if let Link::Up(live) = &mut self.link
            && !must_wait
            && is_single
            && let Ok(vacancy) = live.lanes[lane].vacancy()
        {
            let (requests, nsid) = (&mut self.state.requests, self.state.namespace.nsid);
            match request {
                Request::Read { buffer, .. } => {
                    let tag = requests.insert_in_flight(reply, lane, range, || Operation::Read);
                    vacancy.submit(command::read(&range, nsid), Data::Read(buffer), tag);
                    return;
                }
                Request::Write { buffer, fua, .. } => {
                    let tag = requests.insert_in_flight(reply, lane, range, || Operation::Write { fua });
                    vacancy.submit(command::write(&range, fua, nsid), Data::Write(buffer), tag);
                    return;
                }
                _ => {}
            }
        }
        let (slot, request) = self.state.insert(reply, lane, request, range);
        self.backlogs[lane].push_back(PartRange::all(slot, request));
        self.pump(lane);
    }

    /// Returns the index of a class's lane. A lane of the first association always exists: if its class has fewer
    /// lanes since, they share its requests.
    fn index_of(&self, class: LaneClass, lane: usize, is_read: bool) -> Result<usize, RequestError> {
        let serving = self.lanes.serving(class, is_read);
        if let Some(index) = self.lanes.place(serving, lane) {
            return Ok(index);
        }
        let first = &self.state.lanes;
        let serving = first.serving(class, is_read);
        match first.place(serving, lane) {
            Some(index) => Ok(self.lanes.remap(first, index, is_read)),
            None => Err(RequestError::Lane { lane, lanes: first.count(serving) }),
        }
    }

    /// Queues parts after the waiting ones.
    pub(super) fn requeue(&mut self, parts: PartRange) {
        let Some(request) = self.state.requests.get(parts.slot) else { return };
        let lane = request.lane;
        self.backlogs[lane].push_back(parts);
        self.pump(lane);
    }

    /// Moves everything that waits to the lanes of the same class in a new association.
    pub(super) fn remap_backlog(&mut self, lanes: LaneCounts) {
        if lanes == self.lanes {
            return;
        }
        for request in self.state.requests.iter_mut() {
            request.lane = lanes.remap(&self.lanes, request.lane, request.operation == Operation::Read);
        }
        let waiting = std::mem::replace(&mut self.backlogs, vec![VecDeque::new(); lanes.total()]);
        for parts in waiting.into_iter().flatten() {
            let Some(request) = self.state.requests.get(parts.slot) else { continue };
            self.backlogs[request.lane].push_back(parts);
        }
        self.lanes = lanes;
    }

    /// Sends waiting parts while the lane has capacity.
    pub(super) fn pump(&mut self, lane: usize) {
        while let Some(parts) = self.backlogs[lane].front_mut()
            && let Link::Up(live) = &self.link
            && live.lanes[lane].capacity() > 0
        {
            let unsent = *parts;
            let (part, is_last) = parts.take();
            if is_last {
                self.backlogs[lane].pop_front();
            }
            let must_wait = self.send_part(lane, part);
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
    fn send_part(&mut self, lane: usize, part: Part) -> bool {
        let (Link::Up(live), Some(request)) = (&mut self.link, self.state.requests.get_mut(part.slot)) else {
            return false;
        };
        match self.replay.holds_back(request, part.index) {
            Some(FenceEffect::Wait) if !request.has_failed() => return true,
            Some(FenceEffect::Fail) => request.fail(RequestError::Fenced),
            _ => {}
        }
        if request.has_failed() {
            request.remaining -= 1;
            self.state.requests.finish_if_done(part.slot);
            return false;
        }
        let Ok(vacancy) = live.lanes[lane].vacancy() else {
            self.backlogs[lane].push_front(PartRange::one(part));
            return false;
        };
        let nsid = self.state.namespace.nsid;
        if let Some((request, range, buffer)) = self.state.begin_part(part) {
            let (entry, data) = command::command_of(&request.operation, range, buffer, nsid);
            vacancy.submit(entry, data, part.tag());
        }
        false
    }

    /// Processes a completion that is not the success of a request's only command.
    pub(super) fn on_completed(&mut self, completed: Completed) {
        let part = Part::from_tag(completed.tag);
        let Some(request) = self.state.requests.get_mut(part.slot) else { return };
        request.in_flight -= 1;
        request.seen_in_flight = None;
        request.record_answer();
        request.return_buffer(part.index, completed.buffer);
        match completed.entry.status {
            status if !status.is_success() => self.on_error_status(part, status),
            _ if completed.digest_ok => self.state.complete_part(part, Ok(())),
            _ if request.repeats < MAX_REPEATS && !request.has_failed() => {
                request.repeats += 1;
                self.backlogs[request.lane].push_front(PartRange::one(part));
            }
            _ => self.state.complete_part(part, Err(RequestError::DataDigest)),
        }
    }
}

/// Maximum number of repetitions of reads whose data failed the digest check.
const MAX_REPEATS: u8 = 3;
