//! Lanes move between cores (S8): how a lane leaves and arrives. Which ones do say `load` and
//! [`crate::scheduler`].
//!
//! A lane leaves only while nothing of it is under way: no command is in flight but held Async Event
//! Requests, no memory of the core's pool is in it, nothing waits to be sent, and no message for it is
//! unread. So what moves is a socket and a state machine, and there is nothing to forward afterwards. A lane
//! that is never so by itself is not read from for a moment.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use isolane_reactor::{Detached, Mode};

use super::fence::HostDrain;
use super::lane::{Lane, Phase};
use super::load::Loads;
use super::{Core, Driver};
use crate::shared::LaneId;
use crate::slab::SlabKey;

/// A lane between two cores.
pub(crate) struct MigratingLane {
    lane: Option<Box<Lane>>,
    socket: Option<Detached>,
}

impl std::fmt::Debug for MigratingLane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Traveller").field("name", &self.lane.as_ref().map(|lane| lane.name)).finish()
    }
}

/// What the dynamic scheduler needs on one core.
pub(super) struct Migration {
    pub(super) loads: Loads,
    mode: Mode,
    pending: Vec<PendingMigration>,
}

struct PendingMigration {
    name: LaneId,
    to: usize,
    since: Instant,
    reading_paused: bool,
}

impl Migration {
    pub(super) fn new(interval: Duration, mode: Mode, cores: usize, now: Instant) -> Migration {
        Migration { loads: Loads::new(interval, cores, now), mode, pending: Vec::new() }
    }

    /// When a turn is needed.
    pub(super) fn deadline(&self, now: Instant) -> Instant {
        if self.pending.is_empty() { self.loads.next_report() } else { now + RECHECK_INTERVAL }
    }
}

impl Driver {
    /// Reports, plans, and lets lanes go, if the target's scheduler is dynamic.
    pub(super) fn poll_migrations(&mut self) {
        if self.migration.is_none() || self.core.stopping {
            return;
        }
        self.report_load();
        self.poll_pending_migrations();
        self.choose_mode();
    }

    /// The scheduler wants a lane elsewhere.
    pub(super) fn request_migration(&mut self, name: LaneId, to: usize) {
        let since = self.core.now;
        if let Some(migration) = &mut self.migration
            && to != self.core.index
            && !migration.pending.iter().any(|pending| pending.name == name)
        {
            migration.pending.push(PendingMigration { name, to, since, reading_paused: false });
        }
    }

    /// Somebody else wants the connection of this peer elsewhere.
    pub(super) fn request_peer_migration(&mut self, peer: SocketAddr, to: usize) {
        let name = self.lanes.iter().find(|lane| lane.peer() == peer).map(|lane| lane.name);
        name.into_iter().for_each(|name| self.request_migration(name, to));
    }

    /// Messages are read meanwhile, and may tell of more departures.
    fn poll_pending_migrations(&mut self) {
        let Some(migration) = &mut self.migration else { return };
        let mut pending = std::mem::take(&mut migration.pending);
        pending.retain_mut(|pending| self.is_still_wanted(pending));
        if let Some(migration) = &mut self.migration {
            pending.append(&mut migration.pending);
            migration.pending = pending;
        }
    }

    fn is_still_wanted(&mut self, pending: &mut PendingMigration) -> bool {
        let Some(key) = self.key_of(pending.name) else { return false };
        let now = self.core.now;
        let Some(lane) = self.lanes.get_mut(key) else { return false };
        if !lane.is_open() {
            // The end of a lane is read.
            self.core.resume_socket(lane);
            return false;
        }
        if lane.is_quiet()
            && self.host_drains.is_empty()
            && !lane.token.is_some_and(|token| self.core.reactor.has_zerocopy_in_flight(token))
        {
            if !self.core.shared.lane_quota.try_acquire(pending.to) {
                self.core.keep(lane, pending, "there is no room for it");
                return false;
            }
            if self.migrate_out(key, pending.to) {
                return false;
            }
        }
        // What could not be handed over is back, in another place.
        let Some(lane) = self.key_of(pending.name).and_then(|key| self.lanes.get_mut(key)) else {
            return false;
        };
        let waited = now.saturating_duration_since(pending.since);
        if waited >= ABANDON_AFTER {
            self.core.keep(lane, pending, "it is too busy");
            return false;
        }
        // What is in flight needs nothing more from the host: it ends soon if nothing new is taken.
        if waited >= QUIESCE_AFTER && lane.conn.receiving_bytes() == 0 && !lane.paused {
            pending.reading_paused = true;
            self.core.hold_socket(lane);
        }
        true
    }

    /// Lets a lane go to a seat that was taken for it; false if a message has come for it, or for whom it is.
    fn migrate_out(&mut self, key: SlabKey, to: usize) -> bool {
        let has_left = self.extract(key).is_some_and(|migrating| self.dispatch(migrating, to));
        // One of its two seats is free now.
        self.core.shared.lane_quota.release(if has_left { self.core.index } else { to });
        has_left
    }

    /// Takes a lane off this core.
    fn extract(&mut self, key: SlabKey) -> Option<MigratingLane> {
        let lane = self.lanes.get_mut(key)?;
        let socket = self.core.reactor.detach(lane.token?)?;
        lane.token = None;
        let lane = self.lanes.remove(key)?;
        self.migrated_in.remove(&lane.name);
        self.core.counters.connections_open.subtract(1);
        Some(MigratingLane { lane: Some(Box::new(lane)), socket: Some(socket) })
    }

    /// Gives a lane to another core, or takes it back in.
    fn dispatch(&mut self, migrating: MigratingLane, to: usize) -> bool {
        let Some(lane) = &migrating.lane else { return false };
        let (name, peer) = (lane.name, lane.peer());
        let id = lane.association.as_ref().map(|association| association.id);
        let mut unread = Vec::new();
        let mailbox = &self.mailbox;
        let is_mailbox_empty = || {
            unread.extend(std::iter::from_fn(|| mailbox.poll()));
            unread.is_empty()
        };
        let outcome = match id {
            Some(id) => self.core.shared.migrate(id, name, to, migrating, is_mailbox_empty),
            None => Err(migrating),
        };
        let has_left = match outcome {
            Ok(()) => {
                log::debug!("{peer}: moved to reactor {to}");
                true
            }
            Err(migrating) => {
                self.migrate_in(migrating);
                false
            }
        };
        unread.into_iter().for_each(|message| self.handle_message(message));
        has_left
    }

    /// A lane comes from another core, and has its seat here already.
    pub(super) fn migrate_in(&mut self, mut migrating: MigratingLane) {
        let (Some(mut lane), Some(socket)) = (migrating.lane.take(), migrating.socket.take()) else { return };
        self.core.counters.connections_open.add(1);
        // None of them has this lane, so a Connect that comes after it joins none of them.
        self.host_drains.iter_mut().for_each(HostDrain::begin);
        let added = self.core.reactor.attach(socket);
        let name = lane.name;
        let key = self.lanes.insert_with(|key| {
            (lane.key, lane.token) = (key, added.as_ref().ok().copied());
            *lane
        });
        self.migrated_in.insert(name, key);
        match added {
            Ok(token) => self.bind_token(token, key),
            Err(error) => {
                log::warn!("a connection that moved cannot be served: {error}");
                if let Some(lane) = self.lanes.get_mut(key) {
                    self.core.close(lane, "its new core cannot serve it");
                }
            }
        }
    }

    /// A lane by the name that it was born with.
    pub(super) fn key_of(&self, name: LaneId) -> Option<SlabKey> {
        let is_its = |key: &SlabKey| self.lanes.get(*key).is_some_and(|lane| lane.name == name);
        self.migrated_in.get(&name).copied().or(Some(name.lane)).filter(is_its)
    }

    /// A reactor without connections sleeps, whatever the mode.
    fn choose_mode(&mut self) {
        let Some(migration) = &self.migration else { return };
        let has_work = !self.lanes.is_empty() || !self.listeners.is_empty();
        let mode = if has_work { migration.mode } else { Mode::Sleep };
        self.core.reactor.set_mode(mode);
    }
}

impl Core {
    /// The lane does not leave.
    fn keep(&mut self, lane: &Lane, pending: &PendingMigration, why: &str) {
        if pending.reading_paused && !lane.paused {
            self.resume_socket(lane);
        }
        log::debug!("{}: stays, and does not move to reactor {}: {why}", lane.peer(), pending.to);
    }

    fn hold_socket(&mut self, lane: &Lane) {
        lane.token.into_iter().for_each(|token| self.reactor.pause(token));
    }

    fn resume_socket(&mut self, lane: &Lane) {
        lane.token.into_iter().for_each(|token| self.reactor.resume(token));
    }
}

impl Lane {
    /// Whether nothing of it is under way on its core.
    fn is_quiet(&self) -> bool {
        let is_whole = self.phase == Phase::Open && self.association.is_some() && !self.disconnected;
        let waits = self.connecting.is_some() || self.stalled.is_some() || self.is_limited() || self.paused;
        let keeps = self.guaranteed_slot.is_some()
            || self.reserved_bytes + self.zerocopy_bytes > 0
            || self.active > 0;
        let conn = &self.conn;
        let speaks = self.dirty || conn.wants_transmit() || conn.receiving_bytes() > 0;
        is_whole && !waits && !keeps && !speaks && conn.in_flight() == 0
    }
}

/// How often a departure is tried.
const RECHECK_INTERVAL: Duration = Duration::from_millis(1);
/// For so long a lane may become quiet by itself; then it is not read from.
const QUIESCE_AFTER: Duration = Duration::from_millis(5);
/// After so long it stays.
const ABANDON_AFTER: Duration = Duration::from_millis(200);
