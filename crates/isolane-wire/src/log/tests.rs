//! Golden vectors of the log pages (Base 1.4 §5.14.1; Fabrics 1.1 §5.3).

use super::*;
use crate::{Ascii, Nqn, Status, golden};

#[test]
fn encodes_error_entry() {
    let entry = ErrorEntry {
        error_count: 0x0807_0605_0403_0201,
        sqid: 0x0a09,
        cid: 0x0c0b,
        status: Status::LBA_OUT_OF_RANGE.with_dnr(true),
        parameter_location: 0x100f,
        lba: 0x1817_1615_1413_1211,
        nsid: 0x1c1b_1a19,
        vendor_log: 0x1d,
        trtype: 0x1e,
        command_specific: 0x2827_2625_2423_2221,
        transport_specific: 0x2a29,
    };
    let bytes = golden::bytes::<64>(&[
        (0, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x00, 0x81, 15, 16]),
        (16, &[0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e]),
        (32, &[0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2a]),
    ]);
    golden::assert_same(&entry.encode(), &bytes);
    assert_eq!(ErrorEntry::decode(&bytes), entry);
}

#[test]
fn smart_has_each_field_in_its_place() {
    let smart = Smart {
        critical_warning: CriticalWarning(0).with_spare(true).with_read_only(true),
        temperature_kelvin: 0x0302,
        available_spare_percent: 4,
        available_spare_threshold_percent: 5,
        percentage_used: 6,
        endurance_group_warning: 7,
        data_units_read: 0x11,
        data_units_written: 0x12,
        host_read_commands: 0x13,
        host_write_commands: 0x14,
        controller_busy_minutes: 0x15,
        power_cycles: 0x16,
        power_on_hours: 0x17,
        unsafe_shutdowns: 0x18,
        media_errors: 0x19,
        error_log_entries: 0x1a << 120,
        warning_temperature_minutes: 0x0403_0201,
        critical_temperature_minutes: 0x0807_0605,
        sensors_kelvin: [0x2120, 0x2322, 0x2524, 0x2726, 0x2928, 0x2b2a, 0x2d2c, 0x2f2e],
        thermal_transitions: [0x31, 0x32],
        thermal_time_s: [0x33, 0x34],
    };
    let bytes = golden::bytes::<512>(&[
        (0, &[0b1001, 2, 3, 4, 5, 6, 7]),
        (32, &[0x11]),
        (48, &[0x12]),
        (64, &[0x13]),
        (80, &[0x14]),
        (96, &[0x15]),
        (112, &[0x16]),
        (128, &[0x17]),
        (144, &[0x18]),
        (160, &[0x19]),
        (191, &[0x1a]),
        (192, &[1, 2, 3, 4, 5, 6, 7, 8]),
        (
            200,
            &[0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x2b, 0x2c, 0x2d, 0x2e, 0x2f],
        ),
        (216, &[0x31, 0, 0, 0, 0x32, 0, 0, 0, 0x33, 0, 0, 0, 0x34]),
    ]);
    golden::assert_same(&smart.encode(), &bytes);
    assert_eq!(Smart::decode(&bytes), smart);
}

#[test]
fn firmware_slots_have_each_field_in_its_place() {
    let mut slots =
        FirmwareSlots { afi: ActiveFirmware(0).with_active(5).with_next(3), ..Default::default() };
    slots.frs[0] = Ascii::lossy("1.0");
    slots.frs[6] = Ascii::lossy("7654321");
    let bytes = golden::bytes::<512>(&[(0, &[0x35]), (8, b"1.0     "), (56, b"7654321 ")]);
    golden::assert_same(&slots.encode(), &bytes);
    assert_eq!(FirmwareSlots::decode(&bytes), slots);
}

#[test]
fn effects_have_one_entry_for_every_opcode() {
    let mut log = CommandEffectsLog::default();
    log.admin[0x09] = CommandEffects(0).with_supported(true).with_controller_capability(true);
    log.admin[0xff] = CommandEffects(0).with_namespace_inventory(true).with_uuid_selection(true);
    log.io[0x01] = CommandEffects(0).with_supported(true).with_block_content(true);
    log.io[0xff] = CommandEffects(0).with_namespace_capability(true).with_submission(5);
    let bytes = golden::bytes::<4096>(&[
        (0x24, &[0x11]),
        (0x3fc, &[0x08, 0, 0x08]),
        (0x404, &[0x03]),
        (0x7fc, &[0x04, 0, 0x05]),
    ]);
    golden::assert_same(&log.encode(), &bytes);
    assert_eq!(CommandEffectsLog::decode(&bytes), log);
}

#[test]
fn encodes_discovery_header() {
    let header =
        DiscoveryHeader { genctr: 0x0807_0605_0403_0201, numrec: 0x100f_0e0d_0c0b_0a09, recfmt: 0x1211 };
    let bytes: [u8; 18] = core::array::from_fn(|index| index as u8 + 1);
    let bytes = golden::bytes::<1024>(&[(0, &bytes)]);
    golden::assert_same(&header.encode(), &bytes);
    assert_eq!(DiscoveryHeader::decode(&bytes), header);
}

#[test]
fn encodes_discovery_entry() {
    let entry = DiscoveryEntry {
        trtype: Transport::Tcp.code(),
        adrfam: AddressFamily::Ipv6.code(),
        subtype: SubsystemType::CurrentDiscovery.code(),
        treq: TransportRequirements(0)
            .with_secure_channel(TransportRequirements::NOT_REQUIRED)
            .with_disable_sq_flow_control(true),
        portid: 0x0605,
        cntlid: DiscoveryEntry::CNTLID_DYNAMIC,
        asqsz: 0x0a09,
        eflags: DiscoveryFlags(0).with_duplicate(true).with_persistent(true).with_no_cdc(true),
        trsvcid: Ascii::lossy("4420"),
        subnqn: Nqn::new(Nqn::DISCOVERY).unwrap().into(),
        traddr: Ascii::lossy("fe80::1"),
        sectype: SecureChannel::Tls13.code(),
    };
    let (trsvcid, traddr) = ([b' '; 28], [b' '; 249]);
    let bytes = golden::bytes::<1024>(&[
        (0, &[3, 2, 3, 0b110, 5, 6, 0xff, 0xff, 9, 10, 0b111, 0]),
        (32, b"4420"),
        (36, &trsvcid),
        (256, b"nqn.2014-08.org.nvmexpress.discovery"),
        (512, b"fe80::1"),
        (519, &traddr),
        (768, &[2]),
    ]);
    golden::assert_same(&entry.encode(), &bytes);
    assert_eq!(DiscoveryEntry::decode(&bytes), entry);
}

#[test]
fn encodes_generation_page() {
    let log = GenerationLog {
        signature: SIGNATURE,
        version: 0x1211,
        loses: RestartLoss::Content.code(),
        nsid: 0x1817_1615,
        generation: core::array::from_fn(|index| index as u8 + 0x21),
    };
    let bytes = golden::bytes::<64>(&[
        (
            0,
            &[0xaa, 0x11, 0xf7, 0x01, 0x1d, 0x63, 0x43, 0x4c, 0xb2, 0xd8, 0x84, 0xdf, 0x28, 0xad, 0x65, 0xe2],
        ),
        (16, &[0x11, 0x12, 0x03, 0x00, 0x15, 0x16, 0x17, 0x18]),
        (
            32,
            &[0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x2b, 0x2c, 0x2d, 0x2e, 0x2f, 0x30],
        ),
    ]);
    golden::assert_same(&log.encode(), &bytes);
    assert_eq!(GenerationLog::decode(&bytes), log);
}

#[test]
fn encodes_header_of_host_stages() {
    let header = HostStagesHeader {
        signature: core::array::from_fn(|index| index as u8 + 1),
        version: 0x1211,
        text_bytes: 0x1817_1615,
        connections_left_out: 0x1c1b_1a19,
        slow_left_out: 0x201f_1e1d,
        text_crc: 0x2423_2221,
    };
    let bytes = golden::bytes::<64>(&[
        (0, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0x11, 0x12]),
        (
            20,
            &[0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f, 0x20, 0x21, 0x22, 0x23, 0x24],
        ),
    ]);
    golden::assert_same(&header.encode(), &bytes);
    assert_eq!(HostStagesHeader::decode(&bytes), header);
}
