//! Clients that send random requests to a file volume on a simulated disk and verify every result
//! against its [`History`].
//!
//! A block's value is one number repeated over the whole block, so a torn block has no value.

use std::collections::HashMap;

use fastrand::Rng;
use isolane_memory::{Buffer, Payload, Pool};
use isolane_reactor::file::FileOp;
use isolane_volume::file::{Features, FileStateMachine};
use isolane_volume::{
    BlockRange, Identity, Outcome, Request, Step, Task, Volume, VolumeDescription, VolumeError, VolumeInfo,
};

use crate::{Disk, DiskCompletion, Faults, History};

/// Parameters of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct SimConfig {
    /// Seed of all random choices.
    pub seed: u64,
    /// Block size of the volume in bytes.
    pub block_size: u32,
    /// Atomic sector size of the disk in bytes.
    pub sector: usize,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Maximum requests in flight over all cores.
    pub depth: usize,
    /// Number of cores. With more than one, each learns of its results at a different time, so
    /// results of different cores are seen out of order.
    pub cores: usize,
    /// Direct I/O instead of the page cache.
    pub direct: bool,
    /// Every write is durable on completion.
    pub write_through: bool,
    /// Injected faults.
    pub faults: Faults,
}

/// Clients, a volume, and its simulated disk.
#[derive(Debug)]
pub struct Simulation {
    config: SimConfig,
    rng: Rng,
    disk: Disk,
    machine: FileStateMachine,
    pool: Pool,
    history: History,
    /// Operations of the disk.
    running: HashMap<u64, (PendingRequest, Task)>,
    /// Completed operations that their cores have not seen.
    undelivered: Vec<DiskCompletion>,
    /// Requests to retry.
    waiting: Vec<(PendingRequest, Request)>,
    time: u64,
    sync_failed: bool,
    acknowledged: usize,
}

/// A submitted request.
#[derive(Clone, Debug)]
struct PendingRequest {
    id: u64,
    time: u64,
    op: Op,
}

#[derive(Clone, Debug)]
enum Op {
    Read(BlockRange),
    Change { ranges: Vec<BlockRange>, durable: bool },
    Flush,
}

impl Simulation {
    /// Creates a simulation with a disk of zeroes.
    pub fn new(config: SimConfig) -> Simulation {
        let bytes = config.blocks as usize * config.block_size as usize;
        Simulation::with_contents(config, vec![0; bytes])
    }

    fn with_contents(config: SimConfig, contents: Vec<u8>) -> Simulation {
        let values = contents.chunks(config.block_size as usize).map(|block| value_of(block, config.seed));
        let history = History::new(values);
        let disk = Disk::with_contents(config.seed, contents, config.sector, config.faults);
        let info = VolumeInfo {
            block_size: config.block_size,
            blocks: config.blocks,
            read_only: false,
            volatile_cache: !config.write_through,
            deallocate: true,
            zeroes_after_deallocate: true,
        };
        let name = "simulated".to_owned();
        let identity = Identity::derived(b"simulated");
        let description = VolumeDescription { name, info, identity, generation: None };
        let machine = FileStateMachine::new(description, Features::file(), config.direct);
        Simulation {
            config,
            rng: Rng::with_seed(config.seed ^ 0x5eed),
            disk,
            machine,
            pool: Pool::new(1 << 14),
            history,
            running: HashMap::new(),
            undelivered: Vec::new(),
            waiting: Vec::new(),
            time: 1,
            sync_failed: false,
            acknowledged: 0,
        }
    }

    /// Runs `steps` steps.
    ///
    /// # Panics
    /// If a result violates a guarantee; the message contains the seed.
    pub fn run(&mut self, steps: usize) {
        (0..steps).for_each(|_| self.step());
    }

    /// Returns the number of successful requests.
    pub fn acknowledged(&self) -> usize {
        self.acknowledged
    }

    /// Whether the volume has reported a failed sync.
    pub fn has_sync_failed(&self) -> bool {
        self.sync_failed
    }

    /// Cuts the power, verifies every block, and returns the simulation after the restart.
    ///
    /// # Panics
    /// If a block holds an invalid value.
    #[must_use]
    pub fn cut_power(self) -> Simulation {
        let Simulation { config, disk, history, .. } = self;
        let contents = disk.cut_power();
        for (block, bytes) in contents.chunks(config.block_size as usize).enumerate() {
            let value = value_of(bytes, config.seed);
            let is_allowed = history.allows_survivor(block as u64, value);
            assert!(is_allowed, "seed {}: after the power cut block {block} holds {value}", config.seed);
        }
        Simulation::with_contents(SimConfig { seed: config.seed.wrapping_add(1 << 32), ..config }, contents)
    }

    fn step(&mut self) {
        self.time += 1;
        let is_busy = self.running.len() + self.waiting.len() >= self.config.depth;
        if !is_busy && self.rng.bool() {
            let (pending, request) = self.generate();
            self.start(pending, request);
        } else if !self.waiting.is_empty() && self.rng.bool() {
            let index = self.rng.usize(..self.waiting.len());
            let (pending, request) = self.waiting.swap_remove(index);
            self.start(pending, request);
        } else {
            self.undelivered.extend(self.disk.step());
            if self.config.cores == 1 || self.rng.u8(..4) == 0 {
                self.deliver_completion();
            }
        }
    }

    /// Delivers one completion to its core.
    fn deliver_completion(&mut self) {
        if self.undelivered.is_empty() {
            return;
        }
        let index = self.rng.usize(..self.undelivered.len());
        let DiskCompletion { token, result, operation } = self.undelivered.swap_remove(index);
        if let Some((pending, task)) = self.running.remove(&token) {
            let step = self.machine.resume(task, result, operation, &mut self.pool);
            self.advance(pending, step);
        }
    }

    fn start(&mut self, pending: PendingRequest, request: Request) {
        let step = self.machine.start(request, &mut self.pool);
        self.advance(pending, step);
    }

    fn advance(&mut self, pending: PendingRequest, step: Step) {
        match step {
            Step::Done(outcome) => self.verify(&pending, outcome),
            Step::Retry(request) => self.waiting.push((pending, request)),
            Step::File(operation, task) => self.submit(pending, operation, task),
            Step::Pending(_) => unreachable!("a file volume completes its requests itself"),
        }
    }

    fn submit(&mut self, pending: PendingRequest, operation: FileOp, task: Task) {
        let token = pending.id;
        self.disk.submit(token, operation);
        self.running.insert(token, (pending, task));
    }

    /// Generates a request.
    fn generate(&mut self) -> (PendingRequest, Request) {
        let (id, time) = (self.time, self.time);
        let BlockRange { lba, blocks } = self.any_range();
        let fua = self.rng.u8(..4) == 0;
        let durable = fua || self.config.write_through;
        let change = |ranges| Op::Change { ranges, durable };
        let one = vec![BlockRange { lba, blocks }];
        let (op, request) = match self.rng.u8(..16) {
            0..5 => (Op::Read(BlockRange { lba, blocks }), Request::Read { lba, blocks }),
            5..11 => (change(one), Request::Write { lba, blocks, data: self.data(id, blocks), fua }),
            11 => {
                let deallocate = self.rng.bool();
                (change(one), Request::WriteZeroes { lba, blocks, fua, deallocate })
            }
            12 => {
                let ranges = vec![BlockRange { lba, blocks }, self.any_range()];
                (change(ranges.clone()), Request::Deallocate { ranges: ranges.into(), fua })
            }
            _ => (Op::Flush, Request::Flush),
        };
        let value = if matches!(request, Request::Write { .. }) { id } else { 0 };
        if let Op::Change { ranges, .. } = &op {
            each_block(ranges).for_each(|block| self.history.submit(block, id, value, time));
        }
        (PendingRequest { id, time, op }, request)
    }

    fn any_range(&mut self) -> BlockRange {
        let lba = self.rng.u64(..self.config.blocks);
        let max_blocks = (self.config.blocks - lba).min(24);
        BlockRange { lba, blocks: self.rng.u64(1..=max_blocks) }
    }

    fn data(&self, value: u64, blocks: u64) -> Buffer {
        let bytes = value.to_le_bytes().repeat(blocks as usize * self.config.block_size as usize / 8);
        let mut data = Buffer::contiguous(bytes.len());
        data.copy_in(0, &bytes);
        data
    }

    fn verify(&mut self, pending: &PendingRequest, outcome: Outcome) {
        match outcome {
            Ok(data) => self.verify_success(pending, &data),
            Err(VolumeError::SyncFailed { .. }) => self.sync_failed = true,
            Err(error) => self.verify_failure(&error),
        }
    }

    fn verify_success(&mut self, pending: &PendingRequest, data: &Payload) {
        let seed = self.config.seed;
        self.acknowledged += 1;
        match &pending.op {
            Op::Read(range) => self.verify_read(*range, pending.time, data),
            Op::Flush => {
                assert!(!self.sync_failed, "seed {seed}: a flush succeeded after a failed sync");
                self.history.flush(pending.time);
            }
            Op::Change { ranges, durable } => {
                let is_violation = *durable && self.sync_failed;
                assert!(!is_violation, "seed {seed}: a durable write succeeded after a failed sync");
                let (id, time) = (pending.id, self.time);
                each_block(ranges).for_each(|block| self.history.acknowledge(block, id, time, *durable));
            }
        }
    }

    fn verify_read(&self, range: BlockRange, pending: u64, data: &Payload) {
        let seed = self.config.seed;
        for (block, bytes) in (range.lba..).zip(data.to_vec().chunks(self.config.block_size as usize)) {
            let value = value_of(bytes, seed);
            assert!(
                self.history.allows_read(block, value, pending),
                "seed {seed}: block {block} reads as {value}"
            );
        }
    }

    fn verify_failure(&self, error: &VolumeError) {
        let Faults { read, write, enospc, .. } = self.config.faults;
        let is_expected = match error {
            VolumeError::ReadFailed { .. } => read > 0,
            VolumeError::WriteFailed { .. } => write > 0,
            VolumeError::NoSpace { .. } => enospc > 0,
            _ => false,
        };
        assert!(is_expected, "seed {}: unexpected error: {error}", self.config.seed);
    }
}

fn each_block(ranges: &[BlockRange]) -> impl Iterator<Item = u64> {
    let mut blocks: Vec<u64> = ranges.iter().flat_map(|range| range.lba..range.lba + range.blocks).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks.into_iter()
}

/// Returns the value of a block.
fn value_of(block: &[u8], seed: u64) -> u64 {
    let (numbers, _) = block.as_chunks::<8>();
    assert!(numbers.iter().all(|number| *number == numbers[0]), "seed {seed}: a block is torn");
    u64::from_le_bytes(numbers[0])
}
