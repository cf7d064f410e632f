//! Close of a lane, and shutdown of a core.
//!
//! A lane ends in three steps:
//!
//! 1. [`Core::disconnect`] notifies the port and cancels the commands that have not reached a volume.
//! 2. [`Core::close`] closes the socket.
//! 3. [`Driver::reap`] removes the lane, and notifies the port, once its last command has left its volume.
//!
//! If step 3 takes too long for a reset, [`Core::check_stuck`] notifies the port earlier and fences the stuck
//! commands.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use isolane_proto::connection::FatalError;
use isolane_proto::target::Permit;

use super::flush::AfterFlush;
use super::{Core, Driver};
use crate::error::ShutdownReport;
use crate::lane::{Lane, Phase};
use crate::work::{FileWork, Job, Waiting};

/// Progress of the shutdown of a core.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShutdownState {
    deadline: Instant,
    /// All lanes are closed, and the core is counted in `cores_drained`.
    drained: bool,
    /// The core can end.
    finished: bool,
    flushes_failed: usize,
}

impl ShutdownState {
    /// The core can end at once.
    pub(super) fn finished(now: Instant) -> ShutdownState {
        ShutdownState { deadline: now, drained: true, finished: true, flushes_failed: 0 }
    }
}

impl Core {
    /// Ends the connection after a protocol violation or a deadline.
    pub(super) fn on_fatal(&mut self, lane: &mut Lane, error: &FatalError) {
        self.counters.fatal_errors.add(1);
        if lane.newcomer.is_none() {
            log::limited!(Warn, "{}: closing the connection: {error}", lane.peer());
        } else {
            log::limited!(Warn, "{}: closing the connection before Connect: {error}", lane.peer());
        }
        if lane.conn.is_closed() {
            self.close(lane, "protocol error");
        } else {
            self.close_gracefully(lane, "protocol error");
        }
    }

    /// Sends the queued data, then waits for the host to close.
    pub(super) fn close_gracefully(&mut self, lane: &mut Lane, reason: &str) {
        self.close_gracefully_by(lane, reason, self.now + GRACEFUL_CLOSE_TIMEOUT);
    }

    fn close_gracefully_by(&mut self, lane: &mut Lane, reason: &str, until: Instant) {
        if !lane.is_open() {
            return;
        }
        log::debug!("{}: closing gracefully: {reason}", lane.peer());
        lane.phase = Phase::Closing { until, write_shut: false };
        if let (true, Some(token)) = (lane.paused, lane.token) {
            lane.paused = false;
            self.reactor.resume(token);
        }
        self.disconnect(lane);
        self.sends.add(lane);
    }

    /// Closes the socket.
    pub(super) fn close(&mut self, lane: &mut Lane, reason: &str) {
        if lane.phase == Phase::Closed {
            return;
        }
        match lane.association.as_ref().filter(|association| association.qid == 0) {
            Some(association) => {
                log::limited!(Info, "{}: {} has disconnected: {reason}", lane.peer(), association.host);
            }
            None => log::debug!("{}: closed: {reason}", lane.peer()),
        }
        if let Some(arrival) = lane.newcomer.take() {
            self.shared.newcomers.remove(lane.peer().ip(), arrival);
        }
        self.leave_unauthenticated(lane);
        lane.phase = Phase::Closed;
        self.disconnect(lane);
        lane.conn.handle_eof();
        for buffer in lane.conn.take_buffers() {
            self.memory.pool.recycle_buffer(buffer);
        }
        for at in &mut lane.volumes {
            self.volumes[at.position].release(std::mem::take(&mut at.awaited_bytes));
        }
        if let Some(token) = lane.token.take() {
            self.reactor.close(token);
            self.count_lingering();
        }
        self.counters.connections_open.subtract(1);
        self.ended.push(lane.key);
    }

    /// Disconnects the lane from its association, and cancels the commands that have not reached a volume.
    fn disconnect(&mut self, lane: &mut Lane) {
        if std::mem::replace(&mut lane.disconnected, true) {
            return;
        }
        lane.disconnected_at = self.now;
        self.cancel_waiting(lane);
        let connecting = lane.connecting.take().map(|connecting| connecting.permit);
        let stalled = lane.stalled.take().map(|stalled| stalled.permit);
        let page = lane.waiting_for_page.take().map(|waiting| waiting.permit);
        let auth = lane.association.as_mut().and_then(|association| association.auth.as_mut());
        let computing = auth.and_then(|auth| auth.computing.take());
        let computing = computing.map(|computing| computing.permit);
        for permit in connecting.into_iter().chain(stalled).chain(page).chain(computing) {
            lane.conn.abandon(permit);
        }
        self.record_left(lane);
        self.leave_orphans(lane);
        if let Some(association) = &lane.association {
            self.shared.disconnected(association.id, association.qid, lane.id);
            self.ended.push(lane.key);
        } else {
            self.shared.forget_held_connect(lane.id);
        }
    }

    /// Counts a closed lane at each volume with commands of it.
    fn record_left(&mut self, lane: &mut Lane) {
        if lane.active == 0 {
            return;
        }
        for work in self.files.values() {
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

    /// Called when a command of a closed lane has left its volume.
    pub(super) fn record_left_ended(&mut self, lane: &mut Lane, position: usize) {
        let Some(at) = lane.left_at.iter().position(|(left_at, _)| *left_at == position) else { return };
        lane.left_at[at].1 -= 1;
        if lane.left_at[at].1 == 0 {
            lane.left_at.swap_remove(at);
            self.volumes[position].lanes_left -= 1;
        }
    }

    /// Returns `true` if a volume has commands of too many closed lanes to get new ones: each lane holds
    /// memory, and its controller a CNTLID. Commands that wait here are canceled with their lane.
    pub(super) fn has_left_too_many(&self, position: usize) -> bool {
        self.volumes[position].lanes_left >= MAX_LANES_LEFT
    }

    /// Bounds the wait of a controller reset for the commands of its I/O connections. After the limit the
    /// controller continues without stuck commands, and its later connections are fenced from them.
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
        log::limited!(
            Error,
            "{}: {} commands of {} have not ended within {:?} of the close of their connection",
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
    /// Removes closed lanes whose commands have all left their volumes.
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
                lane.observed
                    .iter()
                    .for_each(|cells| self.core.shared.connections.close(cells, self.core.now));
                let in_quota = self.lanes.remove(key).is_some_and(|lane| lane.in_quota);
                if in_quota {
                    self.core.shared.lane_quota.disconnect(self.core.index);
                }
            }
        }
    }

    /// Starts the shutdown: stops accepting and reading.
    pub(super) fn begin_shutdown(&mut self, deadline: Instant) {
        self.shutdown.get_or_insert(ShutdownState {
            deadline,
            drained: false,
            finished: false,
            flushes_failed: 0,
        });
        self.core.stopping = true;
        self.core.waiting.over_limit.try_all(self.core.now);
        self.core.reactor.stop_listening();
        for lane in self.lanes.values_mut() {
            if let Some(token) = lane.token.filter(|_| lane.is_open()) {
                lane.paused = true;
                self.core.reactor.pause(token);
            }
        }
    }

    /// Closes lanes without commands in flight, and ends the core after the last one.
    pub(super) fn poll_shutdown(&mut self) {
        let Some(stop) = self.shutdown else { return };
        let is_late = self.core.now >= stop.deadline;
        for lane in self.lanes.values_mut() {
            if is_late {
                self.core.close(lane, "the target stops");
            } else if lane.is_open() && lane.active == 0 && !self.core.has_io_queues(lane) {
                let until = stop.deadline.min(self.core.now + SHUTDOWN_CLOSE_TIMEOUT);
                self.core.close_gracefully_by(lane, "the target stops", until);
            }
        }
        let drained = self.lanes.is_empty() || is_late;
        if drained && !stop.drained {
            self.announce_drained(stop);
        }
    }

    /// The last core to close its lanes flushes the volumes; the others end.
    fn announce_drained(&mut self, stop: ShutdownState) {
        let shared = &self.core.shared;
        let before = shared.cores_drained.fetch_add(1, Ordering::AcqRel);
        let is_last = before + 1 == shared.counters.len();
        self.shutdown = Some(ShutdownState { drained: true, finished: !is_last, ..stop });
        if is_last {
            self.core.flush_now(AfterFlush::Shutdown);
        }
    }

    /// Called when the final flush has ended.
    pub(super) fn handle_final_flush(&mut self, flushes_failed: usize) {
        if let Some(stop) = &mut self.shutdown {
            *stop = ShutdownState { finished: true, flushes_failed, ..*stop };
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.shutdown.is_some_and(|stop| stop.finished)
    }

    /// Closes all lanes and abandons all commands.
    pub(super) fn finish(&mut self) -> ShutdownReport {
        self.core.name_in_flight();
        let commands_aborted = self.lanes.values().map(|lane| lane.active as usize).sum();
        for (_, mut lane) in self.lanes.drain() {
            self.core.close(&mut lane, "the target stops");
        }
        self.core.forfeit_all();
        let flushes_failed = self.shutdown.map_or(0, |stop| stop.flushes_failed);
        ShutdownReport { commands_aborted, flushes_failed, ..ShutdownReport::default() }
    }
}

impl Core {
    /// Returns `true` for the lane of an admin queue whose association has other queues. Its end would close them.
    fn has_io_queues(&self, lane: &Lane) -> bool {
        let association = lane.association.as_ref().filter(|association| association.qid == 0);
        association.is_some_and(|association| self.shared.has_io_queues(association.id))
    }

    /// Logs the volumes for which the end of this core waits.
    fn name_in_flight(&self) {
        let mut in_flight = vec![0_usize; self.namespaces.end()];
        for work in self.files.values() {
            match work {
                FileWork::Command { job: Job { position, .. }, .. } | FileWork::Flush { position, .. } => {
                    in_flight[*position] += 1;
                }
                FileWork::Member(_) => {}
            }
        }
        for (position, count) in in_flight.into_iter().enumerate().filter(|(_, count)| *count > 0) {
            let name = self.namespaces.at(position).volume.name();
            log::warn!("{name}: {count} operations have not ended; reactor {} waits for them", self.index);
        }
    }

    /// Forfeits the permits of closed connections.
    fn forfeit_all(&mut self) {
        for waiting in self.waiting.drain() {
            match waiting {
                Waiting::Data { permit, .. } => permit.forfeit(),
                Waiting::Start { job, .. } => job.permit.into_iter().for_each(Permit::forfeit),
            }
        }
        for (_, work) in self.files.drain() {
            if let FileWork::Command { job, .. } = work {
                job.permit.into_iter().for_each(Permit::forfeit);
            }
        }
        self.flushes.forfeit();
        self.forfeit_held();
    }
}

/// Closed lanes with commands at one volume, from which the volume gets no new commands.
const MAX_LANES_LEFT: usize = 256;
/// Time for a host to read the last data and close (TCP 1.0 §3.5: at most 30 s).
const GRACEFUL_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The same at the shutdown of the target.
const SHUTDOWN_CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
