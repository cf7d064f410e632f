//! Clients that violate the protocol or die affect only themselves.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use isolane_host::via_engine::wire::{Operation, Submission};
use isolane_host::{BlockRange, Buffer, Client, Options, Request};
use isolane_shm::testing::Corruptor;

use crate::clients::{TEST_TIMEOUT, options, pattern, run};
use crate::harness::Harness;
use crate::rogue::{ENTRIES, Rogue, read};

#[test]
fn commands_that_make_no_sense_fail_alone() {
    let harness = Harness::new();
    let mut rogue = Rogue::new(&harness, options());
    let good = read(1, 8 << 20, 4096);
    let bad = [
        Submission { offset: 16 << 20, ..good },
        Submission { offset: u64::MAX - 10, ..good },
        Submission { len: u64::MAX, ..good },
        Submission { len: 4097, ..good },
        Submission { range: BlockRange { lba: 0, blocks: u64::MAX / 512 }, ..good },
        Submission { range: BlockRange { lba: u64::MAX, blocks: 8 }, ..good },
        Submission { lane: 9, ..good },
        Submission { operation: Operation::Deallocate, ..good },
        Submission {
            operation: Operation::Deallocate,
            range: BlockRange { lba: 0, blocks: 1 << 40 },
            ..good
        },
        Submission {
            operation: Operation::WriteZeroes { fua: false, deallocate: false },
            range: BlockRange { lba: 0, blocks: 1 << 50 },
            ..good
        },
        Submission { range: BlockRange { lba: 0, blocks: 0 }, len: 0, ..good },
    ];
    for submission in bad {
        assert!(rogue.push(&submission));
        rogue.ring();
        let outcome = rogue.outcome();
        assert!(outcome.result.is_err(), "{submission:?}");
        assert!(rogue.push(&good));
        rogue.ring();
        assert!(rogue.outcome().result.is_ok(), "after {submission:?}");
    }
    // More in one turn than there are numbers for.
    let endless = Submission { len: u64::MAX, ..good };
    assert!((0..20).all(|_| rogue.push(&endless)));
    rogue.ring();
    assert!((0..20).all(|_| rogue.outcome().result.is_err()));
    harness.serves_others();
}

/// Where data has a digest the engine copies it, and does so in no more memory than the session has given.
#[test]
fn overlapping_commands_share_a_memory_limit() {
    let harness = Harness::new();
    let mut rogue = Rogue::new(&harness, Options { data_digest: true, ..options() });
    let count = 64;
    for tag in 0..count {
        assert!(rogue.push(&read(tag, 8 << 20, 1 << 20)));
    }
    rogue.ring();
    let results: Vec<_> = (0..count).map(|_| rogue.outcome().result).collect();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 16, "as many as fit into 16 MiB");
    assert!(rogue.push(&read(count, 8 << 20, 1 << 20)));
    rogue.ring();
    assert!(rogue.outcome().result.is_ok());
    harness.serves_others();
}

#[test]
fn malformed_entry_or_index_ends_only_its_session() {
    let harness = Harness::new();
    let mut rogue = Rogue::new(&harness, options());
    assert!(rogue.submissions.push(&[0xff; 8]).unwrap());
    rogue.ring();
    rogue.wait_for_the_end();
    let rogue = Rogue::new(&harness, options());
    // The submission index, far ahead.
    rogue.session.memory().copy_in(rogue.allocation.offset() + 256, &u64::MAX.to_le_bytes()).unwrap();
    rogue.tell();
    rogue.wait_for_the_end();
    harness.serves_others();
}

#[test]
fn garbage_in_every_word_harms_nobody_else() {
    let harness = Harness::new();
    let mut good = harness.connect(options());
    for seed in 0..8 {
        let mut rogue = Rogue::new(&harness, options());
        let corruptor = Corruptor::new(rogue.session.memory());
        let first = rogue.allocation.offset() as usize / 8;
        let mut random = fastrand::Rng::with_seed(seed);
        for step in 0..200 {
            rogue.push(&read(step, random.u64(..16 << 20), 512 << random.u32(..5)));
            let place = first + random.usize(..rogue.allocation.bytes() / 8);
            if random.bool() {
                corruptor.scribble(place, random.u64(..))
            } else {
                corruptor.nudge(place, random.u64(..4))
            }
            rogue.ring();
        }
        let lba = 50_000 + seed * 8;
        let written = run(&mut good, Request::Write { lba, buffer: pattern(lba, 4096, 7), fua: false });
        assert!(written.result.is_ok());
        let read = run(&mut good, Request::Read { lba, buffer: Buffer::contiguous(4096) });
        assert!(read.buffer.unwrap().to_vec() == pattern(lba, 4096, 7).to_vec());
    }
    harness.serves_others();
}

#[test]
fn flooding_client_blocks_only_itself() {
    let harness = Harness::new();
    let mut rogue = Rogue::new(&harness, options());
    let mut floods = [Rogue::new(&harness, options()), Rogue::new(&harness, options())];
    for tag in 0..u64::from(ENTRIES) {
        assert!(rogue.push(&read(tag, 8 << 20, 65_536)));
    }
    rogue.ring();
    let is_over = Arc::new(AtomicBool::new(false));
    let flooded = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for flood in &mut floods {
            let (is_over, flooded) = (Arc::clone(&is_over), Arc::clone(&flooded));
            scope.spawn(move || {
                let mut tag = 0;
                while !is_over.load(Ordering::Relaxed) {
                    while flood.push(&read(tag, 8 << 20, 65_536)) {
                        tag += 1;
                    }
                    flood.ring();
                    assert!(flood.outcome().result.is_ok());
                    flooded.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut good = harness.connect(options());
        for round in 0..200 {
            let lba = 40_000 + round * 8;
            let done = run(&mut good, Request::Write { lba, buffer: pattern(lba, 4096, 1), fua: false });
            assert!(done.result.is_ok());
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(flooded.load(Ordering::Relaxed) > 0);
    // The first client gets as many commands as its ring has space for; later ones are not taken.
    assert!((0..u64::from(ENTRIES)).all(|tag| rogue.push(&read(1000 + tag, 8 << 20, 512))));
    rogue.ring();
    harness.serves_others();
    assert!(!rogue.push(&read(5000, 8 << 20, 512)), "nothing more was taken");
    let outcomes: Vec<u64> = (0..2 * ENTRIES).map(|_| rogue.outcome().tag).collect();
    assert!((0..u64::from(ENTRIES)).all(|tag| outcomes.contains(&tag) && outcomes.contains(&(1000 + tag))));
}

/// The last of its commands takes the last room there is, and then it wants none.
#[test]
fn client_without_submissions_yields_its_turn() {
    let harness = Harness::new();
    let mut one = Rogue::new(&harness, options());
    for count in 30..=33 {
        assert!((0..count).all(|tag| one.push(&read(tag, 8 << 20, 512))));
        one.ring();
        (0..count).for_each(|_| assert!(one.outcome().result.is_ok()));
        harness.serves_others();
    }
}

#[test]
fn abandons_commands_of_dead_session_and_target() {
    let mut harness = Harness::new();
    let uri = harness.uri();
    let mut rogue = Rogue::new(&harness, options());
    let memory = rogue.session.memory().memfd().try_clone_to_owned().unwrap();
    let memory = std::fs::File::from(memory).metadata().unwrap();
    harness.lose_target();
    assert!(rogue.push(&read(1, 8 << 20, 4096)));
    rogue.ring();
    let end = Instant::now() + TEST_TIMEOUT;
    // It may not have noticed yet.
    let error = std::iter::from_fn(|| Some(Client::connect(&uri, options()).err()));
    let error = error.take_while(|_| Instant::now() < end).flatten().next().expect("there is no target");
    assert!(error.to_string().contains("refused"), "{error}");
    drop(rogue);
    let is_held = || {
        let held = std::fs::read_dir("/proc/self/fd").unwrap().map_while(Result::ok);
        held.filter_map(|held| held.path().metadata().ok())
            .any(|held| (held.dev(), held.ino()) == (memory.dev(), memory.ino()))
    };
    while is_held() {
        assert!(Instant::now() < end, "the engine still has the memory of a session that is dead");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn sessions_that_die_with_commands_leak_nothing() {
    let harness = Harness::new();
    for _ in 0..20 {
        let mut rogue = Rogue::new(&harness, options());
        for tag in 0..u64::from(ENTRIES) {
            let operation = if tag % 2 == 0 { Operation::Write { fua: false } } else { Operation::Read };
            rogue.push(&Submission { operation, ..read(tag, (8 << 20) + tag * 8192, 8192) });
        }
        rogue.ring();
        // Its memory is unmapped here at once.
        drop(rogue);
    }
    harness.serves_others();
    let end = Instant::now() + TEST_TIMEOUT;
    while !harness.target.connections().is_empty() {
        assert!(Instant::now() < end, "the association outlives its sessions");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Data changed after its digest was computed would make the target drop the shared lane.
#[test]
fn changing_data_in_flight_affects_no_other_client() {
    let harness = Harness::new();
    let digests = || Options { data_digest: true, ..options() };
    let mut rogue = Rogue::new(&harness, digests());
    let mut good = harness.connect(digests());
    let cntlid = good.info().controller.cntlid;
    let is_over = AtomicBool::new(false);
    let corruptor = Corruptor::new(rogue.session.memory());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = 0;
            while !is_over.load(Ordering::Relaxed) {
                corruptor.nudge((8 << 20) / 8 + at % 8192, 1);
                at += 1;
            }
        });
        for round in 0..300u64 {
            let write =
                Submission { operation: Operation::Write { fua: false }, ..read(round, 8 << 20, 65_536) };
            assert!(rogue.push(&write));
            rogue.ring();
            let lba = 40_000 + round * 8;
            let done = run(&mut good, Request::Write { lba, buffer: pattern(lba, 4096, 1), fua: false });
            assert!(done.result.is_ok(), "{done:?}");
            assert!(rogue.outcome().result.is_ok(), "the sent data was a copy");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(good.info().controller.cntlid, cntlid);
    let another = harness.connect(digests());
    assert_eq!(another.info().controller.cntlid, cntlid, "the association was never lost");
}
