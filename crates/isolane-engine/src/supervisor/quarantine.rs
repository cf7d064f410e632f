//! Quarantine of sessions that crash engines.
//!
//! After an engine has died on its own, the session that its threads name as the suspect is counted. The records
//! of a session that has ended [`MAX_DEATHS`] engines are not passed to the next one: its application gets an
//! error, and can take its streams back.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use rustix::net::{Shutdown, shutdown};

use super::record_store::{RecordEntry, RecordStore};
use crate::store::Record;
use crate::{EngineError, close_threads, watch};

/// Suspects, with the number of engines that each has ended.
pub(super) struct Quarantine {
    record: watch::Record,
    deaths: BTreeMap<u32, u32>,
}

impl Quarantine {
    pub fn new() -> Result<Quarantine, EngineError> {
        let record = watch::Record::new()
            .map_err(EngineError::system("cannot allocate memory to share with the engine"))?;
        Ok(Quarantine { record, deaths: BTreeMap::new() })
    }

    /// Memory to share with the engine.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.record.memory().memfd()
    }

    /// Called before an engine starts.
    pub fn clear(&self) {
        self.record.clear();
    }

    /// Counts the suspect after an engine has died, and removes its records if that was once too often.
    pub fn on_death(&mut self, records: &mut RecordStore) {
        let Some(session) = self.record.suspect() else { return };
        let deaths = self.deaths.entry(session).or_default();
        *deaths += 1;
        if *deaths < MAX_DEATHS {
            log::warn!(
                "session {session}: the engine died at work for it; quarantined if that happens again"
            );
            return;
        }
        self.deaths.remove(&session);
        for RecordEntry { record, descriptors } in records.take_session(session) {
            if let Record::Session { pid, uid, .. } = record {
                log::error!(
                    "session {session} of process {pid} of user {uid}: quarantined, {MAX_DEATHS} engines died at work \
                     for it; its streams can be taken back"
                );
                // The first descriptor is the connection. Fails only if the client has closed it.
                let _ = descriptors.first().map(|wire| shutdown(wire, Shutdown::Both));
            }
            descriptors.into_iter().for_each(close_threads::close);
        }
    }
}

/// Engines that a session may end before it is quarantined.
const MAX_DEATHS: u32 = 2;

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use isolane_engine_api::{CloseMode, PacketError, PacketSocket, Request};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::watch::Watch;

    /// Stores the records of a session. Returns its application's end of the connection.
    fn put(records: &mut RecordStore, session: u32) -> PacketSocket {
        let (ours, peer_end) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let key = u64::from(session) * 10;
        let granted = Record::Granted {
            session,
            core: 0,
            request: Request::CloseObject { id: 1, how: CloseMode::Close },
            note: Vec::new(),
        };
        records.put(key, Record::Session { session, pid: 1, uid: 2 }, vec![peer_end]);
        records.put(key + 1, granted, Vec::<OwnedFd>::new());
        PacketSocket::new(ours)
    }

    /// Simulates the death of an engine whose only core works for a session.
    fn die(quarantine: &mut Quarantine, records: &mut RecordStore, session: u32) {
        quarantine.clear();
        let part = Watch::new(quarantine.record.clone(), 1).part(1).unwrap();
        part.work_for(session);
        drop(part);
        quarantine.on_death(records);
    }

    #[test]
    fn quarantines_session_that_ends_two_engines() {
        let (mut quarantine, mut records) = (Quarantine::new().unwrap(), RecordStore::default());
        records.put(1, Record::Note(vec![1]), Vec::new());
        let (culprit, bystander) = (put(&mut records, 3), put(&mut records, 4));
        let all: Vec<u64> = records.keys().collect();
        die(&mut quarantine, &mut records, 3);
        die(&mut quarantine, &mut records, 4);
        quarantine.clear();
        quarantine.on_death(&mut records);
        assert_eq!(records.keys().collect::<Vec<_>>(), all, "one death each is not enough");
        assert!(matches!(culprit.receive(false), Ok(None)));
        die(&mut quarantine, &mut records, 3);
        assert_eq!(records.keys().collect::<Vec<_>>(), [1, 40, 41]);
        assert!(
            matches!(culprit.receive(true), Err(PacketError::Closed)),
            "its application is not disconnected"
        );
        assert!(matches!(bystander.receive(false), Ok(None)));
    }
}
