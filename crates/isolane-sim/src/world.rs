//! Clients that send random requests to a file volume on a simulated disk, and judge every answer by its
//! [`History`].
//!
//! A block's value is a number written over the whole block, so half of a write is never a value.

use std::collections::HashMap;

use fastrand::Rng;
use isolane_memory::{Buffer, Payload, Pool};
use isolane_reactor::file::Operation;
use isolane_volume::file::{Abilities, FileMachine};
use isolane_volume::{BlockRange, Geometry, Identity, Outcome, Request, Step, Task, Volume, VolumeError};

use crate::{Disk, Faults, Finished, History};

/// What kind of world.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Everything follows from it.
    pub seed: u64,
    /// Bytes in a block of the volume.
    pub block_size: u32,
    /// Bytes that the disk writes as one.
    pub sector: usize,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Requests in flight at a time, over all cores.
    pub depth: usize,
    /// Cores. With more than one, each learns of the results of its operations at a time of its own, so a
    /// later operation of one core may be known to have ended before an earlier one of another.
    pub cores: usize,
    /// Direct I/O, or through the page cache.
    pub is_direct: bool,
    /// Every write is durable when it completes.
    pub is_write_through: bool,
    /// What goes wrong.
    pub faults: Faults,
}

/// The world.
#[derive(Debug)]
pub struct World {
    config: Config,
    rng: Rng,
    disk: Disk,
    machine: FileMachine,
    pool: Pool,
    history: History,
    /// Operations with the disk.
    running: HashMap<u64, (Asked, Task)>,
    /// Operations that have ended and whose cores do not know it yet.
    unseen: Vec<Finished>,
    /// Requests told to come later.
    waiting: Vec<(Asked, Request)>,
    time: u64,
    has_sync_failed: bool,
    acknowledged: usize,
}

/// What was asked for.
#[derive(Clone, Debug)]
struct Asked {
    id: u64,
    time: u64,
    deed: Deed,
}

#[derive(Clone, Debug)]
enum Deed {
    Read(BlockRange),
    Change { ranges: Vec<BlockRange>, is_durable: bool },
    Flush,
}

impl World {
    /// A world with a new disk of zeroes.
    pub fn new(config: Config) -> World {
        let bytes = config.blocks as usize * config.block_size as usize;
        World::with_contents(config, vec![0; bytes])
    }

    fn with_contents(config: Config, contents: Vec<u8>) -> World {
        let values = contents.chunks(config.block_size as usize).map(|block| value_of(block, config.seed));
        let history = History::new(values);
        let disk = Disk::with_contents(config.seed, contents, config.sector, config.faults);
        let geometry = Geometry {
            block_size: config.block_size,
            blocks: config.blocks,
            read_only: false,
            volatile_cache: !config.is_write_through,
            deallocate: true,
            zeroes_after_deallocate: true,
        };
        let name = "simulated".to_owned();
        let identity = Identity::derived(b"simulated");
        let machine = FileMachine::new(name, geometry, identity, Abilities::file(), config.is_direct);
        World {
            config,
            rng: Rng::with_seed(config.seed ^ 0x5eed),
            disk,
            machine,
            pool: Pool::new(1 << 14),
            history,
            running: HashMap::new(),
            unseen: Vec::new(),
            waiting: Vec::new(),
            time: 1,
            has_sync_failed: false,
            acknowledged: 0,
        }
    }

    /// Lets the world go on for some steps.
    ///
    /// # Panics
    /// If an answer breaks a promise; the message names the seed.
    pub fn run(&mut self, steps: usize) {
        (0..steps).for_each(|_| self.step());
    }

    /// Requests that have succeeded.
    pub fn acknowledged(&self) -> usize {
        self.acknowledged
    }

    /// Whether the volume has reported a failed sync.
    pub fn has_sync_failed(&self) -> bool {
        self.has_sync_failed
    }

    /// Cuts the power, checks every block, and returns the world after the restart.
    ///
    /// # Panics
    /// If a block holds what it must not hold.
    #[must_use]
    pub fn cut_power(self) -> World {
        let World { config, disk, history, .. } = self;
        let contents = disk.cut_power();
        for (block, bytes) in contents.chunks(config.block_size as usize).enumerate() {
            let value = value_of(bytes, config.seed);
            let is_allowed = history.may_survive(block as u64, value);
            assert!(is_allowed, "seed {}: after the power cut block {block} holds {value}", config.seed);
        }
        World::with_contents(Config { seed: config.seed.wrapping_add(1 << 32), ..config }, contents)
    }

    fn step(&mut self) {
        self.time += 1;
        let is_busy = self.running.len() + self.waiting.len() >= self.config.depth;
        if !is_busy && self.rng.bool() {
            let (asked, request) = self.ask();
            self.start(asked, request);
        } else if !self.waiting.is_empty() && self.rng.bool() {
            let index = self.rng.usize(..self.waiting.len());
            let (asked, request) = self.waiting.swap_remove(index);
            self.start(asked, request);
        } else {
            self.unseen.extend(self.disk.step());
            if self.config.cores == 1 || self.rng.u8(..4) == 0 {
                self.see_one();
            }
        }
    }

    /// A core learns that an operation has ended.
    fn see_one(&mut self) {
        if self.unseen.is_empty() {
            return;
        }
        let index = self.rng.usize(..self.unseen.len());
        let Finished { token, result, operation } = self.unseen.swap_remove(index);
        if let Some((asked, task)) = self.running.remove(&token) {
            let step = self.machine.resume(task, result, operation, &mut self.pool);
            self.follow(asked, step);
        }
    }

    fn start(&mut self, asked: Asked, request: Request) {
        let step = self.machine.start(request, &mut self.pool);
        self.follow(asked, step);
    }

    fn follow(&mut self, asked: Asked, step: Step) {
        match step {
            Step::Done(outcome) => self.judge(&asked, outcome),
            Step::Later(rest) => self.waiting.push((asked, rest)),
            Step::File(operation, task) => self.submit(asked, operation, task),
        }
    }

    fn submit(&mut self, asked: Asked, operation: Operation, task: Task) {
        let token = asked.id;
        self.disk.submit(token, operation);
        self.running.insert(token, (asked, task));
    }

    /// Thinks of a request.
    fn ask(&mut self) -> (Asked, Request) {
        let (id, time) = (self.time, self.time);
        let BlockRange { lba, blocks } = self.any_range();
        let fua = self.rng.u8(..4) == 0;
        let is_durable = fua || self.config.is_write_through;
        let change = |ranges| Deed::Change { ranges, is_durable };
        let one = vec![BlockRange { lba, blocks }];
        let (deed, request) = match self.rng.u8(..16) {
            0..5 => (Deed::Read(BlockRange { lba, blocks }), Request::Read { lba, blocks }),
            5..11 => (change(one), Request::Write { lba, blocks, data: self.data(id, blocks), fua }),
            11 => {
                let deallocate = self.rng.bool();
                (change(one), Request::WriteZeroes { lba, blocks, fua, deallocate })
            }
            12 => {
                let ranges = vec![BlockRange { lba, blocks }, self.any_range()];
                (change(ranges.clone()), Request::Deallocate { ranges: ranges.into(), fua })
            }
            _ => (Deed::Flush, Request::Flush),
        };
        let value = if matches!(request, Request::Write { .. }) { id } else { 0 };
        if let Deed::Change { ranges, .. } = &deed {
            each_block(ranges).for_each(|block| self.history.ask(block, id, value, time));
        }
        (Asked { id, time, deed }, request)
    }

    fn any_range(&mut self) -> BlockRange {
        let lba = self.rng.u64(..self.config.blocks);
        let blocks_max = (self.config.blocks - lba).min(24);
        BlockRange { lba, blocks: self.rng.u64(1..=blocks_max) }
    }

    fn data(&self, value: u64, blocks: u64) -> Buffer {
        let bytes = value.to_le_bytes().repeat(blocks as usize * self.config.block_size as usize / 8);
        let mut data = Buffer::contiguous(bytes.len());
        data.place(0, &bytes);
        data
    }

    fn judge(&mut self, asked: &Asked, outcome: Outcome) {
        match outcome {
            Ok(data) => self.judge_success(asked, &data),
            Err(VolumeError::SyncFailed { .. }) => self.has_sync_failed = true,
            Err(error) => self.judge_failure(&error),
        }
    }

    fn judge_success(&mut self, asked: &Asked, data: &Payload) {
        let seed = self.config.seed;
        self.acknowledged += 1;
        match &asked.deed {
            Deed::Read(range) => self.judge_read(*range, asked.time, data),
            Deed::Flush => {
                assert!(!self.has_sync_failed, "seed {seed}: a flush succeeded after a failed sync");
                self.history.flush(asked.time);
            }
            Deed::Change { ranges, is_durable } => {
                let is_lie = *is_durable && self.has_sync_failed;
                assert!(!is_lie, "seed {seed}: a durable write succeeded after a failed sync");
                let (id, time) = (asked.id, self.time);
                each_block(ranges).for_each(|block| self.history.acknowledge(block, id, time, *is_durable));
            }
        }
    }

    fn judge_read(&self, range: BlockRange, asked: u64, data: &Payload) {
        let seed = self.config.seed;
        for (block, bytes) in (range.lba..).zip(data.to_vec().chunks(self.config.block_size as usize)) {
            let value = value_of(bytes, seed);
            assert!(
                self.history.may_read(block, value, asked),
                "seed {seed}: block {block} was read as {value}"
            );
        }
    }

    fn judge_failure(&self, error: &VolumeError) {
        let Faults { read, write, space, .. } = self.config.faults;
        let is_expected = match error {
            VolumeError::ReadFailed { .. } => read > 0,
            VolumeError::WriteFailed { .. } => write > 0,
            VolumeError::NoSpace { .. } => space > 0,
            _ => false,
        };
        assert!(is_expected, "seed {}: a request failed for no reason: {error}", self.config.seed);
    }
}

fn each_block(ranges: &[BlockRange]) -> impl Iterator<Item = u64> {
    let mut blocks: Vec<u64> = ranges.iter().flat_map(|range| range.lba..range.lba + range.blocks).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks.into_iter()
}

/// The one number that a block holds.
fn value_of(block: &[u8], seed: u64) -> u64 {
    let (numbers, _) = block.as_chunks::<8>();
    assert!(numbers.iter().all(|number| *number == numbers[0]), "seed {seed}: a block is torn");
    u64::from_le_bytes(numbers[0])
}
