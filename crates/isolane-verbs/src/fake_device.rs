//! A device for tests, whose memory the CPU cannot access: copies are executed when they are waited for, in order.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use isolane_memory::{DeviceMemory, DeviceStream, MemoryRegion};

/// Length of a buffer of a stream in bytes, shorter than most payloads.
pub const BUFFER_BYTES: usize = 700;

/// Memory of a device, and how its operations end.
#[derive(Default)]
pub struct FakeDevice {
    bytes: Mutex<Vec<u8>>,
    /// Number of streams that are not in use.
    streams: AtomicUsize,
    /// Number of operations that succeed.
    successes: AtomicUsize,
    /// Number of operations that fail after them; then all succeed again.
    failures: AtomicUsize,
}

impl FakeDevice {
    /// Returns a device with `len` zeroes, and at most `streams` streams at a time.
    pub fn new(len: usize, streams: usize) -> Arc<FakeDevice> {
        let bytes = Mutex::new(vec![0; len]);
        Arc::new(FakeDevice { bytes, streams: AtomicUsize::new(streams), ..FakeDevice::default() })
    }

    /// Returns a region with all of its memory.
    pub fn region(self: &Arc<FakeDevice>) -> Arc<MemoryRegion> {
        // Not mapped in any process.
        let start = NonNull::new(std::ptr::without_provenance_mut(0x10_0000_0000_0000)).unwrap();
        let len = self.bytes.lock().unwrap().len();
        Arc::new_cyclic(|region| {
            let memory = FakeMemory { device: Arc::clone(self), region: Weak::clone(region) };
            MemoryRegion::on_device(start, len, Box::new(memory))
        })
    }

    /// Lets `count` operations fail after `successes` others.
    pub fn fail(&self, successes: usize, count: usize) {
        self.successes.store(successes, Ordering::Relaxed);
        self.failures.store(count, Ordering::Relaxed);
    }

    /// Number of operations that fail, of those that [`FakeDevice::fail`] has named.
    pub fn failures_left(&self) -> usize {
        self.failures.load(Ordering::Relaxed)
    }

    /// Number of streams that are not in use.
    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Returns whether the next operation succeeds.
    fn next(&self) -> bool {
        let take = |count: &AtomicUsize| {
            count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
        };
        self.failures_left() == 0 || take(&self.successes) || !take(&self.failures)
    }
}

struct FakeMemory {
    device: Arc<FakeDevice>,
    region: Weak<MemoryRegion>,
}

impl DeviceMemory for FakeMemory {
    fn copy_in(&self, offset: usize, bytes: &[u8]) -> bool {
        let succeeds = self.device.next();
        if succeeds {
            self.device.bytes.lock().unwrap()[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        succeeds
    }

    fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> bool {
        let succeeds = self.device.next();
        if succeeds {
            bytes.copy_from_slice(&self.device.bytes.lock().unwrap()[offset..offset + bytes.len()]);
        }
        succeeds
    }

    fn update(&self, offset: usize, change: &mut dyn FnMut(u64) -> u64) -> Option<u64> {
        if !self.device.next() {
            return None;
        }
        let mut bytes = self.device.bytes.lock().unwrap();
        let word = &mut bytes[offset..offset + 8];
        let found = u64::from_ne_bytes(word.try_into().unwrap());
        word.copy_from_slice(&change(found).to_ne_bytes());
        Some(found)
    }

    fn stream(&self) -> Option<Box<dyn DeviceStream>> {
        let take = |left: usize| left.checked_sub(1);
        self.device.streams.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        let buffers = [vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]];
        Some(Box::new(FakeStream {
            device: Arc::clone(&self.device),
            region: Weak::clone(&self.region),
            buffers,
            free: 0,
            copy: None,
        }))
    }
}

struct FakeStream {
    device: Arc<FakeDevice>,
    region: Weak<MemoryRegion>,
    buffers: [Vec<u8>; 2],
    free: usize,
    /// Offset of the copy in progress, and its bytes.
    copy: Option<(usize, Vec<u8>)>,
}

impl DeviceStream for FakeStream {
    fn buffer(&mut self) -> &mut [u8] {
        &mut self.buffers[self.free]
    }

    fn start(&mut self, offset: usize, len: usize) -> bool {
        if !self.finish() || !self.device.next() {
            return false;
        }
        self.copy = Some((offset, self.buffers[self.free][..len].to_vec()));
        self.free = 1 - self.free;
        true
    }

    fn finish(&mut self) -> bool {
        let Some((offset, bytes)) = self.copy.take() else { return true };
        let succeeds = self.device.next();
        // The registration, and the owner of the copy. Deregistration waits until there is no other owner.
        assert!(self.region.strong_count() >= 2, "deregistration can end before a copy");
        assert!(self.buffers[1 - self.free][..bytes.len()] == bytes, "a buffer was changed during its copy");
        if succeeds {
            self.device.bytes.lock().unwrap()[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
        succeeds
    }
}

impl Drop for FakeStream {
    fn drop(&mut self) {
        self.finish();
        self.device.streams.fetch_add(1, Ordering::Relaxed);
    }
}
