//! Sending half of a target's connection: completions become PDUs in one gather list.
//!
//! Long responses wait in the [`transfer_scheduler`](super::transfer_scheduler) and become PDUs, a
//! bounded number of bytes at a time, when the driver builds a transmit plan. All others become
//! PDUs immediately, and so overtake them.
//!
//! Invariant: PDUs are sent in the order in which they were queued; the data of one command is
//! contiguous and ascending (Linux appends it and ignores the offset), followed by its response;
//! after a fatal error, only the TermReq is queued.

use isolane_memory::{Payload, Pool, ZeroCopySend};
use isolane_wire::pdu::{C2hData, CapsuleResp};
use isolane_wire::{CompletionEntry, Framing};

use super::Connection;
use super::config::Scheduling;
use super::permit::Permit;
use super::transfer_scheduler::TransferScheduler;
use crate::Completion;
use crate::connection::push_data;
use isolane_connection::TransmitPlan;

/// Long responses that wait for their turn.
pub(super) struct LongResponses {
    scheduling: Scheduling,
    /// Maximum length of a short response.
    threshold: usize,
    turns: TransferScheduler<LongResponse>,
    bytes: usize,
    /// Position in the output of the last turn, or of the start of the wait.
    position: u64,
    /// Counted down from [`MIXED_TURNS`], which other PDUs between two turns restore.
    mixed: u8,
    /// See [`Connection::poll_long_chunk`].
    chunks: Vec<(u16, bool)>,
}

struct LongResponse {
    cid: u16,
    /// Number of bytes in PDUs.
    offset: u32,
    /// Remaining payload.
    payload: Payload,
    completion: Completion,
}

impl LongResponses {
    pub(super) fn new(scheduling: Scheduling) -> LongResponses {
        LongResponses {
            scheduling,
            threshold: scheduling.long_bytes(),
            turns: TransferScheduler::new(),
            bytes: 0,
            position: 0,
            mixed: 0,
            chunks: Vec::new(),
        }
    }

    /// Drops all responses, because the connection ends.
    pub(super) fn clear(&mut self) {
        self.turns.clear();
        self.bytes = 0;
    }
}

impl Connection {
    /// Completes a command without data.
    pub fn complete(&mut self, permit: Permit, completion: Completion) {
        let cid = permit.cid();
        self.slots.close(permit);
        if self.phase.is_alive() {
            self.queue_response(cid, completion);
        }
    }

    /// Completes a command with data for the host. `payload` must have the length of the command's
    /// SGL: hosts treat a shorter success as an error.
    ///
    /// The last data PDU replaces the response if flow control is disabled and the command
    /// succeeded with zero result dwords (TCP 1.0 §3.3.2.1; Linux requires SUCCESS only together
    /// with LAST).
    pub fn complete_with_data(&mut self, permit: Permit, payload: Payload, completion: Completion) {
        if payload.is_empty() {
            return self.complete(permit, completion);
        }
        let cid = permit.cid();
        self.slots.close(permit);
        if !self.phase.is_alive() {
            return;
        }
        if payload.len() > self.long_responses.threshold {
            return self.defer_response(LongResponse { cid, offset: 0, payload, completion });
        }
        self.queue_last_data(cid, 0, payload, completion);
    }

    /// Drops a command without a completion, because its connection ends.
    pub fn abandon(&mut self, permit: Permit) {
        self.slots.close(permit);
    }

    /// Returns a plan with the next bytes to send.
    pub fn transmit_plan(&mut self) -> TransmitPlan<'_> {
        let mut plan = TransmitPlan::new();
        self.fill_transmit_plan(&mut plan);
        plan
    }

    /// Fills an empty plan with the next bytes to send.
    pub fn fill_transmit_plan<'a>(&'a mut self, plan: &mut TransmitPlan<'a>) {
        if !self.long_responses.turns.is_empty() {
            self.queue_chunks();
        }
        self.output.fill_plan(plan);
    }

    /// Records that the first `n` bytes of the plan were sent; completely sent payload returns to
    /// `pool`.
    pub fn handle_transmitted(&mut self, n: usize, pool: &mut Pool) {
        self.output.advance(n, |payload| pool.recycle_payload(payload));
    }

    /// Records a zero-copy send of the first `n` bytes of the plan: keep `send` until the kernel
    /// reports its completion.
    pub fn handle_zerocopy(&mut self, n: usize, send: &mut ZeroCopySend) {
        self.output.advance_zerocopy(n, send);
    }

    /// Returns the CID of a long response whose first or last chunk is in the last transmit plan, and whether it is
    /// the last one.
    pub fn poll_long_chunk(&mut self) -> Option<(u16, bool)> {
        self.long_responses.chunks.pop()
    }

    /// Whether data of this length is sent in chunks.
    pub fn is_long_response(&self, len: usize) -> bool {
        len > self.long_responses.threshold
    }

    /// Total bytes queued and sent, without long responses that wait for their turn.
    pub fn transmit_positions(&self) -> (u64, u64) {
        (self.output.queued_bytes(), self.output.sent_bytes())
    }

    /// Whether there is anything to send.
    pub fn wants_transmit(&self) -> bool {
        !self.output.is_empty() || !self.long_responses.turns.is_empty()
    }

    /// Number of bytes queued for sending.
    pub fn transmit_pending_bytes(&self) -> usize {
        self.output.pending_bytes() + self.long_responses.bytes
    }

    /// Number of queued bytes that belong to waiting long responses.
    pub fn transmit_pending_long_bytes(&self) -> usize {
        self.long_responses.bytes
    }

    /// Number of queued header bytes, which are not references to payload.
    pub fn transmit_pending_header_bytes(&self) -> usize {
        self.output.pending_header_bytes()
    }

    #[cold]
    fn defer_response(&mut self, response: LongResponse) {
        if self.long_responses.turns.is_empty() {
            self.long_responses.position = self.output.queued_bytes();
        }
        let len = response.payload.len();
        self.long_responses.bytes += len;
        self.long_responses.turns.push(response, len);
    }

    /// Queues PDUs of long responses until enough bytes are ready, and at intervals even if short
    /// responses suffice.
    #[inline(never)]
    fn queue_chunks(&mut self) {
        let ready_bytes = self.ready_bytes();
        self.long_responses.chunks.clear();
        self.queue_chunks_until(ready_bytes);
    }

    /// Copies all bytes to send, after it has made PDUs of them. `None` if memory of a payload is not mapped.
    pub(super) fn copy_unsent(&mut self) -> Option<Vec<u8>> {
        self.queue_chunks_until(usize::MAX);
        self.output.try_to_vec()
    }

    fn queue_chunks_until(&mut self, ready_bytes: usize) {
        let chunk_bytes = self.long_responses.scheduling.chunk_bytes;
        while (self.output.pending_bytes() < ready_bytes || self.is_long_response_due())
            && let Some(mut turn) = self.long_responses.turns.next(|_| true)
        {
            let len = turn.left().min(chunk_bytes);
            let response = turn.what();
            let (cccid, datao, payload) = (response.cid, response.offset, response.payload.split_to(len));
            response.offset += len as u32;
            self.long_responses.bytes -= len;
            let whole = turn.take(len);
            if datao == 0 || whole.is_some() {
                self.long_responses.chunks.push((cccid, whole.is_some()));
            }
            match whole {
                Some(LongResponse { completion, .. }) => {
                    self.queue_last_data(cccid, datao, payload, completion);
                }
                None => {
                    let data = C2hData { cccid, datao, datal: len as u32, last: false, success: false };
                    self.queue_data(data, payload);
                }
            }
            self.long_responses.position = self.output.queued_bytes();
        }
    }

    /// Number of ready bytes that ends a turn: fewer after recent short responses, which more bytes
    /// would delay.
    fn ready_bytes(&mut self) -> usize {
        let LongResponses { scheduling, position, mixed, .. } = &mut self.long_responses;
        let is_alone = *position == self.output.queued_bytes();
        *mixed = if is_alone { mixed.saturating_sub(1) } else { MIXED_TURNS };
        if *mixed == 0 { scheduling.ready_bytes } else { scheduling.ready_bytes / 4 }
    }

    /// Whether many other bytes were queued since the last turn.
    fn is_long_response_due(&self) -> bool {
        let passed = self.output.queued_bytes() - self.long_responses.position;
        passed >= (self.long_responses.scheduling.chunk_bytes as u64).saturating_mul(PASSING_CHUNKS)
    }

    /// Queues the end of a command's data, and its response.
    #[inline(always)]
    fn queue_last_data(&mut self, cccid: u16, datao: u32, payload: Payload, completion: Completion) {
        let success = self.submission_queue.flow_control_disabled && completion == Completion::success();
        self.queue_data(C2hData { cccid, datao, datal: payload.len() as u32, last: true, success }, payload);
        if success {
            self.submission_queue.advance();
        } else {
            self.queue_response(cccid, completion);
        }
    }

    #[inline(always)]
    fn queue_data(&mut self, data: C2hData, payload: Payload) {
        if self.outbound_plain {
            self.output.push::<24>(&data.encode(&Framing::PLAIN), Some(payload))
        } else {
            let header = data.encode(&self.outbound);
            push_data::<24>(&mut self.output, &header, payload, self.outbound.data_digest);
        }
    }

    pub(super) fn queue_response(&mut self, cid: u16, completion: Completion) {
        let entry = CompletionEntry {
            dw0: completion.dw0,
            dw1: completion.dw1,
            sqhd: self.submission_queue.advance(),
            sqid: 0,
            cid,
            status: completion.status,
        };
        if self.outbound_plain {
            self.output.push::<24>(&CapsuleResp { entry }.encode(&Framing::PLAIN), None)
        } else {
            self.output.push::<24>(&CapsuleResp { entry }.encode(&self.outbound), None)
        }
    }
}

/// Number of chunks whose bytes can overtake a long response before its turn.
const PASSING_CHUNKS: u64 = 4;
/// Number of turns after a short response in which more are expected.
const MIXED_TURNS: u8 = 32;
