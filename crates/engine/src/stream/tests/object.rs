//! A stream as its core has it.

use isolane_attach::control::StreamPlace;
use isolane_ring::{PAGE_SIZE, adopted};
use rustix::net::sockopt;
use std::os::fd::{AsFd, OwnedFd};

use super::super::adopt;
use super::rig::Rig;
use crate::service::{Build, Built, Place, Service};

/// A stream that no engine has, and the socket of one that is to have it.
fn idle() -> (Rig, OwnedFd) {
    let mut rig = Rig::new(4096, None);
    rig.hand_back();
    let socket = rig.socket.as_fd().try_clone_to_owned().unwrap();
    (rig, socket)
}

fn build(rig: &Rig, build: Build) -> Result<Box<dyn Service>, String> {
    let memory = rig.memory.clone();
    let built = build(Place { core: 0, session: 1, id: 7, memory, queue: None });
    built.map(|Built { service, .. }| service)
}

/// Nothing of what adopting changes is changed.
fn is_untouched(rig: &Rig) {
    assert_eq!(adopted::peek_offset(rig.socket.as_fd()).unwrap(), -1);
    assert!(!sockopt::socket_oobinline(&rig.socket).unwrap());
}

#[test]
fn a_socket_that_is_not_adopted_after_all_is_what_it_was() {
    let page = PAGE_SIZE as u64;
    let good = StreamPlace { block: 0, rx: page, rx_capacity: page, tx: 2 * page, tx_capacity: page };
    let nowhere = 1000 * page;
    for place in [
        StreamPlace { block: nowhere, ..good },
        StreamPlace { rx: nowhere, ..good },
        StreamPlace { tx: nowhere, ..good },
    ] {
        let (rig, socket) = idle();
        let plan = adopt(socket, place, &[]).unwrap();
        assert!(build(&rig, plan.build).is_err(), "{place:?}");
        is_untouched(&rig);
    }
}

#[test]
fn a_socket_that_cannot_be_watched_is_what_it_was() {
    let (rig, socket) = idle();
    let plan = adopt(socket, rig.kept.place, &[]).unwrap();
    let mut stream = build(&rig, plan.build).unwrap();
    assert_eq!(adopted::peek_offset(rig.socket.as_fd()).unwrap(), 0);
    assert!(!stream.on_unwatched("no room"));
    is_untouched(&rig);
}
