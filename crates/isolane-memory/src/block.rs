//! Contiguous reference-counted memory: aligned, from a `Vec`, or borrowed from a caller.
//!
//! Invariant: a block is written only through an exclusive reference to its only handle.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::PAGE_SIZE;

pub(crate) struct Block {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

enum Owner {
    Aligned(Layout),
    Vec {
        capacity: usize,
    },
    Borrowed,
    /// Part of a split block, which is freed with its last part.
    Split(Arc<Block>),
}

// SAFETY: the memory is owned by the block (or promised to it by `Buffer::from_raw_parts`), not tied to a thread.
unsafe impl Send for Block {}
// SAFETY: shared references only read; writing needs the only handle.
unsafe impl Sync for Block {}

impl Block {
    pub(crate) fn zeroed(len: usize) -> Arc<Block> {
        let layout = aligned_layout(len);
        // SAFETY: the layout is not empty.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            handle_alloc_error(layout);
        };
        Arc::new(Block { start, len, owner: Owner::Aligned(layout) })
    }

    pub(crate) fn from_vec(vec: Vec<u8>) -> Arc<Block> {
        let mut vec = ManuallyDrop::new(vec);
        let owner = Owner::Vec { capacity: vec.capacity() };
        let len = vec.len();
        // SAFETY: a vector's pointer is never null; `drop` converts it back to a vector.
        let start = unsafe { NonNull::new_unchecked(vec.as_mut_ptr()) };
        Arc::new(Block { start, len, owner })
    }

    /// # Safety
    /// As [`Buffer::from_raw_parts`](crate::Buffer::from_raw_parts).
    pub(crate) unsafe fn from_raw_parts(start: NonNull<u8>, len: usize) -> Arc<Block> {
        Arc::new(Block { start, len, owner: Owner::Borrowed })
    }

    /// Splits off the bytes from `at` on; `None` while there are other references.
    pub(crate) fn split_off(block: &mut Arc<Block>, at: usize) -> Option<Arc<Block>> {
        let front = Arc::get_mut(block)?;
        assert!(at <= front.len, "a split at {at} is outside of a block of {} bytes", front.len);
        let whole = match &front.owner {
            Owner::Split(whole) => Arc::clone(whole),
            _ => {
                let owner = std::mem::replace(&mut front.owner, Owner::Borrowed);
                Arc::new(Block { start: front.start, len: front.len, owner })
            }
        };
        // SAFETY: `at` is inside of the block, as checked.
        let start = unsafe { front.start.add(at) };
        let len = front.len - at;
        (front.len, front.owner) = (at, Owner::Split(Arc::clone(&whole)));
        Some(Arc::new(Block { start, len, owner: Owner::Split(whole) }))
    }

    /// Reverts [`Block::split_off`]. Returns `tail` if it is not adjacent, or if there are other references.
    pub(crate) fn join(block: &mut Arc<Block>, mut tail: Arc<Block>) -> Result<(), Arc<Block>> {
        let (Some(front), Some(back)) = (Arc::get_mut(block), Arc::get_mut(&mut tail)) else {
            return Err(tail);
        };
        let same_block = match (&front.owner, &back.owner) {
            (Owner::Split(one), Owner::Split(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        let end = front.start.addr().get() + front.len;
        if !same_block || end != back.start.addr().get() {
            return Err(tail);
        }
        front.len += back.len;
        Ok(())
    }

    pub(crate) fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: initialized and alive as long as the block; shared blocks are not written.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

/// Whether there is no other reference. (There are no weak references.)
pub(crate) fn is_unique<T>(memory: &Arc<T>) -> bool {
    let is_unique = Arc::strong_count(memory) == 1;
    if is_unique {
        fence(Ordering::Acquire);
    }
    is_unique
}

/// Returns the bytes for writing, `None` while there are other references.
pub(crate) fn bytes_mut(block: &mut Arc<Block>) -> Option<&mut [u8]> {
    if !is_unique(block) {
        return None;
    }
    // SAFETY: this handle is the only one and is borrowed exclusively for the life of the slice.
    Some(unsafe { std::slice::from_raw_parts_mut(block.start.as_ptr(), block.len) })
}

fn aligned_layout(len: usize) -> Layout {
    match Layout::from_size_align(len.max(1), PAGE_SIZE) {
        Ok(layout) => layout,
        Err(_) => panic!("a buffer of {len} bytes is larger than the address space"),
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match self.owner {
            // SAFETY: allocated with this layout by `zeroed`, and this is the end of the last handle.
            Owner::Aligned(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            Owner::Vec { capacity } => {
                // SAFETY: pointer, length, and capacity of the vector of `from_vec`.
                drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len, capacity) });
            }
            Owner::Borrowed | Owner::Split(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_and_joins_a_block() {
        let mut front = Block::zeroed(8192);
        let mut back = Block::split_off(&mut front, 4096).unwrap();
        bytes_mut(&mut back).unwrap().fill(2);
        bytes_mut(&mut front).unwrap().fill(1);
        let last = Block::split_off(&mut back, 1024).unwrap();
        let last = Block::join(&mut front, last).unwrap_err();
        assert!(Block::join(&mut front, back).is_ok());
        assert!(Block::join(&mut front, last).is_ok());
        assert_eq!((front.len, front.bytes()[4095], front.bytes()[8191]), (8192, 1, 2));
    }

    #[test]
    fn memory_lives_as_long_as_any_part() {
        let mut front = Block::from_vec(vec![7; 100]);
        let back = Block::split_off(&mut front, 50).unwrap();
        drop(front);
        assert_eq!(back.bytes(), [7; 50]);
    }
}
