//! Stories of threads that wake a reactor, and of a reactor that sleeps.

mod common;

use common::*;
use isolane_reactor::mailbox::{self, Undelivered};
use isolane_reactor::{Config, Event, Mode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A lost wake-up would leave the reactor asleep for ever: the deadline is far, and every message is waited
/// for.
#[test]
fn no_message_of_many_threads_is_lost_however_often_the_reactor_falls_asleep() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let (sender, receiver) = mailbox::bounded(reactor.waker(), 64);
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                let sender = sender.clone();
                std::thread::spawn(move || (0..MESSAGES).for_each(|number| post(&sender, (thread, number))))
            })
            .collect();
        let mut next = [0u64; 4];
        turn_until(&mut reactor, |_, event| {
            if let Event::Woken = event {
                while let Some((thread, number)) = receiver.poll() {
                    assert_eq!(number, next[thread as usize], "in the order of their sender");
                    next[thread as usize] += 1;
                }
            }
            next.iter().all(|&next| next == MESSAGES).then_some(())
        });
        threads.into_iter().for_each(|thread| thread.join().expect("a sender"));
    });
}

fn post(sender: &mailbox::Sender<(u64, u64)>, message: (u64, u64)) {
    let mut message = message;
    while let Err(refused) = sender.send(message) {
        let Undelivered::Full(back) = refused else { panic!("closed") };
        message = back;
        std::thread::yield_now();
    }
}

/// Each ping waits for its pong, so that the reactor is asleep, falling asleep or waking at every ping.
#[test]
fn a_reactor_answers_each_of_many_single_pings() {
    with_each(|config| {
        // A reactor that never sleeps has little to show, and costs its neighbours much.
        let pings = if config.mode == Mode::Poll { PINGS / 20 } else { PINGS };
        let pongs = Arc::new(AtomicU64::new(0));
        let (waker_sender, waker) = std::sync::mpsc::channel();
        let seen = pongs.clone();
        let reactor_thread = std::thread::spawn(move || {
            let mut reactor = reactor(&config);
            waker_sender.send(reactor.waker()).expect("sent");
            for _ in 0..pings {
                turn_until(&mut reactor, |_, event| matches!(event, Event::Woken).then_some(()));
                seen.fetch_add(1, Ordering::Release);
            }
        });
        let waker = waker.recv().expect("a waker");
        for ping in 0..pings {
            if ping % 3 == 0 {
                std::thread::sleep(Duration::from_micros(ping % 100));
            }
            waker.wake();
            let end = Instant::now() + PATIENCE;
            while pongs.load(Ordering::Acquire) <= ping {
                assert!(Instant::now() < end, "ping {ping} was lost");
                std::thread::yield_now();
            }
        }
        reactor_thread.join().expect("the reactor");
    });
}

#[test]
fn an_idle_reactor_with_a_hundred_lanes_sleeps() {
    for io in back_ends() {
        let mut reactor = reactor(&Config { io, mode: Mode::Adaptive, ..Config::default() });
        let _peers: Vec<_> = (0..100)
            .map(|_| {
                let (peer, socket) = pair();
                reactor.add(socket).expect("added");
                peer
            })
            .collect();
        turn_for(&mut reactor, Duration::from_millis(20));
        let (sleeps, turns) =
            (reactor.sleeps_count(), turns_within(&mut reactor, Duration::from_millis(100)));
        assert!(turns <= 3, "{turns} turns");
        assert!(reactor.sleeps_count() - sleeps <= 3);
    }
}

fn turns_within(reactor: &mut isolane_reactor::Reactor, time: Duration) -> usize {
    let (end, mut turns, mut events) = (Instant::now() + time, 0, Vec::new());
    while Instant::now() < end {
        reactor.turn(Some(end), &mut events).expect("a turn");
        turns += 1;
    }
    turns
}

#[test]
fn a_mailbox_without_a_reader_gives_the_message_back() {
    let reactor = reactor(&Config::default());
    let (sender, receiver) = mailbox::bounded(reactor.waker(), 1);
    sender.send(1).expect("room");
    assert!(matches!(sender.send(2), Err(Undelivered::Full(2))));
    drop(receiver);
    assert!(matches!(sender.send(3), Err(Undelivered::Closed(3))));
}

const MESSAGES: u64 = 5_000;
const PINGS: u64 = 2_000;
