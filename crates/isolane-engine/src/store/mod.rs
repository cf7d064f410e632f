//! What outlives the engine: its supervisor keeps records and descriptors, and hands them to the next engine.
//!
//! A record says what was granted ([`Record`]); it never changes. Invariant: nobody is told that something is
//! granted before the supervisor has said that it has the record; so what was granted is still there after the
//! engine was killed.
//!
//! A deposit that fails concerns its own request only. Messages without descriptors never wait: those that the link does
//! not take are sent later, in order, at the latest with the next heartbeat. Invariant: what a client hears after
//! something was withdrawn is held back until the link has taken that ([`Told`]); else the next engine could go on with
//! what its client has already let go of.

mod message;
mod record;
#[cfg(test)]
mod tests;

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use isolane_attach::control::{Wire, WireError};
use parking_lot::{Condvar, Mutex};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::volume::Keeper;

pub(crate) use message::{LINK_VERSION, ToEngine, ToSupervisor};
pub(crate) use record::Record;

/// Counts of the messages without descriptors that the supervisor was told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    /// All of them.
    pub all: u64,
    /// Those that the link has taken: the supervisor reads them even if the engine is killed.
    pub taken: u64,
}

/// The engine's side of its supervisor's store.
#[derive(Debug)]
pub(crate) struct Store {
    wire: Option<Wire>,
    next: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
    /// How long a deposit may take.
    patience: Duration,
    /// Hears of deposits for which nobody waits.
    listener: OnceLock<Listener>,
}

/// Hears the key of a deposit, and whether it is kept.
pub(crate) struct Listener(pub Box<dyn Fn(u64, bool) + Send + Sync>);

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

#[derive(Debug, Default)]
struct State {
    /// Keys of records that a thread waits for, and whether the supervisor keeps them, once it has answered.
    awaited: Vec<(u64, Option<bool>)>,
    /// Keys of records of which the listener is to hear.
    later: HashSet<u64>,
    /// Messages that the link has not taken yet.
    unsent: VecDeque<ToSupervisor>,
    /// Messages that were ever put there.
    told: u64,
    /// A deposit was not answered in time, and no answer has come since.
    is_silent: bool,
    is_over: bool,
}

impl Keeper for Store {
    fn keep(&self, note: &[u8]) -> io::Result<u64> {
        self.deposit(&Record::Note(note.to_vec()), &[]).map_err(io::Error::other)
    }

    fn forget(&self, key: u64) {
        self.withdraw(key);
    }
}

/// A record in the store, with what came with it.
#[derive(Debug)]
pub(crate) struct Deposit {
    pub key: u64,
    pub record: Record,
    pub descriptors: Vec<OwnedFd>,
}

/// Why the supervisor has not kept something.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unkept {
    /// It has gone.
    #[error("the engine's supervisor does not keep it: {0}")]
    Gone(WireError),
    /// The link does not take this message; it may take the next.
    #[error("cannot hand it to the engine's supervisor: {0}; try again")]
    Unsent(WireError),
    /// It may be stopped, or have no processor.
    #[error(
        "the engine's supervisor has not answered within {0:?}; see whether its process is stopped, and try again"
    )]
    Silent(Duration),
    /// It goes on without it.
    #[error(
        "the engine's supervisor has no descriptor left to keep it with; close others, or start the engine with \
         a higher limit of descriptors (`ulimit -n`)"
    )]
    NoDescriptors,
}

impl Store {
    /// Of an engine that has no supervisor: nothing is kept.
    pub fn none() -> Store {
        Store {
            wire: None,
            next: AtomicU64::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
            patience: PATIENCE,
            listener: OnceLock::new(),
        }
    }

    /// The supervisor's, in which all keys are below `next`.
    pub fn of(wire: Wire, next: u64) -> Store {
        // Where it cannot be set, a supervisor that reads nothing keeps the control thread waiting, which is noticed.
        let _ = set_socket_timeout(&wire, Timeout::Send, Some(PATIENCE));
        Store { wire: Some(wire), next: AtomicU64::new(next), ..Store::none() }
    }

    /// Has a record kept, and waits until it is. Returns its key.
    ///
    /// # Errors
    /// [`Unkept`].
    pub fn deposit(&self, record: &Record, descriptors: &[BorrowedFd<'_>]) -> Result<u64, Unkept> {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let Some(wire) = &self.wire else { return Ok(key) };
        self.state.lock().awaited.push((key, None));
        let outcome = self.send(wire, key, record, descriptors).and_then(|()| self.wait_for(key));
        self.state.lock().awaited.retain(|(awaited, _)| *awaited != key);
        outcome
    }

    /// Waits until the supervisor has answered a deposit.
    fn wait_for(&self, key: u64) -> Result<u64, Unkept> {
        let mut state = self.state.lock();
        // A supervisor that did not answer the last one keeps nobody waiting for long.
        let patience = self.patience_of(&state);
        let until = Instant::now() + patience;
        loop {
            match state.awaited.iter().find(|(awaited, _)| *awaited == key) {
                Some((_, Some(true))) => return Ok(key),
                Some((_, Some(false))) => return Err(Unkept::NoDescriptors),
                _ if state.is_over => return Err(Unkept::Gone(WireError::Closed)),
                _ => {}
            }
            if self.changed.wait_until(&mut state, until).timed_out() {
                state.is_silent = true;
                drop(state);
                // It may still keep it, and is to forget it then.
                self.withdraw(key);
                return Err(Unkept::Silent(patience));
            }
        }
    }

    fn patience_of(&self, state: &State) -> Duration {
        if state.is_silent { PROBE.min(self.patience) } else { self.patience }
    }

    /// How long a deposit may take now.
    pub fn patience(&self) -> Duration {
        self.patience_of(&self.state.lock())
    }

    /// A deposit of which the listener was to hear takes too long: the supervisor may still keep it, and is to forget it
    /// then.
    pub fn give_up(&self, key: u64) -> Unkept {
        let mut state = self.state.lock();
        let patience = self.patience_of(&state);
        state.is_silent = true;
        state.later.remove(&key);
        drop(state);
        self.withdraw(key);
        Unkept::Silent(patience)
    }

    /// Has a record kept, without waiting for that: the listener hears of it. Returns its key.
    ///
    /// # Errors
    /// [`Unkept::Gone`], [`Unkept::Unsent`].
    pub fn deposit_later(&self, record: &Record, descriptors: &[BorrowedFd<'_>]) -> Result<u64, Unkept> {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        match &self.wire {
            Some(wire) => {
                self.state.lock().later.insert(key);
                self.send(wire, key, record, descriptors).inspect_err(|_| {
                    self.state.lock().later.remove(&key);
                })?;
            }
            None => self.tell_listener(key, true),
        }
        Ok(key)
    }

    fn send(
        &self,
        wire: &Wire,
        key: u64,
        record: &Record,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Unkept> {
        let message = ToSupervisor::Deposit { key, record: record.encode() };
        wire.send(&message.encode(), descriptors, true).map_err(|error| match error {
            WireError::Closed => {
                self.on_over();
                Unkept::Gone(error)
            }
            error => Unkept::Unsent(error),
        })
    }

    /// Who hears of the deposits for which nobody waits; said once, before the first.
    pub fn listen(&self, listener: Listener) {
        let is_first = self.listener.set(listener).is_ok();
        assert!(is_first, "a store has one listener");
    }

    fn tell_listener(&self, key: u64, is_kept: bool) {
        self.listener.get().into_iter().for_each(|listener| listener.0(key, is_kept));
    }

    /// Has a record forgotten.
    pub fn withdraw(&self, key: u64) {
        self.tell(&ToSupervisor::Withdraw { key });
    }

    /// Tells the supervisor something, without waiting. If it has gone, so does the engine.
    pub fn tell(&self, message: &ToSupervisor) {
        if self.wire.is_some() {
            let mut state = self.state.lock();
            state.told += 1;
            state.unsent.push_back(message.clone());
            drop(state);
            self.flush();
        }
    }

    /// How much the supervisor was told.
    pub fn told(&self) -> Told {
        let state = self.state.lock();
        Told { all: state.told, taken: state.told - state.unsent.len() as u64 }
    }

    /// Sends the messages that the link did not take before.
    pub fn flush(&self) {
        let Some(wire) = &self.wire else { return };
        let mut state = self.state.lock();
        while let Some(message) = state.unsent.front() {
            match wire.send(&message.encode(), &[], false) {
                Ok(()) => drop(state.unsent.pop_front()),
                Err(WireError::Closed) => return state.unsent.clear(),
                Err(_) => return,
            }
        }
    }

    /// The supervisor has the record, or cannot have it.
    pub fn on_deposited(&self, key: u64, is_kept: bool) {
        let mut state = self.state.lock();
        state.is_silent = false;
        if state.later.remove(&key) {
            drop(state);
            return self.tell_listener(key, is_kept);
        }
        // Nobody awaits a late answer.
        if let Some((_, answer)) = state.awaited.iter_mut().find(|(awaited, _)| *awaited == key) {
            *answer = Some(is_kept);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Whether nothing is kept any more: the engine ends, or makes room for the next.
    pub fn is_over(&self) -> bool {
        self.state.lock().is_over
    }

    /// The supervisor has gone, or wants the engine to end.
    pub fn on_over(&self) {
        self.state.lock().is_over = true;
        self.changed.notify_all();
    }
}

/// How long a deposit may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long one may take if the last was not answered in time.
const PROBE: Duration = Duration::from_millis(50);
