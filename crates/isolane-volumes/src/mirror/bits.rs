//! Bits of the regions of a mirror, and their form in the bitmap file.
//!
//! The file stores them in sectors of 512 bytes, which a disk writes atomically: 63 words of bits, then the index of
//! the sector and a CRC32C.

use std::ops::Range;

use isolane_wire::digest::crc32c;

/// One bit for each region, in sectors of the bitmap file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bits(Vec<[u64; WORDS]>);

impl Bits {
    /// Creates at least `len` clear bits.
    pub fn new(len: u64) -> Bits {
        Bits(vec![[0; WORDS]; sectors_for(len) as usize])
    }

    fn word(&mut self, bit: u64) -> &mut u64 {
        &mut self.0[(bit / SECTOR_BITS) as usize][(bit % SECTOR_BITS / 64) as usize]
    }

    /// Whether the bit is set.
    pub fn get(&self, bit: u64) -> bool {
        self.0[(bit / SECTOR_BITS) as usize][(bit % SECTOR_BITS / 64) as usize] >> (bit % 64) & 1 == 1
    }

    /// Sets bits.
    pub fn set(&mut self, bits: Range<u64>) {
        bits.for_each(|bit| *self.word(bit) |= 1 << (bit % 64));
    }

    /// Clears one bit.
    pub fn clear(&mut self, bit: u64) {
        *self.word(bit) &= !(1 << (bit % 64));
    }

    /// Returns the bits that are set.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        let words = (0..).zip(self.0.as_flattened()).filter(|(_, word)| **word != 0);
        words.flat_map(|(at, word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit)
        })
    }

    /// Returns the sectors that differ from `other`.
    pub fn differences(&self, other: &Bits) -> Vec<u64> {
        let pairs = (0..).zip(self.0.iter().zip(&other.0));
        pairs.filter(|(_, (own, other))| own != other).map(|(sector, _)| sector).collect()
    }

    /// Keeps the bits that are also set in `other`.
    pub fn intersect(&mut self, other: &Bits) {
        let words = self.0.as_flattened_mut().iter_mut().zip(other.0.as_flattened());
        words.for_each(|(own, other)| *own &= other);
    }

    /// Encodes a sector.
    pub fn encode(&self, sector: u64) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.0[sector as usize].iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend((sector as u32).to_le_bytes());
        bytes.extend(crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// Replaces a sector by its encoded form. Returns `false` if that is damaged.
    #[must_use]
    pub fn decode(&mut self, sector: u64, bytes: &[u8]) -> bool {
        let before = self.0[sector as usize];
        let (words, _) = bytes.as_chunks();
        let pairs = self.0[sector as usize].iter_mut().zip(words);
        pairs.for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
        let is_valid = bytes.starts_with(&self.encode(sector));
        if !is_valid {
            self.0[sector as usize] = before;
        }
        is_valid
    }
}

/// Returns the number of sectors of `len` bits.
pub(super) fn sectors_for(len: u64) -> u64 {
    len.div_ceil(SECTOR_BITS)
}

/// Size of a sector of the bitmap file in bytes.
pub(super) const SECTOR_BYTES: usize = 512;
const WORDS: usize = 63;
const SECTOR_BITS: u64 = WORDS as u64 * 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_survive_encoding() {
        let mut bits = Bits::new(10_000);
        bits.set(4030..4035);
        bits.set(9999..10_000);
        let mut decoded = Bits::new(10_000);
        assert_eq!(decoded.differences(&bits), [0, 1, 2]);
        for sector in 0..3 {
            assert!(decoded.decode(sector, &bits.encode(sector)));
        }
        assert_eq!(decoded, bits);
        assert_eq!(bits.iter().collect::<Vec<_>>(), [4030, 4031, 4032, 4033, 4034, 9999]);
        decoded.clear(9999);
        bits.intersect(&decoded);
        assert!(!bits.get(9999) && bits.get(4034));
    }

    #[test]
    fn rejects_damaged_and_misplaced_sectors() {
        let mut bits = Bits::new(10_000);
        bits.set(0..10_000);
        let good = bits.encode(1);
        assert!(bits.decode(1, &good));
        assert!(!bits.decode(0, &good), "another index");
        for at in 0..good.len() {
            let mut damaged = good.clone();
            damaged[at] ^= 1;
            assert!(!bits.decode(1, &damaged), "byte {at}");
        }
        assert!(!bits.decode(1, &good[..511]));
    }
}
