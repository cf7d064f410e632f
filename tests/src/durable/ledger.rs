//! What was issued, what completed, what is durable, block by block.

use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

/// Which completions count as a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Claim {
    /// Those of FUA writes, and of all writes before a Flush.
    Durable,
    /// All of them, and nothing is written with FUA or flushed. A disk with a volatile cache must break this
    /// claim: it shows that the power cut cuts.
    Completed,
}

/// The three numbers of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// At most this may be found.
    pub issued: u64,
    /// At least this may be read as long as nothing crashes.
    pub completed: u64,
    /// At least this must be found after a crash.
    pub durable: u64,
}

/// All blocks of one disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// One entry for each block, from the first.
    pub entries: Vec<Entry>,
}

impl Ledger {
    /// A ledger of blocks that nobody has written.
    pub fn new(blocks: usize, block_bytes: usize) -> Ledger {
        Ledger { block_bytes, entries: vec![Entry::default(); blocks] }
    }

    /// The highest write of each block that has completed.
    pub fn completed(&self) -> Vec<u64> {
        self.entries.iter().map(|entry| entry.completed).collect()
    }

    /// A Flush that began when `completed` was taken has succeeded.
    pub fn on_flushed(&mut self, completed: &[u64]) {
        for (entry, &completed) in self.entries.iter_mut().zip(completed) {
            entry.durable = entry.durable.max(completed);
        }
    }

    /// Reads a ledger that [`Ledger::save`] wrote.
    pub fn load(path: &Path) -> io::Result<Ledger> {
        let text = fs::read_to_string(path)?;
        let mut lines = text.lines();
        let block_bytes =
            lines.next().and_then(|line| line.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        let entries = lines.map(parse).collect::<Option<_>>().ok_or(io::ErrorKind::InvalidData)?;
        Ok(Ledger { block_bytes, entries })
    }

    /// Writes the ledger down. It lives beside the disk under test, never on it.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let mut text = format!("{}\n", self.block_bytes);
        for entry in &self.entries {
            writeln!(text, "{} {} {}", entry.issued, entry.completed, entry.durable).expect("a string grows");
        }
        fs::write(path, text)
    }
}

fn parse(line: &str) -> Option<Entry> {
    let mut numbers = line.split(' ').map(|number| number.parse().ok());
    let mut next = || numbers.next().flatten();
    Some(Entry { issued: next()?, completed: next()?, durable: next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_survives_being_written_down() {
        let mut ledger = Ledger::new(3, 4096);
        ledger.entries[1] = Entry { issued: 5, completed: 4, durable: 2 };
        let file = tempfile::NamedTempFile::new().unwrap();
        ledger.save(file.path()).unwrap();
        assert_eq!(Ledger::load(file.path()).unwrap(), ledger);
    }

    #[test]
    fn a_flush_promises_what_had_completed_when_it_began() {
        let mut ledger = Ledger::new(2, 512);
        ledger.entries[0] = Entry { issued: 3, completed: 2, durable: 1 };
        let begun = ledger.completed();
        ledger.entries[0].completed = 3;
        ledger.on_flushed(&begun);
        assert_eq!(ledger.entries[0].durable, 2);
    }
}
