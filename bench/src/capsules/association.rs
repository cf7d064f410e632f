//! Connecting: the admin queue, the controller, the namespace, the I/O queues.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::pdu::{C2H_DATA, Command, HEADER_BYTES, INITIALIZE_BYTES, RESPONSE, initialize, length, status};

/// A controller that is ready.
pub struct Association {
    address: SocketAddr,
    admin: TcpStream,
    nqn: String,
    host: u32,
    controller: u16,
    /// The namespace that is read.
    pub namespace: Namespace,
}

/// A namespace.
#[derive(Clone, Copy, Debug)]
pub struct Namespace {
    /// Number of its blocks.
    pub blocks: u64,
    /// Bytes of one of them.
    pub block_bytes: u32,
}

/// Entries of every queue.
pub const QUEUE_ENTRIES: u16 = 128;

impl Association {
    /// Connects host number `host` and enables its controller.
    pub fn connect(address: SocketAddr, nqn: &str, host: u32, queues: u16) -> io::Result<Association> {
        let mut admin = open(address)?;
        let answer = connect_queue(&mut admin, nqn, host, 0xffff, 0)?;
        let controller = u16::from_le_bytes([answer.0[8], answer.0[9]]);
        // CC: enabled, entries of 64 and of 16 bytes.
        let enable =
            Command::fabrics(0x00).set(44, &0x14_u32.to_le_bytes()).set(48, &0x0046_0001_u32.to_le_bytes());
        ask(&mut admin, &enable.0)?;
        wait_until_ready(&mut admin)?;
        let count = u32::from(queues - 1);
        let features = Command::new(0x09, 0).set(40, &[0x07]).set(44, &(count << 16 | count).to_le_bytes());
        ask(&mut admin, &features.0)?;
        let identify = Command::new(0x06, 0).set(4, &1_u32.to_le_bytes()).reading(4096);
        let namespace = Namespace::parse(&ask(&mut admin, &identify.0)?.1)?;
        Ok(Association { address, admin, nqn: nqn.to_owned(), host, controller, namespace })
    }

    /// Connects an I/O queue.
    pub fn connect_queue(&mut self, queue: u16) -> io::Result<TcpStream> {
        // The admin queue stays as long as the value lives.
        self.admin.set_nodelay(true)?;
        let mut stream = open(self.address)?;
        connect_queue(&mut stream, &self.nqn, self.host, self.controller, queue)?;
        Ok(stream)
    }
}

impl Namespace {
    fn parse(identify: &[u8]) -> io::Result<Namespace> {
        if identify.len() != 4096 {
            return Err(io::Error::other("Identify brought no namespace"));
        }
        let blocks = u64::from_le_bytes(identify[..8].try_into().expect("eight bytes"));
        let format = usize::from(identify[26] & 0x0f);
        let shift = identify[128 + 4 * format + 2];
        match (blocks, shift) {
            (1.., 9..=16) => Ok(Namespace { blocks, block_bytes: 1 << shift }),
            _ => Err(io::Error::other("there is no namespace 1 to read")),
        }
    }
}

fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(&initialize())?;
    let mut answer = [0; INITIALIZE_BYTES];
    stream.read_exact(&mut answer)?;
    match answer[0] {
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
) -> io::Result<Answer> {
    let mut data = [0; 1024];
    data[..4].copy_from_slice(b"benc");
    data[12..16].copy_from_slice(&(host + 1).to_be_bytes());
    data[16..18].copy_from_slice(&controller.to_le_bytes());
    data[256..][..nqn.len()].copy_from_slice(nqn.as_bytes());
    let name = format!("nqn.2014-08.org.nvmexpress:uuid:62656e63-0000-0000-0000-0000{:08x}", host + 1);
    data[512..][..name.len()].copy_from_slice(name.as_bytes());
    let entries = if queue == 0 { 32 } else { QUEUE_ENTRIES };
    let command = Command::fabrics(0x01);
    let command = command.set(42, &queue.to_le_bytes()).set(44, &(entries - 1).to_le_bytes());
    ask(stream, &command.carrying(&data))
}

fn wait_until_ready(admin: &mut TcpStream) -> io::Result<()> {
    let until = Instant::now() + Duration::from_secs(20);
    let status = Command::fabrics(0x04).set(44, &0x1c_u32.to_le_bytes());
    while ask(admin, &status.0)?.0[8] & 1 == 0 {
        if Instant::now() > until {
            return Err(io::Error::other("the controller does not get ready"));
        }
    }
    Ok(())
}

/// A response and the data that came before it.
type Answer = ([u8; HEADER_BYTES], Vec<u8>);

/// Sends one command and waits for its response.
fn ask(stream: &mut TcpStream, command: &[u8]) -> io::Result<Answer> {
    stream.write_all(command)?;
    let mut data = Vec::new();
    loop {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header)?;
        match header[0] {
            C2H_DATA => {
                let mut part = vec![0; length(&header).saturating_sub(HEADER_BYTES).min(4096)];
                stream.read_exact(&mut part)?;
                // What precedes the data is padding.
                data.extend_from_slice(&part[usize::from(header[3]).saturating_sub(HEADER_BYTES)..]);
                if header[1] & super::pdu::SUCCESS != 0 {
                    return Ok((header, data));
                }
            }
            RESPONSE if status(&header) == 0 => return Ok((header, data)),
            RESPONSE => return Err(io::Error::other(format!("refused with status {:#x}", status(&header)))),
            kind => return Err(io::Error::other(format!("PDU type {kind:#04x} instead of an answer"))),
        }
    }
}
