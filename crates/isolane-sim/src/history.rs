//! What a block may hold, judged by what was asked and acknowledged, and by nothing else.
//!
//! Each write of a block has a value of its own, a time when it was asked, and perhaps one when it was
//! acknowledged. A value is superseded by a write that was asked after it was acknowledged. So:
//! * a read may see any write asked before the read ended, but none that an acknowledged write superseded
//!   before the read was asked;
//! * a power cut may leave any write asked, but none that a write known to be durable superseded.

/// The writes of all blocks.
#[derive(Debug)]
pub struct History {
    blocks: Vec<Vec<Write>>,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    id: u64,
    value: u64,
    asked: u64,
    /// [`NEVER`] until known.
    acknowledged: u64,
    is_durable: bool,
}

impl History {
    /// Blocks that hold these values, for certain.
    pub fn new(values: impl IntoIterator<Item = u64>) -> History {
        let first = |value| vec![Write { id: 0, value, asked: 0, acknowledged: 0, is_durable: true }];
        History { blocks: values.into_iter().map(first).collect() }
    }

    /// The write `id` of `value` to a block was asked for.
    pub fn ask(&mut self, block: u64, id: u64, value: u64, time: u64) {
        let write = Write { id, value, asked: time, acknowledged: NEVER, is_durable: false };
        self.blocks[block as usize].push(write);
    }

    /// The write `id` succeeded.
    pub fn acknowledge(&mut self, block: u64, id: u64, time: u64, is_durable: bool) {
        for write in self.blocks[block as usize].iter_mut().filter(|write| write.id == id) {
            (write.acknowledged, write.is_durable) = (time, is_durable);
        }
        self.forget(block);
    }

    /// A flush that was asked for at `asked` succeeded.
    pub fn flush(&mut self, asked: u64) {
        let writes = self.blocks.iter_mut().flatten();
        writes.filter(|write| write.acknowledged < asked).for_each(|write| write.is_durable = true);
    }

    /// Whether a read asked for at `asked`, and over now, may see `value`.
    pub fn may_read(&self, block: u64, value: u64, asked: u64) -> bool {
        self.may_hold(block, value, |later| later.acknowledged < asked)
    }

    /// Whether a power cut may leave `value`.
    pub fn may_survive(&self, block: u64, value: u64) -> bool {
        self.may_hold(block, value, |later| later.is_durable)
    }

    fn may_hold(&self, block: u64, value: u64, is_certain: impl Fn(&Write) -> bool) -> bool {
        let writes = &self.blocks[block as usize];
        let is_superseded =
            |write: &Write| writes.iter().any(|later| is_certain(later) && later.supersedes(write));
        writes.iter().any(|write| write.value == value && !is_superseded(write))
    }

    /// Drops what two durable writes in a row have superseded long ago, to keep histories short.
    fn forget(&mut self, block: u64) {
        let writes = &mut self.blocks[block as usize];
        let durable: Vec<Write> = writes.iter().copied().filter(|write| write.is_durable).collect();
        if writes.len() > LENGTH_MAX {
            writes.retain(|write| durable.iter().filter(|later| later.supersedes(write)).count() < 2);
        }
    }
}

impl Write {
    fn supersedes(&self, earlier: &Write) -> bool {
        earlier.acknowledged < self.asked
    }
}

const NEVER: u64 = u64::MAX;
const LENGTH_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledged_write_hides_what_was_before_it() {
        let mut history = History::new([0]);
        history.ask(0, 1, 11, 1);
        assert!(history.may_read(0, 0, 2) && history.may_read(0, 11, 2));
        history.acknowledge(0, 1, 3, false);
        assert!(!history.may_read(0, 0, 4) && history.may_read(0, 11, 4));
        assert!(history.may_read(0, 0, 2), "a read that was asked before may still see the old value");
        assert!(history.may_survive(0, 0) && history.may_survive(0, 11) && !history.may_survive(0, 12));
    }

    #[test]
    fn a_flush_covers_what_was_acknowledged_before_it_was_asked() {
        let mut history = History::new([0, 0]);
        history.ask(0, 1, 11, 1);
        history.acknowledge(0, 1, 2, false);
        history.ask(1, 2, 12, 3);
        history.acknowledge(1, 2, 5, false);
        history.flush(4);
        assert!(!history.may_survive(0, 0) && history.may_survive(1, 0));
    }

    #[test]
    fn concurrent_writes_may_end_in_either_order() {
        let mut history = History::new([0]);
        history.ask(0, 1, 11, 1);
        history.ask(0, 2, 12, 2);
        history.acknowledge(0, 2, 3, true);
        history.acknowledge(0, 1, 4, true);
        assert!(history.may_survive(0, 11) && history.may_survive(0, 12) && !history.may_survive(0, 0));
    }
}
