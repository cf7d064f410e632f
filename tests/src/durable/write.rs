//! Writers that go on until the time is over or the disk is gone.

use std::io;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use super::disk::{RUN_BYTES_MAX, open, run};
use super::ledger::{Claim, Ledger};
use super::pattern::fill;

/// How to write.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Writers, each with its own connection or file and its own part of the blocks.
    pub writers: usize,
    /// How long to go on.
    pub time: Duration,
    /// What the ledger takes as a promise.
    pub claim: Claim,
    /// Seed of the random choices.
    pub seed: u64,
}

/// Writes random runs, some with FUA, some followed by a Flush, until `plan.time` has passed or the disk
/// fails. Returns the operations that completed and why each writer ended, if not by the time.
pub fn write(name: &str, plan: Plan, ledger: &mut Ledger) -> (u64, Vec<io::Error>) {
    let shared = Mutex::new(std::mem::replace(ledger, Ledger::new(0, 512)));
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
    *ledger = shared.into_inner().expect("no writer panicked");
    let operations = ended.iter().map(|(operations, _)| operations).sum();
    (operations, ended.into_iter().filter_map(|(_, end)| end).collect())
}

struct Writer<'a> {
    plan: Plan,
    ledger: &'a Mutex<Ledger>,
    first: usize,
    blocks: usize,
    block_bytes: usize,
    random: fastrand::Rng,
    operations: u64,
}

impl<'a> Writer<'a> {
    fn new(plan: Plan, number: usize, ledger: &'a Mutex<Ledger>) -> Writer<'a> {
        let known = ledger.lock().expect("no writer panicked");
        let blocks = known.entries.len() / plan.writers;
        Writer {
            plan,
            ledger,
            first: number * blocks,
            blocks,
            block_bytes: known.block_bytes,
            random: fastrand::Rng::with_seed(plan.seed + number as u64),
            operations: 0,
        }
    }

    fn run(&mut self, name: &str) -> io::Result<()> {
        let mut disk = open(name)?;
        eprintln!("the writer of the blocks from {} begins", self.first);
        let mut memory = run(RUN_BYTES_MAX);
        let begun = Instant::now();
        while begun.elapsed() < self.plan.time {
            match self.random.u32(..100) {
                _ if self.plan.claim == Claim::Completed => self.write_run(&mut *disk, &mut memory, false)?,
                0..8 => self.flush(&mut *disk)?,
                8..50 => self.write_run(&mut *disk, &mut memory, true)?,
                _ => self.write_run(&mut *disk, &mut memory, false)?,
            }
            self.operations += 1;
        }
        Ok(())
    }

    fn flush(&self, disk: &mut dyn super::Disk) -> io::Result<()> {
        let completed = self.ledger().completed();
        disk.flush()?;
        self.ledger().on_flushed(&completed);
        Ok(())
    }

    fn write_run(&mut self, disk: &mut dyn super::Disk, memory: &mut [u8], fua: bool) -> io::Result<()> {
        let (first, count) = self.choose_run();
        let data = &mut memory[..count * self.block_bytes];
        self.issue(first, data);
        disk.write((first * self.block_bytes) as u64, data, fua)?;
        let is_promise = fua || self.plan.claim == Claim::Completed;
        for entry in &mut self.ledger().entries[first..first + count] {
            entry.completed = entry.issued;
            if is_promise {
                entry.durable = entry.issued;
            }
        }
        Ok(())
    }

    fn choose_run(&mut self) -> (usize, usize) {
        let longest = (RUN_BYTES_MAX / self.block_bytes).min(self.blocks);
        let count = if self.random.u32(..4) == 0 { self.random.usize(1..=longest) } else { 1 };
        (self.first + self.random.usize(..=self.blocks - count), count)
    }

    /// Numbers the run before its first byte can leave. Only this writer touches these blocks.
    fn issue(&self, first: usize, data: &mut [u8]) {
        let mut ledger = self.ledger();
        for (index, block) in (first..).zip(data.chunks_exact_mut(self.block_bytes)) {
            let entry = &mut ledger.entries[index];
            entry.issued += 1;
            fill(block, index as u64, entry.issued);
        }
    }

    fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("no writer panicked")
    }
}
