//! Target for the connection of an NBD client: handshake, options, and requests in any pieces.
//!
//! Invariants: no input causes a panic or an unbounded output, and every accepted request gets one reply.

use std::sync::Arc;

use isolane_connection::{ReceivePlan, TransmitPlan};
use isolane_memory::{Buffer, Payload};
use isolane_nbd::wire::{BASE_ALLOCATION, Be, OPTION_MAGIC, OptionHeader, REQUEST_MAGIC, RequestHeader};
use isolane_nbd::{Command, Connection, Event, Export, MAX_PAYLOAD_BYTES};
use isolane_volume::{Extent, VolumeError, VolumeInfo};

use crate::Target;

pub const TARGETS: &[Target] = &[Target { name: "nbd-client", check: client, corpus: dialogues }];

fn export() -> Export {
    let info = VolumeInfo {
        block_size: 512,
        blocks: 1 << 12,
        read_only: false,
        volatile_cache: true,
        deallocate: true,
        zeroes_after_deallocate: true,
    };
    Export { name: "disk".into(), description: "mem:2M".into(), info }
}

/// The first byte is the size of the pieces.
fn client(input: &[u8]) {
    let Some((step, mut bytes)) = input.split_first() else { return };
    let mut conn = Connection::new(Arc::new(export()));
    let mut overflow = vec![0; 256];
    while !bytes.is_empty() {
        let mut plan = ReceivePlan::new();
        conn.fill_receive_plan(&mut overflow, &mut plan);
        let mut count = 0;
        for slice in plan.iter_mut() {
            let len = slice.len().min(bytes.len() - count).min(usize::from(*step) + 1 - count);
            slice[..len].copy_from_slice(&bytes[count..count + len]);
            count += len;
        }
        drop(plan);
        bytes = &bytes[count..];
        conn.handle_received(count);
        loop {
            match conn.poll(&overflow) {
                Ok(Some(event)) => handle(&mut conn, event),
                Ok(None) => break,
                Err(_) => return assert!(conn.is_idle(), "a request is left"),
            }
        }
        while conn.wants_transmit() {
            let mut plan = TransmitPlan::new();
            conn.fill_transmit_plan(&mut plan);
            let count = plan.bytes();
            drop(plan);
            conn.handle_transmitted(count, drop);
        }
    }
    drop(conn.close());
    assert!(conn.is_idle(), "a request is left");
}

fn handle(conn: &mut Connection, event: Event) {
    match event {
        Event::Disconnect => {}
        Event::Memory { len } => {
            assert!(len > 0 && len <= MAX_PAYLOAD_BYTES as usize && len.is_multiple_of(512));
            conn.receive_into(Buffer::contiguous(len));
        }
        Event::Command(permit, command) => {
            let (lba, blocks) = match &command {
                Command::Read { lba, blocks }
                | Command::Write { lba, blocks, .. }
                | Command::Trim { lba, blocks, .. }
                | Command::WriteZeroes { lba, blocks, .. }
                | Command::BlockStatus { lba, blocks, .. } => (*lba, *blocks),
                Command::Flush | Command::Nothing => (0, 0),
            };
            assert!(lba + blocks <= export().info.blocks, "{command:?}");
            match command {
                Command::Read { .. } if lba == 3 => {
                    conn.fail(permit, &VolumeError::ReadFailed { raw_os_error: 5 });
                }
                Command::Read { .. } => {
                    conn.complete_read(permit, Payload::zeroes(blocks as usize * 512));
                }
                Command::BlockStatus { .. } => {
                    conn.complete_status(permit, &[Extent { blocks, is_hole: lba == 0 }]);
                }
                Command::Write { data, .. } => {
                    assert_eq!(data.len() as u64, blocks * 512);
                    conn.complete(permit);
                }
                _ => conn.complete(permit),
            }
        }
    }
}

/// Whole dialogues with each option and each command.
fn dialogues() -> Vec<Vec<u8>> {
    let option = |option: u32, data: &[u8]| {
        let header = OptionHeader { magic: Be(OPTION_MAGIC), option: Be(option), len: Be(data.len() as u32) };
        [&header.encode()[..], data].concat()
    };
    let request = |command: u16, flags: u16, block: u64, blocks: u32| {
        let header = RequestHeader {
            magic: Be(REQUEST_MAGIC),
            flags: Be(flags),
            command: Be(command),
            cookie: Be(block),
            offset: Be(block * 512),
            len: Be(blocks * 512),
        };
        let data = if command == 1 { vec![7; blocks as usize * 512] } else { Vec::new() };
        [&header.encode()[..], &data].concat()
    };
    let context = [&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 15][..], BASE_ALLOCATION].concat();
    let go = option(7, &[0, 0, 0, 4, b'd', b'i', b's', b'k', 0, 1, 0, 3]);
    let requests = [
        request(1, 1, 0, 2),
        request(0, 4, 0, 3),
        request(0, 0, 3, 1),
        request(3, 0, 0, 0),
        request(4, 1, 8, 8),
        request(6, 2, 8, 8),
        request(7, 8, 0, 16),
        request(1, 0, 4095, 2),
        request(2, 0, 0, 0),
    ];
    let negotiation = [option(8, b""), option(9, &context), option(10, &context), option(3, b"")].concat();
    let flags = [255, 0, 0, 0, 3];
    vec![
        [&flags[..], &negotiation, &go, &requests.concat()].concat(),
        [&flags[..], &option(1, b"disk"), &requests.concat()].concat(),
        [&flags[..], &option(6, &[0; 6]), &option(5, b""), &option(77, b"data"), &option(2, b"")].concat(),
    ]
}
