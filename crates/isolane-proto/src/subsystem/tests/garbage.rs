//! Arbitrary bytes from a host cause one completion, no panic, and no leak.

use super::*;
use isolane_wire::Field;
use proptest::prelude::*;

/// Random entries, often with a known opcode, FCTYPE, or identifier.
fn entries() -> impl Strategy<Value = SubmissionEntry> {
    let opcode =
        prop_oneof![Just(0x02u8), Just(0x06), Just(0x08), Just(0x09), Just(0x0a), Just(0x7f), any::<u8>()];
    let (first, second) = (prop_oneof![0u32..10, any::<u32>()], prop_oneof![0u32..300, any::<u32>()]);
    (any::<[u8; 32]>(), any::<[u8; 32]>(), opcode, first, second).prop_map(
        |(low, high, opcode, nsid, cdw10)| {
            let mut bytes = [0; 64];
            bytes[..32].copy_from_slice(&low);
            bytes[32..].copy_from_slice(&high);
            SubmissionEntry { opcode, nsid, cdw10, ..SubmissionEntry::read(&bytes) }
        },
    )
}

proptest! {
    #[test]
    fn any_command_gets_one_completion(
        entries in prop::collection::vec((entries(), 0u16..3, any::<bool>()), 1..40)
    ) {
        let mut harness = Harness::new();
        let ids = [harness.ready(), harness.discovery()];
        harness.io_queue(ids[0], 1).unwrap();
        for (entry, qid, is_length_right) in entries {
            for id in ids {
                let expected = u32::try_from(data_expected(&entry)).unwrap_or(u32::MAX);
                let data_bytes = if is_length_right { expected } else { 0 };
                match harness.port.handle_command(id, qid, &entry, data_bytes, harness.now) {
                    Action::CompleteWithData(data, _) => prop_assert_eq!(data.len(), data_bytes as usize),
                    Action::HoldAsyncEvent => prop_assert_eq!(entry.opcode, 0x0c),
                    _ => {}
                }
            }
            harness.events();
        }
        prop_assert_eq!(harness.port.associations().len(), 2);
    }

    #[test]
    fn rejected_connect_leaves_nothing(entry in entries(), data in any::<[[u8; 32]; 32]>()) {
        let mut harness = Harness::new();
        let result = harness.port.connect(&entry, data.as_flattened(), from(), harness.now);
        prop_assert!(result.is_err());
        prop_assert!(harness.port.associations().is_empty());
    }

    #[test]
    fn accepted_io_is_inside_namespace(
        entry in entries(), opcode in 0u8..16, blocks in 1u64..100_000, data_bytes in any::<u32>(), shift in 9u8..13
    ) {
        let geometry = NamespaceGeometry { block_shift: shift, blocks, read_only: false };
        let entry = SubmissionEntry { opcode, cdw11: entry.cdw11 % 2, ..entry };
        for data_bytes in [data_bytes, 0, (entry.cdw12 % 0x10000 + 1) << shift] {
            match parse_io(&entry, &geometry, data_bytes, 1 << 20) {
                Ok(IoCommand::Read { lba, blocks, .. } | IoCommand::Write { lba, blocks, .. }) => {
                    prop_assert!(lba + u64::from(blocks) <= geometry.blocks);
                    prop_assert_eq!(data_bytes, blocks << shift);
                }
                Ok(IoCommand::WriteZeroes { lba, blocks, .. }) => {
                    prop_assert!(lba + u64::from(blocks) <= geometry.blocks);
                }
                _ => {}
            }
        }
    }

    #[test]
    fn accepted_ranges_are_inside_namespace(data in prop::collection::vec(any::<u8>(), 0..128)) {
        let geometry = NamespaceGeometry { block_shift: 9, blocks: u64::MAX / 2, read_only: false };
        let ranges = (data.len() / 16) as u16;
        if let Ok(list) = parse_ranges(&data, ranges, &geometry) {
            prop_assert_eq!(list.len(), usize::from(ranges));
            for range in list {
                prop_assert!(range.slba + u64::from(range.blocks) <= geometry.blocks);
            }
        }
    }
}
