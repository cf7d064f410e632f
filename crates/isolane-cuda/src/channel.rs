//! Two buffers of the host that the GPU accesses, and a stream of copies.
//!
//! Invariant: at most one copy is in progress, and [`Channel::buffer`] is not its buffer.

use std::ptr::NonNull;

use crate::driver::{Driver, StreamHandle};
use crate::error::Result;

/// Length of a buffer in bytes.
pub(crate) const BUFFER_BYTES: usize = 256 * 1024;

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToGpu,
    FromGpu,
}

/// A stream and its buffers. The context of all calls is the one that was current in [`Channel::new`].
pub(crate) struct Channel {
    driver: &'static Driver,
    stream: StreamHandle,
    /// Both buffers.
    memory: NonNull<u8>,
    /// Index of the buffer that is free.
    free: usize,
    is_copying: bool,
}

// SAFETY: the memory belongs to the channel.
unsafe impl Send for Channel {}

impl Channel {
    pub(crate) fn new(driver: &'static Driver) -> Result<Channel> {
        let stream = driver.create_stream()?;
        match driver.allocate_host(2 * BUFFER_BYTES) {
            Ok(memory) => {
                // SAFETY: new memory with this length.
                unsafe { memory.as_ptr().write_bytes(0, 2 * BUFFER_BYTES) };
                Ok(Channel { driver, stream, memory, free: 0, is_copying: false })
            }
            Err(error) => {
                // SAFETY: nothing else knows the stream.
                unsafe { driver.destroy_stream(stream) }?;
                Err(error)
            }
        }
    }

    /// Frees the memory, after the copy in progress.
    pub(crate) fn destroy(mut self) -> Result<()> {
        let finished = self.finish();
        // SAFETY: no copy is in progress, unless the context is lost with all copies.
        unsafe {
            self.driver.destroy_stream(self.stream)?;
            self.driver.free_host(self.memory)?;
        }
        finished
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
        // SAFETY: the memory has two initialized buffers, belongs to the channel, and is borrowed with it.
        unsafe {
            std::slice::from_raw_parts_mut(self.memory.as_ptr().add(index * BUFFER_BYTES), BUFFER_BYTES)
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
        let mut host = (self.memory.addr().get() + self.free * BUFFER_BYTES) as u64;
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
