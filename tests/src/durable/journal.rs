//! Sequence numbers of issued, completed, and durable writes of each block.

use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

/// Completions that count as a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DurabilityLevel {
    /// FUA writes, and all writes before a Flush.
    Durable,
    /// All writes, without FUA or Flush. A disk with a volatile cache must break this promise, which shows that
    /// the power cut loses data.
    Completed,
}

/// Sequence numbers of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Last issued write.
    pub issued: u64,
    /// Last completed write: without a crash, reads return it or a later one.
    pub completed: u64,
    /// Last durable write: after a crash, reads return it or a later one.
    pub durable: u64,
}

/// Journal of all blocks of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteJournal {
    /// Block size in bytes.
    pub block_bytes: usize,
    /// One entry for each block, from the first.
    pub entries: Vec<Entry>,
}

impl WriteJournal {
    /// Creates a journal of unwritten blocks.
    pub fn new(blocks: usize, block_bytes: usize) -> WriteJournal {
        WriteJournal { block_bytes, entries: vec![Entry::default(); blocks] }
    }

    /// Returns the last completed write of each block.
    pub fn completed(&self) -> Vec<u64> {
        self.entries.iter().map(|entry| entry.completed).collect()
    }

    /// Records the success of a Flush that started when `completed` was taken.
    pub fn on_flushed(&mut self, completed: &[u64]) {
        for (entry, &completed) in self.entries.iter_mut().zip(completed) {
            entry.durable = entry.durable.max(completed);
        }
    }

    /// Reads a journal that [`WriteJournal::save`] wrote.
    pub fn load(path: &Path) -> io::Result<WriteJournal> {
        let text = fs::read_to_string(path)?;
        let mut lines = text.lines();
        let block_bytes =
            lines.next().and_then(|line| line.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        let entries = lines.map(parse).collect::<Option<_>>().ok_or(io::ErrorKind::InvalidData)?;
        Ok(WriteJournal { block_bytes, entries })
    }

    /// Writes the journal to a file that is not on the disk under test.
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
    fn round_trips_a_journal() {
        let mut journal = WriteJournal::new(3, 4096);
        journal.entries[1] = Entry { issued: 5, completed: 4, durable: 2 };
        let file = tempfile::NamedTempFile::new().unwrap();
        journal.save(file.path()).unwrap();
        assert_eq!(WriteJournal::load(file.path()).unwrap(), journal);
    }

    #[test]
    fn flush_covers_writes_completed_before_it() {
        let mut journal = WriteJournal::new(2, 512);
        journal.entries[0] = Entry { issued: 3, completed: 2, durable: 1 };
        let completed = journal.completed();
        journal.entries[0].completed = 3;
        journal.on_flushed(&completed);
        assert_eq!(journal.entries[0].durable, 2);
    }
}
