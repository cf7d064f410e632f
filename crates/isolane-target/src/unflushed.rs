//! Changes of each host that no flush has covered, for the flush at the shutdown of its controller.
//!
//! Flushes of a host at a volume are numbered when they start. A change records, when it ends, the number of the next
//! flush, which covers it. Only the first change after the start of a flush writes to shared memory.
//!
//! Invariant: a change that has ended is recorded until a flush succeeds that started later. A change of which nothing is
//! known, such as one before the start of the target, counts as unflushed.

use std::collections::HashMap;
use std::iter::repeat_with;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use isolane_proto::subsystem::{Host, SubsystemId};
use isolane_wire::Nqn;
use parking_lot::Mutex;

use crate::namespace::MAX_POSITIONS;

/// The unflushed changes of one host to all volumes of a subsystem.
#[derive(Debug)]
pub(crate) struct HostChanges {
    /// Allocated with the first change there.
    chunks: Box<[OnceLock<Box<Chunk>>]>,
}

type Chunk = [VolumeChanges; CHUNK];

/// Those at one volume. A flush with a number covers the changes up to it.
#[derive(Debug, Default)]
struct VolumeChanges {
    /// Number of the last change.
    changed: AtomicU64,
    /// Number of the last flush that has started.
    started: AtomicU64,
    /// Highest number of a flush that has succeeded.
    flushed: AtomicU64,
}

impl HostChanges {
    fn new() -> HostChanges {
        HostChanges { chunks: repeat_with(OnceLock::new).take(MAX_POSITIONS.div_ceil(CHUNK)).collect() }
    }

    fn at(&self, position: usize) -> &VolumeChanges {
        let new = || Box::new(std::array::from_fn(|_| VolumeChanges::default()));
        let chunk = self.chunks[position / CHUNK].get_or_init(new);
        &chunk[position % CHUNK]
    }

    /// Records a change that has ended, before its host knows.
    #[inline]
    pub(crate) fn record_change(&self, position: usize) {
        let at = self.at(position);
        let number = at.started.load(Ordering::Acquire) + 1;
        if at.changed.load(Ordering::Relaxed) < number {
            // Another core can have recorded a change with a higher number.
            at.changed.fetch_max(number, Ordering::Release);
        }
    }

    /// Returns the number of a flush that starts after this call.
    pub(crate) fn start_flush(&self, position: usize) -> u64 {
        self.at(position).started.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Records the success of a flush.
    pub(crate) fn end_flush(&self, position: usize, number: u64) {
        self.at(position).flushed.fetch_max(number, Ordering::AcqRel);
    }

    fn is_unflushed(&self, position: usize) -> bool {
        let Some(chunk) = self.chunks[position / CHUNK].get() else { return false };
        let at = &chunk[position % CHUNK];
        at.changed.load(Ordering::Acquire) > at.flushed.load(Ordering::Acquire)
    }

    fn is_any_unflushed(&self) -> bool {
        let allocated = self.chunks.iter().enumerate().filter(|(_, chunk)| chunk.get().is_some());
        let mut positions = allocated.flat_map(|(at, _)| at * CHUNK..(at + 1) * CHUNK);
        positions.any(|position| self.is_unflushed(position))
    }
}

/// A host of a subsystem: by its name, or by its identifier without a name.
type Key = (SubsystemId, Option<Nqn>, [u8; 16]);

/// The unflushed changes of all hosts.
#[derive(Debug)]
pub(crate) struct Unflushed {
    hosts: Mutex<HashMap<Key, Arc<HostChanges>>>,
    /// There were more hosts than records, so all changes count as unflushed.
    is_full: AtomicBool,
    /// By position: the volume was flushed since the target has it, so that all older changes are in records.
    is_known: Box<[AtomicBool]>,
}

impl Default for Unflushed {
    fn default() -> Unflushed {
        Unflushed {
            hosts: Mutex::default(),
            is_full: AtomicBool::new(false),
            is_known: repeat_with(AtomicBool::default).take(MAX_POSITIONS).collect(),
        }
    }
}

impl Unflushed {
    /// Returns the record of a host, which stays after its associations. `None`: all of its changes count as unflushed.
    pub(crate) fn of(&self, subsystem: SubsystemId, host: &Host) -> Option<Arc<HostChanges>> {
        if subsystem.is_discovery() {
            return None;
        }
        let hostid = if host.nqn.is_some() { [0; 16] } else { host.hostid };
        let key = (subsystem, host.nqn, hostid);
        let mut hosts = self.hosts.lock();
        if let Some(found) = hosts.get(&key) {
            return Some(Arc::clone(found));
        }
        if hosts.len() >= MAX_HOSTS && !self.is_full.load(Ordering::Relaxed) {
            hosts.retain(|_, changes| Arc::strong_count(changes) > 1 || changes.is_any_unflushed());
        }
        if hosts.len() >= MAX_HOSTS {
            self.is_full.store(true, Ordering::Release);
            return None;
        }
        let changes = Arc::new(HostChanges::new());
        hosts.insert(key, Arc::clone(&changes));
        Some(changes)
    }

    /// Whether a volume can have unflushed changes of a host.
    pub(crate) fn has(&self, changes: Option<&HostChanges>, position: usize) -> bool {
        !self.is_known[position].load(Ordering::Acquire)
            || self.is_full.load(Ordering::Acquire)
            || changes.is_none_or(|changes| changes.is_unflushed(position))
    }

    /// Records that a volume was flushed, on behalf of any host.
    pub(crate) fn record_flush(&self, position: usize) {
        self.is_known[position].store(true, Ordering::Release);
    }

    /// Another volume can get the position.
    pub(crate) fn forget(&self, position: usize) {
        self.is_known[position].store(false, Ordering::Release);
    }
}

/// Volumes whose records are allocated together.
const CHUNK: usize = 64;
/// Maximum number of hosts with records, of all subsystems.
const MAX_HOSTS: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: u64) -> Host {
        Host { nqn: Some(format!("nqn.2014-08.org.example:{name}").parse().unwrap()), hostid: [7; 16] }
    }

    /// Records in which all volumes were flushed before.
    fn known() -> Unflushed {
        let unflushed = Unflushed::default();
        (0..MAX_POSITIONS).for_each(|position| unflushed.record_flush(position));
        unflushed
    }

    #[test]
    fn flush_covers_the_changes_before_its_start() {
        let (unflushed, position) = (known(), MAX_POSITIONS - 1);
        let changes = unflushed.of(SubsystemId::FIRST, &host(1)).unwrap();
        let has = || unflushed.has(Some(&changes), position);
        assert!(!has());
        changes.record_change(position);
        assert!(has() && !unflushed.has(Some(&changes), 0));
        let first = changes.start_flush(position);
        changes.end_flush(position, first);
        assert!(!has());
        // A change ends while a flush is in progress, whose number is lower than that of the next one.
        let (first, second) = (changes.start_flush(position), changes.start_flush(position));
        changes.record_change(position);
        changes.end_flush(position, second);
        changes.end_flush(position, first);
        assert!(has());
        changes.start_flush(position);
        let last = changes.start_flush(position);
        changes.record_change(0);
        changes.end_flush(position, last);
        assert!(!has() && unflushed.has(Some(&changes), 0), "one of two flushes has failed");
    }

    #[test]
    fn unknown_changes_count_until_a_flush() {
        let unflushed = Unflushed::default();
        let changes = unflushed.of(SubsystemId::FIRST, &host(1)).unwrap();
        assert!(unflushed.has(Some(&changes), 3));
        unflushed.record_flush(3);
        assert!(!unflushed.has(Some(&changes), 3) && unflushed.has(None, 3));
        unflushed.forget(3);
        assert!(unflushed.has(Some(&changes), 3));
    }

    #[test]
    fn record_outlives_associations_of_its_host() {
        let unflushed = known();
        unflushed.of(SubsystemId::FIRST, &host(1)).unwrap().record_change(2);
        let again = Host { hostid: [8; 16], ..host(1) };
        assert!(unflushed.has(unflushed.of(SubsystemId::FIRST, &again).as_deref(), 2));
        assert!(!unflushed.has(unflushed.of(SubsystemId::FIRST, &host(2)).as_deref(), 2));
        let nameless = |id| Host { nqn: None, hostid: [id; 16] };
        unflushed.of(SubsystemId::FIRST, &nameless(1)).unwrap().record_change(2);
        assert!(!unflushed.has(unflushed.of(SubsystemId::FIRST, &nameless(2)).as_deref(), 2));
        assert!(unflushed.of(SubsystemId::DISCOVERY, &host(1)).is_none());
    }

    #[test]
    fn too_many_hosts_flush_everything() {
        let unflushed = known();
        let first = unflushed.of(SubsystemId::FIRST, &host(0)).unwrap();
        // Those without changes and associations make room.
        (1..3 * MAX_HOSTS as u64).for_each(|name| _ = unflushed.of(SubsystemId::FIRST, &host(name)).unwrap());
        assert!(unflushed.hosts.lock().len() <= MAX_HOSTS && !unflushed.has(Some(&first), 0));
        for name in 0..MAX_HOSTS as u64 {
            let changes = unflushed.of(SubsystemId::FIRST, &host(name));
            changes.into_iter().for_each(|changes| changes.record_change(1));
        }
        assert!(unflushed.of(SubsystemId::FIRST, &host(u64::MAX)).is_none());
        assert!(unflushed.has(Some(&first), 0));
    }
}
