//! Quarantine of sessions that end engines.
//!
//! After an engine has died of itself, the session that its threads name as the suspect is counted. The records of a
//! session that has ended [`DEATHS_MAX`] engines are not handed to the next one: its application gets an error, and can
//! take its streams back.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::net::{Shutdown, shutdown};

use super::shelf::Shelf;
use crate::store::Record;
use crate::{EngineError, closer, watch};

/// Suspects, and how many engines each has ended.
pub(super) struct Blame {
    record: watch::Record,
    deaths: BTreeMap<u32, u32>,
}

impl Blame {
    pub fn new() -> Result<Blame, EngineError> {
        let record = watch::Record::new().map_err(|error| {
            EngineError::system("cannot have memory to share with the engine", io::Error::other(error))
        })?;
        Ok(Blame { record, deaths: BTreeMap::new() })
    }

    /// Memory that the engine is to share.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.record.memory().memfd()
    }

    /// An engine starts, which works for no session yet.
    pub fn clear(&self) {
        self.record.clear();
    }

    /// Counts the suspect after an engine has died, and takes its records from the shelf if that was once too often.
    pub fn on_death(&mut self, shelf: &mut Shelf) {
        let Some(session) = self.record.suspect() else { return };
        let deaths = self.deaths.entry(session).or_default();
        *deaths += 1;
        if *deaths < DEATHS_MAX {
            log::warn!(
                "session {session}: the engine died at work for it; quarantined if that happens again"
            );
            return;
        }
        self.deaths.remove(&session);
        for (record, descriptors) in shelf.take_session(session) {
            if let Record::Session { pid, uid, .. } = record {
                log::error!(
                    "session {session} of process {pid} of user {uid}: quarantined, {DEATHS_MAX} engines died at work \
                     for it; its streams can be taken back"
                );
                // The connection comes first. It fails only if the client has ended it before.
                let _ = descriptors.first().map(|wire| shutdown(wire, Shutdown::Both));
            }
            descriptors.into_iter().for_each(closer::close);
        }
    }
}

/// Engines that a session may end before it is quarantined.
const DEATHS_MAX: u32 = 2;

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use isolane_attach::control::{End, Request, Wire, WireError};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::watch::Watch;

    /// Puts the records of a session on the shelf. Returns its application's end of the connection.
    fn put(shelf: &mut Shelf, session: u32) -> Wire {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let key = u64::from(session) * 10;
        let granted = Record::Granted {
            session,
            core: 0,
            request: Request::End { id: 1, how: End::Close },
            note: Vec::new(),
        };
        shelf.put(key, Record::Session { session, pid: 1, uid: 2 }.encode(), vec![theirs]);
        shelf.put(key + 1, granted.encode(), Vec::<OwnedFd>::new());
        Wire::new(ours)
    }

    /// The engine dies while its only core works for a session.
    fn die(blame: &mut Blame, shelf: &mut Shelf, session: u32) {
        blame.clear();
        let part = Watch::new(blame.record.clone(), 1).part(1).unwrap();
        part.work_for(session);
        drop(part);
        blame.on_death(shelf);
    }

    #[test]
    fn session_that_ends_two_engines_is_quarantined_alone() {
        let (mut blame, mut shelf) = (Blame::new().unwrap(), Shelf::default());
        shelf.put(1, Record::Note(vec![1]).encode(), Vec::new());
        let (culprit, bystander) = (put(&mut shelf, 3), put(&mut shelf, 4));
        let all: Vec<u64> = shelf.keys().collect();
        die(&mut blame, &mut shelf, 3);
        die(&mut blame, &mut shelf, 4);
        blame.clear();
        blame.on_death(&mut shelf);
        assert_eq!(shelf.keys().collect::<Vec<_>>(), all, "one death each is not enough");
        assert!(matches!(culprit.receive(false), Ok(None)));
        die(&mut blame, &mut shelf, 3);
        assert_eq!(shelf.keys().collect::<Vec<_>>(), [1, 40, 41]);
        assert!(matches!(culprit.receive(true), Err(WireError::Closed)), "its application is not told");
        assert!(matches!(bystander.receive(false), Ok(None)));
    }
}
