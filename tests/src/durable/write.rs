//! Writers that run until the time is over or the disk fails.

use std::io;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use super::disk::{MAX_RUN_BYTES, open, run};
use super::journal::{DurabilityLevel, WriteJournal};
use super::pattern::fill;

/// Parameters of the writers.
#[derive(Clone, Copy, Debug)]
pub struct WritePlan {
    /// Number of writers, each with a separate connection or file and range of blocks.
    pub writers: usize,
    /// Duration.
    pub time: Duration,
    /// Completions that count as a promise.
    pub level: DurabilityLevel,
    /// Seed of random choices.
    pub seed: u64,
}

/// Writes random runs, some with FUA, some followed by a Flush, until `plan.time` has passed or the disk
/// fails. Returns the number of completed operations and the errors that ended writers.
pub fn write(name: &str, plan: WritePlan, journal: &mut WriteJournal) -> (u64, Vec<io::Error>) {
    let shared = Mutex::new(std::mem::replace(journal, WriteJournal::new(0, 512)));
    let ended: Vec<(u64, Option<io::Error>)> = thread::scope(|scope| {
        let writers: Vec<_> = (0..plan.writers)
            .map(|number| {
                let mut writer = Writer::new(plan, number, &shared);
                scope.spawn(move || {
                    let end = writer.run(name).err();
                    (writer.operations, end)
                })
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().expect("a writer does not panic")).collect()
    });
    *journal = shared.into_inner().expect("no writer panicked");
    let operations = ended.iter().map(|(operations, _)| operations).sum();
    (operations, ended.into_iter().filter_map(|(_, end)| end).collect())
}

struct Writer<'a> {
    plan: WritePlan,
    journal: &'a Mutex<WriteJournal>,
    first: usize,
    blocks: usize,
    block_bytes: usize,
    random: fastrand::Rng,
    operations: u64,
}

impl<'a> Writer<'a> {
    fn new(plan: WritePlan, number: usize, journal: &'a Mutex<WriteJournal>) -> Writer<'a> {
        let known = journal.lock().expect("no writer panicked");
        let blocks = known.entries.len() / plan.writers;
        Writer {
            plan,
            journal,
            first: number * blocks,
            blocks,
            block_bytes: known.block_bytes,
            random: fastrand::Rng::with_seed(plan.seed + number as u64),
            operations: 0,
        }
    }

    fn run(&mut self, name: &str) -> io::Result<()> {
        let mut disk = open(name)?;
        let mut memory = run(MAX_RUN_BYTES);
        let completed = Instant::now();
        while completed.elapsed() < self.plan.time {
            match self.random.u32(..100) {
                _ if self.plan.level == DurabilityLevel::Completed => {
                    self.write_run(&mut *disk, &mut memory, false)?
                }
                0..8 => self.flush(&mut *disk)?,
                8..50 => self.write_run(&mut *disk, &mut memory, true)?,
                _ => self.write_run(&mut *disk, &mut memory, false)?,
            }
            self.operations += 1;
            if self.operations == 1 {
                eprintln!("the writer of the blocks from {} begins", self.first);
            }
        }
        Ok(())
    }

    fn flush(&self, disk: &mut dyn super::Disk) -> io::Result<()> {
        let completed = self.journal().completed();
        disk.flush()?;
        self.journal().on_flushed(&completed);
        Ok(())
    }

    fn write_run(&mut self, disk: &mut dyn super::Disk, memory: &mut [u8], fua: bool) -> io::Result<()> {
        let (first, count) = self.choose_run();
        let data = &mut memory[..count * self.block_bytes];
        self.issue(first, data);
        disk.write((first * self.block_bytes) as u64, data, fua)?;
        let is_promise = fua || self.plan.level == DurabilityLevel::Completed;
        for entry in &mut self.journal().entries[first..first + count] {
            entry.completed = entry.issued;
            if is_promise {
                entry.durable = entry.issued;
            }
        }
        Ok(())
    }

    fn choose_run(&mut self) -> (usize, usize) {
        let longest = (MAX_RUN_BYTES / self.block_bytes).min(self.blocks);
        let count = if self.random.u32(..4) == 0 { self.random.usize(1..=longest) } else { 1 };
        (self.first + self.random.usize(..=self.blocks - count), count)
    }

    /// Assigns sequence numbers before the first byte is sent. Only this writer uses these blocks.
    fn issue(&self, first: usize, data: &mut [u8]) {
        let mut journal = self.journal();
        for (index, block) in (first..).zip(data.chunks_exact_mut(self.block_bytes)) {
            let entry = &mut journal.entries[index];
            entry.issued += 1;
            fill(block, index as u64, entry.issued);
        }
    }

    fn journal(&self) -> std::sync::MutexGuard<'_, WriteJournal> {
        self.journal.lock().expect("no writer panicked")
    }
}
