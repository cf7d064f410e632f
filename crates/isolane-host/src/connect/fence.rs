//! Fences: when a lost association is known dead, so that its writes can be repeated.
//!
//! A write whose connection broke after its first byte was given to the kernel may or may not be on the volume, and
//! may still reach it: bytes wait in the send buffer of a dead socket, in the target's receive buffer, and in its
//! back end. Repeating such a write, or sending a later write to the same blocks first, is safe only when the old
//! association cannot do anything. The loss of the connection does not prove that, and neither does a FIN or an
//! RST from the target: its back end may still be at work.
//!
//! # The rule
//!
//! When a connection breaks, all connections of the association are reset, which discards their send buffers. (A
//! connection on which the target violated the protocol has half a second to send a termination request.) From then
//! on, the old association is **known dead** as soon as one of these rules holds:
//!
//! 1. *The target reports that its controller is gone.* A probe, an I/O-queue Connect on a new connection to the
//!    same address, names the old controller ID and our host NQN and ID. It requests a queue ID that no controller
//!    has, so it joins none. Targets remove a controller only after its commands have ended: ours, the Linux
//!    kernel's, and SPDK's do. The controller is gone if the probe is refused with Connect Invalid Parameters
//!    (1/82h) that points at CNTLID.
//! 2. *The target has reused its ID.* IDs are unique among living controllers. Either our new association has the
//!    ID, at the same address, and was started after the old one was lost. (A late report of another client, whose
//!    association had the ID earlier, proves nothing.) Or the probe is refused with 1/82h that points at HOSTNQN or
//!    HOSTID: another host has the ID.
//! 3. *The keep-alive timeout has passed.* The target must have ended the association after KATO without a command,
//!    or twice KATO if it checks only at intervals, or three times KATO if traffic counts as keep alive (TBKAS), and
//!    its commands after its Command Quiesce Time (CQT). This host adds a margin. Never if keep alive is off. Never
//!    if the controller reports no CQT (0), unless [`Reconnect::quiesce`](crate::Reconnect::quiesce) is set.
//!
//! A probe proves the old controller alive if it is refused with 1/82h that points at QID or with Controller Busy
//! (1/81h), or if it is not refused: a target whose disk hangs may keep commands far longer than its CQT. Rule 3
//! then starts again at that probe. Any other result proves nothing in either direction: 1/84h and 1/91h, which a
//! target returns before it looks up the controller, other statuses, and no response.
//!
//! Rules 1 and 2 presume that one server has the address. If several servers share it, use
//! `WriteReplay::AfterTimeout`, which leaves rule 3 and does not probe the target.
//!
//! Until then, writes with an unknown fate wait, and so does every new write to the volume that overlaps one of
//! them, on any of its associations. Afterwards they are repeated. If the rule can never hold, or the old controller
//! stays alive, both fail when reconnecting would end
//! ([`Reconnect::timeout`](crate::Reconnect::timeout)), but not before rule 3 could first have held,
//! with a CQT of 0 if none is known. The old association is watched further, and until it is known dead, every new
//! write to those blocks fails as well. Reads, Identify, and Flush are repeated immediately, as are writes of which
//! no byte was given to the kernel.
//!
//! `expiry.rs` makes the decision, without a clock and sockets.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use isolane_shm::with_signals_blocked;
use parking_lot::Mutex;

use super::Plan;
use super::connect_queue::probe;
use super::expiry::{OldAssociation, Verdict, Watch};
use super::journal::JournalEntry;
use crate::options::WriteReplay;
use crate::request::BlockRange;

/// The blocks that another process may have written.
const EVERYTHING: BlockRange = BlockRange { lba: 0, blocks: u64::MAX };

/// Maximum number of lost associations watched at the same time.
pub(crate) const MAX_FENCES: usize = 16;

/// An association that may prove an old one dead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewAssociation {
    pub address: SocketAddr,
    pub cntlid: u16,
    /// Time before the first connection was opened.
    pub started_at: Instant,
}

/// Effect of a fence on a write to its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FenceEffect {
    /// Delays the write.
    Wait,
    /// Fails the write, because there was no verdict in time.
    Fail,
}

/// Fences of all associations with one volume. The lock is taken only while there are any, and when one is
/// installed or lifted.
#[derive(Default)]
pub(crate) struct Fences {
    /// Number of fences, which a write reads without the lock.
    count: AtomicUsize,
    active: Mutex<ActiveFences>,
}

#[derive(Default)]
struct ActiveFences {
    id_next: u64,
    fences: Vec<Fence>,
    /// Notifies the clients of each verdict.
    members: Vec<Box<dyn Fn(u64, Verdict) + Send>>,
}

/// A lost association, and the blocks that it may still change.
struct Fence {
    id: u64,
    old: OldAssociation,
    ranges: Vec<BlockRange>,
    effect: FenceEffect,
    cancelled: Arc<AtomicBool>,
    /// Its journal entry.
    entry: Option<JournalEntry>,
}

impl Fences {
    /// Adds a client of the volume. Each verdict is passed to it with the ID of the fence.
    pub(crate) fn join(&self, member: impl Fn(u64, Verdict) + Send + 'static) {
        self.active.lock().members.push(Box::new(member));
    }

    /// Returns whether no write must wait.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Returns the effect on a write, if a lost association may still change blocks for which `overlaps`
    /// returns `true`.
    pub(crate) fn blocks(&self, overlaps: impl Fn(&BlockRange) -> bool) -> Option<FenceEffect> {
        if self.is_empty() {
            return None;
        }
        let is_behind = |fence: &&Fence| fence.ranges.iter().any(&overlaps);
        self.active.lock().fences.iter().filter(is_behind).map(|fence| fence.effect).max()
    }

    /// Installs a fence and starts to probe the target. Every client receives each verdict. Returns the ID of
    /// the fence.
    pub(crate) fn raise(
        self: &Arc<Self>,
        old: OldAssociation,
        ranges: Vec<BlockRange>,
        entry: Option<JournalEntry>,
        plan: &Arc<Plan>,
    ) -> u64 {
        let cancelled = Arc::<AtomicBool>::default();
        let id = self.install(old.clone(), ranges, entry, &cancelled);
        let (fences, plan) = (Arc::downgrade(self), Arc::clone(plan));
        let watch = move || {
            wait_for_death(&old, &plan, &cancelled, |verdict| {
                // A closed volume needs no verdict.
                Weak::upgrade(&fences).into_iter().for_each(|fences| fences.apply_verdict(id, verdict));
            });
        };
        let thread = std::thread::Builder::new().name("isolane-fence".to_owned());
        if let Err(error) = with_signals_blocked(|| thread.spawn(watch)) {
            log::error!(
                "cannot spawn thread to watch a lost association: {error}; its writes and later ones fail"
            );
            self.apply_verdict(id, Verdict::Unknown);
        }
        id
    }

    /// Installs a fence for an association of another process, which has ended. Delays all writes until it is
    /// known dead.
    pub(crate) fn raise_for(
        self: &Arc<Self>,
        mut old: OldAssociation,
        entry: JournalEntry,
        plan: &Arc<Plan>,
    ) {
        let association = &mut old.association;
        // The option of this process may be longer.
        let quiesce = &mut association.command_quiesce_time;
        *quiesce = (*quiesce).max(plan.options.reconnect.quiesce);
        log::info!(
            "{}: all writes wait until controller {} of the previous process is known dead",
            association.address,
            association.cntlid
        );
        self.raise(old, vec![EVERYTHING], Some(entry), plan);
    }

    /// Handles a new association, which may prove old ones dead (rule 2).
    pub(crate) fn on_association(&self, new: &NewAssociation, replay: WriteReplay) {
        let is_proven = |fence: &&Fence| fence.is_proven_by(new, replay);
        let proven: Vec<u64> =
            self.active.lock().fences.iter().filter(is_proven).map(|fence| fence.id).collect();
        proven.into_iter().for_each(|id| self.apply_verdict(id, Verdict::ControllerIdReused));
    }

    /// Handles a client that is closed for good. Its fences remain while other clients may write.
    pub(crate) fn on_client_closed(&self) {
        let mut active = self.active.lock();
        if active.members.len() == 1 {
            active.fences.clear();
            self.count.store(0, Ordering::Release);
        }
    }

    fn install(
        &self,
        old: OldAssociation,
        ranges: Vec<BlockRange>,
        entry: Option<JournalEntry>,
        cancelled: &Arc<AtomicBool>,
    ) -> u64 {
        let mut active = self.active.lock();
        active.id_next += 1;
        let (id, cancelled) = (active.id_next, Arc::clone(cancelled));
        active.fences.push(Fence { id, old, ranges, effect: FenceEffect::Wait, cancelled, entry });
        self.count.store(active.fences.len(), Ordering::Release);
        id
    }

    /// Handles a verdict: lifts the fence, or makes it fail writes.
    fn apply_verdict(&self, id: u64, verdict: Verdict) {
        let mut active = self.active.lock();
        let Some(at) = active.fences.iter().position(|fence| fence.id == id) else { return };
        if verdict == Verdict::Unknown {
            active.fences[at].effect = FenceEffect::Fail;
        } else {
            let mut fence = active.fences.swap_remove(at);
            fence.entry.take().into_iter().for_each(JournalEntry::on_dead);
            self.count.store(active.fences.len(), Ordering::Release);
        }
        active.members.iter().for_each(|notify| notify(id, verdict));
    }
}

impl Fence {
    /// Returns whether a new association proves the old one dead: rule 2.
    fn is_proven_by(&self, new: &NewAssociation, replay: WriteReplay) -> bool {
        let old = &self.old.association;
        let has_its_id = (old.address, old.cntlid) == (new.address, new.cntlid);
        replay != WriteReplay::AfterTimeout && has_its_id && new.started_at >= self.old.died
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// Reports each verdict, [`Verdict::Unknown`] first if it applies, until the association is known dead.
fn wait_for_death(old: &OldAssociation, plan: &Plan, cancelled: &AtomicBool, report: impl Fn(Verdict)) {
    let mut watch = Watch::new(old, &plan.options.reconnect);
    while !cancelled.load(Ordering::Relaxed) {
        if watch.wants_probe() {
            let probe = probe(plan, &old.association);
            watch.handle_probe(probe, Instant::now());
        }
        if let Some(verdict) = watch.verdict(Instant::now()) {
            report(verdict);
            if verdict != Verdict::Unknown {
                return;
            }
        }
        std::thread::sleep(watch.pause());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::connect::journal::StaleAssociation;

    fn old() -> OldAssociation {
        OldAssociation { association: StaleAssociation::example(), died: Instant::now() }
    }

    #[test]
    fn same_id_at_same_address_is_proof() {
        let old = old();
        let address = old.association.address;
        let new = NewAssociation { address, cntlid: 5, started_at: old.died };
        let there = "127.0.0.2:4420".parse().unwrap();
        let (ranges, cancelled) = (Vec::new(), Arc::default());
        let fence = Fence { id: 1, old, ranges, effect: FenceEffect::Wait, cancelled, entry: None };
        assert!(fence.is_proven_by(&new, WriteReplay::WhenGone));
        assert!(!fence.is_proven_by(&NewAssociation { cntlid: 6, ..new }, WriteReplay::WhenGone));
        assert!(!fence.is_proven_by(&NewAssociation { address: there, ..new }, WriteReplay::WhenGone));
        assert!(!fence.is_proven_by(&new, WriteReplay::AfterTimeout));
    }

    /// The association of one client had the ID and is gone. The target reuses the ID for another client,
    /// which is lost with a write. Only then does the first client report its association.
    #[test]
    fn earlier_association_proves_nothing() {
        let (fences, old) = (Fences::default(), old());
        let before = old.died.checked_sub(Duration::from_millis(1)).unwrap();
        let address = old.association.address;
        let late = NewAssociation { address, cntlid: 5, started_at: before };
        let ranges = vec![BlockRange { lba: 7, blocks: 1 }];
        fences.install(old, ranges, None, &Arc::default());
        fences.on_association(&late, WriteReplay::WhenGone);
        assert_eq!(
            fences.blocks(|range| range.lba == 7),
            Some(FenceEffect::Wait),
            "the write may still land"
        );
    }

    #[test]
    fn fence_blocks_all_clients_until_lifted() {
        let (fences, overlaps) = (Fences::default(), |range: &BlockRange| range.lba == 7);
        let boxes = [mpsc::channel(), mpsc::channel()];
        for (sender, _) in &boxes {
            let sender = sender.clone();
            fences.join(move |id, verdict| sender.send((id, verdict)).unwrap());
        }
        assert!(fences.is_empty() && fences.blocks(overlaps).is_none());
        let cancelled = Arc::default();
        let id = fences.install(old(), vec![BlockRange { lba: 7, blocks: 1 }], None, &cancelled);
        fences.on_client_closed();
        assert_eq!(fences.blocks(overlaps), Some(FenceEffect::Wait));
        fences.apply_verdict(id, Verdict::Unknown);
        assert_eq!(fences.blocks(overlaps), Some(FenceEffect::Fail));
        assert!(!fences.is_empty() && fences.blocks(|range| range.lba == 8).is_none());
        assert!(!cancelled.load(Ordering::Relaxed));
        fences.apply_verdict(id, Verdict::ControllerGone);
        assert!(fences.is_empty() && cancelled.load(Ordering::Relaxed));
        for (_, messages) in boxes {
            for verdict in [Verdict::Unknown, Verdict::ControllerGone] {
                assert_eq!(messages.try_recv(), Ok((id, verdict)));
            }
        }
    }
}
