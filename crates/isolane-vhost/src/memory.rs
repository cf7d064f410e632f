//! Memory of a guest, mapped from the files that its virtual machine monitor has sent.
//!
//! Each region is mapped once by `vm-memory`, for the virtqueues, and again by [`SharedMemory`], for data: a volume can use
//! such memory without a copy.
//!
//! Invariants:
//! * Every file is sealed against truncation, so that no access faults.
//! * Every range is checked against the regions before use; memory stays mapped while a [`GuestBuffer`] refers to it.
//! * The mappings of all guests leave most of the address space free.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use isolane_memory::Buffer;
use isolane_shm::{PAGE_SIZE, SharedMemory};
use smallvec::SmallVec;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

/// A region of guest memory, as announced by its monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// Address in the guest.
    pub guest: u64,
    /// Length in bytes.
    pub len: u64,
    /// Address in the monitor, by which it names parts of virtqueues.
    pub user: u64,
    /// Offset in the file, in bytes.
    pub offset: u64,
}

/// Guest memory that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "guest memory at {guest:#x}: {reason}; use memory like QEMU's `-object memory-backend-memfd,share=on`"
)]
pub struct RegionError {
    /// Address of the region in the guest.
    pub guest: u64,
    /// The rule that the region violates.
    pub reason: String,
}

/// The memory of one guest.
pub struct GuestMemory {
    rings: GuestMemoryMmap,
    /// In the order of their addresses.
    regions: Vec<Region>,
    _mapped: Mapped,
}

struct Region {
    spec: RegionSpec,
    memory: SharedMemory,
}

/// Contiguous bytes of one region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    region: u32,
    len: u32,
    /// Offset in the region.
    offset: u64,
}

pub(crate) type Segments = SmallVec<[Segment; 4]>;

impl GuestMemory {
    /// Maps regions, each with its file.
    ///
    /// # Errors
    /// The first region that violates a rule.
    pub fn map(regions: Vec<(RegionSpec, OwnedFd)>) -> Result<GuestMemory, RegionError> {
        let mut regions = regions;
        regions.sort_by_key(|(spec, _)| spec.guest);
        let (mut mapped, mut ranges) = (Vec::new(), Vec::new());
        let first = regions.first().map_or(0, |(spec, _)| spec.guest);
        let reserved = regions.iter().try_fold(0u64, |sum, (spec, _)| sum.checked_add(spec.len));
        let reserved = reserved.filter(|bytes| *bytes <= MAX_GUEST_BYTES).ok_or_else(|| RegionError {
            guest: first,
            reason: format!("more than {MAX_GUEST_BYTES} bytes in all regions"),
        })?;
        let reserved = Mapped::reserve(&MAPPED, reserved).ok_or_else(|| RegionError {
            guest: first,
            reason: "other machines have all memory that this program can map; disconnect some".to_owned(),
        })?;
        for (spec, file) in regions {
            let refuse = |reason: String| RegionError { guest: spec.guest, reason };
            spec.check().map_err(|reason| refuse(reason.to_owned()))?;
            let duplicate = file.try_clone().map_err(|error| refuse(error.to_string()))?;
            let memory = SharedMemory::open_range(file, spec.offset, spec.len as usize)
                .map_err(|error| refuse(error.to_string()))?;
            let file = FileOffset::new(File::from(duplicate), spec.offset);
            ranges.push((GuestAddress(spec.guest), spec.len as usize, Some(file)));
            mapped.push(Region { spec, memory });
        }
        let rings = GuestMemoryMmap::from_ranges_with_files(ranges)
            .map_err(|error| RegionError { guest: first, reason: error.to_string() })?;
        Ok(GuestMemory { rings, regions: mapped, _mapped: reserved })
    }

    /// Returns the mapping for virtqueues.
    pub(crate) fn rings(&self) -> &GuestMemoryMmap {
        &self.rings
    }

    /// Converts an address of the monitor.
    pub(crate) fn guest_address(&self, user: u64) -> Option<u64> {
        self.regions.iter().find_map(|Region { spec, .. }| {
            let at = user.checked_sub(spec.user)?;
            (at < spec.len).then(|| spec.guest + at)
        })
    }

    /// Appends the segments of a range, which can continue in an adjacent region. Returns `false` if a part of it is
    /// outside of the memory.
    #[must_use]
    pub(crate) fn locate(&self, address: u64, len: u32, segments: &mut Segments) -> bool {
        let (mut address, mut left) = (address, len);
        while left > 0 {
            let next = self.regions.partition_point(|region| region.spec.guest <= address);
            let Some(index) = next.checked_sub(1) else { return false };
            let spec = &self.regions[index].spec;
            let at = address - spec.guest;
            if at >= spec.len {
                return false;
            }
            let part = u64::from(left).min(spec.len - at) as u32;
            push(segments, Segment { region: index as u32, len: part, offset: at });
            left -= part;
            // Regions end below 2⁶⁴.
            address += u64::from(part);
        }
        true
    }
}

/// Appends a segment, and joins adjacent ones.
fn push(segments: &mut Segments, next: Segment) {
    if let Some(last) = segments.last_mut()
        && last.region == next.region
        && last.offset + u64::from(last.len) == next.offset
        && let Some(len) = last.len.checked_add(next.len)
    {
        last.len = len;
        return;
    }
    segments.push(next);
}

/// A share of the memory that all guests can have mapped.
struct Mapped {
    total: &'static AtomicU64,
    bytes: u64,
}

impl Mapped {
    fn reserve(total: &'static AtomicU64, bytes: u64) -> Option<Mapped> {
        let add = |sum: u64| sum.checked_add(bytes).filter(|sum| *sum <= MAX_MAPPED_BYTES);
        total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok().map(|_| Mapped { total, bytes })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl RegionSpec {
    fn check(&self) -> Result<(), &'static str> {
        let page = PAGE_SIZE as u64;
        if self.len == 0
            || ![self.guest, self.len, self.user, self.offset].iter().all(|n| n.is_multiple_of(page))
        {
            return Err("its address, length, or offset is not a multiple of 4096");
        }
        if self.guest.checked_add(self.len).is_none() || self.user.checked_add(self.len).is_none() {
            return Err("its end is beyond the last address");
        }
        Ok(())
    }
}

/// Parts of guest memory, in order: the data of a request.
#[derive(Clone)]
pub struct GuestBuffer {
    memory: Arc<GuestMemory>,
    segments: Segments,
    len: usize,
}

impl GuestBuffer {
    pub(crate) fn new(memory: Arc<GuestMemory>, segments: Segments) -> GuestBuffer {
        let len = segments.iter().map(|segment| segment.len as usize).sum();
        GuestBuffer { memory, segments, len }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Splits off the bytes from `at` on.
    ///
    /// # Panics
    /// If `at` is outside.
    pub fn split_off(&mut self, at: usize) -> GuestBuffer {
        assert!(at <= self.len, "a split at {at} is outside of a buffer of {} bytes", self.len);
        let (mut head, mut tail, mut left) = (Segments::new(), Segments::new(), at);
        for segment in self.segments.drain(..) {
            let part = left.min(segment.len as usize) as u32;
            left -= part as usize;
            if part > 0 {
                head.push(Segment { len: part, ..segment });
            }
            if part < segment.len {
                let offset = segment.offset + u64::from(part);
                tail.push(Segment { len: segment.len - part, offset, ..segment });
            }
        }
        let len = self.len - at;
        (self.segments, self.len) = (head, at);
        GuestBuffer { memory: Arc::clone(&self.memory), segments: tail, len }
    }

    /// Copies bytes out from `offset`.
    ///
    /// # Panics
    /// If the range is outside.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        self.check_range(offset, bytes.len());
        let (mut target, mut skip) = (bytes, offset);
        for Segment { region, len, offset } in &self.segments {
            let from = skip.min(*len as usize);
            skip -= from;
            let count = target.len().min(*len as usize - from);
            let (part, rest) = target.split_at_mut(count);
            let copied = self.memory.regions[*region as usize].memory.copy_out(offset + from as u64, part);
            debug_assert!(copied.is_ok(), "a segment is inside of its file");
            target = rest;
        }
    }

    /// Copies bytes in at `offset`.
    ///
    /// # Panics
    /// If the range is outside.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        self.check_range(offset, bytes.len());
        let (mut source, mut skip) = (bytes, offset);
        for Segment { region, len, offset } in &self.segments {
            let from = skip.min(*len as usize);
            skip -= from;
            let (part, rest) = source.split_at(source.len().min(*len as usize - from));
            let copied = self.memory.regions[*region as usize].memory.copy_in(offset + from as u64, part);
            debug_assert!(copied.is_ok(), "a segment is inside of its file");
            source = rest;
        }
    }

    /// Copies the first bytes to a buffer, until it is full.
    ///
    /// # Panics
    /// If the buffer is longer, or shared.
    pub fn copy_to(&self, buffer: &mut Buffer) {
        let (mut offset, len) = (0, buffer.len());
        for slice in buffer.slices_mut(0, len) {
            self.copy_out(offset, slice);
            offset += slice.len();
        }
    }

    fn check_range(&self, offset: usize, len: usize) {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(is_inside, "{len} bytes at {offset} of a buffer of {}", self.len);
    }

    /// Returns the memory as a buffer without a copy, if it is contiguous.
    pub fn in_place(&self) -> Option<Buffer> {
        match &self.segments[..] {
            [Segment { region, len, offset }] => {
                let memory = &self.memory.regions[*region as usize].memory;
                Buffer::in_shared_memory(memory, *offset, *len as usize).ok()
            }
            _ => None,
        }
    }
}

impl std::fmt::Debug for GuestBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GuestBuffer({} bytes in {} segments)", self.len, self.segments.len())
    }
}

/// Memory of all guests, in bytes, with those that have gone while the volume uses it.
static MAPPED: AtomicU64 = AtomicU64::new(0);
/// Memory of one guest.
const MAX_GUEST_BYTES: u64 = 1 << 40;
/// Twice the memory of 16 guests, because new memory is mapped before the old is unmapped. Each byte has two addresses, of
/// 128 TiB.
const MAX_MAPPED_BYTES: u64 = 32 * MAX_GUEST_BYTES;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    const SPEC: RegionSpec = RegionSpec { guest: 0x1000, len: 0x2000, user: 0x7000, offset: 0 };

    fn sealed(bytes: u64) -> OwnedFd {
        let file = unsealed(bytes);
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
        file
    }

    fn unsealed(bytes: u64) -> OwnedFd {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, bytes).unwrap();
        file
    }

    #[test]
    fn rejects_memory_that_can_fault() {
        let reject = |spec, file| GuestMemory::map(vec![(spec, file)]).err().unwrap().to_string();
        let error = reject(SPEC, unsealed(0x2000));
        assert!(error.starts_with("guest memory at 0x1000: shared memory is not sealed"), "{error}");
        assert!(error.ends_with("memory-backend-memfd,share=on`"), "{error}");
        assert!(
            reject(SPEC, sealed(0x1000))
                .contains("8192 bytes at offset 0 are out of bounds of shared memory of 4096")
        );
        let late = RegionSpec { offset: 0x1000, ..SPEC };
        assert!(
            reject(late, sealed(0x2000))
                .contains("8192 bytes at offset 4096 are out of bounds of shared memory of 8192")
        );
        for spec in [
            RegionSpec { len: 0, ..SPEC },
            RegionSpec { len: 0x2001, ..SPEC },
            RegionSpec { guest: 0x1008, ..SPEC },
            RegionSpec { guest: u64::MAX - 0xfff, ..SPEC },
            RegionSpec { user: u64::MAX - 0xfff, ..SPEC },
            RegionSpec { offset: u64::MAX - 0xfff, ..SPEC },
        ] {
            reject(spec, sealed(0x2000));
        }
        reject(SPEC, File::open("/dev/zero").unwrap().into());
        let overlapping = RegionSpec { guest: 0x2000, ..SPEC };
        let regions = vec![(SPEC, sealed(0x2000)), (overlapping, sealed(0x2000))];
        assert!(GuestMemory::map(regions).is_err());
    }

    #[test]
    fn maps_only_the_regions() {
        let huge = || sealed(1 << 46);
        let regions = (0..8).map(|at| (RegionSpec { guest: at << 20, offset: at << 40, ..SPEC }, huge()));
        GuestMemory::map(regions.collect()).unwrap();
        for lens in [[1 << 41, 0x1000], [1 << 40, 0x1000], [1 << 63, 1 << 63]] {
            let specs = lens.map(|len| RegionSpec { guest: len, len, ..SPEC });
            let error = GuestMemory::map(specs.map(|spec| (spec, huge())).into()).err().unwrap().to_string();
            assert!(error.contains(": more than 1099511627776 bytes in all regions; "), "{error}");
        }
    }

    #[test]
    fn memory_of_all_guests_is_limited() {
        static TOTAL: AtomicU64 = AtomicU64::new(0);
        let mut shares: Vec<_> = (0..32).map(|_| Mapped::reserve(&TOTAL, MAX_GUEST_BYTES).unwrap()).collect();
        assert!(Mapped::reserve(&TOTAL, 1).is_none());
        shares.pop();
        assert!(Mapped::reserve(&TOTAL, MAX_GUEST_BYTES + 1).is_none());
        assert!(Mapped::reserve(&TOTAL, MAX_GUEST_BYTES).is_some());
        drop(shares);
        assert_eq!(TOTAL.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn locates_ranges_across_adjacent_regions() {
        let files = [sealed(0x2000), sealed(0x3000)];
        let next = RegionSpec { guest: 0x3000, len: 0x1000, user: 0x20000, offset: 0x2000 };
        let regions = [SPEC, next].into_iter().zip(files.iter().map(|file| file.try_clone().unwrap()));
        let memory = Arc::new(GuestMemory::map(regions.collect()).unwrap());
        assert_eq!(memory.guest_address(0x7008), Some(0x1008));
        assert_eq!(memory.guest_address(0x20fff), Some(0x3fff));
        assert_eq!((memory.guest_address(0x9000), memory.guest_address(0x6fff)), (None, None));
        let buffer = |address, len| {
            let mut segments = Segments::new();
            memory
                .locate(address, len, &mut segments)
                .then(|| GuestBuffer::new(Arc::clone(&memory), segments))
        };
        let mut both = buffer(0x2ffc, 8).unwrap();
        assert!(both.in_place().is_none());
        both.copy_in(0, b"01234567");
        both.copy_in(3, b"ab");
        let mut bytes = [0; 4];
        rustix::io::pread(files[1].as_fd(), &mut bytes, 0x2000).unwrap();
        assert_eq!(&bytes, b"b567");
        let mut contents = Buffer::contiguous(8);
        both.copy_to(&mut contents);
        assert_eq!(contents.to_vec(), b"012ab567");
        let tail = both.split_off(5);
        assert_eq!((both.len(), tail.in_place().unwrap().to_vec()), (5, b"567".to_vec()));
        for (address, len) in
            [(0, 1), (0xffc, 8), (0x3ffc, 5), (0x4000, 1), (u64::MAX, 2), (0x1000, u32::MAX)]
        {
            assert!(buffer(address, len).is_none(), "{address:#x}, {len}");
        }
        assert!(buffer(0x1000, 0x3000).is_some());
    }
}
