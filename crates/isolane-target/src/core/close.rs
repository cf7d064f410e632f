//! The end of a lane, and of all lanes of a core.
//!
//! A lane ends in three steps that need not follow at once: the port hears that it is lost and what has not
//! reached a volume is cancelled ([`Core::disconnect`]); the socket is closed ([`Core::close`]); the last of
//! its commands leaves its volume, the port hears that it is drained, and it goes ([`Driver::reap`]). If that
//! takes too long for a reset, the port hears it before, and what is stuck is fenced ([`Core::check_stuck`]).

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use isolane_proto::connection::FatalError;

use super::flush::AfterFlush;
use super::lane::{Lane, Phase};
use super::work::{FileWork, Job, Waiting};
use super::{Core, CoreReport, Driver};
use crate::slab::SlabKey;

/// How far a core is on its way to its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShutdownState {
    deadline: Instant,
    /// All lanes are gone, and the other cores know.
    drained: bool,
    /// Nothing is left to do.
    finished: bool,
    flushes_failed: usize,
}

impl Core {
    /// The host broke the protocol, or a deadline.
    pub(super) fn on_fatal(&mut self, lane: &mut Lane, error: &FatalError) {
        self.counters.fatal_errors.add(1);
        if lane.newcomer.is_none() {
            log::warn!("{}: the connection ends: {error}", lane.peer());
        } else if self.newcomer_log.is_due(self.now) {
            log::warn!("{}: the connection ends before Connect: {error}", lane.peer());
        }
        if lane.conn.is_closed() {
            self.close(lane, "of that error");
        } else {
            self.close_gracefully(lane, "of that error");
        }
    }

    /// Says what is queued, then waits for the host to close.
    pub(super) fn close_gracefully(&mut self, lane: &mut Lane, reason: &str) {
        self.close_gracefully_by(lane, reason, self.now + GRACEFUL_CLOSE_TIMEOUT);
    }

    fn close_gracefully_by(&mut self, lane: &mut Lane, reason: &str, until: Instant) {
        if !lane.is_open() {
            return;
        }
        log::debug!("{}: ending, because {reason}", lane.peer());
        lane.phase = Phase::Closing { until, write_shut: false };
        if let (true, Some(token)) = (lane.paused, lane.token) {
            lane.paused = false;
            self.reactor.resume(token);
        }
        self.disconnect(lane);
        self.mark_dirty(lane);
    }

    /// Closes the socket.
    pub(super) fn close(&mut self, lane: &mut Lane, reason: &str) {
        if lane.phase == Phase::Closed {
            return;
        }
        match lane.newcomer.take() {
            // Anybody can cause as many of these lines as they like.
            Some(arrival) => {
                log::debug!("{}: closed, because {reason}", lane.peer());
                self.shared.newcomers.remove(lane.peer().ip(), arrival);
            }
            None => log::info!("{}: closed, because {reason}", lane.peer()),
        }
        lane.phase = Phase::Closed;
        self.disconnect(lane);
        lane.conn.handle_eof();
        for buffer in lane.conn.take_buffers() {
            self.memory.pool.recycle_buffer(buffer);
        }
        for at in &mut lane.volumes {
            self.volumes[at.position()].release(std::mem::take(&mut at.awaited_bytes));
        }
        if let Some(token) = lane.token.take() {
            self.reactor.close(token);
            self.count_lingering();
        }
        self.counters.connections_open.subtract(1);
        self.ended.push(lane.key);
    }

    /// The connection is lost to its association. What has not reached a volume is cancelled.
    fn disconnect(&mut self, lane: &mut Lane) {
        if std::mem::replace(&mut lane.disconnected, true) {
            return;
        }
        lane.disconnected_at = self.now;
        self.cancel_waiting(lane);
        let connecting = lane.connecting.take().map(|connecting| connecting.permit);
        let stalled = lane.stalled.take().map(|stalled| stalled.permit);
        for permit in connecting.into_iter().chain(stalled) {
            lane.conn.abandon(permit);
        }
        self.record_left(lane);
        if let Some(association) = &lane.association {
            self.shared.disconnect(association.id, association.qid);
            self.ended.push(lane.key);
        }
    }
}

impl Core {
    /// Counts a lane that is gone at the volumes which still work on its commands.
    fn record_left(&mut self, lane: &mut Lane) {
        if lane.active == 0 {
            return;
        }
        for work in self.files.iter() {
            let FileWork::Command { lane: key, job, .. } = work else { continue };
            if *key != lane.key {
                continue;
            }
            match lane.left_at.iter_mut().find(|(position, _)| *position == job.position) {
                Some((_, commands)) => *commands += 1,
                None => lane.left_at.push((job.position, 1)),
            }
        }
        lane.left_at.iter().for_each(|(position, _)| self.volumes[*position].lanes_left += 1);
    }

    /// A volume has ended a command of a lane that is gone.
    pub(super) fn record_left_ended(&mut self, lane: &mut Lane, position: usize) {
        let Some(at) = lane.left_at.iter().position(|(left_at, _)| *left_at == position) else { return };
        lane.left_at[at].1 -= 1;
        if lane.left_at[at].1 == 0 {
            lane.left_at.swap_remove(at);
            self.volumes[position].lanes_left -= 1;
        }
    }

    /// Whether so many lanes that are gone wait for a volume that it gets no new commands: each keeps memory,
    /// and its controller keeps a CNTLID. Commands that wait here go with their lane.
    pub(super) fn has_left_too_many(&self, position: usize) -> bool {
        self.volumes[position].lanes_left >= MAX_LANES_LEFT
    }

    /// A controller that is reset waits only so long for the commands of its I/O connections. Then it goes on
    /// without those that are stuck at their volumes, and its next connections are fenced from them.
    pub(super) fn check_stuck(&mut self, lane: &mut Lane) {
        let is_late = lane.disconnected
            && lane.active > 0
            && self.now.saturating_duration_since(lane.disconnected_at) >= self.shared.stuck_after;
        let Some(association) = lane.association.as_ref().filter(|_| is_late && !lane.left_behind) else {
            return;
        };
        if association.qid == 0 || association.status.has_ended() {
            return;
        }
        log::error!(
            "{}: {} commands of {} have not ended for {:?} after its connection was closed",
            lane.peer(),
            lane.active,
            association.host,
            self.shared.stuck_after
        );
        let changes = self.unfinished_changes(&HashSet::from([lane.key]));
        self.shared.leave_stuck(association.id, association.qid, lane.id, &changes);
        lane.left_behind = true;
    }
}

impl Driver {
    /// Finishes with lanes that have ended and whose commands have all left their volumes.
    pub(super) fn reap(&mut self) {
        while let Some(key) = self.core.ended.pop() {
            let Some(lane) = self.lanes.get_mut(key) else { continue };
            if lane.active > 0 || !lane.disconnected {
                continue;
            }
            if let Some(association) = lane.association.take() {
                self.core.shared.drained(association.id, association.qid, lane.id);
            }
            if lane.phase == Phase::Closed {
                self.migrated_in.remove(&lane.id);
                let in_quota = self.lanes.remove(key).is_some_and(|lane| lane.in_quota);
                if in_quota {
                    self.core.shared.lane_quota.disconnect(self.core.index);
                }
            }
        }
    }

    /// Finish what is in flight, and end.
    pub(super) fn begin_shutdown(&mut self, deadline: Instant) {
        self.shutdown.get_or_insert(ShutdownState {
            deadline,
            drained: false,
            finished: false,
            flushes_failed: 0,
        });
        self.core.stopping = true;
        self.stop_listening();
        for key in self.lanes.keys().collect::<Vec<_>>() {
            if let Some(lane) = self.lanes.get_mut(key)
                && let Some(token) = lane.token.filter(|_| lane.is_open())
            {
                lane.paused = true;
                self.core.reactor.pause(token);
            }
        }
    }

    /// Ends lanes that have nothing in flight any more, and the core when none is left.
    pub(super) fn poll_shutdown(&mut self) {
        let Some(stop) = self.shutdown else { return };
        let is_late = self.core.now >= stop.deadline;
        for key in self.lanes.keys().collect::<Vec<_>>() {
            let Some(lane) = self.lanes.get_mut(key) else { continue };
            if is_late {
                self.core.close(lane, "the target stops");
            } else if lane.is_open() && lane.active == 0 {
                let until = stop.deadline.min(self.core.now + SHUTDOWN_CLOSE_TIMEOUT);
                self.core.close_gracefully_by(lane, "the target stops", until);
            }
        }
        let drained = self.lanes.is_empty() || is_late;
        if drained && !stop.drained {
            self.announce_drained(stop);
        }
    }

    /// The core that is drained last flushes the volumes; the others are done.
    fn announce_drained(&mut self, stop: ShutdownState) {
        let shared = &self.core.shared;
        let before = shared.cores_drained.fetch_add(1, Ordering::AcqRel);
        let is_last = before + 1 == shared.counters.len();
        self.shutdown = Some(ShutdownState { drained: true, finished: !is_last, ..stop });
        if is_last {
            self.core.start_flush(AfterFlush::Shutdown);
        }
    }

    /// The last flush has ended.
    pub(super) fn handle_final_flush(&mut self, flushes_failed: usize) {
        if let Some(stop) = &mut self.shutdown {
            *stop = ShutdownState { finished: true, flushes_failed, ..*stop };
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.shutdown.is_some_and(|stop| stop.finished)
    }

    /// Lets go of everything.
    pub(super) fn finish(&mut self) -> CoreReport {
        self.core.name_in_flight();
        let commands_aborted = self.lanes.iter().map(|lane| lane.active as usize).sum();
        for key in self.lanes.keys().collect::<Vec<_>>() {
            if let Some(mut lane) = self.lanes.remove(key) {
                self.core.close(&mut lane, "the target stops");
            }
        }
        self.core.forfeit_all();
        let flushes_failed = self.shutdown.map_or(0, |stop| stop.flushes_failed);
        CoreReport { commands_aborted, flushes_failed, failed: false }
    }
}

impl Core {
    /// Says which volumes the end of this core waits for.
    fn name_in_flight(&self) {
        let mut in_flight = vec![0_usize; self.shared.namespaces.len()];
        for work in self.files.iter() {
            match work {
                FileWork::Command { job: Job { position, .. }, .. } | FileWork::Flush { position, .. } => {
                    in_flight[*position] += 1;
                }
                FileWork::Member(_) => {}
            }
        }
        for (position, count) in in_flight.into_iter().enumerate().filter(|(_, count)| *count > 0) {
            let name = self.shared.namespaces.at(position).volume.name();
            log::warn!("{name}: {count} operations have not ended; core {} waits for them", self.index);
        }
    }

    /// Gives up the permits of queues that no longer exist.
    fn forfeit_all(&mut self) {
        let rows = [&mut self.waiting, &mut self.blocked, &mut self.fenced];
        for waiting in rows.into_iter().flat_map(|row| row.drain(..)) {
            match waiting {
                Waiting::Data { permit, .. } => permit.forfeit(),
                Waiting::Start { job, .. } => job.permit.forfeit(),
                Waiting::Flush { .. } => {}
            }
        }
        for key in self.files.keys().collect::<Vec<SlabKey>>() {
            if let Some(FileWork::Command { job, .. }) = self.files.remove(key) {
                job.permit.forfeit();
            }
        }
        self.forfeit_flushes();
    }
}

/// A volume that has not ended the commands of so many lanes that are gone gets no new ones.
const MAX_LANES_LEFT: usize = 256;
/// How long a host may take to read our last words and close (TCP 1.0 §3.5: at most 30 s).
const GRACEFUL_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The same when the target stops.
const SHUTDOWN_CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
