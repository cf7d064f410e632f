//! Payload memory of commands in flight: the session's memory, or private memory if digests are computed.
//!
//! Buffers are reused for later commands of the same session only, because a failed read may leave its data there.
//!
//! Invariant: on one core, a session has at most as much private memory in flight as its shared memory is large;
//! more would mean that commands overlap.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};

use isolane_memory::Buffer;
use isolane_shm::SharedMemory;

/// Payload memory of one queue.
pub(super) struct PayloadBuffers {
    memory: SharedMemory,
    /// Data is copied, because its owner could change it after its digest was computed.
    private: bool,
    spare: Vec<Buffer>,
    spare_bytes: usize,
    /// Private memory in flight, in bytes, of the whole session.
    private_bytes: Rc<Cell<u64>>,
}

thread_local! {
    /// Private memory in flight, by session on this core.
    static PRIVATE_BYTES: RefCell<HashMap<u32, Weak<Cell<u64>>>> = RefCell::default();
}

impl PayloadBuffers {
    pub fn new(session: u32, memory: SharedMemory) -> PayloadBuffers {
        let private_bytes = PRIVATE_BYTES.with_borrow_mut(|all| {
            all.retain(|_, bytes| bytes.strong_count() > 0);
            let bytes = all.get(&session).and_then(Weak::upgrade).unwrap_or_default();
            all.insert(session, Rc::downgrade(&bytes));
            bytes
        });
        PayloadBuffers { memory, private: false, spare: Vec::new(), spare_bytes: 0, private_bytes }
    }

    /// Called if digests are computed.
    pub fn set_private(&mut self) {
        self.private = true;
    }

    /// Returns a buffer for a range of the session's memory, which must be [released](PayloadBuffers::release);
    /// `None` if the range is out of bounds, or more memory is in flight than the session has.
    #[inline]
    pub fn acquire(&mut self, offset: u64, len: u64, is_write: bool) -> Option<Buffer> {
        let range = self.memory.raw_slice(offset, len).ok()?;
        if !self.private {
            self.acquire_shared(offset, range.len())
        } else {
            self.acquire_private(offset, range.len(), is_write)
        }
    }

    /// Called when a command with `acquired` bytes has completed; copies the data of a successful read to
    /// `read_offset`.
    #[inline]
    pub fn release(&mut self, buffer: Option<Buffer>, acquired: u64, read_offset: Option<u64>) {
        if self.private {
            self.private_bytes.set(self.private_bytes.get() - acquired);
        }
        let Some(buffer) = buffer else { return };
        if let Some(offset) = read_offset.filter(|_| self.private) {
            let mut at = offset;
            buffer.for_each_slice(0, buffer.len(), |slice| {
                let copied = self.memory.copy_in(at, slice);
                debug_assert!(copied.is_ok(), "checked by acquire");
                at += slice.len() as u64;
            });
        }
        // The client itself allocates the buffer of a deallocation.
        let is_ours = buffer.is_in_shared_memory() != self.private;
        let bytes = if self.private { buffer.len() } else { 0 };
        let has_space = self.spare.len() < MAX_SPARE && self.spare_bytes + bytes <= MAX_SPARE_BYTES;
        if is_ours && has_space && buffer.is_exclusive() {
            self.spare_bytes += bytes;
            self.spare.push(buffer);
        }
    }

    /// Copies bytes of the session's memory.
    pub fn copy_out(&self, offset: u64, bytes: &mut [u8]) -> Option<()> {
        self.memory.copy_out(offset, bytes).ok()
    }

    fn acquire_shared(&mut self, offset: u64, len: usize) -> Option<Buffer> {
        let Some(mut buffer) = self.spare.pop() else {
            return Buffer::in_shared_memory(&self.memory, offset, len).ok();
        };
        buffer.rebind(offset, len).ok()?;
        Some(buffer)
    }

    fn acquire_private(&mut self, offset: u64, len: usize, is_write: bool) -> Option<Buffer> {
        let private_bytes = self.private_bytes.get() + len as u64;
        if private_bytes > self.memory.bytes() as u64 {
            return None;
        }
        let spare = self.spare.pop();
        self.spare_bytes -= spare.as_ref().map_or(0, Buffer::len);
        let fitting = spare.filter(|buffer| buffer.len() == len);
        let mut buffer = fitting.unwrap_or_else(|| Buffer::contiguous(len));
        if is_write {
            let mut at = offset;
            for slice in buffer.slices_mut(0, len) {
                self.memory.copy_out(at, slice).ok()?;
                at += slice.len() as u64;
            }
        }
        self.private_bytes.set(private_bytes);
        Some(buffer)
    }
}

/// Maximum number of spare buffers.
const MAX_SPARE: usize = 64;
/// Maximum private memory in spare buffers, in bytes.
const MAX_SPARE_BYTES: usize = 16 << 20;
