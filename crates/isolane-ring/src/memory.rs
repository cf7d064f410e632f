//! A sealed memfd that two processes map: everything in it is named by offset and length, never by address.
//!
//! The seals keep its size, so that no access can fault because the other side has made it shorter.
//! Invariant: a place is checked against the size before anything is made of it, and what is made of it holds
//! the mapping; only a [`Piece`] is no more than an address and a length.

use std::ffi::c_void;
use std::fmt;
use std::io;
use std::marker::PhantomData;
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
use crate::bell::Flag;
use crate::index::{Impossible, Words};
use crate::process::process_id;
use crate::sync::AtomicU64;

/// Memory that another process maps, too.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    map: Map,
    memfd: OwnedFd,
}

/// Why memory, or a place in it, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The system refuses.
    #[error("shared memory of {bytes} bytes: {source}")]
    System {
        /// Bytes wanted, or 0 if that is not known yet.
        bytes: usize,
        /// What the system said.
        source: io::Error,
    },
    /// Its size is not one that can be used.
    #[error("shared memory of {bytes} bytes cannot be used: it must be {}", size_rule(*bytes, *bytes_max))]
    Size {
        /// Its bytes.
        bytes: u64,
        /// Bytes allowed.
        bytes_max: usize,
    },
    /// The other side could make it shorter while it is used.
    #[error("shared memory is not sealed against a change of its size: who gives it must seal it")]
    NotSealed,
    /// Its pages could be taken away, and be missed by who looks at them next.
    #[error("shared memory is no ordinary memfd: who gives it must make one without huge pages")]
    NotOrdinary,
    /// A ring cannot be taken up again where its words say.
    #[error("a ring cannot be taken up again: {0}")]
    Indices(#[from] Impossible),
    /// A place that is outside, or not where it must begin.
    #[error(
        "{len} bytes at {offset} are not a place in shared memory of {bytes} bytes, or not one for {what}"
    )]
    Place {
        /// What was wanted there.
        what: &'static str,
        /// Where it was said to begin.
        offset: u64,
        /// Its bytes.
        len: u64,
        /// Bytes of the memory.
        bytes: usize,
    },
}

/// What a size breaks.
fn size_rule(bytes: u64, bytes_max: usize) -> String {
    match bytes > bytes_max as u64 {
        true => format!("at most {bytes_max} bytes"),
        false => format!("whole pages of {PAGE_SIZE}, at least one"),
    }
}

impl Memory {
    /// Fresh memory of zeroes, sealed against any change of its size. `name` is shown in `/proc`. Pages are
    /// taken once touched.
    ///
    /// # Errors
    /// [`MemoryError::Size`] if `bytes` is no multiple of the page, or 0; [`MemoryError::System`].
    pub fn create(name: &str, bytes: usize) -> Result<Memory, MemoryError> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE_SIZE) {
            return Err(MemoryError::Size { bytes: bytes as u64, bytes_max: usize::MAX });
        }
        let memfd =
            memfd(name, bytes).map_err(|error| MemoryError::System { bytes, source: error.into() })?;
        Memory::map(memfd, bytes)
    }

    /// Memory that the other side has made, of at most `bytes_max`.
    ///
    /// # Errors
    /// [`MemoryError`]; it names what the other side has done wrong.
    pub fn open(memfd: OwnedFd, bytes_max: usize) -> Result<Memory, MemoryError> {
        let refused = |error: rustix::io::Errno| MemoryError::System { bytes: 0, source: error.into() };
        if !fcntl_get_seals(&memfd).is_ok_and(|seals| seals.contains(SEALS)) {
            return Err(MemoryError::NotSealed);
        }
        // Huge pages are sealed, too, but a hole can be punched into them, and then there may be none left
        // for who touches it. Others come back as zeroes.
        if fstatfs(&memfd).map_err(refused)?.f_type != TMPFS_MAGIC {
            return Err(MemoryError::NotOrdinary);
        }
        let bytes = fstat(&memfd).map_err(refused)?.st_size as u64;
        if bytes == 0 || bytes > bytes_max as u64 || !bytes.is_multiple_of(PAGE_SIZE as u64) {
            return Err(MemoryError::Size { bytes, bytes_max });
        }
        Memory::map(memfd, bytes as usize)
    }

    fn map(memfd: OwnedFd, bytes: usize) -> Result<Memory, MemoryError> {
        let map = Map::of(&memfd, bytes).map_err(|source| MemoryError::System { bytes, source })?;
        Ok(Memory(Arc::new(Inner { map, memfd })))
    }

    /// The descriptor, to be given to the other side.
    pub fn memfd(&self) -> BorrowedFd<'_> {
        self.0.memfd.as_fd()
    }

    /// Bytes in it.
    pub fn bytes(&self) -> usize {
        self.0.map.bytes
    }

    /// Whether anything else refers to it: a clone, or what was made of a place in it. The one who drops the last
    /// reference unmaps it, which takes the longer the more pages were touched.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Has the system take pages back, which read as zeroes then. What nobody works on any more.
    ///
    /// # Errors
    /// The system's.
    pub fn punch(&self, offset: usize, len: usize) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.0.memfd, flags, offset as u64, len as u64)?)
    }

    /// The two indices of a ring, at an offset that the other side may have named.
    ///
    /// # Errors
    /// [`MemoryError::Place`].
    pub fn words(&self, offset: u64) -> Result<Shared<Words>, MemoryError> {
        self.shared("a ring's indices", offset, Words::BYTES)
    }

    /// The flag of a bell, at an offset that the other side may have named.
    ///
    /// # Errors
    /// [`MemoryError::Place`].
    pub fn flag(&self, offset: u64) -> Result<Shared<Flag>, MemoryError> {
        self.shared("a bell's flag", offset, Flag::BYTES)
    }

    /// A number that both sides see, at an offset that the other side may have named.
    ///
    /// # Errors
    /// [`MemoryError::Place`].
    pub fn number(&self, offset: u64) -> Result<Shared<AtomicU64>, MemoryError> {
        self.shared("a number", offset, size_of::<u64>())
    }

    /// Bytes at a place that the other side may have named.
    ///
    /// # Errors
    /// [`MemoryError::Place`].
    #[inline]
    pub fn piece(&self, offset: u64, len: u64) -> Result<Piece, MemoryError> {
        let start = self.place("payload", offset, len, 1)?;
        Ok(Piece { start, len: len as usize })
    }

    /// Copies bytes out. What is copied may be changing meanwhile: look at the copy alone.
    ///
    /// # Errors
    /// [`MemoryError::Place`].
    #[inline]
    pub fn copy_out(&self, offset: u64, target: &mut [u8]) -> Result<(), MemoryError> {
        let piece = self.piece(offset, target.len() as u64)?;
        // SAFETY: mapped as long as `self` is there.
        unsafe { piece.copy_out(target) };
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`MemoryError::Place`].
    #[inline]
    pub fn copy_in(&self, offset: u64, source: &[u8]) -> Result<(), MemoryError> {
        let piece = self.piece(offset, source.len() as u64)?;
        // SAFETY: as above.
        unsafe { piece.copy_in(source) };
        Ok(())
    }

    /// The bytes of a ring, whole pages and a power of two, at a place that the other side may have named.
    ///
    /// # Errors
    /// [`MemoryError::Place`].
    pub(crate) fn circle(&self, offset: u64, len: u64) -> Result<Circle, MemoryError> {
        let start = self.place("a ring's bytes", offset, len, PAGE_SIZE)?;
        let bytes = len as usize;
        if !bytes.is_power_of_two() || bytes < PAGE_SIZE {
            return Err(self.misplaced("a ring's bytes", offset, len));
        }
        Ok(Circle { start, bytes, _memory: self.clone() })
    }

    /// Entries of 64 bytes, a power of two of them, at a place that the other side may have named.
    ///
    /// # Errors
    /// [`MemoryError::Place`].
    pub fn entries(&self, offset: u64, count: u64) -> Result<Slots, MemoryError> {
        let len = count.saturating_mul(ENTRY_BYTES as u64);
        if !count.is_power_of_two() {
            return Err(self.misplaced("a ring's entries", offset, len));
        }
        let start = self.place("a ring's entries", offset, len, ENTRY_BYTES)?;
        Ok(Slots { start, count: count as usize, _memory: self.clone() })
    }

    fn shared<T>(&self, what: &'static str, offset: u64, len: usize) -> Result<Shared<T>, MemoryError> {
        let start = self.place(what, offset, len as u64, align_of::<T>())?;
        Ok(Shared { word: start.cast(), _memory: self.clone(), _type: PhantomData })
    }

    #[inline]
    fn place(
        &self,
        what: &'static str,
        offset: u64,
        len: u64,
        align: usize,
    ) -> Result<NonNull<u8>, MemoryError> {
        let end = offset.checked_add(len);
        if end.is_none_or(|end| end > self.bytes() as u64) || !offset.is_multiple_of(align as u64) {
            return Err(self.misplaced(what, offset, len));
        }
        // SAFETY: inside of the mapping, as checked.
        Ok(unsafe { self.0.map.start.add(offset as usize) })
    }

    #[cold]
    fn misplaced(&self, what: &'static str, offset: u64, len: u64) -> MemoryError {
        MemoryError::Place { what, offset, len, bytes: self.bytes() }
    }
}

/// A sealed one.
#[cfg(not(miri))]
fn memfd(name: &str, bytes: usize) -> rustix::io::Result<OwnedFd> {
    let memfd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memfd, bytes as u64)?;
    fcntl_add_seals(&memfd, SEALS)?;
    Ok(memfd)
}

/// Miri has none: a descriptor of something else stands for it, see [`Map::of`].
#[cfg(miri)]
fn memfd(_: &str, _: usize) -> rustix::io::Result<OwnedFd> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
}

/// Words that both sides see. They are atomics, which any other side may change at any time.
pub struct Shared<T> {
    word: NonNull<T>,
    _memory: Memory,
    _type: PhantomData<T>,
}

impl<T> Deref for Shared<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: only made for atomics and types of them (`Words`, `Flag`), which every pattern of bits is a
        // value of; aligned and inside of a mapping that is held here.
        unsafe { self.word.as_ref() }
    }
}

// SAFETY: atomics in a mapping that lives as long as this.
unsafe impl<T: Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Shared<T> {}

impl<T> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({:p})", self.word)
    }
}

/// Bytes in shared memory: an address and a length, and no promise about what is there. Valid while the
/// memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    start: NonNull<u8>,
    len: usize,
}

impl Piece {
    /// # Safety
    /// Only while the memory is mapped.
    #[inline]
    unsafe fn copy_out(self, target: &mut [u8]) {
        assert_eq!(self.len, target.len());
        // SAFETY: mapped, says the caller. As many bytes on both sides, and ours are not in shared memory:
        // those have no reference. If the other side breaks the rules and writes meanwhile, or another thread of
        // this process does, the copy is of no definite bytes, but a copy: a deviation from the model, because a
        // copy by atomics costs several times as much. It is for payload; entries and indices are copied by atomics.
        unsafe { ptr::copy_nonoverlapping(self.start.as_ptr(), target.as_mut_ptr(), self.len) };
    }

    /// # Safety
    /// Only while the memory is mapped.
    #[inline]
    unsafe fn copy_in(self, source: &[u8]) {
        assert_eq!(self.len, source.len());
        // SAFETY: as above, in the other direction.
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), self.start.as_ptr(), self.len) };
    }

    /// Where it begins, for the kernel's use.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Bytes of a ring. A part that wraps is two pieces.
pub(crate) struct Circle {
    start: NonNull<u8>,
    bytes: usize,
    _memory: Memory,
}

impl Circle {
    /// Bytes that a ring in it holds.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A part of it: up to the end, and from the beginning on. `start` is below [`Circle::bytes`], `len` not above.
    ///
    /// # Panics
    /// If not.
    #[inline]
    pub fn pieces(&self, start: usize, len: usize) -> [Piece; 2] {
        let bytes = self.bytes;
        assert!(start < bytes && len <= bytes, "{len} bytes at {start} of a ring of {bytes}");
        let first = len.min(bytes - start);
        // SAFETY: inside, as checked.
        let place = unsafe { self.start.add(start) };
        [Piece { start: place, len: first }, Piece { start: self.start, len: len - first }]
    }

    /// Copies bytes out of a part.
    ///
    /// # Panics
    /// As [`Circle::pieces`].
    #[inline]
    pub fn copy_out(&self, start: usize, target: &mut [u8]) {
        let [first, second] = self.pieces(start, target.len());
        let (before, after) = target.split_at_mut(first.len);
        // SAFETY: mapped as long as `self` is there.
        unsafe { first.copy_out(before) };
        if !second.is_empty() {
            // SAFETY: as above.
            unsafe { second.copy_out(after) };
        }
    }

    /// Copies bytes into a part.
    ///
    /// # Panics
    /// As [`Circle::pieces`].
    #[inline]
    pub fn copy_in(&self, start: usize, source: &[u8]) {
        let [first, second] = self.pieces(start, source.len());
        let (before, after) = source.split_at(first.len);
        // SAFETY: as above.
        unsafe { first.copy_in(before) };
        if !second.is_empty() {
            // SAFETY: as above.
            unsafe { second.copy_in(after) };
        }
    }
}

// SAFETY: an address in a mapping that lives as long as this; nobody has a reference to what is there.
unsafe impl Send for Circle {}
// SAFETY: as above.
unsafe impl Sync for Circle {}

impl fmt::Debug for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Circle({} bytes at {:p})", self.bytes, self.start)
    }
}

/// Places of entries of 64 bytes.
pub struct Slots {
    start: NonNull<u8>,
    count: usize,
    _memory: Memory,
}

impl Slots {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// # Panics
    /// If there is no such one.
    #[inline]
    pub(crate) fn at(&self, index: usize) -> NonNull<u8> {
        assert!(index < self.count, "entry {index} of {}", self.count);
        // SAFETY: inside, as checked.
        unsafe { self.start.add(index * ENTRY_BYTES) }
    }
}

// SAFETY: an address in a mapping that lives as long as this; who uses it copies by atomics.
unsafe impl Send for Slots {}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slots({} at {:p})", self.count, self.start)
    }
}

/// Addresses that stand for pages of a memfd.
#[derive(Debug)]
struct Map {
    start: NonNull<u8>,
    /// Bytes mapped.
    bytes: usize,
    /// The process that has mapped them.
    process: u64,
}

// SAFETY: a range of addresses; the bytes behind it belong to nobody.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Pages of this process alone: Miri shares none. A memory that is opened is not the one that was created.
    #[cfg(miri)]
    fn of(_: &OwnedFd, bytes: usize) -> io::Result<Map> {
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ACCESS, MapFlags::PRIVATE) }?;
        Map::from_kernel(start, bytes)
    }

    #[cfg(not(miri))]
    fn of(memfd: &OwnedFd, bytes: usize) -> io::Result<Map> {
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
        let start = unsafe { mmap(ptr::null_mut(), bytes, ACCESS, MapFlags::SHARED, memfd, 0) }?;
        let map = Map::from_kernel(start, bytes)?;
        // A child of this process must not write there, since the other side takes it for this one.
        // SAFETY: the advice changes nothing in this process.
        unsafe { madvise(start, bytes, Advice::LinuxDontFork) }?;
        Ok(map)
    }

    fn from_kernel(start: *mut c_void, bytes: usize) -> io::Result<Map> {
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Map { start, bytes, process: process_id() })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // In a child it is not mapped, and what is at these addresses may be somebody else's.
        if self.process != process_id() {
            return;
        }
        // SAFETY: mapped by us, and whatever refers to it holds it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Bytes of an entry: a command, a completion, a notification.
pub const ENTRY_BYTES: usize = 64;

const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
/// Nobody can make it shorter or longer, nor take this back.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// The file system of every memfd without huge pages.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

#[cfg(all(test, not(loom)))]
mod tests {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    /// A memfd as another side might make it.
    fn memfd(flags: MemfdFlags, bytes: u64, seals: SealFlags) -> rustix::io::Result<OwnedFd> {
        let memfd = memfd_create("other", flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memfd, bytes)?;
        fcntl_add_seals(&memfd, seals)?;
        Ok(memfd)
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn what_the_other_side_has_made_in_order_is_mapped() {
        let ours = Memory::create("ours", PAGE_SIZE).unwrap();
        let theirs = Memory::open(ours.memfd().try_clone_to_owned().unwrap(), PAGE_SIZE).unwrap();
        ours.copy_in(7, &[1, 2, 3]).unwrap();
        let mut seen = [0; 3];
        theirs.copy_out(7, &mut seen).unwrap();
        assert_eq!(seen, [1, 2, 3]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn memory_that_could_change_its_size_or_has_a_wrong_one_is_refused() {
        let open = |bytes, seals| Memory::open(memfd(MemfdFlags::empty(), bytes, seals).unwrap(), 8192);
        let lax = open(4096, SealFlags::SHRINK | SealFlags::GROW);
        assert!(matches!(lax, Err(MemoryError::NotSealed)), "the seals could be taken for more");
        for bytes in [0, 4095, 12288] {
            let error = open(bytes, SEALS).unwrap_err();
            assert!(matches!(error, MemoryError::Size { bytes: told, .. } if told == bytes), "{error}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn huge_pages_which_could_be_taken_away_are_refused() {
        // Where the system has no huge pages at all, there is nothing to refuse.
        let Ok(memfd) = memfd(MemfdFlags::HUGETLB, 2 << 20, SEALS) else { return };
        assert!(matches!(Memory::open(memfd, 4 << 20), Err(MemoryError::NotOrdinary)));
    }
}
