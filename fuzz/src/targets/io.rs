//! I/O commands against a geometry.

use isolane_proto::subsystem::{IoCommand, NamespaceGeometry, parse_io, parse_ranges};
use isolane_wire::SubmissionEntry;

use crate::input::Input;

/// MDTS, in bytes.
const MAX_TRANSFER_LEN: u32 = 1 << 20;

/// A geometry, a data length, a command, and ranges. Accepted ranges are inside of the namespace.
pub(crate) fn io_command(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let geometry = NamespaceGeometry {
        block_shift: input.pick(&[9, 12]),
        blocks: input.u64().max(1),
        read_only: input.u8() & 1 != 0,
    };
    let data_len = input.u32();
    let entry = SubmissionEntry::decode(&input.array());
    if let Ok(command) = parse_io(&entry, &geometry, data_len, MAX_TRANSFER_LEN) {
        check_io(&command, &geometry, data_len);
    }
    let count = input.u16();
    if let Ok(ranges) = parse_ranges(input.remaining(), count, &geometry) {
        assert_eq!(ranges.len(), usize::from(count));
        assert!(ranges.iter().all(|range| is_inside(range.slba, range.blocks, &geometry)));
    }
}

fn check_io(command: &IoCommand, geometry: &NamespaceGeometry, data_len: u32) {
    match *command {
        IoCommand::Read { lba, blocks, .. } | IoCommand::Write { lba, blocks, .. } => {
            assert!(is_inside(lba, blocks, geometry) && blocks > 0);
            assert_eq!(u64::from(blocks) << geometry.block_shift, u64::from(data_len));
            assert!(data_len <= MAX_TRANSFER_LEN);
        }
        IoCommand::WriteZeroes { lba, blocks, .. } => assert!(is_inside(lba, blocks, geometry) && blocks > 0),
        _ => {}
    }
    let writes = matches!(command, IoCommand::Write { .. } | IoCommand::WriteZeroes { .. });
    assert!(!(writes && geometry.read_only), "nothing writes to a namespace that is read only");
}

fn is_inside(lba: u64, blocks: u32, geometry: &NamespaceGeometry) -> bool {
    lba.checked_add(u64::from(blocks)).is_some_and(|end| end <= geometry.blocks)
}
