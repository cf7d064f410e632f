//! A stream as its core has it.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use isolane_attach::control::{self, StreamPlace};
use isolane_attach::layout::stream as at;
use isolane_attach::stream::{Block, End};
use isolane_ring::{PAGE_SIZE, adopted};
use rustix::net::sockopt;

use super::super::{adopt, resume};
use super::rig::{Rig, gone};
use super::table::assert_reset;
use crate::Config;
use crate::service::{Build, Built, Ending, Hostile, Looked, Place, Service, Turn};

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
        let plan = adopt(socket, place, &Config::new(vec![])).unwrap();
        assert!(build(&rig, plan.build).is_err(), "{place:?}");
        is_untouched(&rig);
    }
}

#[test]
fn a_socket_that_cannot_be_watched_is_what_it_was() {
    let (rig, socket) = idle();
    let plan = adopt(socket, rig.kept.place, &Config::new(vec![])).unwrap();
    let mut stream = build(&rig, plan.build).unwrap();
    assert_eq!(adopted::peek_offset(rig.socket.as_fd()).unwrap(), 0);
    assert!(!stream.on_unwatched("no room"));
    is_untouched(&rig);
}

fn look(stream: &mut Box<dyn Service>) -> Result<Looked, Hostile> {
    stream.look(&Turn { now: Instant::now() })
}

/// What an application that has written nonsense gets, and one whose engine has met an error of the system.
fn break_off(rig: &mut Rig, stream: &mut Box<dyn Service>) {
    rig.scribble(at::TX_SHUT, 6);
    assert_eq!(look(stream), Ok(Looked::Worked), "its application may not have looked yet");
    let aborted = Some(End::Failed(rustix::io::Errno::CONNABORTED.raw_os_error()));
    let block = Block::open(&rig.memory, &rig.kept.place).unwrap();
    assert_eq!((block.rx_end(), block.tx_end()), (aborted, aborted));
}

/// A stream as its core has it, and a rig whose engine it is.
fn adopted() -> (Rig, Box<dyn Service>) {
    adopted_by(&Config::new(vec![]))
}

fn adopted_by(config: &Config) -> (Rig, Box<dyn Service>) {
    let mut rig = Rig::new(4096, None);
    rig.engine = None;
    let socket = rig.socket.as_fd().try_clone_to_owned().unwrap();
    let plan = resume(Ok(socket), &rig.kept.encode(), config).unwrap();
    let stream = build(&rig, plan.build).unwrap();
    (rig, stream)
}

#[test]
fn a_stream_that_cannot_go_on_is_given_back_at_the_byte_that_was_read_last() {
    for needless_lock in [false, true] {
        gives_back(&Config { needless_lock, ..Config::new(vec![]) });
    }
}

fn gives_back(config: &Config) {
    let (mut rig, mut stream) = adopted_by(config);
    rig.peer_write(100).unwrap();
    while rig.app_read(60).is_err() {
        look(&mut stream).unwrap();
    }
    break_off(&mut rig, &mut stream);
    assert_eq!(rig.app_read(20).unwrap(), 20, "what is in the ring is its own");
    for _ in 0..3 {
        assert_eq!(look(&mut stream), Ok(Looked::Nothing));
    }
    stream.on_end(Ending::Asked(control::End::Release));
    assert_eq!(look(&mut stream), Ok(Looked::Ended(Ok(()))));
    is_untouched(&rig);
    rig.native_read(1000);
    assert_eq!(rig.down.read, 100);
}

#[test]
fn a_stream_whose_socket_somebody_has_read_is_not_given_back() {
    let (mut rig, mut stream) = adopted();
    rig.peer_write(100).unwrap();
    while rig.app_read(100).is_err() {
        look(&mut stream).unwrap();
    }
    let mut socket = &rig.socket;
    std::io::Read::read_exact(&mut socket, &mut [0; 100]).unwrap();
    for ending in [control::End::Release, control::End::Close] {
        stream.on_end(Ending::Asked(ending));
        match (ending, look(&mut stream)) {
            (control::End::Release, Ok(Looked::Ended(Err(why)))) => {
                assert!(why.contains("has read"), "{why}")
            }
            (control::End::Close, Ok(Looked::Ended(_))) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_stream_that_cannot_be_taken_up_again_is_there_to_say_so() {
    for (ending, is_fine, socket) in [
        (Ending::Asked(control::End::Release), false, Ok(())),
        (Ending::Asked(control::End::Release), false, Err("no descriptor".to_owned())),
        (Ending::Asked(control::End::Close), true, Ok(())),
        (Ending::Orphaned, true, Ok(())),
        (Ending::Stopped, true, Ok(())),
    ] {
        let (mut rig, stream) = adopted();
        drop(stream);
        rig.scribble(at::RX_DISCARDED, 5);
        let socket = socket.map(|()| rig.socket.as_fd().try_clone_to_owned().unwrap());
        let plan = resume(socket, &rig.kept.encode(), &Config::new(vec![])).unwrap();
        let mut stream = build(&rig, plan.build).unwrap();
        for outcome in [rig.app_read(1), rig.app_write(1, false)] {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::ConnectionAborted);
        }
        assert_eq!(look(&mut stream), Ok(Looked::Nothing));
        assert_eq!(stream.rest(&Turn { now: Instant::now() }), Ok(Looked::Nothing));
        stream.on_end(ending);
        match look(&mut stream) {
            Ok(Looked::Ended(outcome)) => assert_eq!(outcome.is_ok(), is_fine, "{ending:?}: {outcome:?}"),
            other => panic!("{ending:?}: {other:?}"),
        }
    }
}

#[test]
fn a_stream_that_cannot_be_watched_any_more_stays_to_say_so() {
    let (mut rig, mut stream) = adopted();
    assert!(stream.on_unwatched("no room"));
    assert_eq!(rig.app_read(1).unwrap_err().kind(), ErrorKind::ConnectionAborted);
    stream.on_end(Ending::Asked(control::End::Release));
    assert_eq!(look(&mut stream), Ok(Looked::Ended(Ok(()))));
    is_untouched(&rig);
}

/// The next engine does not know why the one before broke it off, but its peer must not take a part for all.
#[test]
fn broken_stream_with_bytes_left_is_reset_also_by_the_next_engine() {
    let (mut rig, mut stream) = adopted();
    assert_eq!(rig.app_write(100, false).unwrap(), 100);
    assert!(stream.on_unwatched("no room"));
    drop(stream);
    let socket = rig.socket.as_fd().try_clone_to_owned().unwrap();
    let plan = resume(Ok(socket), &rig.kept.encode(), &Config::new(vec![])).unwrap();
    let mut stream = build(&rig, plan.build).unwrap();
    stream.on_end(Ending::Asked(control::End::Close));
    let is_over = |stream: &mut _| matches!(look(stream), Ok(Looked::Ended(Ok(()))));
    assert!((0..10).any(|_| is_over(&mut stream)), "it does not end");
    rig.socket = TcpStream::from(gone());
    drop(stream);
    rig.drop_engine();
    assert_reset(&mut rig);
}
