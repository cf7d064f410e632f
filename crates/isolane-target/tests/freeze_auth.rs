//! A target that another one continues while hosts authenticate.

mod common;

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::auth::{SameForAll, fast, host_config, keys};
use common::*;
use isolane_target::{FrozenState, Policy, Target, TargetConfig};
use isolane_wire::Status;
use isolane_wire::auth::{DhGroup, Hash};

/// An eighth of it is for hosts that authenticate.
const WITHIN: Duration = Duration::from_secs(8);

fn copy_of(state: &FrozenState, number: RawFd) -> std::io::Result<OwnedFd> {
    let mut sockets = state.sockets().iter().filter(|socket| socket.as_raw_fd() == number);
    sockets.next().ok_or(std::io::ErrorKind::NotFound)?.as_fd().try_clone_to_owned()
}

/// Replaces a target, as another process would.
fn upgrade(target: Target, config: &TargetConfig) -> Target {
    let state = target.freeze(WITHIN).unwrap().hand_over().unwrap();
    target.shutdown(Duration::ZERO).into_result().unwrap();
    let read = FrozenState::from_bytes(&state.to_bytes()).unwrap();
    Target::start_from(config.clone(), read, |number| copy_of(&state, number)).unwrap()
}

/// The slowest exponentiation.
fn slow() -> Policy {
    Policy { hashes: vec![Hash::Sha512], groups: vec![DhGroup::Ffdhe8192] }
}

/// Ends the flood, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Begins authentications, of which some are left in the middle, until it is told to stop.
fn flood(address: SocketAddr, number: usize, stop: &AtomicBool, begun: &AtomicUsize) {
    let host = host_config(keys(0, None), slow());
    for round in number.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        // The target may end the connection at any time.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let mut queue = MockHost::locked(address, 0, 0xffff);
            begun.fetch_add(1, Ordering::Relaxed);
            match round % 3 {
                0 => drop(queue.negotiated(&host)),
                1 => drop(queue.challenged(&host)),
                _ => drop(queue.authenticate(&host)),
            }
        }));
    }
}

#[test]
fn hosts_that_authenticate_prevent_no_upgrade() {
    let config = SameForAll::new(vec![keys(0, None)]).config();
    let (mut target, address) = start(config.clone());
    let mut admin = MockHost::authenticated(address, &host_config(keys(0, None), fast()));
    let (stop, begun) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for number in 0..4 {
            let (stop, begun) = (&stop, &begun);
            scope.spawn(move || flood(address, number, stop, begun));
        }
        let _stop = Stop(&stop);
        for _ in 0..4 {
            let before = begun.load(Ordering::Relaxed);
            while begun.load(Ordering::Relaxed) < before + 8 {
                thread::sleep(Duration::from_millis(1));
            }
            drop(target.freeze(WITHIN).unwrap());
            target = upgrade(target, &config);
            assert_eq!(admin.run(isolane_wire::admin::keep_alive()).status, Status::SUCCESS);
        }
    });
}
