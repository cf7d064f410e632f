//! A simulated disk with a volatile cache.
//!
//! It carries out file operations a few sectors at a time, in any order, many at once. A sector is atomic;
//! all larger units may be torn. Invariant: what a sync (or a durable write) covered when it succeeded
//! survives a power cut; of all else, each sector independently keeps any of the versions it had since.

use std::collections::BTreeMap;
use std::io;

use fastrand::Rng;
use isolane_reactor::file::{Kind, Operation};

/// How often what goes wrong, in a thousand operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// A read or write moves only a part.
    pub short: u32,
    /// A read fails (EIO).
    pub read: u32,
    /// A write fails (EIO).
    pub write: u32,
    /// A write, zeroing or punching finds no space (ENOSPC).
    pub space: u32,
    /// A sync fails, or a durable write in the half that syncs (EIO). Like a kernel, the disk then forgets
    /// which data was dirty: all that operations wrote before may be lost, except by durable writes that are
    /// still in flight.
    pub sync: u32,
    /// The same of durable writes, for lack of space (ENOSPC): the error number does not tell it from a write
    /// that found no space.
    pub sync_space: u32,
    /// Punching and zeroing are not supported.
    pub is_plain: bool,
}

/// An operation that is over.
#[derive(Debug)]
pub struct Finished {
    /// The number it was submitted with.
    pub token: u64,
    /// Its result.
    pub result: io::Result<usize>,
    /// The operation itself.
    pub operation: Operation,
}

/// The disk.
#[derive(Debug)]
pub struct Disk {
    rng: Rng,
    faults: Faults,
    sector: usize,
    /// What a read sees.
    current: Vec<u8>,
    /// What a power cut leaves for certain.
    durable: Vec<u8>,
    /// Versions of sectors that may or may not survive, oldest first.
    dirty: BTreeMap<usize, Vec<Version>>,
    running: Vec<Running>,
    /// Durable writes that failed for lack of space: whether there is space for the data alone. So the disk
    /// says the same when the write is repeated.
    has_space: BTreeMap<u64, bool>,
    time: u64,
}

/// What one operation wrote to a sector.
#[derive(Debug)]
struct Version {
    /// When.
    made: u64,
    /// Its durable write, if it was one.
    durable_write: Option<u64>,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Running {
    token: u64,
    operation: Operation,
    begun: u64,
    /// Sectors carried out.
    done: usize,
    /// Sectors to carry out before it ends.
    goal: usize,
    /// How it ends: short or not, with this error.
    failure: Option<Failure>,
}

/// How an operation fails.
#[derive(Clone, Copy, Debug)]
struct Failure {
    errno: i32,
    /// In the half of a durable write that syncs: the data was written.
    is_of_sync: bool,
}

impl Disk {
    /// A disk of zeroes, whose sectors of `sector` bytes are atomic.
    pub fn new(seed: u64, bytes: usize, sector: usize, faults: Faults) -> Disk {
        Disk::with_contents(seed, vec![0; bytes], sector, faults)
    }

    /// A disk that holds these bytes, for certain.
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

    /// Begins an operation.
    pub fn submit(&mut self, token: u64, operation: Operation) {
        let sectors = operation.len as usize / self.sector;
        let failure = match (operation.kind, self.has_space.remove(&token)) {
            (Kind::Write { durable: false }, Some(true)) => None,
            (Kind::Write { durable: false }, Some(false)) => {
                Some(Failure { errno: ENOSPC, is_of_sync: false })
            }
            (kind, _) => self.draw_failure(kind),
        };
        if let (Kind::Write { durable: true }, Some(Failure { errno: ENOSPC, is_of_sync })) =
            (operation.kind, failure)
        {
            self.has_space.insert(token, is_of_sync);
        }
        let is_short = failure.is_none() && moves_data(operation.kind) && self.happens(self.faults.short);
        let goal = match failure {
            Some(Failure { is_of_sync: false, .. }) => 0,
            None if is_short => self.rng.usize(0..=sectors).max(1),
            _ => sectors,
        };
        self.time += 1;
        self.running.push(Running { token, operation, begun: self.time, done: 0, goal, failure });
    }

    /// Operations begun and not over.
    pub fn in_flight(&self) -> usize {
        self.running.len()
    }

    /// Does some sectors of any operation; returns the operation if that was its end.
    pub fn step(&mut self) -> Option<Finished> {
        if self.running.is_empty() {
            return None;
        }
        self.time += 1;
        let index = self.rng.usize(..self.running.len());
        let mut running = self.running.swap_remove(index);
        let rest = running.goal - running.done;
        for _ in 0..self.rng.usize(0..=rest) {
            self.carry_out_sector(&mut running);
        }
        if running.done < running.goal {
            self.running.push(running);
            return None;
        }
        Some(self.finish(running))
    }

    /// Cuts the power: returns what the disk then holds.
    pub fn cut_power(mut self) -> Vec<u8> {
        // What is in flight may have got anywhere.
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

    fn carry_out_sector(&mut self, running: &mut Running) {
        let index = running.done;
        running.done += 1;
        let sector = running.operation.offset as usize / self.sector + index;
        let place = running.operation.buffer_offset + index * self.sector;
        let range = sector * self.sector..(sector + 1) * self.sector;
        let mut bytes = vec![0; self.sector];
        match (running.operation.kind, running.operation.buffer.as_mut()) {
            (Kind::Read, Some(buffer)) => return buffer.place(place, &self.current[range]),
            (Kind::Write { .. }, Some(buffer)) => buffer.copy_to(place, &mut bytes),
            (Kind::PunchHole | Kind::ZeroRange | Kind::DeviceZero, _) => {}
            _ => return,
        }
        put(&mut self.current, sector, &bytes);
        let is_durable = running.operation.kind == Kind::Write { durable: true };
        let durable_write = is_durable.then_some(running.begun);
        self.dirty.entry(sector).or_default().push(Version { made: self.time, durable_write, bytes });
    }

    fn finish(&mut self, running: Running) -> Finished {
        let Running { token, operation, begun, done, failure, .. } = running;
        match (operation.kind, failure) {
            (Kind::Sync, None) => self.settle(|_, version| version.made < begun),
            (Kind::Sync, Some(_)) => self.lose(|_, version| version.made < begun),
            (Kind::Write { durable: true }, None) => {
                let first = operation.offset as usize / self.sector;
                self.settle(|sector, _| (first..first + done).contains(&sector));
            }
            (Kind::Write { durable: true }, Some(Failure { is_of_sync: true, .. })) => {
                let in_flight: Vec<u64> = self.running.iter().map(|running| running.begun).collect();
                let is_in_flight = |version: &Version| {
                    version.durable_write.is_some_and(|durable_write| in_flight.contains(&durable_write))
                };
                self.lose(|_, version| !is_in_flight(version));
            }
            _ => {}
        }
        let moved = if moves_data(operation.kind) { done * self.sector } else { 0 };
        let result = failure.map_or(Ok(moved), |failure| Err(io::Error::from_raw_os_error(failure.errno)));
        Finished { token, result, operation }
    }

    /// The versions that are covered are durable, and with each all that it replaced.
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

    /// The versions that are covered are forgotten to be dirty: any of them, or none, got to the disk, and no
    /// later sync reports the loss.
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

    fn draw_failure(&mut self, kind: Kind) -> Option<Failure> {
        let faults = self.faults;
        let draws: &[(u32, i32, bool)] = match kind {
            Kind::Read => &[(faults.read, EIO, false)],
            Kind::Write { durable: false } => &[(faults.write, EIO, false), (faults.space, ENOSPC, false)],
            Kind::Write { durable: true } => {
                &[(faults.sync, EIO, true), (faults.space, ENOSPC, false), (faults.sync_space, ENOSPC, true)]
            }
            Kind::Sync => &[(faults.sync, EIO, true)],
            _ if faults.is_plain => return Some(Failure { errno: EOPNOTSUPP, is_of_sync: false }),
            _ => &[(faults.write, EIO, false), (faults.space, ENOSPC, false)],
        };
        let drawn = draws.iter().find(|(rate, ..)| self.happens(*rate));
        drawn.map(|&(_, errno, is_of_sync)| Failure { errno, is_of_sync })
    }

    fn happens(&mut self, per_mille: u32) -> bool {
        self.rng.u32(..1000) < per_mille
    }
}

fn moves_data(kind: Kind) -> bool {
    matches!(kind, Kind::Read | Kind::Write { .. })
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

    fn write(offset: u64, byte: u8, durable: bool) -> Operation {
        let mut buffer = Buffer::contiguous(1024);
        buffer.place(0, &[byte; 1024]);
        Operation::write(offset, buffer, 0, 1024, durable)
    }

    fn finish(disk: &mut Disk, operation: Operation) -> io::Result<usize> {
        disk.submit(0, operation);
        loop {
            if let Some(finished) = disk.step() {
                return finished.result;
            }
        }
    }

    /// What the first sector holds after a power cut, over many seeds.
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
    fn an_unsynced_write_may_be_lost_and_a_synced_one_may_not() {
        let unsynced = |disk: &mut Disk| drop(finish(disk, write(0, 1, false)));
        assert_eq!(survivors(unsynced, Faults::default()), [0, 1]);
        let durable = |disk: &mut Disk| drop(finish(disk, write(0, 1, true)));
        assert_eq!(survivors(durable, Faults::default()), [1]);
        let synced = |disk: &mut Disk| {
            finish(disk, write(0, 1, false)).unwrap();
            finish(disk, Operation::sync()).unwrap();
            finish(disk, write(0, 2, false)).unwrap();
            finish(disk, write(0, 3, false)).unwrap();
        };
        assert_eq!(survivors(synced, Faults::default()), [1, 2, 3]);
    }

    #[test]
    fn a_sync_after_a_failed_sync_succeeds_and_saves_nothing() {
        let faults = Faults { sync: 1000, ..Faults::default() };
        let play = |disk: &mut Disk| {
            finish(disk, write(0, 1, false)).unwrap();
            finish(disk, Operation::sync()).unwrap_err();
            disk.faults.sync = 0;
            finish(disk, Operation::sync()).unwrap();
        };
        assert_eq!(survivors(play, faults), [0, 1]);
    }

    #[test]
    fn a_write_is_torn_between_sectors() {
        let is_torn = |seed| {
            let mut disk = Disk::new(seed, 4096, 512, Faults::default());
            finish(&mut disk, write(0, 1, false)).unwrap();
            let left = disk.cut_power();
            left[0] != left[512]
        };
        assert!((0..100).any(is_torn));
    }

    #[test]
    fn the_same_seed_gives_the_same_end() {
        let play = |seed| {
            let mut disk = Disk::new(seed, 65_536, 512, Faults { short: 500, ..Faults::default() });
            (0..60).for_each(|index| disk.submit(index, write(index * 1024, index as u8, index % 3 == 0)));
            (0..50).for_each(|_| drop(disk.step()));
            disk.cut_power()
        };
        assert_eq!(play(7), play(7));
        assert_ne!(play(7), play(8));
    }
}
