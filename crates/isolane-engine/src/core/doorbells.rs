//! Doorbells of all sessions on a core.

use std::collections::BTreeMap;

use isolane_engine_api::layout::doorbell;
use isolane_shm::entries::Receiver;

use crate::close_threads;
use crate::epoll::Epoll;
use crate::object::{ClientBell, ProtocolViolation};

/// One set of doorbells for each session.
#[derive(Default)]
pub(super) struct DoorbellTable(BTreeMap<u32, Doorbells>);

struct Doorbells {
    receiver: Receiver,
    bell: ClientBell,
    /// The session has violated the protocol, and its doorbells are ignored.
    ignored: bool,
}

impl DoorbellTable {
    /// Adds the doorbells of a session, or replaces them.
    pub fn open(
        &mut self,
        epoll: &Epoll,
        session: u32,
        receiver: Receiver,
        bell: ClientBell,
    ) -> Result<(), String> {
        self.close(epoll, session);
        let watched = epoll.add(bell.as_fd(), key(session));
        watched.map_err(|error| format!("the engine cannot watch its bell: {error}"))?;
        self.0.insert(session, Doorbells { receiver, bell, ignored: false });
        Ok(())
    }

    pub fn close(&mut self, epoll: &Epoll, session: u32) {
        if let Some(doorbells) = self.0.remove(&session) {
            epoll.remove(doorbells.bell.as_fd());
        }
    }

    /// Called when the kernel reports the bell of a session ready.
    ///
    /// # Errors
    /// [`ProtocolViolation`], if the client has sent descriptors over it.
    pub fn on_ready(&mut self, epoll: &Epoll, session: u32) -> Result<(), ProtocolViolation> {
        let Some(doorbells) = self.0.get_mut(&session) else { return Ok(()) };
        match doorbells.bell.clear_untrusted() {
            Ok(descriptors) if descriptors.is_empty() => return Ok(()),
            // If the client has closed its end, its connection reports that.
            Err(_) => epoll.remove(doorbells.bell.as_fd()),
            Ok(descriptors) => {
                descriptors.into_iter().for_each(close_threads::close);
                epoll.remove(doorbells.bell.as_fd());
                if !std::mem::replace(&mut doorbells.ignored, true) {
                    return Err(ProtocolViolation("it has sent descriptors with a bell".into()));
                }
            }
        }
        Ok(())
    }

    /// Calls `on_doorbell` with the session, the object, and the time of each doorbell, up to a quantum per session,
    /// and `on_violation` for each session with an invalid ring. Returns whether there was a doorbell; then there may be
    /// more.
    pub fn poll(
        &mut self,
        mut on_doorbell: impl FnMut(u32, u32, u64),
        mut on_violation: impl FnMut(u32, String),
    ) -> bool {
        let mut has_rung = false;
        for (session, doorbells) in self.0.iter_mut().filter(|(_, doorbells)| !doorbells.ignored) {
            match doorbells.receiver.refresh() {
                Ok(0) => continue,
                Ok(_) => {}
                Err(error) => {
                    doorbells.ignored = true;
                    on_violation(*session, error.to_string());
                    continue;
                }
            }
            has_rung = true;
            let entries = std::iter::from_fn(|| doorbells.receiver.pop()).take(QUANTUM);
            for entry in entries {
                if let Some(id) = doorbell::object(&entry) {
                    on_doorbell(*session, id, doorbell::rung_at(&entry));
                }
            }
            doorbells.receiver.publish();
        }
        has_rung
    }

    /// Requests wakeups from all sessions. The caller must poll again before it sleeps.
    pub fn arm(&self) {
        self.0.values().for_each(|doorbells| doorbells.bell.flag().arm());
    }

    pub fn disarm(&self) {
        self.0.values().for_each(|doorbells| doorbells.bell.flag().disarm());
    }
}

/// Epoll key of the bell of a session.
fn key(session: u32) -> u64 {
    BELL | u64::from(session)
}

/// Session of an epoll key, if it is the key of a bell.
pub(super) fn session(key: u64) -> Option<u32> {
    (key & BELL != 0).then_some(key as u32)
}

const BELL: u64 = 1 << 62;
/// Maximum number of doorbells per session and turn.
const QUANTUM: usize = 64;
