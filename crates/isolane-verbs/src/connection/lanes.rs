//! The lanes of a queue pair: each carries any segment. Segments that a lane loses when it ends are sent on the others.
//!
//! ```text
//! lane ends ─ close ─ report ─► peer closes its end ─ sends the rest again
//! ```
//!
//! Invariant: an end sends the report of a lane only when it no longer reads from it, so nothing that is sent again can
//! arrive twice.

use std::time::Instant;

use isolane_connection::{ReceivePlan, TransmitPlan};

use super::checked_input::CheckError;
use super::input::Unmapped;
use super::lane::{Control, LaneState, Lost, Part, Received, Sent};
use super::output::{Output, Source};
use super::{
    Extension, Fault, OUTPUT_BYTES, Operation, Place, ReliableConnection, Segment, Syndrome, segment,
};
use crate::memory::{Spans, copy_in};
use crate::types::{ConnectionParameters, QueuePairState, Status};
use crate::wire::{Hello, LaneReport, NakCode};

impl ReliableConnection {
    /// The ends have agreed: requests that were posted before leave once a lane is open.
    pub fn handle_parameters(&mut self, parameters: &ConnectionParameters) {
        self.requester.open(parameters);
        self.responder.open(parameters);
        self.checksums = parameters.checksums;
        self.lanes.resize_with(parameters.lanes.clamp(1, Hello::MAX_LANES).into(), LaneState::default);
    }

    /// Number of lanes; 1 until the ends have agreed.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Whether a CRC32C follows each header and each payload.
    pub fn has_checksums(&self) -> bool {
        self.checksums
    }

    /// Whether a lane is open.
    pub fn is_lane_open(&self, lane: usize) -> bool {
        self.lanes.get(lane).is_some_and(|lane| lane.is_open)
    }

    pub(super) fn has_open_lane(&self) -> bool {
        self.lanes.iter().any(|lane| lane.is_open)
    }

    /// Whether the peer has announced that it is destroyed, so that lanes do not open again.
    pub fn peer_has_ended(&self) -> bool {
        self.peer_has_ended
    }

    /// Number of times that a lane was opened, or that it was tried.
    pub fn lane_epoch(&self, lane: usize) -> u32 {
        self.lanes.get(lane).map_or(0, |lane| lane.epoch)
    }

    /// Starts to open a lane that is closed. Returns the epoch of the attempt and the report for the peer.
    pub fn start_lane(&mut self, lane: usize) -> Option<(u32, Received)> {
        let lane = self.lanes.get_mut(lane).filter(|lane| !lane.is_open)?;
        lane.epoch += 1;
        Some((lane.epoch, lane.received()))
    }

    /// Returns the report for the peer about a lane that is closed, which does not change before it opens.
    pub fn lane_report(&self, lane: usize) -> Option<Received> {
        match self.lanes.get(lane) {
            Some(lane) => (!lane.is_open).then(|| lane.received()),
            None => Some(Received::default()),
        }
    }

    /// The peer opens a lane for the epoch `epoch`. Ends the lane if it is open. Returns the report for the peer,
    /// or `None` if the epoch has passed.
    pub fn accept_lane(&mut self, lane: usize, epoch: u32) -> Option<Received> {
        if epoch <= self.lanes.get(lane)?.epoch {
            return None;
        }
        self.handle_lane_closed(lane);
        let lane = &mut self.lanes[lane];
        lane.epoch = epoch;
        Some(lane.received())
    }

    /// A lane is open. `received` is the report of the peer.
    pub fn handle_lane_open(&mut self, lane: usize, received: Received) {
        if self.lanes.get(lane).is_none_or(|lane| lane.is_open) {
            return;
        }
        if let Err(fault) = self.resend_lost(lane, received) {
            return self.handle_fault(fault);
        }
        if !self.is_lane_open(self.control) {
            self.control = lane;
        }
        let epoch = self.lanes[lane].epoch;
        self.lanes[lane].open(epoch, self.checksums);
    }

    /// A lane has ended. The driver no longer reads from it.
    pub fn handle_lane_closed(&mut self, lane: usize) {
        if !self.is_lane_open(lane) {
            return;
        }
        self.lanes[lane].input.finish_copies();
        if let Some(segment) = self.lanes[lane].input.placing().cloned() {
            let placed = self.lanes[lane].input.placed_bytes();
            self.on_cut(&segment, placed);
        }
        self.lanes[lane].close();
        if lane == self.control {
            self.control = self.lanes.iter().position(|lane| lane.is_open).unwrap_or(lane);
        }
        if self.state == QueuePairState::Error {
            // Reports of the peer are discarded, and lanes do not open again. A failure can be announced twice.
            let controls = self.lanes[lane].take_controls();
            controls.into_iter().for_each(|control| self.restore(control));
        }
    }

    /// Whether [`ReliableConnection::probe_lanes`] can find a stalled lane: there are several lanes, and requests.
    pub fn awaits_lanes(&self) -> bool {
        self.state.is_connected() && self.lanes.len() > 1 && self.requester.outstanding() > 0
    }

    /// Sends a probe on each lane on which no segment has arrived since the last call. Ends a lane without an answer
    /// while others have one. The driver calls this in intervals much longer than a round trip, while
    /// [`ReliableConnection::awaits_lanes`].
    pub fn probe_lanes(&mut self) {
        let checks: Vec<(usize, u32)> = self
            .lanes
            .iter_mut()
            .enumerate()
            .filter(|(_, lane)| lane.is_open)
            .map(|(index, lane)| (index, lane.check_activity()))
            .collect();
        if checks.iter().any(|(_, idle)| *idle == 0) {
            let stalled = checks.iter().filter(|(_, idle)| *idle >= STALLED_CHECKS);
            stalled.for_each(|(index, _)| self.handle_lane_closed(*index));
        }
    }

    /// Sends a probe on a lane, if it is open.
    pub(crate) fn probe_lane(&mut self, lane: usize) -> bool {
        let lane = self.lanes.get_mut(lane).filter(|lane| lane.is_open);
        lane.is_some_and(|lane| {
            (lane.is_probe_pending, lane.is_answered) = (true, false);
            true
        })
    }

    /// Returns whether the peer has answered a probe of a lane since the last call.
    pub(crate) fn take_answer(&mut self, lane: usize) -> bool {
        self.lanes.get_mut(lane).is_some_and(|lane| std::mem::take(&mut lane.is_answered))
    }

    /// Number of bytes of a lane that are queued, and not sent.
    pub(crate) fn pending_bytes(&self, lane: usize) -> usize {
        self.lanes.get(lane).map_or(0, |lane| lane.output.pending_bytes())
    }

    /// Processes the peer's report about a lane that has ended.
    pub(super) fn handle_report(&mut self, report: &LaneReport) -> Result<(), Fault> {
        let lane = usize::from(report.lane);
        let known = self.lanes.get(lane).ok_or(Fault::Broken)?;
        if known.is_past(report.epoch) {
            // The lane was opened again since, with a newer report.
            return Ok(());
        }
        self.handle_lane_closed(lane);
        let received =
            Received { epoch: report.received_epoch, segments: report.segments, bytes: report.bytes };
        self.resend_lost(lane, received)
    }

    /// Sends again what the peer has not received on a lane that has ended.
    fn resend_lost(&mut self, lane: usize, received: Received) -> Result<(), Fault> {
        let Lost { parts, controls } = self.lanes[lane].take_lost(received).ok_or(Fault::Broken)?;
        if self.state == QueuePairState::Error {
            return Ok(());
        }
        self.responder.acknowledge_again();
        self.responder.receives.report_again();
        self.requester.ask_again();
        // The first one decides, so it comes last.
        controls.into_iter().rev().for_each(|control| self.restore(control));
        for sent in parts {
            match sent {
                Sent::Request(part) => self.requester.on_lost(part),
                Sent::Response(part) => self.responder.responses.lost(part),
            }
        }
        Ok(())
    }

    /// Sends a segment again that changes the state of the peer.
    fn restore(&mut self, control: Control) {
        match control {
            Control::Nak(message, code) => self.responder.nak(message, code),
            Control::Ended => self.is_ending = true,
            Control::Failed => self.is_failing = true,
            Control::Report(lane) => self.lanes[lane].is_report_pending = !self.is_lane_open(lane),
        }
    }

    /// Forgets what the peer has received.
    pub(super) fn trim_logs(&mut self) {
        let (requester, responder) = (&self.requester, &self.responder);
        let is_settled = |sent: &Sent| match sent {
            Sent::Request(part) => requester.is_acknowledged(part.message),
            Sent::Response(part) => !responder.responses.keeps(part.message),
        };
        self.lanes.iter_mut().for_each(|lane| lane.trim(is_settled));
    }

    /// Returns whether there is something to send on a lane.
    pub fn wants_transmit(&mut self, lane: usize) -> bool {
        self.fill_output(lane);
        self.lanes.get(lane).is_some_and(|lane| !lane.output.is_empty())
    }

    /// Fills a plan with the next bytes to send on a lane.
    pub fn fill_transmit_plan<'a>(&'a mut self, lane: usize, plan: &mut TransmitPlan<'a>) {
        self.fill_output(lane);
        if let Some(lane) = self.lanes.get(lane) {
            lane.output.fill_plan(plan);
        }
    }

    /// Removes the first `count` bytes of the last plan of a lane, which were sent.
    pub fn handle_transmitted(&mut self, lane: usize, count: usize) {
        self.lanes[lane].output.advance(count);
    }

    /// Fills a plan with the destinations of the next bytes of a lane: memory of the current segment, then `overflow`.
    /// Returns their total length.
    pub fn fill_receive_plan<'a>(
        &'a mut self,
        lane: usize,
        overflow: &'a mut [u8],
        plan: &mut ReceivePlan<'a>,
    ) -> usize {
        let lane = &mut self.lanes[lane];
        match &mut lane.checked {
            Some(checked) => checked.fill_plan(plan),
            None => lane.input.fill_plan(overflow, plan),
        }
    }

    /// Processes the `count` bytes received by the last plan of a lane, with the same `overflow`.
    pub fn handle_received(&mut self, lane: usize, count: usize, overflow: &[u8], now: Instant) {
        self.lanes[lane].start_receiving();
        if let Some(checked) = &mut self.lanes[lane].checked {
            checked.received(count);
            while let Err(fault) = self.process_checked(lane, now) {
                self.handle_fault(fault);
            }
            return;
        }
        self.lanes[lane].input.received(count);
        while let Err(fault) = self.process_input(lane, overflow, now) {
            self.handle_fault(fault);
        }
    }

    /// Processes the segments of a lane with checksums that have arrived completely. A wrong checksum ends the lane: its
    /// report to the peer names the last right segment, and all later ones are sent again.
    fn process_checked(&mut self, lane: usize, now: Instant) -> Result<(), Fault> {
        while let Some(checked) = &mut self.lanes[lane].checked {
            if self.state == QueuePairState::Error {
                checked.discard();
                return Ok(());
            }
            let (segment, place) = match checked.next_segment() {
                Ok(Some(next)) => next,
                Ok(None) => return Ok(()),
                Err(CheckError::Segment(error)) => {
                    checked.discard();
                    return Err(error.into());
                }
                Err(CheckError::Checksum) => {
                    self.handle_wrong_checksum(lane);
                    return Ok(());
                }
            };
            if segment.opcode.operation().is_request() || !place.is_empty() {
                self.lanes[lane].wrong_checksums = 0;
            }
            let mut spans = Spans::new();
            let is_wanted = self.on_segment(lane, &segment, &mut spans, now)?;
            let Some(checked) = &self.lanes[lane].checked else {
                // The peer has reported its end on this lane itself.
                return Err(Fault::Broken);
            };
            let is_placed = is_wanted && copy_in(&spans, 0, checked.payload(place));
            if is_wanted && !is_placed {
                self.refuse_unmapped(&segment)?;
            }
            self.on_arrived(lane, is_placed.then_some(&segment))?;
        }
        Ok(())
    }

    /// Ends a lane on which bytes were changed. The queue pair fails if nothing arrives unchanged there.
    fn handle_wrong_checksum(&mut self, lane: usize) {
        log::limited!(
            Warn,
            "lane {lane} of a queue pair has changed bytes: its checksum is wrong; it opens again"
        );
        self.lanes[lane].wrong_checksums += 1;
        self.handle_lane_closed(lane);
        if self.lanes[lane].wrong_checksums >= MAX_WRONG_CHECKSUMS {
            self.handle_lanes_lost();
        }
    }

    fn process_input(&mut self, lane: usize, overflow: &[u8], now: Instant) -> Result<(), Fault> {
        // Moving them costs as much as processing them.
        let (mut segment, mut spans) = (Segment::default(), Spans::new());
        loop {
            let input = &mut self.lanes[lane].input;
            let Ok(next) = input.next_placed(overflow) else {
                self.on_unmapped(lane)?;
                continue;
            };
            if let Some(placed) = next {
                self.on_arrived(lane, placed.as_ref())?;
            } else if input.is_placing() {
                return Ok(());
            } else if self.state == QueuePairState::Error {
                // What the peer sends after an error is of no interest, even if it is malformed.
                input.discard(overflow);
                return Ok(());
            } else {
                if !input.next_segment(overflow, &mut segment)? {
                    return Ok(());
                }
                let is_wanted = self.on_segment(lane, &segment, &mut spans, now)?;
                if !self.is_lane_open(lane) {
                    // The peer has reported its end on this lane itself.
                    return Err(Fault::Broken);
                }
                match self.lanes[lane].input.place(&segment, is_wanted, &mut spans, overflow) {
                    Ok(true) => self.on_arrived(lane, Some(&segment))?,
                    Ok(false) => {}
                    Err(Unmapped) => self.on_unmapped(lane)?,
                }
            }
        }
    }

    /// The kernel has found that the place of the current payload of a lane is not mapped. Returns `false` if there is no
    /// such payload.
    pub fn handle_unmapped_input(&mut self, lane: usize) -> bool {
        let is_placing = self.lanes[lane].input.placing().is_some();
        if let Err(fault) = self.on_unmapped(lane) {
            self.handle_fault(fault);
        }
        is_placing
    }

    /// Memory to send from is not mapped. The lane ends, because the rest of a segment is missing. A response from there
    /// is refused when it is sent again.
    pub fn handle_unmapped_output(&mut self, lane: usize) {
        self.handle_lane_closed(lane);
        self.responder.responses.forget_unmapped();
        if let Some(index) = self.requester.first_unmapped() {
            self.handle_fault(Fault::Failed { index, status: Status::LocalProtection });
        }
    }

    /// The place of the current payload is not mapped: its request fails, and the payload is discarded.
    fn on_unmapped(&mut self, lane: usize) -> Result<(), Fault> {
        let Some(segment) = self.lanes[lane].input.placing().cloned() else { return Ok(()) };
        self.lanes[lane].input.discard_payload();
        self.refuse_unmapped(&segment)
    }

    /// The place of the payload of a segment is not mapped.
    fn refuse_unmapped(&mut self, segment: &Segment) -> Result<(), Fault> {
        if segment.opcode.operation().is_request() {
            self.responder.on_request_unmapped(segment, &self.domain, &mut self.finished)
        } else {
            Err(self.requester.unmapped_response(segment.message))
        }
    }

    /// Stops reading from the memory of requests, because it can be unmapped from now on. A lane ends if that has happened
    /// already, because the rest of a segment is missing.
    pub(super) fn detach_output(&mut self, detach: impl Fn(&mut Output) -> Option<()>) {
        for lane in 0..self.lanes.len() {
            if detach(&mut self.lanes[lane].output).is_none() {
                self.handle_lane_closed(lane);
            }
        }
    }

    /// A segment has arrived completely, and is in its place unless it was discarded.
    fn on_arrived(&mut self, lane: usize, placed: Option<&Segment>) -> Result<(), Fault> {
        self.lanes[lane].count_segment();
        match placed {
            Some(segment) if self.state != QueuePairState::Error => self.on_placed(segment),
            _ => Ok(()),
        }
    }

    /// Queues segments until enough bytes are queued. Requests and responses take turns.
    fn fill_output(&mut self, lane: usize) {
        while self.can_queue(lane, OUTPUT_BYTES) {
            let requests_first = self.was_response;
            let is_queued = (requests_first && self.queue_request(lane))
                || self.queue_response(lane)
                || (!requests_first && self.queue_request(lane));
            if !is_queued {
                break;
            }
        }
        // A peer that does not read gets no more of them.
        while self.can_queue(lane, 2 * OUTPUT_BYTES)
            && (self.queue_control(lane)
                || self.queue_report(lane)
                || self.queue_question(lane)
                || self.queue_acknowledgment(lane)
                || self.queue_probe(lane))
        {}
    }

    /// Whether a lane is open, and fewer than `max_bytes` are queued. It can end when a segment is queued.
    fn can_queue(&self, lane: usize, max_bytes: usize) -> bool {
        self.is_lane_open(lane) && self.lanes[lane].output.pending_bytes() < max_bytes
    }

    fn queue_response(&mut self, lane: usize) -> bool {
        if !self.is_lane_open(lane) {
            return false;
        }
        let max_bytes = self.requester.segment_bytes();
        let (segment, spans) = match self.responder.responses.next(max_bytes) {
            Ok(Some(next)) => next,
            Ok(None) => return false,
            Err(message) => {
                self.handle_fault(Fault::Nak { message, code: NakCode::RemoteAccess });
                return false;
            }
        };
        self.lanes[lane].log(Sent::Response(Part::of(&segment)));
        self.queue(lane, segment, Source::Memory(&spans, 0));
        self.was_response = true;
        true
    }

    fn queue_request(&mut self, lane: usize) -> bool {
        if self.state != QueuePairState::ReadyToSend || !self.is_lane_open(lane) {
            return false;
        }
        // A peer that shares its receives gets the requests that consume them in order.
        let may_consume = lane == self.control || !self.requester.peer_shares_receives();
        let (mut segment, max_requests) = (Segment::default(), self.limits.send_requests);
        let source = match self.requester.next_segment(lane, max_requests, may_consume, &mut segment) {
            Ok(None) => return false,
            Ok(Some(source)) => source,
            Err(fault) => {
                self.handle_fault(fault);
                return false;
            }
        };
        (segment.acknowledged, segment.credits) = self.responder.advertise();
        self.lanes[lane].log(Sent::Request(Part::of(&segment)));
        let is_mapped = self.lanes[lane].output.push(&segment, source);
        self.was_response = false;
        if is_mapped {
            self.requester.complete_finished(&mut self.finished);
        } else {
            self.handle_unmapped_output(lane);
        }
        is_mapped
    }

    /// Queues a segment that changes the state of the peer, or a report about another lane.
    fn queue_control(&mut self, lane: usize) -> bool {
        if lane != self.control {
            return false;
        }
        let all_open = self.lanes.iter().all(|lane| lane.is_open);
        if !all_open && let Some(reported) = self.lanes.iter().position(|lane| lane.is_report_pending) {
            self.lanes[reported].is_report_pending = false;
            let Received { epoch: received_epoch, segments, bytes } = self.lanes[reported].received();
            // A later epoch can be open before the report arrives.
            let epoch = self.lanes[reported].opened_epoch;
            let report = LaneReport { lane: reported as u8, epoch, received_epoch, segments, bytes };
            let extension = Extension::LaneReport(report);
            let segment = segment(Operation::LaneReport, 0, Place::default(), extension);
            return self.queue_logged(lane, segment, Control::Report(reported));
        }
        // What a lane has lost comes first. A failed end does not learn what that is.
        let must_wait = !all_open && self.state != QueuePairState::Error;
        if must_wait && self.lanes.iter().any(LaneState::has_unsettled_control) {
            return false;
        }
        let (segment, control) = if let Some(next) = self.responder.next_nak() {
            next
        } else if std::mem::take(&mut self.is_failing) {
            (announcement(Syndrome::Failed), Control::Failed)
        } else if std::mem::take(&mut self.is_ending) {
            (announcement(Syndrome::Ended), Control::Ended)
        } else {
            return false;
        };
        self.queue_logged(lane, segment, control)
    }

    fn queue_logged(&mut self, lane: usize, segment: Segment, control: Control) -> bool {
        self.lanes[lane].log_control(control);
        self.queue(lane, segment, Source::Bytes(&[]));
        true
    }

    /// Queues a segment that need not arrive.
    fn queue_unlogged(&mut self, lane: usize, segment: Segment) -> bool {
        self.lanes[lane].count_sent();
        self.queue(lane, segment, Source::Bytes(&[]));
        true
    }

    /// Queues a report about missing or posted receives. If it is lost, another one is sent.
    fn queue_report(&mut self, lane: usize) -> bool {
        let segment = match self.responder.next_report(&self.domain, &mut self.finished) {
            Ok(Some(segment)) => segment,
            Ok(None) => return false,
            Err(fault) => {
                self.handle_fault(fault);
                return false;
            }
        };
        self.queue_unlogged(lane, segment)
    }

    /// Queues the question whether the peer has a receive. If it is lost, it is sent again.
    fn queue_question(&mut self, lane: usize) -> bool {
        let Some(message) = self.requester.next_question() else { return false };
        let extension = Extension::Acknowledgment(Syndrome::ReceiveAwaited, 0, 0);
        self.queue_unlogged(lane, segment(Operation::Acknowledge, message, Place::default(), extension))
    }

    fn queue_acknowledgment(&mut self, lane: usize) -> bool {
        let Some(segment) = self.responder.next_acknowledgment() else { return false };
        self.queue_unlogged(lane, segment)
    }

    fn queue_probe(&mut self, lane: usize) -> bool {
        let syndrome = if std::mem::take(&mut self.lanes[lane].is_answer_pending) {
            Syndrome::Alive
        } else if std::mem::take(&mut self.lanes[lane].is_probe_pending) {
            Syndrome::Probe
        } else {
            return false;
        };
        self.queue_unlogged(lane, announcement(syndrome))
    }

    /// Queues a segment, which also carries what there is to acknowledge.
    fn queue(&mut self, lane: usize, mut segment: Segment, source: Source<'_>) {
        (segment.acknowledged, segment.credits) = self.responder.advertise();
        if !self.lanes[lane].output.push(&segment, source) {
            self.handle_unmapped_output(lane);
        }
    }
}

fn announcement(syndrome: Syndrome) -> Segment {
    let extension = Extension::Acknowledgment(syndrome, 0, 0);
    segment(Operation::Acknowledge, 0, Place::default(), extension)
}

/// Number of wrong checksums without a right one after which a queue pair fails.
const MAX_WRONG_CHECKSUMS: u32 = 16;
/// Number of checks without a segment after which a lane ends, if another one has segments.
const STALLED_CHECKS: u32 = 4;
