//! One part of a task as an NVMe command (Base 1.4 §6).
//!
//! Pure translation. Invariant: the blocks of the command are exactly the blocks of the part.

use isolane_memory::Buffer;
use isolane_proto::host::Data;
use isolane_wire::SubmissionEntry;
use isolane_wire::io::{
    self, DatasetManagementCommand, Range, ReadCommand, WriteCommand, WriteZeroesCommand,
};

use super::task::Operation;
use crate::request::BlockRange;

/// The command and data of a part: an operation on these blocks, with the part's piece of the buffer.
pub(crate) fn command_of(
    operation: &Operation,
    blocks: BlockRange,
    piece: Option<Buffer>,
    nsid: u32,
) -> (SubmissionEntry, Data) {
    match operation {
        Operation::Read => (read(&blocks, nsid), piece.map_or(Data::None, Data::Read)),
        Operation::Write { fua } => (write(&blocks, *fua, nsid), piece.map_or(Data::None, Data::Write)),
        Operation::Flush(_) => (io::flush(nsid), Data::None),
        Operation::WriteZeroes { fua, deallocate } => {
            let (slba, nlb, fua, deallocate) = (blocks.lba, nlb(&blocks), *fua, *deallocate);
            let command =
                WriteZeroesCommand { nsid, slba, nlb, fua, deallocate, ..WriteZeroesCommand::default() };
            (command.entry(), Data::None)
        }
        Operation::Deallocate(ranges) => deallocation(ranges, nsid),
    }
}

#[inline(always)]
pub(crate) fn read(blocks: &BlockRange, nsid: u32) -> SubmissionEntry {
    ReadCommand { nsid, slba: blocks.lba, nlb: nlb(blocks), ..ReadCommand::default() }.entry()
}

#[inline(always)]
pub(crate) fn write(blocks: &BlockRange, fua: bool, nsid: u32) -> SubmissionEntry {
    WriteCommand { nsid, slba: blocks.lba, nlb: nlb(blocks), fua, ..WriteCommand::default() }.entry()
}

/// NLB is 0's based; a part never has more than 65,536 blocks.
#[inline(always)]
fn nlb(blocks: &BlockRange) -> u16 {
    blocks.blocks.saturating_sub(1) as u16
}

fn deallocation(ranges: &[BlockRange], nsid: u32) -> (SubmissionEntry, Data) {
    let nr = ranges.len().saturating_sub(1) as u8;
    let command =
        DatasetManagementCommand { nsid, nr, deallocate: true, ..DatasetManagementCommand::default() };
    let mut buffer = Buffer::contiguous(ranges.len() * Range::LEN);
    for (index, range) in ranges.iter().enumerate() {
        let range = Range { attributes: 0, blocks: range.blocks as u32, slba: range.lba };
        buffer.place(index * Range::LEN, &range.encode());
    }
    (command.entry(), Data::Write(buffer))
}

#[cfg(test)]
mod tests {
    use super::super::shape::Shape;
    use super::super::task::Task;
    use super::*;
    use crate::request::Request;

    const SHAPE: Shape = Shape { block_bytes: 512, capacity_blocks: 1 << 40, part_blocks: 65_536 };

    fn task(request: Request) -> Task {
        let range = SHAPE.check(&request).unwrap();
        Task::new(0, 0, request, range, &SHAPE)
    }

    fn part_of(task: &mut Task, part: u32, nsid: u32) -> (SubmissionEntry, Data) {
        let piece = task.take_piece(part);
        command_of(&task.operation, task.part_range(part), piece, nsid)
    }

    #[test]
    fn a_durable_write_carries_fua_and_its_blocks() {
        let buffer = Buffer::contiguous(3 * 512);
        let mut task = task(Request::Write { lba: 1 << 33, buffer, fua: true });
        let (entry, data) = part_of(&mut task, 0, 9);
        let command = WriteCommand::parse(&entry);
        assert_eq!((command.nsid, command.slba, command.blocks(), command.fua), (9, 1 << 33, 3, true));
        assert!(matches!(data, Data::Write(buffer) if buffer.len() == 3 * 512));
    }

    #[test]
    fn the_longest_part_is_65536_blocks() {
        let range = BlockRange { lba: 5, blocks: 65_537 };
        let mut task = task(Request::WriteZeroes { range, fua: false, deallocate: true });
        let first = WriteZeroesCommand::parse(&part_of(&mut task, 0, 1).0);
        let second = WriteZeroesCommand::parse(&part_of(&mut task, 1, 1).0);
        assert_eq!((first.slba, first.blocks(), first.deallocate), (5, 65_536, true));
        assert_eq!((second.slba, second.blocks(), task.parts), (65_541, 1, 2));
    }

    #[test]
    fn ranges_are_listed_in_order() {
        let ranges = vec![BlockRange { lba: 1, blocks: 2 }, BlockRange { lba: 1 << 35, blocks: 7 }];
        let (entry, data) = part_of(&mut task(Request::Deallocate { ranges }), 0, 1);
        assert_eq!(DatasetManagementCommand::parse(&entry).ranges(), 2);
        let Data::Write(buffer) = data else { panic!("ranges are data") };
        let sent: Vec<_> =
            Range::decode_all(&buffer.to_vec()).map(|range| (range.slba, range.blocks)).collect();
        assert_eq!(sent, [(1, 2), (1 << 35, 7)]);
    }
}
