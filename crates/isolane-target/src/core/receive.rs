//! Receives from a lane: one `readv` into the final destinations, then handles every complete PDU.

use std::io::IoSliceMut;

use isolane_connection::ReceivePlan;
use isolane_proto::connection::Step;
use isolane_proto::target::Event;
use isolane_reactor::{Received, Token};
use isolane_volume::Upcoming;
use isolane_wire::opcode::IoOpcode;

use super::{Core, Driver};
use crate::lane::{Lane, Phase, Stalled};
use crate::observed::Phase as TurnPhase;
use crate::slab::SlabKey;

/// Result of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// More data may be available.
    More,
    /// The socket is empty.
    Empty,
    /// The lane waits for memory or for space for output.
    Paused,
    /// The lane has ended.
    Ended,
}

impl Driver {
    /// Receives once from a lane and handles the data.
    pub(super) fn receive(&mut self, key: SlabKey) -> Progress {
        let (core, overflow) = (&mut self.core, &mut self.overflow[..]);
        let Some(lane) = self.lanes.get_mut(key) else { return Progress::Ended };
        match lane.phase {
            Phase::Open if lane.paused || (core.frozen && !core.authenticating.has(key)) => Progress::Paused,
            Phase::Open => core.receive(lane, overflow),
            Phase::Closing { .. } => core.discard(lane, overflow),
            Phase::Closed => Progress::Ended,
        }
    }
}

impl Core {
    fn receive(&mut self, lane: &mut Lane, overflow: &mut [u8]) -> Progress {
        let Some(token) = lane.token else { return Progress::Ended };
        if is_full(lane) {
            return self.pause(lane);
        }
        lane.conn.stage_pages(std::mem::take(&mut self.memory.receive_pages));
        let progress = self.receive_from(lane, token, overflow);
        self.memory.receive_pages = lane.conn.take_staged();
        progress
    }

    fn receive_from(&mut self, lane: &mut Lane, token: Token, overflow: &mut [u8]) -> Progress {
        self.observer.enter(TurnPhase::Receive);
        let fair = overflow.len().min(self.max_receive_bytes);
        let mut plan = ReceivePlan::new();
        lane.conn.fill_receive_plan(&mut overflow[..fair], &mut plan);
        let received = self.reactor.receive(token, truncate_plan(&mut plan, self.max_receive_bytes));
        drop(plan);
        match received {
            Ok(Received::Bytes(count)) => {
                let now = self.observer.now();
                lane.unseen = self.observer.unseen(now, lane.received_at);
                lane.received_at = now;
                self.counters.received_bytes.add(count as u64);
                lane.conn.handle_received(count);
                self.process_input(lane, overflow)
            }
            Ok(Received::WouldBlock) => Progress::Empty,
            Ok(Received::Eof) => {
                lane.conn.handle_eof();
                self.close(lane, "the host closed it");
                Progress::Ended
            }
            Err(error) => {
                lane.conn.handle_eof();
                log::debug!("{}: receive failed: {error}", lane.peer());
                self.close(lane, "the connection is broken");
                Progress::Ended
            }
        }
    }

    /// Handles all received PDUs.
    pub(super) fn process_input(&mut self, lane: &mut Lane, overflow: &[u8]) -> Progress {
        let now = self.now;
        // No command came before the first ones and prefetched for them.
        if lane.conn.peek_command(overflow, 1).is_some() {
            (0..COMMANDS_AHEAD_LATER).for_each(|ahead| self.prefetch(lane, overflow, ahead, false));
        }
        (0..COMMANDS_AHEAD_SOON).for_each(|ahead| self.prefetch(lane, overflow, ahead, true));
        while lane.is_open() && lane.stalled.is_none() && !is_full(lane) {
            // Before the command is consumed, because headers in front of predicted data lie together.
            self.prefetch(lane, overflow, COMMANDS_AHEAD_SOON, true);
            self.prefetch(lane, overflow, COMMANDS_AHEAD_LATER, false);
            if let Some((permit, transfer)) = lane.conn.poll_command(overflow) {
                self.on_command(lane, permit, transfer);
                continue;
            }
            match lane.conn.poll_other(overflow, now) {
                Step::Event(event) => self.on_event(lane, event),
                Step::Continue => {}
                Step::NeedMoreData => break,
            }
        }
        if !lane.is_open() {
            return Progress::Ended;
        }
        self.sends.add(lane);
        if lane.stalled.is_some() || is_full(lane) {
            lane.conn.defer_input(overflow);
            return self.pause(lane);
        }
        Progress::More
    }

    fn on_event(&mut self, lane: &mut Lane, event: Event) {
        match event {
            Event::Command { .. } => unreachable!("poll_other returned a command"),
            Event::Data { permit, buffer, digest_ok } => self.on_data(lane, permit, buffer, digest_ok),
            Event::Connected(request) => log::debug!("{}: initialized with {request:?}", lane.peer()),
            Event::Terminated(request) => {
                log::limited!(Warn, "{}: the host closed the connection with {request:?}", lane.peer());
                self.close(lane, "the host reported a protocol error");
            }
            Event::Fatal(error) => self.on_fatal(lane, &error),
        }
    }

    /// Prefetches the blocks of a later command into the CPU cache: their page if the command is handled soon,
    /// otherwise only the page table entry, which must be loaded before the page.
    #[inline(always)]
    fn prefetch(&self, lane: &Lane, overflow: &[u8], ahead: usize, is_soon: bool) {
        if let Some(entry) = lane.conn.peek_command(overflow, ahead)
            && let Some(association) = &lane.association
            && let Some(position) = self.namespaces.find(association.id.subsystem, entry.nsid)
        {
            let upcoming = match is_soon {
                false => Upcoming::Later,
                true if entry.opcode == IoOpcode::Write.code() => Upcoming::Write,
                true => Upcoming::Read,
            };
            self.namespaces.at(position).volume.prefetch(entry.cdw10_11(), upcoming);
        }
    }

    /// Discards data on a closing lane.
    fn discard(&mut self, lane: &mut Lane, overflow: &mut [u8]) -> Progress {
        let Some(token) = lane.token else { return Progress::Ended };
        match self.reactor.receive(token, &mut [IoSliceMut::new(overflow)]) {
            Ok(Received::Bytes(_)) => Progress::More,
            Ok(Received::WouldBlock) => Progress::Empty,
            Ok(Received::Eof) | Err(_) => {
                self.close(lane, "the host closed it");
                Progress::Ended
            }
        }
    }

    /// Stops reading from a lane until memory or space for output is available.
    fn pause(&mut self, lane: &mut Lane) -> Progress {
        if let (false, Some(token)) = (lane.paused, lane.token) {
            lane.paused = true;
            self.reactor.pause(token);
            // A lane that waits for space for output is resumed by a send.
            if lane.stalled.is_some() {
                self.waiting.stalled.push_back(lane.key);
            }
        }
        Progress::Paused
    }
}

impl Driver {
    /// Retries every lane that waits for memory, in order.
    pub(super) fn resume_stalled(&mut self) {
        if self.core.stopping {
            return;
        }
        for _ in 0..self.core.waiting.stalled.len() {
            let Some(key) = self.core.waiting.stalled.pop_front() else { break };
            if let Some(lane) = self.lanes.get_mut(key)
                && lane.paused
                && !lane.retiring
                && !self.core.resume(lane)
            {
                self.core.waiting.stalled.push_back(key);
            }
        }
    }
}

impl Core {
    /// Resumes a paused lane whose output was sent.
    pub(super) fn resume_after_send(&mut self, lane: &mut Lane) {
        if lane.paused && lane.stalled.is_none() && !lane.retiring && !self.stopping {
            self.resume(lane);
        }
    }

    /// Resumes a paused lane. Returns `false` if it must still wait.
    fn resume(&mut self, lane: &mut Lane) -> bool {
        if !lane.is_open() {
            lane.paused = false;
            return true;
        }
        if is_filled(lane, 2) || self.frozen {
            return false;
        }
        if let Some(stalled) = lane.stalled.take() {
            let Stalled { position, len, .. } = stalled;
            let Some(buffer) = self.in_capsule_buffer(lane, &stalled.permit, position, len) else {
                lane.stalled = Some(stalled);
                return false;
            };
            self.expect_data(lane, position, len);
            self.begin_transfer(lane, &stalled.permit, position, stalled.timeline);
            lane.conn.extend_deadline(self.now.saturating_duration_since(stalled.since));
            lane.conn.receive_into(stalled.permit, buffer);
        }
        lane.paused = false;
        if self.process_input(lane, &[]) != Progress::Paused
            && let Some(token) = lane.token
        {
            self.reactor.resume(token);
        }
        true
    }
}

/// Returns the first slices of a plan, up to `max` bytes.
fn truncate_plan<'a, 'b>(plan: &'a mut [IoSliceMut<'b>], max: usize) -> &'a mut [IoSliceMut<'b>] {
    if max == usize::MAX {
        return plan;
    }
    let mut remaining = max;
    let slices = plan.iter().take_while(|slice| {
        let is_included = remaining > 0;
        remaining = remaining.saturating_sub(slice.len());
        is_included
    });
    let count = slices.count();
    &mut plan[..count]
}

/// Returns `true` if the lane must not be read until the host receives queued output, or output that a side thread
/// collects. A closed connection sends nothing.
fn is_full(lane: &Lane) -> bool {
    (is_filled(lane, 1) || lane.waiting_for_page.is_some()) && !lane.conn.is_closed()
}

/// Returns `true` if more than one `parts`-th of the space for output is used.
fn is_filled(lane: &Lane, parts: usize) -> bool {
    lane.conn.transmit_pending_bytes() > max_output_bytes(lane) / parts
        || lane.conn.transmit_pending_header_bytes() > MAX_CONTROL_OUTPUT_BYTES / parts
}

/// Returns the limit of queued output. One receive can contain thousands of commands with responses of any
/// size. Responses of admin commands allocate memory; responses of I/O commands keep overwritten pages alive.
fn max_output_bytes(lane: &Lane) -> usize {
    match &lane.association {
        Some(association) if association.qid != 0 => MAX_OUTPUT_BYTES,
        _ => MAX_CONTROL_OUTPUT_BYTES,
    }
}

/// Distances of the prefetch in commands: a cache miss takes as long as about two commands.
const COMMANDS_AHEAD_SOON: usize = 2;
const COMMANDS_AHEAD_LATER: usize = 5;
/// Limit of queued output at which an I/O queue is not read, in bytes.
const MAX_OUTPUT_BYTES: usize = 8 << 20;
/// The same for an admin queue, before Connect, and for responses without data on every queue.
const MAX_CONTROL_OUTPUT_BYTES: usize = 64 << 10;
