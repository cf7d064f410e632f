//! Journal of associations, for the engine that follows if this one is killed.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use isolane_host::{AssociationJournal, Nqn, StaleAssociation};
use parking_lot::Mutex;

/// Storage for notes that outlives this process.
pub trait JournalStore: Send + Sync {
    /// Stores a note of at most [`StaleAssociation::MAX_BYTES`]. Returns its key once it is durable.
    ///
    /// # Errors
    /// Failure of the storage.
    fn append(&self, note: &[u8]) -> io::Result<u64>;

    /// Removes a note. Must not block.
    fn remove(&self, key: u64);
}

/// Associations of all clients.
pub(super) struct AssociationRegistry {
    store: Arc<dyn JournalStore>,
    associations: Mutex<HashMap<u64, Association>>,
    next_client: AtomicU64,
}

/// An association that may be alive.
struct Association {
    association: StaleAssociation,
    owner: Owner,
}

enum Owner {
    /// The client with this number.
    Client(u64),
    /// None any longer. The association is dead by this time in any case; `None` without keep alive.
    Gone(Option<Instant>),
}

/// Journal of one client.
struct ClientJournal {
    registry: Arc<AssociationRegistry>,
    client: u64,
}

impl AssociationRegistry {
    pub fn new(
        store: Arc<dyn JournalStore>,
        notes: impl IntoIterator<Item = (u64, Vec<u8>)>,
    ) -> AssociationRegistry {
        let decode = |(key, note): (u64, Vec<u8>)| match StaleAssociation::decode(&note) {
            // Its process has ended.
            Some(association) => Some((key, Association::gone(association))),
            None => {
                log::error!("note {key} of an association is malformed, not waiting for its end");
                store.remove(key);
                None
            }
        };
        let associations = Mutex::new(notes.into_iter().filter_map(decode).collect());
        AssociationRegistry { store, associations, next_client: AtomicU64::new(1) }
    }

    /// Returns the associations without client whose end a new client must await: all of its subsystem, or all if
    /// that is unknown.
    pub fn orphaned(&self, nqn: Option<Nqn>) -> Vec<(u64, StaleAssociation)> {
        let associations = self.associations.lock();
        let orphaned = associations.iter().filter(|(_, it)| matches!(it.owner, Owner::Gone(_)));
        let matching = orphaned.filter(|(_, it)| nqn.is_none_or(|nqn| nqn == it.association.nqn));
        matching.map(|(key, it)| (*key, it.association.clone())).collect()
    }

    /// Removes expired associations.
    pub fn expire(&self, now: Instant) {
        let has_expired = |it: &Association| matches!(it.owner, Owner::Gone(Some(expiry)) if expiry <= now);
        let expired: Vec<_> = self.associations.lock().extract_if(|_, it| has_expired(it)).collect();
        expired.iter().for_each(|(key, _)| self.store.remove(*key));
    }

    /// Returns the time of the next call of [`AssociationRegistry::expire`], at the latest.
    pub fn next_check(&self, now: Instant) -> Option<Instant> {
        let check = |it: &Association| match it.owner {
            // A client may orphan its association at any time, on another thread.
            Owner::Client(_) => Some(now + RECHECK_INTERVAL),
            Owner::Gone(expiry) => expiry,
        };
        self.associations.lock().values().filter_map(check).min()
    }

    pub fn client_journal(self: &Arc<Self>) -> Arc<dyn AssociationJournal> {
        let client = self.next_client.fetch_add(1, Ordering::Relaxed);
        Arc::new(ClientJournal { registry: Arc::clone(self), client })
    }
}

impl AssociationJournal for ClientJournal {
    fn record(&self, association: &StaleAssociation) -> io::Result<u64> {
        let key = self.registry.store.append(&association.encode())?;
        let association = Association { association: association.clone(), owner: Owner::Client(self.client) };
        self.registry.associations.lock().insert(key, association);
        Ok(key)
    }

    fn erase(&self, key: u64) {
        let removed = self.registry.associations.lock().remove(&key);
        // Several clients may have awaited the same association.
        if removed.is_some() {
            self.registry.store.remove(key);
        }
    }
}

impl Drop for ClientJournal {
    fn drop(&mut self) {
        for it in self.registry.associations.lock().values_mut() {
            if matches!(it.owner, Owner::Client(client) if client == self.client) {
                it.owner = Owner::Gone(it.association.expiry(Instant::now()));
            }
        }
    }
}

impl Association {
    /// Association whose client has ended now.
    fn gone(association: StaleAssociation) -> Association {
        let owner = Owner::Gone(association.expiry(Instant::now()));
        Association { association, owner }
    }
}

/// Interval of checks while clients may orphan associations.
const RECHECK_INTERVAL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[derive(Default)]
    struct Notes(Mutex<HashMap<u64, Vec<u8>>>);

    impl JournalStore for Notes {
        fn append(&self, note: &[u8]) -> io::Result<u64> {
            let mut notes = self.0.lock();
            let key = 100 + notes.len() as u64;
            notes.insert(key, note.to_vec());
            Ok(key)
        }

        fn remove(&self, key: u64) {
            assert!(self.0.lock().remove(&key).is_some(), "removed once");
        }
    }

    fn association(nqn: &str) -> StaleAssociation {
        StaleAssociation {
            address: SocketAddr::from(([127, 0, 0, 1], 4420)),
            nqn: Nqn::new(nqn).unwrap(),
            cntlid: 1,
            host_nqn: isolane_host::host_nqn(),
            host_id: isolane_host::host_id(),
            keep_alive: Duration::from_secs(15),
            traffic_based_keep_alive: false,
            command_quiesce_time: Some(Duration::ZERO),
        }
    }

    const ONE: &str = "nqn.2024-01.org.example:one";
    const OTHER: &str = "nqn.2024-01.org.example:other";

    #[test]
    fn client_awaits_orphans_of_its_subsystem() {
        let notes = Arc::new(Notes::default());
        let registry = Arc::new(AssociationRegistry::new(Arc::clone(&notes) as _, []));
        let journal = registry.client_journal();
        let (dead, alive) =
            (journal.record(&association(ONE)).unwrap(), journal.record(&association(ONE)).unwrap());
        journal.erase(dead);
        assert!(registry.orphaned(None).is_empty(), "a client still has it");
        drop(journal);
        let keys = |nqn| registry.orphaned(nqn).iter().map(|(key, _)| *key).collect::<Vec<_>>();
        assert_eq!(keys(Some(Nqn::new(ONE).unwrap())), [alive]);
        assert_eq!((keys(None), keys(Some(Nqn::new(OTHER).unwrap()))), (vec![alive], vec![]));
        let next = registry.client_journal();
        next.erase(alive);
        next.erase(alive);
        assert!(registry.orphaned(None).is_empty() && notes.0.lock().is_empty());
    }

    #[test]
    fn reads_notes_and_drops_malformed_ones() {
        let initial = [(7, association(OTHER).encode()), (8, b"nonsense".to_vec())];
        let notes = Arc::new(Notes::default());
        notes.0.lock().extend(initial.clone());
        let registry = AssociationRegistry::new(notes, initial);
        assert_eq!(registry.orphaned(None), [(7, association(OTHER))]);
    }

    #[test]
    fn removes_orphans_at_their_expiry() {
        let notes = Arc::new(Notes::default());
        let [one, other, garbage] =
            [association(ONE).encode(), association(OTHER).encode(), b"none".to_vec()];
        let eternal = StaleAssociation { keep_alive: Duration::ZERO, ..association(ONE) }.encode();
        let initial = [(1, one), (2, garbage), (3, eternal)];
        notes.0.lock().extend(initial.clone());
        let registry = Arc::new(AssociationRegistry::new(Arc::clone(&notes) as _, initial));
        let keys = || {
            let mut keys: Vec<u64> = notes.0.lock().keys().copied().collect();
            keys.sort();
            keys
        };
        assert_eq!(keys(), [1, 3], "a malformed note is removed");
        let now = Instant::now();
        let due = registry.next_check(now).unwrap();
        assert!(due >= now + association(ONE).keep_alive, "its target may still work on commands");
        registry.expire(due - Duration::from_millis(1));
        assert_eq!(keys(), [1, 3]);
        registry.expire(due);
        assert_eq!((keys(), registry.orphaned(None).len()), (vec![3], 1));
        assert_eq!(registry.next_check(due), None, "an association without keep alive never expires");

        let journal = registry.client_journal();
        let key = journal.record(&StaleAssociation::decode(&other).unwrap()).unwrap();
        registry.expire(now + Duration::from_secs(3600));
        assert_eq!(keys(), [3, key], "a client still has it");
        assert_eq!(registry.next_check(now), Some(now + RECHECK_INTERVAL));
        drop(journal);
        registry.expire(registry.next_check(now).unwrap());
        assert_eq!((keys(), registry.next_check(now)), (vec![3], None));
    }
}
