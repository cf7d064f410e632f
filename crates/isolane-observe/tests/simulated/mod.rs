//! A simulated target: operations with the stages that a real one would record, and faults whose effects are known.
//!
//! The numbers here describe hardware and faults. None is taken from the rules that are tested with them.

pub mod faults;
pub mod recorder;

use fastrand::Rng;
use isolane_observe::snapshot::Snapshot;
use isolane_observe::stage::{MAX_STAGES, Operation, Side, SizeClass, Stage};

use self::faults::Fault;
use self::recorder::Recorder;

/// The simulated machine.
#[derive(Clone, Debug)]
pub struct World {
    pub volumes: u32,
    pub cores: u32,
    pub hosts: u64,
    /// Operations per second of each volume.
    pub rate: u32,
    /// Recorded seconds; the faults last until the end.
    pub seconds: u64,
    pub faults: Vec<Fault>,
}

/// One operation.
#[derive(Clone, Debug)]
pub struct Io {
    pub volume: u32,
    pub host: u64,
    pub core: u32,
    pub operation: Operation,
    pub size: SizeClass,
    pub lba: u64,
    /// Time of its receive within the second, in nanoseconds.
    pub at_ns: u64,
    pub times: [u64; MAX_STAGES],
    /// Time at a healthy device, in nanoseconds.
    pub device_ns: u64,
    /// Delay by each fault, in nanoseconds.
    pub added_ns: [u64; 2],
}

impl Io {
    pub fn total_ns(&self) -> u64 {
        self.times.iter().sum()
    }

    pub fn add(&mut self, fault: usize, stage: Stage, ns: u64) {
        self.times[Side::Target.position_of(stage).expect("a stage of a target")] += ns;
        self.added_ns[fault] += ns;
    }
}

/// The snapshot, and the operations of the last seconds.
pub struct Outcome {
    pub snapshot: Snapshot,
    pub last: Vec<Io>,
}

/// Seconds whose operations are kept.
pub const KEPT_SECONDS: u64 = 10;

impl World {
    pub fn healthy() -> World {
        World { volumes: 8, cores: 2, hosts: 4, rate: 300, seconds: 40, faults: Vec::new() }
    }

    /// Returns the snapshot at the end.
    pub fn run(&self, seed: u64) -> Outcome {
        let mut rng = Rng::with_seed(seed);
        let mut recorder = Recorder::new(self);
        let mut last = Vec::new();
        for second in 0..self.seconds {
            let active: Vec<faults::Active> =
                self.faults.iter().map(|fault| fault.begin_second(self, second, &mut rng)).collect();
            let mut ios = Vec::new();
            for volume in 0..self.volumes {
                let active = self.faults.iter().filter(|fault| second >= fault.start);
                let rate = active.fold(self.rate, |rate, fault| fault.rate_of(volume, rate));
                let count = (f64::from(rate) * (0.9 + 0.2 * rng.f64())) as u32;
                ios.extend((0..count).map(|_| self.io(volume, &mut rng)));
            }
            for (at, fault) in self.faults.iter().enumerate().filter(|(_, fault)| second >= fault.start) {
                ios.extend(fault.more_ios(self, &mut rng));
                ios.iter_mut().for_each(|io| fault.delay(at, &active[at], io, &mut rng));
            }
            recorder.record_second(second, &ios);
            for (fault, active) in self.faults.iter().zip(&active).filter(|(fault, _)| second >= fault.start)
            {
                recorder.record_fault(fault, active);
            }
            recorder.end_second(second);
            if second + KEPT_SECONDS >= self.seconds {
                last.extend(ios);
            }
        }
        Outcome { snapshot: recorder.finish(), last }
    }

    /// Returns an operation of a healthy machine.
    pub fn io(&self, volume: u32, rng: &mut Rng) -> Io {
        let host = rng.u64(0..self.hosts);
        let operation = if rng.u8(0..10) < 7 { Operation::Read } else { Operation::Write };
        let mut io = Io {
            volume,
            host,
            core: (host % u64::from(self.cores)) as u32,
            operation,
            size: SizeClass::Small,
            lba: rng.u64(0..1 << 20) * 8,
            at_ns: rng.u64(0..1_000_000_000),
            times: [0; MAX_STAGES],
            device_ns: 0,
            added_ns: [0; 2],
        };
        let device_us = if operation == Operation::Read { 300.0 } else { 120.0 };
        io.device_ns = lognormal_ns(device_us, 0.35, rng);
        io.times[Side::Target.position_of(Stage::Device).expect("a stage of a target")] = io.device_ns;
        for (stage, us, spread) in
            [(Stage::Batch, 8.0, 0.6), (Stage::Answer, 4.0, 0.6), (Stage::Socket, 6.0, 0.5)]
        {
            let position = Side::Target.position_of(stage).expect("a stage of a target");
            io.times[position] = lognormal_ns(us, spread, rng);
        }
        io
    }
}

/// Returns a duration with this median.
pub fn lognormal_ns(median_us: f64, spread: f64, rng: &mut Rng) -> u64 {
    (median_us * 1000.0 * (spread * normal(rng)).exp()) as u64
}

pub fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.f64()).cos()
}
