//! Inputs to start from: one of every PDU, command and structure, and whole dialogues.

use std::time::Duration;

use isolane_engine_api::layout::{DoorbellLayout, NotificationLayout};
use isolane_engine_api::stream::StreamLayout;
use isolane_engine_api::{
    CloseMode, Hello, OpenDoorbells, OpenNotificationQueue, OpenObject, Reply, Request, encode,
};
use isolane_host::via_engine::wire::{OpenParams, Operation, Outcome, Submission, VolumeLayout};
use isolane_host::{
    BlockRange, ControllerInfo, Era, Generation, Info, LaneClass, LaneCounts, NamespaceInfo, Negotiated,
    Options, RequestError, RestartLoss, Version,
};
use isolane_verbs::wire::connection_manager::{Kind, Message};
use isolane_verbs::wire::{Capabilities, Hello as LaneHello, Opcode, Role, Segment};
use isolane_wire::pdu::{
    C2hData, CapsuleCmd, CapsuleResp, ControllerPdu, Digests, H2cData, HeaderFault, HostPdu, IcReq, IcResp,
    R2t, TermReq,
};
use isolane_wire::{
    Ascii, CompletionEntry, Direction, Framing, Nqn, Sgl, Status, SubmissionEntry, admin, digest::crc32c,
    fabrics, identify as identities, io, log,
};

use crate::decoders::{encode_controller, encode_host};

const VOLUME: &str = "nvme+tcp://127.0.0.1:4420";

const PLAIN: Framing = Framing { header_digest: false, data_digest: false, pda: 0 };
const FULL: Framing = Framing { header_digest: true, data_digest: true, pda: 3 };

pub(crate) fn host_pdus() -> Vec<Vec<u8>> {
    let read = io::ReadCommand { nsid: 1, slba: 0x0102_0304, nlb: 7, ..Default::default() }.entry();
    let pdus = [
        HostPdu::IcReq(IcReq { hpda: 3, digests: Digests(3), maxr2t: 2 }),
        HostPdu::TermReq(TermReq::new(Direction::HostToController, HeaderFault::invalid(4), &[7; 24])),
        HostPdu::CapsuleCmd(CapsuleCmd { entry: read, data_len: 0 }),
        HostPdu::CapsuleCmd(CapsuleCmd { entry: read, data_len: 4096 }),
        HostPdu::H2cData(H2cData { cccid: 1, ttag: 2, datao: 4096, datal: 8192, last: true }),
    ];
    framed(|framing| pdus.iter().map(|pdu| encode_host(pdu, framing)).collect())
}

pub(crate) fn controller_pdus() -> Vec<Vec<u8>> {
    let pdus = [
        ControllerPdu::IcResp(IcResp { cpda: 3, digests: Digests(3), maxh2cdata: 1 << 20 }),
        ControllerPdu::TermReq(TermReq::new(Direction::ControllerToHost, HeaderFault::sequence(), &[7; 128])),
        ControllerPdu::CapsuleResp(CapsuleResp { entry: CompletionEntry { cid: 3, ..Default::default() } }),
        ControllerPdu::C2hData(C2hData { cccid: 3, datao: 0, datal: 4096, last: true, success: true }),
        ControllerPdu::R2t(R2t { cccid: 3, ttag: 4, r2to: 0, r2tl: 1 << 20 }),
    ];
    framed(|framing| pdus.iter().map(|pdu| encode_controller(pdu, framing)).collect())
}

/// Each header, prefixed by the byte that selects its framing.
fn framed(encode: impl Fn(&Framing) -> Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let choices = [(PLAIN, 0), (FULL, 3 | 3 << 2)];
    let behind = |(framing, choice): (Framing, u8)| {
        encode(&framing).into_iter().map(move |header| [vec![choice], header].concat())
    };
    choices.into_iter().flat_map(behind).collect()
}

pub(crate) fn commands() -> Vec<Vec<u8>> {
    entries().iter().map(|entry| entry.encode().to_vec()).collect()
}

fn entries() -> Vec<SubmissionEntry> {
    vec![
        io::ReadCommand { nsid: 1, slba: 8, nlb: 7, ..Default::default() }.entry(),
        io::WriteCommand { nsid: 1, slba: 8, nlb: 7, fua: true, ..Default::default() }.entry(),
        io::WriteZeroesCommand { nsid: 1, slba: 8, nlb: 0xffff, deallocate: true, ..Default::default() }
            .entry(),
        io::DatasetManagementCommand { nsid: 1, nr: 1, deallocate: true, ..Default::default() }.entry(),
        io::flush(1),
        admin::IdentifyCommand::new(admin::Cns::Controller, 0).entry(),
        admin::GetLogPageCommand::new(admin::LogPage::Discovery, 0, 4096).entry(),
        admin::GetFeaturesCommand { fid: 7, ..Default::default() }.entry(),
        admin::SetFeaturesCommand { fid: 7, cdw11: 0x0003_0003, ..Default::default() }.entry(),
        admin::AbortCommand { sqid: 0, cid: 1 }.entry(),
        admin::async_event_request(),
        admin::keep_alive(),
        fabrics::ConnectCommand { sqsize: 31, kato_ms: 30_000, ..Default::default() }.entry(),
        fabrics::PropertyGetCommand { size: fabrics::PropertySize::Bytes8, offset: 0 }.entry(),
        fabrics::PropertySetCommand { size: fabrics::PropertySize::Bytes4, offset: 0x14, value: 1 }.entry(),
        fabrics::DisconnectCommand::default().entry(),
    ]
}

pub(crate) fn completions() -> Vec<Vec<u8>> {
    let rejection = fabrics::ConnectRejection::Data(fabrics::ConnectData::SUBNQN).completion();
    let failure = CompletionEntry { cid: 1, status: Status::LBA_OUT_OF_RANGE, ..Default::default() };
    [rejection, failure].iter().map(|entry| entry.encode().to_vec()).collect()
}

pub(crate) fn connect_data() -> Vec<Vec<u8>> {
    let name = |text| Nqn::new(text).unwrap_or(Nqn::discovery()).into();
    let (subnqn, hostnqn) = (name("nqn.2014-08.org.example:fuzz"), name("nqn.2014-08.org.example:host"));
    vec![fabrics::ConnectData { hostid: [1; 16], cntlid: 0xffff, subnqn, hostnqn }.encode().to_vec()]
}

pub(crate) fn control_requests() -> Vec<Vec<u8>> {
    let place = StreamLayout { block: 4096, rx: 8192, rx_capacity: 4096, tx: 16384, tx_capacity: 4096 };
    let layout = VolumeLayout { offset: 4096, flag: 2048, submissions: 32, outcomes: 64 };
    let params = OpenParams { uri: VOLUME.to_owned(), layout, options: Options::default() };
    let volume = params.object().expect("it has room");
    let open = |object| Request::OpenObject(OpenObject { id: 7, core: None, queue: Some(3), object });
    let port = OpenDoorbells { core: 1, layout: DoorbellLayout { offset: 4096, entries: 64 } };
    let queue = OpenNotificationQueue {
        queue: 3,
        layout: NotificationLayout { offset: 8192, cores: 2, entries: 64 },
    };
    let requests = [
        Request::Hello(Hello { version: isolane_engine_api::VERSION }),
        Request::OpenDoorbells(port),
        Request::OpenNotificationQueue(queue),
        open(place.object()),
        open(volume),
        Request::CloseObject { id: 7, how: CloseMode::Release },
        Request::CloseObject { id: 7, how: CloseMode::Close },
        Request::Relieve,
    ];
    requests.iter().map(|request| request.encode(5)).collect()
}

pub(crate) fn control_replies() -> Vec<Vec<u8>> {
    let limits = isolane_engine_api::SessionLimits::default();
    let welcome = isolane_engine_api::Welcome { version: 1, session: 2, epoch: 3, cores: vec![0, 1], limits };
    let replies = [
        Reply::Welcome(welcome),
        Reply::Refused("no room".into()),
        Reply::Ack,
        Reply::Opened { core: 1, answer: vec![1, 2, 3] },
        Reply::ObjectClosed { id: 7 },
        Reply::EngineRestarted { epoch: 4 },
    ];
    replies.iter().map(|reply| reply.encode(5)).collect()
}

pub(crate) fn nqns() -> Vec<Vec<u8>> {
    vec![Nqn::discovery().encode().to_vec(), vec![b'n'; 223]]
}

pub(crate) fn identify() -> Vec<Vec<u8>> {
    let controller = identities::Controller { ioccsz: 1028, mdts: 8, nn: 3, ..Default::default() };
    let mut namespace = identities::Namespace { nsze: 1 << 21, ncap: 1 << 21, ..Default::default() };
    namespace.lbaf[0] = identities::LbaFormat(0).with_lbads(9);
    let namespaces = identities::NamespaceList::new([1, 7]);
    [controller.encode(), namespace.encode(), namespaces.encode()].map(Vec::from).to_vec()
}

pub(crate) fn descriptors() -> Vec<Vec<u8>> {
    use identities::Descriptor::{CommandSet, Eui64, Nguid, Uuid};
    let list = [Uuid([1; 16]), Nguid([2; 16]), Eui64([3; 8]), CommandSet(0)];
    vec![identities::DescriptorList::encode(&list)[..64].to_vec()]
}

pub(crate) fn log_pages() -> Vec<Vec<u8>> {
    let header = log::DiscoveryHeader { genctr: 1, numrec: 1, recfmt: 0 };
    let entry = log::DiscoveryEntry {
        trtype: 3,
        adrfam: 1,
        trsvcid: Ascii::lossy("4420"),
        traddr: Ascii::lossy("127.0.0.1"),
        ..Default::default()
    };
    let generation = log::GenerationLog { signature: log::SIGNATURE, version: 1, ..Default::default() };
    let pages = [log::Smart::default().encode().to_vec(), generation.encode().to_vec()];
    [header.encode().to_vec(), entry.encode().to_vec()].into_iter().chain(pages).collect()
}

/// Geometry, length of data, command, ranges.
pub(crate) fn io_commands() -> Vec<Vec<u8>> {
    let range = io::DsmRange { attributes: 0, blocks: 8, slba: 8 }.encode();
    let input = |entry: &SubmissionEntry| {
        let blocks = 1_u64 << 20;
        let [shift, flags] = [[0_u8], [0_u8]];
        let data_len = 4096_u32.to_le_bytes();
        let count = 2_u16.to_le_bytes();
        [&shift[..], &blocks.to_le_bytes(), &flags, &data_len, &entry.encode(), &count, &range, &range]
            .concat()
    };
    entries().iter().map(input).collect()
}

/// Connect, enable, ask for everything, disconnect: see `machines` for what the bytes mean.
pub(crate) fn port_dialogues() -> Vec<Vec<u8>> {
    let connect = [0, 1, 100];
    let enable = [8, 0, 1, 0, 0, 0, 0, 0];
    let discovery = [0, 8 + 2, 0];
    let queue = [2, 1, 1, 0];
    let identify: Vec<u8> = (0..18).flat_map(|cns| [5, 0, 1, cns, 1, 0, 0]).collect();
    let pages: Vec<u8> = (0..13).flat_map(|page| [6, 0, 1, page, 0, 0, 0, 5]).collect();
    let features: Vec<u8> = (0..17).flat_map(|fid| [7, 0, 1, 0, fid, 0, 0, 0, 0, 0, 0]).collect();
    let events = [10, 0, 1, 0, 1, 0, 10, 0, 1, 0, 2, 0];
    let shutdown = [8, 0, 1, 0, 0, 0, 0, 4, 14, 0, 11, 0xff, 0x7f];
    let end = [12, 0, 13, 1, 12, 0, 13, 1];
    vec![
        [&connect[..], &enable, &queue, &identify, &pages, &features, &events, &shutdown, &end].concat(),
        [&discovery[..], &enable, &pages, &events, &end].concat(),
        [&connect[..], &enable, &connect, &[0, 2, 5], &events, &[11, 0xff, 0xff], &end].concat(),
    ]
}

/// A seed, and what a host sends from ICReq on.
pub(crate) fn host_streams() -> Vec<Vec<u8>> {
    [(PLAIN, 0), (Framing { pda: 0, ..FULL }, 3)]
        .map(|(framing, digests)| host_stream(&framing, digests))
        .to_vec()
}

fn host_stream(framing: &Framing, digests: u8) -> Vec<u8> {
    let mut bytes = 77_u64.to_le_bytes().to_vec();
    bytes.extend_from_slice(&IcReq { hpda: 0, digests: Digests(digests), maxr2t: 0 }.encode());
    let connect = fabrics::ConnectCommand { qid: 1, sqsize: 31, ..Default::default() }.entry();
    for (cid, entry, len) in
        [(0, connect, 1024), (1, SubmissionEntry::new(1, 1), 512), (2, SubmissionEntry::new(1, 1), 4096)]
    {
        let entry = SubmissionEntry { cid, sgl: Sgl::InCapsule { offset: 0, len }, ..entry };
        bytes.extend_from_slice(&CapsuleCmd { entry, data_len: len }.encode(framing));
        append_data(&mut bytes, len, framing);
    }
    for (cid, opcode, len) in [(3, 2, 4096), (4, 1, 8192), (6, 2, 512)] {
        let entry = SubmissionEntry { cid, sgl: Sgl::Transport { len }, ..SubmissionEntry::new(opcode, 1) };
        bytes.extend_from_slice(&CapsuleCmd { entry, data_len: 0 }.encode(framing));
    }
    bytes
}

/// CID of the first command of a host's connection; the next ones are consecutive.
const FIRST_CID: u16 = 0x1000;

/// A seed, and what a target sends from ICResp on: answers to Read, Write, Flush, Read and Read.
pub(crate) fn controller_streams() -> Vec<Vec<u8>> {
    [(PLAIN, 0), (Framing { pda: 0, ..FULL }, 3)]
        .map(|(framing, digests)| controller_stream(&framing, digests))
        .to_vec()
}

fn controller_stream(framing: &Framing, digests: u8) -> Vec<u8> {
    let mut bytes = u64::from(digests).to_le_bytes().to_vec();
    bytes.extend_from_slice(&IcResp { cpda: 0, digests: Digests(digests), maxh2cdata: 1 << 20 }.encode());
    for (cccid, datal) in [(0, 512), (3, 4096), (4, 9000)] {
        let success = cccid == 0;
        let pdu = C2hData { cccid: FIRST_CID + cccid, datao: 0, datal, last: true, success };
        bytes.extend_from_slice(&pdu.encode(framing));
        append_data(&mut bytes, datal, framing);
    }
    for cid in 1..5 {
        let entry = CompletionEntry { cid: FIRST_CID + cid, ..Default::default() };
        bytes.extend_from_slice(&CapsuleResp { entry }.encode(framing));
    }
    bytes
}

fn append_data(bytes: &mut Vec<u8>, len: u32, framing: &Framing) {
    let start = bytes.len();
    bytes.extend((0..len).map(|index| index as u8));
    if framing.data_digest {
        let digest = crc32c(&bytes[start..]);
        bytes.extend(digest.to_le_bytes());
    }
}

/// Negotiation and steps of a host.
pub(crate) fn target_dialogues() -> Vec<Vec<u8>> {
    let reads = [0, 1, 6, 1, 2, 4, 0, 3, 12];
    let writes = [2, 4, 5, 4, 6, 9, 4, 8, 13, 5, 10, 12];
    let answers: Vec<u8> = (0..40).flat_map(|step| [6 + step % 3, u8::from(step % 4 != 0)]).collect();
    let broken = [9, 0, 1, 2, 11, 1, 0, 16, 4, 0];
    let dialogue =
        |start: [u8; 4]| [&start[..], &reads, &writes, &answers, &reads, &writes, &broken, &answers].concat();
    NEGOTIATIONS.map(dialogue).to_vec()
}

/// An application and its peer, an engine that polls, sleeps, and is killed, and a corruptor of the memory that
/// they share: each index is set to the value of a few others, or to another value, before the next poll.
pub(crate) fn engine_dialogues() -> Vec<Vec<u8>> {
    let step = |choice: u8, len: u16| [&[choice], len.to_le_bytes().as_slice()].concat();
    let steps = |choices: &[u8]| {
        choices.iter().zip(1u16..).flat_map(|(at, len)| step(*at, len * 331)).collect::<Vec<u8>>()
    };
    let moved = steps(&[15, 6, 14, 13, 21, 7, 16, 8, 10, 15, 6, 12, 9, 17, 6, 20, 16, 11, 19]);
    let closed = steps(&[18, 6, 22, 7, 10, 8]);
    let mut dialogues = vec![[&moved[..], &closed].concat(), [&moved[..], &step(23, 7)].concat()];
    for (line, of) in (0..16).flat_map(|line| [0, 4, 26].map(|of| (line, of))) {
        for how in 0..6 {
            let corruption = [&step(0, 0), &[2 * line, of, how, line, 0, 0, 0, 0, 0, 0, 0][..]].concat();
            let [before, after, next] =
                [&[13, 15, 13, 6][..], &[6, 10, 16, 7, 6], &[12, 6, 10, 16, 7, 6]].map(steps);
            dialogues.push([&before[..], &corruption, &after].concat());
            dialogues.push([&before[..], &corruption, &next, &closed].concat());
        }
    }
    dialogues
}

/// Entries of a volume's rings and of a port, and a range of a deallocation.
pub(crate) fn engine_entries() -> Vec<Vec<u8>> {
    let bytes = |entry: [u64; 8]| entry.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let operations = [
        Operation::Read,
        Operation::Write { fua: true },
        Operation::Flush,
        Operation::WriteZeroes { fua: false, deallocate: true },
        Operation::Deallocate,
    ];
    let submissions = operations.map(|operation| {
        let range = BlockRange { lba: 8, blocks: 8 };
        Submission {
            tag: 7,
            operation,
            class: LaneClass::Poll,
            lane: 1,
            range,
            offset: 8192,
            len: 4096,
            pushed: 1,
        }
        .encode()
    });
    let errors = [
        RequestError::Status(Status::INVALID_FIELD),
        RequestError::OutOfRange { lba: 1, blocks: 2, capacity: 3 },
        RequestError::Lane { lane: 3, lanes: 1 },
        RequestError::FateUnknown,
    ];
    let outcomes = errors
        .into_iter()
        .map(Err)
        .chain([Ok(())])
        .map(|result| Outcome { tag: 5, result, era: Era::default() }.encode());
    let doorbell = isolane_engine_api::layout::doorbell::entry(9);
    submissions.into_iter().chain(outcomes).chain([doorbell]).map(bytes).collect()
}

/// Messages that open volumes.
pub(crate) fn volume_details() -> Vec<Vec<u8>> {
    let host_nqn = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001";
    let plain = Options {
        // Not the machine's own, so that the same seed gives the same inputs everywhere.
        host_nqn: host_nqn.parse().expect("it is one"),
        host_id: Default::default(),
        ..Options::default()
    };
    let socket = "priority=5,tos=0x68,congestion=cubic".parse().expect("they are options");
    let chosen = Options { lanes: 3, read_lanes: 2, depth: 9, data_digest: true, socket, ..plain.clone() };
    let place = VolumeLayout { offset: 4096, flag: 2048, submissions: 32, outcomes: 64 };
    let params = |options| OpenParams { uri: VOLUME.to_owned(), layout: place, options };
    let of = |options| params(options).object().expect("it has room").params;
    vec![of(plain), of(chosen)]
}

/// Descriptions of an open volume.
pub(crate) fn volume_answers() -> Vec<Vec<u8>> {
    let controller = ControllerInfo {
        cntlid: 1,
        serial: "serial".into(),
        model: "model".into(),
        firmware: "firmware".into(),
        version: Version::V1_4,
        max_transfer_bytes: Some(1 << 20),
        max_queue_entries: 128,
        has_volatile_cache: true,
        has_write_zeroes: true,
        has_deallocate: true,
        traffic_based_keep_alive: true,
        command_quiesce_time: Duration::from_millis(100),
    };
    let namespace = NamespaceInfo {
        nsid: 1,
        block_bytes: 4096,
        blocks: 1 << 20,
        metadata_bytes: 0,
        uuid: Some(Default::default()),
        nguid: Some([7; 16]),
        eui64: Some([7; 8]),
        read_only: true,
        generation: Some(Generation { id: Default::default(), loses: RestartLoss::Cache }),
    };
    let negotiated = Negotiated {
        header_digest: true,
        data_digest: false,
        data_alignment_bytes: 4,
        max_h2c_data_bytes: 1 << 20,
        max_in_capsule_bytes: 8192,
        flow_control_disabled: true,
        keep_alive: Duration::from_secs(15),
        lanes: LaneCounts { default: 1, read: 2, poll: 0 },
        depth: 64,
        max_transfer_bytes: 1 << 20,
    };
    let nqn = "nqn.2024-01.org.example:fuzz".parse().expect("it is one");
    let address = ([127, 0, 0, 1], 4420).into();
    let info = Info { address, nqn, controller, namespaces: vec![namespace], negotiated };
    let bare = Info { namespaces: Vec::new(), ..info.clone() };
    vec![encode(&info), encode(&bare)]
}

/// Both sides in turn, and a corruptor of the memory that they share.
pub(crate) fn ring_dialogues() -> Vec<Vec<u8>> {
    let step = |len: u16, choice: u8| [len.to_le_bytes().as_slice(), &[choice]].concat();
    let both: Vec<u8> = (0..24u16).flat_map(|at| step(at * 211, 2 + at as u8 % 10)).collect();
    let corruptions: Vec<u8> =
        (0..8).flat_map(|at| [step(0, at % 2), vec![at, at % 3, at, 0, 0, 0, 0, 0, 0, 0]].concat()).collect();
    vec![
        both.clone(),
        [both.clone(), corruptions.clone(), both.clone()].concat(),
        [corruptions, both].concat(),
    ]
}

/// Negotiation, what a host submits, and steps of a target.
pub(crate) fn host_dialogues() -> Vec<Vec<u8>> {
    let submissions = [0, 6, 3, 5, 1, 4, 4, 9, 2, 12, 5, 13];
    let answers: Vec<u8> = (0..40).flat_map(|step| [6 + step % 3, step % 5, step % 2, step]).collect();
    let broken = [9, 0, 0, 11, 0, 0, 0, 16, 4, 0];
    let dialogue =
        |start: [u8; 4]| [&start[..], &submissions, &answers, &submissions, &broken, &answers].concat();
    NEGOTIATIONS.map(dialogue).to_vec()
}

/// Choices (digests, limits, cuts), HPDA, CPDA, MAXR2T.
const NEGOTIATIONS: [[u8; 4]; 5] =
    [[0, 0, 0, 0], [3, 0, 0, 0], [3 + 16, 3, 7, 2], [7 + 8, 31, 31, 5], [2 + 16, 0, 1, 1]];

/// Requests of a program and segments of its peer, as decisions.
pub(crate) fn verbs_dialogues() -> Vec<Vec<u8>> {
    let receive = [0];
    let send = [1, 0, 40, 0];
    let transmit = [2, 0, 0xff, 0xff];
    // Opcode, size, place, flags, credits, index of the receive, RNR count, acknowledged, and unchanged bytes on the first
    // lane in pieces of 200.
    let segment = |opcode: u8, size: u8| [7, opcode, size, 8, 0, 2, 2, 0, 0, 0, 1, 1, 0, 200];
    // The first lane ends and opens again; the peer has received nothing.
    let reopen = [5, 0, 6, 0, 0, 0, 1, 0, 0];
    let opcodes = [4, 5, 10, 11, 12, 17, 19, 20];
    let exchange = |opcode| {
        [&receive[..], &send, &segment(opcode, 32), &transmit, &reopen, &transmit, &segment(opcode, 8)]
            .concat()
    };
    opcodes.into_iter().map(exchange).collect()
}

/// Hellos of both ends.
pub(crate) fn verbs_hellos() -> Vec<Vec<u8>> {
    let hello = |role: Role| {
        let hello = LaneHello {
            magic: LaneHello::MAGIC,
            version: LaneHello::VERSION,
            role: role.code(),
            lane: 1,
            capabilities: Capabilities(0).with_shared_receives(true),
            lanes: 2,
            responder_resources: 16,
            epoch: 3,
            max_segment_bytes: 1 << 20,
            source_gid: [1; 16],
            destination_gid: [2; 16],
            source_qpn: 0x01_0203,
            destination_qpn: 0x04_0506,
            first_message: 7,
            received_epoch: 2,
            nonce: [8; 16],
            received_segments: 9,
            received_bytes: 10,
            authentication: [0; 32],
        };
        hello.encode().to_vec()
    };
    [Role::Connects, Role::Accepts].map(hello).to_vec()
}

/// A segment of each opcode, after the limit of payload bytes.
pub(crate) fn verbs_segments() -> Vec<Vec<u8>> {
    let valid = |opcode: u8| {
        let len = Segment::prefix_len(opcode).ok()?;
        let mut bytes = [&u64::from(u16::MAX).to_le_bytes()[..], &vec![0; len]].concat();
        bytes[8] = opcode;
        Some(bytes)
    };
    (0..=u8::MAX).filter_map(valid).collect()
}

/// Datagrams without and with immediate data, and with payload.
pub(crate) fn verbs_datagrams() -> Vec<Vec<u8>> {
    let datagram = |opcode: u8| {
        let len = Segment::prefix_len(opcode).expect("it is an opcode");
        let mut bytes = vec![0; len + 40];
        (bytes[0], bytes[8], bytes[16]) = (opcode, 40, 40);
        bytes
    };
    [Opcode::Datagram, Opcode::DatagramImmediate].map(|opcode| datagram(opcode.code())).to_vec()
}

/// A message of each kind, and all of them in one stream.
pub(crate) fn verbs_connection_messages() -> Vec<Vec<u8>> {
    let kinds = [Kind::Request, Kind::Reply, Kind::Ready, Kind::Reject, Kind::Disconnect, Kind::Disconnected];
    let message = |kind| Message { number: 7, private_data: vec![9; 56], ..Message::new(kind) }.encode();
    let messages = kinds.map(message);
    [&messages[..], &[messages.concat()]].concat()
}
