//! Totals that only grow, of things that come and go: hosts, slow operations, and stuck turns.

use std::collections::BTreeMap;

use isolane_observe::histogram::{Histogram, Resolution};
use isolane_observe::snapshot::{Connection, Numbers, SlowOperation, StuckTurn};
use isolane_observe::stage::Stage;

/// Hosts that have their own totals.
const MAX_HOSTS: usize = 256;
/// Name of all other hosts together.
const OTHER: &str = "other";

/// The totals.
#[derive(Debug, Default)]
pub struct Totals {
    /// By NQN.
    pub hosts: BTreeMap<String, HostTotals>,
    /// Slow operations, by the stage that took the most time.
    pub slow: BTreeMap<Stage, u64>,
    /// Time of stuck turns in nanoseconds, by core.
    pub stuck_ns: BTreeMap<u32, u64>,
    slow_until_us: u64,
    /// Duration of each listed turn, by core and time.
    last_stuck: BTreeMap<(u32, u64), u64>,
}

/// Totals of a host.
#[derive(Debug)]
pub struct HostTotals {
    /// Times of its commands.
    pub times: Histogram,
    /// Times until it acknowledged sampled sends.
    pub peer_times: Histogram,
    /// Retransmitted segments.
    pub retransmits: u64,
    /// Time in which its receive window was full, in microseconds.
    pub rwnd_limited_us: u64,
}

impl Totals {
    /// Adds the differences of a step.
    pub fn add_step(&mut self, step: &Numbers) {
        for connection in step.connections.iter().filter(|at| !at.host.is_empty()) {
            let is_known = self.hosts.contains_key(&connection.host) || self.hosts.len() < MAX_HOSTS;
            let name = if is_known { &*connection.host } else { OTHER };
            self.hosts.entry(name.to_owned()).or_default().add(connection);
        }
    }

    /// Adds the slow operations that were not in an earlier list.
    pub fn add_slow(&mut self, slow: &[SlowOperation]) {
        for operation in slow.iter().filter(|slow| slow.at_unix_us > self.slow_until_us) {
            if let Some((stage, _)) = operation.stages.iter().max_by_key(|(_, ns)| *ns) {
                *self.slow.entry(*stage).or_default() += 1;
            }
        }
        let latest = slow.iter().map(|slow| slow.at_unix_us).max();
        self.slow_until_us = self.slow_until_us.max(latest.unwrap_or(0));
    }

    /// Adds the growth of stuck turns since an earlier list.
    pub fn add_stuck<'a>(&mut self, stuck: impl Iterator<Item = &'a StuckTurn>) {
        let mut last = BTreeMap::new();
        for turn in stuck {
            let key = (turn.core, turn.at_unix_us);
            let before = self.last_stuck.get(&key).copied().unwrap_or(0);
            let sum = self.stuck_ns.entry(turn.core).or_default();
            *sum = sum.saturating_add(turn.lasted_ns.saturating_sub(before));
            last.insert(key, turn.lasted_ns);
        }
        self.last_stuck = last;
    }
}

impl Default for HostTotals {
    fn default() -> HostTotals {
        let [times, peer_times] = [(); 2].map(|()| Histogram::new(Resolution::Four));
        HostTotals { times, peer_times, retransmits: 0, rwnd_limited_us: 0 }
    }
}

impl HostTotals {
    fn add(&mut self, connection: &Connection) {
        connection.totals.iter().for_each(|(_, times)| self.times.merge(times));
        connection.peer_times.iter().for_each(|times| self.peer_times.merge(times));
        let tcp = connection.tcp.unwrap_or_default();
        self.retransmits = self.retransmits.saturating_add(tcp.retransmits);
        self.rwnd_limited_us = self.rwnd_limited_us.saturating_add(tcp.rwnd_limited_us);
    }
}

#[cfg(test)]
mod tests {
    use isolane_observe::snapshot::Tcp;
    use isolane_observe::stage::SizeClass;

    use super::*;
    use crate::recorder::tests::slow;

    fn step(hosts: std::ops::Range<usize>) -> Numbers {
        let mut times = Histogram::new(Resolution::Four);
        times.record(1000, 2);
        let tcp = Some(Tcp { retransmits: 3, ..Tcp::default() });
        let connection = |number| Connection {
            host: format!("nqn.{number:04}"),
            totals: vec![(SizeClass::Small, times.clone())],
            tcp,
            ..Connection::default()
        };
        Numbers { connections: hosts.map(connection).collect(), ..Numbers::default() }
    }

    #[test]
    fn adds_up_hosts_and_bounds_their_number() {
        let mut totals = Totals::default();
        totals.add_step(&step(0..MAX_HOSTS));
        totals.add_step(&step(0..MAX_HOSTS + 10));
        assert_eq!(totals.hosts.len(), MAX_HOSTS + 1);
        let host = &totals.hosts["nqn.0000"];
        assert_eq!((host.times.count(), host.retransmits), (4, 6));
        assert_eq!(totals.hosts[OTHER].times.count(), 20);
    }

    #[test]
    fn adds_growth_of_stuck_turns() {
        let mut totals = Totals::default();
        for lasted_ns in [10, 30, 30] {
            totals
                .add_stuck([StuckTurn { core: 1, at_unix_us: 5, lasted_ns, ..StuckTurn::default() }].iter());
        }
        assert_eq!(totals.stuck_ns, BTreeMap::from([(1, 30)]));
    }

    #[test]
    fn counts_slow_operations_once() {
        let mut totals = Totals::default();
        let mut first = slow(10, 1);
        first.stages = vec![(Stage::Device, 5), (Stage::Batch, 1)];
        totals.add_slow(&[first.clone()]);
        totals.add_slow(&[first.clone(), SlowOperation { at_unix_us: 11, ..first }]);
        assert_eq!(totals.slow, BTreeMap::from([(Stage::Device, 2)]));
    }
}
