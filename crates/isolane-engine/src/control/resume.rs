//! Restores sessions of a previous engine from the records of the supervisor.
//!
//! Grants are restored without checking limits. Then each client is notified, and repeats its requests without
//! reply.

use std::os::fd::OwnedFd;

use isolane_engine_api::{OpenObject, PacketSocket, Reply, Request};
use isolane_shm::{PeerProcess, SharedMemory};

use super::client::{Attached, Client, ObjectRecord, UNSOLICITED};
use super::listener::ClientCred;
use super::{Control, watch_process};
use crate::object::{NO_DESCRIPTORS, Rejection};
use crate::store::{Record, StoredRecord};

impl Control {
    /// Restores all records, before the first message of a client.
    pub fn resume(&mut self, records: Vec<StoredRecord>) {
        self.reserve.release();
        let mut orphaned = Vec::new();
        for StoredRecord { key, record, descriptors } in records {
            self.watch.turn();
            let Some(session) = record.session() else { continue };
            self.watch.work_for(session);
            let result = match record {
                Record::Session { pid, uid, .. } => {
                    let result = self.resume_session(key, session, ClientCred { pid, uid }, descriptors);
                    result.map(|is_alive| orphaned.extend((!is_alive).then_some(session)))
                }
                Record::Granted { core, request, note, .. } => {
                    self.regrant(key, session, core, request, &note, descriptors)
                }
                Record::Note(_) => Ok(()),
            };
            if let Err(
                Rejection::Refused(reason) | Rejection::Exhausted(reason) | Rejection::Violation(reason),
            ) = result
            {
                self.store.remove(key);
                self.disconnect_violator(session, &format!("a record of it cannot be resumed: {reason}"));
            }
        }
        self.watch.work_for_none();
        self.reserve.refill();
        let sessions: Vec<u32> = self.clients.keys().copied().collect();
        for session in sessions {
            self.reply(session, UNSOLICITED, &Reply::EngineRestarted { epoch: self.epoch });
        }
        // After their streams were restored, which still send the data in their rings.
        orphaned.into_iter().for_each(|session| self.detach(session));
    }

    /// Returns whether the process of the client may be alive.
    fn resume_session(
        &mut self,
        key: u64,
        session: u32,
        cred: ClientCred,
        descriptors: Vec<OwnedFd>,
    ) -> Result<bool, Rejection> {
        let [wire, memfd, life] = into_exact_fds(descriptors)?;
        // Its size was checked against the limit of its time.
        let memory = SharedMemory::open(memfd, usize::MAX).map_err(Rejection::violation)?;
        let wire = PacketSocket::new(wire);
        let (process, is_alive) = match watch_process(&self.epoll, session, &wire) {
            Ok(PeerProcess::Alive(process)) => (Some(process), true),
            Ok(PeerProcess::Unknown) => (None, true),
            Ok(PeerProcess::Ended) => (None, false),
            Err(error) => {
                log::warn!("session {session}: cannot watch its process, only its connection: {error}");
                (None, true)
            }
        };
        self.epoll.add(&wire, session.into()).map_err(Rejection::violation)?;
        let mut client = Client::new(session, wire, cred);
        client.attached = Some(Attached::new(memory, life, process, cred, key));
        self.last_session = self.last_session.max(session);
        self.clients.insert(session, client);
        Ok(is_alive)
    }

    fn regrant(
        &mut self,
        key: u64,
        session: u32,
        core: u32,
        request: Request,
        note: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Rejection> {
        match request {
            Request::OpenObject(open) => self.reopen(key, session, core, open, note, descriptors),
            request => {
                let [end] = into_exact_fds(descriptors)?;
                self.install(session, key, &request, end)
            }
        }
    }

    fn reopen(
        &mut self,
        key: u64,
        session: u32,
        core: u32,
        open: OpenObject,
        note: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Rejection> {
        let core = self.check_core(core)?;
        let kind = self.kind(&open)?;
        let builder = self.kinds[kind].resume(&open.object.params, note, descriptors)?;
        let id = open.id;
        let key = Some(key);
        let object = ObjectRecord { kind, open, core, key, answer: None, opening: None, closing: None };
        self.attached(session)?.insert(object);
        self.build(session, id, builder);
        Ok(())
    }
}

/// Every record was stored with all its descriptors, but may arrive without some of them.
fn into_exact_fds<const COUNT: usize>(descriptors: Vec<OwnedFd>) -> Result<[OwnedFd; COUNT], Rejection> {
    let received = descriptors.len();
    descriptors.try_into().map_err(|_| {
        let missing = COUNT - received;
        Rejection::Exhausted(format!("it has no descriptor left for {missing} of {COUNT}{NO_DESCRIPTORS}"))
    })
}
