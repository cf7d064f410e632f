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
    /// Keys of those records that somebody waits for, and whether the supervisor has them.
    deposited: Vec<(u64, bool)>,
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
        wire.send(&message.encode(), descriptors, true).map_err(|error| {
            self.on_over();
            Unkept::Gone(error)
        })?;
        let mut state = self.state.lock();
        loop {
            if let Some(at) = state.deposited.iter().position(|(deposited, _)| *deposited == key) {
                let (_, is_kept) = state.deposited.swap_remove(at);
                return if is_kept { Ok(key) } else { Err(Unkept::NoDescriptors) };
            }
            if state.is_over {
                return Err(Unkept::Gone(WireError::Closed));
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

    /// The supervisor has the record, or cannot have it.
    pub fn on_deposited(&self, key: u64, is_kept: bool) {
        self.state.lock().deposited.push((key, is_kept));
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
