//! Buffers of a call, in place: a handler of a signal can transfer while the program allocates memory.

use libc::iovec;

/// Buffers of a transfer, up to the size that the kernel transfers at once.
#[derive(Clone, Copy)]
pub(crate) struct Buffers<'a> {
    parts: &'a [iovec],
    bytes: usize,
}

impl<'a> Buffers<'a> {
    /// `None`: the kernel reports the error.
    pub(crate) fn new(parts: &'a [iovec]) -> Option<Buffers<'a>> {
        let is_valid = |part: &iovec| {
            isize::try_from(part.iov_len).is_ok() && (part.iov_len == 0 || !part.iov_base.is_null())
        };
        parts.iter().all(is_valid).then(|| Buffers { parts, bytes: total(parts).min(MAX_TRANSFER) })
    }

    pub(crate) fn bytes(self) -> usize {
        self.bytes
    }

    /// Returns what is left of the buffers after their first `skipped` bytes, without empty ones.
    pub(crate) fn after(self, mut skipped: usize) -> impl Iterator<Item = (*mut u8, usize)> + use<'a> {
        let mut left = self.bytes;
        self.parts.iter().filter_map(move |part| {
            let length = part.iov_len.min(left);
            left -= length;
            let start = skipped.min(length);
            skipped -= start;
            (start < length).then(|| (part.iov_base.cast::<u8>().wrapping_add(start), length - start))
        })
    }
}

/// Returns the number of bytes of a vector.
pub(crate) fn total(parts: &[iovec]) -> usize {
    parts.iter().fold(0, |bytes, part| bytes.saturating_add(part.iov_len))
}

/// The kernel's limit.
const MAX_TRANSFER: usize = 0x7fff_f000;

#[cfg(test)]
mod tests {
    use std::ptr::{null_mut, without_provenance_mut};

    use super::*;

    fn part(start: usize, length: usize) -> iovec {
        iovec { iov_base: without_provenance_mut(start), iov_len: length }
    }

    fn after(parts: &[iovec], skipped: usize) -> Vec<(usize, usize)> {
        Buffers::new(parts).unwrap().after(skipped).map(|(start, length)| (start.addr(), length)).collect()
    }

    #[test]
    fn skips_bytes_and_empty_buffers() {
        let parts = [part(100, 3), part(200, 0), part(300, 5)];
        assert_eq!(Buffers::new(&parts).unwrap().bytes(), 8);
        assert_eq!(after(&parts, 0), [(100, 3), (300, 5)]);
        assert_eq!(after(&parts, 2), [(102, 1), (300, 5)]);
        assert_eq!(after(&parts, 3), [(300, 5)]);
        assert_eq!(after(&parts, 7), [(304, 1)]);
        assert_eq!(after(&parts, 8), []);
        assert_eq!(after(&[], 0), []);
    }

    #[test]
    fn limits_size_and_leaves_errors_to_the_kernel() {
        let parts = [part(100, MAX_TRANSFER - 1), part(200, 10), part(300, 10)];
        assert_eq!(Buffers::new(&parts).unwrap().bytes(), MAX_TRANSFER);
        assert_eq!(after(&parts, MAX_TRANSFER - 1), [(200, 1)]);
        assert!(Buffers::new(&[part(100, usize::MAX)]).is_none());
        assert!(Buffers::new(&[iovec { iov_base: null_mut(), iov_len: 1 }]).is_none());
        assert!(Buffers::new(&[iovec { iov_base: null_mut(), iov_len: 0 }]).is_some());
    }
}
