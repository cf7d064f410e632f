//! Expected memory and receives of one end.

use super::AREA_BYTES;

/// The memory of an end, as if each request was executed when it was posted.
pub(super) struct Model {
    initial: Vec<u8>,
    memory: Vec<u8>,
    changes: Vec<Change>,
    pub(super) received: Vec<Expected>,
}

/// A receive that a request of the peer consumes.
pub(super) struct Expected {
    pub(super) length: u64,
    pub(super) immediate: Option<u32>,
    /// Id of the request.
    pub(super) request: u64,
}

/// A change of memory by a request or a program.
struct Change {
    /// Index of the end that has posted the request, and its id; `None` for the program of this end.
    request: Option<(usize, u64)>,
    at: usize,
    bytes: Vec<u8>,
}

impl Model {
    pub(super) fn new(memory: Vec<u8>) -> Model {
        Model { initial: memory.clone(), memory, changes: Vec::new(), received: Vec::new() }
    }

    pub(super) fn copy(&self, at: u64, len: u32) -> Vec<u8> {
        self.memory[at as usize..][..len as usize].to_vec()
    }

    pub(super) fn word(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.copy(at, 8).try_into().expect("8 bytes"))
    }

    /// A request of an end writes bytes, or the program of this end does.
    pub(super) fn put(&mut self, request: Option<(usize, u64)>, at: u64, bytes: Vec<u8>) {
        let at = at as usize;
        self.memory[at..][..bytes.len()].copy_from_slice(&bytes);
        self.changes.push(Change { request, at, bytes });
    }

    /// Returns the first byte of `found` that no execution explains. The first `done[end]` requests of each end are
    /// executed, and each later one can be executed, in part or not at all.
    pub(super) fn first_wrong(&self, found: &[u8], done: [u64; 2]) -> Option<usize> {
        let mut fits = [false; AREA_BYTES];
        fits.iter_mut().zip(&self.initial).zip(found).for_each(|((fits, byte), found)| *fits = byte == found);
        for Change { request, at, bytes } in &self.changes {
            let is_done = request.is_none_or(|(end, id)| id < done[end]);
            let found = &found[*at..][..bytes.len()];
            for ((fits, byte), found) in fits[*at..].iter_mut().zip(bytes).zip(found) {
                *fits = byte == found || (*fits && !is_done);
            }
        }
        fits.iter().position(|fits| !fits)
    }
}
