//! Sessions that an engine before this one had, taken up from what its supervisor has kept.
//!
//! What was granted is granted again, without asking whether there is room for it. Then each client is told, and
//! asks again for what was not answered.

use std::os::fd::OwnedFd;

use isolane_attach::control::{Open, Reply, Request, Wire};
use isolane_ring::{Memory, Process};

use super::client::{Attached, Client, Held, Stage, UNASKED};
use super::door::Peer;
use super::request::{NO_DESCRIPTORS, hostile};
use super::{Control, Denied, plan, watch_process};
use crate::store::{Deposit, Record};

impl Control {
    /// Takes up all that was kept. Before anybody is listened to.
    pub fn resume(&mut self, kept: Vec<Deposit>) {
        self.reserve.release();
        let mut orphaned = Vec::new();
        for Deposit { key, record, descriptors } in kept {
            self.watch.turn();
            record.session().into_iter().for_each(|session| self.watch.work_for(session));
            let outcome = match record {
                Record::Session { session, pid, uid } => {
                    let peer = Peer { pid, uid };
                    let outcome = self.resume_session(key, session, peer, descriptors);
                    outcome.map(|is_alive| orphaned.extend((!is_alive).then_some(session)))
                }
                Record::Granted { session, core, request, note } => {
                    let outcome = self.grant_again(key, session, core, request, &note, descriptors);
                    outcome.map_err(|why| (session, why))
                }
                Record::Note(_) => Ok(()),
            };
            if let Err((session, Denied::Refused(why) | Denied::Short(why) | Denied::Hostile(why))) = outcome
            {
                self.store.withdraw(key);
                self.expel(
                    session,
                    &format!("the engine before had something of it that this cannot have: {why}"),
                );
            }
        }
        self.watch.work_for_none();
        self.reserve.refill();
        let sessions: Vec<u32> = self.clients.keys().copied().collect();
        for session in sessions {
            self.say(session, UNASKED, &Reply::Restarted { epoch: self.epoch });
        }
        // Not before their streams are there, which still send what was written.
        orphaned.into_iter().for_each(|session| self.dismiss(session));
    }

    /// Returns whether its process may still be alive.
    fn resume_session(
        &mut self,
        key: u64,
        session: u32,
        peer: Peer,
        descriptors: Vec<OwnedFd>,
    ) -> Result<bool, (u32, Denied)> {
        let denied = |why| (session, why);
        let [wire, memfd, life] = exactly(descriptors).map_err(denied)?;
        // It was opened with the limit of that time.
        let memory = Memory::open(memfd, usize::MAX).map_err(|error| denied(hostile(error)))?;
        let wire = Wire::new(wire);
        let (process, is_alive) = match watch_process(&self.epoll, session, &wire) {
            Ok(Process::Alive(process)) => (Some(process), true),
            Ok(Process::Unknown) => (None, true),
            Ok(Process::Ended) => (None, false),
            Err(error) => {
                log::warn!(
                    "session {session}: the engine cannot watch its process, only its connection: {error}"
                );
                (None, true)
            }
        };
        let mut client = Client::new(session, wire, peer);
        client.stage = Stage::Attached(Attached::new(memory, life, process, key));
        let watched = client.wire().map_or(Ok(()), |wire| self.epoll.add(wire, session.into()));
        watched.map_err(|error| denied(hostile(error)))?;
        self.last_session = self.last_session.max(session);
        self.clients.insert(session, client);
        Ok(is_alive)
    }

    fn grant_again(
        &mut self,
        key: u64,
        session: u32,
        core: u32,
        request: Request,
        note: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Denied> {
        match request {
            Request::OpenPort(port) => {
                let [end] = exactly(descriptors)?;
                self.have_port(session, port, end)?;
                self.memory(session)?.1.ports.insert(port.core, key);
            }
            Request::OpenQueue(queue) => {
                let [end] = exactly(descriptors)?;
                self.have_queue(session, queue, end)?;
                self.memory(session)?.1.queues.insert(queue.queue, key);
            }
            Request::Open(open) => self.open_again(key, session, core, open, note, descriptors)?,
            _ => return Err(Denied::Hostile("a record of what is not kept".into())),
        }
        Ok(())
    }

    fn open_again(
        &mut self,
        key: u64,
        session: u32,
        core: u32,
        open: Open,
        note: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Denied> {
        let core = self.core(core)?;
        let plan = plan::resume(&open, note, descriptors, &self.config)?;
        self.have(
            session,
            Held { open, core, key: Some(key), answer: None, opening: None, ending: None },
            plan,
        )
    }
}

fn exactly<const COUNT: usize>(descriptors: Vec<OwnedFd>) -> Result<[OwnedFd; COUNT], Denied> {
    let came = descriptors.len();
    // Each record was deposited with all that belongs to it.
    let missing = |_| format!("it has no descriptor left for {} of {COUNT}{NO_DESCRIPTORS}", COUNT - came);
    descriptors.try_into().map_err(missing).map_err(Denied::Short)
}
