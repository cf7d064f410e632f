//! `durable`: writes to a disk, remembers what the disk promised, and checks it after a crash.

#![forbid(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use isolane_tests::durable::{Broken, Claim, Ledger, Plan, check, open, write};

/// Write to a disk, remember what it promised, check it after a crash
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write until the time is over or the disk is gone; an existing ledger is continued
    Write {
        /// Block device, file or nvme+tcp:// URI
        disk: String,
        /// Where the promises are written down
        #[arg(long)]
        ledger: PathBuf,
        /// Blocks to use, from the first
        #[arg(long, default_value_t = 8192)]
        blocks: usize,
        /// Bytes of a block
        #[arg(long, default_value_t = 512)]
        block_size: usize,
        /// Writers side by side
        #[arg(long, default_value_t = 4)]
        writers: usize,
        /// Seconds to go on
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
        /// Which completions count as a promise
        #[arg(long, default_value = "durable")]
        claim: Claim,
        /// Seed of the random choices; printed by every run
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Check that every promise was kept
    Check {
        /// Block device, file or nvme+tcp:// URI
        disk: String,
        /// What was promised; brought up to date when every promise was kept
        #[arg(long)]
        ledger: PathBuf,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Write { disk, ledger, blocks, block_size, writers, seconds, claim, seed } => {
            let seed = seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
            let plan = Plan { writers, time: Duration::from_secs_f64(seconds), claim, seed };
            write_until_the_end(&disk, &ledger, Ledger::new(blocks, block_size), plan)
        }
        Command::Check { disk, ledger } => check_promises(&disk, &ledger),
    };
    result.unwrap_or_else(|error| {
        eprintln!("durable: cannot go on: {error}");
        ExitCode::FAILURE
    })
}

fn write_until_the_end(disk: &str, path: &Path, new: Ledger, plan: Plan) -> io::Result<ExitCode> {
    let mut ledger = if path.exists() { Ledger::load(path)? } else { new };
    let (operations, ends) = write(disk, plan, &mut ledger);
    ledger.save(path)?;
    let promised = ledger.entries.iter().filter(|entry| entry.durable > 0).count();
    println!("{operations} operations with seed {}, {promised} blocks promised durable", plan.seed);
    ends.iter().for_each(|error| println!("a writer ended: {error}"));
    Ok(if operations > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check_promises(disk: &str, path: &Path) -> io::Result<ExitCode> {
    let mut ledger = Ledger::load(path)?;
    let broken = check(&mut *open(disk)?, &mut ledger)?;
    if broken.is_empty() {
        ledger.save(path)?;
        println!("every promise of {} blocks was kept", ledger.entries.len());
        return Ok(ExitCode::SUCCESS);
    }
    broken.iter().take(20).for_each(explain);
    println!("{} of {} blocks broke a promise", broken.len(), ledger.entries.len());
    Ok(ExitCode::FAILURE)
}

fn explain(broken: &Broken) {
    let Broken { index, durable, issued, found } = broken;
    println!("block {index}: expected write {durable} to {issued}, found {found:?}");
}
