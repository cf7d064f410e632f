//! Files with operations in the ring, each with an in-flight limit and a queue.
//!
//! A file that hangs keeps its slots in the ring, and its further operations wait in its queue.
//! Operations that the kernel cannot start without blocking go to kernel threads shared by all
//! files of the ring; so files that always need them, as on a network or user-space file system,
//! bypass the ring.

use crate::file::{self, FileJob};
use std::collections::VecDeque;
use std::fs::File;
use std::sync::{Arc, Weak};

#[derive(Debug, Default)]
pub(super) struct Files {
    list: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    /// Weak, so that it does not keep the file open.
    file: Weak<File>,
    can_hang: bool,
    in_flight: usize,
    queued: VecDeque<FileJob>,
}

impl Files {
    /// Returns the number of a file, adding it if new.
    pub fn find(&mut self, file: &Arc<File>) -> u32 {
        let known = self.list.iter().position(|entry| std::ptr::eq(entry.file.as_ptr(), Arc::as_ptr(file)));
        known.unwrap_or_else(|| self.add(file)) as u32
    }

    #[cold]
    fn add(&mut self, file: &Arc<File>) -> usize {
        let entry = Entry {
            file: Arc::downgrade(file),
            can_hang: file::can_hang(file),
            in_flight: 0,
            queued: VecDeque::new(),
        };
        match self.list.iter().position(Entry::is_unused) {
            Some(index) => {
                self.list[index] = entry;
                index
            }
            None => {
                self.list.push(entry);
                self.list.len() - 1
            }
        }
    }

    /// Whether operations of the file must bypass the ring.
    pub fn can_hang(&self, group: u32) -> bool {
        self.list[group as usize].can_hang
    }

    /// Returns the operation if it may enter the ring now; queues it otherwise.
    pub fn enter(&mut self, group: u32, job: FileJob) -> Option<FileJob> {
        let entry = &mut self.list[group as usize];
        if entry.in_flight >= MAX_OPS_PER_FILE {
            entry.queued.push_back(job);
            return None;
        }
        entry.in_flight += 1;
        Some(job)
    }

    /// Records a completion. Returns the queued operation that takes its slot.
    pub fn leave(&mut self, group: u32) -> Option<FileJob> {
        let entry = &mut self.list[group as usize];
        let next = entry.queued.pop_front();
        entry.in_flight -= usize::from(next.is_none());
        next
    }

    /// Removes all queued operations.
    pub fn take_queued(&mut self) -> Vec<FileJob> {
        self.list.iter_mut().flat_map(|entry| entry.queued.drain(..)).collect()
    }
}

impl Entry {
    fn is_unused(&self) -> bool {
        self.file.strong_count() == 0 && self.in_flight == 0
    }
}

/// Operations per file in the ring.
const MAX_OPS_PER_FILE: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::FileOp;

    fn sync(token: u64, file: &Arc<File>) -> FileJob {
        FileJob::new(token, file, FileOp::sync()).expect("sound")
    }

    #[test]
    fn full_file_does_not_block_others() {
        let [first, other] = [0, 1].map(|_| Arc::new(tempfile::tempfile().expect("a file")));
        let mut files = Files::default();
        let group = files.find(&first);
        for token in 0..MAX_OPS_PER_FILE as u64 {
            assert!(files.enter(group, sync(token, &first)).is_some());
        }
        assert!(files.enter(group, sync(7, &first)).is_none());
        let others = files.find(&other);
        assert!(others != group && files.enter(others, sync(8, &other)).is_some());
        assert_eq!(files.leave(group).map(|job| job.token), Some(7));
        assert!(files.leave(group).is_none());
        assert!(files.enter(group, sync(9, &first)).is_some());
    }

    #[test]
    fn reuses_slot_of_closed_file() {
        let open = || Arc::new(tempfile::tempfile().expect("a file"));
        let mut files = Files::default();
        for _ in 0..10 {
            let file = open();
            assert_eq!(files.find(&file), 0);
            assert_eq!(files.find(&file), 0);
        }
    }
}
