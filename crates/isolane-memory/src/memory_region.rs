//! Registered memory of verbs: written at any time by peers, several connections, and the program.
//!
//! Memory of the caller can be unmapped while it is registered. The kernel then finds that, and the access fails.
//! Memory of a device is accessed by the device only.
//!
//! Invariant: no reference to the bytes is ever formed. They are copied, changed by atomic operations, or their
//! address is passed to the kernel.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io::{self, IoSliceMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::device::{DeviceMemory, DeviceStream, is_readable};
use crate::run::Run;
use crate::{PAGE_SIZE, guarded_copy, kernel_copy};

/// Memory with many writers. Its content is whatever they wrote last, byte by byte.
pub struct MemoryRegion {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

/// Owner of the memory of a region.
enum Owner {
    /// The region, which has allocated it.
    Region(Layout),
    /// A value that keeps it mapped.
    Value(#[expect(dead_code, reason = "dropped with the region")] Box<dyn Send + Sync>),
    /// The caller, who can unmap it.
    Caller,
    /// A device. The address is a number there.
    Device(Box<dyn DeviceMemory>),
}

// SAFETY: the memory is not tied to a thread; all access is by copies, atomics, and the kernel.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above; no reference to the bytes exists.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Allocates `len` zeroes at a page boundary.
    ///
    /// # Errors
    /// If `len` is 0 or there is no memory.
    pub fn allocate(len: usize) -> io::Result<Arc<MemoryRegion>> {
        let layout = Layout::from_size_align(len, PAGE_SIZE).map_err(io::Error::other)?;
        if len == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a memory region of 0 bytes; allocate at least 1",
            ));
        }
        // SAFETY: the layout has a size.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Arc::new(MemoryRegion { start, len, owner: Owner::Region(layout) }))
    }

    /// Returns a region of memory that the caller owns.
    ///
    /// # Safety
    /// Until the region and all payloads of it are dropped, the memory is the caller's, and there are no references to
    /// it. If a part of it is not mapped, the caller uses only the functions that report this, and the kernel.
    pub unsafe fn from_raw(start: NonNull<u8>, len: usize) -> MemoryRegion {
        MemoryRegion { start, len, owner: Owner::Caller }
    }

    /// Returns a region of the memory of `owner`, which is dropped with the region.
    ///
    /// # Safety
    /// Until `owner` is dropped, the memory stays mapped, and there are no references to it. If it is not writable, the
    /// caller uses only functions that read it.
    pub unsafe fn from_owner(start: NonNull<u8>, len: usize, owner: Box<dyn Send + Sync>) -> MemoryRegion {
        MemoryRegion { start, len, owner: Owner::Value(owner) }
    }

    /// Returns a region of `len` bytes in the memory of a device, which work requests address from `start` on.
    ///
    /// # Panics
    /// If the range wraps.
    pub fn on_device(start: NonNull<u8>, len: usize, device: Box<dyn DeviceMemory>) -> MemoryRegion {
        assert!(start.addr().checked_add(len).is_some(), "{len} bytes from {start:p} on wrap");
        MemoryRegion { start, len, owner: Owner::Device(device) }
    }

    /// Whether all bytes stay mapped while the region lives.
    fn stays_mapped(&self) -> bool {
        matches!(self.owner, Owner::Region(_) | Owner::Value(_))
    }

    /// Whether the memory belongs to a device. The kernel cannot access it.
    #[inline]
    pub fn is_on_device(&self) -> bool {
        matches!(self.owner, Owner::Device(_))
    }

    /// Returns the device whose memory it is.
    #[inline]
    fn device(&self) -> Option<&dyn DeviceMemory> {
        match &self.owner {
            Owner::Device(device) => Some(&**device),
            _ => None,
        }
    }

    /// Returns a stream of copies into the memory of the device. `None` if all are in use, and for other memory.
    pub fn device_stream(&self) -> Option<Box<dyn DeviceStream>> {
        self.device()?.stream()
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes in at `offset`. The last byte is written last, because programs wait for it, and an aligned word of 8
    /// bytes at once.
    ///
    /// # Panics
    /// If the range is outside, or a device has reported an error.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        if self.is_on_device() {
            return assert!(self.try_copy_in(offset, bytes), "cannot write to the memory of the device");
        }
        self.copy_in_mapped(offset, bytes);
    }

    /// Copies bytes in as [`MemoryRegion::copy_in`], but not to a device.
    fn copy_in_mapped(&self, offset: usize, bytes: &[u8]) {
        let target = self.at(offset, bytes.len());
        if let Ok(word) = bytes.try_into().map(u64::from_ne_bytes)
            && target.cast::<AtomicU64>().is_aligned()
        {
            // SAFETY: inside of the region, which lives, and aligned; there are no other references to the bytes.
            return unsafe { target.cast::<AtomicU64>().as_ref() }.store(word, Ordering::Release);
        }
        let Some((last, front)) = bytes.split_last() else { return };
        // SAFETY: inside of the region, which lives; `bytes` is not in it, because references to it are never
        // formed. Another writer can interfere; then the result is any mixture of bytes, as in a real device.
        unsafe {
            std::ptr::copy_nonoverlapping(front.as_ptr(), target.as_ptr(), front.len());
            AtomicU8::from_ptr(target.add(front.len()).as_ptr()).store(*last, Ordering::Release);
        }
    }

    /// Copies bytes out from `offset`.
    ///
    /// # Panics
    /// If the range is outside, or a device has reported an error.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        if self.is_on_device() {
            return assert!(self.try_copy_out(offset, bytes), "cannot read the memory of the device");
        }
        self.copy_out_mapped(offset, bytes);
    }

    /// Copies bytes out as [`MemoryRegion::copy_out`], but not from a device.
    fn copy_out_mapped(&self, offset: usize, bytes: &mut [u8]) {
        let source = self.at(offset, bytes.len());
        // SAFETY: as for `copy_in`, in the other direction.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Copies bytes in as [`MemoryRegion::copy_in`]. Returns `false` if a part of the range is not mapped and writable, or
    /// a device has reported an error; some of it can be written.
    ///
    /// # Panics
    /// If the range is outside.
    #[must_use]
    pub fn try_copy_in(&self, offset: usize, bytes: &[u8]) -> bool {
        if self.stays_mapped() {
            self.copy_in_mapped(offset, bytes);
            return true;
        }
        let target = self.run(offset, bytes.len());
        match self.device() {
            Some(device) => device.copy_in(offset, bytes),
            // SAFETY: no reference to the bytes exists.
            None => unsafe { kernel_copy::write(target, bytes) },
        }
    }

    /// Copies bytes out as [`MemoryRegion::copy_out`]. Returns `false` if a part of the range is not mapped, or a device
    /// has reported an error.
    ///
    /// # Panics
    /// If the range is outside.
    #[must_use]
    pub fn try_copy_out(&self, offset: usize, bytes: &mut [u8]) -> bool {
        if self.stays_mapped() {
            self.copy_out_mapped(offset, bytes);
            return true;
        }
        let source = self.run(offset, bytes.len());
        match self.device() {
            Some(device) => device.copy_out(offset, bytes),
            // SAFETY: no reference to the bytes exists.
            None => unsafe { kernel_copy::read(source, bytes) },
        }
    }

    /// Whether copies of the calling thread need no system call.
    pub fn has_cheap_copies(&self) -> bool {
        self.stays_mapped() || guarded_copy::is_guarded()
    }

    /// Whether a range is mapped now. In the memory of a device: whether it can be copied.
    ///
    /// # Panics
    /// If the range is outside.
    pub fn is_readable(&self, offset: usize, len: usize) -> bool {
        let run = self.run(offset, len);
        match self.device() {
            Some(device) => is_readable(device, offset, len),
            // SAFETY: no reference to the bytes exists.
            None => self.stays_mapped() || unsafe { kernel_copy::is_readable(run) },
        }
    }

    /// Whether a range is mapped and writable now. In the memory of a device: whether it can be copied.
    ///
    /// # Panics
    /// If the range is outside.
    pub fn is_writable(&self, offset: usize, len: usize) -> bool {
        let run = self.run(offset, len);
        match self.device() {
            Some(device) => is_readable(device, offset, len),
            // SAFETY: no reference to the bytes exists.
            None => self.stays_mapped() || unsafe { kernel_copy::is_writable(run) },
        }
    }

    /// Returns a copy of a range.
    ///
    /// # Panics
    /// If the range is outside.
    pub fn to_vec(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.copy_out(offset, &mut bytes);
        bytes
    }

    /// Replaces 8 bytes by `new` if they are `expected`. Returns the value before, `None` if the bytes are not mapped and
    /// writable. In the memory of a device, this is atomic only among such operations of the process.
    ///
    /// # Panics
    /// If the range is outside, or its address is not a multiple of 8.
    pub fn compare_swap(&self, offset: usize, expected: u64, new: u64) -> Option<u64> {
        let word = self.word(offset);
        if let Some(device) = self.device() {
            return device.update(offset, &mut |found| if found == expected { new } else { found });
        }
        // SAFETY: aligned; there are no references to the bytes.
        let guarded = (!self.stays_mapped())
            .then(|| unsafe { guarded_copy::compare_swap(word.as_ptr().cast(), expected, new) });
        guarded.flatten().unwrap_or_else(|| {
            let exchange =
                |word: &AtomicU64| word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst);
            self.with_word(offset, |word| exchange(word).unwrap_or_else(|found| found))
        })
    }

    /// Adds to 8 bytes, modulo 2⁶⁴. Returns the value before as [`MemoryRegion::compare_swap`].
    ///
    /// # Panics
    /// As [`MemoryRegion::compare_swap`].
    pub fn fetch_add(&self, offset: usize, add: u64) -> Option<u64> {
        let word = self.word(offset);
        if let Some(device) = self.device() {
            return device.update(offset, &mut |found| found.wrapping_add(add));
        }
        // SAFETY: aligned; there are no references to the bytes.
        let guarded =
            (!self.stays_mapped()).then(|| unsafe { guarded_copy::fetch_add(word.as_ptr().cast(), add) });
        guarded
            .flatten()
            .unwrap_or_else(|| self.with_word(offset, |word| word.fetch_add(add, Ordering::SeqCst)))
    }

    /// Calls a function with 8 bytes that are mapped now.
    fn with_word(&self, offset: usize, change: impl FnOnce(&AtomicU64) -> u64) -> Option<u64> {
        let word = self.word(offset);
        // SAFETY: inside of the region, which lives, and aligned; there are no other references to the bytes.
        self.is_writable(offset, size_of::<u64>()).then(|| change(unsafe { word.as_ref() }))
    }

    fn word(&self, offset: usize) -> NonNull<AtomicU64> {
        let start = self.at(offset, size_of::<u64>()).cast::<AtomicU64>();
        assert!(start.is_aligned(), "an atomic operation at an address that is not a multiple of 8");
        start
    }

    /// Returns a range for the kernel to write, with its length, because `IoSliceMut::len` forms a reference to
    /// the bytes.
    ///
    /// # Panics
    /// If the range is outside.
    pub fn io_slice_mut(&self, offset: usize, len: usize) -> (IoSliceMut<'_>, usize) {
        // SAFETY: the region lives; only the kernel uses the slice.
        unsafe { self.run(offset, len).io_slice_mut() }
    }

    /// Returns the run of a range.
    ///
    /// # Panics
    /// If it is outside.
    pub(crate) fn run(&self, offset: usize, len: usize) -> Run {
        Run::new(self.at(offset, len), len)
    }

    pub(crate) fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(is_inside, "{len} bytes from {offset} are outside of a region of {} bytes", self.len);
        // Not `NonNull::add`: in the memory of a device, the address is a number.
        let at = self.start.as_ptr().wrapping_add(offset);
        NonNull::new(at).expect("a region does not contain the last address")
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if let Owner::Region(layout) = self.owner {
            // SAFETY: allocated with this layout; payloads of the region hold it.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Payload;

    #[test]
    fn copies_stay_inside() {
        let region = MemoryRegion::allocate(100).unwrap();
        region.copy_in(48, &[1; 8]);
        region.copy_in(51, &[2; 8]);
        assert_eq!(region.to_vec(47, 13), [0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 0]);
        region.copy_in(48, &[0; 11]);
        region.copy_in(95, b"hello");
        assert_eq!((region.to_vec(95, 5), region.to_vec(0, 95)), (b"hello".to_vec(), vec![0; 95]));
        assert!(region.address().is_multiple_of(PAGE_SIZE as u64));
        assert_eq!(MemoryRegion::allocate(0).err().unwrap().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn owner_lives_as_long_as_the_region() {
        let mut words = Box::new([0_u64; 4]);
        let start = NonNull::from(words.as_mut()).cast();
        let owner = Arc::new(words);
        // SAFETY: the owner has the memory; the test forms no reference to it before the region is dropped.
        let region = unsafe { MemoryRegion::from_owner(start, 32, Box::new(Arc::clone(&owner))) };
        assert!(region.has_cheap_copies() && region.try_copy_in(8, &[7; 8]));
        assert_eq!((Arc::strong_count(&owner), region.fetch_add(8, 1)), (2, Some(0x0707_0707_0707_0707)));
        drop(region);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    #[should_panic(expected = "outside of a region")]
    fn write_beyond_the_end_panics() {
        MemoryRegion::allocate(100).unwrap().copy_in(96, b"hello");
    }

    #[test]
    #[should_panic(expected = "outside of a region")]
    fn offset_that_wraps_panics() {
        MemoryRegion::allocate(100).unwrap().copy_in(usize::MAX, b"hello");
    }

    #[test]
    fn atomics_return_the_value_before() {
        let region = MemoryRegion::allocate(64).unwrap();
        assert_eq!(region.fetch_add(8, 5), Some(0));
        assert_eq!(region.fetch_add(8, u64::MAX), Some(5));
        assert_eq!(region.compare_swap(8, 3, 9), Some(4));
        assert_eq!(region.compare_swap(8, 4, 9), Some(4));
        assert_eq!(region.to_vec(8, 8), 9_u64.to_le_bytes());
    }

    #[test]
    #[should_panic(expected = "multiple of 8")]
    fn unaligned_atomic_panics() {
        MemoryRegion::allocate(64).unwrap().fetch_add(4, 1);
    }

    /// A device with one word.
    struct Word(AtomicU64);

    impl DeviceMemory for Word {
        fn copy_in(&self, offset: usize, bytes: &[u8]) -> bool {
            let mut word = self.0.load(Ordering::Relaxed).to_ne_bytes();
            word[offset..offset + bytes.len()].copy_from_slice(bytes);
            self.0.store(u64::from_ne_bytes(word), Ordering::Relaxed);
            true
        }

        fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> bool {
            bytes
                .copy_from_slice(&self.0.load(Ordering::Relaxed).to_ne_bytes()[offset..offset + bytes.len()]);
            true
        }

        fn update(&self, _: usize, change: &mut dyn FnMut(u64) -> u64) -> Option<u64> {
            let found = self.0.load(Ordering::Relaxed);
            self.0.store(change(found), Ordering::Relaxed);
            Some(found)
        }

        fn stream(&self) -> Option<Box<dyn DeviceStream>> {
            None
        }
    }

    #[test]
    fn memory_of_a_device_can_have_any_address() {
        let start = NonNull::new(std::ptr::without_provenance_mut(usize::MAX - 15)).unwrap();
        let region = MemoryRegion::on_device(start, 8, Box::new(Word(AtomicU64::new(0))));
        assert!(region.try_copy_in(5, &[7; 3]) && region.is_readable(8, 0) && region.is_writable(1, 7));
        assert_eq!(region.to_vec(4, 4), [0, 7, 7, 7]);
        assert!(region.compare_swap(0, 0, 1).is_some() && region.fetch_add(0, 1).is_some());
        let outside = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| region.is_readable(8, 1)));
        assert!(outside.is_err());
    }

    #[test]
    fn payload_refers_to_the_region() {
        let region = MemoryRegion::allocate(64).unwrap();
        let mut payload = Payload::default();
        payload.push_region(Arc::clone(&region), 10, 5);
        payload.push_region(Arc::clone(&region), 0, 3);
        region.copy_in(10, b"later");
        assert_eq!((payload.len(), payload.to_vec()), (8, b"later\0\0\0".to_vec()));
        assert!(payload.is_in_shared_memory() && payload.as_slice().is_none());
    }
}
