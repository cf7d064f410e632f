//! NVMe command of one part of a request (Base 1.4 §6).
//!
//! Invariant: the blocks of the command are exactly the blocks of the part.

use isolane_memory::Buffer;
use isolane_proto::host::Data;
use isolane_wire::SubmissionEntry;
use isolane_wire::io::{
    self, DatasetManagementCommand, DsmRange, ReadCommand, WriteCommand, WriteZeroesCommand,
};

use crate::operation::Operation;
use crate::request::BlockRange;

/// Returns the command and data of a part.
pub(crate) fn command_of(
    operation: &Operation,
    blocks: BlockRange,
    buffer: Option<Buffer>,
    nsid: u32,
) -> (SubmissionEntry, Data) {
    match operation {
        Operation::Read => (read(&blocks, nsid), buffer.map_or(Data::None, Data::Read)),
        Operation::Write { fua } => (write(&blocks, *fua, nsid), buffer.map_or(Data::None, Data::Write)),
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
    let mut buffer = Buffer::contiguous(ranges.len() * DsmRange::LEN);
    for (index, range) in ranges.iter().enumerate() {
        let range = DsmRange { attributes: 0, blocks: range.blocks as u32, slba: range.lba };
        buffer.copy_in(index * DsmRange::LEN, &range.encode());
    }
    (command.entry(), Data::Write(buffer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io_limits::IoLimits;
    use crate::reply::Reply;
    use crate::request::Request;
    use crate::request_table::RequestSlot;

    const LIMITS: IoLimits = IoLimits { block_bytes: 512, capacity_blocks: 1 << 40, part_blocks: 65_536 };

    fn slot(request: Request) -> RequestSlot {
        let range = LIMITS.check(&request).unwrap();
        RequestSlot::new(Reply::Tag(0), 0, request, range, Default::default(), &LIMITS)
    }

    fn part_of(request: &mut RequestSlot, part: u32, nsid: u32) -> (SubmissionEntry, Data) {
        let buffer = request.take_buffer(part);
        command_of(&request.operation, request.part_range(part), buffer, nsid)
    }

    #[test]
    fn durable_write_has_fua_and_blocks() {
        let buffer = Buffer::contiguous(3 * 512);
        let mut request = slot(Request::Write { lba: 1 << 33, buffer, fua: true });
        let (entry, data) = part_of(&mut request, 0, 9);
        let command = WriteCommand::parse(&entry);
        assert_eq!((command.nsid, command.slba, command.blocks(), command.fua), (9, 1 << 33, 3, true));
        assert!(matches!(data, Data::Write(buffer) if buffer.len() == 3 * 512));
    }

    #[test]
    fn longest_part_is_65536_blocks() {
        let range = BlockRange { lba: 5, blocks: 65_537 };
        let mut request = slot(Request::WriteZeroes { range, fua: false, deallocate: true });
        let first = WriteZeroesCommand::parse(&part_of(&mut request, 0, 1).0);
        let second = WriteZeroesCommand::parse(&part_of(&mut request, 1, 1).0);
        assert_eq!((first.slba, first.blocks(), first.deallocate), (5, 65_536, true));
        assert_eq!((second.slba, second.blocks(), request.parts), (65_541, 1, 2));
    }

    #[test]
    fn lists_ranges_in_order() {
        let ranges = vec![BlockRange { lba: 1, blocks: 2 }, BlockRange { lba: 1 << 35, blocks: 7 }];
        let (entry, data) = part_of(&mut slot(Request::Deallocate { ranges }), 0, 1);
        assert_eq!(DatasetManagementCommand::parse(&entry).ranges(), 2);
        let Data::Write(buffer) = data else { panic!("ranges are data") };
        let sent: Vec<_> =
            DsmRange::decode_all(&buffer.to_vec()).map(|range| (range.slba, range.blocks)).collect();
        assert_eq!(sent, [(1, 2), (1 << 35, 7)]);
    }
}
