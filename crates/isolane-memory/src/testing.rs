//! Regions for tests, with known bytes before and after them.

use std::io;
use std::sync::Arc;

use crate::{MemoryRegion, PAGE_SIZE};

/// The memory of a region, and a page of known bytes before and after it, which no access to the region may change.
struct Canaries {
    whole: Arc<MemoryRegion>,
}

/// Allocates a region of `len` zeroes at a page boundary, with known bytes before and after it. When the region is dropped,
/// the process aborts if they have changed: any thread can drop it, and a panic could be lost.
///
/// # Errors
/// As [`MemoryRegion::allocate`].
pub fn guarded_region(len: usize) -> io::Result<Arc<MemoryRegion>> {
    let canaries = Canaries::around(len)?;
    let start = canaries.whole.at(PAGE_SIZE, len);
    // SAFETY: the range is inside of `whole`, which the region keeps, and to which there are no references.
    let region = unsafe { MemoryRegion::from_owner(start, len, Box::new(canaries)) };
    Ok(Arc::new(region))
}

impl Canaries {
    fn around(len: usize) -> io::Result<Canaries> {
        let whole = MemoryRegion::allocate(len + 2 * PAGE_SIZE)?;
        whole.copy_in(0, &[CANARY; PAGE_SIZE]);
        whole.copy_in(PAGE_SIZE + len, &[CANARY; PAGE_SIZE]);
        Ok(Canaries { whole })
    }

    fn are_intact(&self) -> bool {
        let after = self.whole.len() - PAGE_SIZE;
        [0, after].iter().all(|at| self.whole.to_vec(*at, PAGE_SIZE) == [CANARY; PAGE_SIZE])
    }
}

impl Drop for Canaries {
    fn drop(&mut self) {
        if !self.are_intact() {
            eprintln!("the bytes around a region of a test have changed");
            std::process::abort();
        }
    }
}

const CANARY: u8 = 0xc5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_changes_around_a_region() {
        let canaries = Canaries::around(100).unwrap();
        canaries.whole.copy_in(PAGE_SIZE, &[1; 100]);
        assert!(canaries.are_intact());
        for at in [PAGE_SIZE - 1, PAGE_SIZE + 100] {
            canaries.whole.copy_in(at, &[0]);
            assert!(!canaries.are_intact(), "byte {at}");
            canaries.whole.copy_in(at, &[CANARY]);
        }
    }

    #[test]
    fn allocates_zeroes_at_a_page_boundary() {
        let region = guarded_region(100).unwrap();
        assert_eq!((region.len(), region.address() % PAGE_SIZE as u64), (100, 0));
        assert_eq!(region.to_vec(0, 100), [0; 100]);
    }
}
