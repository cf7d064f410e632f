//! A range of GPU memory, as the memory of a region.

use std::sync::Arc;

use isolane_memory::{DeviceMemory, DeviceStream};
use parking_lot::Mutex;

use crate::channel::{BUFFER_BYTES, Channel, Direction};
use crate::context::Context;
use crate::error::Result;

/// A range of one context.
pub(crate) struct Range {
    pub(crate) context: Arc<Context>,
    pub(crate) address: u64,
    /// Offsets of the ends of its allocations, in order. A copy must not cross one.
    pub(crate) ends: Box<[usize]>,
    /// Whether the range frees its memory.
    pub(crate) is_owned: bool,
}

impl Range {
    /// Returns address and length of the parts of a range in each allocation.
    fn parts(&self, offset: usize, len: usize) -> impl Iterator<Item = (u64, usize)> {
        let first = self.ends.partition_point(|end| *end <= offset);
        let (mut at, end) = (offset, offset + len);
        self.ends[first..].iter().map_while(move |allocation_end| {
            let part = at..end.min(*allocation_end);
            at = part.end;
            (!part.is_empty()).then(|| (self.address + part.start as u64, part.len()))
        })
    }

    fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.context.with_channel(|channel| {
            for (index, bytes) in bytes.chunks(BUFFER_BYTES).enumerate() {
                channel.buffer()[..bytes.len()].copy_from_slice(bytes);
                let parts = self.parts(offset + index * BUFFER_BYTES, bytes.len());
                channel.start(Direction::ToGpu, parts)?;
            }
            channel.finish()
        })
    }

    fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.context.with_channel(|channel| {
            let mut before: Option<&mut [u8]> = None;
            for (index, bytes) in bytes.chunks_mut(BUFFER_BYTES).enumerate() {
                let parts = self.parts(offset + index * BUFFER_BYTES, bytes.len());
                channel.start(Direction::FromGpu, parts)?;
                if let Some(before) = before.replace(bytes) {
                    before.copy_from_slice(&channel.buffer()[..before.len()]);
                }
            }
            if let Some(last) = before {
                let len = last.len();
                last.copy_from_slice(&channel.last()?[..len]);
            }
            Ok(())
        })
    }

    fn update(&self, offset: usize, change: &mut dyn FnMut(u64) -> u64) -> Result<u64> {
        /// Held while a value is read and written back, in any range: two can have the same memory.
        static UPDATES: Mutex<()> = Mutex::new(());
        let _guard = UPDATES.lock();
        let mut bytes = [0; size_of::<u64>()];
        self.copy_out(offset, &mut bytes)?;
        let found = u64::from_ne_bytes(bytes);
        self.copy_in(offset, &change(found).to_ne_bytes())?;
        Ok(found)
    }

    /// Reports the error of an operation.
    fn report<T>(&self, operation: &str, result: Result<T>) -> Option<T> {
        result
            .inspect_err(|error| {
                log::limited!(Warn, "GPU memory at {:#x}: {operation} failed: {error}", self.address);
            })
            .ok()
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        if self.is_owned {
            let freed = self.context.with_current(|| self.context.driver().free(self.address));
            self.report("cuMemFree", freed);
        }
    }
}

/// The memory of a region.
pub(crate) struct GpuMemory(pub(crate) Arc<Range>);

impl DeviceMemory for GpuMemory {
    fn copy_in(&self, offset: usize, bytes: &[u8]) -> bool {
        self.0.report("a write", self.0.copy_in(offset, bytes)).is_some()
    }

    fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> bool {
        self.0.report("a read", self.0.copy_out(offset, bytes)).is_some()
    }

    fn update(&self, offset: usize, change: &mut dyn FnMut(u64) -> u64) -> Option<u64> {
        self.0.report("an atomic operation", self.0.update(offset, change))
    }

    fn stream(&self) -> Option<Box<dyn DeviceStream>> {
        let channel = Some(self.0.context.take_channel()?);
        Some(Box::new(GpuStream { range: Arc::clone(&self.0), channel }))
    }
}

/// A channel that copies to a range.
struct GpuStream {
    range: Arc<Range>,
    /// Taken when the stream is dropped.
    channel: Option<Channel>,
}

impl GpuStream {
    fn channel(&mut self) -> &mut Channel {
        self.channel.as_mut().expect("the channel is taken by `drop` only")
    }
}

impl DeviceStream for GpuStream {
    fn buffer(&mut self) -> &mut [u8] {
        self.channel().buffer()
    }

    fn start(&mut self, offset: usize, len: usize) -> bool {
        let range = Arc::clone(&self.range);
        let started =
            range.context.with_current(|| self.channel().start(Direction::ToGpu, range.parts(offset, len)));
        if started.is_err() {
            // The copy before is in progress if the context was not made current. The first error decides.
            self.finish();
        }
        range.report("a write", started).is_some()
    }

    fn finish(&mut self) -> bool {
        if !self.channel().is_copying() {
            return true;
        }
        let range = Arc::clone(&self.range);
        range.report("a write", range.context.finish(self.channel())).is_some()
    }
}

impl Drop for GpuStream {
    fn drop(&mut self) {
        self.finish();
        self.channel.take().into_iter().for_each(|channel| self.range.context.put_channel(channel));
    }
}
