//! Simulation of a mirror: two cores send random requests while disks fail, members are missing, and the power is cut.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fastrand::Rng;
use isolane_memory::{Buffer, Payload, Pool};
use isolane_sim::{Disk, Faults, History};
use isolane_volume::file::{Features, FileStateMachine};
use isolane_volume::nested::{Executor, Member, Operation};
use isolane_volume::{BlockRange, Step};
use parking_lot::Mutex;

use super::record::{LABEL_BYTES, MemberState};
use super::*;

const BLOCKS: u64 = 96;
const BITMAP: usize = 2;

/// Two cores, and the disks of both members and of the bitmap.
struct World {
    rng: Rng,
    disks: Vec<Option<Disk>>,
    cores: Vec<(Executor, Pool)>,
    /// Operations of the disks, with their core.
    running: HashMap<u64, (usize, Member)>,
    time: u64,
    start: Instant,
    /// Steps until the power is cut.
    power: usize,
}

type Slot<T> = Arc<Mutex<Option<T>>>;

impl World {
    fn new(
        seed: u64,
        contents: &[Vec<u8>],
        block_size: u32,
        missing: Option<usize>,
        faults: [Faults; 3],
    ) -> World {
        let disk = |index: usize| {
            let seed = seed.wrapping_mul(31).wrapping_add(index as u64);
            let sector = if index == BITMAP { 512 } else { block_size as usize };
            let disk = || Disk::with_contents(seed, contents[index].clone(), sector, faults[index]);
            (missing != Some(index)).then(disk)
        };
        World {
            rng: Rng::with_seed(seed),
            disks: (0..3).map(disk).collect(),
            cores: (0..2).map(|_| (Executor::default(), Pool::new(1 << 12))).collect(),
            running: HashMap::new(),
            time: 1,
            start: Instant::now(),
            power: usize::MAX,
        }
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_micros(10 * self.time)
    }

    /// Executes one step. Returns `false` without work, or without power.
    fn step(&mut self) -> bool {
        self.time += 1;
        self.power = self.power.saturating_sub(1);
        let now = self.now();
        while self.submit_next() {}
        let disk = self.rng.usize(..3);
        if let Some(done) = self.disks[disk].as_mut().and_then(Disk::step) {
            let (index, member) = self.running.remove(&done.token).unwrap();
            let (executor, pool) = &mut self.cores[index];
            executor.resume(member, done.result, done.operation, now, pool);
        }
        let is_waiting = self.cores.iter().any(|(executor, _)| executor.is_waiting());
        self.power > 0 && (is_waiting || !self.running.is_empty() || self.submit_next())
    }

    /// Submits an operation. Returns `false` without one.
    fn submit_next(&mut self) -> bool {
        let now = self.now();
        for (index, (executor, pool)) in self.cores.iter_mut().enumerate() {
            if let Some(Operation::File(operation, member)) = executor.poll(now, pool) {
                let disk =
                    ["a", "b", "bitmap"].iter().position(|name| *name == member.volume().name()).unwrap();
                self.time += 1;
                self.disks[disk].as_mut().expect("a member that is missing").submit(self.time, operation);
                self.running.insert(self.time, (index, member));
                return true;
            }
        }
        false
    }

    /// Runs requests to their end. Returns `None` if the power is cut before.
    fn run<T, F>(&mut self, run: impl FnOnce(NestedIo) -> F) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let slot = self.spawn(0, run);
        while self.step() {}
        slot.lock().take().filter(|_| self.power > 0)
    }

    /// Starts requests on a core.
    fn spawn<T, F>(&mut self, core: usize, run: impl FnOnce(NestedIo) -> F) -> Slot<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let slot = Slot::default();
        let result = Arc::clone(&slot);
        let step = Step::nested(Request::Flush, |io, _| {
            let future = run(io);
            async move {
                let outcome = future.await;
                *result.lock() = Some(outcome);
                Ok(Payload::default())
            }
        });
        let Step::Pending(mut pending) = step else { unreachable!() };
        self.cores[core].0.start(pending.take_nested().unwrap());
        slot
    }

    fn cut_power(self, contents: &mut [Vec<u8>]) {
        for (contents, disk) in contents.iter_mut().zip(self.disks) {
            if let Some(disk) = disk {
                *contents = disk.cut_power();
            }
        }
    }
}

fn volume(name: &str, block_size: u32, bytes: usize) -> Arc<dyn Volume> {
    let info = VolumeInfo {
        block_size,
        blocks: bytes as u64 / u64::from(block_size),
        read_only: false,
        volatile_cache: true,
        deallocate: true,
        zeroes_after_deallocate: true,
    };
    let identity = Identity::derived(name.as_bytes());
    let description = VolumeDescription { name: name.to_owned(), info, identity, generation: None };
    // Direct I/O, so that a member is readable after a failed sync.
    Arc::new(FileStateMachine::new(description, Features::file(), true))
}

/// One simulated mirror through several power cuts.
struct Scenario {
    seed: u64,
    rng: Rng,
    block_size: u32,
    contents: Vec<Vec<u8>>,
    history: History,
    faults: [Faults; 3],
    is_created: bool,
    acknowledged: usize,
    started: usize,
    degraded: usize,
    refused: usize,
}

struct Submitted {
    id: u64,
    time: u64,
    op: Op,
    slot: Slot<Outcome>,
}

enum Op {
    Read(BlockRange),
    Change(Vec<BlockRange>, bool),
    Flush,
}

impl Scenario {
    fn new(seed: u64, faults: [Faults; 3]) -> Scenario {
        let mut rng = Rng::with_seed(seed);
        let block_size = if rng.bool() { 512 } else { 4096 };
        let bytes = BLOCKS as usize * block_size as usize;
        let mut member = |value: u64| -> Vec<u8> {
            let blocks = (0..BLOCKS)
                .flat_map(|_| (value * rng.u64(..2)).to_le_bytes().repeat(block_size as usize / 8));
            blocks.chain(std::iter::repeat_n(0, LABEL_BYTES as usize)).collect()
        };
        let contents = vec![member(1 << 40), member(1 << 41), vec![0; 1024]];
        let history = History::new(values(&contents[0][..bytes], block_size));
        Scenario {
            seed,
            rng,
            block_size,
            contents,
            history,
            faults,
            is_created: false,
            acknowledged: 0,
            started: 0,
            degraded: 0,
            refused: 0,
        }
    }

    fn start(&mut self, world: &mut World, missing: Option<usize>) -> Option<Arc<Mirror>> {
        let bytes: Vec<usize> = self.contents.iter().map(Vec::len).collect();
        let member = |index: usize, name: &str| match missing {
            Some(missing) if missing == index => Err(OpenError::new(name, "missing", "find it")),
            _ => Ok(volume(name, self.block_size, bytes[index])),
        };
        let members = [member(0, "a"), member(1, "b")];
        let region_bytes = u64::from(self.block_size) * 8;
        let (create, degraded) = (!self.is_created, missing.is_some());
        let options = StartOptions { create, degraded, keep: None, member_timeout: None };
        let bitmap = volume("bitmap", 512, bytes[BITMAP]);
        let new = Record::new(volume("new", self.block_size, bytes[0]).info(), region_bytes);
        let started = world.run(|io| start(io, "mirror".to_owned(), members, new, |_| Ok(bitmap), options));
        match started.unwrap_or_else(|| Err(OpenError::new("mirror", "no power", "restore it"))) {
            Ok(mirror) => {
                self.is_created = true;
                self.started += 1;
                self.degraded += usize::from(missing.is_some());
                Some(mirror)
            }
            Err(error) => {
                let has_faults = self.faults.iter().any(|faults| faults.write + faults.sync > 0);
                let is_expected = world.power == 0 || missing.is_some() || has_faults || !self.is_created;
                assert!(is_expected, "seed {}: {error}", self.seed);
                self.refused += usize::from(world.power > 0);
                None
            }
        }
    }

    /// Reads all blocks several times; all reads return the same, allowed values.
    fn read_all(&mut self, world: &mut World, mirror: &Arc<Mirror>) -> Option<Vec<u64>> {
        let mut all: Option<Vec<u64>> = None;
        for _ in 0..4 {
            let mut read = Vec::new();
            for lba in (0..BLOCKS).step_by(8) {
                let mirror = Arc::clone(mirror);
                let request = Request::Read { lba, blocks: 8 };
                let Some(Ok(payload)) = world.run(|io| mirror.run(io, request)) else {
                    assert_eq!(world.power, 0, "seed {}: a read failed", self.seed);
                    return None;
                };
                read.extend(values(&payload.to_vec(), self.block_size));
            }
            for (block, value) in read.iter().enumerate() {
                let is_allowed = self.history.allows_survivor(block as u64, *value);
                assert!(is_allowed, "seed {}: block {block} is {value} after the power cut", self.seed);
            }
            let first = all.get_or_insert_with(|| read.clone());
            assert_eq!(*first, read, "seed {}: two reads differ", self.seed);
        }
        all
    }

    fn round(&mut self, round: u64) {
        let missing = (self.is_created && self.rng.u8(..4) == 0).then(|| self.rng.usize(..2));
        let seed = self.seed.wrapping_mul(1000).wrapping_add(round);
        let mut world = World::new(seed, &self.contents, self.block_size, missing, self.faults);
        if self.rng.u8(..3) == 0 {
            world.power = self.rng.usize(1..600);
        }
        if let Some(mirror) = self.start(&mut world, missing)
            && let Some(values) = self.read_all(&mut world, &mirror)
        {
            self.history = History::new(values);
            world.power = self.rng.usize(50..4000);
            let is_idle = self.work(&mut world, &mirror);
            if is_idle && self.rng.bool() {
                self.close(&mut world, &mirror);
            }
        }
        world.cut_power(&mut self.contents);
    }

    /// Sends random requests. Returns `true` if all have ended.
    fn work(&mut self, world: &mut World, mirror: &Arc<Mirror>) -> bool {
        let mut submitted: Vec<Submitted> = Vec::new();
        let mut maintenance: Option<Slot<Outcome>> = None;
        let last = world.power / 4;
        while world.power > 0 {
            if world.power > last && submitted.len() < 12 && self.rng.u8(..3) == 0 {
                let request = self.generate(world, mirror);
                submitted.push(request);
            }
            if maintenance.as_ref().is_none_or(|slot| slot.lock().is_some()) && self.rng.u8(..60) == 0 {
                let mirror = Arc::clone(mirror);
                maintenance = Some(world.spawn(1, |io| mirror.maintain(io)));
            }
            let has_work = world.step();
            let time = world.time;
            let done: Vec<Submitted> =
                submitted.extract_if(.., |request| request.slot.lock().is_some()).collect();
            done.into_iter().for_each(|request| self.verify(request, time));
            if !has_work && submitted.is_empty() && world.power <= last {
                return world.power > 0;
            }
        }
        false
    }

    fn generate(&mut self, world: &mut World, mirror: &Arc<Mirror>) -> Submitted {
        world.time += 1;
        let (id, time) = (world.time + self.started as u64 * 1_000_000, world.time);
        let any_range = |rng: &mut Rng| {
            let lba = rng.u64(..BLOCKS);
            BlockRange { lba, blocks: rng.u64(1..=(BLOCKS - lba).min(20)) }
        };
        let range = any_range(&mut self.rng);
        let BlockRange { lba, blocks } = range;
        let fua = self.rng.u8(..4) == 0;
        let (op, request, value) = match self.rng.u8(..16) {
            0..5 => (Op::Read(range), Request::Read { lba, blocks }, 0),
            5..12 => {
                let bytes = id.to_le_bytes().repeat((blocks * u64::from(self.block_size) / 8) as usize);
                let data = self.buffer(&bytes);
                (Op::Change(vec![range], fua), Request::Write { lba, blocks, data, fua }, id)
            }
            12 => {
                let deallocate = self.rng.bool();
                (Op::Change(vec![range], fua), Request::WriteZeroes { lba, blocks, fua, deallocate }, 0)
            }
            13 => {
                let ranges = vec![range, any_range(&mut self.rng)];
                (Op::Change(ranges.clone(), fua), Request::Deallocate { ranges: ranges.into(), fua }, 0)
            }
            _ => (Op::Flush, Request::Flush, 0),
        };
        if let Op::Change(ranges, _) = &op {
            each_block(ranges).for_each(|block| self.history.submit(block, id, value, time));
        }
        let mirror = Arc::clone(mirror);
        let core = self.rng.usize(..2);
        let slot = world.spawn(core, |io| mirror.run(io, request));
        Submitted { id, time, op, slot }
    }

    /// Returns data in pages or in one block.
    fn buffer(&mut self, bytes: &[u8]) -> Buffer {
        let mut pool = Pool::new(64);
        let pages = pool.buffer(bytes.len()).filter(|_| self.rng.bool());
        let mut data = pages.unwrap_or_else(|| Buffer::contiguous(bytes.len()));
        data.copy_in(0, bytes);
        data
    }

    fn verify(&mut self, request: Submitted, now: u64) {
        let outcome = request.slot.lock().take().unwrap();
        let has_faults = self.faults.iter().any(|faults| faults.write + faults.enospc + faults.sync > 0);
        let data = match outcome {
            Ok(data) => data,
            Err(error) => return assert!(has_faults, "seed {}: {error}", self.seed),
        };
        self.acknowledged += 1;
        match request.op {
            Op::Flush => self.history.flush(request.time),
            Op::Change(ranges, durable) => {
                each_block(&ranges)
                    .for_each(|block| self.history.acknowledge(block, request.id, now, durable));
            }
            Op::Read(range) => {
                for (block, value) in (range.lba..).zip(values(&data.to_vec(), self.block_size)) {
                    let is_allowed = self.history.allows_read(block, value, request.time);
                    assert!(is_allowed, "seed {}: block {block} reads as {value}", self.seed);
                }
            }
        }
    }

    /// Shuts down: no region is dirty then, unless a member is missing or has failed.
    fn close(&mut self, world: &mut World, mirror: &Arc<Mirror>) {
        world.power = usize::MAX;
        let mut is_ok = true;
        for _ in 0..2 {
            let mirror = Arc::clone(mirror);
            is_ok &= world.run(|io| mirror.maintain(io)).is_some_and(|outcome| outcome.is_ok());
        }
        let state = mirror.state.lock();
        if is_ok && state.error.is_none() && !state.record.states.contains(&MemberState::Out) {
            let is_clean =
                state.dirty.iter().next().is_none() && state.record.states == [MemberState::Complete; 2];
            assert!(is_clean, "seed {}: {:?}", self.seed, state.record);
        }
    }
}

fn each_block(ranges: &[BlockRange]) -> impl Iterator<Item = u64> {
    let mut blocks: Vec<u64> = ranges.iter().flat_map(|range| range.lba..range.lba + range.blocks).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks.into_iter()
}

fn values(bytes: &[u8], block_size: u32) -> Vec<u64> {
    let value = |block: &[u8]| {
        let (words, _) = block.as_chunks::<8>();
        assert!(words.iter().all(|word| *word == words[0]), "a block is torn");
        u64::from_le_bytes(words[0])
    };
    bytes.chunks(block_size as usize).map(value).collect()
}

fn play(seeds: std::ops::Range<u64>, faults: impl Fn(u64) -> [Faults; 3]) {
    let (mut acknowledged, mut started, mut degraded, mut refused) = (0, 0, 0, 0);
    for seed in seeds {
        let mut scenario = Scenario::new(seed, faults(seed));
        (0..6).for_each(|round| scenario.round(round));
        acknowledged += scenario.acknowledged;
        started += scenario.started;
        degraded += scenario.degraded;
        refused += scenario.refused;
    }
    println!(
        "{started} starts, {degraded} degraded, {refused} refused, {acknowledged} requests acknowledged"
    );
    assert!(started > 0 && degraded > 0 && refused > 0 && acknowledged > 1000);
}

#[test]
fn power_cuts_lose_no_acknowledged_block() {
    play(0..300, |_| [Faults { short_io: 50, ..Faults::default() }; 3]);
}

#[test]
fn failing_members_lose_no_acknowledged_block() {
    play(1000..1200, |seed| {
        let failing = Faults { write: 20, sync: 20, enospc: 10, short_io: 50, ..Faults::default() };
        let good = Faults::default();
        match seed % 4 {
            0 => [failing, good, good],
            1 => [good, failing, good],
            2 => [failing, failing, good],
            _ => [failing, failing, Faults { write: 5, sync: 5, ..good }],
        }
    });
}

#[test]
fn abandoned_changes_and_commits_fail_later_changes() {
    let zero = || Request::WriteZeroes { lba: 0, blocks: 1, fua: false, deallocate: false };
    for (request, at, is_fatal) in [
        (Request::Read { lba: 0, blocks: 1 }, ["a", "b"], false),
        (zero(), ["a", "b"], true),
        (zero(), ["bitmap"; 2], true),
    ] {
        let mut scenario = Scenario::new(1, [Faults::default(); 3]);
        let mut world = World::new(1, &scenario.contents, scenario.block_size, None, scenario.faults);
        let mirror = scenario.start(&mut world, None).unwrap();
        if at == ["bitmap"; 2] {
            // No region is dirty, so that the change first commits a bit.
            scenario.close(&mut world, &mirror);
        }
        let shared = Arc::clone(&mirror);
        drop(world.spawn(0, |io| shared.run(io, request)));
        assert!(world.submit_next());
        assert!(world.running.values().all(|(_, member)| at.contains(&member.volume().name())));
        mirror.state.lock().check().unwrap();
        world.cores.clear();
        assert_eq!(mirror.state.lock().check().is_err(), is_fatal, "at {at:?}");
    }
}
