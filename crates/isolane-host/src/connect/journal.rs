//! Journal of associations, for the successor of a process that is killed.
//!
//! The kernel closes the connections of a killed process, but its target may still execute commands that they
//! carried. So its successor must know its associations, and may write only when they are known dead by the
//! rule of [`fence`](crate::fence). An [`AssociationJournal`] keeps an entry for each of them where the end
//! of the process does not reach, and [`Client::connect_with_journal`](crate::Client::connect_with_journal)
//! waits for the stale ones.
//!
//! Invariant: no write is sent through an association before the journal has its entry.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use isolane_engine_api::{decode, encode};
use isolane_wire::Nqn;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::codec::text;
use crate::info::Info;
use crate::options::Options;

/// Facts about an association that tell when it is dead.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct StaleAssociation {
    /// The target's address.
    #[serde(with = "text")]
    pub address: SocketAddr,
    /// The subsystem.
    #[serde(with = "text")]
    pub nqn: Nqn,
    /// The controller of the association.
    pub cntlid: u16,
    /// NQN of its host.
    #[serde(with = "text")]
    pub host_nqn: Nqn,
    /// Host ID of its host.
    pub host_id: Uuid,
    /// Its keep-alive timeout, as the target knows it. Zero: none.
    pub keep_alive: Duration,
    /// Whether any command counted as keep alive (TBKAS).
    pub traffic_based_keep_alive: bool,
    /// Time that its commands may take to end after it: CQT, or
    /// [`Reconnect::quiesce`](crate::Reconnect::quiesce). `None` if not known.
    pub command_quiesce_time: Option<Duration>,
}

/// Store of associations that survives the end of this process.
pub trait AssociationJournal: Send + Sync {
    /// Records a new association and returns the key of its entry. Called while the client connects, on a
    /// thread that does not drive it.
    ///
    /// # Errors
    /// The entry cannot be stored: the association is closed unused.
    fn record(&self, association: &StaleAssociation) -> io::Result<u64>;

    /// Erases the entry of an association that is known dead. Must not block.
    fn erase(&self, key: u64);
}

/// Journal entry of one association. Erased if it is dropped before [`JournalEntry::on_use`]: then nothing
/// was written through the association.
pub(crate) struct JournalEntry {
    journal: Arc<dyn AssociationJournal>,
    key: u64,
    used: bool,
}

impl JournalEntry {
    /// Records an association.
    pub(crate) fn make(
        journal: &Arc<dyn AssociationJournal>,
        association: &StaleAssociation,
    ) -> io::Result<JournalEntry> {
        let key = journal.record(association)?;
        Ok(JournalEntry { journal: Arc::clone(journal), key, used: false })
    }

    /// Takes the entry of a stale association.
    pub(crate) fn of(journal: &Arc<dyn AssociationJournal>, key: u64) -> JournalEntry {
        JournalEntry { journal: Arc::clone(journal), key, used: true }
    }

    /// Must be called before the first write.
    pub(crate) fn on_use(&mut self) {
        self.used = true;
    }

    /// Erases the entry: the association is known dead.
    pub(crate) fn on_dead(mut self) {
        self.used = false;
    }
}

impl Drop for JournalEntry {
    fn drop(&mut self) {
        if !self.used {
            self.journal.erase(self.key);
        }
    }
}

impl StaleAssociation {
    pub(crate) fn of(info: &Info, options: &Options) -> StaleAssociation {
        StaleAssociation {
            address: info.address,
            nqn: info.nqn,
            cntlid: info.controller.cntlid,
            host_nqn: options.host_nqn,
            host_id: options.host_id,
            keep_alive: Duration::from_millis(u64::from(options.kato_ms())),
            traffic_based_keep_alive: info.controller.traffic_based_keep_alive,
            command_quiesce_time: options.reconnect.quiesce_time(info.controller.command_quiesce_time),
        }
    }

    /// Maximum length of [`StaleAssociation::encode`].
    pub const MAX_BYTES: usize = 600;

    /// Encodes it for storage.
    pub fn encode(&self) -> Vec<u8> {
        let bytes = encode(&(FORMAT, self));
        debug_assert!(bytes.len() <= StaleAssociation::MAX_BYTES);
        bytes
    }

    /// Decodes [`StaleAssociation::encode`]. Returns `None` for other data.
    pub fn decode(bytes: &[u8]) -> Option<StaleAssociation> {
        let (format, association) = decode::<(u8, StaleAssociation)>(bytes).ok()?;
        (format == FORMAT).then_some(association)
    }

    #[cfg(test)]
    pub(crate) fn example() -> StaleAssociation {
        StaleAssociation {
            address: "127.0.0.1:4420".parse().unwrap(),
            nqn: Nqn::discovery(),
            cntlid: 5,
            host_nqn: Nqn::discovery(),
            host_id: Uuid::nil(),
            keep_alive: Duration::from_secs(5),
            traffic_based_keep_alive: false,
            command_quiesce_time: Some(Duration::ZERO),
        }
    }
}

const FORMAT: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn stale(address: &str) -> StaleAssociation {
        StaleAssociation {
            address: address.parse().unwrap(),
            nqn: Nqn::new(&format!("nqn.2024-01.org.example:{}", "s".repeat(190))).unwrap(),
            cntlid: 0x1234,
            host_nqn: Nqn::new(&format!("nqn.2024-01.org.example:{}", "h".repeat(190))).unwrap(),
            host_id: Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
            keep_alive: Duration::from_millis(15_001),
            traffic_based_keep_alive: true,
            command_quiesce_time: Some(Duration::from_millis(77)),
        }
    }

    #[test]
    fn entry_round_trips() {
        for address in ["127.0.0.1:4420", "[::1]:1", "[fe80::1%3]:65535"] {
            for command_quiesce_time in [Some(Duration::from_millis(77)), Some(Duration::ZERO), None] {
                let stale = StaleAssociation { command_quiesce_time, ..stale(address) };
                let bytes = stale.encode();
                assert!(bytes.len() <= StaleAssociation::MAX_BYTES);
                assert_eq!(StaleAssociation::decode(&bytes), Some(stale));
            }
        }
    }

    #[test]
    fn rejects_other_data() {
        let bytes = stale("127.0.0.1:4420").encode();
        assert!((0..bytes.len()).all(|len| StaleAssociation::decode(&bytes[..len]).is_none()));
        assert_eq!(StaleAssociation::decode(&[&bytes[..], &[0]].concat()), None);
        for at in [0, 1] {
            let mut other = bytes.clone();
            other[at] = 9;
            assert_eq!(StaleAssociation::decode(&other), None);
        }
    }
}
