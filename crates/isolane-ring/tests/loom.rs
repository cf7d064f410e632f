//! Every order of events between two threads:
//! `RUSTFLAGS="--cfg loom" cargo test -p isolane-ring --release --test loom`.
#![cfg(loom)]

use isolane_ring::Flag;
use isolane_ring::index::{Consumer, Producer, Words};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;

/// What each place holds. Only relaxed: nothing but the indices may order them.
type Places = [AtomicU64; 2];

#[test]
fn what_was_put_in_is_complete_when_it_is_seen_and_no_place_is_used_again_too_early() {
    loom::model(|| {
        let words = Arc::new(Words::new());
        let places = Arc::new([AtomicU64::new(0), AtomicU64::new(0)] as Places);
        let (theirs, put) = (Arc::clone(&words), Arc::clone(&places));
        let producer = thread::spawn(move || {
            let mut ring = Producer::new(theirs, 2);
            for next in 1..=3 {
                while ring.room() == 0 && ring.refresh().unwrap() == 0 {
                    thread::yield_now();
                }
                put[ring.place()].store(next, Ordering::Relaxed);
                ring.advance(1);
                ring.publish();
            }
        });
        let mut ring = Consumer::new(words, 2);
        for next in 1..=3 {
            while ring.available() == 0 && ring.refresh().unwrap() == 0 {
                thread::yield_now();
            }
            assert_eq!(places[ring.place()].load(Ordering::Relaxed), next);
            ring.advance(1);
            ring.publish();
        }
        producer.join().unwrap();
    });
}

#[test]
fn a_waiter_that_has_armed_sees_what_was_published_or_is_woken() {
    loom::model(|| {
        let shared = Arc::new((AtomicBool::new(false), Flag::new()));
        let theirs = Arc::clone(&shared);
        let waker = thread::spawn(move || {
            theirs.0.store(true, Ordering::Release);
            theirs.1.take()
        });
        shared.1.arm();
        let has_seen = shared.0.load(Ordering::Acquire);
        let was_rung = waker.join().unwrap();
        assert!(has_seen || was_rung, "it sleeps, and nobody wakes it");
    });
}

#[test]
fn of_two_who_publish_one_has_to_ring() {
    loom::model(|| {
        let flag = Arc::new(Flag::new());
        flag.arm();
        let theirs = Arc::clone(&flag);
        let other = thread::spawn(move || theirs.take());
        let mine = flag.take();
        assert!(mine ^ other.join().unwrap());
    });
}
