//! Descriptor chains: the memory of one request.
//!
//! `virtio-queue` ends a malformed chain like a complete one, so this module walks the chain itself and names the fault.
//!
//! Invariant: a chain has a bounded number of descriptors, and all of them are inside of the guest's memory.

use std::sync::Arc;

use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestAddress};

use crate::memory::{GuestBuffer, GuestMemory, Segments};

/// The memory of a request.
pub(crate) struct Chain {
    /// Written by the driver.
    pub readable: GuestBuffer,
    /// Written by the device.
    pub writable: GuestBuffer,
}

/// A fault of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// An index outside of its table.
    #[error("descriptor {index} of a table of {entries}")]
    Index {
        /// The index.
        index: u16,
        /// Length of the table.
        entries: u16,
    },
    /// A table outside of the memory.
    #[error("the descriptor at {0:#x} is outside of the guest's memory")]
    Table(u64),
    /// Data outside of the memory.
    #[error("{len} bytes at {address:#x} are outside of the guest's memory")]
    Data {
        /// Address of the data.
        address: u64,
        /// Length in bytes.
        len: u32,
    },
    /// An indirect table in an indirect table, or followed by a descriptor.
    #[error("an indirect table is in another one, or not the end of its chain")]
    Indirect,
    /// The length of an indirect table is not a multiple of a descriptor's, or 0, or too large.
    #[error("an indirect table of {0} bytes")]
    IndirectLength(u32),
    /// More descriptors than any request has.
    #[error("a chain of more than {MAX_DESCRIPTORS} descriptors, or a loop")]
    TooLong,
    /// A readable descriptor after a writable one.
    #[error("a readable descriptor follows a writable one")]
    Order,
    /// No complete header, or no byte for the status.
    #[error("{readable} readable and {writable} writable bytes are too few for a request")]
    TooShort {
        /// Length of the readable part in bytes.
        readable: usize,
        /// Length of the writable part in bytes.
        writable: usize,
    },
}

/// Reads a chain.
pub(crate) fn read(
    memory: &Arc<GuestMemory>,
    table: u64,
    entries: u16,
    head: u16,
) -> Result<Chain, ChainError> {
    let (mut table, mut entries, mut index, mut is_indirect) = (GuestAddress(table), entries, head, false);
    let (mut readable, mut writable) = (Segments::new(), Segments::new());
    for _ in 0..MAX_DESCRIPTORS {
        if index >= entries {
            return Err(ChainError::Index { index, entries });
        }
        let at = table.checked_add(u64::from(index) * DESCRIPTOR_BYTES).unwrap_or(GuestAddress(u64::MAX));
        let descriptor: Descriptor =
            memory.rings().read_obj(at).map_err(|_| ChainError::Table(at.raw_value()))?;
        if descriptor.refers_to_indirect_table() {
            if is_indirect || descriptor.has_next() {
                return Err(ChainError::Indirect);
            }
            is_indirect = true;
            let len = descriptor.len();
            let count = u16::try_from(u64::from(len) / DESCRIPTOR_BYTES).ok();
            let is_valid = len > 0 && u64::from(len).is_multiple_of(DESCRIPTOR_BYTES);
            entries = count.filter(|_| is_valid).ok_or(ChainError::IndirectLength(len))?;
            (table, index) = (descriptor.addr(), 0);
            continue;
        }
        let (address, len) = (descriptor.addr().raw_value(), descriptor.len());
        let segments = if descriptor.is_write_only() {
            &mut writable
        } else if writable.is_empty() {
            &mut readable
        } else {
            return Err(ChainError::Order);
        };
        if !memory.locate(address, len, segments) {
            return Err(ChainError::Data { address, len });
        }
        if !descriptor.has_next() {
            return Ok(Chain {
                readable: GuestBuffer::new(Arc::clone(memory), readable),
                writable: GuestBuffer::new(Arc::clone(memory), writable),
            });
        }
        index = descriptor.next();
    }
    Err(ChainError::TooLong)
}

/// Length of a descriptor in bytes.
const DESCRIPTOR_BYTES: u64 = size_of::<Descriptor>() as u64;
/// Descriptors of one chain.
const MAX_DESCRIPTORS: usize = 1024;
