//! Connections of simulated hosts: real sockets, of which nothing is read or written that must wait.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use isolane_reactor::socket::unacknowledged_bytes;
use isolane_wire::pdu::{CapsuleCmd, CommonHeader, ControllerPdu, H2cData, R2t};
use isolane_wire::{CompletionEntry, Framing, Sgl, SubmissionEntry};
use rustix::io::ioctl_fionread;
use socket2::SockRef;

/// A connection.
pub(super) struct Conn {
    stream: TcpStream,
    /// The same connection at the target.
    target: TcpStream,
    received: Vec<u8>,
    is_open: bool,
    next_cid: u16,
    /// Data that comes for commands.
    arriving: BTreeMap<u16, Vec<u8>>,
    /// Data that the target may request.
    outgoing: BTreeMap<u16, Vec<u8>>,
    granted: VecDeque<R2t>,
}

/// A response.
pub(super) struct Response {
    pub entry: CompletionEntry,
    pub data: Vec<u8>,
}

impl Conn {
    pub(super) fn new(stream: TcpStream, target: TcpStream) -> Conn {
        stream.set_nodelay(true).expect("a connected socket");
        stream.set_nonblocking(true).expect("a socket");
        Conn {
            stream,
            target,
            received: Vec::new(),
            is_open: true,
            next_cid: 0,
            arriving: BTreeMap::new(),
            outgoing: BTreeMap::new(),
            granted: VecDeque::new(),
        }
    }

    /// Sends a command, with its data in the capsule, or once the target requests them. Returns its ID.
    pub(super) fn send(&mut self, entry: SubmissionEntry, data: &[u8], is_in_capsule: bool) -> u16 {
        let (cid, len) = (self.next_cid, data.len() as u32);
        self.next_cid = self.next_cid.wrapping_add(1);
        let sgl = match entry.sgl {
            _ if data.is_empty() => entry.sgl,
            _ if is_in_capsule => Sgl::InCapsule { offset: 0, len },
            _ => Sgl::Transport { len },
        };
        let in_capsule = if is_in_capsule { data } else { &[] };
        let entry = SubmissionEntry { cid, sgl, ..entry };
        let header = CapsuleCmd { entry, data_len: in_capsule.len() as u32 }.encode(&Framing::default());
        self.write(&[&header[..], in_capsule].concat());
        if !is_in_capsule {
            self.outgoing.insert(cid, data.to_vec());
        }
        cid
    }

    /// Sends data that the target has requested.
    pub(super) fn send_granted(&mut self) {
        let Some(R2t { cccid, ttag, r2to, r2tl, .. }) = self.granted.pop_front() else { return };
        let Some(data) = self.outgoing.get(&cccid) else { return };
        let data = data[r2to as usize..][..r2tl as usize].to_vec();
        let header = H2cData { cccid, ttag, datao: r2to, datal: r2tl, last: true };
        self.write(&[&header.encode(&Framing::default())[..], &data].concat());
    }

    /// Returns once the bytes have arrived, so that no delay in the kernel matters.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        let arrived = |conn: &Conn| ioctl_fionread(&conn.target).expect("a socket");
        let before = arrived(self);
        match self.stream.write(bytes) {
            Ok(written) => assert_eq!(written, bytes.len(), "the send buffer has room for everything"),
            // The target has closed the connection, as the next receive finds.
            Err(error) => return assert_ne!(error.kind(), ErrorKind::WouldBlock),
        }
        wait_until(|| arrived(self) == before + bytes.len() as u64);
    }

    /// Takes everything that the target has sent from the kernel.
    pub(super) fn drain(&mut self) {
        let mut bytes = [0; 16 << 10];
        wait_until(|| {
            loop {
                match self.stream.read(&mut bytes) {
                    Ok(0) => self.is_open = false,
                    Ok(len) => {
                        self.received.extend(&bytes[..len]);
                        continue;
                    }
                    Err(error) => self.is_open &= error.kind() == ErrorKind::WouldBlock,
                }
                break;
            }
            // With nothing unread, a delayed acknowledgment is sent now.
            let is_closed = !self.is_open || SockRef::from(&self.stream).set_tcp_quickack(true).is_err();
            is_closed || unacknowledged_bytes(&self.target).is_ok_and(|bytes| bytes == 0)
        });
    }

    /// Returns the responses that have arrived, and `false` if the target has closed the connection.
    pub(super) fn receive(&mut self) -> (Vec<Response>, bool) {
        self.drain();
        let mut responses = Vec::new();
        while let Some((pdu, data)) = self.poll_pdu() {
            responses.extend(self.handle(pdu, data));
        }
        (responses, self.is_open)
    }

    fn poll_pdu(&mut self) -> Option<(ControllerPdu, Vec<u8>)> {
        let framing = Framing::default();
        let header = CommonHeader::decode(self.received.get(..CommonHeader::LEN)?.try_into().ok()?);
        let header = header.expect("a PDU");
        if self.received.len() < header.plen as usize {
            return None;
        }
        let bytes: Vec<u8> = self.received.drain(..header.plen as usize).collect();
        let data = bytes[header.prefix_len(&framing).min(bytes.len())..].to_vec();
        Some((ControllerPdu::decode(&bytes, &framing).expect("a PDU of a controller"), data))
    }

    fn handle(&mut self, pdu: ControllerPdu, data: Vec<u8>) -> Option<Response> {
        let entry = match pdu {
            ControllerPdu::IcResp(_) => CompletionEntry::default(),
            ControllerPdu::R2t(r2t) => {
                self.granted.push_back(r2t);
                return None;
            }
            ControllerPdu::C2hData(header) => {
                let arriving = self.arriving.entry(header.cccid).or_default();
                assert_eq!(arriving.len(), header.datao as usize);
                arriving.extend(data);
                if !header.success {
                    return None;
                }
                CompletionEntry { cid: header.cccid, ..CompletionEntry::default() }
            }
            ControllerPdu::CapsuleResp(response) => response.entry,
            ControllerPdu::TermReq(request) => panic!("the target ends the connection: {request:?}"),
        };
        self.outgoing.remove(&entry.cid);
        self.granted.retain(|r2t| r2t.cccid != entry.cid);
        Some(Response { entry, data: self.arriving.remove(&entry.cid).unwrap_or_default() })
    }

    /// Closes the connection, with a reset if `is_reset`.
    pub(super) fn close(self, is_reset: bool) {
        if is_reset {
            // Otherwise the ports of the machine would soon be used up.
            let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        }
    }
}

fn wait_until(mut is_done: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if is_done() {
            return;
        }
        std::thread::sleep(Duration::from_micros(10));
    }
    panic!("bytes do not arrive");
}
