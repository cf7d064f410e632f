//! `durable`: writes to a disk, records durable writes in a journal, and checks the disk after a crash.

#![forbid(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use isolane_tests::durable::{BrokenPromise, DurabilityLevel, WriteJournal, WritePlan, check, open, write};

/// Write to a disk, record durable writes, and check them after a crash
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write until the time is over or the disk fails; continues an existing journal
    Write {
        /// Block device, file or nvme+tcp:// URI
        disk: String,
        /// File for the journal
        #[arg(long)]
        journal: PathBuf,
        /// Number of blocks to use
        #[arg(long, default_value_t = 8192)]
        blocks: usize,
        /// Block size in bytes
        #[arg(long, default_value_t = 512)]
        block_size: usize,
        /// Number of writers
        #[arg(long, default_value_t = 4)]
        writers: usize,
        /// Duration in seconds
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
        /// Completions that count as a promise
        #[arg(long, default_value = "durable")]
        level: DurabilityLevel,
        /// Seed of random choices; every run prints it
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Check that every promise was kept
    Check {
        /// Block device, file or nvme+tcp:// URI
        disk: String,
        /// File of the journal; updated if every promise was kept
        #[arg(long)]
        journal: PathBuf,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Write { disk, journal, blocks, block_size, writers, seconds, level, seed } => {
            let seed = seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
            let plan = WritePlan { writers, time: Duration::from_secs_f64(seconds), level, seed };
            run_writers(&disk, &journal, WriteJournal::new(blocks, block_size), plan)
        }
        Command::Check { disk, journal } => check_promises(&disk, &journal),
    };
    result.unwrap_or_else(|error| {
        eprintln!("durable: {error}");
        ExitCode::FAILURE
    })
}

fn run_writers(disk: &str, path: &Path, new: WriteJournal, plan: WritePlan) -> io::Result<ExitCode> {
    let mut journal = if path.exists() { WriteJournal::load(path)? } else { new };
    let (operations, ends) = write(disk, plan, &mut journal);
    journal.save(path)?;
    let promised = journal.entries.iter().filter(|entry| entry.durable > 0).count();
    println!("{operations} operations with seed {}, {promised} durable blocks", plan.seed);
    ends.iter().for_each(|error| println!("writer stopped: {error}"));
    Ok(if operations > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check_promises(disk: &str, path: &Path) -> io::Result<ExitCode> {
    let mut journal = WriteJournal::load(path)?;
    let broken = check(&mut *open(disk)?, &mut journal)?;
    if broken.is_empty() {
        journal.save(path)?;
        println!("every promise of {} blocks was kept", journal.entries.len());
        return Ok(ExitCode::SUCCESS);
    }
    broken.iter().take(20).for_each(explain);
    println!("{} of {} blocks broke a promise", broken.len(), journal.entries.len());
    Ok(ExitCode::FAILURE)
}

fn explain(broken: &BrokenPromise) {
    let BrokenPromise { index, durable, issued, found } = broken;
    println!("block {index}: expected write {durable} to {issued}, found {found:?}");
}
