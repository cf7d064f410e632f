//! Allocations per I/O: a warm target and a warm host allocate nothing.
//!
//! The allocator of this program counts allocations of every thread. Host and target use loopback sockets;
//! allocations of the kernel do not count.

use std::alloc::System;
use std::time::{Duration, Instant};

use isolane_host::{Buffer, Client, Completion, IoChoice, Mode, Options, Request, Wait};
use isolane_target::{Target, TargetConfig};
use isolane_volume::{open, spec};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const NQN: &str = "nqn.2024-01.org.example:allocations";
const VOLUME_BYTES: u64 = 64 << 20;
const DEPTH: usize = 32;

/// A single test, because allocations of a concurrent one would count.
#[test]
fn io_allocates_nothing() {
    let mut found = Vec::new();
    for io in [IoChoice::Epoll, IoChoice::Auto] {
        for digests in [false, true] {
            let mut pair = Pair::new(io, digests);
            for work in [
                Work::Read(4096),
                Work::Write(4096),
                Work::Read(128 << 10),
                Work::Write(128 << 10),
                Work::Flush,
            ] {
                // Queues and lists grow to the length that this work needs.
                pair.run(work, 4 * DEPTH);
                let allocations = pair.min_allocations(work);
                println!("{work:?}, {io:?}, digests {digests}: {allocations} allocations in {OPERATIONS}");
                found.push((work, allocations));
            }
        }
    }
    for (work, allocations) in found {
        let bound = work.max_allocations();
        assert!(allocations <= bound, "{allocations} allocations in {OPERATIONS} of {work:?}, not {bound}");
    }
}

const OPERATIONS: usize = 500;
/// A list can reach a new maximum length late, but rarely.
const ATTEMPTS: usize = 5;

#[derive(Clone, Copy, Debug)]
enum Work {
    Read(usize),
    Write(usize),
    Flush,
}

impl Work {
    fn max_allocations(self) -> usize {
        match self {
            // Long data is split differently each time: a list can reach a new maximum length.
            Work::Read(bytes) | Work::Write(bytes) if bytes > 4096 => OPERATIONS / 50,
            Work::Read(_) | Work::Write(_) | Work::Flush => 0,
        }
    }
}

struct Pair {
    client: Client,
    completions: Vec<Completion>,
    small: Vec<Buffer>,
    large: Vec<Buffer>,
    _target: Target,
}

impl Pair {
    fn new(io: IoChoice, digests: bool) -> Pair {
        let mut config = TargetConfig::new(NQN.parse().unwrap());
        let volume = open(&spec::parse(&format!("mem:{VOLUME_BYTES}")).unwrap()).unwrap();
        config.subsystems[0].volumes = [(1, volume)].into();
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        (config.mode, config.io) = (Mode::Sleep, io);
        let target = Target::start(config).unwrap();
        let uri = format!("nvme+tcp://{}/{NQN}", target.local_addrs()[0]).parse().unwrap();
        let options = Options {
            mode: Mode::Sleep,
            io,
            depth: DEPTH as u16,
            header_digest: digests,
            data_digest: digests,
            ..Options::default()
        };
        let buffers = |bytes| (0..DEPTH).map(|_| Buffer::contiguous(bytes)).collect();
        let mut pair = Pair {
            client: Client::connect(&uri, options).unwrap(),
            completions: Vec::with_capacity(DEPTH),
            small: buffers(4096),
            large: buffers(128 << 10),
            _target: target,
        };
        // First writes allocate the pages of the volume.
        for lba in 0..VOLUME_BYTES / (128 << 10) {
            pair.write_once(lba * 256);
        }
        pair
    }

    fn write_once(&mut self, lba: u64) {
        let buffer = self.large.pop().unwrap();
        self.client.submit(0, Request::Write { lba, buffer, fua: false }, 0);
        self.wait(1);
        self.reclaim();
    }

    /// Lowest number of allocations of several runs.
    fn min_allocations(&mut self, work: Work) -> usize {
        let mut min = usize::MAX;
        for _ in 0..ATTEMPTS {
            let region = Region::new(ALLOCATOR);
            self.run(work, OPERATIONS);
            let change = region.change();
            min = min.min(change.allocations + change.reallocations);
            if min == 0 {
                break;
            }
        }
        min
    }

    /// Runs `count` operations with one in flight for each buffer.
    fn run(&mut self, work: Work, count: usize) {
        let (mut submitted, mut done) = (0, 0);
        while done < count {
            while submitted < count && submitted - done < DEPTH {
                let request = self.request(work, submitted as u64);
                self.client.submit(0, request, 0);
                submitted += 1;
            }
            self.wait(1);
            done += self.completions.len();
            self.reclaim();
        }
    }

    fn request(&mut self, work: Work, number: u64) -> Request {
        let lba = |bytes: usize| number * 7919 % (VOLUME_BYTES / bytes as u64) * (bytes as u64 / 512);
        let buffer = |buffers: &mut Vec<Buffer>| buffers.pop().expect("one for each operation in flight");
        match work {
            Work::Flush => Request::Flush,
            Work::Read(bytes) if bytes == 4096 => {
                Request::Read { lba: lba(bytes), buffer: buffer(&mut self.small) }
            }
            Work::Read(bytes) => Request::Read { lba: lba(bytes), buffer: buffer(&mut self.large) },
            Work::Write(bytes) if bytes == 4096 => {
                Request::Write { lba: lba(bytes), buffer: buffer(&mut self.small), fua: false }
            }
            Work::Write(bytes) => {
                Request::Write { lba: lba(bytes), buffer: buffer(&mut self.large), fua: false }
            }
        }
    }

    fn wait(&mut self, count: usize) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.completions.len() < count {
            self.client.turn(&mut self.completions, Wait::Until(deadline));
            assert!(Instant::now() < deadline, "{} of {count} completions", self.completions.len());
        }
    }

    fn reclaim(&mut self) {
        for completion in self.completions.drain(..) {
            completion.result.unwrap();
            if let Some(buffer) = completion.buffer {
                if buffer.len() == 4096 { self.small.push(buffer) } else { self.large.push(buffer) }
            }
        }
    }
}
