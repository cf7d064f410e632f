//! The serving side: one `Lane` a connection, one kind of lane for each shape of traffic.

use std::io::{self, IoSlice, IoSliceMut};

use super::batch::Gather;
use super::connection::Connection;
use super::granted::GrantedLane;
use super::memory::{Block, blocks, touch};
use super::units::Units;
use super::work::{C2H_DATA_PDU, COMMAND_BYTES, HEADER_BYTES, RESPONSE_PDU, Work, decode_block, header};

/// Serves all connections until the host has closed every one.
pub fn serve(connections: Vec<Connection>, work: Work, depth: usize, served: &mut [Block]) -> io::Result<()> {
    let lane = |connection| Lane::new(connection, work, depth);
    let mut lanes = connections.into_iter().map(lane).collect::<io::Result<Vec<Lane>>>()?;
    while !lanes.is_empty() {
        lanes.retain_mut(|lane| lane.turn(served).is_ok());
    }
    Ok(())
}

enum Lane {
    Read(ReadLane),
    Capsule(CapsuleLane),
    Granted(GrantedLane),
}

impl Lane {
    fn new(connection: Connection, work: Work, depth: usize) -> io::Result<Lane> {
        Ok(match work {
            Work::Read4k | Work::Read128k => Lane::Read(ReadLane::new(connection, depth)),
            Work::Write4k => Lane::Capsule(CapsuleLane::new(connection, work, depth)?),
            Work::Write128k => Lane::Granted(GrantedLane::new(connection, work, depth)?),
        })
    }

    fn turn(&mut self, served: &mut [Block]) -> io::Result<()> {
        match self {
            Lane::Read(lane) => lane.turn(served),
            Lane::Capsule(lane) => lane.turn(served),
            Lane::Granted(lane) => lane.turn(served),
        }
    }
}

/// Commands in, header and block out for each.
struct ReadLane {
    connection: Connection,
    commands: Vec<u8>,
    filled: usize,
    gather: Gather,
}

impl ReadLane {
    fn new(connection: Connection, depth: usize) -> ReadLane {
        ReadLane {
            connection,
            commands: vec![0; depth * COMMAND_BYTES],
            filled: 0,
            gather: Gather::default(),
        }
    }

    fn turn(&mut self, served: &[Block]) -> io::Result<()> {
        let place = IoSliceMut::new(&mut self.commands[self.filled..]);
        self.filled += self.connection.receive(&mut [place])?;
        let whole = self.filled / COMMAND_BYTES * COMMAND_BYTES;
        if whole == 0 {
            return Ok(());
        }
        let mut batch = self.gather.take();
        for command in self.commands[..whole].chunks_exact(COMMAND_BYTES) {
            let block = &*served[decode_block(command)];
            touch(block);
            batch.push(IoSlice::new(&DATA_HEADER));
            batch.push(IoSlice::new(block));
        }
        let sent = self.connection.send(&mut batch);
        self.gather.put(batch);
        self.commands.copy_within(whole..self.filled, 0);
        self.filled -= whole;
        sent
    }
}

const DATA_HEADER: [u8; HEADER_BYTES] = header(C2H_DATA_PDU);

/// Command and block in one capsule, a response out. A block is received into a fresh page and published by
/// swapping it with the page that was served.
struct CapsuleLane {
    connection: Connection,
    units: Units,
    fresh: Vec<Block>,
    responses: Vec<u8>,
}

impl CapsuleLane {
    fn new(connection: Connection, work: Work, depth: usize) -> io::Result<CapsuleLane> {
        Ok(CapsuleLane {
            connection,
            units: Units::new(COMMAND_BYTES, depth),
            fresh: blocks(depth, work.block_bytes())?,
            responses: header(RESPONSE_PDU).repeat(depth),
        })
    }

    fn turn(&mut self, served: &mut [Block]) -> io::Result<()> {
        let whole = self.units.receive(&mut self.connection, &mut self.fresh)?;
        if whole == 0 {
            return Ok(());
        }
        for index in 0..whole {
            let block = decode_block(self.units.header(index));
            let fresh = &mut self.fresh[self.units.place(index)];
            std::mem::swap(&mut served[block], fresh);
            touch(fresh);
        }
        self.units.advance(whole, self.fresh[0].len());
        self.connection.send(&mut [IoSlice::new(&self.responses[..whole * HEADER_BYTES])])
    }
}
