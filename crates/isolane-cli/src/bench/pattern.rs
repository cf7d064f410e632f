//! What `--verify` writes, and how it is recognised again.
//!
//! Every logical block carries its own address, the sequence number of the write that made it and
//! the run it belongs to; the rest of the block follows from these three. So a block that was lost,
//! doubled, misplaced, torn or left over from an earlier run is told apart from a right one.
//! Not a checksum of the volume: only blocks that this run wrote are judged.

/// Marks a block as ours: "ISOLANE\0" read as a little-endian number.
const MAGIC: u64 = 0x0045_4e41_4c4f_5349;

/// Bytes of one pattern word.
const WORD: usize = 8;

/// Words of a block that are not derived from the others: magic, LBA, sequence, run.
const HEADER_WORDS: usize = 4;

/// Who wrote a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Logical block address, in blocks.
    pub lba: u64,
    /// Number of the write within the run; 0 is never used.
    pub sequence: u64,
    /// The run, so that leftovers of an earlier one are recognised.
    pub run: u64,
}

/// What is wrong with a block that was read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// No pattern at all.
    Foreign,
    /// The block of another address or run.
    Misplaced(Stamp),
    /// Right header, wrong content from this byte on.
    Torn(Stamp, usize),
}

/// Fills one block.
pub fn fill(block: &mut [u8], stamp: Stamp) {
    let mut mixer = Mixer::new(stamp);
    let header = [MAGIC, stamp.lba, stamp.sequence, stamp.run];
    for (index, word) in block.chunks_exact_mut(WORD).enumerate() {
        let value = header.get(index).copied().unwrap_or_else(|| mixer.next());
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// Reads the stamp of a block back, checking every byte.
pub fn check(block: &[u8], lba: u64, run: u64) -> Result<Stamp, Damage> {
    let stamp = read_stamp(block).ok_or(Damage::Foreign)?;
    if stamp.lba != lba || stamp.run != run {
        return Err(Damage::Misplaced(stamp));
    }
    let mut mixer = Mixer::new(stamp);
    for (index, word) in block.chunks_exact(WORD).enumerate().skip(HEADER_WORDS) {
        if word != mixer.next().to_le_bytes() {
            return Err(Damage::Torn(stamp, index * WORD));
        }
    }
    Ok(stamp)
}

fn read_stamp(block: &[u8]) -> Option<Stamp> {
    let mut words =
        block.chunks_exact(WORD).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    if words.next()? != MAGIC {
        return None;
    }
    Some(Stamp { lba: words.next()?, sequence: words.next()?, run: words.next()? })
}

/// A cheap sequence of numbers that differs for every stamp.
struct Mixer(u64);

impl Mixer {
    fn new(stamp: Stamp) -> Self {
        Mixer(stamp.lba.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ stamp.sequence.rotate_left(32) ^ stamp.run)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 27)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { lba: 7, sequence: 3, run: 99 };

    fn block() -> Vec<u8> {
        let mut block = vec![0; 512];
        fill(&mut block, STAMP);
        block
    }

    #[test]
    fn a_filled_block_gives_its_stamp_back() {
        assert_eq!(check(&block(), 7, 99), Ok(STAMP));
    }

    #[test]
    fn a_block_of_another_address_is_misplaced() {
        assert_eq!(check(&block(), 8, 99), Err(Damage::Misplaced(STAMP)));
    }

    #[test]
    fn a_leftover_of_another_run_is_misplaced() {
        assert_eq!(check(&block(), 7, 100), Err(Damage::Misplaced(STAMP)));
    }

    #[test]
    fn half_of_another_write_is_torn_where_it_begins() {
        let mut torn = block();
        let mut other = vec![0; 512];
        fill(&mut other, Stamp { sequence: 4, ..STAMP });
        torn[256..].copy_from_slice(&other[256..]);
        assert_eq!(check(&torn, 7, 99), Err(Damage::Torn(STAMP, 256)));
    }

    #[test]
    fn zeroes_are_foreign() {
        assert_eq!(check(&[0; 512], 7, 99), Err(Damage::Foreign));
    }
}
