//! A volume whose operations hang until a test lets them go on; then they are executed in the order of their arrival.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use isolane_memory::{Payload, Pool};
use isolane_volume::{
    Completer, Identity, Outcome, Request, Step, Volume, VolumeDescription, VolumeError, VolumeInfo,
};

/// The volume, of 64 Ki blocks of 512 bytes.
pub struct Gate {
    description: VolumeDescription,
    state: Mutex<State>,
}

struct State {
    storage: Vec<u8>,
    is_closed: bool,
    held: VecDeque<(Request, Completer)>,
    /// Requests that have arrived while it was closed.
    arrived: usize,
}

impl Gate {
    /// A volume that holds every request.
    pub fn closed() -> Arc<Gate> {
        let info = VolumeInfo {
            block_size: 512,
            blocks: 1 << 16,
            read_only: false,
            volatile_cache: false,
            deallocate: true,
            zeroes_after_deallocate: true,
        };
        let (name, identity) = ("gate".to_owned(), Identity::random());
        let description = VolumeDescription { name, info, identity, generation: None };
        let storage = vec![0; 512 << 16];
        let state = State { storage, is_closed: true, held: VecDeque::new(), arrived: 0 };
        Arc::new(Gate { description, state: Mutex::new(state) })
    }

    /// Number of requests that have arrived while it was closed.
    pub fn arrived(&self) -> usize {
        self.state.lock().unwrap().arrived
    }

    /// Executes what it holds, and each request at once from now on.
    pub fn open(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_closed = false;
        while let Some((request, completer)) = state.held.pop_front() {
            completer.complete(state.execute(request));
        }
    }

    /// Holds every request again.
    pub fn close(&self) {
        self.state.lock().unwrap().is_closed = true;
    }

    /// Fails the requests that it holds.
    pub fn fail(&self) {
        let held = std::mem::take(&mut self.state.lock().unwrap().held);
        held.into_iter().for_each(|(_, completer)| {
            completer.complete(Err(VolumeError::WriteFailed { raw_os_error: 5 }));
        });
    }

    pub fn content(&self, lba: usize) -> Vec<u8> {
        self.state.lock().unwrap().storage[lba * 512..][..512].to_vec()
    }
}

impl State {
    fn execute(&mut self, request: Request) -> Outcome {
        let bytes = |lba: u64, blocks: u64| lba as usize * 512..(lba + blocks) as usize * 512;
        match request {
            Request::Read { lba, blocks } => {
                return Ok(Payload::from(self.storage[bytes(lba, blocks)].to_vec()));
            }
            Request::Write { lba, blocks, data, .. } => {
                data.copy_to(0, &mut self.storage[bytes(lba, blocks)]);
            }
            Request::WriteZeroes { lba, blocks, .. } => self.storage[bytes(lba, blocks)].fill(0),
            Request::Deallocate { ranges, .. } => {
                ranges.iter().for_each(|range| self.storage[bytes(range.lba, range.blocks)].fill(0));
            }
            Request::Flush | Request::Continue(_) => {}
        }
        Ok(Payload::default())
    }
}

impl Volume for Gate {
    fn description(&self) -> &VolumeDescription {
        &self.description
    }

    fn start(&self, request: Request, _: &mut Pool) -> Step {
        let mut state = self.state.lock().unwrap();
        if !state.is_closed {
            return Step::Done(state.execute(request));
        }
        state.arrived += 1;
        let (completer, step) = Step::pending(&request);
        state.held.push_back((request, completer));
        step
    }
}
