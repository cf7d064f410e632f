//! Contents of a block: its index and the number of its write, repeated.

/// Length of one repetition in bytes; a block torn at any sector has two different ones.
const STAMP_BYTES: usize = 32;
const MAGIC: u64 = u64::from_le_bytes(*b"isolane!");

/// Fills `block` as write number `sequence` of block `index`.
pub fn fill(block: &mut [u8], index: u64, sequence: u64) {
    let words = [MAGIC, index, sequence, sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index];
    for stamp in block.chunks_exact_mut(STAMP_BYTES) {
        for (slot, word) in stamp.chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Contents found in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Never written by this program: the first stamp has no magic number.
    Unwritten,
    /// One complete write.
    Complete(u64),
    /// Parts of different writes, or of different blocks.
    Torn,
}

/// Decodes block `index`.
pub fn read(block: &[u8], index: u64) -> Found {
    let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
    if word(0) != MAGIC {
        let marked = block.chunks_exact(STAMP_BYTES).any(|stamp| stamp[..8] == MAGIC.to_le_bytes());
        return if marked { Found::Torn } else { Found::Unwritten };
    }
    let mut expected = vec![0; block.len()];
    fill(&mut expected, index, word(16));
    if expected == block { Found::Complete(word(16)) } else { Found::Torn }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_a_filled_block() {
        let mut block = [0; 512];
        assert_eq!(read(&block, 7), Found::Unwritten);
        fill(&mut block, 7, 3);
        assert_eq!(read(&block, 7), Found::Complete(3));
        assert_eq!(read(&block, 8), Found::Torn);
    }

    #[test]
    fn detects_a_block_of_two_writes() {
        let (mut block, mut newer) = ([0; 1024], [0; 1024]);
        fill(&mut block, 7, 3);
        fill(&mut newer, 7, 4);
        block[512..].copy_from_slice(&newer[512..]);
        assert_eq!(read(&block, 7), Found::Torn);
        block[..512].fill(0);
        assert_eq!(read(&block, 7), Found::Torn);
    }
}
