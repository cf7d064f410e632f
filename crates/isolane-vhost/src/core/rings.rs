//! Started queues, by key and by the token of their kick descriptor.
//!
//! Invariant: a key of a stopped queue finds nothing, so that a late completion reaches no other queue.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use isolane_reactor::{EventfdSignals, Token};
use rustix::io::{ReadWriteFlags, preadv2};
use slotmap::{DefaultKey, SlotMap};

use super::Core;
use super::jobs::MAX_JOBS;
use crate::control::StartedRing;
use crate::request::Command;
use crate::ring::{Ring, Taken};

/// A started queue.
pub(super) struct ActiveRing {
    /// Its connection.
    pub session: u64,
    /// For log lines.
    pub peer: Arc<str>,
    pub index: u32,
    pub ring: Ring,
    /// Of the kick descriptor, which the reactor has.
    pub token: Token,
    pub call: Option<OwnedFd>,
    error: Option<OwnedFd>,
    pub is_enabled: bool,
    pub is_write_through: bool,
    /// Waits for changes of connections that have ended.
    pub is_held: bool,
    /// Listed for requests.
    is_listed: bool,
    /// Listed for a notification.
    has_results: bool,
    /// Stops after its last request; where to report the next index.
    pub stop: Option<SyncSender<u16>>,
}

impl ActiveRing {
    pub fn new(
        started: StartedRing,
        session: u64,
        peer: Arc<str>,
        token: Token,
        is_held: bool,
    ) -> ActiveRing {
        let StartedRing { index, ring, call, error, is_enabled, is_write_through } = started;
        ActiveRing {
            session,
            peer,
            index,
            ring,
            token,
            call,
            error,
            is_enabled,
            is_write_through,
            is_held,
            is_listed: false,
            has_results: false,
            stop: None,
        }
    }

    /// Whether requests are taken.
    fn is_served(&self) -> bool {
        self.is_enabled && !self.is_held && self.stop.is_none()
    }
}

/// All started queues.
#[derive(Default)]
pub(super) struct Rings {
    slots: SlotMap<DefaultKey, ActiveRing>,
    /// By the index of the token.
    by_token: Vec<Option<(Token, DefaultKey)>>,
    /// Queues that may have requests.
    listed: VecDeque<DefaultKey>,
    /// Queues with results since the last notification.
    completed: Vec<DefaultKey>,
}

impl Rings {
    pub fn insert(&mut self, ring: ActiveRing) -> DefaultKey {
        let token = ring.token;
        let key = self.slots.insert(ring);
        if self.by_token.len() <= token.index() {
            self.by_token.resize(token.index() + 1, None);
        }
        self.by_token[token.index()] = Some((token, key));
        key
    }

    pub fn find_token(&self, token: Token) -> Option<DefaultKey> {
        let (known, key) = (*self.by_token.get(token.index())?)?;
        (known == token).then_some(key)
    }

    pub fn find(&self, session: u64, index: u32) -> Option<DefaultKey> {
        let mut slots = self.slots.iter();
        slots.find(|(_, ring)| ring.session == session && ring.index == index).map(|(key, _)| key)
    }

    pub fn get_mut(&mut self, key: DefaultKey) -> Option<&mut ActiveRing> {
        self.slots.get_mut(key)
    }

    /// Whether a key is of a started queue.
    pub fn is_started(&self, key: DefaultKey) -> bool {
        self.slots.contains_key(key)
    }

    pub fn remove(&mut self, key: DefaultKey) -> Option<ActiveRing> {
        let ring = self.slots.remove(key)?;
        if let Some(entry) = self.by_token.get_mut(ring.token.index()) {
            *entry = None;
        }
        Some(ring)
    }

    /// Returns the queues of a connection.
    pub fn keys_of(&self, session: u64) -> Vec<DefaultKey> {
        self.slots.iter().filter(|(_, ring)| ring.session == session).map(|(key, _)| key).collect()
    }

    /// Serves the queues that were held, and returns them.
    pub fn release(&mut self) -> Vec<DefaultKey> {
        let held: Vec<_> = self.slots.iter().filter(|(_, ring)| ring.is_held).map(|(key, _)| key).collect();
        for key in &held {
            self.slots[*key].is_held = false;
            self.list(*key);
        }
        held
    }

    /// Lists a queue that may have requests.
    pub fn list(&mut self, key: DefaultKey) {
        if let Some(ring) = self.slots.get_mut(key)
            && ring.is_served()
            && !std::mem::replace(&mut ring.is_listed, true)
        {
            self.listed.push_back(key);
        }
    }

    pub fn has_listed(&self) -> bool {
        !self.listed.is_empty()
    }

    /// Lists a queue that has results.
    pub fn list_completed(&mut self, key: DefaultKey) {
        if let Some(ring) = self.slots.get_mut(key)
            && !std::mem::replace(&mut ring.has_results, true)
        {
            self.completed.push(key);
        }
    }
}

impl Core {
    /// Handles a notification of a driver.
    pub(super) fn on_kick(&mut self, key: DefaultKey) {
        let Some(ring) = self.rings.get_mut(key) else { return };
        let token = ring.token;
        let is_kicked = self.reactor.socket(token).is_some_and(take_kick);
        self.reactor.on_read(token, is_kicked);
        if is_kicked {
            self.rings.list(key);
        }
    }

    /// Takes requests from listed queues, until their data has [`TURN_BYTES`]. Results are published after each queue, so
    /// that a volume that completes reads at once has little data in memory.
    pub(super) fn poll_rings(&mut self) {
        let mut bytes = 0;
        for _ in 0..self.rings.listed.len() {
            if bytes >= TURN_BYTES || !self.can_poll_rings() {
                return;
            }
            let Some(key) = self.rings.listed.pop_front() else { return };
            if let Some(ring) = self.rings.get_mut(key) {
                ring.is_listed = false;
                ring.ring.suppress_notifications();
                bytes += self.poll_ring(key);
                self.complete_jobs();
            }
        }
    }

    /// Takes requests from a queue, until their data has [`VISIT_BYTES`]. Returns the size of their data.
    fn poll_ring(&mut self, key: DefaultKey) -> usize {
        let mut bytes = 0;
        while bytes < VISIT_BYTES {
            let is_full = self.jobs.len() >= MAX_JOBS;
            let Some(ring) = self.rings.get_mut(key).filter(|ring| ring.is_served()) else { return bytes };
            if is_full {
                break;
            }
            match ring.ring.poll() {
                Ok(Some(Taken { permit, command })) => {
                    bytes += command.as_ref().map_or(0, Command::data_bytes).max(MIN_REQUEST_BYTES);
                    self.start(key, permit, command);
                }
                Ok(None) => return bytes,
                Err(error) => {
                    let (peer, index) = (&ring.peer, ring.index);
                    log::limited!(
                        Error,
                        "{peer}: queue {index}: {error}; the queue is stopped, reset the device"
                    );
                    notify(&self.signals, ring.error.as_ref());
                    return bytes;
                }
            }
        }
        self.rings.list(key);
        bytes
    }

    /// Notifies the drivers of results, each at most once.
    pub(super) fn notify_drivers(&mut self) {
        for key in std::mem::take(&mut self.rings.completed) {
            let Some(ring) = self.rings.get_mut(key) else { continue };
            ring.has_results = false;
            if ring.ring.needs_notification() {
                notify(&self.signals, ring.call.as_ref());
            }
            self.finish_stop(key);
        }
    }

    /// Removes a queue that stops, once its last request has completed, and it is not held.
    pub(super) fn finish_stop(&mut self, key: DefaultKey) {
        let Some(ring) = self.rings.get_mut(key) else { return };
        if ring.stop.is_some()
            && ring.ring.in_flight() == 0
            && !ring.is_held
            && let Some(ring) = self.rings.remove(key)
        {
            drop(self.reactor.remove(ring.token));
            // The connection can have ended.
            ring.stop.map(|stop| stop.send(ring.ring.base()));
        }
    }
}

/// Resets an eventfd, and returns `false` if its counter was 0. The flag is given per call, because the flags of the file
/// belong to every process that holds it.
fn take_kick(eventfd: BorrowedFd<'_>) -> bool {
    let mut count = [0; 8];
    preadv2(eventfd, &mut [IoSliceMut::new(&mut count)], CURRENT_POSITION, ReadWriteFlags::NOWAIT).is_ok()
}

/// Signals an eventfd, if there is one.
pub(super) fn notify(signals: &EventfdSignals, eventfd: Option<&OwnedFd>) {
    if let Some(eventfd) = eventfd
        && let Err(error) = signals.signal(eventfd)
    {
        log::limited!(Error, "cannot notify a machine: {error}");
    }
}

/// Offset of a read that has none.
const CURRENT_POSITION: u64 = u64::MAX;

/// Data of a queue before others have their turn, in bytes. The last request can exceed it.
const VISIT_BYTES: usize = 1 << 20;
/// Data of all queues in one turn.
const TURN_BYTES: usize = 16 << 20;
/// A request without data costs as much as some data.
const MIN_REQUEST_BYTES: usize = 16 << 10;
