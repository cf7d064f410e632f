//! Placement of new connections on reactors (S6), without I/O.
//!
//! Invariant: no rule chooses a reactor with more than twice as many connections as the least loaded one plus
//! a constant.

use isolane_reactor::topology::Topology;

/// Rule for the placement of connections on reactors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Core that processes the packets of the connection, or a near one; round robin if unknown or crowded.
    #[default]
    IncomingCpu,
    /// Round robin.
    RoundRobin,
    /// Reactor with the fewest connections.
    LeastLoaded,
}

/// Places connections.
#[derive(Debug)]
pub(crate) struct Placer {
    placement: Placement,
    reactors: usize,
    /// Nearest reactors of each core, by core ID.
    nearest: Vec<Vec<usize>>,
    /// Number of connections placed round robin.
    turn: usize,
}

impl Placer {
    /// Reactors are pinned to `cores`; if it is empty, there is one unpinned reactor.
    pub(crate) fn new(placement: Placement, cores: &[usize], topology: &Topology) -> Placer {
        let last = cores.iter().max().map_or(0, |last| last + 1);
        let nearest = (0..topology.len().max(last)).map(|core| nearest(core, cores, topology)).collect();
        Placer { placement, reactors: cores.len().max(1), nearest, turn: 0 }
    }

    /// Returns the reactor for a connection whose packets arrive on core `incoming`; `load` returns the
    /// number of connections of a reactor.
    pub(crate) fn place(&mut self, incoming: Option<usize>, load: impl Fn(usize) -> u64) -> usize {
        let least = (0..self.reactors).map(&load).min().unwrap_or(0);
        let is_crowded = |reactor: usize| load(reactor) >= 2 * least + IMBALANCE;
        if self.placement == Placement::LeastLoaded {
            return (0..self.reactors).min_by_key(|reactor| load(*reactor)).unwrap_or(0);
        }
        if self.placement == Placement::IncomingCpu
            && let Some(nearest) = incoming.and_then(|core| self.nearest.get(core))
            && let Some(reactor) = nearest.iter().copied().min_by_key(|reactor| load(*reactor))
            && !is_crowded(reactor)
        {
            return reactor;
        }
        self.next_round_robin(is_crowded)
    }

    fn next_round_robin(&mut self, is_crowded: impl Fn(usize) -> bool) -> usize {
        let turns = self.turn..self.turn + 2 * self.reactors;
        let turn =
            turns.into_iter().find(|turn| !is_crowded(self.reactor_for_turn(*turn))).unwrap_or(self.turn);
        self.turn = turn + 1;
        self.reactor_for_turn(turn)
    }

    /// Each round starts one reactor later: hosts connect an admin queue and a fixed number of I/O queues,
    /// and the I/O queues of many hosts must not share one reactor.
    fn reactor_for_turn(&self, turn: usize) -> usize {
        (turn % self.reactors + turn / self.reactors) % self.reactors
    }
}

/// Returns the reactor on this core, or else all reactors on the nearest cores with one.
fn nearest(core: usize, cores: &[usize], topology: &Topology) -> Vec<usize> {
    let among = |group: &[usize]| -> Vec<usize> {
        (0..cores.len()).filter(|reactor| group.contains(&cores[*reactor])).collect()
    };
    let itself = among(&[core]);
    if !itself.is_empty() {
        return itself;
    }
    topology.neighbors(core).map(among).find(|reactors| !reactors.is_empty()).unwrap_or_default()
}

/// A reactor is crowded with this many connections more than twice the minimum.
const IMBALANCE: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Eight cores in two packages; each package has two pairs of threads.
    fn machine() -> Topology {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("possible"), "0-7\n").unwrap();
        for core in 0..8 {
            let directory = root.path().join(format!("cpu{core}/topology"));
            fs::create_dir_all(&directory).unwrap();
            let (pair, package) = (core / 2 * 2, core / 4 * 4);
            fs::write(directory.join("core_cpus_list"), format!("{pair}-{}\n", pair + 1)).unwrap();
            fs::write(directory.join("package_cpus_list"), format!("{package}-{}\n", package + 3)).unwrap();
        }
        Topology::read_from(root.path())
    }

    fn placer(placement: Placement, cores: &[usize]) -> Placer {
        Placer::new(placement, cores, &machine())
    }

    /// Places connections that arrive on these cores, and returns the reactors they went to.
    fn placed(placer: &mut Placer, reactors: usize, incoming: &[Option<usize>]) -> Vec<usize> {
        let mut loads = vec![0; reactors];
        let place = |core: &Option<usize>| {
            let reactor = placer.place(*core, |reactor| loads[reactor]);
            loads[reactor] += 1;
            reactor
        };
        incoming.iter().map(place).collect()
    }

    #[test]
    fn places_connection_on_incoming_core() {
        let mut placer = placer(Placement::IncomingCpu, &[2, 3, 6]);
        assert_eq!(placed(&mut placer, 3, &[Some(6), Some(3), Some(2), Some(3)]), [2, 1, 0, 1]);
    }

    #[test]
    fn places_on_least_loaded_nearest_reactor() {
        let mut placer = placer(Placement::IncomingCpu, &[0, 1, 5]);
        // Core 4 shares its units with core 5; cores 2 and 3 are in the package of cores 0 and 1.
        assert_eq!(placed(&mut placer, 3, &[Some(4), Some(2), Some(3), Some(7)]), [2, 0, 1, 2]);
    }

    #[test]
    fn places_unknown_core_round_robin() {
        let mut placer = placer(Placement::IncomingCpu, &[0, 1]);
        assert_eq!(placed(&mut placer, 2, &[None, None, Some(99), None]), [0, 1, 1, 0]);
    }

    #[test]
    fn ignores_reactors_of_other_packages() {
        let mut placer = placer(Placement::IncomingCpu, &[0, 1]);
        assert_eq!(placed(&mut placer, 2, &[Some(7), Some(7)]), [0, 1]);
    }

    #[test]
    fn single_interrupt_does_not_crowd_one_core() {
        let mut placer = placer(Placement::IncomingCpu, &[0, 1, 2, 3]);
        let reactors = placed(&mut placer, 4, &[Some(0); 64]);
        let counts: Vec<_> =
            (0..4).map(|it| reactors.iter().filter(|reactor| **reactor == it).count()).collect();
        assert!(counts[1..].iter().all(|count| *count >= 10), "{counts:?}");
        assert!(counts[0] <= 2 * 12 + IMBALANCE as usize, "{counts:?}");
    }

    #[test]
    fn round_robin_skips_crowded_core() {
        let mut placer = placer(Placement::RoundRobin, &[0, 1, 2]);
        assert_eq!(placed(&mut placer, 3, &[Some(2); 4]), [0, 1, 2, 1]);
        assert_eq!(placer.place(None, |reactor| [0, 9, 0][reactor]), 2);
    }

    #[test]
    fn spreads_single_io_queues_of_hosts() {
        for reactors in 2..9 {
            let cores: Vec<_> = (0..reactors).collect();
            let mut placer = placer(Placement::RoundRobin, &cores);
            let placed = placed(&mut placer, reactors, &vec![None; 2 * reactors * reactors]);
            let io_queues = placed.iter().skip(1).step_by(2);
            let counts: Vec<_> =
                cores.iter().map(|core| io_queues.clone().filter(|it| *it == core).count()).collect();
            assert!(counts.iter().all(|count| *count == reactors), "{counts:?}");
        }
    }

    #[test]
    fn least_loaded_ignores_incoming_core() {
        let mut placer = placer(Placement::LeastLoaded, &[0, 1, 2]);
        assert_eq!(placer.place(Some(0), |reactor| [3, 2, 1][reactor]), 2);
    }

    #[test]
    fn one_reactor_that_is_not_pinned_takes_everything() {
        let mut placer = placer(Placement::IncomingCpu, &[]);
        assert_eq!(placed(&mut placer, 1, &[Some(3), None, Some(0)]), [0, 0, 0]);
    }
}
