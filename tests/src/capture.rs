//! Captures in the format of tcpdump, for other implementations of the protocol.
//!
//! One TCP conversation between two made-up addresses; the target's port is 4420, which dissectors know.
//! IP checksums are valid; TCP checksums are zero.

use std::io::{self, Write};

/// Sender of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// The connecting side.
    Host,
    /// The side with port 4420.
    Target,
}

/// Writes one conversation.
pub struct Capture<W: Write> {
    out: W,
    sent: [u32; 2],
    packets: u32,
}

/// Maximum payload of a segment.
const SEGMENT_BYTES_MAX: usize = 16 << 10;
const ADDRESSES: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];
const PORTS: [u16; 2] = [50000, 4420];

impl<W: Write> Capture<W> {
    /// Starts a capture with the TCP handshake.
    pub fn new(mut out: W) -> io::Result<Capture<W>> {
        const MAGIC: u32 = 0xa1b2_c3d4;
        const LINK_RAW_IP: u32 = 101;
        out.write_all(&MAGIC.to_le_bytes())?;
        out.write_all(&[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
        out.write_all(&(256u32 << 10).to_le_bytes())?;
        out.write_all(&LINK_RAW_IP.to_le_bytes())?;
        let mut capture = Capture { out, sent: [0; 2], packets: 0 };
        capture.packet(From::Host, SYN, &[])?;
        capture.packet(From::Target, SYN | ACK, &[])?;
        capture.sent = [1, 1];
        capture.packet(From::Host, ACK, &[])?;
        Ok(capture)
    }

    /// Appends bytes that one side sent.
    pub fn send(&mut self, from: From, bytes: &[u8]) -> io::Result<()> {
        for segment in bytes.chunks(SEGMENT_BYTES_MAX) {
            self.packet(from, ACK | PUSH, segment)?;
            self.sent[from as usize] = self.sent[from as usize].wrapping_add(segment.len() as u32);
        }
        Ok(())
    }

    fn packet(&mut self, from: From, flags: u8, payload: &[u8]) -> io::Result<()> {
        let (own, peer) = (from as usize, 1 - from as usize);
        let tcp = tcp_header(own, flags, self.sent[own], self.sent[peer]);
        let ip = ip_header(own, tcp.len() + payload.len());
        let len = (ip.len() + tcp.len() + payload.len()) as u32;
        let microseconds = self.packets * 10;
        self.packets += 1;
        for word in [microseconds / 1_000_000, microseconds % 1_000_000, len, len] {
            self.out.write_all(&word.to_le_bytes())?;
        }
        self.out.write_all(&ip)?;
        self.out.write_all(&tcp)?;
        self.out.write_all(payload)
    }
}

const SYN: u8 = 0x02;
const PUSH: u8 = 0x08;
const ACK: u8 = 0x10;

fn tcp_header(own: usize, flags: u8, sequence: u32, acknowledged: u32) -> [u8; 20] {
    let mut header = [0; 20];
    header[0..2].copy_from_slice(&PORTS[own].to_be_bytes());
    header[2..4].copy_from_slice(&PORTS[1 - own].to_be_bytes());
    header[4..8].copy_from_slice(&sequence.to_be_bytes());
    header[8..12].copy_from_slice(&acknowledged.to_be_bytes());
    header[12] = 5 << 4;
    header[13] = flags;
    header[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
    header
}

fn ip_header(own: usize, content_bytes: usize) -> [u8; 20] {
    const TCP: u8 = 6;
    let mut header = [0; 20];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&(20 + content_bytes as u16).to_be_bytes());
    header[8..10].copy_from_slice(&[64, TCP]);
    header[12..16].copy_from_slice(&ADDRESSES[own]);
    header[16..20].copy_from_slice(&ADDRESSES[1 - own]);
    let sum: u32 = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    header[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    header
}
