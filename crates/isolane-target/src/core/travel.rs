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

use super::fence::HostReading;
use super::lane::{Lane, Phase};
use super::load::Loads;
use super::{Core, Driver};
use crate::shared::Address;
use crate::table::Key;

/// A lane between two cores.
pub(crate) struct Traveller {
    lane: Option<Box<Lane>>,
    socket: Option<Detached>,
}

impl std::fmt::Debug for Traveller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Traveller").field("name", &self.lane.as_ref().map(|lane| lane.name)).finish()
    }
}

/// What the dynamic scheduler needs on one core.
pub(super) struct Travel {
    pub(super) loads: Loads,
    mode: Mode,
    departures: Vec<Departure>,
}

struct Departure {
    name: Address,
    to: usize,
    since: Instant,
    is_held: bool,
}

impl Travel {
    pub(super) fn new(interval: Duration, mode: Mode, cores: usize, now: Instant) -> Travel {
        Travel { loads: Loads::new(interval, cores, now), mode, departures: Vec::new() }
    }

    /// When a turn is needed.
    pub(super) fn deadline(&self, now: Instant) -> Instant {
        if self.departures.is_empty() { self.loads.next_report() } else { now + WATCH }
    }
}

impl Driver {
    /// Reports, plans, and lets lanes go, if the target's scheduler is dynamic.
    pub(super) fn see_to_travel(&mut self) {
        if self.travel.is_none() || self.core.is_stopping {
            return;
        }
        self.report_load();
        self.see_to_departures();
        self.choose_mode();
    }

    /// The scheduler wants a lane elsewhere.
    pub(super) fn begin_departure(&mut self, name: Address, to: usize) {
        let since = self.core.now;
        if let Some(travel) = &mut self.travel
            && to != self.core.index
            && !travel.departures.iter().any(|departure| departure.name == name)
        {
            travel.departures.push(Departure { name, to, since, is_held: false });
        }
    }

    /// Somebody else wants the connection of this peer elsewhere.
    pub(super) fn begin_departure_of(&mut self, peer: SocketAddr, to: usize) {
        let name = self.lanes.iter().find(|lane| lane.peer() == peer).map(|lane| lane.name);
        name.into_iter().for_each(|name| self.begin_departure(name, to));
    }

    /// Messages are read meanwhile, and may tell of more departures.
    fn see_to_departures(&mut self) {
        let Some(travel) = &mut self.travel else { return };
        let mut departures = std::mem::take(&mut travel.departures);
        departures.retain_mut(|departure| self.is_still_to_go(departure));
        if let Some(travel) = &mut self.travel {
            departures.append(&mut travel.departures);
            travel.departures = departures;
        }
    }

    fn is_still_to_go(&mut self, departure: &mut Departure) -> bool {
        let Some(key) = self.key_of(departure.name) else { return false };
        let now = self.core.now;
        let Some(lane) = self.lanes.get_mut(key) else { return false };
        if !lane.is_open() {
            // The end of a lane is read.
            self.core.resume_socket(lane);
            return false;
        }
        if lane.is_quiet()
            && self.readings.is_empty()
            && !lane.token.is_some_and(|token| self.core.reactor.has_zerocopy_in_flight(token))
        {
            if !self.core.shared.seats.take(departure.to) {
                self.core.keep(lane, departure, "there is no room for it");
                return false;
            }
            if self.depart(key, departure.to) {
                return false;
            }
        }
        // What could not be handed over is back, in another place.
        let Some(lane) = self.key_of(departure.name).and_then(|key| self.lanes.get_mut(key)) else {
            return false;
        };
        let waited = now.saturating_duration_since(departure.since);
        if waited >= PATIENCE {
            self.core.keep(lane, departure, "it is too busy");
            return false;
        }
        // What is in flight needs nothing more from the host: it ends soon if nothing new is taken.
        if waited >= OPPORTUNITY && lane.conn.receiving_bytes() == 0 && !lane.is_paused {
            departure.is_held = true;
            self.core.hold_socket(lane);
        }
        true
    }

    /// Lets a lane go to a seat that was taken for it; false if a message has come for it, or for whom it is.
    fn depart(&mut self, key: Key, to: usize) -> bool {
        let has_left = self.pack(key).is_some_and(|traveller| self.send_off(traveller, to));
        // One of its two seats is free now.
        self.core.shared.seats.give_back(if has_left { self.core.index } else { to });
        has_left
    }

    /// Takes a lane off this core.
    fn pack(&mut self, key: Key) -> Option<Traveller> {
        let lane = self.lanes.get_mut(key)?;
        let socket = self.core.reactor.detach(lane.token?)?;
        lane.token = None;
        let lane = self.lanes.remove(key)?;
        self.travellers.remove(&lane.name);
        self.core.counters.connections_open.subtract(1);
        Some(Traveller { lane: Some(Box::new(lane)), socket: Some(socket) })
    }

    /// Gives a lane to another core, or takes it back in.
    fn send_off(&mut self, traveller: Traveller, to: usize) -> bool {
        let Some(lane) = &traveller.lane else { return false };
        let (name, peer) = (lane.name, lane.peer());
        let id = lane.association.as_ref().map(|association| association.id);
        let mut unread = Vec::new();
        let mailbox = &self.mailbox;
        let is_mailbox_empty = || {
            unread.extend(std::iter::from_fn(|| mailbox.poll()));
            unread.is_empty()
        };
        let outcome = match id {
            Some(id) => self.core.shared.hand_over(id, name, to, traveller, is_mailbox_empty),
            None => Err(traveller),
        };
        let has_left = match outcome {
            Ok(()) => {
                log::debug!("{peer}: moved to reactor {to}");
                true
            }
            Err(traveller) => {
                self.arrive(traveller);
                false
            }
        };
        unread.into_iter().for_each(|message| self.handle_message(message));
        has_left
    }

    /// A lane comes from another core, and has its seat here already.
    pub(super) fn arrive(&mut self, mut traveller: Traveller) {
        let (Some(mut lane), Some(socket)) = (traveller.lane.take(), traveller.socket.take()) else { return };
        self.core.counters.connections_open.add(1);
        // None of them has this lane, so a Connect that comes after it joins none of them.
        self.readings.iter_mut().for_each(HostReading::begin);
        let added = self.core.reactor.attach(socket);
        let name = lane.name;
        let key = self.lanes.insert_with(|key| {
            (lane.key, lane.token) = (key, added.as_ref().ok().copied());
            *lane
        });
        self.travellers.insert(name, key);
        match added {
            Ok(token) => self.know(token, key),
            Err(error) => {
                log::warn!("a connection that moved cannot be served: {error}");
                if let Some(lane) = self.lanes.get_mut(key) {
                    self.core.close(lane, "its new core cannot serve it");
                }
            }
        }
    }

    /// A lane by the name that it was born with.
    pub(super) fn key_of(&self, name: Address) -> Option<Key> {
        let is_its = |key: &Key| self.lanes.get(*key).is_some_and(|lane| lane.name == name);
        self.travellers.get(&name).copied().or(Some(name.lane)).filter(is_its)
    }

    /// A reactor without connections sleeps, whatever the mode.
    fn choose_mode(&mut self) {
        let Some(travel) = &self.travel else { return };
        let has_work = !self.lanes.is_empty() || !self.listeners.is_empty();
        let mode = if has_work { travel.mode } else { Mode::Sleep };
        self.core.reactor.set_mode(mode);
    }
}

impl Core {
    /// The lane does not leave.
    fn keep(&mut self, lane: &Lane, departure: &Departure, why: &str) {
        if departure.is_held && !lane.is_paused {
            self.resume_socket(lane);
        }
        log::debug!("{}: stays, and does not move to reactor {}: {why}", lane.peer(), departure.to);
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
        let is_whole = self.phase == Phase::Open && self.association.is_some() && !self.is_disconnected;
        let waits =
            self.connecting.is_some() || self.stalled.is_some() || self.is_limited() || self.is_paused;
        let keeps =
            self.reserve_slot.is_some() || self.claimed_bytes + self.lent_bytes > 0 || self.active > 0;
        let conn = &self.conn;
        let speaks = self.is_dirty || conn.wants_transmit() || conn.receiving_bytes() > 0;
        is_whole && !waits && !keeps && !speaks && conn.in_flight() == 0
    }
}

/// How often a departure is tried.
const WATCH: Duration = Duration::from_millis(1);
/// For so long a lane may become quiet by itself; then it is not read from.
const OPPORTUNITY: Duration = Duration::from_millis(5);
/// After so long it stays.
const PATIENCE: Duration = Duration::from_millis(200);
