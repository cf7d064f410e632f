//! What outlives the engine: its supervisor keeps records and descriptors, and hands them to the next engine.
//!
//! A record says what was granted ([`Record`]); it never changes. Invariant: nobody is told that something is
//! granted before the supervisor has said that it has the record; so what was granted is still there after the
//! engine was killed.

mod message;
mod record;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use isolane_attach::control::{Wire, WireError};
use parking_lot::{Condvar, Mutex};

use crate::volume::Keeper;

pub(crate) use message::{LINK_VERSION, ToEngine, ToSupervisor};
pub(crate) use record::Record;

/// The engine's side of its supervisor's store.
#[derive(Debug)]
pub(crate) struct Store {
    wire: Option<Wire>,
    next: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Keys of those records that the supervisor has, and that somebody waits for.
    deposited: Vec<u64>,
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
pub(crate) struct Kept {
    pub key: u64,
    pub record: Record,
    pub descriptors: Vec<OwnedFd>,
}

/// The supervisor has gone.
#[derive(Debug, thiserror::Error)]
#[error("the engine's supervisor does not keep it: {0}")]
pub(crate) struct Unkept(String);

impl Store {
    /// Of an engine that has no supervisor: nothing is kept.
    pub fn none() -> Store {
        Store { wire: None, next: AtomicU64::new(0), state: Mutex::default(), changed: Condvar::new() }
    }

    /// The supervisor's, in which all keys are below `next`.
    pub fn of(wire: Wire, next: u64) -> Store {
        Store { wire: Some(wire), next: AtomicU64::new(next), ..Store::none() }
    }

    /// Has a record kept, and waits until it is. Returns its key.
    ///
    /// # Errors
    /// [`Unkept`].
    pub fn deposit(&self, record: &Record, descriptors: &[BorrowedFd<'_>]) -> Result<u64, Unkept> {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let Some(wire) = &self.wire else { return Ok(key) };
        let message = ToSupervisor::Deposit { key, record: record.encode() };
        wire.send(&message.encode(), descriptors, true).map_err(|error| Unkept(error.to_string()))?;
        let mut state = self.state.lock();
        loop {
            if let Some(at) = state.deposited.iter().position(|deposited| *deposited == key) {
                state.deposited.swap_remove(at);
                return Ok(key);
            }
            if state.is_over {
                return Err(Unkept(WireError::Closed.to_string()));
            }
            self.changed.wait(&mut state);
        }
    }

    /// Has a record forgotten.
    pub fn withdraw(&self, key: u64) {
        self.tell(&ToSupervisor::Withdraw { key });
    }

    /// Tells the supervisor something. If it has gone, so does the engine.
    pub fn tell(&self, message: &ToSupervisor) {
        if let Some(wire) = &self.wire {
            let _ = wire.send(&message.encode(), &[], true);
        }
    }

    /// The supervisor has the record.
    pub fn on_deposited(&self, key: u64) {
        self.state.lock().deposited.push(key);
        self.changed.notify_all();
    }

    /// The supervisor has gone.
    pub fn on_over(&self) {
        self.state.lock().is_over = true;
        self.changed.notify_all();
    }
}
