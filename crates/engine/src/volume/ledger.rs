//! Which associations there are, for the engine that follows if this one is killed.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
    left: Mutex<HashMap<u64, Predecessor>>,
    next: AtomicU64,
}

/// One client's witness.
pub(super) struct Clerk {
    ledger: Arc<Ledger>,
    living: Mutex<HashMap<u64, Predecessor>>,
}

impl Ledger {
    pub fn new(keeper: Option<Arc<dyn Keeper>>, left: impl IntoIterator<Item = (u64, Vec<u8>)>) -> Ledger {
        let read = |(key, note): (u64, Vec<u8>)| match Predecessor::decode(&note) {
            Some(predecessor) => Some((key, predecessor)),
            None => {
                log::error!("a note of an association cannot be read; what it left behind is not waited for");
                None
            }
        };
        let left = left.into_iter().filter_map(read).collect();
        Ledger { keeper, left: Mutex::new(left), next: AtomicU64::new(1) }
    }

    /// What a new client of this subsystem has to wait for; of any, if it is not known yet.
    pub fn left(&self, nqn: Option<Nqn>) -> Vec<(u64, Predecessor)> {
        let left = self.left.lock();
        let is_meant = |left: &&Predecessor| nqn.is_none_or(|nqn| nqn == left.nqn);
        left.iter().filter(|(_, left)| is_meant(left)).map(|(key, left)| (*key, left.clone())).collect()
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
        self.living.lock().insert(key, association.clone());
        Ok(key)
    }

    fn on_dead(&self, key: u64) {
        let was_living = self.living.lock().remove(&key).is_some();
        let was_known = self.ledger.left.lock().remove(&key).is_some() || was_living;
        // Several clients may have waited for the same one.
        if let Some(keeper) = self.ledger.keeper.as_ref().filter(|_| was_known) {
            keeper.forget(key);
        }
    }
}

impl Drop for Clerk {
    fn drop(&mut self) {
        self.ledger.left.lock().extend(self.living.get_mut().drain());
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

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
            command_quiesce_time: Duration::ZERO,
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
}
