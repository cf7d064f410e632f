//! One I/O connection: reads under way, and how the next ones leave.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use super::Options;
use super::association::Namespace;
use super::pdu::{
    C2H_DATA, COMMAND_BYTES, Command, HEADER_BYTES, RESPONSE, SUCCESS, length, response_cid, status,
};

/// One I/O connection.
pub struct Lane {
    stream: TcpStream,
    /// What was received and not looked at yet: never more than the start of a header.
    input: Vec<u8>,
    filled: usize,
    /// Bytes of the running data PDU that are still to come.
    data_left: usize,
    /// The command that these data belong to, if nothing else will answer it.
    answered_by_data: Option<u16>,
    commands: Vec<Command>,
    answered: Vec<u16>,
    output: Vec<u8>,
    is_single: bool,
    slots: u64,
    blocks_per_slot: u64,
    random: fastrand::Rng,
}

impl Lane {
    /// A connection without commands.
    pub fn new(stream: TcpStream, namespace: Namespace, options: &Options) -> io::Result<Lane> {
        stream.set_nonblocking(true)?;
        let blocks_per_slot = u64::from(options.block_bytes / namespace.block_bytes).max(1);
        let length = (blocks_per_slot as u16 - 1).to_le_bytes();
        let command = |cid| {
            let read = Command::new(0x02, cid).set(4, &1_u32.to_le_bytes());
            read.reading(options.block_bytes).set(48, &length)
        };
        Ok(Lane {
            stream,
            input: vec![0; INPUT_BYTES.min(usize::from(options.depth) * (64 + options.block_bytes as usize))],
            filled: 0,
            data_left: 0,
            answered_by_data: None,
            commands: (0..options.depth).map(command).collect(),
            answered: Vec::with_capacity(options.depth.into()),
            output: Vec::with_capacity(COMMAND_BYTES * usize::from(options.depth)),
            is_single: options.single,
            slots: namespace.blocks / blocks_per_slot,
            blocks_per_slot,
            random: fastrand::Rng::with_seed(1),
        })
    }

    /// Sends the first commands.
    pub fn start(&mut self, depth: u16) -> io::Result<()> {
        self.answered.extend(0..depth);
        self.ask()
    }

    /// Receives once, and asks again for what was answered, of which it returns the number.
    pub fn turn(&mut self) -> io::Result<u64> {
        self.receive()?;
        let answered = self.answered.len() as u64;
        if answered > 0 {
            self.ask()?;
        }
        Ok(answered)
    }

    /// Receives once, asks for nothing, and says whether anything was answered.
    pub fn is_answered(&mut self) -> io::Result<bool> {
        self.receive()?;
        Ok(!self.answered.is_empty())
    }

    fn ask(&mut self) -> io::Result<()> {
        self.output.clear();
        for cid in self.answered.drain(..) {
            let slba = self.random.u64(0..self.slots) * self.blocks_per_slot;
            let command = &mut self.commands[usize::from(cid)].0;
            command[48..56].copy_from_slice(&slba.to_le_bytes());
            self.output.extend_from_slice(command);
        }
        let size = if self.is_single { COMMAND_BYTES } else { self.output.len() };
        for part in self.output.chunks(size) {
            send(&mut self.stream, part)?;
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        match self.stream.read(&mut self.input[self.filled..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(received) => self.filled += received,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
        let mut at = 0;
        loop {
            at += self.skip_data(self.filled - at);
            if self.data_left > 0 || self.filled - at < HEADER_BYTES {
                break;
            }
            let header: [u8; HEADER_BYTES] = self.input[at..][..HEADER_BYTES].try_into().expect("24 bytes");
            self.on_header(&header)?;
            at += HEADER_BYTES;
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }

    fn skip_data(&mut self, received: usize) -> usize {
        let taken = received.min(self.data_left);
        self.data_left -= taken;
        if self.data_left == 0 {
            self.answered.extend(self.answered_by_data.take());
        }
        taken
    }

    fn on_header(&mut self, header: &[u8; HEADER_BYTES]) -> io::Result<()> {
        match header[0] {
            C2H_DATA => {
                self.data_left = length(header).saturating_sub(HEADER_BYTES);
                let cid = u16::from_le_bytes([header[8], header[9]]);
                self.answered_by_data = (header[1] & SUCCESS != 0).then_some(cid);
            }
            RESPONSE if status(header) == 0 => self.answered.push(response_cid(header)),
            RESPONSE => return Err(io::Error::other(format!("a read failed with {:#x}", status(header)))),
            kind => return Err(io::Error::other(format!("PDU type {kind:#04x} instead of an answer"))),
        }
        Ok(())
    }
}

const INPUT_BYTES: usize = 1 << 20;

fn send(stream: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
