//! Why a request failed, by culprit. The target turns this into an NVMe status, in one place.
//!
//! | error | culprit | may the same request succeed later |
//! |---|---|---|
//! | `OutOfRange`, `ReadOnly` | host | no |
//! | `WrongLength` | the caller inside this program | no |
//! | `NoSpace` | file system | once there is space |
//! | `Shrunk` | whoever truncated the file | not before the volume is opened anew |
//! | `ReadFailed`, `WriteFailed`, `ShortWrite`, `SizeUnknown` | storage | perhaps |
//! | `SyncFailed` | storage | not before the volume is opened anew |

use std::io;

/// Why a volume could not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// The host named blocks that do not exist.
    #[error("{blocks} blocks from {lba} are outside of a volume of {volume_blocks} blocks")]
    OutOfRange {
        /// First block named.
        lba: u64,
        /// How many.
        blocks: u64,
        /// How many the volume has.
        volume_blocks: u64,
    },
    /// The volume is served read-only.
    #[error("the volume is read-only")]
    ReadOnly,
    /// The data of a write is not as long as its blocks.
    #[error("{given} bytes were given for {blocks} blocks")]
    WrongLength {
        /// Bytes given.
        given: usize,
        /// Blocks named.
        blocks: u64,
    },
    /// The file system has no room for the data (ENOSPC, EDQUOT, EFBIG).
    #[error("no space: {}; free some on the file system that holds the file", errno(*raw_os_error))]
    NoSpace {
        /// What the system said.
        raw_os_error: i32,
    },
    /// The file ends before the volume does: something truncated it while it was served.
    #[error("the file has become smaller than the volume; restore its size and restart the target")]
    Shrunk,
    /// The system does not say how long the file is, so it may have been truncated.
    #[error("cannot check the file's size: {}; check its file system", errno(*raw_os_error))]
    SizeUnknown {
        /// What the system said.
        raw_os_error: i32,
    },
    /// The system could not read.
    #[error("reading failed: {}", errno(*raw_os_error))]
    ReadFailed {
        /// What the system said.
        raw_os_error: i32,
    },
    /// The system could not write, zero or deallocate.
    #[error("writing failed: {}", errno(*raw_os_error))]
    WriteFailed {
        /// What the system said.
        raw_os_error: i32,
    },
    /// The system accepted only a part, and then nothing.
    #[error("only {done} of {len} bytes were written")]
    ShortWrite {
        /// Bytes written.
        done: u64,
        /// Bytes to write.
        len: u64,
    },
    /// A sync failed, now or earlier: data that was written may be lost, and the kernel would not say so
    /// twice. Nothing is written any more until the volume is opened anew.
    #[error("a sync failed, so writes may be lost: {}; check the storage, then restart the target", errno(*raw_os_error))]
    SyncFailed {
        /// What the system said when it failed.
        raw_os_error: i32,
    },
}

fn errno(raw_os_error: i32) -> io::Error {
    io::Error::from_raw_os_error(raw_os_error)
}
