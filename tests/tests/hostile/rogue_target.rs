//! Target that replies correctly unless a test replaces a reply.
//!
//! Each connection has a blocking thread. Reads return zeroes; data of writes is received and dropped.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use isolane_host::{Options, Reconnect, Uri};
use isolane_wire::admin::{Cns, GetLogPageCommand, IdentifyCommand};
use isolane_wire::fabrics::{PropertyGetCommand, PropertySetCommand};
use isolane_wire::feature::NumberOfQueues;
use isolane_wire::identify::{Controller, LbaFormat, Namespace, NamespaceList};
use isolane_wire::log::{DiscoveryEntry, DiscoveryHeader};
use isolane_wire::opcode::{AdminOpcode, FabricsType, IoOpcode};
use isolane_wire::pdu::{C2hData, CapsuleResp, CommonHeader, Digests, H2cData, HostPdu, IcReq, IcResp, R2t};
use isolane_wire::registers::{Cap, Cc, Csts, Vs, offset};
use isolane_wire::{Ascii, CompletionEntry, Framing, Sgl, Status, SubmissionEntry};

use crate::accept_loop::AcceptLoop;

pub const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349";
pub const PLAIN: Framing = Framing { header_digest: false, data_digest: false, pda: 0 };

/// Properties that the target reports.
#[derive(Clone)]
pub struct TargetFacts {
    pub ic_resp: Vec<u8>,
    pub cap: Cap,
    pub csts: Option<Csts>,
    pub controller: Controller,
    pub namespace: Namespace,
    pub nsids: Vec<u32>,
    pub queues: u32,
    pub log_header: DiscoveryHeader,
    pub log_entry: DiscoveryEntry,
}

impl Default for TargetFacts {
    fn default() -> TargetFacts {
        let mut namespace = Namespace { nsze: 2048, ncap: 2048, nuse: 2048, ..Namespace::default() };
        namespace.lbaf[0] = LbaFormat(0).with_lbads(9);
        TargetFacts {
            ic_resp: IcResp { cpda: 0, digests: Digests(0), maxh2cdata: 1 << 20 }.encode().to_vec(),
            cap: Cap(0).with_mqes(255).with_css(1).with_to(1),
            csts: None,
            controller: Controller {
                mdts: 8,
                ioccsz: 4,
                maxcmd: 128,
                kas: 10,
                aerl: 3,
                ..Controller::default()
            },
            namespace,
            nsids: vec![1],
            queues: NumberOfQueues(0).with_submission(7).with_completion(7).0,
            log_header: DiscoveryHeader::default(),
            log_entry: DiscoveryEntry { traddr: Ascii::lossy("127.0.0.1"), ..DiscoveryEntry::default() },
        }
    }
}

/// Reaction to a command or to ICReq.
pub enum Reaction {
    /// Sends the correct reply.
    Correct,
    /// Sends these bytes, then the correct reply.
    Before(Vec<u8>),
    /// Sends the correct reply, then these bytes.
    After(Vec<u8>),
    /// Sends only these bytes.
    Replace(Vec<u8>),
    /// Sends these bytes until the connection closes.
    Repeat(Vec<u8>),
    /// Sends the first bytes of the correct reply, then closes.
    Cut(usize),
    /// Sends nothing and keeps the connection open.
    Silence,
    Close,
}

/// Received PDU on any connection.
pub struct Observed {
    /// Index over all connections.
    pub number: usize,
    /// `None` for ICReq.
    pub entry: Option<SubmissionEntry>,
    pub io: bool,
}

type ReplyFn = dyn Fn(&Observed) -> Reaction + Send + Sync;

/// Running target.
pub struct RogueTarget {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _accept_loop: AcceptLoop,
}

struct Shared {
    facts: TargetFacts,
    reply_fn: Box<ReplyFn>,
    observed: AtomicUsize,
    connections: AtomicUsize,
}

impl RogueTarget {
    pub fn start(
        facts: TargetFacts,
        reply_fn: impl Fn(&Observed) -> Reaction + Send + Sync + 'static,
    ) -> RogueTarget {
        let shared = Arc::new(Shared {
            facts,
            reply_fn: Box::new(reply_fn),
            observed: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
        });
        let accepting = Arc::clone(&shared);
        let accept_loop = AcceptLoop::start(move |stream| {
            accepting.connections.fetch_add(1, Ordering::SeqCst);
            let shared = Arc::clone(&accepting);
            std::thread::spawn(move || Connection { stream, shared, qid: 0, cc: Cc(0) }.serve());
        });
        RogueTarget { address: accept_loop.address, shared, _accept_loop: accept_loop }
    }

    pub fn uri(&self) -> Uri {
        format!("nvme+tcp://{}/{NQN}", self.address).parse().unwrap()
    }

    /// Number of connections since the start.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

/// Options with short timeouts.
pub fn short_timeouts() -> Options {
    Options {
        connect_timeout: Duration::from_secs(3),
        command_timeout: Duration::from_millis(600),
        keep_alive: Duration::from_secs(10),
        depth: 16,
        reconnect: Reconnect::never(),
        ..Options::default()
    }
}

pub fn response(cid: u16, status: Status) -> Vec<u8> {
    let entry = CompletionEntry { cid, status, ..CompletionEntry::default() };
    CapsuleResp { entry }.encode(&PLAIN).to_vec()
}

pub fn c2h_data(cccid: u16, datao: u32, len: u32, last: bool, success: bool) -> Vec<u8> {
    let header = C2hData { cccid, datao, datal: len, last, success }.encode(&PLAIN);
    [&header[..], &vec![0xaa; len as usize]].concat()
}

pub fn r2t(cccid: u16, ttag: u16, r2to: u32, r2tl: u32) -> Vec<u8> {
    R2t { cccid, ttag, r2to, r2tl }.encode(&PLAIN).to_vec()
}

struct Connection {
    stream: TcpStream,
    shared: Arc<Shared>,
    qid: u16,
    cc: Cc,
}

impl Connection {
    /// Serves the connection until the host closes it.
    fn serve(mut self) -> Option<()> {
        loop {
            let (header, data_len) = self.receive_header()?;
            let entry = match HostPdu::decode(&header, &PLAIN).ok()? {
                HostPdu::IcReq(IcReq { .. }) => None,
                HostPdu::CapsuleCmd(capsule) => Some(capsule.entry),
                _ => return None,
            };
            let data = self.receive(data_len)?;
            let number = self.shared.observed.fetch_add(1, Ordering::SeqCst);
            let act = (self.shared.reply_fn)(&Observed { number, entry, io: self.qid != 0 });
            self.act(act, entry, &data)?;
        }
    }

    fn act(&mut self, act: Reaction, entry: Option<SubmissionEntry>, data: &[u8]) -> Option<()> {
        match act {
            Reaction::Silence => return Some(()),
            Reaction::Close => return None,
            Reaction::Replace(bytes) => return self.send(&bytes),
            Reaction::Repeat(bytes) => loop {
                self.send(&bytes)?;
            },
            Reaction::Before(ref bytes) => self.send(bytes)?,
            Reaction::Correct | Reaction::After(_) | Reaction::Cut(_) => {}
        }
        let mut correct = match entry {
            None => self.shared.facts.ic_resp.clone(),
            Some(entry) => self.reply(&entry, data)?,
        };
        if let Reaction::Cut(len) = act {
            self.send(&correct[..len.min(correct.len())])?;
            return None;
        }
        if let Reaction::After(bytes) = act {
            correct.extend(bytes);
        }
        self.send(&correct)
    }

    fn reply(&mut self, entry: &SubmissionEntry, data: &[u8]) -> Option<Vec<u8>> {
        if entry.opcode == AdminOpcode::Fabrics.code() {
            return Some(self.fabrics(entry));
        }
        if self.qid != 0 {
            return self.io(entry, data);
        }
        Some(self.admin(entry))
    }

    fn fabrics(&mut self, entry: &SubmissionEntry) -> Vec<u8> {
        let done = |dw0: u32, dw1: u32, sqhd: u16| {
            let entry = CompletionEntry { cid: entry.cid, dw0, dw1, sqhd, ..CompletionEntry::default() };
            CapsuleResp { entry }.encode(&PLAIN).to_vec()
        };
        match FabricsType::decode(entry.fctype()) {
            Some(FabricsType::Connect) => {
                self.qid = (entry.cdw10 >> 16) as u16;
                done(1, 0, 0xffff)
            }
            Some(FabricsType::PropertySet) => {
                self.cc = Cc(PropertySetCommand::parse(entry).value as u32);
                done(0, 0, 0)
            }
            Some(FabricsType::PropertyGet) => {
                let value = self.register(PropertyGetCommand::parse(entry).offset);
                done(value as u32, (value >> 32) as u32, 0)
            }
            _ => response(entry.cid, Status::INVALID_FIELD),
        }
    }

    fn register(&self, register: u32) -> u64 {
        let shst = if self.cc.shn() == 0 { 0 } else { Csts::SHST_COMPLETE };
        let csts = self.shared.facts.csts.unwrap_or(Csts(0).with_rdy(self.cc.en()).with_shst(shst));
        match register {
            offset::CAP => self.shared.facts.cap.0,
            offset::VS => u64::from(Vs::V1_4.0),
            offset::CC => u64::from(self.cc.0),
            _ => u64::from(csts.0),
        }
    }

    fn admin(&self, entry: &SubmissionEntry) -> Vec<u8> {
        let facts = &self.shared.facts;
        match AdminOpcode::decode(entry.opcode) {
            Some(AdminOpcode::Identify) => returned(entry, &identify(facts, &IdentifyCommand::parse(entry))),
            Some(AdminOpcode::GetLogPage) => {
                let offset = GetLogPageCommand::parse(entry).offset;
                let header = facts.log_header.encode();
                let page = if offset == 0 { &header[..] } else { &facts.log_entry.encode().repeat(3) };
                returned(entry, page)
            }
            Some(AdminOpcode::AsyncEventRequest) => Vec::new(),
            Some(AdminOpcode::SetFeatures) => {
                let entry =
                    CompletionEntry { cid: entry.cid, dw0: facts.queues, ..CompletionEntry::default() };
                CapsuleResp { entry }.encode(&PLAIN).to_vec()
            }
            _ => response(entry.cid, Status::SUCCESS),
        }
    }

    fn io(&mut self, entry: &SubmissionEntry, data: &[u8]) -> Option<Vec<u8>> {
        let len = len_of(entry);
        match IoOpcode::decode(entry.opcode) {
            Some(IoOpcode::Read) => return Some(returned(entry, &vec![0; len as usize])),
            Some(IoOpcode::Write | IoOpcode::DatasetManagement) if data.is_empty() => {
                self.send(&r2t(entry.cid, 1, 0, len))?;
                self.receive_transfer(len)?;
            }
            _ => {}
        }
        Some(response(entry.cid, Status::SUCCESS))
    }

    fn receive_transfer(&mut self, len: u32) -> Option<()> {
        let mut got = 0;
        while got < len {
            let (header, data_len) = self.receive_header()?;
            H2cData::decode(header.first_chunk()?, data_len as u32).ok()?;
            self.receive(data_len)?;
            got += data_len as u32;
        }
        Some(())
    }

    /// Returns a header and the number of bytes after it.
    fn receive_header(&mut self) -> Option<(Vec<u8>, usize)> {
        let common = self.receive(CommonHeader::LEN)?;
        let header = CommonHeader::decode(common.first_chunk()?).ok()?;
        let tail = self.receive(header.pdu_type.hlen() - CommonHeader::LEN)?;
        Some(([common, tail].concat(), (header.plen as usize).checked_sub(header.pdu_type.hlen())?))
    }

    fn receive(&mut self, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    fn send(&mut self, bytes: &[u8]) -> Option<()> {
        self.stream.write_all(bytes).ok()
    }
}

pub fn len_of(entry: &SubmissionEntry) -> u32 {
    match entry.sgl {
        Sgl::Transport { len } | Sgl::InCapsule { len, .. } => len,
        Sgl::Other(_) => 0,
    }
}

/// Data with the length that the host requested, and success.
fn returned(entry: &SubmissionEntry, data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    data.resize(len_of(entry) as usize, 0);
    let datal = data.len() as u32;
    let header = C2hData { cccid: entry.cid, datao: 0, datal, last: true, success: false }.encode(&PLAIN);
    [&header[..], &data, &response(entry.cid, Status::SUCCESS)].concat()
}

fn identify(facts: &TargetFacts, command: &IdentifyCommand) -> Vec<u8> {
    match Cns::decode(command.cns) {
        Some(Cns::Controller) => facts.controller.encode().to_vec(),
        Some(Cns::Namespace) => facts.namespace.encode().to_vec(),
        Some(Cns::ActiveNamespaces) => NamespaceList::new(facts.nsids.iter().copied()).encode().to_vec(),
        _ => vec![0; 4096],
    }
}
