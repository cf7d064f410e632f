//! No allocation for an I/O: a target and a host that have warmed up take no memory from the allocator.
//!
//! The allocator of this program counts, on every thread. The target's reactor and the host are those that
//! programs use, over real sockets of the loopback interface; what the kernel allocates is not seen.

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

/// One test, because another one beside it would be counted, too.
#[test]
fn an_io_allocates_nothing_on_either_side() {
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
                // Queues and lists grow to the greatest length that this work needs.
                pair.run(work, 4 * DEPTH);
                let allocations = pair.least_allocations(work);
                println!("{work:?}, {io:?}, digests {digests}: {allocations} allocations in {OPERATIONS}");
                found.push((work, allocations));
            }
        }
    }
    for (work, allocations) in found {
        let bound = work.allocations_max();
        assert!(allocations <= bound, "{allocations} allocations in {OPERATIONS} of {work:?}, not {bound}");
    }
}

const OPERATIONS: usize = 500;
/// A length that was never reached before may come up late; it does not come up every time.
const ATTEMPTS: usize = 5;

#[derive(Clone, Copy, Debug)]
enum Work {
    Read(usize),
    Write(usize),
    Flush,
}

impl Work {
    fn allocations_max(self) -> usize {
        match self {
            // How sends and receives cut long data is never the same twice: a list may get longer than ever
            // before.
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
        config.volumes = [(1, volume)].into();
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
        // Pages of the volume are made when they are written first.
        for lba in 0..VOLUME_BYTES / (128 << 10) {
            pair.write_once(lba * 256);
        }
        pair
    }

    fn write_once(&mut self, lba: u64) {
        let buffer = self.large.pop().unwrap();
        self.client.submit(0, Request::Write { lba, buffer, fua: false }, 0);
        self.wait(1);
        self.take_back();
    }

    /// Allocations of the best of several runs.
    fn least_allocations(&mut self, work: Work) -> usize {
        let mut least = usize::MAX;
        for _ in 0..ATTEMPTS {
            let region = Region::new(ALLOCATOR);
            self.run(work, OPERATIONS);
            let change = region.change();
            least = least.min(change.allocations + change.reallocations);
            if least == 0 {
                break;
            }
        }
        least
    }

    /// Keeps as many operations under way as there are buffers, until `count` are done.
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
            self.take_back();
        }
    }

    fn request(&mut self, work: Work, number: u64) -> Request {
        let lba = |bytes: usize| number * 7919 % (VOLUME_BYTES / bytes as u64) * (bytes as u64 / 512);
        let buffer = |buffers: &mut Vec<Buffer>| buffers.pop().expect("one for each operation under way");
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

    fn take_back(&mut self) {
        for completion in self.completions.drain(..) {
            completion.result.unwrap();
            if let Some(buffer) = completion.buffer {
                if buffer.len() == 4096 { self.small.push(buffer) } else { self.large.push(buffer) }
            }
        }
    }
}
