//! Model checking of rings and wake flags between two threads:
//! `RUSTFLAGS="--cfg loom" cargo test -p isolane-shm --release --test loom`.
#![cfg(loom)]

use isolane_shm::WakeFlag;
use isolane_shm::index::{Consumer, Producer, RingIndices};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;

/// Contents of the slots. Accesses are relaxed: only the indices may order them.
type Slots = [AtomicU64; 2];

#[test]
fn visible_entries_are_complete_until_freed() {
    loom::model(|| {
        let indices = Arc::new(RingIndices::new());
        let slots = Arc::new([AtomicU64::new(0), AtomicU64::new(0)] as Slots);
        let (clone, put) = (Arc::clone(&indices), Arc::clone(&slots));
        let mut ring = Producer::open(clone, 2).unwrap();
        let producer = thread::spawn(move || {
            for next in 1..=3 {
                while ring.free_space() == 0 && ring.refresh().unwrap() == 0 {
                    thread::yield_now();
                }
                put[ring.slot()].store(next, Ordering::Relaxed);
                ring.advance(1);
                ring.publish();
            }
        });
        let mut ring = Consumer::open(indices, 2).unwrap();
        for next in 1..=3 {
            while ring.available() == 0 && ring.refresh().unwrap() == 0 {
                thread::yield_now();
            }
            assert_eq!(slots[ring.slot()].load(Ordering::Relaxed), next);
            ring.advance(1);
            ring.publish();
        }
        producer.join().unwrap();
    });
}

#[test]
fn armed_waiter_sees_publication_or_is_woken() {
    loom::model(|| {
        let shared = Arc::new((AtomicBool::new(false), WakeFlag::new()));
        let clone = Arc::clone(&shared);
        let waker = thread::spawn(move || {
            clone.0.store(true, Ordering::Release);
            clone.1.take()
        });
        shared.1.arm();
        let has_seen = shared.0.load(Ordering::Acquire);
        let was_rung = waker.join().unwrap();
        assert!(has_seen || was_rung, "a wakeup was lost");
    });
}

#[test]
fn one_of_two_publishers_must_wake() {
    loom::model(|| {
        let flag = Arc::new(WakeFlag::new());
        flag.arm();
        let clone = Arc::clone(&flag);
        let other = thread::spawn(move || clone.take());
        let mine = flag.take();
        assert!(mine ^ other.join().unwrap());
    });
}
