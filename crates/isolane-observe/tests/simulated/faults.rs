//! Faults of a simulated machine.

use fastrand::Rng;
use isolane_observe::stage::{Operation, SizeClass, Stage};
use isolane_observe::verdict::Kind;

use super::{Io, World, lognormal_ns};

/// A fault that begins at some second and lasts until the end.
#[derive(Clone, Debug)]
pub struct Fault {
    pub what: What,
    pub start: u64,
}

/// Faults, each with the volume, core, or host that it affects.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    SlowDevice { volume: u32, factor: f64 },
    StallingDevice { volume: u32, one_in: u32 },
    SlowWrites { volume: u32, factor: f64 },
    HotVolume { volume: u32, factor: u32 },
    DiskUser { volume: u32 },
    Common { factor: f64 },
    Process { core: u32 },
    Steal { core: u32 },
    Quota,
    StuckTurns { core: u32 },
    Memory,
    Qos { volume: u32 },
    Conflict { volume: u32, lba: u64 },
    Flushes,
    FileThreads,
    BulkHost { host: u64 },
    PausedHost { host: u64 },
    LossyHost { host: u64 },
}

impl What {
    /// Returns a fault of the given number, from 0 to 16, on a random volume, core, or host of the world. `part`
    /// chooses among the lower or the upper half of the volumes, so that two faults have different ones.
    pub fn random(number: u32, world: &World, part: u32, rng: &mut Rng) -> What {
        let half = world.volumes / 2;
        let volume = part * half + rng.u32(0..half);
        let (core, host) = (rng.u32(0..world.cores), rng.u64(0..world.hosts));
        let factor = 4.0 + 5.0 * rng.f64();
        match number {
            0 => What::SlowDevice { volume, factor },
            1 => What::StallingDevice { volume, one_in: rng.u32(40..150) },
            2 => What::SlowWrites { volume, factor },
            3 => What::HotVolume { volume, factor: rng.u32(4..10) },
            4 => What::DiskUser { volume },
            5 => What::Common { factor: 2.5 + factor / 4.0 },
            6 => What::Process { core },
            7 => What::Steal { core },
            8 => What::Quota,
            9 => What::StuckTurns { core },
            10 => What::Memory,
            11 => What::Conflict { volume, lba: rng.u64(0..1 << 20) * 8 },
            12 => What::Flushes,
            13 => What::FileThreads,
            14 => What::BulkHost { host },
            15 => What::PausedHost { host },
            _ => What::LossyHost { host },
        }
    }
}

/// State of a fault in one second.
#[derive(Clone, Debug, Default)]
pub struct Active {
    /// Times in which a core is away, in nanoseconds.
    pub pauses: Vec<(u64, u64)>,
    pub cores: u32,
}

impl Fault {
    /// Returns the kind of the finding that names it.
    pub fn kind(&self) -> Kind {
        match self.what {
            What::SlowDevice { .. } | What::StallingDevice { .. } | What::SlowWrites { .. } => Kind::Device,
            What::HotVolume { .. } => Kind::Hot,
            What::DiskUser { .. } => Kind::SharedDevice,
            What::Common { .. } => Kind::Common,
            What::Process { .. } | What::Steal { .. } | What::Quota => Kind::Core,
            What::StuckTurns { .. } => Kind::Turn,
            What::Memory | What::Qos { .. } => Kind::Memory,
            What::Conflict { .. } => Kind::Conflict,
            What::Flushes => Kind::Flush,
            What::FileThreads => Kind::FileThreads,
            What::BulkHost { .. } => Kind::Connection,
            What::PausedHost { .. } => Kind::Host,
            What::LossyHost { .. } => Kind::Network,
        }
    }

    /// Returns a part of the name in that finding.
    pub fn name(&self) -> String {
        match self.what {
            What::SlowDevice { volume, .. }
            | What::StallingDevice { volume, .. }
            | What::SlowWrites { volume, .. }
            | What::HotVolume { volume, .. }
            | What::DiskUser { volume }
            | What::Qos { volume } => format!("disk{volume}"),
            What::Process { core } | What::Steal { core } | What::StuckTurns { core } => {
                format!("core {core}")
            }
            What::Conflict { lba, .. } => format!("LBA {lba}"),
            What::BulkHost { host } | What::PausedHost { host } => format!("host{host}"),
            What::LossyHost { host } => format!("10.0.0.{host}:"),
            _ => String::new(),
        }
    }

    pub fn rate_of(&self, volume: u32, rate: u32) -> u32 {
        match self.what {
            What::HotVolume { volume: hot, factor } if hot == volume => rate * factor,
            _ => rate,
        }
    }

    pub fn begin_second(&self, world: &World, second: u64, rng: &mut Rng) -> Active {
        let is_core = matches!(
            self.what,
            What::Process { .. } | What::Steal { .. } | What::Quota | What::StuckTurns { .. }
        );
        if !is_core || second < self.start {
            return Active { pauses: Vec::new(), cores: world.cores };
        }
        let count = rng.u64(4..9);
        let pause = |at: u64| {
            let start = at * 100_000_000 + rng.u64(0..50_000_000);
            (start, start + rng.u64(12_000_000..40_000_000))
        };
        Active { pauses: (0..count).map(pause).collect(), cores: world.cores }
    }

    /// Returns operations that only exist with this fault.
    pub fn more_ios(&self, world: &World, rng: &mut Rng) -> Vec<Io> {
        let volume = rng.u32(0..world.volumes);
        match self.what {
            What::BulkHost { host } => {
                let bulk = |_| {
                    let mut io = world.io(volume, rng);
                    (io.host, io.core) = (host, (host % u64::from(world.cores)) as u32);
                    (io.operation, io.size) = (Operation::Write, SizeClass::Large);
                    io
                };
                (0..60).map(bulk).collect()
            }
            What::Flushes => (0..40)
                .map(|_| Io { operation: Operation::Flush, ..world.io(rng.u32(0..world.volumes), rng) })
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Delays an operation.
    pub fn delay(&self, fault: usize, active: &Active, io: &mut Io, rng: &mut Rng) {
        let device = io.device_ns;
        match self.what {
            What::SlowDevice { volume, factor } if io.volume == volume => {
                io.add(fault, Stage::Device, (device as f64 * (factor - 1.0)) as u64);
            }
            What::SlowWrites { volume, factor }
                if io.volume == volume && io.operation == Operation::Write =>
            {
                io.add(fault, Stage::Device, (device as f64 * (factor - 1.0)) as u64);
            }
            What::StallingDevice { volume, one_in } if io.volume == volume && rng.u32(0..one_in) == 0 => {
                io.add(fault, Stage::Device, lognormal_ns(20_000.0, 0.2, rng));
            }
            What::HotVolume { volume, .. } if io.volume == volume => {
                io.add(fault, Stage::Device, lognormal_ns(2_000.0, 0.4, rng));
            }
            What::DiskUser { volume } if io.volume == volume && rng.u32(0..4) == 0 => {
                io.add(fault, Stage::Device, lognormal_ns(5_000.0, 0.4, rng));
            }
            What::Common { factor } => io.add(fault, Stage::Device, (device as f64 * (factor - 1.0)) as u64),
            What::Process { core } | What::Steal { core } | What::StuckTurns { core } if io.core == core => {
                pause(fault, active, io);
            }
            What::Quota => pause(fault, active, io),
            What::Memory if rng.u32(0..50) == 0 => {
                io.add(fault, Stage::Memory, lognormal_ns(12_000.0, 0.5, rng));
            }
            What::Qos { volume } if io.volume == volume && rng.u32(0..4) == 0 => {
                io.add(fault, Stage::Limit, lognormal_ns(8_000.0, 0.5, rng));
            }
            What::Conflict { volume, lba }
                if io.volume == volume && io.operation == Operation::Write && rng.u32(0..8) == 0 =>
            {
                io.lba = lba;
                io.add(fault, Stage::Blocks, lognormal_ns(10_000.0, 0.5, rng));
            }
            What::Flushes if io.operation == Operation::Flush => {
                io.add(fault, Stage::Device, lognormal_ns(8_000.0, 1.0, rng));
            }
            What::FileThreads if rng.u32(0..40) == 0 => {
                io.add(fault, Stage::Queue, lognormal_ns(9_000.0, 0.5, rng));
            }
            What::BulkHost { host } => {
                self.wait_for_bulk(fault, (host % u64::from(active.cores)) as u32, io, rng)
            }
            What::PausedHost { host } if io.host == host && rng.u32(0..10) == 0 => {
                io.add(fault, Stage::Socket, rng.u64(1_000_000..50_000_000));
            }
            What::LossyHost { host } if io.host == host && rng.u32(0..30) == 0 => {
                io.add(fault, Stage::Socket, lognormal_ns(40_000.0, 0.5, rng));
            }
            _ => {}
        }
    }

    fn wait_for_bulk(&self, fault: usize, core: u32, io: &mut Io, rng: &mut Rng) {
        if io.size == SizeClass::Large {
            io.times[2] += lognormal_ns(3_000.0, 0.3, rng);
        } else if io.core == core && rng.u32(0..12) == 0 {
            io.add(fault, Stage::Batch, lognormal_ns(6_000.0, 0.5, rng));
        }
    }
}

/// Delays an operation that is in flight when the core goes away. One that arrives later is received at the end.
fn pause(fault: usize, active: &Active, io: &mut Io) {
    let end_ns = io.at_ns + io.total_ns();
    if let Some((start, end)) = active.pauses.iter().find(|(start, end)| (*start..*end).contains(&end_ns))
        && io.at_ns < *start
    {
        io.add(fault, Stage::Device, end - end_ns);
    }
}
