//! The doorbells of all sessions on a core.

use std::collections::BTreeMap;

use isolane_attach::layout::doorbell;
use isolane_ring::entries::Receiver;
use isolane_ring::{Bell, Flag, Shared};

use crate::closer::{self, Socket};
use crate::epoll::Epoll;
use crate::service::Hostile;

/// One port for each session.
#[derive(Default)]
pub(super) struct Ports(BTreeMap<u32, Port>);

struct Port {
    receiver: Receiver,
    bell: Bell<Shared<Flag>, Socket>,
    /// Nothing it says is believed.
    is_hostile: bool,
}

impl Ports {
    /// Takes a port in, instead of the one that the session had here.
    pub fn open(
        &mut self,
        epoll: &Epoll,
        session: u32,
        receiver: Receiver,
        bell: Bell<Shared<Flag>, Socket>,
    ) -> Result<(), String> {
        self.close(epoll, session);
        let watched = epoll.add(bell.end(), key(session));
        watched.map_err(|error| format!("the engine cannot watch its bell: {error}"))?;
        self.0.insert(session, Port { receiver, bell, is_hostile: false });
        Ok(())
    }

    pub fn close(&mut self, epoll: &Epoll, session: u32) {
        if let Some(port) = self.0.remove(&session) {
            epoll.remove(port.bell.end());
        }
    }

    /// The bell of a session has rung.
    ///
    /// # Errors
    /// [`Hostile`], if it was rung with descriptors.
    pub fn on_ready(&mut self, epoll: &Epoll, session: u32) -> Result<(), Hostile> {
        let Some(port) = self.0.get_mut(&session) else { return Ok(()) };
        match port.bell.quiet_warily() {
            Ok(gifts) if gifts.is_empty() => return Ok(()),
            // If the client has closed its end, its connection will say so, too.
            Err(_) => epoll.remove(port.bell.end()),
            Ok(gifts) => {
                gifts.into_iter().for_each(closer::close);
                epoll.remove(port.bell.end());
                if !std::mem::replace(&mut port.is_hostile, true) {
                    return Err(Hostile("it has sent descriptors with a bell".into()));
                }
            }
        }
        Ok(())
    }

    /// Names the objects whose doorbells were rung, so many of each session as a turn takes, and sessions whose
    /// rings cannot be; says whether there was something, so that there may be more.
    pub fn look(
        &mut self,
        mut on_bell: impl FnMut(u32, u32),
        mut on_hostile: impl FnMut(u32, String),
    ) -> bool {
        let mut has_rung = false;
        for (session, port) in self.0.iter_mut().filter(|(_, port)| !port.is_hostile) {
            match port.receiver.refresh() {
                Ok(0) => continue,
                Ok(_) => {}
                Err(error) => {
                    port.is_hostile = true;
                    on_hostile(*session, error.to_string());
                    continue;
                }
            }
            has_rung = true;
            let entries = std::iter::from_fn(|| port.receiver.pop()).take(QUANTUM);
            entries.filter_map(|entry| doorbell::object(&entry)).for_each(|id| on_bell(*session, id));
            port.receiver.publish();
        }
        has_rung
    }

    /// Asks all sessions to ring. Look once more before sleeping.
    pub fn arm(&self) {
        self.0.values().for_each(|port| port.bell.flag().arm());
    }

    pub fn disarm(&self) {
        self.0.values().for_each(|port| port.bell.flag().disarm());
    }
}

/// What the kernel is to call the bell of a session.
fn key(session: u32) -> u64 {
    BELL | u64::from(session)
}

/// Which session's bell the kernel means, if it is one.
pub(super) fn session(key: u64) -> Option<u32> {
    (key & BELL != 0).then_some(key as u32)
}

const BELL: u64 = 1 << 62;
/// Doorbells of one session that a turn answers.
const QUANTUM: usize = 64;
