use isolane_memory::Pool;
use isolane_volume::VolumeInfo;
use proptest::prelude::*;

use super::*;
use crate::export::MAX_PAYLOAD_BYTES;
use crate::wire::{
    CommandCode as C, OptionCode as O, ReplyCode as R, command_flag, export_flag, information,
};

const OVERFLOW: usize = 4096;

/// A client in memory: sends bytes in pieces, stores writes in a disk, and collects the output.
struct Peer {
    conn: Connection,
    pool: Pool,
    disk: Vec<u8>,
    commands: Vec<String>,
    output: Vec<u8>,
    is_ended: bool,
    error: Option<ProtocolError>,
}

fn export() -> Export {
    let info = VolumeInfo {
        block_size: 512,
        blocks: 128 << 20 >> 9,
        read_only: false,
        volatile_cache: true,
        deallocate: true,
        zeroes_after_deallocate: true,
    };
    Export { name: "disk".into(), description: "mem:128M".into(), info }
}

impl Peer {
    fn new(export: Export) -> Peer {
        let disk = vec![0; 1 << 20];
        let conn = Connection::new(Arc::new(export));
        let (commands, output) = (Vec::new(), Vec::new());
        let mut peer =
            Peer { conn, pool: Pool::new(16 << 10), disk, commands, output, is_ended: false, error: None };
        peer.flush();
        peer
    }

    /// A peer after the flags, without the greeting.
    fn greeted(export: Export) -> Peer {
        let mut peer = Peer::new(export);
        assert_eq!(std::mem::take(&mut peer.output), b"NBDMAGICIHAVEOPT\0\x03");
        peer.send(&3_u32.to_be_bytes(), 64);
        peer
    }

    /// A peer in the transmission phase.
    fn connected(export: Export, has_chunks: bool) -> Peer {
        let mut peer = Peer::greeted(export);
        if has_chunks {
            peer.option(O::StructuredReply, b"");
            peer.option(O::SetMetaContext, &contexts(b"", &[b"base:allocation"]));
        }
        peer.option(O::Go, &selection(b"disk", &[]));
        assert!(peer.conn.is_transmitting());
        peer.output.clear();
        peer
    }

    fn send(&mut self, mut bytes: &[u8], step: usize) {
        let mut overflow = [0; OVERFLOW];
        while !bytes.is_empty() {
            let count = self.receive(&bytes[..bytes.len().min(step)], &mut overflow);
            bytes = &bytes[count..];
        }
    }

    /// Receives as many bytes as the plan takes.
    fn receive(&mut self, bytes: &[u8], overflow: &mut [u8]) -> usize {
        let mut plan = ReceivePlan::new();
        self.conn.fill_receive_plan(overflow, &mut plan);
        let mut tail = bytes;
        for slice in plan.iter_mut() {
            let (now, later) = tail.split_at(tail.len().min(slice.len()));
            slice[..now.len()].copy_from_slice(now);
            tail = later;
        }
        drop(plan);
        let count = bytes.len() - tail.len();
        self.conn.handle_received(count);
        loop {
            match self.conn.poll(overflow) {
                Ok(Some(event)) => self.handle(event),
                Ok(None) => break,
                Err(error) => {
                    self.error = Some(error);
                    break;
                }
            }
        }
        self.flush();
        count
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Memory { len } => self.conn.receive_into(self.pool.buffer(len).unwrap()),
            Event::Disconnect => self.is_ended = true,
            Event::Command(permit, command) => {
                match &command {
                    Command::Write { data, .. } => {
                        self.commands.push(format!("Write of {} bytes", data.len()))
                    }
                    other => self.commands.push(format!("{other:?}")),
                }
                self.run(permit, command);
            }
        }
    }

    fn run(&mut self, permit: Permit, command: Command) {
        let range = |lba: u64, blocks: u64| lba as usize * 512..(lba + blocks) as usize * 512;
        match command {
            Command::Read { lba, blocks } => {
                let data = self.disk[range(lba, blocks)].to_vec();
                self.conn.complete_read(permit, data.into());
            }
            Command::Write { lba, blocks, data, .. } => {
                self.disk[range(lba, blocks)].copy_from_slice(&data.to_vec());
                self.pool.recycle_buffer(data);
                self.conn.complete(permit);
            }
            Command::BlockStatus { .. } => {
                let extents = [Extent { blocks: 1, is_hole: true }, Extent { blocks: 2, is_hole: false }];
                self.conn.complete_status(permit, &extents);
            }
            _ => self.conn.complete(permit),
        }
    }

    fn flush(&mut self) {
        let mut plan = TransmitPlan::new();
        self.conn.fill_transmit_plan(&mut plan);
        self.output.extend(plan.iter().flat_map(|slice| slice.to_vec()));
        let count = plan.bytes();
        drop(plan);
        self.conn.handle_transmitted(count, drop);
        if self.conn.wants_transmit() {
            self.flush();
        }
    }

    /// Sends an option and returns its replies.
    fn option(&mut self, option: O, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.raw_option(option.code(), data)
    }

    fn raw_option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.output.clear();
        let header = OptionHeader { magic: Be(OPTION_MAGIC), option: Be(option), len: Be(data.len() as u32) };
        self.send(&[&header.encode()[..], data].concat(), 100);
        let (mut replies, mut tail) = (Vec::new(), &self.output[..]);
        while let Some((header, rest)) = tail.split_at_checked(20) {
            assert_eq!(header[..8], [0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9]);
            assert_eq!(header[8..12], option.to_be_bytes());
            let [code, len] = [12, 16].map(|at| u32::from_be_bytes(header[at..at + 4].try_into().unwrap()));
            let (data, rest) = rest.split_at(len as usize);
            replies.push((code, data.to_vec()));
            tail = rest;
        }
        assert!(tail.is_empty(), "{tail:?}");
        replies
    }

    /// Sends a request and returns the bytes of its reply.
    fn request(&mut self, code: u16, flags: u16, offset: u64, len: u32, data: &[u8]) -> Vec<u8> {
        self.output.clear();
        self.send(&[&request(code, flags, offset, len)[..], data].concat(), 1000);
        std::mem::take(&mut self.output)
    }

    /// As [`Peer::request`], with structured replies: the type of the chunk and its data.
    fn chunk(&mut self, code: C, flags: u16, offset: u64, len: u32, data: &[u8]) -> (u16, Vec<u8>) {
        let reply = self.request(code.code(), flags, offset, len, data);
        assert_eq!(reply[..6], [0x66, 0x8e, 0x33, 0xef, 0, 1], "{reply:?}");
        assert_eq!(reply[8..16], COOKIE.to_be_bytes());
        assert_eq!(reply[16..20], (reply.len() as u32 - 20).to_be_bytes());
        (u16::from_be_bytes([reply[6], reply[7]]), reply[20..].to_vec())
    }

    /// The error code of a request that fails.
    fn error(&mut self, code: u16, flags: u16, offset: u64, len: u32, data: &[u8]) -> u32 {
        let reply = self.request(code, flags, offset, len, data);
        let at = match &reply[..4] {
            [0x66, ..] => {
                assert_eq!(reply[6..8], [0x80, 1], "{reply:?}");
                let message = std::str::from_utf8(&reply[26..]).unwrap();
                assert_eq!(reply[24..26], (message.len() as u16).to_be_bytes());
                assert!(!message.is_empty());
                20
            }
            _ => {
                assert_eq!((&reply[..4], reply.len()), (&[0x67, 0x44, 0x66, 0x98][..], 16));
                4
            }
        };
        u32::from_be_bytes(reply[at..at + 4].try_into().unwrap())
    }
}

const COOKIE: u64 = 0x0102_0304_0506_0708;

fn request(code: u16, flags: u16, offset: u64, len: u32) -> [u8; RequestHeader::LEN] {
    let header = RequestHeader {
        magic: Be(REQUEST_MAGIC),
        flags: Be(flags),
        command: Be(code),
        cookie: Be(COOKIE),
        offset: Be(offset),
        len: Be(len),
    };
    header.encode()
}

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text].concat()
}

/// Data of the options that select an export.
fn selection(name: &[u8], information: &[u16]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((information.len() as u16).to_be_bytes());
    data.extend(information.iter().flat_map(|kind| kind.to_be_bytes()));
    data
}

/// Data of the options for metadata contexts.
fn contexts(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((queries.len() as u32).to_be_bytes());
    data.extend(queries.iter().flat_map(|query| string(query)));
    data
}

fn codes(replies: &[(u32, Vec<u8>)]) -> Vec<u32> {
    replies.iter().map(|(code, _)| *code).collect()
}

const ACK: u32 = R::Ack.code();
const INFO: u32 = R::Info.code();
const INVALID: u32 = R::Invalid.code();

#[test]
fn selects_export_by_option_without_replies() {
    for (flags, zeroes) in [(0, 124), (1, 124), (2, 0), (3, 0_usize)] {
        let mut peer = Peer::new(export());
        peer.send(&u32::to_be_bytes(flags), 1);
        peer.output.clear();
        peer.send(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk", 1);
        let flags = export_flag::HAS_FLAGS
            | export_flag::SEND_FLUSH
            | export_flag::SEND_FUA
            | export_flag::SEND_TRIM
            | export_flag::SEND_WRITE_ZEROES
            | export_flag::CAN_MULTI_CONN;
        let expected = [&(128_u64 << 20).to_be_bytes()[..], &flags.to_be_bytes(), &vec![0; zeroes]].concat();
        assert_eq!(peer.output, expected);
        assert!(peer.conn.is_transmitting());
    }
}

#[test]
fn reports_information_that_was_requested() {
    let mut peer = Peer::greeted(export());
    let replies = peer.option(O::Info, &selection(b"", &[information::NAME, information::DESCRIPTION, 77]));
    assert_eq!(codes(&replies), [INFO, INFO, INFO, INFO, ACK]);
    assert_eq!(replies[0].1[..10], [0, 0, 0, 0, 0, 0, 8, 0, 0, 0]);
    assert_eq!(replies[1].1, [0, 3, 0, 0, 2, 0, 0, 0, 16, 0, 2, 0, 0, 0]);
    assert_eq!(replies[2].1, b"\0\x01disk");
    assert_eq!(replies[3].1, b"\0\x02mem:128M");
    assert!(!peer.conn.is_transmitting());
    assert_eq!(codes(&peer.option(O::Go, &selection(b"disk", &[]))), [INFO, INFO, ACK]);
    assert!(peer.conn.is_transmitting());
}

#[test]
fn lists_export_and_contexts() {
    let mut peer = Peer::greeted(export());
    let replies = peer.option(O::List, b"");
    assert_eq!(replies, [(R::Server.code(), b"\0\0\0\x04disk".to_vec()), (ACK, Vec::new())]);
    assert_eq!(codes(&peer.option(O::ListMetaContext, &contexts(b"", &[]))), [INVALID]);
    assert_eq!(codes(&peer.option(O::StructuredReply, b"")), [ACK]);
    for queries in [&[][..], &[&b"base:"[..]], &[b"x:y", b"base:allocation"]] {
        let replies = peer.option(O::ListMetaContext, &contexts(b"disk", queries));
        assert_eq!(replies[0], (R::MetaContext.code(), b"\0\0\0\0base:allocation".to_vec()));
        assert_eq!(replies.len(), 2);
    }
    for queries in [&[][..], &[&b"base:"[..]], &[b"base:other"]] {
        assert_eq!(codes(&peer.option(O::SetMetaContext, &contexts(b"", queries))), [ACK]);
    }
    let replies = peer.option(O::SetMetaContext, &contexts(b"", &[b"base:allocation"]));
    assert_eq!(replies[0], (R::MetaContext.code(), b"\0\0\0\x01base:allocation".to_vec()));
}

#[test]
fn answers_wrong_options_and_continues() {
    let mut peer = Peer::greeted(export());
    peer.option(O::StructuredReply, b"");
    let long = vec![0; 20_000];
    let unknown = R::UnknownExport.code();
    for (option, data, code) in [
        (O::List, &b"data"[..], INVALID),
        (O::StructuredReply, b"data", INVALID),
        (O::StartTls, b"", R::Unsupported.code()),
        (O::Go, b"", INVALID),
        (O::Go, b"\xff\xff\xff\xff", INVALID),
        (O::Go, b"\0\0\0\0\0\x01", INVALID),
        (O::Go, b"\0\0\0\0\xff\xff", INVALID),
        (O::Info, b"\0\0\0\0\0\0more", INVALID),
        (O::Go, &selection(b"other", &[]), unknown),
        (O::Info, &long, R::TooBig.code()),
        (O::SetMetaContext, b"", INVALID),
        (O::SetMetaContext, b"\0\0\0\0\xff\xff\xff\xff", INVALID),
        (O::SetMetaContext, &contexts(b"", &[b"no namespace"]), INVALID),
        (O::SetMetaContext, &contexts(b"other", &[b"base:allocation"]), unknown),
    ] {
        let replies = peer.option(option, data);
        assert_eq!(codes(&replies), [code], "{option}");
        assert!(!replies[0].1.is_empty(), "{option} has no message");
    }
    for (option, len) in [(4, 0), (8888, 0), (u32::MAX, 100), (77, 20_000)] {
        assert_eq!(codes(&peer.raw_option(option, &long[..len])), [R::Unsupported.code()]);
    }
    assert_eq!(codes(&peer.option(O::Go, &selection(b"", &[]))), [INFO, INFO, ACK]);
}

#[test]
fn aborts_after_acknowledgment() {
    let mut peer = Peer::greeted(export());
    assert_eq!(codes(&peer.option(O::Abort, b"")), [ACK]);
    assert!(peer.is_ended && peer.error.is_none());
}

#[test]
fn closes_without_framing() {
    let mut peer = Peer::new(export());
    peer.send(&5_u32.to_be_bytes(), 4);
    assert_eq!(peer.error, Some(ProtocolError::ClientFlags(5)));
    let mut peer = Peer::greeted(export());
    peer.send(&[7; 16], 16);
    assert_eq!(peer.error, Some(ProtocolError::OptionMagic(0x0707_0707_0707_0707)));
    for name in [&b"other"[..], &[b'x'; 20_000]] {
        let mut peer = Peer::greeted(export());
        let header = OptionHeader { magic: Be(OPTION_MAGIC), option: Be(1), len: Be(name.len() as u32) };
        peer.send(&[&header.encode()[..], name].concat(), 4096);
        assert_eq!((peer.error, peer.output.len()), (Some(ProtocolError::UnknownExport), 0));
    }
    let mut peer = Peer::connected(export(), true);
    peer.send(&[9; 28], 28);
    assert_eq!(peer.error, Some(ProtocolError::RequestMagic(0x0909_0909)));
    // Later bytes are ignored.
    peer.send(&request(0, 0, 0, 512), 28);
    assert!(peer.output.is_empty() && peer.commands.is_empty());
}

#[test]
fn writes_and_reads_with_simple_replies() {
    let mut peer = Peer::connected(export(), false);
    let data: Vec<u8> = (0..8192).map(|at| (at % 251) as u8).collect();
    let ok = [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0][..], &COOKIE.to_be_bytes()].concat();
    assert_eq!(peer.request(C::Write.code(), command_flag::FUA, 512, 8192, &data), ok);
    assert_eq!(peer.request(C::Read.code(), 0, 512, 8192, b""), [&ok[..], &data].concat());
    assert_eq!(peer.request(C::Flush.code(), 0, 0, 0, b""), ok);
    assert_eq!(peer.request(C::Read.code(), 0, 512, 0, b""), ok);
}

#[test]
fn writes_and_reads_with_chunks() {
    let mut peer = Peer::connected(export(), true);
    let data = vec![5; 1024];
    let ok = [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0][..], &COOKIE.to_be_bytes()].concat();
    assert_eq!(peer.request(C::Write.code(), 0, 1024, 1024, &data), ok);
    let (kind, reply) = peer.chunk(C::Read, command_flag::DF, 512, 2048, b"");
    assert_eq!(kind, chunk::OFFSET_DATA);
    assert_eq!(reply, [&512_u64.to_be_bytes()[..], &[0; 512], &[5; 1024], &[0; 512]].concat());
    assert_eq!(peer.chunk(C::Read, 0, 0, 0, b""), (chunk::NONE, Vec::new()));
    let (kind, reply) = peer.chunk(C::BlockStatus, command_flag::REQ_ONE, 0, 4096, b"");
    assert_eq!(kind, chunk::BLOCK_STATUS);
    assert_eq!(reply, [0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 3, 0, 0, 4, 0, 0, 0, 0, 0]);
}

#[test]
fn passes_flags_to_commands() {
    let mut peer = Peer::connected(export(), true);
    peer.request(C::Trim.code(), command_flag::FUA, 512, 1024, b"");
    peer.request(C::WriteZeroes.code(), command_flag::NO_HOLE, 0, u32::MAX / 512 / 64 * 512, b"");
    peer.request(C::WriteZeroes.code(), 0, 0, 512, b"");
    assert_eq!(
        peer.commands,
        [
            "Trim { lba: 1, blocks: 2, fua: true }",
            "WriteZeroes { lba: 0, blocks: 131071, fua: false, deallocate: false }",
            "WriteZeroes { lba: 0, blocks: 1, fua: false, deallocate: true }",
        ]
    );
}

#[test]
fn answers_wrong_requests_and_continues() {
    const END: u64 = 128 << 20;
    const MAX: u32 = MAX_PAYLOAD_BYTES;
    for has_chunks in [false, true] {
        let mut peer = Peer::connected(export(), has_chunks);
        let (read, write) = (C::Read.code(), C::Write.code());
        let data = vec![0; MAX as usize + 512];
        for (code, flags, offset, len, error) in [
            (5, 0, 0, 512, 22),
            (99, 0, 0, 512, 22),
            (read, 0, 1, 512, 22),
            (read, 0, 0, 513, 22),
            (read, 0, END, 512, 22),
            (read, 0, u64::MAX - 511, 512, 22),
            (read, 0, 0, MAX + 512, 22),
            (read, command_flag::NO_HOLE, 0, 512, 22),
            (read, 0x8000, 0, 512, 22),
            (write, 0, 1, 512, 22),
            (write, 0, 0, 100, 22),
            (write, 0, END, 512, 28),
            (write, 0, u64::MAX - 511, 512, 28),
            (write, 0, 0, MAX + 512, 22),
            (write, command_flag::DF, 0, 512, 22),
            (C::WriteZeroes.code(), 0, END - 512, 1024, 28),
            (C::Trim.code(), 0, END - 512, 1024, 22),
            (C::Flush.code(), 0, 512, 0, 22),
            (C::Flush.code(), 0, 0, 512, 22),
            (C::BlockStatus.code(), 0, 0, 0, 22),
            (C::BlockStatus.code(), 0, END, 512, 22),
        ] {
            let data = if code == write { &data[..len as usize] } else { &[] };
            assert_eq!(peer.error(code, flags, offset, len, data), error, "{code} {flags} {offset} {len}");
        }
        assert!(peer.commands.is_empty(), "{:?}", peer.commands);
        peer.request(write, 0, 0, 512, &[1; 512]);
        assert_eq!(peer.disk[..512], [1; 512]);
    }
}

#[test]
fn rejects_status_without_context_and_fragments_without_chunks() {
    let mut peer = Peer::connected(export(), false);
    assert_eq!(peer.error(C::BlockStatus.code(), 0, 0, 512, b""), 22);
    assert_eq!(peer.error(C::Read.code(), command_flag::DF, 0, 512, b""), 22);
}

#[test]
fn rejects_changes_of_read_only_export() {
    let mut read_only = export();
    read_only.info.read_only = true;
    read_only.info.deallocate = false;
    let flags = read_only.flags(false);
    assert!(flags & export_flag::READ_ONLY != 0);
    assert_eq!(flags & (export_flag::SEND_TRIM | export_flag::SEND_WRITE_ZEROES), 0);
    let mut peer = Peer::connected(read_only, true);
    for code in [C::Write, C::Trim, C::WriteZeroes] {
        let data: &[u8] = if code == C::Write { &[0; 512] } else { &[] };
        assert_eq!(peer.error(code.code(), 0, 0, 512, data), 1);
    }
    assert_eq!(peer.chunk(C::Read, 0, 0, 512, b"").0, chunk::OFFSET_DATA);
}

#[test]
fn reports_errors_of_the_volume() {
    let mut peer = Peer::connected(export(), true);
    for (error, code) in [
        (VolumeError::NoSpace { raw_os_error: 28 }, 28),
        (VolumeError::ReadFailed { raw_os_error: 5 }, 5),
        (VolumeError::ReadOnly, 1),
        (VolumeError::Shrunk, 5),
    ] {
        let permit = Permit { cookie: COOKIE, offset: 0, len: 0, is_read: false };
        peer.conn.accept(&permit);
        peer.conn.fail(permit, &error);
        peer.flush();
        let output = std::mem::take(&mut peer.output);
        assert_eq!(output[20..24], u32::to_be_bytes(code));
        assert_eq!(output[26..], *error.to_string().as_bytes());
    }
}

#[test]
fn ends_after_disconnect() {
    let mut peer = Peer::connected(export(), true);
    peer.send(&request(C::Disconnect.code(), 0, 0, 0), 28);
    assert!(peer.is_ended && peer.output.is_empty() && peer.conn.is_idle());
}

#[test]
fn bounds_requests_in_flight() {
    let mut conn = Peer::connected(export(), true).conn;
    let mut overflow = vec![0; 28 * 1000];
    overflow.chunks_mut(28).for_each(|chunk| chunk.copy_from_slice(&request(C::Read.code(), 0, 0, 512)));
    conn.handle_received(overflow.len());
    let mut permits = Vec::new();
    while !conn.is_full() {
        let Ok(Some(Event::Command(permit, _))) = conn.poll(&overflow) else { panic!("no command") };
        permits.push(permit);
    }
    assert_eq!(permits.len(), MAX_REQUESTS);
    conn.defer_input(&overflow);
    conn.complete_read(permits.remove(0), vec![0; 512].into());
    assert!(!conn.is_full());
    assert!(matches!(conn.poll(&[]), Ok(Some(Event::Command(..)))));
}

#[test]
fn receives_data_of_the_largest_write() {
    let mut conn = Peer::connected(export(), true).conn;
    conn.handle_received(0);
    let header = request(C::Write.code(), 0, 0, MAX_PAYLOAD_BYTES);
    conn.handle_received(header.len());
    let Ok(Some(Event::Memory { len })) = conn.poll(&header) else { panic!("no memory requested") };
    assert!(!conn.is_full(), "its data is not received");
    conn.receive_into(Buffer::contiguous(len));
    let mut overflow = [0; OVERFLOW];
    let mut plan = ReceivePlan::new();
    conn.fill_receive_plan(&mut overflow, &mut plan);
    assert_eq!(plan.iter().map(|slice| slice.len()).sum::<usize>(), MAX_DESTINATION_BYTES);
}

proptest! {
    /// Neither panics nor allocates without bound; the pieces do not matter.
    #[test]
    fn any_bytes_give_the_same_result_in_any_pieces(
        is_transmitting: bool,
        messages in prop::collection::vec(message(), 0..12),
        step in 1_usize..5000,
    ) {
        let bytes = messages.concat();
        let run = |step: usize| {
            let mut peer =
                if is_transmitting { Peer::connected(export(), true) } else { Peer::greeted(export()) };
            peer.send(&bytes, step);
            (peer.output, peer.commands, peer.disk, peer.is_ended, peer.error)
        };
        prop_assert_eq!(run(step), run(usize::MAX));
    }
}

/// An option, a request, or bytes without a meaning.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let data = || prop::collection::vec(any::<u8>(), 0..200);
    let option =
        (0_u32..13, prop_oneof![data(), Just(selection(b"", &[])), Just(contexts(b"", &[b"base:"]))])
            .prop_map(|(option, data)| {
                let header =
                    OptionHeader { magic: Be(OPTION_MAGIC), option: Be(option), len: Be(data.len() as u32) };
                [&header.encode()[..], &data].concat()
            });
    let request = (0_u16..9, 0_u16..16, 0_u64..1024, 0_u32..20, any::<bool>()).prop_map(
        |(code, flags, block, blocks, is_aligned)| {
            let (offset, len) = (block * 512 + u64::from(!is_aligned), blocks * 512);
            let data = if code == C::Write.code() { len as usize } else { 0 };
            [&request(code, flags, offset, len)[..], &vec![flags as u8; data]].concat()
        },
    );
    prop_oneof![3 => option, 6 => request, 1 => data()]
}
