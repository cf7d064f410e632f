//! Upgrades: another target continues the connections, unless something is unfinished.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use isolane_proto::subsystem::SubsystemId;
use isolane_volume::Volume;

use super::{CORES, NAMESPACES, World, start};
use crate::config::{OfflineVolume, Subsystem};
use crate::core::Driver;
use crate::frozen::{Content, CoreState, FrozenState};
use crate::shared::Message;
use crate::target::freeze::{Resumed, content_of};

impl World {
    /// Freezes the target. If nothing is unfinished then, another one continues it, or sometimes it continues itself.
    pub(super) fn upgrade(&mut self) {
        let (sender, _still) = mpsc::channel();
        let patience = Duration::ZERO;
        self.shared.post_to_all(|| Message::Freeze { patience, still: sender.clone() });
        self.is_frozen = true;
        let is_patient = self.rng.bool();
        if is_patient {
            self.volumes.iter().for_each(|one| one.volume.set_stalled(false));
        }
        for _ in 0..self.rng.u8(1..8) * if is_patient { 8 } else { 1 } {
            self.turn_all();
            self.volumes.iter().for_each(|one| one.volume.progress());
        }
        match self.content().filter(|_| self.rng.u8(..4) > 0) {
            Some(content) => self.hand_over(content),
            None => {
                self.statistics.refused_upgrades += 1;
                self.shared.post_to_all(|| Message::Thaw);
            }
        }
        self.is_frozen = false;
    }

    /// Returns the state, unless something is unfinished.
    fn content(&mut self) -> Option<Content> {
        let (sender, replies) = mpsc::channel();
        self.shared.post_to_all(|| Message::TakeState(sender.clone()));
        self.turn_with_messages();
        let cores = replies.try_iter().collect::<Result<Vec<CoreState>, _>>().ok()?;
        assert_eq!(cores.len(), CORES, "seed {}: each core replies", self.seed);
        content_of(&self.shared, cores).ok()
    }

    fn hand_over(&mut self, content: Content) {
        self.statistics.upgrades += 1;
        let (sender, sockets) = mpsc::channel();
        self.shared.post_to_all(|| Message::Leave(sender.clone()));
        self.turn_with_messages();
        let sockets = sockets.try_iter().flatten().map(|socket: OwnedFd| (socket.as_raw_fd(), socket));
        let mut sockets: HashMap<RawFd, OwnedFd> = sockets.collect();
        self.config.subsystems = vec![self.subsystem()];
        let bytes = FrozenState { content, sockets: Vec::new() }.to_bytes();
        let state = FrozenState::from_bytes(&bytes).expect("the state of a target");
        let take = |socket| sockets.remove(&socket).ok_or_else(|| ErrorKind::NotFound.into());
        let resumed = Resumed::new(state.content, take);
        let (shared, drivers) = start(&self.config, self.address, Some(resumed));
        assert!(sockets.is_empty(), "seed {}: all connections continue", self.seed);
        self.shared = shared;
        std::mem::replace(&mut self.drivers, drivers).into_iter().for_each(Driver::end);
        // Volumes that were being closed are not part of the new target.
        (self.release, self.released) = mpsc::channel();
        self.closing.clear();
        self.turns_left = None;
        self.turn_with_messages();
    }

    /// Returns what the next target serves.
    fn subsystem(&self) -> Subsystem {
        let mut subsystem = Subsystem::new(super::NQN.parse().expect("a name"));
        for (nsid, volume) in &self.namespaces {
            if let Some(volume) = volume {
                let volume = Arc::clone(&self.volumes[*volume].volume) as Arc<dyn Volume>;
                subsystem.volumes.push((*nsid, volume));
            }
        }
        let table = self.shared.namespaces();
        let offline = (1..=NAMESPACES).filter(|nsid| table.is_offline(SubsystemId::FIRST, *nsid));
        let to_volume = |nsid| OfflineVolume { nsid, name: "a volume".into(), reason: String::new() };
        subsystem.offline = offline.map(to_volume).collect();
        subsystem
    }

    fn turn_with_messages(&mut self) {
        self.drivers.iter_mut().for_each(|driver| driver.step(false));
        self.hosts.iter_mut().flat_map(|host| &mut host.queues).for_each(|queue| queue.conn.drain());
    }
}
