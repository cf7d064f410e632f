//! File operations of a reactor. Offsets and lengths are not checked against the file.

use isolane_memory::Buffer;
use rustix::fs::fcntl_get_seals;
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::time::Duration;

pub use crate::sys::{lock, unlock};

/// Kind of a file operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOpKind {
    /// Read into the operation's part of its buffer.
    Read,
    /// Write the operation's part of its buffer.
    Write {
        /// Complete only when the data is durable (`RWF_DSYNC`).
        durable: bool,
    },
    /// `fdatasync`; no buffer.
    Sync,
    /// Get the size of a regular file in bytes, as the result; no buffer.
    Size,
    /// `fallocate(PUNCH_HOLE | KEEP_SIZE)`: the range reads as zeroes and uses no space.
    PunchHole,
    /// `fallocate(ZERO_RANGE | KEEP_SIZE)`: the range reads as zeroes and keeps its space.
    ZeroRange,
    /// `BLKDISCARD` of a block device: the range may read as anything.
    DeviceDiscard,
    /// `BLKZEROOUT` of a block device: the range reads as zeroes.
    DeviceZero,
}

/// One operation on one file.
#[derive(Debug)]
pub struct FileOp {
    /// Kind of operation.
    pub kind: FileOpKind,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length, in bytes.
    pub len: u64,
    /// Source or destination of the data; `None` for kinds that move no data.
    pub buffer: Option<Buffer>,
    /// Offset in the buffer, in bytes.
    pub buffer_offset: usize,
    /// Once completed: time that a range operation took, without its wait for a thread.
    pub duration: Duration,
}

impl FileOp {
    /// Creates a read into `buffer[buffer_offset..][..len]`.
    pub fn read(offset: u64, buffer: Buffer, buffer_offset: usize, len: usize) -> FileOp {
        let operation = FileOp::range(FileOpKind::Read, offset, len as u64);
        FileOp { buffer: Some(buffer), buffer_offset, ..operation }
    }

    /// Creates a write of `buffer[buffer_offset..][..len]`.
    pub fn write(offset: u64, buffer: Buffer, buffer_offset: usize, len: usize, durable: bool) -> FileOp {
        let operation = FileOp::range(FileOpKind::Write { durable }, offset, len as u64);
        FileOp { buffer: Some(buffer), buffer_offset, ..operation }
    }

    /// Creates a sync of all completed writes.
    pub fn sync() -> FileOp {
        FileOp::range(FileOpKind::Sync, 0, 0)
    }

    /// Creates a query for the size of a regular file.
    pub fn size() -> FileOp {
        FileOp::range(FileOpKind::Size, 0, 0)
    }

    /// Creates an operation on a range that moves no data.
    pub fn range(kind: FileOpKind, offset: u64, len: u64) -> FileOp {
        FileOp { kind, offset, len, buffer: None, buffer_offset: 0, duration: Duration::ZERO }
    }

    fn is_valid(&self) -> bool {
        match (self.kind, &self.buffer) {
            (FileOpKind::Read, Some(buffer)) => self.is_inside(buffer) && buffer.is_exclusive(),
            (FileOpKind::Write { .. }, Some(buffer)) => self.is_inside(buffer),
            (FileOpKind::Read | FileOpKind::Write { .. }, None) => false,
            _ => true,
        }
    }

    fn is_inside(&self, buffer: &Buffer) -> bool {
        let end = (self.buffer_offset as u64).checked_add(self.len);
        end.is_some_and(|end| end <= buffer.len() as u64)
    }
}

/// Whether operations on this file can block indefinitely, as on a network or user-space file
/// system. Never blocks: the kernel answers both queries from memory.
pub fn can_hang(file: &File) -> bool {
    let mut byte = [0];
    let read = preadv2(file, &mut [IoSliceMut::new(&mut byte)], 0, ReadWriteFlags::NOWAIT);
    // Only in-memory files have seals.
    read == Err(Errno::OPNOTSUPP) && fcntl_get_seals(file).is_err()
}

/// An operation that is safe to submit: its range lies inside its buffer, and a read's buffer is
/// not shared.
#[derive(Debug)]
pub(crate) struct FileJob {
    pub token: u64,
    /// Keeps the descriptor open.
    pub file: Arc<File>,
    operation: FileOp,
}

impl FileJob {
    /// # Errors
    /// Returns the operation if it is invalid.
    pub fn new(token: u64, file: &Arc<File>, operation: FileOp) -> Result<FileJob, FileOp> {
        if operation.is_valid() {
            Ok(FileJob { token, file: Arc::clone(file), operation })
        } else {
            Err(operation)
        }
    }

    /// Whether the operation does nothing.
    pub fn is_noop(&self) -> bool {
        self.operation.len == 0 && !matches!(self.operation.kind, FileOpKind::Sync | FileOpKind::Size)
    }

    pub fn operation(&self) -> &FileOp {
        &self.operation
    }

    pub fn parts_mut(&mut self) -> (&File, &mut FileOp) {
        (&self.file, &mut self.operation)
    }

    pub fn complete(self, result: io::Result<usize>) -> FileCompletion {
        FileCompletion { token: self.token, result, operation: self.operation, thread: None }
    }
}

/// A completed operation.
#[derive(Debug)]
pub struct FileCompletion {
    /// The caller's token of the operation.
    pub token: u64,
    /// Bytes transferred, possibly short; 0 for kinds that move no data; the size for
    /// [`FileOpKind::Size`].
    pub result: io::Result<usize>,
    /// The operation with its buffer.
    pub operation: FileOp,
    /// Start and end on a file thread, by the [`clock`](crate::clock); `None` if the kernel executed it.
    pub thread: Option<(u64, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    #[test]
    fn closing_a_file_releases_its_lock() {
        let named = tempfile::NamedTempFile::new().expect("a file");
        let open = || OpenOptions::new().read(true).write(true).open(named.path()).expect("opened");
        let first = open();
        assert!(lock(&first, true).expect("locking"));
        assert!(!lock(&open(), true).expect("locking"));
        assert!(!lock(&open(), false).expect("locking"));
        drop(first);
        let (one, other) = (open(), open());
        assert!(lock(&one, false).expect("locking") && lock(&other, false).expect("locking"));
        assert!(!lock(&open(), true).expect("locking"));
    }

    #[test]
    fn can_hang_detects_blocking_file_systems() {
        let in_memory = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        let in_memory = File::from(in_memory);
        in_memory.set_len(4096).expect("its length");
        assert!(!can_hang(&in_memory));
        // Like FUSE and NFS, procfs does not support `RWF_NOWAIT`.
        assert!(can_hang(&File::open("/proc/self/comm").expect("opened")));
    }

    #[test]
    fn rejects_operation_beyond_its_buffer() {
        let (file, buffer) = (Arc::new(tempfile::tempfile().expect("a file")), || Buffer::contiguous(4096));
        assert!(FileJob::new(0, &file, FileOp::read(0, buffer(), 0, 4096)).is_ok());
        assert!(FileJob::new(0, &file, FileOp::read(0, buffer(), 1, 4096)).is_err());
        assert!(FileJob::new(0, &file, FileOp::write(0, buffer(), usize::MAX, 2, false)).is_err());
        assert!(FileJob::new(0, &file, FileOp::range(FileOpKind::Read, 0, 512)).is_err());
    }

    #[test]
    fn rejects_read_into_shared_buffer() {
        let buffer = Buffer::contiguous(4096);
        let (file, share) = (Arc::new(tempfile::tempfile().expect("a file")), buffer.share(0, 512));
        let refused = FileJob::new(0, &file, FileOp::read(0, buffer, 0, 4096)).expect_err("shared");
        drop(share);
        assert!(FileJob::new(0, &file, refused).is_ok());
    }
}
