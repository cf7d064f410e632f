//! Simulated volume: each operation takes any number of steps, or none while the volume is stalled.

use std::sync::Arc;

use fastrand::Rng;
use isolane_memory::{Buffer, Payload, Pool};
use isolane_volume::{
    Completer, Identity, Outcome, Request, Step, Volume, VolumeDescription, VolumeError, VolumeInfo,
};
use parking_lot::Mutex;

/// Blocks of a volume.
pub(super) const BLOCKS: u64 = 12;
/// Size of a block in bytes.
pub(super) const BLOCK_BYTES: usize = 512;

pub(super) struct SimVolume {
    description: VolumeDescription,
    state: Mutex<State>,
}

struct State {
    rng: Rng,
    blocks: Vec<u64>,
    operations: Vec<Operation>,
    is_stalled: bool,
}

struct Operation {
    request: Request,
    completer: Completer,
    /// Blocks that are left, in the order of their execution.
    left: Vec<u64>,
    /// Values of a read, from its first block.
    values: Vec<u64>,
}

impl SimVolume {
    pub(super) fn new(number: usize, rng: &mut Rng) -> Arc<SimVolume> {
        let info = VolumeInfo {
            block_size: BLOCK_BYTES as u32,
            blocks: BLOCKS,
            read_only: false,
            volatile_cache: rng.bool(),
            deallocate: true,
            zeroes_after_deallocate: true,
        };
        let name = format!("volume {number}");
        let identity = Identity::derived(name.as_bytes());
        let description = VolumeDescription { name, info, identity, generation: None };
        let blocks = vec![0; BLOCKS as usize];
        let rng = Rng::with_seed(rng.u64(..));
        let state = State { rng, blocks, operations: Vec::new(), is_stalled: false };
        Arc::new(SimVolume { description, state: Mutex::new(state) })
    }

    pub(super) fn set_stalled(&self, is_stalled: bool) {
        self.state.lock().is_stalled = is_stalled;
    }

    /// Returns the number of operations in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.state.lock().operations.len()
    }

    /// Executes some blocks of an operation.
    pub(super) fn progress(&self) {
        let mut state = self.state.lock();
        if !state.is_stalled && !state.operations.is_empty() {
            state.progress();
        }
    }
}

impl State {
    fn progress(&mut self) {
        let index = self.rng.usize(..self.operations.len());
        let mut operation = self.operations.swap_remove(index);
        for _ in 0..self.rng.usize(..=operation.left.len()) {
            self.execute_block(&mut operation);
        }
        if !operation.left.is_empty() {
            return self.operations.push(operation);
        }
        let Operation { request, completer, values, .. } = operation;
        let is_failed = self.rng.u8(..64) == 0 && !matches!(request, Request::Flush);
        completer.complete(match request {
            Request::Read { .. } if is_failed => Err(VolumeError::ReadFailed { raw_os_error: 5 }),
            _ if is_failed => Err(VolumeError::WriteFailed { raw_os_error: 5 }),
            _ => outcome(&values),
        });
    }

    fn execute_block(&mut self, operation: &mut Operation) {
        let Some(block) = operation.left.pop() else { return };
        match &operation.request {
            Request::Read { lba, .. } => {
                operation.values[(block - lba) as usize] = self.blocks[block as usize];
            }
            Request::Write { lba, data, .. } => {
                self.blocks[block as usize] = value_in(data, block - lba);
            }
            _ => self.blocks[block as usize] = 0,
        }
    }

    fn operation(&mut self, request: Request, completer: Completer) -> Operation {
        let mut left: Vec<u64> = match &request {
            Request::Read { lba, blocks }
            | Request::Write { lba, blocks, .. }
            | Request::WriteZeroes { lba, blocks, .. } => (*lba..lba + blocks).collect(),
            Request::Deallocate { ranges, .. } => {
                ranges.iter().flat_map(|range| range.lba..range.lba + range.blocks).collect()
            }
            Request::Flush | Request::Continue(_) => Vec::new(),
        };
        self.rng.shuffle(&mut left);
        let values =
            if let Request::Read { blocks, .. } = &request { vec![0; *blocks as usize] } else { Vec::new() };
        Operation { request, completer, left, values }
    }

    fn is_immediate(&mut self) -> bool {
        !self.is_stalled && self.rng.u8(..4) == 0
    }
}

impl Volume for SimVolume {
    fn description(&self) -> &VolumeDescription {
        &self.description
    }

    fn try_read(&self, lba: u64, blocks: u64, _: &mut Pool) -> Option<Payload> {
        let mut state = self.state.lock();
        let is_immediate = state.is_immediate();
        is_immediate.then(|| payload(&state.blocks[lba as usize..(lba + blocks) as usize]))
    }

    fn try_write(&self, lba: u64, blocks: u64, data: Buffer, pool: &mut Pool) -> Result<(), Buffer> {
        let mut state = self.state.lock();
        if !state.is_immediate() {
            return Err(data);
        }
        (0..blocks).for_each(|at| state.blocks[(lba + at) as usize] = value_in(&data, at));
        pool.recycle_buffer(data);
        Ok(())
    }

    fn start(&self, request: Request, _: &mut Pool) -> Step {
        let mut state = self.state.lock();
        if state.rng.u8(..16) == 0 {
            return Step::Retry(request);
        }
        let (completer, step) = Step::pending(&request);
        let operation = state.operation(request, completer);
        state.operations.push(operation);
        step
    }
}

fn outcome(values: &[u64]) -> Outcome {
    Ok(if values.is_empty() { Payload::default() } else { payload(values) })
}

fn payload(values: &[u64]) -> Payload {
    Payload::from(values.iter().flat_map(|value| to_bytes(*value)).collect::<Vec<u8>>())
}

/// Returns the content of a block.
pub(super) fn to_bytes(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(BLOCK_BYTES / 8)
}

/// Returns the value of a block in these bytes.
pub(super) fn value_of(block: &[u8]) -> u64 {
    let (numbers, _) = block.as_chunks::<8>();
    assert!(numbers.iter().all(|number| *number == numbers[0]), "a block is torn");
    u64::from_le_bytes(numbers[0])
}

fn value_in(data: &Buffer, block: u64) -> u64 {
    let mut bytes = [0; BLOCK_BYTES];
    data.copy_to(block as usize * BLOCK_BYTES, &mut bytes);
    value_of(&bytes)
}
