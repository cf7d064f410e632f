//! Payload that arrives for the memory of a device: received into one buffer while the other one is copied.
//!
//! Invariant: bytes count as placed only once their copy has ended without an error.

use std::sync::Arc;

use isolane_memory::{DeviceStream, MemoryRegion};

/// The last bytes of a payload that have arrived, all for one range of a device.
pub(super) struct Stage {
    stream: Box<dyn DeviceStream>,
    /// Offset in the region of the first byte that is not placed.
    offset: usize,
    /// Number of bytes whose copy is in progress.
    copying: usize,
    /// Number of bytes after them, at the start of the stream's buffer.
    filled: usize,
    /// After the stream, whose end waits for the copy in progress: deregistration waits until nothing has the region.
    _region: Arc<MemoryRegion>,
}

/// The device has reported an error.
pub(super) struct CopyFailed;

impl Stage {
    /// Returns a stage for the bytes of a region from `offset` on. `None` if all streams are in use.
    pub(super) fn new(region: &Arc<MemoryRegion>, offset: usize) -> Option<Stage> {
        let stream = region.device_stream()?;
        Some(Stage { stream, offset, copying: 0, filled: 0, _region: Arc::clone(region) })
    }

    /// Adds bytes at the start. `None` if the buffer is shorter.
    pub(super) fn with(mut self, bytes: &[u8]) -> Option<Stage> {
        self.free().get_mut(..bytes.len())?.copy_from_slice(bytes);
        self.add(bytes.len());
        Some(self)
    }

    /// Number of bytes that have arrived, and are not placed.
    pub(super) fn len(&self) -> usize {
        self.copying + self.filled
    }

    /// Returns the place of the next bytes, which is not empty.
    pub(super) fn free(&mut self) -> &mut [u8] {
        &mut self.stream.buffer()[self.filled..]
    }

    /// Adds bytes that are in their place.
    pub(super) fn add(&mut self, count: usize) {
        self.filled += count;
    }

    /// Starts to copy a full buffer, and copies everything if `is_last`. Bytes whose copy has ended are placed.
    pub(super) fn copy(&mut self, is_last: bool) -> Result<(), CopyFailed> {
        if self.free().is_empty() || (is_last && self.filled > 0) {
            if !self.stream.start(self.offset + self.copying, self.filled) {
                return Err(CopyFailed);
            }
            self.offset += self.copying;
            (self.copying, self.filled) = (self.filled, 0);
        }
        if is_last { self.finish().map(|_| ()).ok_or(CopyFailed) } else { Ok(()) }
    }

    /// Waits for the copy in progress. Returns the number of bytes that are placed by it, `None` if it has failed. The
    /// other bytes are lost with the stage.
    pub(super) fn finish(&mut self) -> Option<usize> {
        let copying = std::mem::take(&mut self.copying);
        self.offset += copying;
        self.stream.finish().then_some(copying)
    }
}
