//! Errors of a request, by culprit. The target converts them to NVMe statuses in one place.
//!
//! | error | culprit | can the same request succeed later |
//! |---|---|---|
//! | `OutOfRange`, `ReadOnly` | host | no |
//! | `WrongLength` | caller in this program | no |
//! | `NoSpace` | file system | once there is space |
//! | `Shrunk` | the program that truncated the file | after the volume is reopened |
//! | `ReadFailed`, `WriteFailed`, `ShortWrite`, `SizeUnknown` | storage | possibly |
//! | `SyncFailed`, `Gone` | storage | after the volume is reopened |

use std::io;

use rustix::io::Errno;

/// Error of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// The host addressed blocks that do not exist.
    #[error("block range out of bounds: {blocks} blocks from {lba}, volume has {volume_blocks}")]
    OutOfRange {
        /// First block addressed.
        lba: u64,
        /// Number of blocks.
        blocks: u64,
        /// Size of the volume in blocks.
        volume_blocks: u64,
    },
    /// The volume is served read-only.
    #[error("the volume is read-only")]
    ReadOnly,
    /// The data length does not match the number of blocks.
    #[error("wrong data length: {given} bytes for {blocks} blocks")]
    WrongLength {
        /// Bytes given.
        given: usize,
        /// Blocks addressed.
        blocks: u64,
    },
    /// The file system has no space for the data (ENOSPC, EDQUOT, EFBIG).
    #[error("no space: {}; {}", errno(*raw_os_error), space_remedy(*raw_os_error))]
    NoSpace {
        /// OS error.
        raw_os_error: i32,
    },
    /// The file is smaller than the volume: it was truncated while it was served.
    #[error("file is smaller than the volume; restore its size, then {REOPEN}")]
    Shrunk,
    /// The size of the file is unknown, so it may have been truncated.
    #[error("cannot check the file size: {}; check its file system", errno(*raw_os_error))]
    SizeUnknown {
        /// OS error.
        raw_os_error: i32,
    },
    /// A read failed.
    #[error("read failed: {}", errno(*raw_os_error))]
    ReadFailed {
        /// OS error.
        raw_os_error: i32,
    },
    /// A write, zeroing, or deallocation failed.
    #[error("write failed: {}", errno(*raw_os_error))]
    WriteFailed {
        /// OS error.
        raw_os_error: i32,
    },
    /// A write was short and could not continue.
    #[error("short write: {done} of {len} bytes")]
    ShortWrite {
        /// Bytes written.
        done: u64,
        /// Bytes to write.
        len: u64,
    },
    /// The device does not exist any more (ENODEV, ENXIO): nothing succeeds until the volume is reopened.
    #[error("the device is gone: {}; attach it again, then {REOPEN}", errno(*raw_os_error))]
    Gone {
        /// OS error of the first request that found it gone.
        raw_os_error: i32,
    },
    /// A sync failed, now or earlier: written data may be lost, and the kernel reports the error
    /// only once. No more writes until the volume is reopened, and no reads from the page cache, which may have what
    /// the disk does not.
    #[error("sync failed, writes may be lost: {}; check the disk and the data, then {REOPEN}", errno(*raw_os_error))]
    SyncFailed {
        /// OS error of the sync.
        raw_os_error: i32,
    },
}

/// The last step of the remedy of a failure that stays.
const REOPEN: &str = "`isolane ctl namespace reopen`, or restart";

fn space_remedy(raw_os_error: i32) -> &'static str {
    if raw_os_error == Errno::FBIG.raw_os_error() {
        "raise the limit of file sizes (`ulimit -f`, LimitFSIZE=), or use a file system with larger files"
    } else {
        "free space on the file system of the volume"
    }
}

fn errno(raw_os_error: i32) -> io::Error {
    io::Error::from_raw_os_error(raw_os_error)
}
