//! A program that changes memory while requests use it gets any mixture of its bytes, and nothing else changes.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::CompletedOperation;

const BYTES: u32 = 200_000;
const TARGET: u64 = 300_000;

/// Writes bytes of either value to a range, again and again.
fn scribble(memory: &Registration, len: usize, has_ended: &AtomicBool) {
    for value in [0xaa, 0xbb].into_iter().cycle() {
        if has_ended.load(Ordering::Relaxed) {
            return;
        }
        memory.region().copy_in(0, &vec![value; len]);
    }
}

#[test]
fn memory_that_changes_under_requests_harms_nothing_else() {
    for (lanes, checksums) in [(1, false), (1, true), (4, false), (4, true)] {
        let config = || DeviceConfig { lanes, checksums, ..DeviceConfig::default() };
        let (near, far) = connected(config(), config(), Limits::default());
        let key = far.memory.key();
        for end in [&near, &far] {
            end.memory.region().copy_in(0, &[0xaa; BYTES as usize]);
        }
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for end in [&near, &far] {
                scope.spawn(|| scribble(&end.memory, BYTES as usize, &has_ended));
            }
            for id in 0..20 {
                let write = SendOperation::Write { address: TARGET, rkey: key, immediate: None };
                near.send(2 * id, write, 0, BYTES);
                near.send(2 * id + 1, SendOperation::Read { address: 0, rkey: key }, TARGET, BYTES);
                for id in [2 * id, 2 * id + 1] {
                    assert_eq!(near.next(), (id, Status::Success), "{lanes} lanes, checksums {checksums}");
                }
            }
            has_ended.store(true, Ordering::Relaxed);
        });
        for end in [&near, &far] {
            let memory = end.memory.region().to_vec(0, MEMORY_BYTES);
            let (front, tail) = memory.split_at(TARGET as usize);
            let (placed, tail) = tail.split_at(BYTES as usize);
            assert!(placed.iter().all(|byte| [0xaa, 0xbb].contains(byte)));
            assert!(front[BYTES as usize..].iter().chain(tail).all(|byte| *byte == 0));
        }
        assert_eq!(
            (near.pair.state(), far.pair.state()),
            (QueuePairState::ReadyToSend, QueuePairState::ReadyToSend)
        );
    }
}

/// The acknowledgment of a message means that its completion is in the queue, also if the queue pair ends at that time.
#[test]
fn end_reports_what_it_acknowledges() {
    for round in 0..100 {
        let (near, mut far) = (default_parts(), default_parts());
        far.config.keeps_completions = true;
        let (near, far) = connect_parts(near, far);
        far.receive(5, 0, 8);
        near.send(1, SendOperation::Send { immediate: None }, 0, 8);
        let End { pair, completions, .. } = far;
        let sent = std::thread::scope(|scope| {
            let sent = scope.spawn(|| near.next());
            (0..500 * round).for_each(|_| std::hint::spin_loop());
            drop(pair);
            sent.join().unwrap()
        });
        if sent == (1, Status::Success) {
            let done = completions.take().expect("the message was acknowledged").completion;
            assert_eq!((done.id, done.status), (5, Status::Success));
        }
    }
}

/// WRITEs that consume no receive end their queue pair before they take the whole completion queue, which others use.
#[test]
fn writes_without_receives_overrun_no_queue() {
    let (mut near, mut far) = (default_parts(), default_parts());
    (near.config.write_id, far.config.write_id) = (Some(0), Some(0));
    let (near, far) = connect_parts(near, far);
    let write = SendOperation::Write { address: 0, rkey: far.memory.key(), immediate: Some(7) };
    let mut writes = (0..COMPLETIONS as u64).map(|id| {
        near.send(id, write, 0, 8);
        near.next().1
    });
    let succeeded = writes.by_ref().take_while(|status| *status == Status::Success).count();
    assert!((COMPLETIONS / 2..COMPLETIONS).contains(&succeeded), "{succeeded} WRITEs");
    assert_eq!(far.pair.state(), QueuePairState::Error);
    assert!(!far.completions.has_overrun() && far.completions.len() <= COMPLETIONS / 2);
}

/// A receive that is filled after such a WRITE completes, but not with success.
#[test]
fn receive_completes_after_writes_that_end_the_queue_pair() {
    for _ in 0..20 {
        let (mut near, mut far) = (default_parts(), default_parts());
        (near.config.write_id, far.config.write_id) = (Some(0), Some(0));
        let (near, far) = connect_parts(near, far);
        far.receive(9, 100, 8);
        let write = |immediate| SendOperation::Write { address: 0, rkey: far.memory.key(), immediate };
        for id in 0..COMPLETIONS as u64 / 2 {
            near.send(id, write(Some(7)), 0, 8);
            assert_eq!(near.next(), (id, Status::Success));
        }
        // The last two leave together, because the first is outstanding.
        near.send(1000, write(None), 0, 8);
        near.send(1001, write(Some(7)), 0, 8);
        near.send(1002, SendOperation::Send { immediate: None }, 0, 8);
        let ends: Vec<u64> = (0..3).map(|_| near.next().0).collect();
        assert_eq!(ends, [1000, 1001, 1002]);
        // Before the program takes a notice, which makes room for another one.
        assert_eq!(far.pair.state(), QueuePairState::Error);
        let done = std::iter::from_fn(|| Some(far.next())).find(|(id, _)| *id == 9).unwrap();
        assert_eq!(done.1, Status::Flushed);
    }
}

/// WRITEs whose notices the program does not want need no room.
#[test]
fn notices_that_are_not_queued_need_no_room() {
    let (mut near, mut far) = (default_parts(), default_parts());
    (near.config.write_id, far.config.write_id) = (Some(0), Some(0));
    far.config.on_completion = Some(Arc::new(|_, done| done.operation != CompletedOperation::ReceiveWrite));
    let (near, far) = connect_parts(near, far);
    let write = SendOperation::Write { address: 0, rkey: far.memory.key(), immediate: Some(7) };
    for id in 0..2 * COMPLETIONS as u64 {
        near.send(id, write, 0, 8);
        assert_eq!(near.next(), (id, Status::Success));
    }
    assert_eq!((far.pair.state(), far.completions.len()), (QueuePairState::ReadyToSend, 0));
}

fn default_parts() -> Parts {
    parts(DeviceConfig::default(), Limits::default())
}
