//! Minimal host over a blocking socket, built from the wire types only: it sends valid or invalid PDUs.
//!
//! It runs one command at a time unless a test sends more, and panics on unexpected replies.
#![allow(dead_code)]

pub mod auth;
pub mod gate;
pub mod interposer;
pub mod ports;
pub mod stuck;
mod timeout;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use isolane_target::{Target, TargetConfig};
use isolane_volume::{Volume, open};
use isolane_wire::fabrics::{
    ConnectAttributes, ConnectCommand, ConnectData, PropertyGetCommand, PropertySetCommand, PropertySize,
};
use isolane_wire::io::{ReadCommand, WriteCommand};
use isolane_wire::pdu::{
    CapsuleCmd, CommonHeader, ControllerPdu, Digests, H2cData, IcReq, IcResp, R2t, TermReq,
};
use isolane_wire::registers::{Cc, Csts};
use isolane_wire::{CompletionEntry, Framing, Nqn, Sgl, Status, SubmissionEntry, digest};

pub use timeout::*;

/// Name of the subsystem of every test.
pub const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349";
/// Name of the host of every test that has only one.
pub const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
/// Registers, by their offsets.
pub const CC: u32 = 0x14;
pub const CSTS: u32 = 0x1c;

/// A target of memory volumes on a free port.
pub fn config(volumes: &[&str]) -> TargetConfig {
    let mut config = TargetConfig::new(NQN.parse().unwrap());
    config.listen.push("127.0.0.1:0".parse().unwrap());
    config.subsystems[0].volumes = (1..).zip(volumes.iter().map(|text| volume(text))).collect();
    config.max_pool_pages = 4096;
    config
}

/// The same with these volumes.
pub fn serving(volumes: Vec<(u32, Arc<dyn Volume>)>) -> TargetConfig {
    let mut config = config(&[]);
    config.subsystems[0].volumes = volumes;
    config
}

/// Cores for two reactors that are in each other's way: one that this thread may use, twice.
pub fn one_core_twice() -> Vec<usize> {
    vec![isolane_reactor::cpu::allowed().unwrap()[0]; 2]
}

pub fn volume(text: &str) -> Arc<dyn Volume> {
    open(&text.parse().unwrap()).unwrap()
}

pub fn start(config: TargetConfig) -> (Target, SocketAddr) {
    let _ = Log::install();
    let target = Target::start(config).unwrap();
    let address = target.local_addrs()[0];
    (target, address)
}

/// Shows the target's log lines in the output of a test that fails.
struct Log;

impl Log {
    fn install() -> Result<(), log::SetLoggerError> {
        log::set_max_level(log::LevelFilter::Debug);
        log::set_logger(&Log)
    }
}

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        println!("{:5} {}", record.level(), record.args());
    }

    fn flush(&self) {}
}

/// A PDU from the target, with its data.
#[derive(Debug)]
pub struct Answer {
    pub pdu: ControllerPdu,
    pub data: Vec<u8>,
}

/// A controller's admin queue, which must be kept, and one I/O queue.
pub fn pair(address: SocketAddr, sqsize: u16) -> (MockHost, MockHost) {
    let admin = MockHost::admin(address);
    let queue = admin.io_queue(1, sqsize);
    (admin, queue)
}

/// One connection of a host.
pub struct MockHost {
    pub stream: TcpStream,
    /// Digests and padding of the PDUs to the target and from it.
    pub outbound: Framing,
    pub inbound: Framing,
    pub cntlid: u16,
    pub maxh2cdata: u32,
    next_cid: u16,
}

impl MockHost {
    /// An open connection on which nothing was sent.
    pub fn dial(address: SocketAddr) -> MockHost {
        MockHost::over(TcpStream::connect(address).unwrap())
    }

    /// An open connection.
    pub fn over(stream: TcpStream) -> MockHost {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let (outbound, inbound) = (Framing::default(), Framing::default());
        MockHost { stream, outbound, inbound, cntlid: 0xffff, maxh2cdata: 0, next_cid: 0 }
    }

    /// A connection that has been initialized.
    pub fn initialized(address: SocketAddr, request: IcReq) -> MockHost {
        let mut host = MockHost::dial(address);
        host.initialize(request);
        host
    }

    /// An enabled controller's admin queue.
    pub fn admin(address: SocketAddr) -> MockHost {
        Self::admin_with(address, IcReq::default(), HOST)
    }

    pub fn admin_with(address: SocketAddr, request: IcReq, host_nqn: &str) -> MockHost {
        let mut host = MockHost::initialized(address, request);
        let answer = host.connect(0, 0xffff, NQN, host_nqn, 31);
        assert_eq!(answer.status, Status::SUCCESS);
        host.cntlid = answer.dw0 as u16;
        host.set_property(CC, Cc::enabled().0);
        let csts = Csts(host.property(CSTS) as u32);
        assert!(csts.rdy(), "the controller is not ready");
        host
    }

    /// An I/O queue of the controller whose admin queue `self` is.
    pub fn io_queue(&self, qid: u16, sqsize: u16) -> MockHost {
        self.io_queue_with(qid, sqsize, IcReq::default(), HOST)
    }

    pub fn io_queue_with(&self, qid: u16, sqsize: u16, request: IcReq, host_nqn: &str) -> MockHost {
        let mut queue = MockHost::initialized(self.stream.peer_addr().unwrap(), request);
        let answer = queue.connect(qid, self.cntlid, NQN, host_nqn, sqsize);
        assert_eq!(answer.status, Status::SUCCESS);
        queue
    }

    pub fn initialize(&mut self, request: IcReq) -> IcResp {
        self.send_bytes(&request.encode());
        let ControllerPdu::IcResp(response) = self.answer().pdu else { panic!("no ICResp") };
        let (header_digest, data_digest) = (response.digests.header(), response.digests.data());
        self.outbound = Framing { header_digest, data_digest, pda: response.cpda };
        self.inbound = Framing { header_digest, data_digest, pda: request.hpda };
        self.maxh2cdata = response.maxh2cdata;
        response
    }

    pub fn connect(
        &mut self,
        qid: u16,
        cntlid: u16,
        subnqn: &str,
        hostnqn: &str,
        sqsize: u16,
    ) -> CompletionEntry {
        let entry = connect_entry(qid, sqsize);
        let data = connect_data(cntlid, subnqn, hostnqn);
        self.write(entry, &data).0
    }

    pub fn property(&mut self, offset: u32) -> u64 {
        let size = if offset == 0 { PropertySize::Bytes8 } else { PropertySize::Bytes4 };
        let answer = self.run(PropertyGetCommand { size, offset }.entry());
        assert_eq!(answer.status, Status::SUCCESS);
        answer.value()
    }

    pub fn set_property(&mut self, offset: u32, value: u32) {
        let command = PropertySetCommand { size: PropertySize::Bytes4, offset, value: u64::from(value) };
        assert_eq!(self.run(command.entry()).status, Status::SUCCESS);
    }

    /// A command without data, and its answer.
    pub fn run(&mut self, entry: SubmissionEntry) -> CompletionEntry {
        let cid = self.send(entry, &[]);
        self.completion(cid).0
    }

    /// A command that returns data.
    pub fn fetch(&mut self, entry: SubmissionEntry, len: u32) -> (CompletionEntry, Vec<u8>) {
        let cid = self.send(SubmissionEntry { sgl: Sgl::Transport { len }, ..entry }, &[]);
        self.completion(cid)
    }

    /// A command whose data is in its capsule.
    pub fn write(&mut self, entry: SubmissionEntry, data: &[u8]) -> (CompletionEntry, Vec<u8>) {
        let cid = self.send(in_capsule(entry, data), data);
        self.completion(cid)
    }

    /// A command whose data the target asks for.
    pub fn push(&mut self, entry: SubmissionEntry, data: &[u8]) -> CompletionEntry {
        let cid = self.send(SubmissionEntry { sgl: Sgl::Transport { len: data.len() as u32 }, ..entry }, &[]);
        loop {
            match self.answer().pdu {
                ControllerPdu::R2t(r2t) => self.send_granted(&r2t, data),
                ControllerPdu::CapsuleResp(response) => {
                    assert_eq!(response.entry.cid, cid);
                    return response.entry;
                }
                other => panic!("expected R2T or a response, got {other:?}"),
            }
        }
    }

    /// Everything that an R2T asks for, in PDUs of the length that the target takes.
    pub fn send_granted(&mut self, r2t: &R2t, data: &[u8]) {
        let granted = &data[r2t.r2to as usize..][..r2t.r2tl as usize];
        let pieces: Vec<_> = granted.chunks(self.maxh2cdata as usize).collect();
        let mut datao = r2t.r2to;
        for (at, piece) in pieces.iter().enumerate() {
            let last = at + 1 == pieces.len();
            let header = H2cData { cccid: r2t.cccid, ttag: r2t.ttag, datao, datal: piece.len() as u32, last };
            self.send_with_data(&header.encode(&self.outbound), piece);
            datao += piece.len() as u32;
        }
    }

    /// The CID of the next command.
    pub fn next_cid(&self) -> u16 {
        self.next_cid
    }

    /// Gives this CID to the next command.
    pub fn reuse_cid(&mut self, cid: u16) {
        self.next_cid = cid;
    }

    /// Sends a command capsule and returns its CID.
    pub fn send(&mut self, entry: SubmissionEntry, data: &[u8]) -> u16 {
        let cid = self.next_cid;
        self.next_cid += 1;
        let entry = SubmissionEntry { cid, ..entry };
        let header = CapsuleCmd { entry, data_len: data.len() as u32 }.encode(&self.outbound);
        self.send_with_data(&header, data);
        cid
    }

    pub fn send_with_data(&mut self, header: &[u8], data: &[u8]) {
        let mut bytes = [header, data].concat();
        if self.outbound.data_digest && !data.is_empty() {
            bytes.extend(digest::crc32c(data).to_le_bytes());
        }
        self.send_bytes(&bytes);
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Everything that comes for a command until it is complete.
    pub fn completion(&mut self, cid: u16) -> (CompletionEntry, Vec<u8>) {
        let mut data = Vec::new();
        loop {
            let answer = self.answer();
            match answer.pdu {
                ControllerPdu::C2hData(header) => {
                    assert_eq!((header.cccid, header.datao as usize), (cid, data.len()));
                    data.extend(answer.data);
                    if header.success {
                        return (CompletionEntry { cid, ..CompletionEntry::default() }, data);
                    }
                }
                ControllerPdu::CapsuleResp(response) => {
                    assert_eq!(response.entry.cid, cid, "another command was answered");
                    return (response.entry, data);
                }
                other => panic!("expected an answer, got {other:?}"),
            }
        }
    }

    /// The next PDU.
    pub fn answer(&mut self) -> Answer {
        self.try_answer().expect("the target closed the connection")
    }

    /// The next PDU, or `None` at the end of the stream.
    pub fn try_answer(&mut self) -> Option<Answer> {
        let mut bytes = vec![0; CommonHeader::LEN];
        if !self.read_or_end(&mut bytes) {
            return None;
        }
        let header = CommonHeader::decode(bytes[..].try_into().unwrap()).unwrap();
        bytes.resize(header.plen as usize, 0);
        match self.stream.read_exact(&mut bytes[CommonHeader::LEN..]) {
            // The target closed with commands unread: the kernel drops what it had not sent.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
            result => result.unwrap(),
        }
        let hlen = usize::from(header.hlen);
        if header.has_header_digest(&self.inbound) {
            assert_eq!(bytes[hlen..hlen + 4], digest::crc32c(&bytes[..hlen]).to_le_bytes());
        }
        let data_len = header.data_len(&self.inbound) as usize;
        let data = bytes[header.prefix_len(&self.inbound).min(bytes.len())..][..data_len].to_vec();
        if self.inbound.data_digest && data_len > 0 {
            assert_eq!(bytes[bytes.len() - 4..], digest::crc32c(&data).to_le_bytes());
        }
        Some(Answer { pdu: ControllerPdu::decode(&bytes, &self.inbound).unwrap(), data })
    }

    /// The target ends the connection with a TermReq, which is returned, and closes after us.
    pub fn expect_termination(&mut self) -> TermReq {
        let ControllerPdu::TermReq(request) = self.answer().pdu else { panic!("no C2HTermReq") };
        assert!(self.try_answer().is_none(), "something followed the TermReq");
        request
    }

    /// The target closes the connection, whatever it says before.
    pub fn expect_end(&mut self) {
        while self.try_answer().is_some() {}
    }

    fn read_or_end(&mut self, bytes: &mut [u8]) -> bool {
        match self.stream.read_exact(bytes) {
            Ok(()) => true,
            Err(error) if [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset].contains(&error.kind()) => {
                false
            }
            Err(error) => panic!("reading failed: {error}"),
        }
    }
}

pub fn connect_entry(qid: u16, sqsize: u16) -> SubmissionEntry {
    let attributes = ConnectAttributes(0);
    let kato_ms = if qid == 0 { 30_000 } else { 0 };
    ConnectCommand { recfmt: 0, qid, sqsize, attributes, kato_ms }.entry()
}

pub fn connect_data(cntlid: u16, subnqn: &str, hostnqn: &str) -> Vec<u8> {
    let nqn = |text: &str| text.parse::<Nqn>().unwrap();
    let data =
        ConnectData { hostid: [7; 16], cntlid, subnqn: nqn(subnqn).into(), hostnqn: nqn(hostnqn).into() };
    data.encode().to_vec()
}

pub fn in_capsule(entry: SubmissionEntry, data: &[u8]) -> SubmissionEntry {
    SubmissionEntry { sgl: Sgl::InCapsule { offset: 0, len: data.len() as u32 }, ..entry }
}

pub fn read_entry(slba: u64, blocks: u32) -> SubmissionEntry {
    ReadCommand { nsid: 1, slba, nlb: (blocks - 1) as u16, ..ReadCommand::default() }.entry()
}

pub fn write_entry(slba: u64, blocks: u32) -> SubmissionEntry {
    WriteCommand { nsid: 1, slba, nlb: (blocks - 1) as u16, ..WriteCommand::default() }.entry()
}

/// Contents that distinguish one block from another.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(len).collect()
}

pub fn digests(header: bool, data: bool) -> IcReq {
    IcReq { digests: Digests(0).with_header(header).with_data(data), ..IcReq::default() }
}
