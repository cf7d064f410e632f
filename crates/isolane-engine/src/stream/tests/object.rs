//! Stream as an object of a core.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use isolane_engine_api::encode;
use isolane_engine_api::layout::stream as at;
use isolane_engine_api::stream::{ControlBlock, StreamEnd, StreamLayout};
use isolane_observe::snapshot::Series;
use isolane_observe::stage::Stage;
use isolane_reactor::clock;
use isolane_shm::PAGE_SIZE;
use rustix::net::sockopt;

use super::super::object::{adopt, resume};
use super::rig::{Rig, gone};
use super::table::assert_reset;
use crate::EngineConfig;
use crate::object::{
    BuildFn, BuiltObject, CloseReason, ObjectContext, PollStatus, PolledObject, ProtocolViolation, Turn,
};
use crate::observed::{Observed, Observer};

/// Returns a fixture without engine, and a duplicate of its socket.
fn idle() -> (Rig, OwnedFd) {
    let mut rig = Rig::new(4096, None);
    rig.release();
    let socket = rig.socket.as_fd().try_clone_to_owned().unwrap();
    (rig, socket)
}

fn build(rig: &Rig, build: BuildFn) -> Result<Box<dyn PolledObject>, String> {
    build_in(rig, build, 1, Observer::new(Arc::new(Observed::new(true, &[0])), 0))
}

fn build_in(
    rig: &Rig,
    build: BuildFn,
    session: u32,
    observer: Rc<Observer>,
) -> Result<Box<dyn PolledObject>, String> {
    let (memory, application) = (rig.memory.clone(), Arc::from("test"));
    let context = ObjectContext { core: 0, session, id: 7, memory, queue: None, application, observer };
    let built = build(context);
    built.map(|BuiltObject { object, .. }| object)
}

/// Checks that the socket has its original options.
fn assert_untouched(rig: &Rig) {
    assert_eq!(isolane_tcp::peek_offset(rig.socket.as_fd()).unwrap(), -1);
    assert!(!sockopt::socket_oobinline(&rig.socket).unwrap());
}

#[test]
fn unbuilt_adoption_leaves_socket_unchanged() {
    let page = PAGE_SIZE as u64;
    let good = StreamLayout { block: 0, rx: page, rx_capacity: page, tx: 2 * page, tx_capacity: page };
    let out_of_bounds = 1000 * page;
    for place in [
        StreamLayout { block: out_of_bounds, ..good },
        StreamLayout { rx: out_of_bounds, ..good },
        StreamLayout { tx: out_of_bounds, ..good },
    ] {
        let (rig, socket) = idle();
        let builder = adopt(socket, place, &EngineConfig::new(vec![])).unwrap();
        assert!(build(&rig, builder.build).is_err(), "{place:?}");
        assert_untouched(&rig);
    }
}

#[test]
fn unwatchable_socket_is_unchanged() {
    let (rig, socket) = idle();
    let builder = adopt(socket, rig.record.place, &EngineConfig::new(vec![])).unwrap();
    let mut stream = build(&rig, builder.build).unwrap();
    assert_eq!(isolane_tcp::peek_offset(rig.socket.as_fd()).unwrap(), 0);
    assert!(!stream.on_watch_failed("no descriptor"));
    assert_untouched(&rig);
}

fn poll(stream: &mut Box<dyn PolledObject>) -> Result<PollStatus, ProtocolViolation> {
    stream.poll(&Turn { now: Instant::now() })
}

/// Fails a stream, as after invalid data or a system error.
fn break_stream(rig: &mut Rig, stream: &mut Box<dyn PolledObject>) {
    rig.scribble(at::TX_END_POS, 6);
    assert_eq!(poll(stream), Ok(PollStatus::Busy), "the application may not have read yet");
    let aborted = Some(StreamEnd::Failed(rustix::io::Errno::CONNABORTED.raw_os_error()));
    let block = ControlBlock::open(&rig.memory, &rig.record.place).unwrap();
    assert_eq!((block.rx_end(), block.tx_end()), (aborted, aborted));
}

/// Returns a stream and its fixture.
fn adopted() -> (Rig, Box<dyn PolledObject>) {
    adopted_in(1, Observer::new(Arc::new(Observed::new(true, &[0])), 0))
}

fn adopted_in(session: u32, observer: Rc<Observer>) -> (Rig, Box<dyn PolledObject>) {
    let mut rig = Rig::new(4096, None);
    rig.engine = None;
    let socket = rig.socket.as_fd().try_clone_to_owned().unwrap();
    let builder = resume(Ok(socket), &encode(&rig.record)).unwrap();
    let stream = build_in(&rig, builder.build, session, observer).unwrap();
    (rig, stream)
}

/// Polls a stream in a turn of its own until it is idle.
fn rest(observer: &Observer, stream: &mut Box<dyn PolledObject>) {
    observer.begin_turn(false);
    while poll(stream) != Ok(PollStatus::Idle)
        || stream.prepare_idle(&Turn { now: Instant::now() }) != Ok(PollStatus::Idle)
    {
        observer.begin_turn(false);
    }
}

#[test]
fn hostile_doorbells_change_own_times_only() {
    let observed = Arc::new(Observed::new(true, &[0]));
    let observer = Observer::new(Arc::clone(&observed), 0);
    let mut hostile = adopted_in(1, Rc::clone(&observer));
    let mut other = adopted_in(2, Rc::clone(&observer));
    let series = |session: &str| -> Vec<Series> {
        let all = observed.volumes.all().0;
        let own = all.iter().find(|cells| cells.describe().name.contains(session)).expect("a row");
        own.copy().collect()
    };
    let tx_ns = |session| series(session).first().map_or(0, |at| at.stage_sum_ns(Stage::Tx));
    let (mut hostile_ns, mut other_ns) = (0, 0);
    for at in [1, u64::MAX, 0] {
        let before = clock::now();
        rest(&observer, &mut hostile.1);
        rest(&observer, &mut other.1);
        let idle_since = observer.turn_ns();
        assert_eq!((tx_ns("session 1"), tx_ns("session 2")), (hostile_ns, other_ns), "no bytes");
        while clock::now() < idle_since + 1_000_000 {}
        let rung = clock::now();
        for (rig, stream, at) in
            [(&mut hostile.0, &mut hostile.1, at), (&mut other.0, &mut other.1, clock::monotonic())]
        {
            rig.app_write(64, false).unwrap();
            stream.on_doorbell(at);
            stream.on_doorbell(1);
        }
        observer.begin_turn(false);
        poll(&mut hostile.1).unwrap();
        poll(&mut other.1).unwrap();
        let now = clock::now();
        let (of_hostile, of_other) = (tx_ns("session 1") - hostile_ns, tx_ns("session 2") - other_ns);
        (hostile_ns, other_ns) = (hostile_ns + of_hostile, other_ns + of_other);
        assert!(of_other > 0 && of_other <= now - rung, "{at}: {of_other}");
        // `hostile` rests before `other`, so its last poll can be earlier.
        let is_bounded = if at == 1 { of_hostile >= 1_000_000 } else { of_hostile <= now - before };
        assert!(is_bounded && of_hostile < now, "{at}: {of_hostile}");
    }
    let [of_hostile, of_other] = ["session 1", "session 2"].map(series);
    assert_eq!((of_hostile[0].total.count(), of_other[0].total.count()), (3, 3));
    assert_eq!((of_hostile[0].total.sum_ns(), of_hostile[0].bytes), (hostile_ns, 3 * 64));
}

#[test]
fn failed_stream_is_released_at_last_read_byte() {
    let (mut rig, mut stream) = adopted();
    rig.peer_write(100).unwrap();
    while rig.app_read(60).is_err() {
        poll(&mut stream).unwrap();
    }
    break_stream(&mut rig, &mut stream);
    assert_eq!(rig.app_read(20).unwrap(), 20, "the application can read the ring");
    for _ in 0..3 {
        assert_eq!(poll(&mut stream), Ok(PollStatus::Idle));
    }
    stream.on_close(CloseReason::Requested(isolane_engine_api::CloseMode::Release));
    assert_eq!(poll(&mut stream), Ok(PollStatus::Closed(Ok(()))));
    assert_untouched(&rig);
    rig.native_read(1000);
    assert_eq!(rig.down.read, 100);
}

#[test]
fn stream_with_foreign_reads_is_not_released() {
    let (mut rig, mut stream) = adopted();
    rig.peer_write(100).unwrap();
    while rig.app_read(100).is_err() {
        poll(&mut stream).unwrap();
    }
    let mut socket = &rig.socket;
    std::io::Read::read_exact(&mut socket, &mut [0; 100]).unwrap();
    for ending in [isolane_engine_api::CloseMode::Release, isolane_engine_api::CloseMode::Close] {
        stream.on_close(CloseReason::Requested(ending));
        match (ending, poll(&mut stream)) {
            (isolane_engine_api::CloseMode::Release, Ok(PollStatus::Closed(Err(reason)))) => {
                assert!(reason.contains("has read"), "{reason}")
            }
            (isolane_engine_api::CloseMode::Close, Ok(PollStatus::Closed(_))) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn unresumable_stream_reports_its_error() {
    for (reason, is_ok, socket) in [
        (CloseReason::Requested(isolane_engine_api::CloseMode::Release), false, Ok(())),
        (
            CloseReason::Requested(isolane_engine_api::CloseMode::Release),
            false,
            Err("no descriptor".to_owned()),
        ),
        (CloseReason::Requested(isolane_engine_api::CloseMode::Close), true, Ok(())),
        (CloseReason::ClientGone, true, Ok(())),
        (CloseReason::Shutdown, true, Ok(())),
    ] {
        let (mut rig, stream) = adopted();
        drop(stream);
        rig.scribble(at::RX_DISCARDED, 5);
        let socket = socket.map(|()| rig.socket.as_fd().try_clone_to_owned().unwrap());
        let builder = resume(socket, &encode(&rig.record)).unwrap();
        let mut stream = build(&rig, builder.build).unwrap();
        for outcome in [rig.app_read(1), rig.app_write(1, false)] {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::ConnectionAborted);
        }
        assert_eq!(poll(&mut stream), Ok(PollStatus::Idle));
        assert_eq!(stream.prepare_idle(&Turn { now: Instant::now() }), Ok(PollStatus::Idle));
        stream.on_close(reason);
        match poll(&mut stream) {
            Ok(PollStatus::Closed(result)) => assert_eq!(result.is_ok(), is_ok, "{reason:?}: {result:?}"),
            other => panic!("{reason:?}: {other:?}"),
        }
    }
}

#[test]
fn unwatchable_stream_stays_to_report_error() {
    let (mut rig, mut stream) = adopted();
    assert!(stream.on_watch_failed("no descriptor"));
    assert_eq!(rig.app_read(1).unwrap_err().kind(), ErrorKind::ConnectionAborted);
    stream.on_close(CloseReason::Requested(isolane_engine_api::CloseMode::Release));
    assert_eq!(poll(&mut stream), Ok(PollStatus::Closed(Ok(()))));
    assert_untouched(&rig);
}

/// The next engine does not know the failure, but partial data must not look complete to the peer.
#[test]
fn next_engine_resets_failed_stream_with_unsent_data() {
    let (mut rig, mut stream) = adopted();
    assert_eq!(rig.app_write(100, false).unwrap(), 100);
    assert!(stream.on_watch_failed("no descriptor"));
    drop(stream);
    let socket = rig.socket.as_fd().try_clone_to_owned().unwrap();
    let builder = resume(Ok(socket), &encode(&rig.record)).unwrap();
    let mut stream = build(&rig, builder.build).unwrap();
    stream.on_close(CloseReason::Requested(isolane_engine_api::CloseMode::Close));
    let is_closed = |stream: &mut _| matches!(poll(stream), Ok(PollStatus::Closed(Ok(()))));
    assert!((0..10).any(|_| is_closed(&mut stream)), "the stream does not close");
    rig.socket = TcpStream::from(gone());
    drop(stream);
    rig.drop_engine();
    assert_reset(&mut rig);
}
