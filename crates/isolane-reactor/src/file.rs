//! File operations that a reactor carries out. Not a file system: offsets and lengths are the caller's
//! business.

use isolane_memory::Buffer;
use rustix::fs::fcntl_get_seals;
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::{self, IoSliceMut};

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
    /// The size of a regular file; no buffer. Its result is the size in bytes.
    Size,
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

    /// Asks for the size of a regular file.
    pub fn size() -> Operation {
        Operation { kind: Kind::Size, offset: 0, len: 0, buffer: None, buffer_offset: 0 }
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

/// Whether the kernel waits for the file with each operation, and somebody else may let it wait for ever: as on
/// a network or user-space file system. Never waits itself: the kernel answers both questions out of its memory.
pub fn may_hang(file: &File) -> bool {
    let mut byte = [0];
    let read = preadv2(file, &mut [IoSliceMut::new(&mut byte)], 0, ReadWriteFlags::NOWAIT);
    // Only files in memory have seals.
    read == Err(Errno::OPNOTSUPP) && fcntl_get_seals(file).is_err()
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
        self.0.len == 0 && !matches!(self.0.kind, Kind::Sync | Kind::Size)
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
    /// Bytes moved, which may be fewer than asked for, or 0 for the kinds that move none; of
    /// [`Kind::Size`] the size.
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
    fn tells_files_that_never_keep_the_kernel_waiting_from_others() {
        let in_memory = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        let in_memory = File::from(in_memory);
        in_memory.set_len(4096).expect("its length");
        assert!(!may_hang(&in_memory));
        // Like FUSE and NFS, procfs has no reads that do not wait.
        assert!(may_hang(&File::open("/proc/self/comm").expect("opened")));
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
