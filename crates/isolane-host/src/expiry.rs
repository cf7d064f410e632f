//! Decision whether a lost association is known dead: the rules of [`fence`](crate::fence) as a state machine.
//!
//! It has no clock and no sockets: probes and instants are arguments. Invariant: while probes prove that the
//! old controller is alive, the time rule never holds.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use isolane_wire::Nqn;

use crate::options::{Reconnect, WriteReplay};

/// What is added to the target's own time: clocks differ, and segments linger in the network.
pub(crate) const MARGIN: Duration = Duration::from_secs(1);

/// Pauses between probes.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// An association that was given up.
#[derive(Clone, Debug)]
pub(crate) struct OldAssociation {
    pub address: SocketAddr,
    pub nqn: Nqn,
    pub cntlid: u16,
    /// When all of its connections had been reset.
    pub died: Instant,
    pub keep_alive: Duration,
    pub is_keep_alive_traffic_based: bool,
    /// How long its commands may take to end after its keep-alive timeout; `None` if not known.
    pub quiesce: Option<Duration>,
}

impl OldAssociation {
    /// When rule 3 holds if nothing proves the controller alive; `None` if never.
    pub(crate) fn expiry(&self) -> Option<Instant> {
        self.expiry_from(self.died)
    }

    /// When rule 3 holds if the controller was alive at `alive` and has received nothing since then.
    fn expiry_from(&self, alive: Instant) -> Option<Instant> {
        let wait = Some(self.wait(self.quiesce?)).filter(|_| !self.keep_alive.is_zero());
        alive.checked_add(wait?)
    }

    /// No verdict is [`Verdict::Unknown`] before: most controllers are gone by then, also where no time is a
    /// proof.
    fn patience(&self) -> Option<Instant> {
        self.died.checked_add(self.wait(self.quiesce.unwrap_or_default()))
    }

    fn wait(&self, quiesce: Duration) -> Duration {
        let intervals = if self.is_keep_alive_traffic_based { 3 } else { 2 };
        self.keep_alive.saturating_mul(intervals).saturating_add(quiesce).saturating_add(MARGIN)
    }
}

/// Why an association is known dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Rule 1.
    ControllerGone,
    /// Rule 2.
    NumberReused,
    /// Rule 3.
    TimeoutPassed,
    /// It was not known in the time that reconnecting may take; another verdict may follow.
    Unknown,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Verdict::ControllerGone => "is gone, says the target",
            Verdict::NumberReused => "is gone: the target gave its number to another association",
            Verdict::TimeoutPassed => "is gone: its keep-alive timeout has passed",
            Verdict::Unknown => "may still be alive",
        })
    }
}

/// What a probe proved about the old controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// No controller has its id.
    Gone,
    /// A controller of another host has its id.
    Reassigned,
    /// It is there.
    Alive,
    /// Nothing.
    Unclear,
}

/// Watches one lost association until it is known dead.
pub(crate) struct Watch<'a> {
    old: &'a OldAssociation,
    is_probing: bool,
    give_up: Option<Instant>,
    /// When a probe last proved the controller alive.
    alive: Option<Instant>,
    proof: Option<Verdict>,
    pause: Duration,
}

impl Watch<'_> {
    pub(crate) fn new<'a>(old: &'a OldAssociation, reconnect: &Reconnect) -> Watch<'a> {
        Watch {
            old,
            is_probing: reconnect.writes != WriteReplay::AfterTimeout,
            give_up: reconnect.give_up_after.and_then(|after| old.died.checked_add(after)),
            alive: None,
            proof: None,
            pause: PAUSE_MIN,
        }
    }

    /// Whether the answer of the target counts.
    pub(crate) fn wants_probe(&self) -> bool {
        self.is_probing
    }

    /// A probe has ended at `now`.
    pub(crate) fn handle_probe(&mut self, probe: Probe, now: Instant) {
        match probe {
            Probe::Gone => self.proof = Some(Verdict::ControllerGone),
            Probe::Reassigned => self.proof = Some(Verdict::NumberReused),
            Probe::Alive => self.alive = Some(now),
            Probe::Unclear => {}
        }
    }

    /// What is known at `now`; `None`: probe again after a [`Watch::pause`]. [`Verdict::Unknown`] comes once, and
    /// the watch goes on.
    pub(crate) fn verdict(&mut self, now: Instant) -> Option<Verdict> {
        let has_passed = |instant: Instant| now >= instant;
        if self.proof.is_some() {
            return self.proof;
        }
        let expiry = self.old.expiry_from(self.alive.unwrap_or(self.old.died));
        if expiry.is_some_and(has_passed) {
            return Some(Verdict::TimeoutPassed);
        }
        // The time rule is waited for even beyond the end of reconnecting; its postponement is not.
        let has_given_up =
            self.give_up.is_some_and(has_passed) && self.old.patience().is_some_and(has_passed);
        has_given_up.then(|| {
            self.give_up = None;
            Verdict::Unknown
        })
    }

    /// How long to wait before the next probe: longer each time.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSE_MAX);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn old(keep_alive_s: u64, is_keep_alive_traffic_based: bool, quiesce_ms: Option<u64>) -> OldAssociation {
        OldAssociation {
            address: "127.0.0.1:4420".parse().unwrap(),
            nqn: Nqn::discovery(),
            cntlid: 5,
            died: Instant::now(),
            keep_alive: Duration::from_secs(keep_alive_s),
            is_keep_alive_traffic_based,
            quiesce: quiesce_ms.map(Duration::from_millis),
        }
    }

    /// When a verdict is reached, in simulated time, and which: `probe` is the outcome of the probe that ends
    /// so long after the loss.
    fn simulate(
        old: &OldAssociation,
        reconnect: &Reconnect,
        probe: impl Fn(Duration) -> Probe,
    ) -> (Duration, Verdict) {
        let mut watch = Watch::new(old, reconnect);
        let mut since = Duration::ZERO;
        loop {
            if watch.wants_probe() {
                watch.handle_probe(probe(since), old.died + since);
            }
            if let Some(verdict) = watch.verdict(old.died + since) {
                return (since, verdict);
            }
            since += watch.pause();
            assert!(since < Duration::from_secs(3600), "no verdict within an hour");
        }
    }

    fn giving_up_after(time: Option<Duration>) -> Reconnect {
        Reconnect { give_up_after: time, ..Reconnect::default() }
    }

    #[test]
    fn the_timeout_counts_two_intervals_or_three_and_the_quiesce_time() {
        let waits = |old: OldAssociation| old.expiry().map(|expiry| expiry - old.died);
        assert_eq!(waits(old(5, false, Some(300))), Some(Duration::from_millis(10_000 + 300 + 1000)));
        assert_eq!(waits(old(5, true, Some(300))), Some(Duration::from_millis(15_000 + 300 + 1000)));
        assert_eq!(waits(old(0, true, Some(300))), None);
    }

    #[test]
    fn no_timeout_holds_without_a_quiesce_time() {
        assert_eq!(old(5, false, None).expiry(), None);
        let (at, verdict) =
            simulate(&old(5, false, None), &giving_up_after(Some(60 * S)), |_| Probe::Unclear);
        assert!(at >= 60 * S && verdict == Verdict::Unknown, "{at:?} {verdict:?}");
    }

    /// The device of the target hangs for 120 s with a write: the controller stays until it has landed.
    #[test]
    fn waits_for_a_controller_whose_device_hangs() {
        let hanging = |since| if since < 120 * S { Probe::Alive } else { Probe::Gone };
        for quiesce_ms in [None, Some(0), Some(5000)] {
            let old = old(15, true, quiesce_ms);
            let (at, verdict) = simulate(&old, &Reconnect::default(), hanging);
            assert_eq!(verdict, Verdict::ControllerGone, "{quiesce_ms:?}: at {at:?}");
            assert!((120 * S..121 * S).contains(&at), "{quiesce_ms:?}: {at:?}");
        }
    }

    #[test]
    fn gives_up_on_a_controller_that_stays_alive() {
        let old = old(15, false, Some(300));
        let (at, verdict) = simulate(&old, &giving_up_after(Some(100 * S)), |_| Probe::Alive);
        assert_eq!(verdict, Verdict::Unknown);
        assert!((100 * S..101 * S).contains(&at), "{at:?}");
        // Without a proof of life, the time rule is waited for, however early reconnecting gives up.
        let (at, verdict) = simulate(&old, &giving_up_after(Some(S)), |_| Probe::Unclear);
        assert_eq!(verdict, Verdict::TimeoutPassed);
        assert!((31 * S..33 * S).contains(&at), "{at:?}");
        let (at, verdict) = simulate(&old, &giving_up_after(Some(S)), |_| Probe::Alive);
        assert_eq!(verdict, Verdict::Unknown);
        assert!((31 * S..33 * S).contains(&at), "{at:?}");
    }

    #[test]
    fn goes_on_after_an_unknown_fate_and_does_not_give_up_early_without_a_quiesce_time() {
        let old = old(5, true, None);
        let mut watch = Watch::new(&old, &giving_up_after(Some(Duration::ZERO)));
        let mut verdict = |probe, at| {
            watch.handle_probe(probe, old.died + at);
            watch.verdict(old.died + at)
        };
        assert_eq!(verdict(Probe::Alive, 15 * S), None, "three intervals and the margin have not passed");
        assert_eq!(verdict(Probe::Alive, 16 * S), Some(Verdict::Unknown));
        assert_eq!(verdict(Probe::Unclear, 3000 * S), None);
        assert_eq!(verdict(Probe::Gone, 3001 * S), Some(Verdict::ControllerGone));
    }

    #[test]
    fn restarts_the_timeout_at_the_last_proof_of_life() {
        let old = old(5, false, Some(300));
        let probe = |since| if since < 40 * S { Probe::Alive } else { Probe::Unclear };
        let (at, verdict) = simulate(&old, &giving_up_after(None), probe);
        assert_eq!(verdict, Verdict::TimeoutPassed);
        assert!((50 * S..53 * S).contains(&at), "{at:?}");
    }

    #[test]
    fn believes_the_owner_of_a_reassigned_controller_id() {
        let old = old(0, false, None);
        let probe = |since| if since < S { Probe::Unclear } else { Probe::Reassigned };
        assert_eq!(simulate(&old, &Reconnect::default(), probe).1, Verdict::NumberReused);
    }

    #[test]
    fn does_not_probe_where_an_address_leads_to_several_servers() {
        let old = old(5, false, Some(0));
        let reconnect = Reconnect { writes: WriteReplay::AfterTimeout, ..Reconnect::default() };
        let (at, verdict) = simulate(&old, &reconnect, |_| panic!("probed"));
        assert_eq!(verdict, Verdict::TimeoutPassed);
        assert!((11 * S..12 * S).contains(&at), "{at:?}");
    }
}
