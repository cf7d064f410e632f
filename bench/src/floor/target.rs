//! The target side, with one kind of connection for each kind of traffic.

use std::io::{self, IoSlice};

use super::memory::{Block, blocks, touch};
use super::r2t_write::R2tWriteConn;
use super::units::{Gather, Headers, Units};
use super::work::{TargetConn, Work, decode_block, header};
use crate::socket::{C2H_DATA_PDU, COMMAND_BYTES, HEADER_BYTES, RESPONSE_PDU, Socket};

/// Serves all connections until the host has closed each of them.
pub fn serve(sockets: Vec<Socket>, work: Work, depth: usize, served: &mut [Block]) -> io::Result<()> {
    let conns = sockets.into_iter().map(|socket| conn(socket, work, depth));
    let mut conns = conns.collect::<io::Result<Vec<_>>>()?;
    while !conns.is_empty() {
        conns.retain_mut(|conn| conn.turn(served).is_ok());
    }
    Ok(())
}

fn conn(socket: Socket, work: Work, depth: usize) -> io::Result<Box<dyn TargetConn>> {
    Ok(match work {
        Work::Read4k | Work::Read128k => {
            Box::new(ReadConn { socket, commands: Headers::new(COMMAND_BYTES, depth) })
        }
        Work::Write4k => Box::new(CapsuleConn {
            socket,
            units: Units::new(COMMAND_BYTES, depth),
            spare: blocks(depth, work.block_bytes())?,
            responses: header(RESPONSE_PDU).repeat(depth),
        }),
        Work::Write128k => Box::new(R2tWriteConn::new(socket, work, depth)?),
    })
}

/// Receives commands, and sends a header and a block for each.
struct ReadConn {
    socket: Socket,
    commands: Headers,
}

impl TargetConn for ReadConn {
    fn turn(&mut self, served: &mut [Block]) -> io::Result<()> {
        let count = self.commands.receive(&mut self.socket)?;
        if count == 0 {
            return Ok(());
        }
        let mut batch = Gather::new();
        for command in self.commands.first(count) {
            let block = &*served[decode_block(command)];
            touch(block);
            batch.push(IoSlice::new(&DATA_HEADER));
            batch.push(IoSlice::new(block));
        }
        self.socket.send(&mut batch)?;
        self.commands.advance(count);
        Ok(())
    }
}

const DATA_HEADER: [u8; HEADER_BYTES] = header(C2H_DATA_PDU);

/// Receives command and block in one capsule, and sends a response. A block is received into a spare page and
/// published by a swap with the served page.
struct CapsuleConn {
    socket: Socket,
    units: Units,
    spare: Vec<Block>,
    responses: Vec<u8>,
}

impl TargetConn for CapsuleConn {
    fn turn(&mut self, served: &mut [Block]) -> io::Result<()> {
        let count = self.units.receive(&mut self.socket, &mut self.spare)?;
        if count == 0 {
            return Ok(());
        }
        for index in 0..count {
            let block = decode_block(self.units.header(index));
            let spare = &mut self.spare[self.units.position(index)];
            std::mem::swap(&mut served[block], spare);
            touch(spare);
        }
        self.units.advance(count, self.spare[0].len());
        self.socket.send(&mut [IoSlice::new(&self.responses[..count * HEADER_BYTES])])
    }
}
