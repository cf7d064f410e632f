//! Wakeups from other threads, and sleep.

mod common;

use common::*;
use isolane_reactor::mailbox;
use isolane_reactor::{Event, Mode, ReactorConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A lost wakeup would leave the reactor asleep forever: the timeout is long, and the test waits
/// for every message.
#[test]
fn delivers_messages_from_many_threads() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let (sender, receiver) = mailbox::unbounded(reactor.waker());
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                let sender = sender.clone();
                std::thread::spawn(move || {
                    (0..MESSAGES).for_each(|number| sender.send((thread, number)).expect("sent"))
                })
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

/// Each ping waits for its pong, so that the reactor is asleep, falling asleep, or waking at every
/// ping.
#[test]
fn wakes_on_every_single_ping() {
    with_each(|config| {
        // Poll mode never sleeps, so a few pings suffice.
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
            let end = Instant::now() + TEST_TIMEOUT;
            while pongs.load(Ordering::Acquire) <= ping {
                assert!(Instant::now() < end, "ping {ping} was lost");
                std::thread::yield_now();
            }
        }
        reactor_thread.join().expect("the reactor");
    });
}

#[test]
fn idle_reactor_with_many_sockets_sleeps() {
    for io in backends() {
        let mut reactor = reactor(&ReactorConfig { io, mode: Mode::Adaptive, ..ReactorConfig::default() });
        let _peers: Vec<_> = (0..100)
            .map(|_| {
                let (peer, socket) = pair();
                reactor.add(socket).expect("added");
                peer
            })
            .collect();
        turn_for(&mut reactor, Duration::from_millis(20));
        let (sleeps, turns) = (reactor.sleep_count(), turns_within(&mut reactor, Duration::from_millis(100)));
        assert!(turns <= 3, "{turns} turns");
        assert!(reactor.sleep_count() - sleeps <= 3);
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
fn mailbox_returns_undelivered_message() {
    let reactor = reactor(&ReactorConfig::default());
    let (sender, receiver) = mailbox::unbounded(reactor.waker());
    sender.send(1).expect("open");
    drop(receiver);
    assert_eq!(sender.send(3), Err(mailbox::SendError(3)));
}

const MESSAGES: u64 = 5_000;
const PINGS: u64 = 2_000;
