//! Regions for tests, with known bytes before and after them.

use std::io;
use std::sync::Arc;
use std::thread;

use crate::{MemoryRegion, PAGE_SIZE};

/// The bytes before and after a region, which no access to the region may change. They are checked when the value is
/// dropped.
pub struct Canaries {
    whole: Arc<MemoryRegion>,
}

impl Canaries {
    /// Allocates a region of `len` zeroes at a page boundary, and a page of known bytes before and after it.
    ///
    /// # Errors
    /// As [`MemoryRegion::allocate`].
    pub fn around(len: usize) -> io::Result<(Canaries, Arc<MemoryRegion>)> {
        let whole = MemoryRegion::allocate(len + 2 * PAGE_SIZE)?;
        whole.copy_in(0, &[CANARY; PAGE_SIZE]);
        whole.copy_in(PAGE_SIZE + len, &[CANARY; PAGE_SIZE]);
        let start = whole.at(PAGE_SIZE, len);
        // SAFETY: the range is inside of `whole`, which the region keeps, and to which there are no references.
        let region = unsafe { MemoryRegion::from_owner(start, len, Box::new(Arc::clone(&whole))) };
        Ok((Canaries { whole }, Arc::new(region)))
    }

    /// Whether the bytes are as they were.
    pub fn are_intact(&self) -> bool {
        let after = self.whole.len() - PAGE_SIZE;
        [0, after].iter().all(|at| self.whole.to_vec(*at, PAGE_SIZE) == [CANARY; PAGE_SIZE])
    }
}

impl Drop for Canaries {
    fn drop(&mut self) {
        assert!(thread::panicking() || self.are_intact(), "bytes beside a region have changed");
    }
}

const CANARY: u8 = 0xc5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_bytes_beside_the_region() {
        let (canaries, region) = Canaries::around(100).unwrap();
        region.copy_in(0, &[1; 100]);
        assert!(canaries.are_intact() && region.address().is_multiple_of(PAGE_SIZE as u64));
        for at in [PAGE_SIZE - 1, PAGE_SIZE + 100] {
            canaries.whole.copy_in(at, &[0]);
            assert!(!canaries.are_intact(), "byte {at}");
            canaries.whole.copy_in(at, &[CANARY]);
        }
    }
}
