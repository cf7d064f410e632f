//! Hints to the processor's cache. Without effect where the processor has none that stable Rust can give.

/// Fetches the first bytes into the cache, for who is going to read them all soon. The processor fetches the
/// rest itself once it sees the bytes used in order.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    prefetch_at::<FIRST_BYTES>(bytes.as_ptr());
}

/// Fetches `LEN` bytes at `start`, to be read.
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

/// Fetches the line that `address` lies in, to be written.
#[inline]
pub(crate) fn prefetch_to_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: a prefetch neither writes nor faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// What is fetched of bytes that are going to be read.
pub(crate) const FIRST_BYTES: usize = 1024;
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;
