//! Captures of every PDU, for other dissectors.
//!
//! Each `golden-*.pcap` is a conversation built from the encoders, one for each framing. The tshark suite reads
//! them.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use isolane_tests::capture::{Capture, From};
use isolane_wire::opcode::{AdminOpcode, IoOpcode};
use isolane_wire::pdu::{
    C2hData, CapsuleCmd, CapsuleResp, Digests, H2cData, HeaderFault, IcReq, IcResp, R2t, TermReq,
};
use isolane_wire::{CompletionEntry, Direction, Framing, Sgl, Status, SubmissionEntry, digest};

#[test]
fn writes_golden_conversations() {
    for (number, framing) in framings().into_iter().enumerate() {
        for end in [Direction::HostToController, Direction::ControllerToHost] {
            let path = dir().join(format!("golden-{number}-{end:?}.pcap"));
            conversation(&path, framing, end).unwrap();
            assert!(std::fs::metadata(&path).unwrap().len() > 10_000);
        }
    }
}

/// Data digests are used without a pad, because Wireshark 4.0 ignores PDO.
fn framings() -> Vec<Framing> {
    let framing = |(header_digest, data_digest, pda)| Framing { header_digest, data_digest, pda };
    let plain = [(false, false, 0), (true, false, 0), (false, false, 7), (true, false, 7)];
    let with_data_digest = [(false, true, 0), (true, true, 0)];
    plain.into_iter().chain(with_data_digest).map(framing).collect()
}

fn dir() -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("captures");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Initialization, a read, a read with SUCCESS, a small and a large write, and a termination by `end`.
fn conversation(path: &Path, framing: Framing, end: Direction) -> io::Result<()> {
    let capture = Capture::new(BufWriter::new(File::create(path)?))?;
    let mut talk = Conversation { capture, framing };
    talk.initialise()?;
    talk.connect()?;
    talk.read(1)?;
    talk.read_with_success(2)?;
    talk.write_in_capsule(3)?;
    talk.write_granted(4)?;
    talk.terminate(end)
}

struct Conversation {
    capture: Capture<BufWriter<File>>,
    framing: Framing,
}

impl Conversation {
    fn initialise(&mut self) -> io::Result<()> {
        let Framing { header_digest, data_digest, pda } = self.framing;
        let digests = Digests(u8::from(header_digest) | u8::from(data_digest) << 1);
        self.capture.send(From::Host, &IcReq { hpda: pda, digests, maxr2t: 0 }.encode())?;
        self.capture.send(From::Target, &IcResp { cpda: pda, digests, maxh2cdata: 4096 }.encode())
    }

    fn connect(&mut self) -> io::Result<()> {
        const FCTYPE_CONNECT: u32 = 0x01;
        let mut entry = command(AdminOpcode::Fabrics.code(), 0, 1024);
        entry.nsid = FCTYPE_CONNECT;
        entry.cdw10 = 1 << 16;
        entry.cdw11 = 127;
        let mut data = vec![0; 1024];
        data[..16].fill(7);
        data[16..18].fill(0xff);
        data[256..292].copy_from_slice(b"nqn.2014-08.org.nvmexpress.discovery");
        data[512..526].copy_from_slice(b"nqn.2014-08.ab");
        self.command(entry, &data)?;
        self.response(0)
    }

    fn read(&mut self, cid: u16) -> io::Result<()> {
        self.command(transfer(IoOpcode::Read.code(), cid, 8192), &[])?;
        self.data_in(cid, 0, 4096, false)?;
        self.data_in(cid, 4096, 4096, false)?;
        self.response(cid)
    }

    fn read_with_success(&mut self, cid: u16) -> io::Result<()> {
        self.command(transfer(IoOpcode::Read.code(), cid, 4096), &[])?;
        self.data_in(cid, 0, 4096, true)
    }

    fn write_in_capsule(&mut self, cid: u16) -> io::Result<()> {
        let mut entry = transfer(IoOpcode::Write.code(), cid, 4096);
        entry.sgl = Sgl::InCapsule { offset: 0, len: 4096 };
        self.command(entry, &pattern(4096))?;
        self.response(cid)
    }

    fn write_granted(&mut self, cid: u16) -> io::Result<()> {
        self.command(transfer(IoOpcode::Write.code(), cid, 8192), &[])?;
        let r2t = R2t { cccid: cid, ttag: 9, r2to: 0, r2tl: 8192 };
        self.capture.send(From::Target, &r2t.encode(&self.framing))?;
        for datao in [0, 4096] {
            let data = H2cData { cccid: cid, ttag: 9, datao, datal: 4096, last: datao == 4096 };
            self.with_data(From::Host, &data.encode(&self.framing), &pattern(4096))?;
        }
        self.response(cid)
    }

    fn terminate(&mut self, end: Direction) -> io::Result<()> {
        let from = if end == Direction::HostToController { From::Host } else { From::Target };
        let offender = R2t { cccid: 5, ttag: 9, r2to: 0, r2tl: 8192 }.encode(&self.framing);
        let pdu = TermReq::new(end, HeaderFault::invalid(10), &offender);
        self.capture.send(from, &pdu.encode())
    }

    fn command(&mut self, entry: SubmissionEntry, data: &[u8]) -> io::Result<()> {
        let pdu = CapsuleCmd { entry, data_len: data.len() as u32 };
        self.with_data(From::Host, &pdu.encode(&self.framing), data)
    }

    fn response(&mut self, cid: u16) -> io::Result<()> {
        let entry = CompletionEntry { dw0: 0, dw1: 0, sqhd: 3, sqid: 0, cid, status: Status::SUCCESS };
        self.capture.send(From::Target, &CapsuleResp { entry }.encode(&self.framing))
    }

    fn data_in(&mut self, cid: u16, datao: u32, datal: u32, success: bool) -> io::Result<()> {
        let last = success || datao != 0;
        let pdu = C2hData { cccid: cid, datao, datal, last, success };
        self.with_data(From::Target, &pdu.encode(&self.framing), &pattern(datal as usize))
    }

    fn with_data(&mut self, from: From, header: &[u8], data: &[u8]) -> io::Result<()> {
        let mut bytes = [header, data].concat();
        if self.framing.data_digest && !data.is_empty() {
            bytes.extend(digest::crc32c(data).to_le_bytes());
        }
        self.capture.send(from, &bytes)
    }
}

fn command(opcode: u8, cid: u16, in_capsule_bytes: u32) -> SubmissionEntry {
    let mut entry = SubmissionEntry::new(opcode, 1);
    entry.cid = cid;
    entry.sgl = Sgl::InCapsule { offset: 0, len: in_capsule_bytes };
    entry
}

fn transfer(opcode: u8, cid: u16, len: u32) -> SubmissionEntry {
    let mut entry = command(opcode, cid, 0);
    entry.sgl = Sgl::Transport { len };
    entry.cdw10 = 0x40;
    entry.cdw12 = len / 512 - 1;
    entry
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| at as u8).collect()
}
