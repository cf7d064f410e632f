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
    /// A sync or durable write fails (EIO), and like a kernel, forgets that the data was dirty.
    pub sync: u32,
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
    /// Versions of sectors that may or may not survive, oldest first, each with the time it was made.
    dirty: BTreeMap<usize, Vec<(u64, Vec<u8>)>>,
    running: Vec<Running>,
    time: u64,
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
    errno: Option<i32>,
}

impl Disk {
    /// A disk of zeroes, whose sectors of `sector` bytes are atomic.
    pub fn new(seed: u64, bytes: usize, sector: usize, faults: Faults) -> Disk {
        Disk::with_contents(seed, vec![0; bytes], sector, faults)
    }

    /// A disk that holds these bytes, for certain.
    pub fn with_contents(seed: u64, contents: Vec<u8>, sector: usize, faults: Faults) -> Disk {
        let (current, dirty, running) = (contents.clone(), BTreeMap::new(), Vec::new());
        Disk {
            rng: Rng::with_seed(seed),
            faults,
            sector,
            current,
            durable: contents,
            dirty,
            running,
            time: 0,
        }
    }

    /// Begins an operation.
    pub fn submit(&mut self, token: u64, operation: Operation) {
        let sectors = operation.len as usize / self.sector;
        let errno = self.draw_error(operation.kind);
        let is_short = errno.is_none() && moves_data(operation.kind) && self.happens(self.faults.short);
        let goal = match errno {
            Some(_) => 0,
            None if is_short => self.rng.usize(0..=sectors).max(1),
            None => sectors,
        };
        self.time += 1;
        self.running.push(Running { token, operation, begun: self.time, done: 0, goal, errno });
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
            if let Some((_, bytes)) = versions.get(survivor) {
                put(&mut self.durable, sector, bytes);
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
        self.dirty.entry(sector).or_default().push((self.time, bytes));
    }

    fn finish(&mut self, running: Running) -> Finished {
        let Running { token, operation, begun, done, errno, .. } = running;
        match operation.kind {
            Kind::Sync => self.settle(0..usize::MAX, begun, errno.is_none()),
            Kind::Write { durable: true } => {
                let first = operation.offset as usize / self.sector;
                self.settle(first..first + done, u64::MAX, errno.is_none());
            }
            _ => {}
        }
        let moved = if moves_data(operation.kind) { done * self.sector } else { 0 };
        let result = errno.map_or(Ok(moved), |errno| Err(io::Error::from_raw_os_error(errno)));
        Finished { token, result, operation }
    }

    /// Versions made before `time` are durable, or, if that failed, forgotten to be dirty: what got to the
    /// disk of them is anybody's guess, and no later sync will say so.
    fn settle(&mut self, sectors: std::ops::Range<usize>, time: u64, is_ok: bool) {
        let durable = &mut self.durable;
        let rng = &mut self.rng;
        self.dirty.retain(|sector, versions| {
            if !sectors.contains(sector) {
                return true;
            }
            let covered = versions.partition_point(|(made, _)| *made < time);
            let survivor = if is_ok { covered } else { rng.usize(..=covered) };
            if let Some((_, bytes)) = survivor.checked_sub(1).and_then(|index| versions.get(index)) {
                put(durable, *sector, bytes);
            }
            versions.drain(..covered);
            !versions.is_empty()
        });
    }

    fn draw_error(&mut self, kind: Kind) -> Option<i32> {
        let faults = self.faults;
        let draws: &[(u32, i32)] = match kind {
            Kind::Read => &[(faults.read, EIO)],
            Kind::Write { durable: false } => &[(faults.write, EIO), (faults.space, ENOSPC)],
            Kind::Write { durable: true } => &[(faults.sync, EIO), (faults.space, ENOSPC)],
            Kind::Sync => &[(faults.sync, EIO)],
            _ if faults.is_plain => return Some(EOPNOTSUPP),
            _ => &[(faults.write, EIO), (faults.space, ENOSPC)],
        };
        draws.iter().find(|(rate, _)| self.happens(*rate)).map(|(_, errno)| *errno)
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
