//! Requests to a target that behaves correctly.

use isolane_wire::opcode::IoOpcode;

use super::*;
use crate::error::RequestError;
use crate::options::IoChoice;
use crate::request::BlockRange;

#[test]
fn reads_back_written_data() {
    let (target, mut client) = pair();
    for (bytes, fill) in [(512, 1), (4096, 2), (8192, 3), (65_536, 4)] {
        let written = run(&mut client, write(16, bytes, fill));
        assert!(written.result.is_ok(), "{written:?}");
        assert_eq!(written.buffer.unwrap().len(), bytes);
        assert_eq!(target.blocks(16, bytes as u64 / 512), vec![fill; bytes]);
        let read = run(&mut client, read(16, bytes));
        assert!(read.result.is_ok(), "{read:?}");
        assert_eq!(read.buffer.unwrap().to_vec(), vec![fill; bytes]);
    }
    client.close();
    assert_eq!(target.shared.shutdowns.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[test]
fn every_combination_of_digests_carries_data() {
    for (header_digest, data_digest) in [(true, false), (false, true), (true, true)] {
        let target = Target::start(Script::default());
        let mut client = connect(&target, Options { header_digest, data_digest, ..options() });
        let negotiated = &client.info().negotiated;
        assert_eq!((negotiated.header_digest, negotiated.data_digest), (header_digest, data_digest));
        assert!(run(&mut client, write(0, 20_480, 7)).result.is_ok());
        assert_eq!(run(&mut client, read(0, 20_480)).buffer.unwrap().to_vec(), vec![7; 20_480]);
    }
}

#[test]
fn deep_queue_completes_each_request_once() {
    let target = Target::start(Script::default());
    let mut client = connect(&target, Options { lanes: 3, depth: 8, ..options() });
    for tag in 0..300 {
        client.submit(tag as usize % 3, write(tag, 512, tag as u8), tag);
    }
    let tags: Vec<u64> = wait_for(&mut client, 300).iter().map(|completion| completion.tag).collect();
    assert_eq!(tags, (0..300).collect::<Vec<_>>());
    for tag in 0..300 {
        client.submit(tag as usize % 3, read(tag, 512), tag);
    }
    for completion in wait_for(&mut client, 300) {
        assert_eq!(completion.buffer.unwrap().to_vec(), [completion.tag as u8; 512]);
    }
    assert_eq!(client.outstanding(), 0);
}

#[test]
fn held_requests_are_all_sent() {
    let target = Target::start(Script::default());
    let coalesce = Some(Coalesce::default());
    let mut client = connect(&target, Options { coalesce, lanes: 2, ..options() });
    for tag in 0..20 {
        client.submit(0, write(tag, 512, 1), tag);
        wait_for(&mut client, 1);
    }
    for round in 0..20 {
        for tag in 0..round {
            client.submit(tag as usize % 2, read(tag, 512), tag);
            client.turn(&mut Vec::new(), Wait::None);
        }
        client.submit(0, Request::Flush, round);
        while client.outstanding() > 0 {
            client.turn(&mut Vec::new(), Wait::Forever);
        }
    }
}

#[test]
fn splits_request_above_mdts_without_copy() {
    let target = Target::start(Script { mdts: 1, ..Script::default() });
    let mut client = connect(&target, Options { depth: 4, ..options() });
    let bytes = 20 * 8192 + 512;
    let mut whole = buffer(bytes, 0);
    for (index, byte) in whole.as_mut_slice().unwrap().iter_mut().enumerate() {
        *byte = (index / 512) as u8;
    }
    let expected = whole.to_vec();
    let start = whole.as_slice().unwrap().as_ptr();
    let completion = run(&mut client, Request::Write { lba: 1, buffer: whole, fua: true });
    assert!(completion.result.is_ok(), "{completion:?}");
    let returned = completion.buffer.unwrap();
    assert_eq!((returned.as_slice().unwrap().as_ptr(), returned.len()), (start, bytes));
    assert_eq!(target.blocks(1, bytes as u64 / 512), expected);
    let completion = run(&mut client, read(1, bytes));
    assert_eq!(completion.buffer.unwrap().to_vec(), expected);
    let longest = target.shared.commands.lock().iter().map(|(_, blocks)| *blocks).max();
    assert_eq!(longest, Some(16));
}

#[test]
fn flush_zeroes_and_deallocation_reach_the_target() {
    let (target, mut client) = pair();
    assert!(run(&mut client, write(0, 65_536, 5)).result.is_ok());
    let range = BlockRange { lba: 8, blocks: 100 };
    assert!(run(&mut client, Request::WriteZeroes { range, fua: false, deallocate: true }).result.is_ok());
    assert!(run(&mut client, Request::Deallocate { ranges: vec![range; 3] }).result.is_ok());
    assert!(run(&mut client, Request::Flush).result.is_ok());
    assert_eq!(target.blocks(7, 3), [vec![5; 512], vec![0; 1024]].concat());
    let commands = target.shared.commands.lock().clone();
    assert!(commands.contains(&(IoOpcode::WriteZeroes.code(), 100)));
    assert!(commands.contains(&(IoOpcode::DatasetManagement.code(), 3)));
    assert!(commands.contains(&(IoOpcode::Flush.code(), 0)));
}

#[test]
fn rejected_request_returns_buffer() {
    let (_target, mut client) = pair();
    let completion = run(&mut client, read(8192, 512));
    assert!(matches!(completion.result, Err(RequestError::OutOfRange { capacity: 8192, .. })));
    assert_eq!(completion.buffer.unwrap().len(), 512);
    client.submit(9, read(0, 512), 1);
    let completion = wait_for(&mut client, 1).remove(0);
    assert!(matches!(completion.result, Err(RequestError::Lane { lane: 9, lanes: 1 })));
}

#[test]
fn requests_beyond_the_bound_are_refused_not_stored() {
    let target = Target::start(Script::default());
    let mut client = connect(&target, Options { max_requests: 4, ..options() });
    (0..6).for_each(|tag| client.submit(0, read(tag, 512), tag));
    let refused: Vec<u64> = wait_for(&mut client, 6)
        .iter()
        .filter(|completion| matches!(completion.result, Err(RequestError::TooMany(4))))
        .map(|completion| completion.tag)
        .collect();
    assert_eq!(refused, [4, 5]);
}

#[test]
fn every_way_to_wait_moves_data() {
    for io in [IoChoice::Auto, IoChoice::Epoll] {
        for mode in [Mode::Poll, Mode::Adaptive, Mode::Sleep] {
            let target = Target::start(Script::default());
            let mut client = connect(&target, Options { io, mode, ..options() });
            assert!(run(&mut client, write(0, 4096, 1)).result.is_ok());
            assert_eq!(client.turn(&mut Vec::new(), Wait::None), 0);
        }
    }
}

#[test]
fn waker_ends_wait() {
    let (_target, mut client) = pair();
    let waker = client.waker();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        waker.wake();
    });
    let deadline = Instant::now() + TEST_TIMEOUT;
    client.turn(&mut Vec::new(), Wait::Until(deadline));
    assert!(Instant::now() < deadline, "it waited to the end");
    thread.join().unwrap();
}

/// Also on a ring, of which the kernel lets one thread ask.
#[test]
fn client_continues_in_another_thread() {
    for io in [IoChoice::Auto, IoChoice::Epoll] {
        let target = Target::start(Script::default());
        let mut client = connect(&target, Options { io, lanes: 2, ..options() });
        for round in 0..3 {
            let there = std::thread::spawn(move || {
                assert!(run(&mut client, write(round, 512, round as u8)).result.is_ok());
                client
            });
            client = there.join().unwrap();
            assert_eq!(run(&mut client, read(round, 512)).buffer.unwrap().to_vec(), [round as u8; 512]);
        }
        client.close();
        assert_eq!(target.shared.shutdowns.load(std::sync::atomic::Ordering::SeqCst), 1);
    }
}
