//! Two buffers of the host that the GPU accesses, and a stream of copies.
//!
//! Invariant: at most one copy is in progress, and [`Channel::buffer`] is not its buffer.

use std::ptr::{NonNull, null_mut};

use crate::driver::{Driver, StreamHandle};
use crate::error::{CudaError, Result};

/// Length of a buffer in bytes.
pub(crate) const BUFFER_BYTES: usize = 256 * 1024;

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToGpu,
    FromGpu,
}

/// Memory for both buffers. It is not the driver's, so that it stays mapped when the program ends the context.
struct Buffers {
    start: NonNull<u8>,
    /// Whether the driver has pinned the memory.
    is_pinned: bool,
}

impl Buffers {
    fn map() -> Result<Buffers> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // Shared, so that a child process does not make the kernel replace pages that the GPU accesses.
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(null_mut(), Buffers::LEN, protection, flags, -1, 0) };
        let start = NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED);
        let buffers = start.map(|start| Buffers { start, is_pinned: false });
        buffers.ok_or(CudaError::HostMemory { len: Buffers::LEN })
    }

    /// Pins the memory for the current context and all others.
    fn pin(&mut self, driver: &Driver) -> Result<()> {
        // SAFETY: the pages belong to this value, which returns the addresses to the system only once they are unpinned.
        unsafe { driver.register_host(self.start, Buffers::LEN) }?;
        self.is_pinned = true;
        Ok(())
    }

    fn unpin(&mut self, driver: &Driver) -> Result<()> {
        if self.is_pinned {
            driver.unregister_host(self.start)?;
            self.is_pinned = false;
        }
        Ok(())
    }

    const LEN: usize = 2 * BUFFER_BYTES;
}

impl Drop for Buffers {
    fn drop(&mut self) {
        let start = self.start.as_ptr().cast();
        // SAFETY: the mapping belongs to this value, and a driver that has pinned its pages holds them. The addresses
        // remain in use if the driver may know them as those of the pages.
        unsafe {
            if self.is_pinned {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
                libc::mmap(start, Buffers::LEN, libc::PROT_NONE, flags, -1, 0);
            } else {
                libc::munmap(start, Buffers::LEN);
            }
        }
    }
}

// SAFETY: the mapping belongs to this value.
unsafe impl Send for Buffers {}

/// A stream and its buffers. The context of all calls is the one that was current in [`Channel::new`].
pub(crate) struct Channel {
    driver: &'static Driver,
    stream: StreamHandle,
    buffers: Buffers,
    /// Index of the buffer that is free.
    free: usize,
    is_copying: bool,
}

impl Channel {
    pub(crate) fn new(driver: &'static Driver) -> Result<Channel> {
        let mut buffers = Buffers::map()?;
        let stream = driver.create_stream()?;
        if let Err(error) = buffers.pin(driver) {
            log::limited!(Warn, "copies to a GPU are slow, because their buffers are not pinned: {error}");
        }
        Ok(Channel { driver, stream, buffers, free: 0, is_copying: false })
    }

    /// Waits for the copy in progress, and makes all calls that free something. Returns the first error.
    pub(crate) fn destroy(mut self) -> Result<()> {
        let finished = self.finish();
        // SAFETY: the stream belongs to the channel, which ends.
        let destroyed = unsafe { self.driver.destroy_stream(self.stream) };
        finished.and(destroyed).and(self.buffers.unpin(self.driver))
    }

    /// Returns the buffer that no copy uses. After [`Channel::start`], it has the bytes of the copy before.
    pub(crate) fn buffer(&mut self) -> &mut [u8] {
        self.slice(self.free)
    }

    /// Waits for the copy in progress. Returns its buffer.
    pub(crate) fn last(&mut self) -> Result<&mut [u8]> {
        self.finish()?;
        Ok(self.slice(1 - self.free))
    }

    /// Returns a buffer that no copy uses.
    fn slice(&mut self, index: usize) -> &mut [u8] {
        // SAFETY: the memory has two buffers, initialized by the kernel, belongs to the channel, and is borrowed with it.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.buffers.start.as_ptr().add(index * BUFFER_BYTES),
                BUFFER_BYTES,
            )
        }
    }

    /// Waits for the copy before, and starts one between the start of the buffer and ranges of the GPU, each with address
    /// and length. If it fails, none is in progress.
    pub(crate) fn start(
        &mut self,
        direction: Direction,
        ranges: impl Iterator<Item = (u64, usize)>,
    ) -> Result<()> {
        self.finish()?;
        let mut host = (self.buffers.start.addr().get() + self.free * BUFFER_BYTES) as u64;
        for (gpu, len) in ranges {
            let (to, from) = if direction == Direction::ToGpu { (gpu, host) } else { (host, gpu) };
            // SAFETY: the ranges have at most the length of the buffer, to which no reference is in use until the copy
            // has ended: `free` is the other one then.
            if let Err(error) = unsafe { self.driver.copy(to, from, len, self.stream) } {
                // The first error decides.
                let _ = self.finish();
                return Err(error);
            }
            self.is_copying = true;
            host += len as u64;
        }
        self.free = 1 - self.free;
        Ok(())
    }

    /// Whether a copy is in progress.
    pub(crate) fn is_copying(&self) -> bool {
        self.is_copying
    }

    /// Waits for the copy in progress, if there is one.
    pub(crate) fn finish(&mut self) -> Result<()> {
        if std::mem::take(&mut self.is_copying) { self.driver.synchronize(self.stream) } else { Ok(()) }
    }
}
