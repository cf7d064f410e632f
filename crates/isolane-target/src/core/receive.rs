//! From bytes to events: one `readv` straight to where the bytes belong, then every whole PDU is acted on.

use std::io::IoSliceMut;

use isolane_proto::connection::ReceivePlan;
use isolane_proto::target::Event;
use isolane_reactor::{Received, Token};
use isolane_volume::Soon;

use super::lane::{Lane, Phase, Stalled};
use super::{Core, Driver};
use crate::slab::SlabKey;

/// What a receive came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// There may be more.
    More,
    /// Nothing there now.
    Empty,
    /// There is no room for more at the moment.
    Paused,
    /// The lane has ended.
    Ended,
}

impl Driver {
    /// Receives once from a lane and acts on what came.
    pub(super) fn receive(&mut self, key: SlabKey) -> Progress {
        let (core, overflow) = (&mut self.core, &mut self.overflow[..]);
        let Some(lane) = self.lanes.get_mut(key) else { return Progress::Ended };
        match lane.phase {
            Phase::Open if lane.paused => Progress::Paused,
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
        let fair = overflow.len().min(self.max_receive_bytes);
        let mut plan = ReceivePlan::new();
        lane.conn.fill_receive_plan(&mut overflow[..fair], &mut plan);
        let received = self.reactor.receive(token, truncate_plan(&mut plan, self.max_receive_bytes));
        drop(plan);
        match received {
            Ok(Received::Bytes(count)) => {
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
                log::info!("{}: receiving failed: {error}", lane.peer());
                self.close(lane, "the connection is broken");
                Progress::Ended
            }
        }
    }

    /// Acts on everything that was received and not acted on.
    pub(super) fn process_input(&mut self, lane: &mut Lane, overflow: &[u8]) -> Progress {
        while lane.is_open() && lane.stalled.is_none() && !is_full(lane) {
            let Some(event) = lane.conn.poll_event(overflow, self.now) else { break };
            if let Event::Command { .. } = event {
                self.prefetch_upcoming(lane, overflow);
            }
            self.handle_queue_event(lane, event);
        }
        if !lane.is_open() {
            return Progress::Ended;
        }
        self.mark_dirty(lane);
        if lane.stalled.is_some() || is_full(lane) {
            lane.conn.defer_input(overflow);
            return self.pause(lane);
        }
        Progress::More
    }

    /// Tells volumes which blocks come after the next command, so that what they need of them is in the
    /// cache by then.
    #[inline]
    fn prefetch_upcoming(&self, lane: &Lane, overflow: &[u8]) {
        for (ahead, soon) in [(COMMANDS_AHEAD_SOON, Soon::Next), (COMMANDS_AHEAD_LATER, Soon::AfterNext)] {
            if let Some((nsid, lba)) = lane.conn.peek_block(overflow, ahead)
                && let Some(position) = self.shared.namespaces.find(nsid)
            {
                self.shared.namespaces.at(position).volume.foresee(lba, soon);
            }
        }
    }

    fn handle_queue_event(&mut self, lane: &mut Lane, event: Event) {
        match event {
            Event::Command { permit, transfer } => {
                let entry = *lane.conn.entry(&permit);
                self.on_command(lane, permit, &entry, transfer);
            }
            Event::Data { permit, buffer, digest_ok } => {
                let entry = *lane.conn.entry(&permit);
                self.on_data(lane, permit, &entry, buffer, digest_ok);
            }
            Event::Connected(request) => log::debug!("{}: initialised with {request:?}", lane.peer()),
            Event::Terminated(request) => {
                log::warn!("{}: the host ended the connection with {request:?}", lane.peer());
                self.close(lane, "the host reported an error of ours");
            }
            Event::Fatal(error) => self.on_fatal(lane, &error),
        }
    }

    /// Throws away what still comes on a lane that is on its way out.
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

    /// Reads no more from a lane until there is room.
    fn pause(&mut self, lane: &mut Lane) -> Progress {
        if let (false, Some(token)) = (lane.paused, lane.token) {
            lane.paused = true;
            self.reactor.pause(token);
            // Who waits for output to leave is resumed by the send that makes room.
            if lane.stalled.is_some() {
                self.stalled.push_back(lane.key);
            }
        }
        Progress::Paused
    }
}

impl Driver {
    /// Looks at every lane that waits for memory, in the order they began to.
    pub(super) fn resume_stalled(&mut self) {
        if self.core.stopping {
            return;
        }
        for _ in 0..self.core.stalled.len() {
            let Some(key) = self.core.stalled.pop_front() else { break };
            if let Some(lane) = self.lanes.get_mut(key)
                && lane.paused
                && !self.core.resume(lane)
            {
                self.core.stalled.push_back(key);
            }
        }
    }
}

impl Core {
    /// The host has taken some of the output that a paused lane waits for.
    pub(super) fn resume_after_send(&mut self, lane: &mut Lane) {
        if lane.paused && lane.stalled.is_none() && !self.stopping {
            self.resume(lane);
        }
    }

    /// Goes on with a paused lane if there is room; false if there is not.
    fn resume(&mut self, lane: &mut Lane) -> bool {
        if !lane.is_open() {
            lane.paused = false;
            return true;
        }
        if is_filled(lane, 2) {
            return false;
        }
        if let Some(stalled) = lane.stalled.take() {
            let Stalled { position, len, .. } = stalled;
            let Some(buffer) = self.in_capsule_buffer(lane, &stalled.permit, position, len) else {
                lane.stalled = Some(stalled);
                return false;
            };
            self.expect_data(lane, position, len);
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

/// As many slices of a plan as make `max` bytes.
fn truncate_plan<'a, 'b>(plan: &'a mut [IoSliceMut<'b>], max: usize) -> &'a mut [IoSliceMut<'b>] {
    if max == usize::MAX {
        return plan;
    }
    let mut left = max;
    let slices = plan.iter().take_while(|slice| {
        let is_wanted = left > 0;
        left = left.saturating_sub(slice.len());
        is_wanted
    });
    let count = slices.count();
    &mut plan[..count]
}

/// Whether nothing more is to be answered before the host takes what waits for it. A queue that has ended has
/// no more answers.
fn is_full(lane: &Lane) -> bool {
    is_filled(lane, 1) && !lane.conn.is_closed()
}

/// Whether more than one part in `parts` of the room for output is taken.
fn is_filled(lane: &Lane, parts: usize) -> bool {
    lane.conn.transmit_pending_bytes() > max_output_bytes(lane) / parts
        || lane.conn.transmit_pending_header_bytes() > MAX_CONTROL_OUTPUT_BYTES / parts
}

/// One receive can bring thousands of commands whose answers are of any size. What admin commands return is
/// memory of its own; what I/O commands return is held in any case, but pages that were overwritten meanwhile
/// live on.
fn max_output_bytes(lane: &Lane) -> usize {
    match &lane.association {
        Some(association) if association.qid != 0 => MAX_OUTPUT_BYTES,
        _ => MAX_CONTROL_OUTPUT_BYTES,
    }
}

/// How many commands ahead a volume hears of a block: memory takes about as long as two commands do, and what
/// leads to it must be there before.
const COMMANDS_AHEAD_SOON: usize = 1;
const COMMANDS_AHEAD_LATER: usize = 4;
/// An I/O queue is not read from while more output than this waits for its host.
const MAX_OUTPUT_BYTES: usize = 8 << 20;
/// The same for an admin queue, and before Connect; and for responses without data on every queue.
const MAX_CONTROL_OUTPUT_BYTES: usize = 64 << 10;
