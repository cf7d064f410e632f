//! Disk interface for block devices, files, and NVMe/TCP volumes.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use isolane_host::{BlockingVolume, Options, Reconnect};
use rustix::fs::OFlags;
use rustix::io::{ReadWriteFlags, pwritev2};

/// The largest run of blocks of one operation.
pub const MAX_RUN_BYTES: usize = 64 << 10;

/// Disk with durable writes.
pub trait Disk: Send {
    /// Reads whole blocks.
    fn read(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()>;
    /// Writes whole blocks; with `fua` they are durable when it returns.
    fn write(&mut self, offset: u64, data: &[u8], fua: bool) -> io::Result<()>;
    /// Makes all completed writes durable.
    fn flush(&mut self) -> io::Result<()>;
}

/// Opens a disk: an `nvme+tcp://` URI through Isolane's host, anything else as a block device or file.
pub fn open(name: &str) -> io::Result<Box<dyn Disk>> {
    if name.starts_with("nvme+tcp://") {
        return Ok(Box::new(Remote::connect(name)?));
    }
    Ok(Box::new(Device::open(Path::new(name))?))
}

/// A block device behind the kernel, without its page cache.
struct Device(File);

impl Device {
    fn open(path: &Path) -> io::Result<Device> {
        let flags = OFlags::DIRECT.bits() as i32;
        Ok(Device(OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?))
    }
}

impl Disk for Device {
    fn read(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(data, offset)
    }

    fn write(&mut self, offset: u64, data: &[u8], fua: bool) -> io::Result<()> {
        // The kernel turns a direct write with RWF_DSYNC into a FUA write, and flushes after it.
        let flags = if fua { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
        let written = pwritev2(&self.0, &[IoSlice::new(data)], offset, flags)?;
        if written == data.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// Volume through Isolane's host, without reconnection: a write with an unknown result is not repeated.
struct Remote(BlockingVolume);

impl Remote {
    fn connect(name: &str) -> io::Result<Remote> {
        let uri = name.parse().map_err(io::Error::other)?;
        let options = Options { reconnect: Reconnect::never(), ..Options::default() };
        Ok(Remote(BlockingVolume::connect(&uri, options).map_err(io::Error::other)?))
    }
}

impl Disk for Remote {
    fn read(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.0.read_at(data, offset).map_err(io::Error::other)
    }

    fn write(&mut self, offset: u64, data: &[u8], fua: bool) -> io::Result<()> {
        let result = if fua { self.0.write_durable_at(data, offset) } else { self.0.write_at(data, offset) };
        result.map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(io::Error::other)
    }
}

/// Memory for one run of blocks, aligned for direct I/O.
pub fn run(bytes: usize) -> AlignedBuf {
    let memory = vec![0; bytes + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    AlignedBuf { memory, start, bytes }
}

const ALIGNMENT: usize = 4096;

/// Aligned memory; the vector never grows and keeps its alignment.
pub struct AlignedBuf {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.bytes]
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }
}
