//! Connecting of queues, with PDUs encoded byte by byte: admin queue, controller, namespace, I/O queues.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::socket::{C2H_DATA_PDU, COMMAND_BYTES, COMMAND_PDU, HEADER_BYTES, RESPONSE_PDU};

/// C2HData flag: no response capsule follows.
pub const SUCCESS: u8 = 0x08;
/// Entries of each I/O queue.
const QUEUE_ENTRIES: u16 = 128;
const ADMIN_ENTRIES: u16 = 32;
const TIMEOUT: Duration = Duration::from_secs(20);

/// A CapsuleCmd without data.
#[derive(Clone)]
pub struct Command(pub [u8; COMMAND_BYTES]);

impl Command {
    /// Returns a command with an SGL of transport data.
    pub fn new(opcode: u8, cid: u16) -> Command {
        let mut pdu = [0; COMMAND_BYTES];
        (pdu[0], pdu[2], pdu[4]) = (COMMAND_PDU, COMMAND_BYTES as u8, COMMAND_BYTES as u8);
        Command(pdu).set(0, &[opcode, 0x40]).set(2, &cid.to_le_bytes()).set(39, &[0x5a])
    }

    fn fabrics(kind: u8) -> Command {
        Command::new(0x7f, 0).set(4, &[kind])
    }

    /// Sets bytes of the submission queue entry.
    pub fn set(mut self, offset: usize, bytes: &[u8]) -> Command {
        self.0[8 + offset..][..bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Changes the namespace.
    pub fn set_nsid(&mut self, nsid: u32) {
        self.0[12..16].copy_from_slice(&nsid.to_le_bytes());
    }

    /// Requests data by C2HData.
    pub fn reading(self, bytes: u32) -> Command {
        self.set(32, &bytes.to_le_bytes())
    }

    /// Appends in-capsule data.
    fn carrying(self, data: &[u8]) -> Vec<u8> {
        let mut command = self.set(32, &(data.len() as u32).to_le_bytes()).set(39, &[0x01]);
        command.0[3] = COMMAND_BYTES as u8;
        command.0[4..8].copy_from_slice(&((COMMAND_BYTES + data.len()) as u32).to_le_bytes());
        [&command.0, data].concat()
    }
}

/// Returns the length of a PDU.
pub fn length(header: &[u8]) -> usize {
    u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize
}

/// Returns the status of a response, without its phase.
pub fn status(header: &[u8]) -> u16 {
    u16::from_le_bytes([header[22], header[23]]) >> 1
}

/// A ready controller. Its admin queue stays connected until the drop.
pub struct Association {
    address: SocketAddr,
    _admin: TcpStream,
    nqn: String,
    host: u32,
    controller: u16,
    /// The namespace to read.
    pub namespace: Namespace,
}

/// A namespace.
#[derive(Clone, Copy, Debug)]
pub struct Namespace {
    /// Number of blocks.
    pub blocks: u64,
    /// Block size.
    pub block_bytes: u32,
}

impl Association {
    /// Connects host number `host` and enables its controller.
    pub fn connect(address: SocketAddr, nqn: &str, host: u32, queues: u16) -> io::Result<Association> {
        let mut admin = open(address)?;
        let (response, _) = connect_queue(&mut admin, nqn, host, 0xffff, 0)?;
        let controller = u16::from_le_bytes([response[8], response[9]]);
        // CC: enabled, entries of 64 and of 16 bytes.
        let enable = Command::fabrics(0x00).set(44, &0x14_u32.to_le_bytes());
        execute(&mut admin, &enable.set(48, &0x0046_0001_u32.to_le_bytes()).0)?;
        let deadline = Instant::now() + TIMEOUT;
        let csts = Command::fabrics(0x04).set(44, &0x1c_u32.to_le_bytes());
        while execute(&mut admin, &csts.0)?.0[8] & 1 == 0 {
            if Instant::now() > deadline {
                return Err(io::Error::other("the controller is not ready in time"));
            }
        }
        let count = u32::from(queues - 1);
        let features = Command::new(0x09, 0).set(40, &[0x07]).set(44, &(count << 16 | count).to_le_bytes());
        execute(&mut admin, &features.0)?;
        let identify = Command::new(0x06, 0).set(4, &1_u32.to_le_bytes()).reading(4096);
        let namespace = Namespace::parse(&execute(&mut admin, &identify.0)?.1)?;
        Ok(Association { address, _admin: admin, nqn: nqn.to_owned(), host, controller, namespace })
    }

    /// Connects an I/O queue.
    pub fn connect_queue(&self, queue: u16) -> io::Result<TcpStream> {
        let mut stream = open(self.address)?;
        connect_queue(&mut stream, &self.nqn, self.host, self.controller, queue)?;
        Ok(stream)
    }
}

impl Namespace {
    fn parse(identify: &[u8]) -> io::Result<Namespace> {
        let error = || io::Error::other("the subsystem has no readable namespace 1");
        let blocks = identify.get(..8).ok_or_else(error)?.try_into().map(u64::from_le_bytes);
        let format = 4 * usize::from(identify.get(26).ok_or_else(error)? & 0x0f);
        match (blocks, identify.get(128 + format + 2)) {
            (Ok(blocks @ 1..), Some(shift @ 9..=16)) => Ok(Namespace { blocks, block_bytes: 1 << shift }),
            _ => Err(error()),
        }
    }
}

fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    // ICReq without digests, one R2T at a time; ICResp has its size.
    let mut pdu = [0; 128];
    (pdu[2], pdu[4]) = (128, 128);
    stream.write_all(&pdu)?;
    stream.read_exact(&mut pdu)?;
    match pdu[0] {
        0x01 => Ok(stream),
        kind => Err(io::Error::other(format!("PDU type {kind:#04x} instead of ICResp"))),
    }
}

fn connect_queue(
    stream: &mut TcpStream,
    nqn: &str,
    host: u32,
    controller: u16,
    queue: u16,
) -> io::Result<Response> {
    let mut data = [0; 1024];
    data[..4].copy_from_slice(b"benc");
    data[12..16].copy_from_slice(&(host + 1).to_be_bytes());
    data[16..18].copy_from_slice(&controller.to_le_bytes());
    data[256..][..nqn.len()].copy_from_slice(nqn.as_bytes());
    let name = format!("nqn.2014-08.org.nvmexpress:uuid:62656e63-0000-0000-0000-0000{:08x}", host + 1);
    data[512..][..name.len()].copy_from_slice(name.as_bytes());
    let entries = if queue == 0 { ADMIN_ENTRIES } else { QUEUE_ENTRIES };
    let command = Command::fabrics(0x01).set(42, &queue.to_le_bytes()).set(44, &(entries - 1).to_le_bytes());
    execute(stream, &command.carrying(&data))
}

/// A response and the data that preceded it.
type Response = ([u8; HEADER_BYTES], Vec<u8>);

/// Sends one command and waits for its response.
fn execute(stream: &mut TcpStream, command: &[u8]) -> io::Result<Response> {
    stream.write_all(command)?;
    let mut data = Vec::new();
    loop {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header)?;
        match header[0] {
            C2H_DATA_PDU => {
                let mut part = vec![0; length(&header).saturating_sub(HEADER_BYTES).min(4096)];
                stream.read_exact(&mut part)?;
                // Padding precedes the data.
                data.extend_from_slice(&part[usize::from(header[3]).saturating_sub(HEADER_BYTES)..]);
                if header[1] & SUCCESS != 0 {
                    return Ok((header, data));
                }
            }
            RESPONSE_PDU if status(&header) == 0 => return Ok((header, data)),
            RESPONSE_PDU => {
                return Err(io::Error::other(format!("command failed with status {:#x}", status(&header))));
            }
            kind => return Err(io::Error::other(format!("PDU type {kind:#04x} instead of a response"))),
        }
    }
}
