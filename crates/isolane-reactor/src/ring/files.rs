//! The files whose operations go through a ring, each with a bound and a queue of its own.
//!
//! A file that hangs keeps what it has in the ring, and its further operations wait in its own queue. What the
//! kernel cannot start without waiting, it leaves to threads that all files of a ring share; so a file that it
//! can do nothing else with, as on a network or user-space file system, does not go through the ring at all.

use super::raw::Started;
use crate::file::{self, Checked};
use std::collections::VecDeque;
use std::fs::File;
use std::sync::{Arc, Weak};

#[derive(Debug, Default)]
pub(super) struct Files {
    list: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    /// Does not keep it open.
    file: Weak<File>,
    may_hang: bool,
    in_flight: usize,
    later: VecDeque<Started>,
}

impl Files {
    /// The number of a file.
    pub fn find(&mut self, file: &Arc<File>) -> u32 {
        let known = self.list.iter().position(|entry| std::ptr::eq(entry.file.as_ptr(), Arc::as_ptr(file)));
        known.unwrap_or_else(|| self.add(file)) as u32
    }

    #[cold]
    fn add(&mut self, file: &Arc<File>) -> usize {
        let entry = Entry {
            file: Arc::downgrade(file),
            may_hang: file::may_hang(file),
            in_flight: 0,
            later: VecDeque::new(),
        };
        match self.list.iter().position(Entry::is_over) {
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

    /// Whether operations of the file must not go through the ring.
    pub fn may_hang(&self, group: u32) -> bool {
        self.list[group as usize].may_hang
    }

    /// Hands an operation back that may go to the ring now; keeps it otherwise.
    pub fn enter(&mut self, group: u32, token: u64, file: &Arc<File>, operation: Checked) -> Option<Checked> {
        let entry = &mut self.list[group as usize];
        if entry.in_flight >= FILE_MAX {
            entry.later.push_back((token, Arc::clone(file), operation));
            return None;
        }
        entry.in_flight += 1;
        Some(operation)
    }

    /// An operation has ended; returns the one that takes its place.
    pub fn leave(&mut self, group: u32) -> Option<Started> {
        let entry = &mut self.list[group as usize];
        let next = entry.later.pop_front();
        entry.in_flight -= usize::from(next.is_none());
        next
    }

    /// Takes out everything that waits.
    pub fn take_later(&mut self) -> Vec<Started> {
        self.list.iter_mut().flat_map(|entry| entry.later.drain(..)).collect()
    }
}

impl Entry {
    fn is_over(&self) -> bool {
        self.file.strong_count() == 0 && self.in_flight == 0
    }
}

/// Operations of one file in the ring at once.
const FILE_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::Operation;

    fn sync() -> Checked {
        Checked::new(Operation::sync()).expect("sound")
    }

    #[test]
    fn a_full_file_holds_up_no_other() {
        let [first, other] = [0, 1].map(|_| Arc::new(tempfile::tempfile().expect("a file")));
        let mut files = Files::default();
        let group = files.find(&first);
        for token in 0..FILE_MAX as u64 {
            assert!(files.enter(group, token, &first, sync()).is_some());
        }
        assert!(files.enter(group, 7, &first, sync()).is_none());
        let others = files.find(&other);
        assert!(others != group && files.enter(others, 8, &other, sync()).is_some());
        assert_eq!(files.leave(group).map(|(token, ..)| token), Some(7));
        assert!(files.leave(group).is_none());
        assert!(files.enter(group, 9, &first, sync()).is_some());
    }

    #[test]
    fn the_place_of_a_closed_file_is_used_again() {
        let open = || Arc::new(tempfile::tempfile().expect("a file"));
        let mut files = Files::default();
        for _ in 0..10 {
            let file = open();
            assert_eq!(files.find(&file), 0);
            assert_eq!(files.find(&file), 0);
        }
    }
}
