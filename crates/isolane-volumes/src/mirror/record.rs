//! State of a mirror, as stored in the bitmap file and in a label at the end of each member.
//!
//! A record fits into a sector, which a disk writes atomically.
//!
//! Invariant: bytes that are damaged, foreign, or of another version never decode to a record.

use isolane_volume::VolumeInfo;
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
    /// Returns the record of a new mirror of members with these features.
    pub fn new(member: &VolumeInfo, min_region_bytes: u64) -> Record {
        let block_size = u64::from(member.block_size);
        let blocks = member.blocks - LABEL_BYTES / block_size;
        let region_blocks =
            blocks.div_ceil(MAX_REGIONS).next_power_of_two().max(min_region_bytes / block_size);
        Record {
            mirror: Uuid::new_v4(),
            generation: Uuid::new_v4(),
            parent: Uuid::nil(),
            sequence: 0,
            block_size: member.block_size,
            blocks,
            region_blocks,
            states: [MemberState::Complete, MemberState::Incomplete],
        }
    }

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
    pub fn encode(&self, holder: usize) -> Vec<u8> {
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
        let uuids = [self.mirror, self.generation, self.parent].map(|uuid| uuid.as_u64_pair());
        let uuids = uuids.into_iter().flat_map(|(high, low)| [high, low]);
        let mut bytes: Vec<u8> = words.into_iter().chain(uuids).flat_map(u64::to_le_bytes).collect();
        bytes.extend(u64::from(crc32c(&bytes)).to_le_bytes());
        bytes
    }

    /// Whether both records are of the same mirror, with the same blocks and regions.
    pub fn is_same_mirror(&self, other: &Record) -> bool {
        let layout = |one: &Record| (one.mirror, one.block_size, one.blocks, one.region_blocks);
        layout(self) == layout(other)
    }

    /// Whether the bytes are a copy that is damaged, or of another version: either its magic number is intact, or
    /// everything else.
    pub fn is_damaged(bytes: &[u8]) -> bool {
        let (magic, rest) = bytes.split_at(8);
        let restored = [&MAGIC.to_le_bytes(), rest].concat();
        (magic == MAGIC.to_le_bytes()) != Record::decode(&restored).is_some()
    }

    /// Decodes a copy, and returns its holder.
    pub fn decode(bytes: &[u8]) -> Option<(usize, Record)> {
        let (fields, _) = bytes.first_chunk::<RECORD_BYTES>()?.as_chunks();
        let word = |at: usize| u64::from_le_bytes(fields[at]);
        let uuid = |at: usize| Uuid::from_u64_pair(word(at), word(at + 1));
        let state = |at: usize| MEMBER_STATES.into_iter().find(|state| *state as u64 == word(at));
        let record = Record {
            states: [state(3)?, state(4)?],
            sequence: word(5),
            block_size: u32::try_from(word(6)).ok()?,
            blocks: word(7),
            region_blocks: word(8),
            mirror: uuid(9),
            generation: uuid(11),
            parent: uuid(13),
        };
        let holder = usize::try_from(word(2)).ok().filter(|holder| *holder <= BITMAP)?;
        // Magic number, version, and checksum are part of the encoding.
        let is_valid = bytes.starts_with(&record.encode(holder))
            && [512, 4096].contains(&record.block_size)
            && (1..1 << 48).contains(&record.blocks)
            && (1..1 << 48).contains(&record.region_blocks)
            && record.regions() <= MAX_REGIONS
            && record.sequence < 1 << 48;
        is_valid.then_some((holder, record))
    }
}

/// Holder of the copy in the bitmap file.
pub(super) const BITMAP: usize = 2;
/// Maximum number of regions: bounds the memory and the bitmap file.
pub(super) const MAX_REGIONS: u64 = 1 << 20;
/// Bytes at the end of each member that are reserved for its label, which is at their start.
pub(super) const LABEL_BYTES: u64 = 64 << 10;
const MEMBER_STATES: [MemberState; 3] = [MemberState::Complete, MemberState::Incomplete, MemberState::Out];
const RECORD_BYTES: usize = 128;
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
        assert_eq!(Record::decode(&bytes), Some((1, record())));
        assert_eq!(Record::decode(&record().encode(3)), None, "another holder");
    }

    #[test]
    fn rejects_every_damaged_byte() {
        let bytes = record().encode(BITMAP);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert_eq!(Record::decode(&damaged), None, "byte {at}");
            assert!(Record::is_damaged(&damaged), "byte {at}");
        }
        assert!(!Record::is_damaged(&bytes) && !Record::is_damaged(&[0; 512]));
        assert_eq!(Record::decode(&bytes[..RECORD_BYTES - 1]), None);
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
            assert_eq!(Record::decode(&record.encode(BITMAP)), None, "{record:?}");
        }
    }
}
