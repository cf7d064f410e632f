//! Store for what outlives the engine: the supervisor keeps records with descriptors, and passes them to the
//! next engine.
//!
//! A [`Record`] describes something granted to a client, and never changes. Invariant: a client gets a grant only
//! after the supervisor has acknowledged its record, so that the grant survives the death of the engine.
//!
//! A record that cannot be stored fails only its own request. Messages without descriptors never block: those
//! that the link does not accept are sent later, in order, at the latest with the next heartbeat. Invariant:
//! replies to a client after the removal of a record are delayed until the link has accepted the removal
//! ([`StoreClient::is_flushed`]); otherwise the next engine could resume an object that the client has already
//! released.

mod message;
mod record;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::Duration;

use isolane_engine_api::{PacketError, PacketSocket, encode};
use parking_lot::Mutex;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::volume::JournalStore;

pub(crate) use message::{LINK_VERSION, ToEngine, ToSupervisor};
pub(crate) use record::Record;

/// Engine's side of the store.
pub(crate) struct StoreClient {
    link: Option<PacketSocket>,
    next_key: AtomicU64,
    state: Mutex<State>,
    /// Maximum time of a put.
    timeout: Duration,
    callback: OnceLock<StoredCallback>,
}

/// Called with the key of a record and whether it was stored.
type StoredCallback = Box<dyn Fn(u64, bool) + Send + Sync>;

#[derive(Default)]
struct State {
    /// Puts without result, by key: its receiver waits, or it goes to the callback.
    puts: HashMap<u64, Option<SyncSender<bool>>>,
    /// Messages that the link has not accepted yet.
    unsent: VecDeque<ToSupervisor>,
    /// A put timed out, and no reply has arrived since.
    timed_out: bool,
    closed: bool,
}

impl JournalStore for StoreClient {
    fn append(&self, note: &[u8]) -> io::Result<u64> {
        self.put(&Record::Note(note.to_vec()), &[]).map_err(io::Error::other)
    }

    fn remove(&self, key: u64) {
        self.remove(key);
    }
}

/// Record of the store, with its descriptors.
#[derive(Debug)]
pub(crate) struct StoredRecord {
    pub key: u64,
    pub record: Record,
    pub descriptors: Vec<OwnedFd>,
}

/// Failure to store a record.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The supervisor has ended.
    #[error("the engine's supervisor has gone: {0}")]
    SupervisorGone(PacketError),
    /// The link does not accept this message; it may accept the next one.
    #[error("cannot send a record to the engine's supervisor: {0}; try again")]
    NotSent(PacketError),
    /// The supervisor is stopped or starved of CPU time.
    #[error(
        "the engine's supervisor has not answered within {0:?}; check whether its process is stopped, and try again"
    )]
    Timeout(Duration),
    /// The supervisor has no descriptor left for the record, and continues without it.
    #[error(
        "the engine's supervisor has no descriptor left; close others, or start the engine with a higher limit of \
         descriptors (`ulimit -n`)"
    )]
    NoDescriptors,
}

impl StoreClient {
    /// Store of an engine without supervisor, which stores nothing.
    pub fn none() -> StoreClient {
        StoreClient {
            link: None,
            next_key: AtomicU64::new(0),
            state: Mutex::default(),
            timeout: PUT_TIMEOUT,
            callback: OnceLock::new(),
        }
    }

    /// Store of a supervisor. Existing keys are below `next_key`.
    pub fn new(link: PacketSocket, next_key: u64) -> StoreClient {
        // Without a timeout, a supervisor that does not read blocks the control thread, which misses its beats.
        let _ = set_socket_timeout(&link, Timeout::Send, Some(PUT_TIMEOUT));
        StoreClient { link: Some(link), next_key: AtomicU64::new(next_key), ..StoreClient::none() }
    }

    /// Stores a record, and waits for the acknowledgment. Returns its key.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn put(&self, record: &Record, descriptors: &[BorrowedFd<'_>]) -> Result<u64, StoreError> {
        let key = self.next_key.fetch_add(1, Ordering::Relaxed);
        let Some(link) = &self.link else { return Ok(key) };
        let (sender, stored) = mpsc::sync_channel(1);
        self.send(link, key, Some(sender), record, descriptors)?;
        match stored.recv_timeout(self.timeout()) {
            Ok(true) => Ok(key),
            Ok(false) => Err(StoreError::NoDescriptors),
            Err(RecvTimeoutError::Timeout) => Err(self.abandon(key)),
            Err(RecvTimeoutError::Disconnected) => Err(StoreError::SupervisorGone(PacketError::Closed)),
        }
    }

    /// Returns the current maximum time of a put. A supervisor that did not answer the last put gets little time
    /// for the next.
    pub fn timeout(&self) -> Duration {
        if self.state.lock().timed_out { PROBE_TIMEOUT.min(self.timeout) } else { self.timeout }
    }

    /// Ends a put that has timed out, and removes its record, because the supervisor may still store it.
    pub fn abandon(&self, key: u64) -> StoreError {
        let timeout = self.timeout();
        let mut state = self.state.lock();
        state.timed_out = true;
        state.puts.remove(&key);
        drop(state);
        self.remove(key);
        StoreError::Timeout(timeout)
    }

    /// Stores a record without waiting; the callback receives the result. Returns its key.
    ///
    /// # Errors
    /// [`StoreError::SupervisorGone`], [`StoreError::NotSent`].
    pub fn put_deferred(&self, record: &Record, descriptors: &[BorrowedFd<'_>]) -> Result<u64, StoreError> {
        let key = self.next_key.fetch_add(1, Ordering::Relaxed);
        match &self.link {
            Some(link) => self.send(link, key, None, record, descriptors)?,
            None => self.call_back(key, true),
        }
        Ok(key)
    }

    fn send(
        &self,
        link: &PacketSocket,
        key: u64,
        sender: Option<SyncSender<bool>>,
        record: &Record,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        if state.closed && sender.is_some() {
            return Err(StoreError::SupervisorGone(PacketError::Closed));
        }
        state.puts.insert(key, sender);
        drop(state);
        let message = ToSupervisor::Put { key, record: record.clone() };
        link.send(&encode(&message), descriptors, true).map_err(|error| {
            self.state.lock().puts.remove(&key);
            match error {
                PacketError::Closed => {
                    self.close();
                    StoreError::SupervisorGone(error)
                }
                error => StoreError::NotSent(error),
            }
        })
    }

    /// Sets the callback of deferred puts, once, before the first.
    pub fn set_callback(&self, callback: StoredCallback) {
        let is_first = self.callback.set(callback).is_ok();
        assert!(is_first, "a store has one callback");
    }

    fn call_back(&self, key: u64, stored: bool) {
        self.callback.get().into_iter().for_each(|callback| callback(key, stored));
    }

    /// Removes a record.
    pub fn remove(&self, key: u64) {
        self.notify(&ToSupervisor::Remove { key });
    }

    /// Sends a message without waiting. If the supervisor has ended, the engine ends soon.
    pub fn notify(&self, message: &ToSupervisor) {
        if self.link.is_some() {
            self.state.lock().unsent.push_back(message.clone());
            self.flush();
        }
    }

    /// Whether the link has accepted all messages: the supervisor receives them even if the engine is killed.
    pub fn is_flushed(&self) -> bool {
        self.state.lock().unsent.is_empty()
    }

    /// Number of messages that the link has not accepted.
    #[cfg(test)]
    pub fn unsent(&self) -> usize {
        self.state.lock().unsent.len()
    }

    /// Sends pending messages as far as the link accepts them.
    pub fn flush(&self) {
        let Some(link) = &self.link else { return };
        let mut state = self.state.lock();
        while let Some(message) = state.unsent.front() {
            match link.send(&encode(message), &[], false) {
                Ok(()) => drop(state.unsent.pop_front()),
                Err(PacketError::Closed) => return state.unsent.clear(),
                Err(_) => return,
            }
        }
    }

    /// Called when the supervisor has stored a record, or could not.
    pub fn on_stored(&self, key: u64, stored: bool) {
        let mut state = self.state.lock();
        state.timed_out = false;
        let put = state.puts.remove(&key);
        drop(state);
        match put {
            // Fails only if the put has timed out.
            Some(Some(sender)) => drop(sender.send(stored)),
            Some(None) => self.call_back(key, stored),
            None => {}
        }
    }

    /// Whether nothing can be stored any longer, because the engine shuts down or is being replaced.
    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Called when the supervisor has ended, or requests the end of the engine.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        // Ends the waits.
        state.puts.retain(|_, sender| sender.is_none());
    }
}

/// Maximum time of a put.
const PUT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time of a put after one that has timed out.
const PROBE_TIMEOUT: Duration = Duration::from_millis(50);
