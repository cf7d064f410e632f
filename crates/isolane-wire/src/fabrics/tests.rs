//! Golden vectors of the Fabrics commands (Fabrics 1.1 figures 19 to 27).

use super::*;
use crate::{CompletionEntry, Nqn, NqnField, Status, SubmissionEntry, golden};

#[test]
fn connect_has_each_field_in_its_place() {
    let command = ConnectCommand {
        recfmt: 0x0201,
        qid: 0x0403,
        sqsize: 0x0605,
        attributes: ConnectAttributes(0).with_priority(2).with_disable_sq_flow_control(true),
        kato_ms: 0x0b0a_0908,
    };
    let bytes = golden::bytes::<64>(&[
        (0, &[0x7f, 0x40]),
        (4, &[0x01]),
        (39, &[0x5a]),
        (40, &[1, 2, 3, 4, 5, 6, 0b110]),
        (48, &[8, 9, 10, 11]),
    ]);
    golden::assert_same(&command.entry().encode(), &bytes);
    assert_eq!(ConnectCommand::parse(&SubmissionEntry::decode(&bytes)), command);
    assert!(ConnectAttributes(8).individual_queue_deletion());
}

#[test]
fn connect_data_has_each_field_in_its_place() {
    let (subnqn, hostnqn) = (Nqn::new("nqn.sub").unwrap(), Nqn::new("nqn.host").unwrap());
    let data = ConnectData {
        hostid: core::array::from_fn(|index| index as u8 + 1),
        cntlid: 0x1211,
        subnqn: subnqn.into(),
        hostnqn: hostnqn.into(),
    };
    let bytes = golden::bytes::<1024>(&[
        (0, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0x11, 0x12]),
        (256, b"nqn.sub"),
        (512, b"nqn.host"),
    ]);
    golden::assert_same(&data.encode(), &bytes);
    assert_eq!(ConnectData::decode(&bytes), data);
    assert_eq!(data.hostnqn.parse(), Ok(hostnqn));
    assert_eq!(ConnectData::default().subnqn, NqnField::EMPTY);
}

#[test]
fn rejected_connect_names_the_field() {
    let data = ConnectRejection::Data(ConnectData::SUBNQN);
    let completion = data.completion();
    assert_eq!(completion.dw0, 0x0001_0100);
    assert_eq!(completion.status, Status::new(1, 0x82).with_dnr(true));
    assert_eq!(ConnectRejection::parse(&completion), Some(data));

    let command = ConnectRejection::Command(ConnectCommand::SQSIZE);
    assert_eq!(command.completion().dw0, 44);
    assert_eq!((data.field(), command.field()), ("SUBNQN", "SQSIZE"));
    assert_eq!(ConnectRejection::parse(&CompletionEntry::default()), None);
}

#[test]
fn encodes_connect_response() {
    let response = ConnectResponse(0).with_cntlid(0x0201).with_authreq(0x0403);
    assert_eq!(response.0, 0x0403_0201);
}

#[test]
fn property_get_has_each_field_in_its_place() {
    let command = PropertyGetCommand { size: PropertySize::Bytes8, offset: 0x0403_0201 };
    let bytes = golden::bytes::<64>(&[
        (0, &[0x7f, 0x40]),
        (4, &[0x04]),
        (39, &[0x5a]),
        (40, &[1]),
        (44, &[1, 2, 3, 4]),
    ]);
    golden::assert_same(&command.entry().encode(), &bytes);
    assert_eq!(PropertyGetCommand::parse(&SubmissionEntry::decode(&bytes)), command);
    assert_eq!(PropertyGetCommand::completion(0x0807_0605_0403_0201).value(), 0x0807_0605_0403_0201);
}

#[test]
fn property_set_has_each_field_in_its_place() {
    let command =
        PropertySetCommand { size: PropertySize::Bytes4, offset: 0x14, value: 0x0807_0605_0403_0201 };
    let bytes = golden::bytes::<64>(&[
        (0, &[0x7f, 0x40]),
        (39, &[0x5a]),
        (44, &[0x14]),
        (48, &[1, 2, 3, 4, 5, 6, 7, 8]),
    ]);
    golden::assert_same(&command.entry().encode(), &bytes);
    assert_eq!(PropertySetCommand::parse(&SubmissionEntry::decode(&bytes)), command);
}

#[test]
fn keeps_reserved_property_size() {
    let command = PropertyGetCommand { size: PropertySize::Reserved(5), offset: 0 };
    assert_eq!(PropertyGetCommand::parse(&command.entry()), command);
}

#[test]
fn disconnect_has_a_record_format() {
    let command = DisconnectCommand { recfmt: 0x0201 };
    let bytes = golden::bytes::<64>(&[(0, &[0x7f, 0x40]), (4, &[0x08]), (39, &[0x5a]), (40, &[1, 2])]);
    golden::assert_same(&command.entry().encode(), &bytes);
    assert_eq!(DisconnectCommand::parse(&SubmissionEntry::decode(&bytes)), command);
}
