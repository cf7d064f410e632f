//! State of a mirror, as stored in the bitmap file and in a label at the end of each member.
//!
//! A record fits into a sector, which a disk writes atomically.
//!
//! Invariant: bytes that are damaged, foreign, or of another version never decode to a record.

use isolane_wire::digest::crc32c;
use uuid::Uuid;

/// State of a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Identity of the mirror.
    pub mirror: Uuid,
    /// Changes whenever one member continues without the other.
    pub generation: Uuid,
    /// The previous generation; nil for the first one.
    pub parent: Uuid,
    /// Number of records written before.
    pub sequence: u64,
    /// Block size of mirror and members in bytes.
    pub block_size: u32,
    /// Blocks of the mirror.
    pub blocks: u64,
    /// Blocks of each region of the bitmap.
    pub region_blocks: u64,
    /// State of each member.
    pub states: [MemberState; 2],
}

/// State of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberState {
    /// All blocks are current.
    Complete = 1,
    /// Gets all writes; other regions are still to be copied to it.
    Incomplete = 2,
    /// Missing or failed: gets no writes.
    Out = 3,
}

impl Record {
    /// Returns the number of regions.
    pub fn regions(&self) -> u64 {
        self.blocks.div_ceil(self.region_blocks)
    }

    /// Continues without a member: starts a new generation.
    pub fn remove(&mut self, member: usize) {
        self.set_state(member, MemberState::Out);
        self.parent = self.generation;
        self.generation = Uuid::new_v4();
    }

    /// Changes the state of a member.
    pub fn set_state(&mut self, member: usize, state: MemberState) {
        self.states[member] = state;
        self.sequence += 1;
    }

    /// Encodes the copy for `holder`: the number of a member, or [`BITMAP`].
    pub fn encode(&self, holder: usize) -> [u8; RECORD_BYTES] {
        let [mirror, generation, parent] =
            [self.mirror, self.generation, self.parent].map(|uuid| uuid.as_u64_pair());
        let words = [
            MAGIC,
            VERSION,
            holder as u64,
            self.states[0] as u64,
            self.states[1] as u64,
            self.sequence,
            self.block_size.into(),
            self.blocks,
            self.region_blocks,
        ];
        let uuids = [mirror, generation, parent].into_iter().flat_map(|(high, low)| [high, low]);
        let mut bytes = [0; RECORD_BYTES];
        let (fields, _) = bytes.as_chunks_mut::<8>();
        fields
            .iter_mut()
            .zip(words.into_iter().chain(uuids))
            .for_each(|(field, word)| *field = word.to_le_bytes());
        let checksum = crc32c(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..].copy_from_slice(&u64::from(checksum).to_le_bytes());
        bytes
    }

    /// Whether both records are of the same mirror, with the same blocks and regions.
    pub fn is_same_mirror(&self, other: &Record) -> bool {
        let layout =
            |record: &Record| (record.mirror, record.block_size, record.blocks, record.region_blocks);
        layout(self) == layout(other)
    }

    /// Returns the holder of a copy.
    pub fn holder(bytes: &[u8]) -> Option<usize> {
        (0..=BITMAP).find(|holder| Record::decode(bytes, *holder).is_some())
    }

    /// Whether the bytes are a copy that is damaged, or of another version.
    pub fn is_damaged(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC.to_le_bytes()) && Record::holder(bytes).is_none()
    }

    /// Decodes the copy of `holder`.
    pub fn decode(bytes: &[u8], holder: usize) -> Option<Record> {
        let bytes: &[u8; RECORD_BYTES] = bytes.first_chunk()?;
        let (fields, _) = bytes.as_chunks::<8>();
        let word = |at: usize| u64::from_le_bytes(fields[at]);
        let uuid = |at: usize| Uuid::from_u64_pair(word(at), word(at + 1));
        let checksum = u64::from(crc32c(&bytes[..CHECKED_BYTES]));
        if [word(0), word(1), word(2), word(15)] != [MAGIC, VERSION, holder as u64, checksum] {
            return None;
        }
        let record = Record {
            states: [MemberState::decode(word(3))?, MemberState::decode(word(4))?],
            sequence: word(5),
            block_size: u32::try_from(word(6)).ok()?,
            blocks: word(7),
            region_blocks: word(8),
            mirror: uuid(9),
            generation: uuid(11),
            parent: uuid(13),
        };
        let is_valid = [512, 4096].contains(&record.block_size)
            && (1..1 << 48).contains(&record.blocks)
            && (1..1 << 48).contains(&record.region_blocks)
            && record.regions() <= MAX_REGIONS
            && record.sequence < 1 << 48;
        is_valid.then_some(record)
    }
}

impl MemberState {
    fn decode(word: u64) -> Option<MemberState> {
        use MemberState::{Complete, Incomplete, Out};
        [Complete, Incomplete, Out].into_iter().find(|state| *state as u64 == word)
    }
}

/// Holder of the copy in the bitmap file.
pub(super) const BITMAP: usize = 2;
/// Maximum number of regions: bounds the memory and the bitmap file.
pub(super) const MAX_REGIONS: u64 = 1 << 20;
/// Bytes at the end of each member that are reserved for its label, which is at their start.
pub(super) const LABEL_BYTES: u64 = 64 << 10;
const RECORD_BYTES: usize = 128;
const CHECKED_BYTES: usize = RECORD_BYTES - 8;
const MAGIC: u64 = u64::from_le_bytes(*b"ISOLMIRR");
const VERSION: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            mirror: Uuid::from_u128(0x0101),
            generation: Uuid::from_u128(0x0202),
            parent: Uuid::from_u128(0x0303),
            sequence: 0x0405,
            block_size: 4096,
            blocks: 0x0607,
            region_blocks: 0x08,
            states: [MemberState::Complete, MemberState::Out],
        }
    }

    #[test]
    fn encodes_golden_record() {
        let bytes = record().encode(1);
        assert_eq!(&bytes[..24], b"ISOLMIRR\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0");
        let words: Vec<u8> = bytes[24..120].chunks(8).flat_map(|word| [word[0], word[1]]).collect();
        assert_eq!(words, [1, 0, 3, 0, 5, 4, 0, 16, 7, 6, 8, 0, 0, 0, 1, 1, 0, 0, 2, 2, 0, 0, 3, 3]);
        assert_eq!(Record::decode(&bytes, 1), Some(record()));
        assert_eq!(Record::decode(&bytes, 0), None, "another holder");
    }

    #[test]
    fn rejects_every_damaged_byte() {
        let bytes = record().encode(BITMAP);
        for at in 0..bytes.len() {
            let mut damaged = bytes;
            damaged[at] ^= 0x10;
            assert_eq!(Record::decode(&damaged, BITMAP), None, "byte {at}");
            assert_eq!(Record::is_damaged(&damaged), at >= 8, "byte {at}");
        }
        assert_eq!(Record::decode(&bytes[..RECORD_BYTES - 1], BITMAP), None);
    }

    #[test]
    fn rejects_values_out_of_range_despite_valid_checksum() {
        let change: [fn(&mut Record); 6] = [
            |record| record.block_size = 1024,
            |record| record.blocks = 0,
            |record| record.region_blocks = 0,
            |record| (record.blocks, record.region_blocks) = (1 << 40, 1),
            |record| (record.blocks, record.region_blocks) = (u64::MAX, u64::MAX),
            |record| record.sequence = u64::MAX,
        ];
        for change in change {
            let mut record = record();
            change(&mut record);
            assert_eq!(Record::decode(&record.encode(BITMAP), BITMAP), None, "{record:?}");
        }
    }
}
