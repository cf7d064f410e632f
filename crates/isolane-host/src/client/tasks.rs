//! The tasks of a client.
//!
//! A table whose free places are used again, so that it grows to the most requests ever outstanding and no
//! further.

use super::task::{Operation, Part, Task};
use crate::request::BlockRange;
use crate::unflushed::Change;

/// The tasks of a client: a table whose free places are used again.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    places: Vec<Option<Task>>,
    free: Vec<u32>,
}

impl Tasks {
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The number of a new task, and the task. It is made when its place is known, so that the compiler can
    /// make it there.
    #[inline(always)]
    pub(crate) fn insert(&mut self, task: impl FnOnce() -> Task) -> (u32, &mut Task) {
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        let place = &mut self.places[index as usize];
        debug_assert!(place.is_none(), "a place was free and taken");
        (index, place.insert(task()))
    }

    /// A new task whose only part is on its way already; the mark of that.
    #[inline(always)]
    pub(crate) fn insert_sent(
        &mut self,
        tag: u64,
        lane: usize,
        operation: Operation,
        range: BlockRange,
    ) -> u64 {
        let (task, _) = self.insert(|| Task::sent(tag, lane, operation, range));
        Part { task, part: 0 }.mark()
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        self.places.push(None);
        (self.places.len() - 1) as u32
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Task> {
        self.places.get_mut(index as usize)?.as_mut()
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Task> {
        self.places.get(index as usize)?.as_ref()
    }

    /// Ends a task whose only command was a success; what that brought is the result. Its tag, and what it has
    /// changed; none if there is more to it.
    #[inline(always)]
    pub(crate) fn end_plain(&mut self, index: u32) -> Option<(u64, Change)> {
        let place = self.places.get_mut(index as usize)?;
        let task = place.as_ref().filter(|task| task.is_plain())?;
        let ended = (task.tag, task.operation.change());
        // A plain task holds nothing that would have to be dropped: to look for it again is left out.
        std::mem::forget(place.take());
        self.free.push(index);
        Some(ended)
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<Task> {
        let task = self.places.get_mut(index as usize)?.take();
        self.free.extend(task.is_some().then_some(index));
        task
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Task> {
        self.places.iter_mut().flatten()
    }

    /// Takes every task out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Task> {
        self.free.clear();
        std::mem::take(&mut self.places).into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::super::task::tests::read as read_blocks;
    use super::*;
    use crate::error::RequestError;

    fn read(lba: u64) -> Task {
        read_blocks(lba, 1)
    }

    #[test]
    fn places_are_used_again() {
        let mut tasks = Tasks::default();
        let first = tasks.insert(|| read(0)).0;
        let second = tasks.insert(|| read(1)).0;
        assert_ne!(first, second);
        assert!(tasks.remove(first).is_some());
        assert!(tasks.remove(first).is_none());
        assert_eq!(tasks.insert(|| read(2)).0, first);
        assert_eq!((tasks.len(), tasks.iter_mut().count()), (2, 2));
        assert_eq!(tasks.end_plain(second), None, "its buffer is still to be given back");
        assert!(tasks.get_mut(second).unwrap().take_piece(0).is_some());
        assert_eq!((tasks.end_plain(second), tasks.end_plain(second)), (Some((7, Change::Nothing)), None));
        assert_eq!((tasks.len(), tasks.insert(|| read(3)).0), (1, second));
    }
    #[test]
    fn what_has_more_to_it_does_not_end_with_one_success() {
        let mut tasks = Tasks::default();
        let (large, _) = tasks.insert(|| read_blocks(0, 9));
        let (failed, task) = tasks.insert(|| read(1));
        task.fail(RequestError::Damaged);
        assert_eq!([large, failed, 7].map(|index| tasks.end_plain(index)), [None; 3]);
        assert_eq!(tasks.len(), 2);
    }
}
