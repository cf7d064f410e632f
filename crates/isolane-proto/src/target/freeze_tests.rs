//! A connection that is frozen and resumed at any point sends and receives what it would have otherwise.

use proptest::prelude::*;

use super::*;
use crate::host;
use crate::scenario_tests::pair::{Pair, buffer_of, pattern};
use isolane_wire::{Sgl, Status};

const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const STORE_BYTES: usize = 1 << 19;

impl Pair {
    /// Replaces the target's end by one that continues its state. Unserved commands arrive again.
    fn upgrade(&mut self) {
        assert!(self.writes.is_empty(), "a write has its data and must be served");
        let unstarted: Vec<_> =
            self.commands.iter().map(|(permit, ..)| Unstarted { permit, data: &[] }).collect();
        let state = self.target.freeze(&unstarted, self.now).expect("the connection can be frozen");
        let bytes = postcard::to_allocvec(&state).unwrap();
        let state: ConnectionState = postcard::from_bytes(&bytes).unwrap();
        self.commands.drain(..).for_each(|(permit, ..)| permit.forfeit());
        let resumed = Connection::resume(limits(), state, Buffer::contiguous, self.now);
        self.target = resumed.expect("the state is valid").0;
    }
}

fn limits() -> ConnectionConfig {
    ConnectionConfig { max_h2c_data_bytes: 4096, max_r2t_bytes: 16384, ..ConnectionConfig::default() }
}

fn entry(opcode: u8, offset: usize) -> SubmissionEntry {
    SubmissionEntry { cdw10: offset as u32, ..SubmissionEntry::new(opcode, 1) }
}

/// Writes and reads everything once, with `upgrade` between the segments.
fn run(digests: (bool, bool), seed: u64, max_segment: usize, mut upgrade: impl FnMut(&mut Pair)) {
    let options = host::ConnectionConfig {
        header_digest: digests.0,
        data_digest: digests.1,
        ..host::ConnectionConfig::default()
    };
    let mut pair = Pair::new(options, limits());
    pair.connect(64, seed.is_multiple_of(2));
    pair.cut_randomly(seed, max_segment, 8192);
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut store, mut expected) = (vec![0; STORE_BYTES], vec![0; STORE_BYTES]);
    let (mut at, mut writes, mut idle_turns) = (0, 0, 0);
    while at < STORE_BYTES / 2 {
        let len = [512, 4096, 8192, 65536, 131_072][random.usize(0..5)].min(STORE_BYTES - at);
        let data = pattern(len, random.u8(..));
        expected[at..at + len].copy_from_slice(&data);
        pair.submit(entry(WRITE, at), host::Data::Write(buffer_of(&data)), 1);
        (at, writes) = (at + len, writes + 1);
    }
    pair.submit(entry(READ, at), host::Data::Read(Buffer::contiguous(4096)), 2);
    while pair.completions.len() <= writes {
        let has_moved = pair.turn() | !pair.commands.is_empty() | !pair.writes.is_empty();
        // The first turn after an upgrade only parses the bytes of the state.
        idle_turns = if has_moved { 0 } else { idle_turns + 1 };
        assert!(idle_turns < 50, "the pair hangs");
        if random.bool() {
            pair.serve(&mut store);
        }
        while !pair.writes.is_empty() {
            pair.serve(&mut store);
        }
        upgrade(&mut pair);
        assert!(pair.target_ends.is_empty() && pair.host_ends.is_empty(), "{:?}", pair.host_ends);
    }
    assert!(
        pair.completions
            .iter()
            .all(|(_, entry, _, digest_ok)| { entry.status == Status::SUCCESS && *digest_ok })
    );
    assert_eq!(store[..at], expected[..at]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn upgrade_between_any_segments_changes_nothing(
        digests: (bool, bool), seed: u64, max_segment in 1_usize..9000,
    ) {
        let mut random = fastrand::Rng::with_seed(!seed);
        run(digests, seed, max_segment.max(300), |pair| {
            if random.u8(..) < 64 {
                pair.upgrade();
            }
        });
    }

    #[test]
    fn any_bytes_are_refused_or_resumed(bytes: Vec<u8>, flips: Vec<(u16, u8)>) {
        let mut pair = Pair::connected();
        pair.submit(entry(WRITE, 0), host::Data::Write(buffer_of(&[1; 65536])), 1);
        pair.transmit_host();
        pair.receive_target();
        let state = pair.target.freeze(&[], pair.now).unwrap();
        let mut forged = postcard::to_allocvec(&state).unwrap();
        for (at, flip) in flips {
            let at = usize::from(at) % forged.len().min(200);
            forged[at] ^= flip;
        }
        for bytes in [bytes, forged] {
            if let Ok(state) = postcard::from_bytes::<ConnectionState>(&bytes)
                && state.data_bytes() < 1 << 24
                && let Ok((mut conn, _)) = Connection::resume(limits(), state, Buffer::contiguous, pair.now)
            {
                while let Some(event) = conn.poll_event(&[], pair.now) {
                    if let Event::Command { permit, .. } | Event::Data { permit, .. } = event {
                        permit.forfeit();
                    }
                }
            }
        }
    }
}

#[test]
fn carries_commands_whose_data_is_arriving() {
    let mut pair = Pair::connected();
    let data = pattern(65536, 3);
    pair.submit(entry(WRITE, 0), host::Data::Write(buffer_of(&data)), 7);
    pair.transmit_host();
    pair.receive_target();
    pair.upgrade();
    let mut store = vec![0; 65536];
    pair.drive();
    pair.serve(&mut store);
    pair.drive();
    assert_eq!(pair.completed().0, 7);
    assert!(store == data);
}

#[test]
fn carries_held_requests_and_queue_parameters() {
    let mut pair = Pair::new(host::ConnectionConfig::default(), limits());
    pair.connect(16, false);
    pair.submit(SubmissionEntry::new(0x0c, 0), host::Data::None, 9);
    pair.drive();
    let (permit, held, _) = pair.command();
    pair.target.hold(permit);
    pair.upgrade();
    assert!(pair.target.is_held(held.cid));
    pair.submit(entry(READ, 0), host::Data::None, 1);
    pair.drive();
    let (permit, ..) = pair.command();
    pair.target.complete(permit, Completion::success());
    pair.target.complete_held(held.cid, Completion::with_dw0(5));
    pair.drive();
    let (first, second) = (pair.completed(), pair.completed());
    assert_eq!((first.0, first.1.sqhd), (1, 2), "the response to Connect had 1");
    assert_eq!((second.0, second.1.dw0, second.1.sqhd), (9, 5, 3));
}

#[test]
fn driver_with_a_started_command_cannot_freeze() {
    let mut pair = Pair::connected();
    pair.submit(entry(READ, 0), host::Data::Read(Buffer::contiguous(512)), 1);
    pair.drive();
    assert_eq!(pair.target.freeze(&[], pair.now), None);
    pair.upgrade();
    assert_eq!(pair.commands.len(), 0, "its bytes are read with the next poll");
    pair.receive_target();
    let (permit, _, transfer) = pair.command();
    permit.forfeit();
    assert_eq!(transfer, Transfer::ToHost { len: 512 });
}

#[test]
fn data_of_a_connect_moves_into_its_capsule() {
    let mut pair = Pair::connected();
    pair.submit(entry(WRITE, 0), host::Data::Write(buffer_of(&pattern(512, 1))), 1);
    pair.drive();
    let (permit, _, buffer, _) = pair.write();
    let data = buffer.to_vec();
    let state = pair.target.freeze(&[Unstarted { permit: &permit, data: &data }], pair.now).unwrap();
    permit.forfeit();
    pair.target = Connection::resume(limits(), state, Buffer::contiguous, pair.now).unwrap().0;
    pair.receive_target();
    let (permit, entry, buffer, digest_ok) = pair.write();
    assert_eq!(entry.sgl, Sgl::InCapsule { offset: 0, len: 512 });
    assert!(digest_ok && buffer.to_vec() == data);
    permit.forfeit();
}
