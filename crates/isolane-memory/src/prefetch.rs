//! Prefetch hints, without effect on processors for which stable Rust has none.

/// Fetches the first bytes into the cache before all of them are read. The processor fetches the remainder once
/// it detects sequential access.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    prefetch_at::<FIRST_BYTES>(bytes.as_ptr());
}

/// Fetches `LEN` bytes at `start` for reading.
#[inline]
pub(crate) fn prefetch_at<const LEN: usize>(start: *const u8) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..LEN).step_by(LINE_BYTES) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch neither reads nor faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = start;
}

/// Fetches the cache line of `address` for writing.
#[inline]
pub(crate) fn prefetch_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: a prefetch neither writes nor faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Number of bytes to fetch before a read.
pub(crate) const FIRST_BYTES: usize = 1024;
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;
