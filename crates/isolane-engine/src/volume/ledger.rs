//! Which associations there are, for the engine that follows if this one is killed.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use isolane_host::{Nqn, Predecessor, Witness};
use parking_lot::Mutex;

/// Keeps notes beyond the end of this process.
pub trait Keeper: Send + Sync {
    /// Keeps a note of at most [`Predecessor::BYTES_MAX`]. When this returns it is kept, under the key that it
    /// returns.
    ///
    /// # Errors
    /// Why not.
    fn keep(&self, note: &[u8]) -> io::Result<u64>;

    /// A note is needed no more. Must not block.
    fn forget(&self, key: u64);
}

/// The notes of all clients.
pub(super) struct Ledger {
    keeper: Option<Arc<dyn Keeper>>,
    /// Associations that nobody has any more and that are not known dead.
    left: Mutex<HashMap<u64, Left>>,
    next: AtomicU64,
    /// Associations that somebody has.
    living: AtomicUsize,
}

/// An association that nobody has any more.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Left {
    association: Predecessor,
    /// When it is known dead though nobody has opened the volume again; `None` if never.
    expiry: Option<Instant>,
}

/// One client's witness.
pub(super) struct Clerk {
    ledger: Arc<Ledger>,
    living: Mutex<HashMap<u64, Predecessor>>,
}

impl Ledger {
    pub fn new(keeper: Option<Arc<dyn Keeper>>, left: impl IntoIterator<Item = (u64, Vec<u8>)>) -> Ledger {
        let read = |(key, note): (u64, Vec<u8>)| match Predecessor::decode(&note) {
            // The process that had it is dead.
            Some(association) => Some((key, Left::new(association, Instant::now()))),
            None => {
                log::error!("a note of an association cannot be read; what it left behind is not waited for");
                keeper.iter().for_each(|keeper| keeper.forget(key));
                None
            }
        };
        let left = left.into_iter().filter_map(read).collect();
        Ledger { left: Mutex::new(left), keeper, next: AtomicU64::new(1), living: AtomicUsize::new(0) }
    }

    /// What a new client of this subsystem has to wait for; of any, if it is not known yet.
    pub fn left(&self, nqn: Option<Nqn>) -> Vec<(u64, Predecessor)> {
        let left = self.left.lock();
        let all = left.iter().map(|(key, left)| (*key, &left.association));
        let meant = all.filter(|(_, left)| nqn.is_none_or(|nqn| nqn == left.nqn));
        meant.map(|(key, left)| (key, left.clone())).collect()
    }

    /// Forgets what is known dead by now, because its time has passed.
    pub fn expire(&self, now: Instant) {
        let has_expired = |left: &Left| left.expiry.is_some_and(|expiry| expiry <= now);
        let expired: Vec<_> = self.left.lock().extract_if(|_, left| has_expired(left)).collect();
        for (key, _) in expired {
            self.keeper.iter().for_each(|keeper| keeper.forget(key));
        }
    }

    /// When to look for that again at the latest; `None` if there is nothing to look for.
    pub fn next_look(&self, now: Instant) -> Option<Instant> {
        let next = self.left.lock().values().filter_map(|left| left.expiry).min();
        // Whoever has one may leave it at any time, on a thread of its own.
        let later = (self.living.load(Ordering::Acquire) > 0).then(|| now + LOOK);
        next.into_iter().chain(later).min()
    }

    pub fn clerk(self: &Arc<Self>) -> Arc<dyn Witness> {
        Arc::new(Clerk { ledger: Arc::clone(self), living: Mutex::default() })
    }
}

impl Witness for Clerk {
    fn on_made(&self, association: &Predecessor) -> io::Result<u64> {
        let key = match &self.ledger.keeper {
            Some(keeper) => keeper.keep(&association.encode())?,
            None => self.ledger.next.fetch_add(1, Ordering::Relaxed),
        };
        self.ledger.living.fetch_add(1, Ordering::AcqRel);
        self.living.lock().insert(key, association.clone());
        Ok(key)
    }

    fn on_dead(&self, key: u64) {
        let was_living = self.living.lock().remove(&key).is_some();
        if was_living {
            self.ledger.living.fetch_sub(1, Ordering::AcqRel);
        }
        let was_known = self.ledger.left.lock().remove(&key).is_some() || was_living;
        // Several clients may have waited for the same one.
        if let Some(keeper) = self.ledger.keeper.as_ref().filter(|_| was_known) {
            keeper.forget(key);
        }
    }
}

impl Drop for Clerk {
    fn drop(&mut self) {
        let (living, now) = (self.living.get_mut(), Instant::now());
        let count = living.len();
        let left = living.drain().map(|(key, association)| (key, Left::new(association, now)));
        self.ledger.left.lock().extend(left);
        self.ledger.living.fetch_sub(count, Ordering::AcqRel);
    }
}

impl Left {
    fn new(association: Predecessor, died: Instant) -> Left {
        let expiry = association.expiry(died);
        Left { association, expiry }
    }
}

/// How often it is looked whether somebody has left an association.
const LOOK: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[derive(Default)]
    struct Kept(Mutex<HashMap<u64, Vec<u8>>>);

    impl Keeper for Kept {
        fn keep(&self, note: &[u8]) -> io::Result<u64> {
            let mut kept = self.0.lock();
            let key = 100 + kept.len() as u64;
            kept.insert(key, note.to_vec());
            Ok(key)
        }

        fn forget(&self, key: u64) {
            assert!(self.0.lock().remove(&key).is_some(), "forgotten once");
        }
    }

    fn predecessor(nqn: &str) -> Predecessor {
        Predecessor {
            address: SocketAddr::from(([127, 0, 0, 1], 4420)),
            nqn: Nqn::new(nqn).unwrap(),
            cntlid: 1,
            host_nqn: isolane_host::host_nqn(),
            host_id: isolane_host::host_id(),
            keep_alive: Duration::from_secs(15),
            is_keep_alive_traffic_based: false,
            command_quiesce_time: Some(Duration::ZERO),
        }
    }

    const ONE: &str = "nqn.2024-01.org.example:one";
    const OTHER: &str = "nqn.2024-01.org.example:other";

    #[test]
    fn what_a_client_leaves_is_waited_for_by_the_next_of_the_same_subsystem() {
        let kept = Arc::new(Kept::default());
        let ledger = Arc::new(Ledger::new(Some(Arc::clone(&kept) as _), []));
        let clerk = ledger.clerk();
        let (dead, alive) =
            (clerk.on_made(&predecessor(ONE)).unwrap(), clerk.on_made(&predecessor(ONE)).unwrap());
        clerk.on_dead(dead);
        assert!(ledger.left(None).is_empty(), "it is still somebody's");
        drop(clerk);
        let keys = |nqn| ledger.left(nqn).iter().map(|(key, _)| *key).collect::<Vec<_>>();
        assert_eq!(keys(Some(Nqn::new(ONE).unwrap())), [alive]);
        assert_eq!((keys(None), keys(Some(Nqn::new(OTHER).unwrap()))), (vec![alive], vec![]));
        let next = ledger.clerk();
        next.on_dead(alive);
        next.on_dead(alive);
        assert!(ledger.left(None).is_empty() && kept.0.lock().is_empty());
    }

    #[test]
    fn what_another_process_left_is_read_and_what_is_no_note_is_not() {
        let notes = [(7, predecessor(OTHER).encode()), (8, b"nonsense".to_vec())];
        let ledger = Ledger::new(None, notes);
        assert_eq!(ledger.left(None), [(7, predecessor(OTHER))]);
    }

    #[test]
    fn what_nobody_waits_for_is_forgotten_once_it_is_known_dead() {
        let kept = Arc::new(Kept::default());
        let [one, other, garbage] =
            [predecessor(ONE).encode(), predecessor(OTHER).encode(), b"none".to_vec()];
        let eternal = Predecessor { keep_alive: Duration::ZERO, ..predecessor(ONE) }.encode();
        let notes = [(1, one), (2, garbage), (3, eternal)];
        kept.0.lock().extend(notes.clone());
        let ledger = Arc::new(Ledger::new(Some(Arc::clone(&kept) as _), notes));
        let keys = || {
            let mut keys: Vec<u64> = kept.0.lock().keys().copied().collect();
            keys.sort();
            keys
        };
        assert_eq!(keys(), [1, 3], "what cannot be read is of no use to the next either");
        let now = Instant::now();
        let due = ledger.next_look(now).unwrap();
        assert!(due >= now + predecessor(ONE).keep_alive, "its target may be at work on it");
        ledger.expire(due - Duration::from_millis(1));
        assert_eq!(keys(), [1, 3]);
        ledger.expire(due);
        assert_eq!((keys(), ledger.left(None).len()), (vec![3], 1));
        assert_eq!(ledger.next_look(due), None, "nobody ever knows of one without keep alive");

        let clerk = ledger.clerk();
        let key = clerk.on_made(&Predecessor::decode(&other).unwrap()).unwrap();
        ledger.expire(now + Duration::from_secs(3600));
        assert_eq!(keys(), [3, key], "it lives");
        assert_eq!(ledger.next_look(now), Some(now + LOOK));
        drop(clerk);
        ledger.expire(ledger.next_look(now).unwrap());
        assert_eq!((keys(), ledger.next_look(now)), (vec![3], None));
    }
}
