//! Target for a virtqueue: a guest writes anything to its memory and to the file of requests in flight, and the server
//! restarts.
//!
//! Invariants: no content causes a panic, each command addresses blocks that exist, and at most as many requests as the
//! queue has descriptors are in flight.

use std::collections::VecDeque;
use std::sync::Arc;

use isolane_shm::SharedMemory;
use isolane_vhost::device::{MAX_PAYLOAD_BYTES, MAX_QUEUES};
use isolane_vhost::request::{BlockHeader, Command, RangeSegment, Status, request_type};
use isolane_vhost::{Device, GuestMemory, InflightFile, Permit, RegionSpec, Ring, RingConfig, Taken};
use isolane_volume::{Identity, VolumeInfo};

use crate::Target;

pub const TARGETS: &[Target] = &[Target { name: "vhost-ring", check: ring, corpus: dialogues }];

/// Address of the memory in the guest, and in the monitor.
const GUEST: u64 = 0x10000;
const USER: u64 = 0x7000_0000;
const BYTES: usize = 0x10000;
const SIZE: u16 = 8;
const DESCRIPTORS: u16 = 0;
const AVAILABLE: u16 = 0x100;
const USED: u16 = 0x200;
const BLOCKS: u64 = 1 << 12;

/// Operations of an input. The first two have an offset of two bytes, a length, and data.
const WRITE: u8 = 0;
const WRITE_INFLIGHT: u8 = 1;
const POLL: u8 = 2;
const COMPLETE: u8 = 3;
const RESTART: u8 = 4;

struct Guest {
    memory: SharedMemory,
    mapped: Arc<GuestMemory>,
    device: Arc<Device>,
    inflight: InflightFile,
    event_index: bool,
}

impl Guest {
    fn start(&self, has_inflight: bool) -> Option<Ring> {
        let config = RingConfig {
            index: 0,
            size: SIZE,
            descriptors: USER + u64::from(DESCRIPTORS),
            available: USER + u64::from(AVAILABLE),
            used: USER + u64::from(USED),
            base: 0,
            event_index: self.event_index,
        };
        let inflight = has_inflight.then_some(&self.inflight);
        Ring::new(config, Arc::clone(&self.device), Arc::clone(&self.mapped), inflight).ok()
    }
}

/// The first byte selects features.
fn ring(input: &[u8]) {
    let Some((mode, mut bytes)) = input.split_first() else { return };
    let memory = SharedMemory::create("fuzz-guest", BYTES).expect("memory");
    let spec = RegionSpec { guest: GUEST, len: BYTES as u64, user: USER, offset: 0 };
    let file = memory.memfd().try_clone_to_owned().expect("a descriptor");
    let info = VolumeInfo {
        block_size: if mode & 4 == 0 { 512 } else { 4096 },
        blocks: BLOCKS,
        read_only: mode & 8 != 0,
        volatile_cache: true,
        deallocate: true,
        zeroes_after_deallocate: true,
    };
    let guest = Guest {
        memory,
        mapped: Arc::new(GuestMemory::map(vec![(spec, file)]).expect("a valid region")),
        device: Arc::new(Device::new(info, &Identity::derived(b"disk"), MAX_QUEUES)),
        inflight: InflightFile::create(1, SIZE).expect("memory"),
        event_index: mode & 1 != 0,
    };
    let has_inflight = mode & 2 != 0;
    let (mut ring, mut permits) = (guest.start(has_inflight), VecDeque::new());
    while let Some((operation, rest)) = bytes.split_first() {
        bytes = rest;
        match *operation % 5 {
            POLL => poll(&guest, ring.as_mut(), &mut permits),
            COMPLETE => complete(ring.as_mut(), &mut permits),
            RESTART => {
                permits.clear();
                ring = guest.start(has_inflight);
            }
            target => {
                let [low, high, len, rest @ ..] = bytes else { break };
                let (data, rest) = rest.split_at(rest.len().min(usize::from(*len)));
                let memory = if target == WRITE { &guest.memory } else { guest.inflight.memory() };
                // Outside: nothing is written.
                let _ = memory.copy_in(u64::from(u16::from_le_bytes([*low, *high])), data);
                bytes = rest;
            }
        }
    }
    poll(&guest, ring.as_mut(), &mut permits);
    while !permits.is_empty() {
        complete(ring.as_mut(), &mut permits);
    }
    assert!(ring.is_none_or(|ring| ring.in_flight() == 0), "a request is left");
}

fn poll(guest: &Guest, ring: Option<&mut Ring>, permits: &mut VecDeque<Permit>) {
    let Some(ring) = ring else { return };
    ring.suppress_notifications();
    loop {
        match ring.poll() {
            Ok(Some(Taken { permit, command })) => {
                permits.push_back(permit);
                if let Ok(command) = command {
                    check(guest, &command);
                }
            }
            Ok(None) => break,
            Err(_) => {
                assert!(matches!(ring.poll(), Ok(None)), "a queue continues after its error");
                break;
            }
        }
        assert!(ring.in_flight() <= SIZE.into(), "more requests than descriptors");
    }
    assert_eq!(ring.in_flight(), permits.len());
}

fn check(guest: &Guest, command: &Command) {
    let info = &guest.device.info;
    let exists = |lba: u64, blocks: u64| assert!(lba + blocks <= info.blocks && blocks > 0, "{command:?}");
    assert!(!info.read_only || matches!(command, Command::Read { .. } | Command::Flush | Command::Id(_)));
    match command {
        Command::Read { lba, blocks, data } | Command::Write { lba, blocks, data } => {
            exists(*lba, *blocks);
            assert_eq!(data.len() as u64, blocks * u64::from(info.block_size));
            assert!(data.len() <= MAX_PAYLOAD_BYTES as usize);
            let mut bytes = vec![0; data.len()];
            data.copy_out(0, &mut bytes);
        }
        Command::Discard(ranges) => ranges.iter().for_each(|range| exists(range.lba, range.blocks)),
        Command::WriteZeroes { range, .. } => exists(range.lba, range.blocks),
        Command::Id(data) => data.copy_in(0, &guest.device.id[..data.len().min(20)]),
        Command::Flush => {}
    }
}

fn complete(ring: Option<&mut Ring>, permits: &mut VecDeque<Permit>) {
    if let (Some(ring), Some(permit)) = (ring, permits.pop_front()) {
        ring.complete(permit, Status::Ok);
        ring.needs_notification();
    }
}

fn write(offset: u16, data: &[u8]) -> Vec<u8> {
    [&[WRITE][..], &offset.to_le_bytes(), &[data.len() as u8], data].concat()
}

fn descriptor(table: u16, at: u16, (offset, len, flags, next): (u16, u32, u16, u16)) -> Vec<u8> {
    let address = (GUEST + u64::from(offset)).to_le_bytes();
    let fields = [&address[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
    write(table + 16 * at, &fields)
}

fn available(heads: &[u16]) -> Vec<u8> {
    let words = [&[0, heads.len() as u16], heads].concat();
    write(AVAILABLE, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
}

/// Each request, in a chain and in an indirect table, with restarts.
fn dialogues() -> Vec<Vec<u8>> {
    let header = |kind, sector| BlockHeader { kind, sector }.encode();
    let range = RangeSegment { sector: 8, sectors: 8, flags: 0 }.encode();
    let request = |mode: u8, kind: u32, data: (u16, u32, u16, u16)| {
        [
            &[mode][..],
            &write(0x1000, &header(kind, 8)),
            &write(0x4000, &range),
            &descriptor(DESCRIPTORS, 0, (0x1000, 16, 1, 1)),
            &descriptor(DESCRIPTORS, 1, data),
            &descriptor(DESCRIPTORS, 2, (0x1020, 1, 2, 0)),
            &available(&[0]),
            &[POLL, RESTART, POLL, COMPLETE, RESTART, POLL],
        ]
        .concat()
    };
    let indirect = [
        &[3][..],
        &write(0x1000, &header(request_type::OUT, 0)),
        &descriptor(0x2000, 0, (0x1000, 16, 1, 1)),
        &descriptor(0x2000, 1, (0x4000, 4096, 1, 2)),
        &descriptor(0x2000, 2, (0x1020, 1, 2, 0)),
        &descriptor(DESCRIPTORS, 5, (0x2000, 48, 4, 0)),
        &available(&[5]),
        &[POLL, COMPLETE],
    ]
    .concat();
    let inflight = [&[2, WRITE_INFLIGHT, 0, 0, 48][..], &[1; 48], &[RESTART, POLL, COMPLETE]].concat();
    vec![
        request(2, request_type::IN, (0x4000, 4096, 3, 2)),
        request(6, request_type::OUT, (0x4000, 8192, 1, 2)),
        request(3, request_type::DISCARD, (0x4000, 16, 1, 2)),
        request(1, request_type::WRITE_ZEROES, (0x4000, 16, 1, 2)),
        request(10, request_type::GET_ID, (0x4000, 20, 3, 2)),
        request(0, request_type::FLUSH, (0x4000, 0, 1, 2)),
        indirect,
        inflight,
    ]
}
