//! A sealed memfd mapped by two processes, addressed by offset and length.
//!
//! The seals fix its size, so the peer cannot make an access fault by truncating it.
//!
//! Invariant: every offset is checked against the size before use, and everything derived from it holds the mapping,
//! except [`RawSlice`], which is only an address and a length.

use std::ffi::c_void;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_get_seals, fstat, fstatfs};
#[cfg(not(miri))]
use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
#[cfg(miri)]
use rustix::mm::mmap_anonymous;
#[cfg(not(miri))]
use rustix::mm::{Advice, madvise, mmap};
use rustix::mm::{MapFlags, ProtFlags, munmap};

use crate::PAGE_SIZE;
use crate::bell::WakeFlag;
use crate::index::{InvalidIndex, RingIndices};
use crate::process::process_id;
use crate::sync::AtomicU64;

/// Memory that another process maps as well.
#[derive(Clone, Debug)]
pub struct SharedMemory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    mapping: Mapping,
    memfd: OwnedFd,
    /// Offset of the mapping in the file.
    offset: u64,
}

/// Reason why shared memory, or a range of it, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// A system call failed.
    #[error("shared memory of {bytes} bytes: {source}")]
    System {
        /// Requested size in bytes, or 0 if not known yet.
        bytes: usize,
        /// Error of the system call.
        source: io::Error,
    },
    /// Invalid size.
    #[error("shared memory of {bytes} bytes cannot be used: it must be {}", describe_size_rule(*bytes, *max_bytes))]
    Size {
        /// Actual size in bytes.
        bytes: u64,
        /// Maximum size in bytes.
        max_bytes: usize,
    },
    /// The peer could truncate the memory while it is in use.
    #[error("shared memory is not sealed: seal it against a change of its size")]
    NotSealed,
    /// Its pages could be taken away, and be missing at the next access.
    #[error("shared memory is not a regular memfd: create it without `MFD_HUGETLB`")]
    NotTmpfs,
    /// The published indices of a ring do not allow resuming it.
    #[error("cannot resume a ring: {0}")]
    Indices(#[from] InvalidIndex),
    /// A range outside of the memory, or misaligned.
    #[error(
        "{len} bytes at offset {offset} are out of bounds of shared memory of {bytes} bytes, or misaligned for {what}"
    )]
    OutOfBounds {
        /// Use of the range.
        what: &'static str,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Size of the memory in bytes.
        bytes: usize,
    },
}

fn describe_size_rule(bytes: u64, max_bytes: usize) -> String {
    if bytes > max_bytes as u64 {
        format!("at most {max_bytes} bytes")
    } else {
        format!("whole pages of {PAGE_SIZE}, at least one")
    }
}

impl SharedMemory {
    /// Creates zeroed memory, sealed against any change of its size. Pages are allocated on first access. `/proc` shows
    /// `name`.
    ///
    /// # Errors
    /// [`MemoryError::Size`] if `bytes` is 0 or not a multiple of the page size; [`MemoryError::System`].
    pub fn create(name: &str, bytes: usize) -> Result<SharedMemory, MemoryError> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE_SIZE) {
            return Err(MemoryError::Size { bytes: bytes as u64, max_bytes: usize::MAX });
        }
        let memfd =
            memfd(name, bytes).map_err(|error| MemoryError::System { bytes, source: error.into() })?;
        SharedMemory::map(memfd, 0, bytes)
    }

    /// Maps memory that the peer created.
    ///
    /// # Errors
    /// [`MemoryError`]: the rule that the peer violated.
    pub fn open(memfd: OwnedFd, max_bytes: usize) -> Result<SharedMemory, MemoryError> {
        let bytes = check(&memfd)?;
        if bytes == 0 || bytes > max_bytes as u64 || !bytes.is_multiple_of(PAGE_SIZE as u64) {
            return Err(MemoryError::Size { bytes, max_bytes });
        }
        SharedMemory::map(memfd, 0, bytes as usize)
    }

    /// Maps a part of memory that the peer created. Offsets count from the start of the part.
    ///
    /// # Errors
    /// [`MemoryError`]: the rule that the peer violated.
    pub fn open_range(memfd: OwnedFd, offset: u64, len: usize) -> Result<SharedMemory, MemoryError> {
        let bytes = check(&memfd)?;
        let is_aligned = offset.is_multiple_of(PAGE_SIZE as u64) && len.is_multiple_of(PAGE_SIZE);
        if len == 0 || !is_aligned || offset.checked_add(len as u64).is_none_or(|end| end > bytes) {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            return Err(MemoryError::OutOfBounds { what: "a mapping", offset, len: len as u64, bytes });
        }
        SharedMemory::map(memfd, offset, len)
    }

    fn map(memfd: OwnedFd, offset: u64, bytes: usize) -> Result<SharedMemory, MemoryError> {
        let mapping =
            Mapping::new(&memfd, offset, bytes).map_err(|source| MemoryError::System { bytes, source })?;
        Ok(SharedMemory(Arc::new(Inner { mapping, memfd, offset })))
    }

    /// Replaces the descriptor by a duplicate, for example one with another number.
    ///
    /// # Errors
    /// Of `duplicate`.
    ///
    /// # Panics
    /// If a clone exists.
    pub fn replace_memfd(
        &mut self,
        duplicate: impl FnOnce(BorrowedFd<'_>) -> io::Result<OwnedFd>,
    ) -> io::Result<()> {
        let inner = Arc::get_mut(&mut self.0).expect("no clone of the memory");
        inner.memfd = duplicate(inner.memfd.as_fd())?;
        Ok(())
    }

    /// Returns the descriptor to send to the peer.
    pub fn memfd(&self) -> BorrowedFd<'_> {
        self.0.memfd.as_fd()
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.0.mapping.bytes
    }

    /// Returns `true` if a clone, or an object derived from one, exists. Dropping the last reference unmaps the memory,
    /// which takes longer the more pages were touched.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Returns unused pages to the system; they read as zeroes afterwards.
    ///
    /// # Errors
    /// The system's.
    pub fn punch(&self, offset: usize, len: usize) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.0.memfd, flags, self.0.offset + offset as u64, len as u64)?)
    }

    /// Returns the indices of a ring. The peer may have chosen the offset, as for all methods below.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn indices(&self, offset: u64) -> Result<ShmRef<RingIndices>, MemoryError> {
        self.shm_ref("a ring's indices", offset, RingIndices::BYTES)
    }

    /// Returns a wake flag.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn flag(&self, offset: u64) -> Result<ShmRef<WakeFlag>, MemoryError> {
        self.shm_ref("a wake flag", offset, WakeFlag::BYTES)
    }

    /// Returns a shared integer.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn atomic_u64(&self, offset: u64) -> Result<ShmRef<AtomicU64>, MemoryError> {
        self.shm_ref("an integer", offset, size_of::<u64>())
    }

    /// Returns a range of bytes.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    #[inline]
    pub fn raw_slice(&self, offset: u64, len: u64) -> Result<RawSlice, MemoryError> {
        let start = self.check_bounds("payload", offset, len, 1)?;
        Ok(RawSlice { start, len: len as usize })
    }

    /// Copies bytes out. The peer may change them during the copy: validate the copy only.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    #[inline]
    pub fn copy_out(&self, offset: u64, target: &mut [u8]) -> Result<(), MemoryError> {
        let slice = self.raw_slice(offset, target.len() as u64)?;
        // SAFETY: `self` holds the mapping.
        unsafe { slice.copy_out(target) };
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    #[inline]
    pub fn copy_in(&self, offset: u64, source: &[u8]) -> Result<(), MemoryError> {
        let slice = self.raw_slice(offset, source.len() as u64)?;
        // SAFETY: `self` holds the mapping.
        unsafe { slice.copy_in(source) };
        Ok(())
    }

    /// Returns the storage of a byte ring: whole pages, a power of two.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub(crate) fn ring_storage(&self, offset: u64, len: u64) -> Result<RingStorage, MemoryError> {
        let start = self.check_bounds("a ring's bytes", offset, len, PAGE_SIZE)?;
        let bytes = len as usize;
        if !bytes.is_power_of_two() || bytes < PAGE_SIZE {
            return Err(self.out_of_bounds("a ring's bytes", offset, len));
        }
        Ok(RingStorage { start, bytes, _memory: self.clone() })
    }

    /// Returns the storage of an entry ring; `count` must be a power of two.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub(crate) fn entry_slots(&self, offset: u64, count: u64) -> Result<ShmRef<[Slot]>, MemoryError> {
        let len = count.saturating_mul(ENTRY_BYTES as u64);
        if !count.is_power_of_two() {
            return Err(self.out_of_bounds("a ring's entries", offset, len));
        }
        let start = self.check_bounds("a ring's entries", offset, len, ENTRY_BYTES)?;
        let target = NonNull::slice_from_raw_parts(start.cast(), count as usize);
        Ok(ShmRef { target, _memory: self.clone() })
    }

    fn shm_ref<T>(&self, what: &'static str, offset: u64, len: usize) -> Result<ShmRef<T>, MemoryError> {
        let start = self.check_bounds(what, offset, len as u64, align_of::<T>())?;
        Ok(ShmRef { target: start.cast(), _memory: self.clone() })
    }

    /// Returns the address of a valid range.
    #[inline]
    fn check_bounds(
        &self,
        what: &'static str,
        offset: u64,
        len: u64,
        align: usize,
    ) -> Result<NonNull<u8>, MemoryError> {
        let end = offset.checked_add(len);
        if end.is_none_or(|end| end > self.bytes() as u64) || !offset.is_multiple_of(align as u64) {
            return Err(self.out_of_bounds(what, offset, len));
        }
        // SAFETY: inside the mapping, as checked.
        Ok(unsafe { self.0.mapping.start.add(offset as usize) })
    }

    #[cold]
    fn out_of_bounds(&self, what: &'static str, offset: u64, len: u64) -> MemoryError {
        MemoryError::OutOfBounds { what, offset, len, bytes: self.bytes() }
    }
}

/// Checks that the peer cannot make an access fault, and returns the size in bytes.
fn check(memfd: &OwnedFd) -> Result<u64, MemoryError> {
    let system = |error: rustix::io::Errno| MemoryError::System { bytes: 0, source: error.into() };
    if !fcntl_get_seals(memfd).is_ok_and(|seals| seals.contains(SEALS)) {
        return Err(MemoryError::NotSealed);
    }
    // A hole can be punched into huge pages even if they are sealed, and an access to it faults when no huge page is free.
    // Other holes read as zeroes.
    if fstatfs(memfd).map_err(system)?.f_type != TMPFS_MAGIC {
        return Err(MemoryError::NotTmpfs);
    }
    Ok(fstat(memfd).map_err(system)?.st_size as u64)
}

#[cfg(not(miri))]
fn memfd(name: &str, bytes: usize) -> rustix::io::Result<OwnedFd> {
    let memfd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memfd, bytes as u64)?;
    fcntl_add_seals(&memfd, SEALS)?;
    Ok(memfd)
}

/// Miri has no memfd; another descriptor takes its place, see [`Mapping::new`].
#[cfg(miri)]
fn memfd(_: &str, _: usize) -> rustix::io::Result<OwnedFd> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
}

/// Reference to atomics in shared memory. It holds the mapping.
pub struct ShmRef<T: ?Sized> {
    target: NonNull<T>,
    _memory: SharedMemory,
}

impl<T: ?Sized> Deref for ShmRef<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: created only for atomics, structures, and arrays of them (`RingIndices`, `WakeFlag`, slots), for which
        // every bit pattern is valid; aligned, and inside a mapping that is held here.
        unsafe { self.target.as_ref() }
    }
}

// SAFETY: atomics in a mapping that lives as long as this.
unsafe impl<T: Sync + ?Sized> Send for ShmRef<T> {}
// SAFETY: as above.
unsafe impl<T: Sync + ?Sized> Sync for ShmRef<T> {}

impl<T: ?Sized> fmt::Debug for ShmRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShmRef({:p})", self.target)
    }
}

/// Address and length of bytes in shared memory, with no promise about their contents. Valid while the memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawSlice {
    start: NonNull<u8>,
    len: usize,
}

impl RawSlice {
    /// # Safety
    /// The memory must be mapped.
    #[inline]
    unsafe fn copy_out(self, target: &mut [u8]) {
        assert_eq!(self.len, target.len());
        // SAFETY: mapped, as the caller guarantees; equal lengths; `target` is not in shared memory, because references
        // to it are never formed. If the peer breaks the rules and writes during the copy, or another thread of this
        // process does, the result has arbitrary bytes. That deviates from the memory model, but an atomic copy costs
        // several times as much. Only payload is copied this way; entries and indices are copied by atomics.
        unsafe { ptr::copy_nonoverlapping(self.start.as_ptr(), target.as_mut_ptr(), self.len) };
    }

    /// # Safety
    /// The memory must be mapped.
    #[inline]
    unsafe fn copy_in(self, source: &[u8]) {
        assert_eq!(self.len, source.len());
        // SAFETY: as above, in the other direction.
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), self.start.as_ptr(), self.len) };
    }

    /// Returns the address, for use by the kernel.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Storage of a byte ring. A range that wraps is two slices.
pub(crate) struct RingStorage {
    start: NonNull<u8>,
    bytes: usize,
    _memory: SharedMemory,
}

impl RingStorage {
    /// Returns the capacity in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns a range of the ring: the part up to its end, and the part that wraps.
    ///
    /// # Panics
    /// If `start` is not below [`RingStorage::bytes`], or `len` exceeds it.
    #[inline]
    pub fn slices(&self, start: usize, len: usize) -> [RawSlice; 2] {
        let bytes = self.bytes;
        assert!(start < bytes && len <= bytes, "{len} bytes at {start} of a ring of {bytes}");
        let first = len.min(bytes - start);
        // SAFETY: inside, as checked.
        let address = unsafe { self.start.add(start) };
        [RawSlice { start: address, len: first }, RawSlice { start: self.start, len: len - first }]
    }

    /// Copies a range out.
    ///
    /// # Panics
    /// As [`RingStorage::slices`].
    #[inline]
    pub fn copy_out(&self, start: usize, target: &mut [u8]) {
        let [first, second] = self.slices(start, target.len());
        let (before, after) = target.split_at_mut(first.len);
        // SAFETY: `self` holds the mapping.
        unsafe { first.copy_out(before) };
        if !second.is_empty() {
            // SAFETY: as above.
            unsafe { second.copy_out(after) };
        }
    }

    /// Copies a range in.
    ///
    /// # Panics
    /// As [`RingStorage::slices`].
    #[inline]
    pub fn copy_in(&self, start: usize, source: &[u8]) {
        let [first, second] = self.slices(start, source.len());
        let (before, after) = source.split_at(first.len);
        // SAFETY: as above.
        unsafe { first.copy_in(before) };
        if !second.is_empty() {
            // SAFETY: as above.
            unsafe { second.copy_in(after) };
        }
    }
}

// SAFETY: an address in a mapping that lives as long as this; no references to its bytes exist.
unsafe impl Send for RingStorage {}
// SAFETY: as above.
unsafe impl Sync for RingStorage {}

impl fmt::Debug for RingStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RingStorage({} bytes at {:p})", self.bytes, self.start)
    }
}

/// Mapped addresses of a memfd.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// Process that created the mapping.
    process: u64,
}

// SAFETY: a range of addresses; no references to the bytes exist.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps private pages: Miri shares none. Memory that is opened is not the memory that was created.
    #[cfg(miri)]
    fn new(_: &OwnedFd, _: u64, bytes: usize) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address that the kernel chooses affects no existing memory.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ACCESS, MapFlags::PRIVATE) }?;
        Mapping::from_kernel(start, bytes)
    }

    #[cfg(not(miri))]
    fn new(memfd: &OwnedFd, offset: u64, bytes: usize) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address that the kernel chooses affects no existing memory.
        let start = unsafe { mmap(ptr::null_mut(), bytes, ACCESS, MapFlags::SHARED, memfd, offset) }?;
        let mapping = Mapping::from_kernel(start, bytes)?;
        // A forked child must not write here: the peer would take it for this process.
        // SAFETY: the advice changes nothing in this process.
        unsafe { madvise(start, bytes, Advice::LinuxDontFork) }?;
        Ok(mapping)
    }

    fn from_kernel(start: *mut c_void, bytes: usize) -> io::Result<Mapping> {
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, bytes, process: process_id() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Not mapped in a forked child, which may use these addresses for something else.
        if self.process != process_id() {
            return;
        }
        // SAFETY: mapped by this object, and held by everything that refers to it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// An entry in shared memory, which the peer may change at any time.
pub(crate) type Slot = [AtomicU64; 8];
/// Size of an entry in bytes.
pub(crate) const ENTRY_BYTES: usize = size_of::<Slot>();

const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
/// Fix the size, and the seals themselves.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// File system of every memfd without huge pages.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

#[cfg(all(test, not(loom)))]
mod tests {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    /// Creates a memfd as a peer might.
    fn memfd(flags: MemfdFlags, bytes: u64, seals: SealFlags) -> rustix::io::Result<OwnedFd> {
        let memfd = memfd_create("peer", flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memfd, bytes)?;
        fcntl_add_seals(&memfd, seals)?;
        Ok(memfd)
    }

    #[test]
    #[cfg_attr(miri, ignore = "not supported by Miri")]
    fn maps_memory_of_peer() {
        let ours = SharedMemory::create("ours", PAGE_SIZE).unwrap();
        let peer = SharedMemory::open(ours.memfd().try_clone_to_owned().unwrap(), PAGE_SIZE).unwrap();
        ours.copy_in(7, &[1, 2, 3]).unwrap();
        let mut seen = [0; 3];
        peer.copy_out(7, &mut seen).unwrap();
        assert_eq!(seen, [1, 2, 3]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "not supported by Miri")]
    fn rejects_unsealed_memory_and_invalid_sizes() {
        let open = |bytes, seals| SharedMemory::open(memfd(MemfdFlags::empty(), bytes, seals).unwrap(), 8192);
        let sealable = open(4096, SealFlags::SHRINK | SealFlags::GROW);
        assert!(matches!(sealable, Err(MemoryError::NotSealed)), "its seals can be changed");
        for bytes in [0, 4095, 12288] {
            let error = open(bytes, SEALS).unwrap_err();
            assert!(matches!(error, MemoryError::Size { bytes: found, .. } if found == bytes), "{error}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "not supported by Miri")]
    fn rejects_huge_pages() {
        // Not every system has huge pages.
        let Ok(memfd) = memfd(MemfdFlags::HUGETLB, 2 << 20, SEALS) else { return };
        assert!(matches!(SharedMemory::open(memfd, 4 << 20), Err(MemoryError::NotTmpfs)));
    }
}
