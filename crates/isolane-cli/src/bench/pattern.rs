//! Block patterns of `--verify`.
//!
//! Every logical block carries its address, the sequence number of its write, and the run; the remainder of the block
//! is derived from these. This detects lost, duplicated, misplaced, torn, and stale blocks. Only blocks that this run
//! wrote are checked.

/// "ISOLANE\0" as a little-endian number.
const MAGIC: u64 = 0x0045_4e41_4c4f_5349;

const WORD: usize = 8;

/// Words that are not derived from others: magic, LBA, sequence, run.
const HEADER_WORDS: usize = 4;

/// Origin of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Logical block address, in blocks.
    pub lba: u64,
    /// Sequence number of the write within the run, from 1.
    pub sequence: u64,
    /// The run, to detect blocks of an earlier one.
    pub run: u64,
}

/// A wrong block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// No pattern.
    NoPattern,
    /// A block of another address or run.
    WrongBlock(Stamp),
    /// Correct header, wrong content from this byte on.
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

/// Returns the stamp of a block after a check of every byte.
pub fn check(block: &[u8], lba: u64, run: u64) -> Result<Stamp, Damage> {
    let stamp = read_stamp(block).ok_or(Damage::NoPattern)?;
    if stamp.lba != lba || stamp.run != run {
        return Err(Damage::WrongBlock(stamp));
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

/// A cheap number sequence that differs for every stamp.
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
    fn round_trips_the_stamp() {
        assert_eq!(check(&block(), 7, 99), Ok(STAMP));
    }

    #[test]
    fn detects_blocks_of_another_address() {
        assert_eq!(check(&block(), 8, 99), Err(Damage::WrongBlock(STAMP)));
    }

    #[test]
    fn detects_blocks_of_another_run() {
        assert_eq!(check(&block(), 7, 100), Err(Damage::WrongBlock(STAMP)));
    }

    #[test]
    fn reports_where_a_torn_write_starts() {
        let mut torn = block();
        let mut other = vec![0; 512];
        fill(&mut other, Stamp { sequence: 4, ..STAMP });
        torn[256..].copy_from_slice(&other[256..]);
        assert_eq!(check(&torn, 7, 99), Err(Damage::Torn(STAMP, 256)));
    }

    #[test]
    fn zeros_have_no_pattern() {
        assert_eq!(check(&[0; 512], 7, 99), Err(Damage::NoPattern));
    }
}
