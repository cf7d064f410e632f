//! When an old association is known dead, so that what it may still do needs no more fear.
//!
//! A write whose connection broke after its first byte was given to the kernel may be on the volume, may not
//! be, and may still get there: bytes wait in the send buffer of a dead socket, in the target's receive
//! buffer, in its back end. Repeating such a write, or letting a later write to the same blocks go first, is
//! safe only when the old association can do nothing any more. The loss of the connection does not prove
//! that, and neither does a FIN or an RST from the target: its back end may still be at work.
//!
//! # The rule
//!
//! When a connection breaks, all connections of the association are reset, which throws away what their send
//! buffers hold (one on which the target broke the protocol has half a second to hear why). From then on the
//! old association is **known dead** as soon as one of these holds:
//!
//! 1. *The target says that its controller is gone.* A probe, an I/O-queue Connect on a fresh connection to
//!    the same address, names the old controller id and our host NQN and id. It requests a queue id that no
//!    controller has, so that it joins none. Targets let go of a controller only after its commands have
//!    ended: ours, the Linux kernel's and SPDK's do. The controller is gone if the probe is refused with
//!    Connect Invalid Parameters (1/82h) that points at CNTLID.
//! 2. *The target gave its id to a new association.* Ids are unique among living controllers. Either our own
//!    new association has the id: only if it is at the same address, and was begun after the old one was
//!    given up (another client of the volume may come late to tell of one that had the id before). Or the
//!    probe is refused with 1/82h that points at HOSTNQN or HOSTID: another host has the id.
//! 3. *The keep-alive timeout has passed.* The target must have ended the association after KATO without a
//!    command, twice that if it only looks at intervals, three times if traffic counts as keep alive (TBKAS),
//!    and its commands after its Command Quiesce Time (CQT) more; to which this side adds a margin of its own.
//!    Never if keep alive is off. Never if the controller reports no CQT (0), unless
//!    [`Reconnect::quiesce`](crate::Reconnect::quiesce) says how long its commands take to end.
//!
//! A probe that is refused with 1/82h that points at QID, with Controller Busy (1/81h), or not at all proves
//! that the old controller is alive: a target whose disk hangs may keep commands far beyond its CQT. Rule 3
//! then starts again from that probe. Any other outcome proves nothing, in either direction: 1/84h and 1/91h,
//! which a target returns before it looks for the controller, other statuses, and no answer.
//!
//! 1 and 2 presume that one server stands behind one address. Where that is not so,
//! `WriteReplay::AfterTimeout` leaves 3, and the target is not probed.
//!
//! Until then writes of unknown fate are held back, and so is every new write to the volume that overlaps one
//! of them, whichever of its associations it goes through. Afterwards they are repeated. If the rule can
//! never be met, or the old controller stays alive, both fail when reconnecting would give up
//! ([`Reconnect::give_up_after`](crate::Reconnect::give_up_after)), though not before rule 3 could have held
//! first, with a CQT of 0 where none is known. The old association is watched further, and until it is known
//! dead, every new write to those blocks fails as well. Reads, Identify and Flush are repeated at once; so are
//! writes of which no byte had been given to the kernel.
//!
//! The decision itself, without clock and sockets, is in `expiry.rs`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use isolane_reactor::mailbox;
use parking_lot::Mutex;

use crate::client::Message;
use crate::expiry::{OldAssociation, Verdict, Watch};
use crate::options::{Options, WriteReplay};
use crate::predecessor::{Note, Predecessor};
use crate::request::BlockRange;
use crate::setup::{self, Plan};

/// All that a process wrote to is not known.
const EVERYTHING: BlockRange = BlockRange { lba: 0, blocks: u64::MAX };

/// Lost associations that are watched at the same time.
pub(crate) const FENCES_MAX: usize = 16;

/// An association that may prove an old one dead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewAssociation {
    pub address: SocketAddr,
    pub cntlid: u16,
    /// When nobody had been asked for it yet.
    pub begun: Instant,
}

/// What a write does that touches blocks of a lost association.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hold {
    /// It waits.
    Wait,
    /// It fails: what it would wait for was not known in time.
    Fail,
}

/// The fences of all associations with one volume. The lock is taken while there are any, and when one is
/// raised or falls.
#[derive(Default)]
pub(crate) struct Fences {
    /// How many stand: a write learns without the lock that there are none.
    count: AtomicUsize,
    standing: Mutex<Standing>,
}

#[derive(Default)]
struct Standing {
    id_next: u64,
    fences: Vec<Fence>,
    /// The clients that are told when one falls.
    members: Vec<mailbox::Sender<Message>>,
}

/// A lost association, and the blocks that it may still change.
struct Fence {
    id: u64,
    old: OldAssociation,
    ranges: Vec<BlockRange>,
    hold: Hold,
    is_cancelled: Arc<AtomicBool>,
    /// What a witness keeps until it falls.
    note: Option<Note>,
}

impl Fences {
    /// One more client of the volume.
    pub(crate) fn join(&self, member: mailbox::Sender<Message>) {
        self.standing.lock().members.push(member);
    }

    /// Whether no write has to wait.
    #[inline]
    pub(crate) fn are_none(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// What something has to do because blocks that it touches may still be changed by a lost association.
    pub(crate) fn hold_back(&self, touches: impl Fn(&BlockRange) -> bool) -> Option<Hold> {
        if self.are_none() {
            return None;
        }
        let is_behind = |fence: &&Fence| fence.ranges.iter().any(&touches);
        self.standing.lock().fences.iter().filter(is_behind).map(|fence| fence.hold).max()
    }

    /// Sets a fence up and starts to ask the target; each verdict comes to the mailbox of every client. Returns
    /// its number.
    pub(crate) fn raise(
        self: &Arc<Self>,
        old: OldAssociation,
        ranges: Vec<BlockRange>,
        note: Option<Note>,
        plan: &Arc<Plan>,
    ) -> u64 {
        let is_cancelled = Arc::<AtomicBool>::default();
        let id = self.stand(old.clone(), ranges, note, &is_cancelled);
        let (fences, plan) = (Arc::downgrade(self), Arc::clone(plan));
        let watch = move || {
            wait_for_death(&old, &plan, &is_cancelled, |verdict| {
                // A volume that is gone needs no verdict.
                Weak::upgrade(&fences).into_iter().for_each(|fences| fences.judge(id, verdict));
            });
        };
        if let Err(error) = std::thread::Builder::new().name("isolane-fence".to_owned()).spawn(watch) {
            log::error!("no thread to watch a lost association: {error}; its writes and later ones fail");
            self.judge(id, Verdict::Unknown);
        }
        id
    }

    /// Another process had an association, which ended with it: nothing is written before it is known dead.
    pub(crate) fn raise_for(self: &Arc<Self>, left: &Predecessor, note: Note, died: Instant, plan: &Plan) {
        // The target is asked in the name of the host that it belonged to.
        let (host_nqn, host_id) = (left.host_nqn, left.host_id);
        let options = Options { host_nqn, host_id, ..plan.options.clone() };
        let plan = Plan { uri: plan.uri.clone(), options, witness: None };
        log::info!(
            "{}: all writes wait until controller {} of a process before is known dead",
            left.address,
            left.cntlid
        );
        let mut old = left.old(died);
        // This side may know better than the one before.
        old.quiesce = old.quiesce.max(plan.options.reconnect.quiesce);
        self.raise(old, vec![EVERYTHING], Some(note), &Arc::new(plan));
    }

    /// A new association: it may prove old ones dead (rule 2).
    pub(crate) fn on_association(&self, new: &NewAssociation, replay: WriteReplay) {
        let is_proven = |fence: &&Fence| fence.is_proven_by(new, replay);
        let proven: Vec<u64> =
            self.standing.lock().fences.iter().filter(is_proven).map(|fence| fence.id).collect();
        proven.into_iter().for_each(|id| self.judge(id, Verdict::NumberReused));
    }

    /// A client has given up: its fences stand as long as others may write.
    pub(crate) fn on_giving_up(&self) {
        let mut standing = self.standing.lock();
        if standing.members.len() == 1 {
            standing.fences.clear();
            self.count.store(0, Ordering::Release);
        }
    }

    fn stand(
        &self,
        old: OldAssociation,
        ranges: Vec<BlockRange>,
        note: Option<Note>,
        is_cancelled: &Arc<AtomicBool>,
    ) -> u64 {
        let mut standing = self.standing.lock();
        standing.id_next += 1;
        let (id, is_cancelled) = (standing.id_next, Arc::clone(is_cancelled));
        standing.fences.push(Fence { id, old, ranges, hold: Hold::Wait, is_cancelled, note });
        self.count.store(standing.fences.len(), Ordering::Release);
        id
    }

    /// A fence falls, or stays without anything to wait for it.
    fn judge(&self, id: u64, verdict: Verdict) {
        let mut standing = self.standing.lock();
        let Some(at) = standing.fences.iter().position(|fence| fence.id == id) else { return };
        if verdict == Verdict::Unknown {
            standing.fences[at].hold = Hold::Fail;
        } else {
            let mut fence = standing.fences.swap_remove(at);
            fence.note.take().into_iter().for_each(Note::on_dead);
            self.count.store(standing.fences.len(), Ordering::Release);
        }
        for member in &standing.members {
            // A client that is gone needs no verdict.
            let _ = member.send(Message::Fenced { id, verdict });
        }
    }
}

impl Fence {
    /// Whether a new association proves the old one dead: rule 2.
    fn is_proven_by(&self, new: &NewAssociation, replay: WriteReplay) -> bool {
        let old = &self.old;
        let has_its_id = (old.address, old.cntlid) == (new.address, new.cntlid);
        replay != WriteReplay::AfterTimeout && has_its_id && new.begun >= old.died
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }
}

/// Tells each verdict, [`Verdict::Unknown`] first if it comes to that, until the association is known dead.
fn wait_for_death(old: &OldAssociation, plan: &Plan, is_cancelled: &AtomicBool, tell: impl Fn(Verdict)) {
    let mut watch = Watch::new(old, &plan.options.reconnect);
    while !is_cancelled.load(Ordering::Relaxed) {
        if watch.wants_probe() {
            let probe = setup::probe(plan, old);
            watch.handle_probe(probe, Instant::now());
        }
        if let Some(verdict) = watch.verdict(Instant::now()) {
            tell(verdict);
            if verdict != Verdict::Unknown {
                return;
            }
        }
        std::thread::sleep(watch.pause());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn old() -> OldAssociation {
        OldAssociation {
            address: "127.0.0.1:4420".parse().unwrap(),
            nqn: isolane_wire::Nqn::discovery(),
            cntlid: 5,
            died: Instant::now(),
            keep_alive: Duration::from_secs(5),
            is_keep_alive_traffic_based: false,
            quiesce: Some(Duration::ZERO),
        }
    }

    #[test]
    fn the_same_number_at_the_same_address_is_a_proof_and_nothing_less_is() {
        let old = old();
        let new = NewAssociation { address: old.address, cntlid: 5, begun: old.died };
        let there = "127.0.0.2:4420".parse().unwrap();
        let (ranges, is_cancelled) = (Vec::new(), Arc::default());
        let fence = Fence { id: 1, old, ranges, hold: Hold::Wait, is_cancelled, note: None };
        assert!(fence.is_proven_by(&new, WriteReplay::WhenGone));
        assert!(!fence.is_proven_by(&NewAssociation { cntlid: 6, ..new }, WriteReplay::WhenGone));
        assert!(!fence.is_proven_by(&NewAssociation { address: there, ..new }, WriteReplay::WhenGone));
        assert!(!fence.is_proven_by(&new, WriteReplay::AfterTimeout));
    }

    /// One client's association had the id and is gone; so the target gives it to another client's, which is
    /// lost with a write; only then the first client comes to tell of its own.
    #[test]
    fn an_association_that_had_the_number_before_proves_nothing() {
        let (fences, old) = (Fences::default(), old());
        let before = old.died.checked_sub(Duration::from_millis(1)).unwrap();
        let late = NewAssociation { address: old.address, cntlid: 5, begun: before };
        let ranges = vec![BlockRange { lba: 7, blocks: 1 }];
        fences.stand(old, ranges, None, &Arc::default());
        fences.on_association(&late, WriteReplay::WhenGone);
        assert_eq!(fences.hold_back(|range| range.lba == 7), Some(Hold::Wait), "the write may still land");
    }

    #[test]
    fn a_fence_holds_for_every_client_of_the_volume_until_all_are_told_that_it_fell() {
        let reactor = || isolane_reactor::Reactor::new(isolane_reactor::Config::default()).unwrap();
        let reactors = [reactor(), reactor()];
        let (fences, touches) = (Fences::default(), |range: &BlockRange| range.lba == 7);
        let boxes = reactors.each_ref().map(|reactor| mailbox::unbounded(reactor.waker()));
        boxes.iter().for_each(|(sender, _)| fences.join(sender.clone()));
        assert!(fences.are_none() && fences.hold_back(touches).is_none());
        let is_cancelled = Arc::default();
        let id = fences.stand(old(), vec![BlockRange { lba: 7, blocks: 1 }], None, &is_cancelled);
        fences.on_giving_up();
        assert_eq!(fences.hold_back(touches), Some(Hold::Wait));
        fences.judge(id, Verdict::Unknown);
        assert_eq!(fences.hold_back(touches), Some(Hold::Fail));
        assert!(!fences.are_none() && fences.hold_back(|range| range.lba == 8).is_none());
        assert!(!is_cancelled.load(Ordering::Relaxed));
        fences.judge(id, Verdict::ControllerGone);
        assert!(fences.are_none() && is_cancelled.load(Ordering::Relaxed));
        for (_, messages) in boxes {
            for verdict in [Verdict::Unknown, Verdict::ControllerGone] {
                let message = messages.poll();
                assert!(
                    matches!(message, Some(Message::Fenced { id: i, verdict: v }) if (i, v) == (id, verdict))
                );
            }
        }
    }
}
