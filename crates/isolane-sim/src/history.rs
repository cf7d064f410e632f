//! Values that a block may have, given the writes submitted and acknowledged.
//!
//! Each write of a block has a unique value, a time of submission, and possibly one of acknowledgment. A write
//! supersedes every value that was acknowledged before the write was submitted. So:
//! * a read may return any write submitted before the read ended, unless an acknowledged write superseded it
//!   before the read was submitted;
//! * a power cut may leave any write, unless a durable write superseded it.

/// Writes of all blocks.
#[derive(Debug)]
pub struct History {
    blocks: Vec<Vec<Write>>,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    id: u64,
    value: u64,
    submitted: u64,
    /// [`NEVER`] until known.
    acknowledged: u64,
    /// Time from which later writes are executed after it; [`NEVER`] until known.
    ended: u64,
    durable: bool,
}

impl History {
    /// Creates the history of blocks with these durable values.
    pub fn new(values: impl IntoIterator<Item = u64>) -> History {
        let first =
            |value| vec![Write { id: 0, value, submitted: 0, acknowledged: 0, ended: 0, durable: true }];
        History { blocks: values.into_iter().map(first).collect() }
    }

    /// Records the submission of write `id` of `value` to a block.
    pub fn submit(&mut self, block: u64, id: u64, value: u64, time: u64) {
        let write = Write { id, value, submitted: time, acknowledged: NEVER, ended: NEVER, durable: false };
        self.blocks[block as usize].push(write);
    }

    /// Records the success of write `id`.
    pub fn acknowledge(&mut self, block: u64, id: u64, time: u64, durable: bool) {
        for write in self.blocks[block as usize].iter_mut().filter(|write| write.id == id) {
            (write.acknowledged, write.ended, write.durable) = (time, time, durable);
        }
        self.prune(block);
    }

    /// Records that write `id` has failed: it may be executed, but not after writes that are submitted from now on.
    pub fn fail(&mut self, block: u64, id: u64, time: u64) {
        for write in self.blocks[block as usize].iter_mut().filter(|write| write.id == id) {
            write.ended = write.ended.min(time);
        }
    }

    /// Records the success of a flush submitted at `submitted`.
    pub fn flush(&mut self, submitted: u64) {
        let writes = self.blocks.iter_mut().flatten();
        writes.filter(|write| write.acknowledged < submitted).for_each(|write| write.durable = true);
    }

    /// Whether a read submitted at `submitted` and ending now may return `value`.
    pub fn allows_read(&self, block: u64, value: u64, submitted: u64) -> bool {
        self.allows(block, value, |later| later.acknowledged < submitted)
    }

    /// Whether a power cut may leave `value`.
    pub fn allows_survivor(&self, block: u64, value: u64) -> bool {
        self.allows(block, value, |later| later.durable)
    }

    fn allows(&self, block: u64, value: u64, is_certain: impl Fn(&Write) -> bool) -> bool {
        let writes = &self.blocks[block as usize];
        let is_superseded =
            |write: &Write| writes.iter().any(|later| is_certain(later) && later.supersedes(write));
        writes.iter().any(|write| write.value == value && !is_superseded(write))
    }

    /// Drops writes superseded by two durable ones, to bound the history.
    fn prune(&mut self, block: u64) {
        let writes = &mut self.blocks[block as usize];
        let durable: Vec<Write> = writes.iter().copied().filter(|write| write.durable).collect();
        if writes.len() > MAX_WRITES {
            writes.retain(|write| durable.iter().filter(|later| later.supersedes(write)).count() < 2);
        }
    }
}

impl Write {
    fn supersedes(&self, earlier: &Write) -> bool {
        earlier.ended < self.submitted
    }
}

const NEVER: u64 = u64::MAX;
const MAX_WRITES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledged_write_hides_earlier_values() {
        let mut history = History::new([0]);
        history.submit(0, 1, 11, 1);
        assert!(history.allows_read(0, 0, 2) && history.allows_read(0, 11, 2));
        history.acknowledge(0, 1, 3, false);
        assert!(!history.allows_read(0, 0, 4) && history.allows_read(0, 11, 4));
        assert!(history.allows_read(0, 0, 2), "an earlier read may return the old value");
        assert!(
            history.allows_survivor(0, 0)
                && history.allows_survivor(0, 11)
                && !history.allows_survivor(0, 12)
        );
    }

    #[test]
    fn failed_write_may_be_executed_before_later_ones() {
        let mut history = History::new([0]);
        history.submit(0, 1, 11, 1);
        history.fail(0, 1, 2);
        assert!(history.allows_read(0, 0, 3) && history.allows_read(0, 11, 3));
        history.submit(0, 2, 12, 3);
        history.acknowledge(0, 2, 4, false);
        assert!(history.allows_read(0, 12, 5) && !history.allows_read(0, 11, 5));
    }

    #[test]
    fn flush_covers_earlier_acknowledged_writes() {
        let mut history = History::new([0, 0]);
        history.submit(0, 1, 11, 1);
        history.acknowledge(0, 1, 2, false);
        history.submit(1, 2, 12, 3);
        history.acknowledge(1, 2, 5, false);
        history.flush(4);
        assert!(!history.allows_survivor(0, 0) && history.allows_survivor(1, 0));
    }

    #[test]
    fn concurrent_writes_end_in_either_order() {
        let mut history = History::new([0]);
        history.submit(0, 1, 11, 1);
        history.submit(0, 2, 12, 2);
        history.acknowledge(0, 2, 3, true);
        history.acknowledge(0, 1, 4, true);
        assert!(
            history.allows_survivor(0, 11)
                && history.allows_survivor(0, 12)
                && !history.allows_survivor(0, 0)
        );
    }
}
