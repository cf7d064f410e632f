//! Bits of the regions of a mirror, and their form in the bitmap file.
//!
//! The file stores them in sectors of 512 bytes, which a disk writes atomically: 63 words of bits, then the index of
//! the sector and a CRC32C.

use std::ops::Range;

use isolane_wire::digest::crc32c;

/// One bit for each region, in words for whole sectors of the bitmap file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    /// Creates at least `len` clear bits.
    pub fn new(len: u64) -> Bits {
        Bits(vec![0; sectors_for(len) as usize * WORDS])
    }

    /// Whether the bit is set.
    pub fn get(&self, bit: u64) -> bool {
        self.0[(bit / 64) as usize] >> (bit % 64) & 1 == 1
    }

    /// Sets bits.
    pub fn set(&mut self, bits: Range<u64>) {
        bits.for_each(|bit| self.0[(bit / 64) as usize] |= 1 << (bit % 64));
    }

    /// Clears one bit.
    pub fn clear(&mut self, bit: u64) {
        self.0[(bit / 64) as usize] &= !(1 << (bit % 64));
    }

    /// Returns the bits that are set.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        let words = (0..).zip(&self.0).filter(|(_, word)| **word != 0);
        words.flat_map(|(at, word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit)
        })
    }

    /// Returns the sectors that differ from `other`.
    pub fn differences(&self, other: &Bits) -> Vec<u64> {
        let pairs = (0..).zip(self.0.chunks(WORDS).zip(other.0.chunks(WORDS)));
        pairs.filter(|(_, (own, other))| own != other).map(|(sector, _)| sector).collect()
    }

    /// Keeps the bits that are also set in `other`.
    pub fn intersect(&mut self, other: &Bits) {
        self.0.iter_mut().zip(&other.0).for_each(|(own, other)| *own &= other);
    }

    /// Encodes a sector.
    pub fn encode(&self, sector: u64) -> Vec<u8> {
        let words = &self.0[sector as usize * WORDS..][..WORDS];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend((sector as u32).to_le_bytes());
        bytes.extend(crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// Decodes all sectors of `len` bits. Returns `None` if they are damaged, or if later bits are set.
    pub fn decode(len: u64, sectors: &[u8]) -> Option<Bits> {
        let words = sectors.chunks(SECTOR_BYTES).flat_map(|sector| sector.as_chunks().0.iter().take(WORDS));
        let bits = Bits(words.map(|word| u64::from_le_bytes(*word)).collect());
        let has_len = bits.0.len() == sectors_for(len) as usize * WORDS;
        let encoded = || (0..sectors_for(len)).flat_map(|sector| bits.encode(sector));
        let is_valid = has_len && encoded().eq(sectors.iter().copied()) && bits.iter().all(|bit| bit < len);
        is_valid.then_some(bits)
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

    fn encode(bits: &Bits) -> Vec<u8> {
        (0..3).flat_map(|sector| bits.encode(sector)).collect()
    }

    #[test]
    fn sectors_survive_encoding() {
        let mut bits = Bits::new(10_000);
        bits.set(4030..4035);
        bits.set(9999..10_000);
        let mut decoded = Bits::new(10_000);
        assert_eq!(decoded.differences(&bits), [0, 1, 2]);
        decoded = Bits::decode(10_000, &encode(&bits)).unwrap();
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
        let good = encode(&bits);
        assert_eq!(Bits::decode(10_000, &good), Some(bits));
        assert_eq!(Bits::decode(9_999, &good), None, "a bit beyond the regions");
        let [first, second, third] = [0, 512, 1024].map(|at| &good[at..at + 512]);
        assert_eq!(Bits::decode(10_000, &[second, first, third].concat()), None, "another index");
        for at in 0..good.len() {
            let mut damaged = good.clone();
            damaged[at] ^= 1;
            assert_eq!(Bits::decode(10_000, &damaged), None, "byte {at}");
        }
        for len in [0, 511, 512, 1024, good.len() - 1] {
            assert_eq!(Bits::decode(10_000, &good[..len]), None, "{len} bytes");
        }
        assert_eq!(Bits::decode(4032, &good), None, "more sectors");
    }
}
