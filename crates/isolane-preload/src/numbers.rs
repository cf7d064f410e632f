//! Maps by descriptor or ID, which the kernel and this library assign, so that a short hash function suffices.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Map by a number.
pub(crate) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Hash function for one number.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        // The upper bits select the slot's tag, the lower ones the slot.
        let product = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }

    #[inline]
    fn write_i32(&mut self, number: i32) {
        self.write_u32(number as u32);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn small_numbers_have_different_hashes() {
        let hash = |number| {
            let mut hasher = NumberHasher::default();
            hasher.write_i32(number);
            (hasher.finish() >> 57, hasher.finish() % 1024)
        };
        let hashes: HashSet<_> = (0..512).map(hash).collect();
        assert!(hashes.len() > 500, "{}", hashes.len());
    }
}
