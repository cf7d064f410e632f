//! Simulated disk with a volatile cache.
//!
//! Executes file operations a few sectors at a time, in any order, many concurrently. A sector is
//! atomic; larger units may be torn.
//!
//! Invariant: data covered by a successful sync or durable write survives a power cut; every other
//! sector keeps any one of the versions written since.

use std::collections::BTreeMap;
use std::io;

use fastrand::Rng;
use isolane_reactor::file::{FileOp, FileOpKind};

/// Fault rates per thousand operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// A read or write is short.
    pub short_io: u32,
    /// A read fails (EIO).
    pub read: u32,
    /// A write fails (EIO).
    pub write: u32,
    /// A write, zeroing, or punching fails with ENOSPC.
    pub enospc: u32,
    /// A sync fails, or a durable write in its sync (EIO). Like a kernel, the disk then forgets
    /// which data was dirty: all earlier writes may be lost, except durable writes still in flight.
    pub sync: u32,
    /// A durable write fails in its sync with ENOSPC, indistinguishable from a write without space.
    pub sync_enospc: u32,
    /// Punching and zeroing are not supported.
    pub no_range_ops: bool,
}

/// A completed operation.
#[derive(Debug)]
pub struct DiskCompletion {
    /// Token of the operation.
    pub token: u64,
    /// Result of the operation.
    pub result: io::Result<usize>,
    /// The operation with its buffer.
    pub operation: FileOp,
}

/// Simulated disk.
#[derive(Debug)]
pub struct Disk {
    rng: Rng,
    faults: Faults,
    sector: usize,
    /// Contents that a read returns.
    current: Vec<u8>,
    /// Contents that survive a power cut.
    durable: Vec<u8>,
    /// Versions of sectors that may survive, oldest first.
    dirty: BTreeMap<usize, Vec<Version>>,
    running: Vec<Running>,
    /// Durable writes that failed with ENOSPC, and whether the data alone has space, so that a
    /// repeated write fails consistently.
    has_space: BTreeMap<u64, bool>,
    time: u64,
}

/// Contents of a sector written by one operation.
#[derive(Debug)]
struct Version {
    /// Time of the write.
    made: u64,
    /// Start time of its durable write, if any.
    durable_write: Option<u64>,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Running {
    token: u64,
    operation: FileOp,
    started: u64,
    /// Sectors executed.
    done: usize,
    /// Sectors to execute before it ends.
    goal: usize,
    /// Injected error.
    failure: Option<Failure>,
}

/// Failure of an operation.
#[derive(Clone, Copy, Debug)]
struct Failure {
    errno: i32,
    /// Failed in the sync of a durable write: the data was written.
    in_sync: bool,
}

impl Disk {
    /// Creates a disk of zeroes with atomic sectors of `sector` bytes.
    pub fn new(seed: u64, bytes: usize, sector: usize, faults: Faults) -> Disk {
        Disk::with_contents(seed, vec![0; bytes], sector, faults)
    }

    /// Creates a disk with these durable contents.
    pub fn with_contents(seed: u64, contents: Vec<u8>, sector: usize, faults: Faults) -> Disk {
        let (current, dirty, running) = (contents.clone(), BTreeMap::new(), Vec::new());
        let has_space = BTreeMap::new();
        Disk {
            rng: Rng::with_seed(seed),
            faults,
            sector,
            current,
            durable: contents,
            dirty,
            running,
            has_space,
            time: 0,
        }
    }

    /// Starts an operation.
    pub fn submit(&mut self, token: u64, operation: FileOp) {
        let sectors = operation.len as usize / self.sector;
        let failure = match (operation.kind, self.has_space.remove(&token)) {
            (FileOpKind::Write { durable: false }, Some(true)) => None,
            (FileOpKind::Write { durable: false }, Some(false)) => {
                Some(Failure { errno: ENOSPC, in_sync: false })
            }
            (kind, _) => self.roll_failure(kind),
        };
        if let (FileOpKind::Write { durable: true }, Some(Failure { errno: ENOSPC, in_sync })) =
            (operation.kind, failure)
        {
            self.has_space.insert(token, in_sync);
        }
        let is_short = failure.is_none() && moves_data(operation.kind) && self.happens(self.faults.short_io);
        let goal = match failure {
            Some(Failure { in_sync: false, .. }) => 0,
            None if is_short => self.rng.usize(0..=sectors).max(1),
            _ => sectors,
        };
        self.time += 1;
        self.running.push(Running { token, operation, started: self.time, done: 0, goal, failure });
    }

    /// Returns the number of operations in flight.
    pub fn in_flight(&self) -> usize {
        self.running.len()
    }

    /// Executes some sectors of a random operation; returns the operation if it completed.
    pub fn step(&mut self) -> Option<DiskCompletion> {
        if self.running.is_empty() {
            return None;
        }
        self.time += 1;
        let index = self.rng.usize(..self.running.len());
        let mut running = self.running.swap_remove(index);
        let remaining = running.goal - running.done;
        for _ in 0..self.rng.usize(0..=remaining) {
            self.execute_sector(&mut running);
        }
        if running.done < running.goal {
            self.running.push(running);
            return None;
        }
        Some(self.finish(running))
    }

    /// Cuts the power and returns the surviving contents.
    pub fn cut_power(mut self) -> Vec<u8> {
        // Operations in flight may have progressed arbitrarily.
        while !self.running.is_empty() && self.rng.u8(..4) != 0 {
            self.step();
        }
        for (sector, versions) in std::mem::take(&mut self.dirty) {
            let survivor = self.rng.usize(..=versions.len());
            if let Some(version) = versions.get(survivor) {
                put(&mut self.durable, sector, &version.bytes);
            }
        }
        self.durable
    }

    fn execute_sector(&mut self, running: &mut Running) {
        let index = running.done;
        running.done += 1;
        let sector = running.operation.offset as usize / self.sector + index;
        let buffer_offset = running.operation.buffer_offset + index * self.sector;
        let range = sector * self.sector..(sector + 1) * self.sector;
        let mut bytes = vec![0; self.sector];
        match (running.operation.kind, running.operation.buffer.as_mut()) {
            (FileOpKind::Read, Some(buffer)) => return buffer.copy_in(buffer_offset, &self.current[range]),
            (FileOpKind::Write { .. }, Some(buffer)) => buffer.copy_to(buffer_offset, &mut bytes),
            (FileOpKind::PunchHole | FileOpKind::ZeroRange | FileOpKind::DeviceZero, _) => {}
            _ => return,
        }
        put(&mut self.current, sector, &bytes);
        let durable = running.operation.kind == FileOpKind::Write { durable: true };
        let durable_write = durable.then_some(running.started);
        self.dirty.entry(sector).or_default().push(Version { made: self.time, durable_write, bytes });
    }

    fn finish(&mut self, running: Running) -> DiskCompletion {
        let Running { token, operation, started, done, failure, .. } = running;
        match (operation.kind, failure) {
            (FileOpKind::Sync, None) => self.settle(|_, version| version.made < started),
            (FileOpKind::Sync, Some(_)) => self.lose(|_, version| version.made < started),
            (FileOpKind::Write { durable: true }, None) => {
                let first = operation.offset as usize / self.sector;
                self.settle(|sector, _| (first..first + done).contains(&sector));
            }
            (FileOpKind::Write { durable: true }, Some(Failure { in_sync: true, .. })) => {
                let in_flight: Vec<u64> = self.running.iter().map(|running| running.started).collect();
                let is_in_flight = |version: &Version| {
                    version.durable_write.is_some_and(|durable_write| in_flight.contains(&durable_write))
                };
                self.lose(|_, version| !is_in_flight(version));
            }
            _ => {}
        }
        let moved = if moves_data(operation.kind) { done * self.sector } else { 0 };
        let result = failure.map_or(Ok(moved), |failure| Err(io::Error::from_raw_os_error(failure.errno)));
        DiskCompletion { token, result, operation }
    }

    /// Makes covered versions durable, and drops the versions they replaced.
    fn settle(&mut self, is_covered: impl Fn(usize, &Version) -> bool) {
        let durable = &mut self.durable;
        self.dirty.retain(|sector, versions| {
            if let Some(last) = versions.iter().rposition(|version| is_covered(*sector, version)) {
                put(durable, *sector, &versions[last].bytes);
                versions.drain(..=last);
            }
            !versions.is_empty()
        });
    }

    /// Marks covered versions clean: any of them or none reached the disk, and no later sync
    /// reports the loss.
    fn lose(&mut self, is_covered: impl Fn(usize, &Version) -> bool) {
        let (durable, rng) = (&mut self.durable, &mut self.rng);
        self.dirty.retain(|sector, versions| {
            let (lost, kept): (Vec<_>, Vec<_>) =
                std::mem::take(versions).into_iter().partition(|version| is_covered(*sector, version));
            let survivor = rng.usize(..=lost.len());
            if let Some(version) = lost.get(survivor) {
                put(durable, *sector, &version.bytes);
            }
            *versions = kept;
            !versions.is_empty()
        });
    }

    fn roll_failure(&mut self, kind: FileOpKind) -> Option<Failure> {
        let faults = self.faults;
        let draws: &[(u32, i32, bool)] = match kind {
            FileOpKind::Read => &[(faults.read, EIO, false)],
            FileOpKind::Write { durable: false } => {
                &[(faults.write, EIO, false), (faults.enospc, ENOSPC, false)]
            }
            FileOpKind::Write { durable: true } => &[
                (faults.sync, EIO, true),
                (faults.enospc, ENOSPC, false),
                (faults.sync_enospc, ENOSPC, true),
            ],
            FileOpKind::Sync => &[(faults.sync, EIO, true)],
            _ if faults.no_range_ops => return Some(Failure { errno: EOPNOTSUPP, in_sync: false }),
            _ => &[(faults.write, EIO, false), (faults.enospc, ENOSPC, false)],
        };
        let drawn = draws.iter().find(|(rate, ..)| self.happens(*rate));
        drawn.map(|&(_, errno, in_sync)| Failure { errno, in_sync })
    }

    fn happens(&mut self, per_mille: u32) -> bool {
        self.rng.u32(..1000) < per_mille
    }
}

fn moves_data(kind: FileOpKind) -> bool {
    matches!(kind, FileOpKind::Read | FileOpKind::Write { .. })
}

fn put(image: &mut [u8], sector: usize, bytes: &[u8]) {
    image[sector * bytes.len()..(sector + 1) * bytes.len()].copy_from_slice(bytes);
}

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EOPNOTSUPP: i32 = 95;

#[cfg(test)]
mod tests {
    use super::*;
    use isolane_memory::Buffer;

    fn write(offset: u64, byte: u8, durable: bool) -> FileOp {
        let mut buffer = Buffer::contiguous(1024);
        buffer.copy_in(0, &[byte; 1024]);
        FileOp::write(offset, buffer, 0, 1024, durable)
    }

    fn finish(disk: &mut Disk, operation: FileOp) -> io::Result<usize> {
        disk.submit(0, operation);
        loop {
            if let Some(finished) = disk.step() {
                return finished.result;
            }
        }
    }

    /// Returns the possible contents of the first sector after a power cut, over many seeds.
    fn survivors(mut play: impl FnMut(&mut Disk), faults: Faults) -> Vec<u8> {
        let one = |seed| {
            let mut disk = Disk::new(seed, 4096, 512, faults);
            play(&mut disk);
            disk.cut_power()[0]
        };
        let mut bytes: Vec<u8> = (0..100).map(one).collect();
        bytes.sort_unstable();
        bytes.dedup();
        bytes
    }

    #[test]
    fn power_cut_loses_only_unsynced_writes() {
        let unsynced = |disk: &mut Disk| drop(finish(disk, write(0, 1, false)));
        assert_eq!(survivors(unsynced, Faults::default()), [0, 1]);
        let durable = |disk: &mut Disk| drop(finish(disk, write(0, 1, true)));
        assert_eq!(survivors(durable, Faults::default()), [1]);
        let synced = |disk: &mut Disk| {
            finish(disk, write(0, 1, false)).unwrap();
            finish(disk, FileOp::sync()).unwrap();
            finish(disk, write(0, 2, false)).unwrap();
            finish(disk, write(0, 3, false)).unwrap();
        };
        assert_eq!(survivors(synced, Faults::default()), [1, 2, 3]);
    }

    #[test]
    fn sync_after_failed_sync_saves_nothing() {
        let faults = Faults { sync: 1000, ..Faults::default() };
        let play = |disk: &mut Disk| {
            finish(disk, write(0, 1, false)).unwrap();
            finish(disk, FileOp::sync()).unwrap_err();
            disk.faults.sync = 0;
            finish(disk, FileOp::sync()).unwrap();
        };
        assert_eq!(survivors(play, faults), [0, 1]);
    }

    #[test]
    fn power_cut_tears_between_sectors() {
        let is_torn = |seed| {
            let mut disk = Disk::new(seed, 4096, 512, Faults::default());
            finish(&mut disk, write(0, 1, false)).unwrap();
            let left = disk.cut_power();
            left[0] != left[512]
        };
        assert!((0..100).any(is_torn));
    }

    #[test]
    fn same_seed_gives_same_result() {
        let play = |seed| {
            let mut disk = Disk::new(seed, 65_536, 512, Faults { short_io: 500, ..Faults::default() });
            (0..60).for_each(|index| disk.submit(index, write(index * 1024, index as u8, index % 3 == 0)));
            (0..50).for_each(|_| drop(disk.step()));
            disk.cut_power()
        };
        assert_eq!(play(7), play(7));
        assert_ne!(play(7), play(8));
    }
}
