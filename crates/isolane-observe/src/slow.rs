//! Ring of slow operations of one core: one writer, any number of readers, no lock.
//!
//! The writer keeps the worst operations of the current second and publishes them when the second ends.

use std::array;

use crate::ring::Ring;
use crate::snapshot::SlowOperation;
use crate::stage::{MAX_STAGES, Operation, Side};

/// Operations of each second that are always kept.
pub const WORST_PER_SECOND: usize = 4;
/// Operations in the ring: more than five minutes of the worst ones.
pub const SLOTS: usize = 2048;

/// Operations that take this long are published at once, and not only the worst ones of a second.
pub const LIMIT_NS: u64 = 100_000_000;
/// Number of these operations in a second.
const MAX_LIMITED: u32 = 32;

/// A slow operation as the data path records it: numbers only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowRecord {
    /// Time of its completion, on the clock of the program, in nanoseconds.
    pub at_ns: u64,
    /// Its total, in nanoseconds.
    pub total_ns: u64,
    /// Its stages, in nanoseconds.
    pub stages_ns: [u64; MAX_STAGES],
    /// Connection ([`crate::snapshot::Connection::id`]); 0 without one.
    pub connection: u64,
    /// First block.
    pub lba: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// [`crate::snapshot::Volume::id`].
    pub volume: u32,
    /// Command ID.
    pub cid: u16,
    /// Commands of the connection in flight when it arrived.
    pub depth: u16,
    /// Kind of operation.
    pub operation: Operation,
    /// Member that completed last ([`crate::snapshot::Volume::id`]), for a write of a stripe or mirror.
    pub last_member: Option<u32>,
}

const WORDS: usize = 7 + MAX_STAGES;
type Words = [u64; WORDS];

impl SlowRecord {
    fn to_words(self) -> Words {
        let mut words = [0; WORDS];
        let small = u64::from(self.cid) | u64::from(self.depth) << 16 | (self.operation as u64) << 32;
        let last = self.last_member.map_or(0, |member| u64::from(member) + 1);
        let volume = u64::from(self.volume) | last << 32;
        words[..7].copy_from_slice(&[
            self.at_ns,
            self.total_ns,
            self.connection,
            self.lba,
            self.bytes,
            volume,
            small,
        ]);
        words[7..].copy_from_slice(&self.stages_ns);
        words
    }

    fn from_words(words: &Words) -> SlowRecord {
        let [at_ns, total_ns, connection, lba, bytes, volume, small, ..] = *words;
        SlowRecord {
            at_ns,
            total_ns,
            stages_ns: array::from_fn(|stage| words[7 + stage]),
            connection,
            lba,
            bytes,
            volume: volume as u32,
            cid: small as u16,
            depth: (small >> 16) as u16,
            operation: Operation::ALL[((small >> 32) as usize).min(Operation::ALL.len() - 1)],
            last_member: ((volume >> 32) as u32).checked_sub(1),
        }
    }

    /// Returns the operation with names and only the stages that took time. `unix_offset_ns` is the difference between
    /// the time since 1970 and the clock of the program.
    pub fn to_operation(&self, side: Side, core: u32, unix_offset_ns: i128) -> SlowOperation {
        let stages = side.stages().iter().zip(self.stages_ns).filter(|(_, ns)| *ns > 0);
        let at = (i128::from(self.at_ns) + unix_offset_ns).clamp(0, i128::from(u64::MAX));
        SlowOperation {
            side,
            at_unix_us: (at / 1000) as u64,
            volume: self.volume,
            operation: self.operation,
            bytes: self.bytes,
            lba: self.lba,
            core,
            connection: self.connection,
            cid: self.cid,
            depth: self.depth,
            total_ns: self.total_ns,
            stages: stages.map(|(stage, ns)| (*stage, ns)).collect(),
            last_member: self.last_member,
        }
    }
}

/// The ring. The thread that owns the matching [`SlowWriter`] is its only writer.
#[derive(Debug)]
pub struct SlowRing(Ring<WORDS>);

impl Default for SlowRing {
    fn default() -> SlowRing {
        SlowRing::with_slots(SLOTS)
    }
}

impl SlowRing {
    /// Returns an empty ring for the last `slots` operations.
    pub fn with_slots(slots: usize) -> SlowRing {
        SlowRing(Ring::new(slots))
    }

    fn publish(&self, record: SlowRecord) {
        self.0.publish(record.to_words());
    }

    /// Returns the operations in the ring, the oldest first. Operations that are overwritten during the read are left
    /// out.
    pub fn copy(&self) -> Vec<SlowRecord> {
        self.0.copy().iter().map(SlowRecord::from_words).collect()
    }
}

/// The writing side of a [`SlowRing`]: chooses the operations to publish.
#[derive(Debug)]
pub struct SlowWriter {
    worst: [Option<SlowRecord>; WORST_PER_SECOND],
    /// Smallest total that enters `worst` or is published at once.
    threshold_ns: u64,
    /// Number of operations of this second that were published at once.
    published: u32,
    second: u64,
}

impl Default for SlowWriter {
    fn default() -> SlowWriter {
        SlowWriter { worst: [None; WORST_PER_SECOND], threshold_ns: 1, published: 0, second: 0 }
    }
}

impl SlowWriter {
    /// Returns `true` if an operation that took `total_ns` must be passed to [`SlowWriter::add`].
    #[inline]
    pub fn is_slow(&self, total_ns: u64) -> bool {
        total_ns >= self.threshold_ns
    }

    /// Adds an operation. An operation of a later second publishes the second before.
    pub fn add(&mut self, record: SlowRecord, ring: &SlowRing) {
        self.end_second(record.at_ns, ring);
        if record.total_ns >= LIMIT_NS && self.published < MAX_LIMITED {
            self.published += 1;
            return ring.publish(record);
        }
        let place = self.worst.iter_mut().min_by_key(|at| at.map_or(0, |worst| worst.total_ns));
        let place = place.expect("WORST_PER_SECOND is not 0");
        if place.is_none_or(|worst| worst.total_ns < record.total_ns) {
            *place = Some(record);
        }
        let least = self.worst.iter().map(|at| at.map_or(0, |worst| worst.total_ns)).min();
        let least = least.unwrap_or(0) + 1;
        self.threshold_ns = if self.published < MAX_LIMITED { least.min(LIMIT_NS) } else { least };
    }

    /// Returns `true` if operations wait for the end of their second.
    pub fn has_pending(&self) -> bool {
        self.worst.iter().any(Option::is_some)
    }

    /// Publishes the operations of the second before, if `now_ns` is in a later one. Called in each tick.
    pub fn end_second(&mut self, now_ns: u64, ring: &SlowRing) {
        let second = now_ns / 1_000_000_000;
        if second == self.second {
            return;
        }
        self.second = second;
        self.published = 0;
        self.threshold_ns = 1;
        let mut worst = std::mem::take(&mut self.worst);
        worst.sort_by_key(|at| at.map(|record| record.at_ns));
        worst.into_iter().flatten().for_each(|record| ring.publish(record));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn record(at_ms: u64, total_ns: u64) -> SlowRecord {
        SlowRecord {
            at_ns: at_ms * 1_000_000,
            total_ns,
            stages_ns: array::from_fn(|stage| stage as u64),
            connection: 7,
            lba: u64::MAX,
            bytes: 4096,
            volume: 2,
            cid: 0xffff,
            depth: 32,
            operation: Operation::WriteZeroes,
            last_member: Some(5),
        }
    }

    #[test]
    fn keeps_worst_operations_of_each_second() {
        let (ring, mut writer) = (SlowRing::default(), SlowWriter::default());
        for second in 0..3 {
            writer.end_second(second * 1_000_000_000, &ring);
            for number in 0..100 {
                let total_ns = (number * 37 % 100 + 1) * 1000;
                if writer.is_slow(total_ns) {
                    writer.add(record(second * 1000 + number * 10, total_ns), &ring);
                }
            }
        }
        assert!(writer.has_pending());
        writer.end_second(3_000_000_000, &ring);
        assert!(!writer.has_pending());
        let mut totals: Vec<u64> = ring.copy().iter().map(|at| at.total_ns / 1000).collect();
        totals.sort_unstable();
        assert_eq!(totals, [97, 97, 97, 98, 98, 98, 99, 99, 99, 100, 100, 100]);
    }

    #[test]
    fn publishes_long_operations_at_once() {
        let (ring, mut writer) = (SlowRing::default(), SlowWriter::default());
        for number in 0..100 {
            let total_ns = LIMIT_NS + number;
            assert!(writer.is_slow(total_ns));
            writer.add(record(1, total_ns), &ring);
        }
        assert_eq!(ring.copy().len(), MAX_LIMITED as usize);
        writer.end_second(2_000_000_000, &ring);
        let totals: Vec<u64> = ring.copy().iter().map(|at| at.total_ns - LIMIT_NS).collect();
        assert_eq!(totals[MAX_LIMITED as usize..], [96, 97, 98, 99], "the worst of the others");
    }

    #[test]
    fn keeps_all_fields() {
        let (ring, record) = (SlowRing::default(), record(1, 5));
        ring.publish(record);
        ring.publish(SlowRecord { last_member: None, operation: Operation::Read, ..record });
        let copied = ring.copy();
        assert_eq!(copied[0], record);
        assert_eq!((copied[1].last_member, copied[1].operation), (None, Operation::Read));
    }

    #[test]
    fn overwrites_oldest_operations() {
        let ring = SlowRing::default();
        (0..SLOTS as u64 + 10).for_each(|number| ring.publish(record(0, number)));
        let copied = ring.copy();
        assert_eq!(copied.len(), SLOTS);
        assert_eq!((copied[0].total_ns, copied[SLOTS - 1].total_ns), (10, SLOTS as u64 + 9));
    }

    #[test]
    fn names_stages_that_took_time() {
        let operation = record(1, 5).to_operation(Side::Target, 1, 1_000_000_000);
        assert_eq!(operation.at_unix_us, 1_001_000);
        assert_eq!(operation.stages.len(), Side::Target.stages().len() - 1, "the first one took none");
    }
}
