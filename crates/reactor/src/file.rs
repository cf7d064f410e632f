//! File operations that a reactor carries out. Not a file system: offsets and lengths are the caller's
//! business.

use isolane_memory::Buffer;
use std::fs::File;
use std::io;

/// What to do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Fill the operation's part of its buffer.
    Read,
    /// Write the operation's part of its buffer.
    Write {
        /// Complete only when the data is durable (`RWF_DSYNC`).
        durable: bool,
    },
    /// `fdatasync`; no buffer.
    Sync,
    /// `fallocate(PUNCH_HOLE | KEEP_SIZE)`: the range reads as zeroes and takes no space.
    PunchHole,
    /// `fallocate(ZERO_RANGE | KEEP_SIZE)`: the range reads as zeroes and keeps its space.
    ZeroRange,
    /// `BLKDISCARD`, of a block device: the range may read as anything.
    DeviceDiscard,
    /// `BLKZEROOUT`, of a block device: the range reads as zeroes.
    DeviceZero,
}

/// One operation on one file.
#[derive(Debug)]
pub struct Operation {
    /// What to do.
    pub kind: Kind,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub len: u64,
    /// What is read into or written from; `None` for the kinds that move no data.
    pub buffer: Option<Buffer>,
    /// Where in the buffer, in bytes.
    pub buffer_offset: usize,
}

impl Operation {
    /// Fills `buffer[buffer_offset..][..len]` from the file.
    pub fn read(offset: u64, buffer: Buffer, buffer_offset: usize, len: usize) -> Operation {
        Operation { kind: Kind::Read, offset, len: len as u64, buffer: Some(buffer), buffer_offset }
    }

    /// Writes `buffer[buffer_offset..][..len]` to the file.
    pub fn write(offset: u64, buffer: Buffer, buffer_offset: usize, len: usize, durable: bool) -> Operation {
        let kind = Kind::Write { durable };
        Operation { kind, offset, len: len as u64, buffer: Some(buffer), buffer_offset }
    }

    /// Makes durable what completed before.
    pub fn sync() -> Operation {
        Operation { kind: Kind::Sync, offset: 0, len: 0, buffer: None, buffer_offset: 0 }
    }

    /// Does something to a range that moves no data.
    pub fn range(kind: Kind, offset: u64, len: u64) -> Operation {
        Operation { kind, offset, len, buffer: None, buffer_offset: 0 }
    }

    fn is_sound(&self) -> bool {
        match (self.kind, &self.buffer) {
            (Kind::Read, Some(buffer)) => self.is_inside(buffer) && buffer.is_exclusive(),
            (Kind::Write { .. }, Some(buffer)) => self.is_inside(buffer),
            (Kind::Read | Kind::Write { .. }, None) => false,
            _ => true,
        }
    }

    fn is_inside(&self, buffer: &Buffer) -> bool {
        let end = (self.buffer_offset as u64).checked_add(self.len);
        end.is_some_and(|end| end <= buffer.len() as u64)
    }
}

/// Locks the whole file for this open file description, until it is closed (`F_OFD_SETLK`). False if another
/// holds a lock against it. `is_exclusive` needs a file open for writing, the shared lock one open for
/// reading.
///
/// # Errors
/// The kernel's.
pub fn lock(file: &File, is_exclusive: bool) -> io::Result<bool> {
    crate::kernel::lock(file, is_exclusive)
}

/// An operation that may be given to the kernel: its range lies inside of its buffer, and nobody else reads
/// what it overwrites.
#[derive(Debug)]
pub(crate) struct Checked(Operation);

impl Checked {
    /// # Errors
    /// The operation comes back if it breaks the caller's side of the contract.
    pub fn new(operation: Operation) -> Result<Checked, Operation> {
        match operation.is_sound() {
            true => Ok(Checked(operation)),
            false => Err(operation),
        }
    }

    /// Whether there is nothing to do.
    pub fn is_void(&self) -> bool {
        self.0.len == 0 && self.0.kind != Kind::Sync
    }

    pub fn operation(&self) -> &Operation {
        &self.0
    }

    pub fn operation_mut(&mut self) -> &mut Operation {
        &mut self.0
    }

    pub fn into_operation(self) -> Operation {
        self.0
    }
}

/// An operation that the kernel is done with.
#[derive(Debug)]
pub struct Finished {
    /// The caller's own number for it.
    pub token: u64,
    /// Bytes moved, which may be fewer than asked for, or 0 for the kinds that move none.
    pub result: io::Result<usize>,
    /// The operation, with its buffer.
    pub operation: Operation,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    #[test]
    fn a_file_is_locked_once_and_free_again_when_closed() {
        let named = tempfile::NamedTempFile::new().expect("a file");
        let open = || OpenOptions::new().read(true).write(true).open(named.path()).expect("opened");
        let first = open();
        assert!(lock(&first, true).expect("an answer"));
        assert!(!lock(&open(), true).expect("an answer"));
        assert!(!lock(&open(), false).expect("an answer"));
        drop(first);
        let (one, other) = (open(), open());
        assert!(lock(&one, false).expect("an answer") && lock(&other, false).expect("an answer"));
        assert!(!lock(&open(), true).expect("an answer"));
    }

    #[test]
    fn an_operation_outside_of_its_buffer_never_reaches_the_kernel() {
        let buffer = || Buffer::contiguous(4096);
        assert!(Checked::new(Operation::read(0, buffer(), 0, 4096)).is_ok());
        assert!(Checked::new(Operation::read(0, buffer(), 1, 4096)).is_err());
        assert!(Checked::new(Operation::write(0, buffer(), usize::MAX, 2, false)).is_err());
        assert!(Checked::new(Operation::range(Kind::Read, 0, 512)).is_err());
    }

    #[test]
    fn nothing_is_read_into_memory_that_somebody_else_looks_at() {
        let buffer = Buffer::contiguous(4096);
        let looking = buffer.share(0, 512);
        let refused = Checked::new(Operation::read(0, buffer, 0, 4096)).expect_err("shared");
        drop(looking);
        assert!(Checked::new(refused).is_ok());
    }
}
