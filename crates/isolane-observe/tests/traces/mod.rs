//! Traces of groups of equal drives: quantiles of each member in each second.
//!
//! Load of the group and of each member changes slowly (Ornstein-Uhlenbeck processes). Latency rises with load. Each
//! member collects garbage in separate phases, and now and then all do at once. Rare hiccups hit single seconds.
//! Quantiles of a second scatter like in a sample. None of these numbers is taken from the rule.

use fastrand::Rng;

/// A member in one second. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Second {
    pub operations: f64,
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
}

/// A fault of one member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    None,
    /// All operations take twice the time of a typical drive.
    TwiceMedian,
    /// The slowest 3 % take five times the time.
    FiveTimesTail,
    /// One operation in 200 takes 20 ms.
    Stalls,
}

/// A group of drives.
pub struct Trace {
    rng: Rng,
    /// Logarithm of the load of all members, 0 on average.
    load: f64,
    /// Seconds that a collection in all members lasts.
    collecting: u32,
    members: Vec<Drive>,
}

struct Drive {
    /// Difference between drives of one model.
    speed: f64,
    load: f64,
    collecting: u32,
    intensity: f64,
}

/// Median latency of an idle drive, in nanoseconds, and the spread of its logarithm.
const BASE_NS: f64 = 180_000.0;
const SPREAD: f64 = 0.45;
/// Operations per second at average load.
const RATE: f64 = 2_500.0;
/// Standard normal quantiles.
const Z99: f64 = 2.326;
const Z999: f64 = 3.09;

impl Trace {
    pub fn new(members: usize, seed: u64) -> Trace {
        let mut rng = Rng::with_seed(seed);
        let mut drive = || Drive { speed: 0.06 * normal(&mut rng), load: 0.0, collecting: 0, intensity: 0.0 };
        let members = (0..members).map(|_| drive()).collect();
        Trace { rng, load: 0.0, collecting: 0, members }
    }

    /// Returns the next second of all members. `faulty` is the member with the fault.
    pub fn next(&mut self, fault: Fault, faulty: usize) -> Vec<Second> {
        let rng = &mut self.rng;
        // Minutes of higher and lower load.
        self.load += -self.load / 180.0 + 0.03 * normal(rng);
        self.collecting = next_phase(self.collecting, 1800.0, 20.0, rng);
        let (load, all) = (self.load, self.collecting > 0);
        let next = |(at, drive): (usize, &mut Drive)| {
            drive.step(rng);
            drive.second(load, all, if at == faulty { fault } else { Fault::None }, rng)
        };
        self.members.iter_mut().enumerate().map(next).collect()
    }
}

/// Returns the remaining seconds of a phase. Gaps and phases have exponential lengths with these means.
fn next_phase(remaining: u32, gap: f64, length: f64, rng: &mut Rng) -> u32 {
    match remaining {
        0 if rng.f64() < 1.0 / gap => 1 + (-length * (1.0 - rng.f64()).ln()) as u32,
        remaining => remaining.saturating_sub(1),
    }
}

impl Drive {
    fn step(&mut self, rng: &mut Rng) {
        self.load += -self.load / 60.0 + 0.012 * normal(rng);
        let before = self.collecting;
        self.collecting = next_phase(before, 45.0, 4.0, rng);
        if before == 0 && self.collecting > 0 {
            self.intensity = rng.f64();
        }
    }

    fn second(&self, load: f64, all: bool, fault: Fault, rng: &mut Rng) -> Second {
        let load = (load + self.load).exp();
        let operations = (RATE * load * (1.0 + 0.05 * normal(rng))).max(20.0);
        // An idle drive is faster; one near its limit queues.
        let queueing = 1.0 + 0.25 * (load - 1.0).clamp(-0.8, 4.0);
        let collecting = if self.collecting > 0 { self.intensity } else { 0.0 } + if all { 0.5 } else { 0.0 };
        let speed = if fault == Fault::TwiceMedian { 2.0 } else { self.speed.exp() };
        let median = BASE_NS * speed * queueing * (1.0 + 0.15 * collecting);
        let tail = (1.0 + collecting) * (0.12 * collecting * normal(rng)).exp();
        let mut second = Second {
            operations,
            mean: median * (SPREAD * SPREAD / 2.0).exp() * (1.0 + 0.05 * (tail - 1.0)),
            p50: median * sampled(1.25 * SPREAD, operations, rng),
            p99: median * (SPREAD * Z99).exp() * tail * sampled(3.7 * SPREAD, operations, rng),
            p999: median * (SPREAD * Z999).exp() * tail * sampled(9.4 * SPREAD, operations, rng),
        };
        if rng.f64() < 1.0 / 120.0 {
            second.p999 += 8e6 * rng.f64();
        }
        add_fault(&mut second, fault, rng);
        second
    }
}

fn add_fault(second: &mut Second, fault: Fault, rng: &mut Rng) {
    match fault {
        Fault::None | Fault::TwiceMedian => {}
        Fault::FiveTimesTail => {
            second.mean *= 1.12;
            second.p99 *= 5.0;
            second.p999 *= 5.0;
        }
        Fault::Stalls => {
            second.mean += 20e6 / 200.0;
            second.p999 = second.p999.max(20e6 * (1.0 + 0.05 * normal(rng)));
        }
    }
}

/// Returns the scatter of a quantile of a sample.
fn sampled(deviation: f64, operations: f64, rng: &mut Rng) -> f64 {
    (deviation / operations.sqrt() * normal(rng)).exp()
}

fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.f64()).cos()
}
