//! Decision whether a lost association is known dead: the rules of [`fence`](crate::fence) as a state
//! machine.
//!
//! It has no clock and no sockets: probe results and times are arguments.
//!
//! Invariant: while probes prove that the old controller is alive, the time rule never holds.

use std::time::{Duration, Instant};

use super::journal::StaleAssociation;
use crate::options::{Reconnect, WriteReplay};

/// Margin added to the target's times: clocks differ, and segments linger in the network.
pub(crate) const MARGIN: Duration = Duration::from_secs(1);

/// Delays between probes.
const MIN_PROBE_DELAY: Duration = Duration::from_millis(10);
const MAX_PROBE_DELAY: Duration = Duration::from_millis(500);

/// A lost association.
#[derive(Clone, Debug)]
pub(crate) struct OldAssociation {
    pub association: StaleAssociation,
    /// When all of its connections had been reset.
    pub died: Instant,
}

impl StaleAssociation {
    /// Returns when it is certainly dead if its controller was alive at `alive` and has received nothing since then:
    /// rule 3 of [`fence`](crate::fence). `None` if never.
    pub fn expiry(&self, alive: Instant) -> Option<Instant> {
        let wait = Some(self.wait(self.command_quiesce_time?)).filter(|_| !self.keep_alive.is_zero());
        alive.checked_add(wait?)
    }

    fn wait(&self, quiesce: Duration) -> Duration {
        let intervals = if self.traffic_based_keep_alive { 3 } else { 2 };
        self.keep_alive.saturating_mul(intervals).saturating_add(quiesce).saturating_add(MARGIN)
    }
}

impl OldAssociation {
    /// Returns the earliest time for [`Verdict::Unknown`]. Most controllers are gone by then, even if no time
    /// is a proof.
    fn unknown_after(&self) -> Option<Instant> {
        let quiesce = self.association.command_quiesce_time.unwrap_or_default();
        self.died.checked_add(self.association.wait(quiesce))
    }
}

/// Decision about a lost association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Rule 1.
    ControllerGone,
    /// Rule 2.
    ControllerIdReused,
    /// Rule 3.
    TimeoutPassed,
    /// Not known within the time limit for reconnecting; another verdict may follow.
    Unknown,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Verdict::ControllerGone => "is gone, as reported by the target",
            Verdict::ControllerIdReused => "is gone: the target has reused its ID",
            Verdict::TimeoutPassed => "is gone: its keep-alive timeout has passed",
            Verdict::Unknown => "may still be alive",
        })
    }
}

/// Result of a probe for the old controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// The controller does not exist.
    Gone,
    /// A controller of another host has its ID.
    Reassigned,
    /// The controller exists.
    Alive,
    /// Proves nothing.
    Unclear,
}

/// Watch over one lost association until it is known dead.
pub(crate) struct Watch<'a> {
    old: &'a OldAssociation,
    probing: bool,
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
            probing: reconnect.writes != WriteReplay::AfterTimeout,
            give_up: reconnect.timeout.and_then(|after| old.died.checked_add(after)),
            alive: None,
            proof: None,
            pause: MIN_PROBE_DELAY,
        }
    }

    /// Returns whether to probe the target.
    pub(crate) fn wants_probe(&self) -> bool {
        self.probing
    }

    /// Handles the result of a probe.
    pub(crate) fn handle_probe(&mut self, probe: Probe, now: Instant) {
        match probe {
            Probe::Gone => self.proof = Some(Verdict::ControllerGone),
            Probe::Reassigned => self.proof = Some(Verdict::ControllerIdReused),
            Probe::Alive => self.alive = Some(now),
            Probe::Unclear => {}
        }
    }

    /// Returns a verdict if there is one. [`Verdict::Unknown`] is returned once, and the watch continues.
    /// After `None`, probe again after [`Watch::pause`].
    pub(crate) fn verdict(&mut self, now: Instant) -> Option<Verdict> {
        let has_passed = |instant: Instant| now >= instant;
        if self.proof.is_some() {
            return self.proof;
        }
        let expiry = self.old.association.expiry(self.alive.unwrap_or(self.old.died));
        if expiry.is_some_and(has_passed) {
            return Some(Verdict::TimeoutPassed);
        }
        // Waits for the time rule even after reconnecting has ended, but not for its postponement.
        let has_given_up =
            self.give_up.is_some_and(has_passed) && self.old.unknown_after().is_some_and(has_passed);
        has_given_up.then(|| {
            self.give_up = None;
            Verdict::Unknown
        })
    }

    /// Returns the delay before the next probe, longer each time.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(MAX_PROBE_DELAY);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn old(keep_alive_s: u64, traffic_based_keep_alive: bool, quiesce_ms: Option<u64>) -> OldAssociation {
        let association = StaleAssociation {
            keep_alive: Duration::from_secs(keep_alive_s),
            traffic_based_keep_alive,
            command_quiesce_time: quiesce_ms.map(Duration::from_millis),
            ..StaleAssociation::example()
        };
        OldAssociation { association, died: Instant::now() }
    }

    /// Returns the simulated time of the verdict, and the verdict. `probe` returns the result of the probe
    /// that ends at a time after the loss.
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
        Reconnect { timeout: time, ..Reconnect::default() }
    }

    #[test]
    fn timeout_adds_intervals_and_quiesce_time() {
        let waits = |old: OldAssociation| old.association.expiry(old.died).map(|expiry| expiry - old.died);
        assert_eq!(waits(old(5, false, Some(300))), Some(Duration::from_millis(10_000 + 300 + 1000)));
        assert_eq!(waits(old(5, true, Some(300))), Some(Duration::from_millis(15_000 + 300 + 1000)));
        assert_eq!(waits(old(0, true, Some(300))), None);
    }

    #[test]
    fn no_timeout_holds_without_a_quiesce_time() {
        assert_eq!(old(5, false, None).association.expiry(Instant::now()), None);
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
    fn continues_watch_after_unknown_verdict() {
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
    fn restarts_timeout_at_last_proof_of_life() {
        let old = old(5, false, Some(300));
        let probe = |since| if since < 40 * S { Probe::Alive } else { Probe::Unclear };
        let (at, verdict) = simulate(&old, &giving_up_after(None), probe);
        assert_eq!(verdict, Verdict::TimeoutPassed);
        assert!((50 * S..53 * S).contains(&at), "{at:?}");
    }

    #[test]
    fn trusts_reassigned_controller_id() {
        let old = old(0, false, None);
        let probe = |since| if since < S { Probe::Unclear } else { Probe::Reassigned };
        assert_eq!(simulate(&old, &Reconnect::default(), probe).1, Verdict::ControllerIdReused);
    }

    #[test]
    fn after_timeout_mode_never_probes() {
        let old = old(5, false, Some(0));
        let reconnect = Reconnect { writes: WriteReplay::AfterTimeout, ..Reconnect::default() };
        let (at, verdict) = simulate(&old, &reconnect, |_| panic!("probed"));
        assert_eq!(verdict, Verdict::TimeoutPassed);
        assert!((11 * S..12 * S).contains(&at), "{at:?}");
    }
}
