//! Simulated loads: lanes with a given demand, cores that share their time among them, and the scheduler's
//! moves carried out.

use slotmap::{Key, KeyData};

use super::*;

/// Demands of lanes, as shares of a core, and the core that each is on.
struct Harness {
    cores: usize,
    lanes: Vec<(f64, usize)>,
    scheduler: Scheduler,
    moves: usize,
}

fn id(lane: usize) -> LaneId {
    LaneId { core: 0, lane: KeyData::from_ffi(lane as u64).into() }
}

impl Harness {
    fn new(cores: usize, lanes: &[(f64, usize)]) -> Harness {
        Harness { cores, lanes: lanes.to_vec(), scheduler: Scheduler::default(), moves: 0 }
    }

    fn demand(&self, core: usize) -> f64 {
        self.lanes.iter().filter(|lane| lane.1 == core).map(|lane| lane.0).sum()
    }

    fn load(&self, core: usize) -> CoreLoad {
        let of_core = self.lanes.iter().enumerate().filter(|(_, lane)| lane.1 == core);
        let scale = self.demand(core).max(1.0);
        let lanes =
            of_core.map(|(at, lane)| LaneLoad { id: id(at), moved_bytes: (lane.0 / scale * 1e9) as u64 });
        CoreLoad { busy: self.demand(core).min(1.0), lanes: lanes.collect() }
    }

    fn round(&mut self) {
        let loads: Vec<_> = (0..self.cores).map(|core| self.load(core)).collect();
        for it in self.scheduler.plan(&loads) {
            let lane = it.lane.lane.data().as_ffi() as u32 as usize;
            assert_eq!(self.lanes[lane].1, it.from);
            assert_ne!(it.from, it.to);
            self.lanes[lane].1 = it.to;
            self.moves += 1;
        }
    }

    fn rounds(&mut self, count: usize) -> &mut Harness {
        (0..count).for_each(|_| self.round());
        self
    }

    fn lanes_on(&self, core: usize) -> usize {
        self.lanes.iter().filter(|lane| lane.1 == core).count()
    }
}

#[test]
fn lanes_without_traffic_gather_on_the_first_core() {
    let mut harness = Harness::new(4, &[(0.0, 0), (0.0, 1), (0.0, 2), (0.0, 3), (0.4, 3)]);
    harness.rounds(9);
    assert_eq!(harness.lanes_on(3), 2, "only after several rounds");
    harness.rounds(20);
    assert_eq!((harness.lanes_on(0), harness.lanes_on(3)), (4, 1), "the busy one stays");
}

#[test]
fn light_cores_consolidate_on_first() {
    let mut harness = Harness::new(3, &[(0.05, 0), (0.04, 1), (0.05, 1), (0.09, 2)]);
    harness.rounds(20);
    assert_eq!(harness.lanes_on(0), 4);
}

#[test]
fn fills_first_core_to_half() {
    let lanes: Vec<_> = (0..12).map(|lane| (0.09, lane % 12)).collect();
    let mut harness = Harness::new(12, &lanes);
    harness.rounds(100);
    assert!(harness.demand(0) <= PACKED + LIGHT, "{}", harness.demand(0));
}

#[test]
fn offloads_until_balanced() {
    let mut harness = Harness::new(4, &[(0.5, 0); 6]);
    harness.rounds(60);
    let max = (0..4).map(|core| harness.demand(core)).fold(0.0, f64::max);
    assert!(max <= 1.0, "{:?}", harness.lanes);
}

#[test]
fn keeps_lane_that_fills_a_core() {
    let mut harness = Harness::new(2, &[(1.5, 1)]);
    harness.rounds(50);
    assert_eq!(harness.moves, 0);
}

#[test]
fn keeps_even_load() {
    let mut harness = Harness::new(4, &[(0.6, 0), (0.6, 1), (0.6, 2), (0.6, 3)]);
    harness.rounds(100);
    assert_eq!(harness.moves, 0);
}

/// No lane goes to and fro: whatever the load, the moves end.
#[test]
fn every_steady_load_comes_to_rest() {
    let mut random = fastrand::Rng::with_seed(0x5eed);
    for _ in 0..100 {
        let cores = random.usize(1..6);
        let lane = |random: &mut fastrand::Rng| {
            let demand = if random.bool() { random.f64() } else { random.f64() * 0.1 };
            (demand * f64::from(u8::from(random.u8(..) > 40)), random.usize(..cores))
        };
        let lanes: Vec<_> = (0..random.usize(1..20)).map(|_| lane(&mut random)).collect();
        let mut harness = Harness::new(cores, &lanes);
        harness.rounds(400);
        let before = harness.moves;
        harness.rounds(100);
        assert_eq!(harness.moves, before, "{lanes:?} on {cores} cores");
    }
}

#[test]
fn offloads_lane_that_becomes_busy() {
    let mut harness = Harness::new(2, &[(0.6, 0), (0.0, 1)]);
    harness.rounds(30);
    assert_eq!(harness.lanes_on(0), 2);
    harness.lanes[1].0 = 0.6;
    harness.rounds(30);
    assert_eq!((harness.lanes_on(0), harness.lanes_on(1)), (1, 1));
}
