//! Messages of mixed size and kind in both directions: over four TCP lanes through a proxy that delays, cuts, and stalls
//! them, or changes their bits, and with an end that is killed and starts again. Every byte is right, nothing around it
//! changes, and every completion arrives once and in order. After a kill, requests fail within the time that the queue
//! pair allows.
//!
//! `ISOLANE_TEST_MESSAGES=10000000 cargo test --release -p isolane-verbs --test soak proxy` sends more, and
//! `ISOLANE_TEST_KILLS=1000 cargo test -p isolane-verbs --test soak kill` kills more often. `ISOLANE_TEST_SEED` is the
//! seed of both.

mod end;
mod kill;

mod message;
mod proxy;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use isolane_verbs::DeviceConfig;

use self::end::{End, Plan, Program};
use self::proxy::Faults;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Longer than any step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const LANES: u8 = 4;
/// Time for which an end without anything to do waits: the other end's reports of checked messages have no completion.
const PAUSE: Duration = Duration::from_micros(200);

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

fn seed() -> u64 {
    variable("ISOLANE_TEST_SEED").unwrap_or(1)
}

#[test]
fn messages_survive_a_proxy_that_cuts_and_stalls() {
    let faults = run(false);
    // Which of them happens depends on the pieces in which the bytes arrive.
    let count = faults.cuts.load(Ordering::Relaxed) + faults.stalls.load(Ordering::Relaxed);
    assert!(count > 0, "the proxy cut and stalled nothing");
}

#[test]
fn messages_survive_a_proxy_that_changes_bits() {
    let faults = run(true);
    assert!(faults.changes.load(Ordering::Relaxed) > 0, "the proxy changed nothing");
}

/// Connects two ends through a proxy.
fn connect(programs: &[Program; 2], ends: &mut [End<'_>; 2], faults: &Arc<Faults>) {
    let [near, far] = programs;
    let listener = far.device.listen("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    proxy::start(target, faults, seed());
    let address = SocketAddr::new(proxy::PROXY, target.port());
    let (near_pair, far_pair) = thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept(&ends[1].config).unwrap());
        (near.device.connect(address, &ends[0].config).unwrap(), accepted.join().unwrap())
    });
    // Further lanes connect to the port of the far queue pair.
    let port = (far_pair.number() >> 8) as u16;
    proxy::start(SocketAddr::new(LOCALHOST, port), faults, !seed());
    ends[0].start(near_pair, far.key());
    ends[1].start(far_pair, near.key());
}

/// Sends messages through a proxy with faults.
fn run(flips: bool) -> Arc<Faults> {
    let count = variable("ISOLANE_TEST_MESSAGES").unwrap_or(6000).div_ceil(2);
    let interval = if count > 100_000 { 8 << 20 } else { 512 << 10 };
    let (interval, flips) = (AtomicU64::new(interval), AtomicBool::new(flips));
    let faults = Arc::new(Faults { interval, flips, ..Faults::default() });
    let program =
        |checksums| Program::new(DeviceConfig { lanes: LANES, checksums, ..DeviceConfig::default() });
    // One end requests checksums.
    let programs = [program(faults.flips.load(Ordering::Relaxed)), program(false)];
    let plans = [0, 1].map(|end| Plan { seed: seed().wrapping_mul(2).wrapping_add(end), count });
    let mut ends = [End::new(&programs[0], plans[0], plans[1]), End::new(&programs[1], plans[1], plans[0])];
    connect(&programs, &mut ends, &faults);
    let mut active = Instant::now();
    while !ends.iter().all(End::is_done) {
        if ends.iter_mut().any(|end| end.turn()) || ends.iter_mut().any(|end| end.wait(PAUSE)) {
            active = Instant::now();
        }
        let failures = [ends[0].failure, ends[1].failure];
        assert_eq!(failures, [None; 2], "a request has failed");
        assert!(active.elapsed() < TIMEOUT, "no message arrives");
    }
    faults.has_ended.store(true, Ordering::Relaxed);
    println!("{} messages, {faults:?}", 2 * count);
    faults
}
