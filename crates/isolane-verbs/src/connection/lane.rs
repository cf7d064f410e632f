//! One lane of a queue pair: its bytes in both directions, and a log of what to send again if it ends.
//!
//! Invariant: the log has each segment of the current epoch whose loss matters. A lane keeps the order, so the number of
//! segments that have arrived, and the number of bytes of the next one, name the lost ones.

use std::collections::VecDeque;

use super::checked_input::CheckedInput;
use super::input::Input;
use super::output::Output;
use crate::wire::{NakCode, Segment};

/// Number of segments and bytes that have arrived on a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Last epoch in which anything arrived; 0 if none.
    pub epoch: u32,
    /// Number of segments that arrived completely in that epoch.
    pub segments: u32,
    /// Number of payload bytes of the next segment that arrived.
    pub bytes: u32,
}

/// Part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) message: u32,
    /// First byte and number of bytes.
    pub(super) offset: u32,
    pub(super) length: u32,
}

impl Part {
    /// Returns the part that a segment carries.
    pub(super) fn of(segment: &Segment) -> Part {
        Part { message: segment.message, offset: segment.offset, length: segment.length }
    }
}

/// A sent part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Request(Part),
    Response(Part),
}

impl Sent {
    fn part(&mut self) -> &mut Part {
        match self {
            Sent::Request(part) | Sent::Response(part) => part,
        }
    }
}

/// A segment that changes the state of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    Nak(u32, NakCode),
    Ended,
    Failed,
    /// A report about the lane with this index, which has ended.
    Report(usize),
}

/// Segments that the peer has not received.
#[derive(Default)]
pub(super) struct Lost {
    pub(super) parts: Vec<Sent>,
    pub(super) controls: Vec<Control>,
}

/// One end of a lane.
#[derive(Default)]
pub(super) struct LaneState {
    pub(super) input: Input,
    /// Receives instead of `input` if the open lane has checksums.
    pub(super) checked: Option<CheckedInput>,
    /// Number of wrong checksums, in all epochs, since the last right request or payload.
    pub(super) wrong_checksums: u32,
    pub(super) output: Output,
    pub(super) is_open: bool,
    /// Number of attempts to open it.
    pub(super) epoch: u32,
    /// Epoch in which it was open last, which is the one of the log.
    pub(super) opened_epoch: u32,
    /// Sent parts and their position among all segments of the epoch.
    log: VecDeque<(u32, Sent)>,
    /// Length of the log from which settled parts are removed that are not the oldest.
    compact_at: usize,
    controls: VecDeque<(u32, Control)>,
    /// Number of segments sent in the epoch.
    sent: u32,
    received: Received,
    /// The lane has ended, and its report is not sent.
    pub(super) is_report_pending: bool,
    /// Whether to send a probe on this lane, or the answer to one.
    pub(super) is_probe_pending: bool,
    pub(super) is_answer_pending: bool,
    /// A probe was answered.
    pub(super) is_answered: bool,
    /// A segment has arrived since the last check.
    was_active: bool,
    /// Number of checks in a row without one.
    idle_checks: u32,
}

impl LaneState {
    /// Opens the lane, with or without checksums. Everything sent in earlier epochs is settled.
    pub(super) fn open(&mut self, epoch: u32, checksums: bool) {
        (self.is_open, self.is_report_pending) = (true, false);
        self.checked = checksums.then(CheckedInput::default);
        self.output = Output::new(checksums);
        (self.epoch, self.opened_epoch, self.sent) = (epoch, epoch, 0);
        (self.is_probe_pending, self.is_answer_pending, self.was_active, self.idle_checks) =
            (false, false, true, 0);
    }

    /// Ends the lane.
    pub(super) fn close(&mut self) {
        (self.is_open, self.is_report_pending) = (false, true);
        if self.received.epoch == self.epoch {
            self.received.bytes = self.input.placed_bytes();
        }
        (self.input, self.checked, self.output) = (Input::default(), None, Output::default());
    }

    /// Records the position of a segment that is queued now, and needs no entry.
    pub(super) fn count_sent(&mut self) {
        self.sent = self.sent.wrapping_add(1);
    }

    /// Records the position of a part that is queued now.
    pub(super) fn log(&mut self, sent: Sent) {
        self.log.push_back((self.sent, sent));
        self.count_sent();
    }

    /// Records the position of a segment that changes the state of the peer, and is queued now.
    pub(super) fn log_control(&mut self, control: Control) {
        self.controls.push_back((self.sent, control));
        self.count_sent();
    }

    /// Forgets the sent segments that are settled: nothing would be sent again.
    pub(super) fn trim(&mut self, is_settled: impl Fn(&Sent) -> bool) {
        while self.log.front().is_some_and(|(_, sent)| is_settled(sent)) {
            self.log.pop_front();
        }
        if self.log.len() >= self.compact_at.max(MIN_COMPACT) {
            self.forget(is_settled);
            self.compact_at = 2 * self.log.len();
        }
    }

    /// Forgets sent parts.
    pub(super) fn forget(&mut self, is_settled: impl Fn(&Sent) -> bool) {
        self.log.retain(|(_, sent)| !is_settled(sent));
    }

    /// Counts a segment that has arrived completely.
    pub(super) fn count_segment(&mut self) {
        self.received.segments = self.received.segments.wrapping_add(1);
        self.was_active = true;
    }

    /// Checks whether a segment has arrived since the last check, and sends a probe otherwise. Returns the number of
    /// checks in a row without a segment.
    pub(super) fn check_activity(&mut self) -> u32 {
        let was_idle = !std::mem::take(&mut self.was_active);
        self.idle_checks = if was_idle { self.idle_checks + 1 } else { 0 };
        self.is_probe_pending |= was_idle;
        self.idle_checks
    }

    /// Whether there is something to send that only this lane can carry.
    pub(super) fn has_output(&self) -> bool {
        self.is_open && (!self.output.is_empty() || self.is_probe_pending || self.is_answer_pending)
    }

    /// Bytes have arrived.
    pub(super) fn start_receiving(&mut self) {
        if self.received.epoch != self.epoch {
            self.received = Received { epoch: self.epoch, ..Received::default() };
        }
    }

    /// Returns the report for the peer.
    pub(super) fn received(&self) -> Received {
        self.received
    }

    /// Whether the lane has ended, and the peer has perhaps not received a segment that later ones must not overtake.
    pub(super) fn has_unsettled_control(&self) -> bool {
        !self.is_open && !self.controls.is_empty()
    }

    /// Returns the segments of the epoch that change the state of the peer, which it has received or not.
    pub(super) fn take_controls(&mut self) -> Vec<Control> {
        self.controls.drain(..).map(|(_, control)| control).collect()
    }

    /// Whether `report` is about an earlier epoch than the log.
    pub(super) fn is_past(&self, epoch: u32) -> bool {
        epoch < self.opened_epoch
    }

    /// Returns the segments of the epoch that has ended that the peer has not received, in order. `None` if the report is
    /// false.
    pub(super) fn take_lost(&mut self, report: Received) -> Option<Lost> {
        let received = if report.epoch == self.opened_epoch { report } else { Received::default() };
        if report.epoch > self.epoch || received.segments > self.sent {
            return None;
        }
        let is_lost = |position: u32| position >= received.segments;
        let mut lost = Lost::default();
        for (position, mut sent) in self.log.drain(..).filter(|(position, _)| is_lost(*position)) {
            if position == received.segments {
                let part = sent.part();
                // A segment that has arrived completely is counted.
                let is_partial = received.bytes == 0 || received.bytes < part.length;
                part.length = part.length.checked_sub(received.bytes).filter(|_| is_partial)?;
                part.offset += received.bytes;
            }
            lost.parts.push(sent);
        }
        let controls = self.controls.drain(..).filter(|(position, _)| is_lost(*position));
        lost.controls.extend(controls.map(|(_, control)| control));
        Some(lost)
    }
}

/// Length of a log below which only the oldest parts are removed.
const MIN_COMPACT: usize = 1024;
