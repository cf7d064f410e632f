//! Moves of lanes between cores (S8): load reports, and how a lane leaves one core and joins another.
//!
//! Each core reports its load to the first core once per interval; the first core runs the
//! [`Scheduler`] and requests the moves. A lane leaves only while it is quiescent: no command is in flight
//! except held Async Event Requests, it holds no memory of the core's pool, nothing is queued for sending,
//! and no message for it is unread. So a move transfers a socket and a state machine, and nothing has to be
//! forwarded afterwards. If a lane does not become quiescent soon, its core briefly stops reading from it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use isolane_reactor::Mode;
use isolane_reactor::frequency::Frequency;

use super::{Core, Driver};
use crate::lane::{Lane, MigratingLane, Phase};
use crate::scheduler::{CoreLoad, LaneLoad, Scheduler};
use crate::shared::Message;
use crate::slab::{LaneId, SlabKey};

/// State of the dynamic scheduler on one core.
pub(super) struct Migration {
    interval: Duration,
    mode: Mode,
    /// `None` if migration is off.
    next_report: Option<Instant>,
    last_report: Instant,
    /// Busy time at the last report.
    reported_busy: Duration,
    pending: Vec<PendingMigration>,
    /// Used on the first core only, as are the fields below.
    scheduler: Scheduler,
    core_loads: Vec<(Instant, CoreLoad)>,
    frequency: Option<Frequency>,
}

/// A requested move of a lane that is not quiescent yet.
struct PendingMigration {
    id: LaneId,
    to: usize,
    since: Instant,
    reading_paused: bool,
}

impl Migration {
    /// Migration is off without an `interval`. Makes the clock of core `cpu`, if given, follow its load.
    pub(super) fn new(
        interval: Option<Duration>,
        mode: Mode,
        cores: usize,
        cpu: Option<usize>,
        now: Instant,
    ) -> Migration {
        Migration {
            interval: interval.unwrap_or_default(),
            mode,
            next_report: interval.map(|interval| now + interval),
            last_report: now,
            reported_busy: Duration::ZERO,
            pending: Vec::new(),
            scheduler: Scheduler::default(),
            core_loads: vec![(now, CoreLoad::default()); cores],
            frequency: cpu.filter(|_| interval.is_some()).and_then(open_frequency),
        }
    }

    /// Returns the time of the next turn that migrations need.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        if self.pending.is_empty() { self.next_report } else { Some(now + RECHECK_INTERVAL) }
    }

    /// Returns the share of time with work since the last report, if a report is due.
    fn busy_share_if_due(&mut self, now: Instant, busy: Duration) -> Option<f64> {
        self.next_report.filter(|next_report| now >= *next_report)?;
        let elapsed = now.saturating_duration_since(self.last_report).max(Duration::from_micros(1));
        let share = (busy - self.reported_busy).as_secs_f64() / elapsed.as_secs_f64();
        (self.last_report, self.next_report, self.reported_busy) = (now, Some(now + self.interval), busy);
        Some(share.min(1.0))
    }

    /// Returns the latest loads; a core without a recent report has no lanes.
    fn recent_loads(&self, now: Instant) -> Vec<CoreLoad> {
        let oldest = self.interval * 2;
        let load = |(at, load): &(Instant, CoreLoad)| {
            if now.saturating_duration_since(*at) > oldest { CoreLoad::default() } else { load.clone() }
        };
        self.core_loads.iter().map(load).collect()
    }

    fn update_frequency(&mut self, busy: f64) {
        let Some(frequency) = &mut self.frequency else { return };
        if let Err(error) = frequency.update(busy) {
            log::warn!("first core: the clock no longer follows the load: {error}");
            self.frequency = None;
        }
    }
}

impl Driver {
    /// Reports the load and advances pending moves, if the scheduler is dynamic.
    pub(super) fn poll_migrations(&mut self) {
        if self.migration.next_report.is_none() || self.core.stopping || self.core.frozen {
            return;
        }
        self.report_load();
        self.poll_pending_migrations();
        self.choose_mode();
    }

    fn report_load(&mut self) {
        let (now, busy) = (self.core.now, Duration::from_nanos(self.core.reactor.busy_ns()));
        let Some(busy) = self.migration.busy_share_if_due(now, busy) else { return };
        let load = CoreLoad { busy, lanes: self.lane_loads() };
        match self.core.index {
            0 => self.plan_moves(load),
            core => self.core.shared.post(0, Message::LoadReport { core, load }),
        }
    }

    fn lane_loads(&mut self) -> Vec<LaneLoad> {
        let lanes = self.lanes.values_mut().filter(|lane| lane.is_open() && lane.association.is_some());
        let load = |lane: &mut Lane| {
            let moved = lane.conn.moved_bytes();
            let before = std::mem::replace(&mut lane.reported_bytes, moved);
            LaneLoad { id: lane.id, moved_bytes: moved - before }
        };
        lanes.map(load).collect()
    }

    /// Stores the report of another core.
    pub(super) fn record_load(&mut self, core: usize, load: CoreLoad) {
        self.migration.core_loads[core] = (self.core.now, load);
    }

    /// Requests the moves that the scheduler chooses. Called on the first core only.
    fn plan_moves(&mut self, own: CoreLoad) {
        let now = self.core.now;
        let migration = &mut self.migration;
        migration.update_frequency(own.busy);
        migration.core_loads[0] = (now, own);
        let loads = migration.recent_loads(now);
        for it in migration.scheduler.plan(&loads) {
            log::debug!("moving a lane from reactor {} to reactor {}: {:?}", it.from, it.to, it.lane);
            self.core.shared.post(it.from, Message::Migrate { lane: it.lane, to: it.to });
        }
    }

    /// Starts to move a lane to another core.
    pub(super) fn request_migration(&mut self, id: LaneId, to: usize) {
        let (since, pending) = (self.core.now, &mut self.migration.pending);
        if self.migration.next_report.is_some()
            && to != self.core.index
            && !pending.iter().any(|pending| pending.id == id)
        {
            pending.push(PendingMigration { id, to, since, reading_paused: false });
        }
    }

    /// Starts to move the connection of `peer`, if this core owns it.
    pub(super) fn request_peer_migration(&mut self, peer: SocketAddr, to: usize) {
        let id = self.lanes.values().find(|lane| lane.peer() == peer).map(|lane| lane.id);
        id.into_iter().for_each(|id| self.request_migration(id, to));
    }

    /// Reads messages in the meantime, which may request further moves.
    fn poll_pending_migrations(&mut self) {
        let mut pending = std::mem::take(&mut self.migration.pending);
        pending.retain_mut(|pending| self.is_still_wanted(pending));
        pending.append(&mut self.migration.pending);
        self.migration.pending = pending;
    }

    fn is_still_wanted(&mut self, pending: &mut PendingMigration) -> bool {
        let Some(key) = self.key_of(pending.id) else { return false };
        let now = self.core.now;
        let Some(lane) = self.lanes.get_mut(key) else { return false };
        if !lane.is_open() {
            // A closing lane is read until its end.
            self.core.resume_socket(lane);
            return false;
        }
        if lane.is_quiescent()
            && self.host_drains.is_empty()
            && !lane.token.is_some_and(|token| self.core.reactor.has_zerocopy_in_flight(token))
        {
            if !self.core.shared.lane_quota.try_acquire(pending.to) {
                self.core.cancel_migration(lane, pending, "the reactor is full");
                return false;
            }
            if self.migrate_out(key, pending.to) {
                return false;
            }
        }
        // A lane that could not be transferred is back, under another key.
        let Some(lane) = self.key_of(pending.id).and_then(|key| self.lanes.get_mut(key)) else {
            return false;
        };
        let waited = now.saturating_duration_since(pending.since);
        if waited >= MIGRATION_TIMEOUT {
            self.core.cancel_migration(lane, pending, "the lane is too busy");
            return false;
        }
        // Commands in flight need nothing more from the host: they end soon if no new ones are read.
        if waited >= QUIESCE_AFTER && lane.conn.receiving_bytes() == 0 && !lane.paused {
            pending.reading_paused = true;
            lane.token.into_iter().for_each(|token| self.core.reactor.pause(token));
        }
        true
    }

    /// Transfers a lane, whose place at `to` is reserved. Returns `false` if the lane stays, because a
    /// message for it arrived or the other core has stopped.
    fn migrate_out(&mut self, key: SlabKey, to: usize) -> bool {
        let has_left = self.extract(key).is_some_and(|migrating| self.dispatch(migrating, to));
        self.core.shared.lane_quota.release(if has_left { self.core.index } else { to });
        has_left
    }

    /// Removes a lane from this core.
    fn extract(&mut self, key: SlabKey) -> Option<MigratingLane> {
        let lane = self.lanes.get_mut(key)?;
        let socket = self.core.reactor.detach(lane.token?)?;
        lane.token = None;
        let lane = self.lanes.remove(key)?;
        self.migrated_in.remove(&lane.id);
        self.core.counters.connections_open.subtract(1);
        Some(MigratingLane { lane: Box::new(lane), socket })
    }

    /// Sends a lane to another core; takes it back and returns `false` if that fails.
    fn dispatch(&mut self, migrating: MigratingLane, to: usize) -> bool {
        let (id, peer) = (migrating.lane.id, migrating.lane.peer());
        let association = migrating.lane.association.as_ref().map(|association| association.id);
        let mut unread = Vec::new();
        let mailbox = &self.mailbox;
        let is_mailbox_empty = || {
            unread.extend(std::iter::from_fn(|| mailbox.poll()));
            unread.is_empty()
        };
        let result = match association {
            Some(association) => self.core.shared.migrate(association, id, to, migrating, is_mailbox_empty),
            None => Err(migrating),
        };
        let has_left = result.is_ok();
        match result {
            Ok(()) => log::debug!("{peer}: moved to reactor {to}"),
            Err(migrating) => self.migrate_in(migrating),
        }
        unread.into_iter().for_each(|message| self.handle_message(message));
        has_left
    }

    /// Adds a lane from another core, for which this core's quota is already acquired.
    pub(super) fn migrate_in(&mut self, migrating: MigratingLane) {
        let MigratingLane { mut lane, socket } = migrating;
        self.core.counters.connections_open.add(1);
        // No drain includes this lane, so a Connect that comes after it must not join one of them.
        self.host_drains.iter_mut().for_each(|drain| drain.started = true);
        let added = self.core.reactor.attach(socket);
        let id = lane.id;
        lane.observed.iter().for_each(|cells| cells.core.set(self.core.index as u64));
        let key = self.lanes.insert_with_key(|key| {
            (lane.key, lane.token) = (key, added.as_ref().ok().copied());
            self.core.number_host(&mut lane);
            lane.memory = None;
            *lane
        });
        if let Some(lane) = self.lanes.get_mut(key) {
            self.core.attach_memory(lane);
        }
        self.migrated_in.insert(id, key);
        match added {
            Ok(token) => {
                self.bind_token(token, key);
                self.pause_if_frozen(token);
            }
            Err(error) => {
                log::limited!(Warn, "cannot serve a connection that moved here: {error}");
                if let Some(lane) = self.lanes.get_mut(key) {
                    self.core.close(lane, "its new core cannot serve it");
                }
            }
        }
    }

    /// Returns the key of a lane on this core.
    pub(super) fn key_of(&self, id: LaneId) -> Option<SlabKey> {
        let is_lane = |key: &SlabKey| self.lanes.get(*key).is_some_and(|lane| lane.id == id);
        self.migrated_in.get(&id).copied().or(Some(id.lane)).filter(is_lane)
    }

    /// A reactor without connections sleeps in every mode.
    fn choose_mode(&mut self) {
        let has_work = !self.lanes.is_empty() || self.acceptor.is_some();
        let mode = if has_work { self.migration.mode } else { Mode::Sleep };
        self.core.reactor.set_mode(mode);
    }
}

impl Core {
    fn cancel_migration(&mut self, lane: &Lane, pending: &PendingMigration, reason: &str) {
        if pending.reading_paused && !lane.paused {
            self.resume_socket(lane);
        }
        log::debug!("{}: migration to reactor {} canceled: {reason}", lane.peer(), pending.to);
    }

    fn resume_socket(&mut self, lane: &Lane) {
        lane.token.into_iter().for_each(|token| self.reactor.resume(token));
    }
}

impl Lane {
    /// Returns `true` if the lane can move: no command, data, or memory of it is in use on its core.
    fn is_quiescent(&self) -> bool {
        let is_connected = self.phase == Phase::Open && self.association.is_some() && !self.disconnected;
        let is_bound = self.unauthenticated.is_some();
        let waits = self.connecting.is_some() || self.stalled.is_some() || self.is_limited() || self.paused;
        let holds_memory = self.guaranteed_slot.is_some() || self.reserved_bytes + self.zerocopy_bytes > 0;
        let conn = &self.conn;
        let has_io = self.dirty || conn.wants_transmit() || conn.receiving_bytes() > 0;
        is_connected
            && !is_bound
            && !waits
            && !holds_memory
            && !has_io
            && self.active == 0
            && conn.in_flight() == 0
    }
}

/// Takes control of the clock of a core, if the system supports that.
fn open_frequency(core: usize) -> Option<Frequency> {
    match Frequency::open(core) {
        Ok(frequency) => {
            log::info!("core {core}: the clock follows the load");
            Some(frequency)
        }
        Err(error) => {
            log::info!("core {core}: the clock does not follow the load: {error}");
            None
        }
    }
}

/// Interval at which pending migrations are retried.
const RECHECK_INTERVAL: Duration = Duration::from_millis(1);
/// Time that a lane gets to become quiescent before its core stops reading from it.
const QUIESCE_AFTER: Duration = Duration::from_millis(5);
/// Time after which a migration is canceled.
const MIGRATION_TIMEOUT: Duration = Duration::from_millis(200);
