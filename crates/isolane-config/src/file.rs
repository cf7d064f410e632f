//! Reading a file, bounded and without waiting.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat, open};

/// Maximum size of a file, in bytes: about 25,000 namespaces.
pub const MAX_FILE_BYTES: u64 = 4 << 20;

/// A file that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system does not open or read it.
    #[error("{0}")]
    System(#[from] io::Error),
    /// It is a directory, a pipe, a socket, or a device.
    #[error("{0} instead of a file; name a regular file")]
    NotAFile(&'static str),
    /// It is longer than [`MAX_FILE_BYTES`].
    #[error("longer than {} MiB; name a configuration file, or split it among several targets", MAX_FILE_BYTES >> 20)]
    TooLong,
    /// It is not UTF-8.
    #[error("line {0}: not UTF-8; save the file as UTF-8 text")]
    NotText(usize),
}

/// Reads a regular file. A pipe without a writer does not hold the caller.
///
/// # Errors
/// The file cannot be read, or is not text.
pub fn read(path: &Path) -> Result<String, ReadError> {
    let descriptor = open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
        .map_err(io::Error::from)?;
    read_descriptor(descriptor)
}

fn read_descriptor(descriptor: OwnedFd) -> Result<String, ReadError> {
    let status = fstat(&descriptor).map_err(io::Error::from)?;
    match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(ReadError::NotAFile("a directory")),
        FileType::Fifo => return Err(ReadError::NotAFile("a pipe")),
        FileType::Socket => return Err(ReadError::NotAFile("a socket")),
        _ => return Err(ReadError::NotAFile("a device")),
    }
    let mut bytes = Vec::new();
    File::from(descriptor).take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(ReadError::TooLong);
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        ReadError::NotText(valid.iter().filter(|byte| **byte == b'\n').count() + 1)
    })
}
