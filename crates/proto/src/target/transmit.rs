//! The sending half: answers become PDUs in one gather list.
//!
//! Invariant: PDUs leave in the order they were queued in; after a fatal error nothing but the TermReq is
//! queued.

use isolane_memory::{Payload, Pool};
use isolane_wire::pdu::{C2hData, CapsuleResp, HeaderFault, TermReq};
use isolane_wire::{CompletionEntry, Direction, Status, SubmissionEntry};

use super::Queue;
use super::permit::Permit;
use crate::Completion;
use crate::queue::TransmitPlan;

impl Queue {
    /// Answers a command without data to send.
    pub fn complete(&mut self, permit: Permit, completion: Completion) {
        let cid = permit.cid();
        self.slots.close(permit);
        if self.phase.is_alive() {
            self.queue_response(cid, completion);
        }
    }

    /// Answers a command with data for the host. `payload` has the length that the command's SGL allows:
    /// hosts take a shorter success for an error.
    ///
    /// The last data PDU stands for the response if flow control is disabled and there is nothing to tell but
    /// success (TCP 1.0 §3.3.2.1; Linux requires SUCCESS only together with LAST).
    pub fn complete_with_data(&mut self, permit: Permit, payload: Payload, completion: Completion) {
        if payload.is_empty() {
            return self.complete(permit, completion);
        }
        let cid = permit.cid();
        self.slots.close(permit);
        if !self.phase.is_alive() {
            return;
        }
        let success = self.submission_queue.is_flow_control_disabled && completion == Completion::success();
        self.queue_data(
            C2hData { cccid: cid, datao: 0, datal: payload.len() as u32, last: true, success },
            payload,
        );
        if success {
            self.submission_queue.advance();
        } else {
            self.queue_response(cid, completion);
        }
    }

    /// Gives a command up without an answer; only right when its connection ends.
    pub fn abandon(&mut self, permit: Permit) {
        self.slots.close(permit);
    }

    /// What to send next, as much as fits one call.
    pub fn transmit_plan(&self) -> TransmitPlan<'_> {
        self.output.plan()
    }

    /// The kernel has taken the first `n` bytes of the plan: payload that is wholly gone returns to `pool`.
    pub fn handle_transmitted(&mut self, n: usize, pool: &mut Pool) {
        self.output.advance(n, |payload| pool.recycle_payload(payload));
    }

    /// Whether there is anything to send.
    pub fn wants_transmit(&self) -> bool {
        !self.output.is_empty()
    }

    /// Bytes that wait to be sent.
    pub fn transmit_pending_bytes(&self) -> usize {
        self.output.pending_bytes()
    }

    /// Those among them that no payload lends: headers and responses, which are memory of the queue's own.
    pub fn transmit_pending_header_bytes(&self) -> usize {
        self.output.pending_header_bytes()
    }

    /// Answers a command that got no permit.
    pub(super) fn refuse(&mut self, entry: &SubmissionEntry, status: Status) {
        self.queue_response(entry.cid, Completion::failed(status));
    }

    /// Tells the host why the connection ends, with the header that was at fault (TCP 1.0 §3.6.2.4).
    pub(super) fn queue_term_req(&mut self, status: HeaderFault) {
        let request = TermReq::new(Direction::ControllerToHost, status, self.receiver.header());
        self.output.push(&request.encode());
    }

    fn queue_data(&mut self, data: C2hData, payload: Payload) {
        self.output.push(&data.encode(&self.outbound));
        self.output.push_data(payload, self.outbound.data_digest);
    }

    fn queue_response(&mut self, cid: u16, completion: Completion) {
        let entry = CompletionEntry {
            dw0: completion.dw0,
            dw1: completion.dw1,
            sqhd: self.submission_queue.advance(),
            sqid: 0,
            cid,
            status: completion.status,
        };
        self.output.push(&CapsuleResp { entry }.encode(&self.outbound));
    }
}
