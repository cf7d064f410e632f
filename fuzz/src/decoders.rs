//! Targets for the decoders of `isolane-wire` and `isolane-verbs`, of the messages of `isolane-attach`, and of volumes that an
//! application uses through an engine.
//!
//! Invariant: no input makes a decoder panic, and each accepted value survives encoding and decoding.

use isolane_engine::stream::StreamRecord;
use isolane_engine_api::stream::StreamLayout;
use isolane_engine_api::{Object, OpenObject, Reply, Request, decode, encode, layout};
use isolane_host::Info;
use isolane_host::via_engine::wire::{
    OpenParams, Outcome, Submission, VolumeLayout, decode_range, encode_range,
};
use isolane_shm::entries::{Entry, Receiver, Sender};
use isolane_shm::{PAGE_SIZE, SharedMemory};
use isolane_verbs::wire::connection_manager::Message;
use isolane_verbs::wire::{Hello, MAX_PREFIX_BYTES, Role, Segment};
use isolane_wire::pdu::{CommonHeader, ControllerPdu, HostPdu};
use isolane_wire::{
    CompletionEntry, Direction, Framing, Nqn, SubmissionEntry, admin, digest as crc, fabrics, feature,
    identify, io, log, opcode, registers,
};

use crate::input::Input;

macro_rules! check_structures {
    ($bytes:expr, $($structure:ty),*) => { $(
        let structure = <$structure>::decode(&Input::new($bytes).array());
        assert_eq!(<$structure>::decode(&structure.encode()), structure);
        let _ = format!("{structure:?}");
    )* };
}

fn framing(input: &mut Input<'_>) -> Framing {
    let choice = input.u8();
    Framing { header_digest: choice & 1 != 0, data_digest: choice & 2 != 0, pda: (choice >> 2) % 32 }
}

pub(crate) fn control_request(bytes: &[u8]) {
    let Ok((serial, request)) = Request::decode(bytes) else { return };
    if let Request::OpenObject(OpenObject { object: Object { params, .. }, .. }) = &request {
        if let Ok(layout) = decode::<StreamLayout>(params) {
            assert_eq!(decode(&layout.object().params), Ok(layout));
        }
        let _ = OpenParams::decode(params);
    }
    assert_eq!(Request::decode(&request.encode(serial)), Ok((serial, request)));
}

pub(crate) fn control_reply(bytes: &[u8]) {
    let Ok((serial, reply)) = Reply::decode(bytes) else { return };
    assert_eq!(Reply::decode(&reply.encode(serial)), Ok((serial, reply)));
}

/// An entry of each ring, and 64 bytes of other kinds.
pub(crate) fn engine_entry(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let entry: Entry = std::array::from_fn(|_| input.u64());
    if let Some(submission) = Submission::decode(&entry) {
        assert_eq!(Submission::decode(&submission.encode()), Some(submission));
    }
    if let Some(outcome) = Outcome::decode(&entry) {
        let again = Outcome::decode(&outcome.encode()).expect("it was decoded before");
        assert_eq!(
            (again.tag, format!("{:?}", again.result)),
            (outcome.tag, format!("{:?}", outcome.result))
        );
    }
    if let Some(id) = layout::doorbell::object(&entry) {
        assert_eq!(layout::doorbell::entry(id)[0], entry[0]);
    }
    let range = decode_range(&Input::new(bytes).array());
    assert_eq!(decode_range(&encode_range(&range)), range);
    let Ok(record) = decode::<StreamRecord>(bytes) else { return };
    assert_eq!(decode(&encode(&record)), Ok(record));
}

/// Request to open a volume. Rings at its offsets are inside of the memory, or are rejected.
pub(crate) fn volume_details(bytes: &[u8]) {
    let Ok(details) = OpenParams::decode(bytes) else { return };
    let Ok(object) = details.object() else { return };
    let again = OpenParams::decode(&object.params).expect("it was encoded just now");
    assert_eq!(format!("{again:?}"), format!("{details:?}"));
    assert_eq!(again.client_key(), details.client_key());
    let memory = SharedMemory::create("isolane-fuzz", 4 * PAGE_SIZE).expect("there is memory");
    let VolumeLayout { offset, flag, submissions, outcomes } = details.layout;
    let is_inside = |bytes: u64| offset.checked_add(bytes).is_some_and(|end| end <= memory.bytes() as u64);
    if let Some(place) = details.layout.submissions()
        && Receiver::open(&memory, place).is_ok()
    {
        assert!(is_inside(u64::from(submissions) * 64));
    }
    if let Some(place) = details.layout.outcomes()
        && Sender::open(&memory, place).is_ok()
    {
        assert!(is_inside(u64::from(outcomes) * 64 + u64::from(submissions) * 64));
    }
    for flag in details.layout.need_wakeup().into_iter().chain([flag]) {
        let _ = memory.flag(flag);
    }
}

pub(crate) fn volume_answer(bytes: &[u8]) {
    let Ok(info) = decode::<Info>(bytes) else { return };
    let again = decode::<Info>(&encode(&info)).expect("it was encoded just now");
    assert_eq!(format!("{again:?}"), format!("{info:?}"));
}

pub(crate) fn host_pdu(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let framing = framing(&mut input);
    let bytes = input.remaining();
    let Ok(pdu) = HostPdu::decode(bytes, &framing) else { return };
    let again = encode_host(&pdu, &framing);
    assert_eq!(HostPdu::decode(&again, &framing), Ok(pdu));
    check_common_header(bytes, Direction::HostToController, &framing);
}

pub(crate) fn encode_host(pdu: &HostPdu, framing: &Framing) -> Vec<u8> {
    match pdu {
        HostPdu::IcReq(pdu) => pdu.encode().to_vec(),
        HostPdu::TermReq(pdu) => pdu.encode().to_vec(),
        HostPdu::CapsuleCmd(pdu) => pdu.encode(framing).to_vec(),
        HostPdu::H2cData(pdu) => pdu.encode(framing).to_vec(),
    }
}

pub(crate) fn controller_pdu(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let framing = framing(&mut input);
    let bytes = input.remaining();
    let Ok(pdu) = ControllerPdu::decode(bytes, &framing) else { return };
    let again = encode_controller(&pdu, &framing);
    assert_eq!(ControllerPdu::decode(&again, &framing), Ok(pdu));
    check_common_header(bytes, Direction::ControllerToHost, &framing);
}

pub(crate) fn encode_controller(pdu: &ControllerPdu, framing: &Framing) -> Vec<u8> {
    match pdu {
        ControllerPdu::IcResp(pdu) => pdu.encode().to_vec(),
        ControllerPdu::TermReq(pdu) => pdu.encode().to_vec(),
        ControllerPdu::CapsuleResp(pdu) => pdu.encode(framing).to_vec(),
        ControllerPdu::C2hData(pdu) => pdu.encode(framing).to_vec(),
        ControllerPdu::R2t(pdu) => pdu.encode(framing).to_vec(),
    }
}

/// Of an accepted PDU, header, pad, data and digest have to add up to its length.
fn check_common_header(bytes: &[u8], from: Direction, framing: &Framing) {
    let header =
        bytes.first_chunk().map(CommonHeader::decode).expect("it was long enough").expect("it decoded");
    header.check(from, framing).expect("it was checked");
    let has_data = header.has_data(framing);
    let digest_len = if has_data { framing.data_digest_len() as u64 } else { 0 };
    let sum = header.prefix_len(framing) as u64 + u64::from(header.data_len(framing)) + digest_len;
    assert!(sum == u64::from(header.plen) || !header.pdu_type.has_digests());
    assert_eq!(has_data, header.data_len(framing) > 0);
    assert!(header.prefix_len(framing) <= 255);
}

pub(crate) fn command(bytes: &[u8]) {
    let entry = SubmissionEntry::decode(&Input::new(bytes).array());
    assert_eq!(SubmissionEntry::decode(&entry.encode()), entry);
    macro_rules! check {
        ($($command:ty),*) => { $(
            let command = <$command>::parse(&entry);
            assert_eq!(<$command>::parse(&command.entry()), command);
            let _ = format!("{command:?}");
        )* };
    }
    check!(fabrics::ConnectCommand, fabrics::DisconnectCommand);
    check!(fabrics::PropertyGetCommand, fabrics::PropertySetCommand);
    check!(io::ReadCommand, io::WriteCommand, io::WriteZeroesCommand, io::DatasetManagementCommand);
    check!(admin::IdentifyCommand, admin::GetLogPageCommand, admin::AbortCommand);
    check!(admin::GetFeaturesCommand, admin::SetFeaturesCommand);
    let _ = format!("{entry:?} {:?}", opcode::DataDirection::of(entry.opcode, entry.fctype()));
    let _ = format!("{:?} {:?}", registers::Cc(entry.cdw10), registers::Cap(entry.cdw10_11()));
    let _ = format!("{:?}", feature::AsyncEventConfiguration(entry.cdw11));
    check_structures!(bytes, feature::HostBehaviorSupport);
}

pub(crate) fn completion(bytes: &[u8]) {
    let entry = CompletionEntry::decode(&Input::new(bytes).array());
    assert_eq!(CompletionEntry::decode(&entry.encode()), entry);
    let _ = format!("{entry:?} {}", entry.status);
    let _ = fabrics::ConnectRejection::parse(&entry).map(|rejection| rejection.field());
    let _ = admin::AsyncEvent(entry.dw0).as_notice();
}

pub(crate) fn connect_data(bytes: &[u8]) {
    let Some(data) = fabrics::ConnectData::decode_prefix(bytes) else { return };
    assert_eq!(fabrics::ConnectData::decode(&data.encode()), data);
    let _ = format!("{data:?}");
}

pub(crate) fn nqn(bytes: &[u8]) {
    if let Ok(nqn) = Nqn::decode(&Input::new(bytes).array()) {
        assert_eq!(Nqn::decode(&nqn.encode()), Ok(nqn));
        assert_eq!(Nqn::new(nqn.as_str()), Ok(nqn));
        assert!((1..=Nqn::MAX_LEN).contains(&nqn.as_str().len()));
        let _ = nqn.has_standard_format();
    }
    let _ = String::from_utf8_lossy(bytes).parse::<Nqn>();
}

pub(crate) fn identify(bytes: &[u8]) {
    check_structures!(bytes, identify::Controller, identify::Namespace, identify::IndependentNamespace);
    check_structures!(bytes, identify::NvmController, identify::NvmNamespace, identify::PowerState);
    let controller = identify::Controller::decode(&Input::new(bytes).array());
    let _ = (controller.in_capsule_len(), controller.transfer_len_max(controller.sqes % 16));
    let _ = identify::Namespace::decode(&Input::new(bytes).array()).block_len();
    let namespaces = identify::NamespaceList::decode(&Input::new(bytes).array());
    assert_eq!(identify::NamespaceList::decode(&namespaces.encode()), namespaces);
}

pub(crate) fn descriptors(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(identify::DATA_LEN)];
    let list: Vec<_> = identify::DescriptorList::decode(bytes).collect();
    assert!(identify::DescriptorList::decode(&identify::DescriptorList::encode(&list)).eq(list));
}

pub(crate) fn log_page(bytes: &[u8]) {
    check_structures!(
        bytes,
        log::ErrorEntry,
        log::Smart,
        log::FirmwareSlots,
        log::CommandEffectsLog,
        log::GenerationLog
    );
    check_structures!(bytes, log::DiscoveryHeader, log::DiscoveryEntry);
    let _ = io::DsmRange::decode_all(bytes).count();
}

pub(crate) fn digest(bytes: &[u8]) {
    let cut = bytes.first().map_or(0, |&byte| usize::from(byte) % bytes.len());
    let (front, back) = bytes.split_at(cut);
    let mut digest = crc::Digest::default();
    digest.update(front);
    digest.update(back);
    assert_eq!(digest.finish(), crc::crc32c(bytes));
}

pub(crate) fn verbs_hello(bytes: &[u8]) {
    let bytes = Input::new(bytes).array();
    for role in [Role::Connects, Role::Accepts] {
        if let Ok(hello) = Hello::decode_from(&bytes, role) {
            assert!(hello.lane < hello.lanes && hello.lanes <= Hello::MAX_LANES);
            assert_eq!(Hello::decode_from(&hello.encode(), role), Ok(hello));
        }
    }
}

pub(crate) fn verbs_segment(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let limit = input.u64() as u32;
    let bytes = input.remaining();
    let Some(Ok(len)) = bytes.first().map(|code| Segment::prefix_len(*code)) else { return };
    let Some(prefix) = bytes.get(..len) else { return };
    let Ok(segment) = Segment::decode(prefix, limit) else { return };
    assert!(segment.length <= limit && segment.offset + segment.length <= segment.size.max(segment.offset));
    let mut again = [0; MAX_PREFIX_BYTES];
    assert_eq!(segment.encode_to(&mut again), len);
    assert_eq!(Segment::decode(&again[..len], limit), Ok(segment));
}

pub(crate) fn verbs_datagram(bytes: &[u8]) {
    let Ok((segment, payload)) = Segment::decode_datagram(bytes) else { return };
    let mut again = [0; MAX_PREFIX_BYTES];
    let len = segment.encode_to(&mut again);
    let again = [&again[..len], payload].concat();
    assert_eq!(Segment::decode_datagram(&again), Ok((segment, payload)));
}

/// A stream of messages, of which each is decoded from any first part of it in the same way.
pub(crate) fn verbs_connection_message(bytes: &[u8]) {
    let mut remaining = bytes;
    while let Ok(Some((message, len))) = Message::decode(remaining) {
        assert_eq!(Message::decode(&remaining[..len - 1]), Ok(None));
        assert_eq!(Message::decode(&message.encode()), Ok(Some((message, len))));
        remaining = &remaining[len..];
    }
}
