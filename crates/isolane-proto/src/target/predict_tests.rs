//! Predictions do not change the events of receiving, for any input from the host.

use std::collections::VecDeque;
use std::time::Instant;

use isolane_memory::{Buffer, PAGE_SIZE, Page, Pool};
use isolane_wire::digest::crc32c;
use isolane_wire::pdu::{CapsuleCmd, Digests, IcReq};
use isolane_wire::{Framing, Sgl, Status, SubmissionEntry};
use proptest::prelude::*;

use super::*;
use crate::Completion;
use crate::scenario_tests::pair::{fill, pattern};

/// Handling of in-capsule data by the driver.
#[derive(Clone, Copy, Debug)]
enum DataHandling {
    /// Provides pages of its pool.
    Pages,
    /// Provides one block.
    Block,
    /// Rejects the command.
    Refuse,
    /// Defers the remaining input, because no memory is free.
    Stall,
}

/// A target with its driver, and the stream from the host.
struct Target {
    conn: Connection,
    framing: Framing,
    stream: VecDeque<u8>,
    handling: VecDeque<DataHandling>,
    staging: Vec<Page>,
    pool: Pool,
    events: Vec<String>,
    now: Instant,
}

impl Target {
    fn connected(digests: Digests, pda: u8, staging: usize) -> Target {
        let now = Instant::now();
        let mut target = Target {
            conn: Connection::new(ConnectionConfig { cpda: pda, ..ConnectionConfig::default() }, now),
            framing: Framing::default(),
            stream: VecDeque::new(),
            handling: VecDeque::new(),
            staging: (0..staging).map(|_| Page::zeroed()).collect(),
            pool: Pool::new(4096),
            events: Vec::new(),
            now,
        };
        target.stream.extend(&*IcReq { hpda: 0, digests, maxr2t: 0 }.encode());
        target.receive(&[usize::MAX]);
        target.conn.set_connected(1, 1023, true);
        target.framing = Framing { header_digest: digests.header(), data_digest: digests.data(), pda };
        target
    }

    /// Sends a command with `data_len` bytes of in-capsule data from the host.
    fn feed(&mut self, cid: u16, data_len: usize, is_broken: bool) {
        let len = data_len as u32;
        let sgl = if len > 0 { Sgl::InCapsule { offset: 0, len } } else { Sgl::Transport { len: 4096 } };
        let opcode = if len > 0 { 0x01 } else { 0x02 };
        let entry = SubmissionEntry { cid, sgl, ..SubmissionEntry::new(opcode, 1) };
        self.stream.extend(&*CapsuleCmd { entry, data_len: len }.encode(&self.framing));
        let data = pattern(data_len, cid as u8);
        self.stream.extend(&data);
        if self.framing.data_digest && data_len > 0 {
            self.stream.extend((crc32c(&data) ^ u32::from(is_broken)).to_le_bytes());
        }
    }

    /// Receives the stream in pieces, as a driver does; other connections use the same overflow and
    /// the same pages.
    fn receive(&mut self, cuts: &[usize]) {
        let mut overflow = vec![0xee; 65536];
        let mut cuts = cuts.iter().cycle();
        while !self.stream.is_empty() && !self.conn.is_closed() {
            let cut = cuts.next().copied().unwrap_or(usize::MAX);
            self.conn.stage_pages(std::mem::take(&mut self.staging));
            let n = fill(&mut self.conn.receive_plan(&mut overflow), cut, &mut self.stream);
            self.conn.handle_received(n);
            let mut stalled = self.poll(&overflow);
            self.take_staged();
            overflow.fill(0xdd);
            if stalled.is_none() {
                // A driver polls for a deadline without the overflow.
                assert_eq!(self.conn.peek_command(&[], 0), None);
            }
            while let Some((permit, len)) = stalled {
                self.conn.receive_into(permit, Buffer::contiguous(len as usize));
                stalled = self.poll(&[]);
            }
        }
    }

    fn take_staged(&mut self) {
        self.staging = self.conn.take_staged();
        for page in &mut self.staging {
            page.bytes_mut().expect("an unshared page").fill(0xaa);
        }
    }

    /// Polls until nothing is left, or there is no memory.
    fn poll(&mut self, overflow: &[u8]) -> Option<(Permit, u32)> {
        while let Some(event) = self.conn.poll_event(overflow, self.now) {
            if let Some(stalled) = self.on_event(event) {
                self.conn.defer_input(overflow);
                return Some(stalled);
            }
        }
        None
    }

    fn on_event(&mut self, event: Event) -> Option<(Permit, u32)> {
        match event {
            Event::Command { permit, transfer } => {
                let entry = self.conn.entry(&permit);
                self.events.push(format!("{entry:?} {transfer:?}"));
                return self.on_command(permit, transfer);
            }
            Event::Data { permit, buffer, digest_ok } => {
                let entry = self.conn.entry(&permit);
                self.events.push(format!("{entry:?} {:#x} {digest_ok}", crc32c(&buffer.to_vec())));
                self.pool.recycle_buffer(buffer);
                self.conn.complete(permit, Completion::success());
            }
            other => self.events.push(format!("{other:?}")),
        }
        None
    }

    fn on_command(&mut self, permit: Permit, transfer: Transfer) -> Option<(Permit, u32)> {
        let Transfer::FromHost { len, place: DataLocation::InCapsule } = transfer else {
            self.conn.complete(permit, Completion::success());
            return None;
        };
        match self.handling.pop_front().unwrap_or(DataHandling::Pages) {
            DataHandling::Pages => {
                let mut buffer = self.pool.buffer(len as usize).expect("the pool is large enough");
                if self.conn.take_landed(&permit, &mut buffer) {
                    return self.on_event(Event::Data { permit, buffer, digest_ok: true });
                }
                self.conn.receive_into(permit, buffer);
            }
            DataHandling::Block => self.conn.receive_into(permit, Buffer::contiguous(len as usize)),
            DataHandling::Refuse => self.conn.complete(permit, Completion::failed(Status::INVALID_FIELD)),
            DataHandling::Stall => return Some((permit, len)),
        }
        None
    }
}

fn data_handling() -> impl Strategy<Value = DataHandling> {
    prop_oneof![
        12 => Just(DataHandling::Pages),
        1 => Just(DataHandling::Block),
        1 => Just(DataHandling::Refuse),
        1 => Just(DataHandling::Stall),
    ]
}

/// Lengths of the data of one burst: like each other, with reads between them, or anything.
fn burst() -> impl Strategy<Value = Vec<usize>> {
    let any = || prop_oneof![Just(0usize), Just(512), Just(4096), Just(5000), Just(8192), Just(16384)];
    let orderly = (any(), 1usize..40).prop_map(|(len, count)| vec![len; count]);
    let mixed = (any(), prop::collection::vec(0usize..3, 1..40))
        .prop_map(|(len, kinds)| kinds.into_iter().map(|kind| if kind == 0 { 0 } else { len }).collect());
    let wild = prop::collection::vec(any(), 1..24);
    prop_oneof![2 => orderly, 1 => mixed, 1 => wild]
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    let cut = prop_oneof![1usize..40, 500usize..3000, 3000usize..100_000];
    prop_oneof![Just(vec![usize::MAX]), prop::collection::vec(cut, 1..20)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn prediction_does_not_change_events(
        bursts in prop::collection::vec(burst(), 1..8),
        handling in prop::collection::vec(data_handling(), 0..100),
        cuts in cuts(),
        digests in (any::<bool>(), any::<bool>(), 0usize..60),
        pda in prop_oneof![Just(0u8), Just(15u8)],
        garbage in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let (header_digest, data_digest, broken) = digests;
        let digests = Digests::default().with_header(header_digest).with_data(data_digest);
        let ends = [0, 32].map(|staging| {
            let mut target = Target::connected(digests, pda, staging);
            target.handling.extend(&handling);
            let mut cid = 0;
            for burst in &bursts {
                for len in burst {
                    cid += 1;
                    target.feed(cid, *len, usize::from(cid) == broken);
                }
                target.receive(&cuts);
            }
            target.stream.extend(&garbage);
            target.receive(&cuts);
            prop_assert_eq!(target.staging.len(), staging);
            Ok((std::mem::take(&mut target.events), target.conn.in_flight()))
        });
        let [copied, predicted] = ends;
        prop_assert_eq!(predicted?, copied?);
    }
}

#[test]
fn places_repeated_capsules_without_copy() {
    let mut target = Target::connected(Digests::default(), 0, 32);
    for round in 0..4 {
        (0..6).for_each(|cid| target.feed(cid, PAGE_SIZE, false));
        target.receive(&[usize::MAX]);
        assert_eq!(target.events.len(), 1 + 12 * (round + 1));
    }
    [9, 10].into_iter().for_each(|cid| target.feed(cid, PAGE_SIZE, false));
    target.conn.stage_pages(std::mem::take(&mut target.staging));
    let mut overflow = vec![0; 65536];
    let mut plan = target.conn.receive_plan(&mut overflow);
    assert_eq!(plan[..4].iter().map(|slice| slice.len()).collect::<Vec<_>>(), [72, 4096, 72, 4096]);
    let place = plan[1].as_ptr();
    let n = fill(&mut plan, usize::MAX, &mut target.stream);
    drop(plan);
    target.conn.handle_received(n);
    let peeked = [0, 1].map(|ahead| target.conn.peek_command(&overflow, ahead).map(|entry| entry.cid));
    assert_eq!(peeked, [Some(9), Some(10)]);
    let Some(Event::Command { permit, .. }) = target.conn.poll_event(&overflow, target.now) else {
        panic!("no command")
    };
    target.conn.receive_into(permit, target.pool.buffer(PAGE_SIZE).expect("memory"));
    let Some(Event::Data { permit, buffer, .. }) = target.conn.poll_event(&overflow, target.now) else {
        panic!("no data")
    };
    assert_eq!(buffer.as_slice().map(|bytes| bytes.as_ptr()), Some(place));
    assert_eq!(buffer.to_vec(), pattern(PAGE_SIZE, 9));
    target.conn.complete(permit, Completion::success());
    assert_eq!(target.conn.take_staged().len(), 32);
}
