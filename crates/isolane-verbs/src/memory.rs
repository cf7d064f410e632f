//! Protection domains: registered memory, found by key.
//!
//! Invariant: a span was checked against the bounds and the rights of its registration.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use isolane_memory::MemoryRegion;
use parking_lot::RwLock;
use smallvec::SmallVec;

use crate::types::Sge;

isolane_layout::bits! {
    /// Rights of a registration, with the numbers of `ibv_access_flags`. Local reads are always allowed.
    pub struct Access(u32) {
        /// The program's queue pairs can write.
        local_write / with_local_write: bool = [0:0],
        /// A peer can write.
        remote_write / with_remote_write: bool = [1:1],
        /// A peer can read.
        remote_read / with_remote_read: bool = [2:2],
        /// A peer can execute atomic operations.
        remote_atomic / with_remote_atomic: bool = [3:3],
    }
}

impl Access {
    /// All rights.
    pub const ALL: Access = Access(0xf);
}

/// Registered memory.
pub struct Registration {
    region: Arc<MemoryRegion>,
    address: u64,
    key: u32,
    access: Access,
}

impl Registration {
    /// Returns the key, which is both the local and the remote key.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Returns the address of the first byte, as work requests name it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the rights.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the memory.
    pub fn region(&self) -> &Arc<MemoryRegion> {
        &self.region
    }

    #[inline]
    fn span(&self, address: u64, length: u64, right: Right) -> Result<Span, AccessError> {
        let key = self.key;
        let bounds = || AccessError::Bounds { key, address, length };
        let offset = address.checked_sub(self.address).ok_or_else(bounds)?;
        let end = offset.checked_add(length).ok_or_else(bounds)?;
        if end > self.region.len() as u64 {
            return Err(bounds());
        }
        if !right.is_in(self.access) {
            return Err(AccessError::Rights { key, access: right.name() });
        }
        Ok(Span { region: Arc::clone(&self.region), offset: offset as usize, len: length as usize })
    }
}

/// Why memory cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum AccessError {
    /// No registration of the protection domain has the key.
    #[error("no memory region of the protection domain has key {0:#010x}")]
    Key(u32),
    /// The range is not inside of the region.
    #[error("{length} bytes at {address:#x} are not inside of the memory region with key {key:#010x}")]
    Bounds {
        /// Key of the region.
        key: u32,
        /// Address of the first byte.
        address: u64,
        /// Length in bytes.
        length: u64,
    },
    /// The region does not allow the access.
    #[error("the memory region with key {key:#010x} does not allow {access}")]
    Rights {
        /// Key of the region.
        key: u32,
        /// Name of the missing right.
        access: &'static str,
    },
}

/// Right that an access needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    LocalRead,
    LocalWrite,
    RemoteWrite,
    RemoteRead,
    RemoteAtomic,
}

impl Right {
    pub(crate) fn is_in(self, access: Access) -> bool {
        match self {
            Right::LocalRead => true,
            Right::LocalWrite => access.local_write(),
            Right::RemoteWrite => access.remote_write(),
            Right::RemoteRead => access.remote_read(),
            Right::RemoteAtomic => access.remote_atomic(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Right::LocalRead => "local reads",
            Right::LocalWrite => "local writes",
            Right::RemoteWrite => "remote writes",
            Right::RemoteRead => "remote reads",
            Right::RemoteAtomic => "remote atomic operations",
        }
    }
}

/// A checked range of a region.
#[derive(Clone)]
pub(crate) struct Span {
    pub(crate) region: Arc<MemoryRegion>,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// Checked ranges, in order.
pub(crate) type Spans = SmallVec<[Span; 1]>;

/// Registered memory that queue pairs of one program can name.
#[derive(Default)]
pub struct ProtectionDomain {
    registrations: RwLock<HashMap<u32, Arc<Registration>, BuildHasherDefault<KeyHasher>>>,
}

/// Hasher of keys, which are random and chosen by this end.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((self.0 as u32).rotate_left(8) ^ u32::from(*byte)));
    }

    fn write_u32(&mut self, key: u32) {
        // The table uses the high and the low bits.
        self.0 = u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl ProtectionDomain {
    /// Registers a region, which work requests address from `address` on.
    ///
    /// # Errors
    /// If the range of addresses wraps, or the system has no random bytes.
    pub fn register(
        &self,
        region: Arc<MemoryRegion>,
        address: u64,
        access: Access,
    ) -> Result<Arc<Registration>, RegisterError> {
        self.register_as(None, region, address, access)
    }

    /// Registers a region as [`ProtectionDomain::register`], with the key `key` unless another one has it.
    ///
    /// # Errors
    /// As [`ProtectionDomain::register`].
    pub fn register_as(
        &self,
        mut key: Option<u32>,
        region: Arc<MemoryRegion>,
        address: u64,
        access: Access,
    ) -> Result<Arc<Registration>, RegisterError> {
        if address.checked_add(region.len() as u64).is_none() {
            return Err(RegisterError::Address { address, length: region.len() });
        }
        let mut registrations = self.registrations.write();
        loop {
            let random = || getrandom::u32().map_err(|error| RegisterError::Random(error.to_string()));
            let key = key.take().map_or_else(random, Ok)?;
            if key == 0 || registrations.contains_key(&key) {
                continue;
            }
            let registration = Arc::new(Registration { region, address, key, access });
            registrations.insert(key, Arc::clone(&registration));
            return Ok(registration);
        }
    }

    /// Ends a registration: no later access finds it. The memory lives until operations in progress end.
    pub fn deregister(&self, registration: &Registration) {
        self.registrations.write().remove(&registration.key);
    }

    /// Whether a registration covers a range of addresses.
    pub fn covers(&self, key: u32, address: u64, len: u64) -> bool {
        self.span(key, address, len, Right::LocalRead).is_ok()
    }

    /// Returns the span of a range of addresses.
    pub(crate) fn span(&self, key: u32, address: u64, len: u64, right: Right) -> Result<Span, AccessError> {
        let registrations = self.registrations.read();
        registrations.get(&key).ok_or(AccessError::Key(key))?.span(address, len, right)
    }

    /// Returns the spans of local SGEs, or `None` if one of them is not allowed.
    pub(crate) fn spans(&self, sges: &[Sge], right: Right) -> Option<Spans> {
        let mut spans = Spans::new();
        self.fill_spans(sges, right, &mut spans).then_some(spans)
    }

    /// Adds the spans of local SGEs to `spans`, which costs less than to move them there. Returns `false` if one of them
    /// is not allowed.
    pub(crate) fn fill_spans(&self, sges: &[Sge], right: Right, spans: &mut Spans) -> bool {
        let registrations = self.registrations.read();
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            let found = registrations.get(&sge.lkey);
            let span = found.and_then(|found| found.span(sge.address, sge.length.into(), right).ok());
            let Some(span) = span else { return false };
            spans.push(span);
        }
        true
    }
}

/// Why memory cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The range of addresses wraps.
    #[error("{length} bytes from address {address:#x} exceed the 64-bit address space")]
    Address {
        /// First address.
        address: u64,
        /// Length in bytes.
        length: usize,
    },
    /// The system has no random bytes for a key.
    #[error("no random bytes for a key: {0}")]
    Random(String),
}

/// Returns regions, offsets, and lengths of the part of spans from `offset` on that has `len` bytes, or fewer at the
/// end.
pub(crate) fn parts(
    spans: &[Span],
    offset: usize,
    len: usize,
) -> impl Iterator<Item = (&Arc<MemoryRegion>, usize, usize)> {
    let (mut skip, mut left) = (offset, len);
    spans.iter().filter_map(move |span| {
        let from = skip.min(span.len);
        let count = left.min(span.len - from);
        (skip, left) = (skip - from, left - count);
        (count > 0).then_some((&span.region, span.offset + from, count))
    })
}

/// Copies bytes to an offset of spans. Returns `false` if a part of that is not mapped.
#[inline]
pub(crate) fn copy_in(spans: &[Span], offset: usize, bytes: &[u8]) -> bool {
    let mut left = bytes;
    parts(spans, offset, bytes.len()).all(|(region, offset, len)| {
        let (front, tail) = left.split_at(len);
        left = tail;
        region.try_copy_in(offset, front)
    })
}

/// Copies bytes from an offset of spans on. Returns `false` if a part of that is not mapped.
pub(crate) fn copy_out(spans: &[Span], offset: usize, bytes: &mut [u8]) -> bool {
    let (len, mut left) = (bytes.len(), bytes);
    parts(spans, offset, len).all(|(region, offset, len)| {
        let (part, tail) = std::mem::take(&mut left).split_at_mut(len);
        left = tail;
        region.try_copy_out(offset, part)
    })
}

/// Whether one of the spans is in a region.
pub(crate) fn is_among(spans: &[Span], region: &Arc<MemoryRegion>) -> bool {
    spans.iter().any(|span| Arc::ptr_eq(&span.region, region))
}

/// Whether all bytes of spans are mapped.
pub(crate) fn are_readable(spans: &[Span]) -> bool {
    spans.iter().all(|span| span.region.is_readable(span.offset, span.len))
}

/// Shortens spans to `len` bytes.
#[inline]
pub(crate) fn truncate(spans: &mut Spans, len: usize) {
    if let ([span], 1..) = (&mut spans[..], len) {
        span.len = span.len.min(len);
        return;
    }
    let mut left = len;
    spans.retain(|span| {
        span.len = span.len.min(left);
        left -= span.len;
        span.len > 0
    });
}

/// Returns the part of spans from `offset` on that has `len` bytes, or fewer at the end.
pub(crate) fn part(spans: &[Span], offset: usize, len: usize) -> Spans {
    parts(spans, offset, len)
        .map(|(region, offset, len)| Span { region: Arc::clone(region), offset, len })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(access: Access) -> (ProtectionDomain, Arc<Registration>) {
        let domain = ProtectionDomain::default();
        let region = MemoryRegion::allocate(100).unwrap();
        let registration = domain.register(region, 1000, access).unwrap();
        (domain, registration)
    }

    #[test]
    fn spans_are_inside() {
        let (domain, registration) = domain(Access(0));
        let key = registration.key();
        let span = |address, len| {
            domain.span(key, address, len, Right::LocalRead).map(|span| (span.offset, span.len))
        };
        assert_eq!(span(1000, 100), Ok((0, 100)));
        assert_eq!(span(1099, 1), Ok((99, 1)));
        for (address, length) in [(999, 1), (1000, 101), (1100, 1), (1001, u64::MAX), (u64::MAX, 2)] {
            assert_eq!(span(address, length), Err(AccessError::Bounds { key, address, length }));
        }
        assert!(matches!(domain.span(!key, 1000, 1, Right::LocalRead), Err(AccessError::Key(_))));
        domain.deregister(&registration);
        assert_eq!(span(1000, 1), Err(AccessError::Key(key)));
    }

    #[test]
    fn each_right_is_needed() {
        let rights = [
            (Right::LocalWrite, Access(1)),
            (Right::RemoteWrite, Access(2)),
            (Right::RemoteRead, Access(4)),
            (Right::RemoteAtomic, Access(8)),
        ];
        for (right, access) in rights {
            let (allowed, one) = domain(access);
            assert!(allowed.span(one.key(), 1000, 1, right).is_ok());
            let (refused, other) = domain(Access(!access.0));
            let refusal = refused.span(other.key(), 1000, 1, right).err();
            assert_eq!(refusal, Some(AccessError::Rights { key: other.key(), access: right.name() }));
        }
    }

    #[test]
    fn part_of_spans() {
        let region = MemoryRegion::allocate(100).unwrap();
        let spans: Vec<Span> = [(0, 10), (50, 5), (90, 10)]
            .map(|(offset, len)| Span { region: Arc::clone(&region), offset, len })
            .to_vec();
        let places = |offset, len| -> Vec<(usize, usize)> {
            let places: Vec<_> = parts(&spans, offset, len).map(|(_, offset, len)| (offset, len)).collect();
            let cloned = part(&spans, offset, len);
            assert!(cloned.iter().map(|span| (span.offset, span.len)).eq(places.iter().copied()));
            if offset == 0 {
                let mut front: Spans = spans.iter().cloned().collect();
                truncate(&mut front, len);
                assert!(front.iter().map(|span| (span.offset, span.len)).eq(places.iter().copied()));
            }
            places
        };
        assert_eq!(places(0, 12), [(0, 10), (50, 2)]);
        assert_eq!(places(0, 25), [(0, 10), (50, 5), (90, 10)]);
        assert_eq!(places(8, 8), [(8, 2), (50, 5), (90, 1)]);
        assert_eq!(places(10, 5), [(50, 5)]);
        assert_eq!(places(25, 5), []);
        assert_eq!(places(0, 0), []);
        let mut one: Spans = spans.iter().take(1).cloned().collect();
        truncate(&mut one, 20);
        truncate(&mut one, 4);
        assert_eq!(one.iter().map(|span| (span.offset, span.len)).collect::<Vec<_>>(), [(0, 4)]);
        truncate(&mut one, 0);
        assert!(one.is_empty());
        assert_eq!(places(20, 100), [(95, 5)]);
    }

    #[test]
    fn refuses_addresses_that_wrap() {
        let region = MemoryRegion::allocate(100).unwrap();
        let refused = ProtectionDomain::default().register(region, u64::MAX - 50, Access(0));
        let expected = RegisterError::Address { address: u64::MAX - 50, length: 100 };
        assert_eq!(refused.err(), Some(expected));
    }
}
