//! Guarantees of engine and supervisor for clients.

use isolane_engine_api::{Object, SessionLimits, kind};

use super::*;
use crate::object::{
    BuiltObject, CloseReason, ObjectBuilder, ObjectContext, ObjectKind, PollStatus, PolledObject,
    ProtocolViolation, Ready, RecoveryState, Rejection, Turn,
};

/// More messages than the link buffers.
const TOO_MANY: u64 = 5_000;

/// If the engine were killed now, the next one would resume the stream: its client must not get the reply yet.
#[test]
fn release_reply_waits_for_record_removal() {
    let (fixture, store, supervisor) = run_engine();
    let store_next = || match recv_message(&supervisor) {
        ToSupervisor::Put { key, .. } => store.on_stored(key, true),
        other => panic!("{other:?}"),
    };
    let (wire, memory) = (fixture.dial(), SharedMemory::create("client", 64 * PAGE_SIZE).unwrap());
    wire.send(&hello(), &[memory.memfd(), some_fd().as_fd()], true).unwrap();
    store_next();
    recv_reply(&wire);
    let page = PAGE_SIZE as u64;
    let place = StreamLayout { block: 0, rx: page, rx_capacity: page, tx: 2 * page, tx_capacity: page };
    let (socket, _peer) = isolane_shm::testing::connection().unwrap();
    let open = OpenObject { id: 1, core: None, queue: None, object: place.object() };
    wire.send(&Request::OpenObject(open).encode(2), &[socket.as_fd()], true).unwrap();
    store_next();
    assert!(matches!(recv_reply(&wire), Some(Reply::Opened { .. })));

    (0..TOO_MANY).for_each(|key| store.remove(TOO_MANY + key));
    assert!(!store.is_flushed(), "the link accepts all messages, so nothing is tested");
    let unsent = store.unsent();
    wire.send(&Request::CloseObject { id: 1, how: CloseMode::Release }.encode(3), &[], true).unwrap();
    while store.unsent() == unsent {
        std::thread::yield_now();
    }
    let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let mut watched = [rustix::event::PollFd::new(&wire, rustix::event::PollFlags::IN)];
    assert_eq!(
        rustix::event::poll(&mut watched, Some(&timeout)),
        Ok(0),
        "the supervisor may still have the record"
    );
    (0..=TOO_MANY).for_each(|_| drop(recv_message(&supervisor)));
    assert_eq!(recv_reply(&wire), Some(Reply::Ack));
}

/// A close may overtake the reply of the supervisor; then no core must build the object.
#[test]
fn stream_closed_before_its_record_is_never_built() {
    let (ours, peer_end) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let store = Arc::new(StoreClient::new(PacketSocket::new(ours), 0));
    let fixture = Fixture::with(Arc::clone(&store), |config| config.limits.streams = 1);
    let supervisor = PacketSocket::new(peer_end);
    let next_put = || loop {
        if let ToSupervisor::Put { key, .. } = recv_message(&supervisor) {
            break key;
        }
    };
    let (wire, memory) = (fixture.dial(), SharedMemory::create("client", 64 * PAGE_SIZE).unwrap());
    wire.send(&hello(), &[memory.memfd(), some_fd().as_fd()], true).unwrap();
    store.on_stored(next_put(), true);
    recv_reply(&wire);
    let page = PAGE_SIZE as u64;
    let place = StreamLayout { block: 0, rx: page, rx_capacity: page, tx: 2 * page, tx_capacity: page };
    for id in 1..200 {
        let (socket, mut peer) = isolane_shm::testing::connection().unwrap();
        let open = OpenObject { id, core: None, queue: None, object: place.object() };
        wire.send(&Request::OpenObject(open).encode(2 * id), &[socket.as_fd()], true).unwrap();
        let key = next_put();
        wire.send(&Request::CloseObject { id, how: CloseMode::Release }.encode(2 * id + 1), &[], true)
            .unwrap();
        store.on_stored(key, true);
        let answers = [recv_reply(&wire), recv_reply(&wire)];
        assert!(answers.contains(&Some(Reply::Ack)), "{answers:?}");
        drop(socket);
        peer.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let read = std::io::Read::read(&mut peer, &mut [0]);
        assert!(matches!(read, Ok(0)), "round {id}: the engine still has the socket: {read:?}");
    }
}

/// Its connection is closed, and its process unknown.
#[test]
fn next_engine_sends_stream_of_ended_application() {
    let memory = SharedMemory::create("client", 16 * PAGE_SIZE).unwrap();
    let page = PAGE_SIZE as u64;
    let place = StreamLayout { block: 0, rx: page, rx_capacity: page, tx: 2 * page, tx_capacity: page };
    let wire = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let session = StoredRecord {
        key: 1,
        record: Record::Session { session: 1, pid: 1, uid: 0 },
        descriptors: vec![wire, memory.memfd().try_clone_to_owned().unwrap(), some_fd()],
    };
    let (socket, mut peer) = isolane_shm::testing::connection().unwrap();
    let note = encode(&stream::StreamRecord::capture(socket.as_fd(), place).unwrap());
    let request = Request::OpenObject(OpenObject { id: 1, core: None, queue: None, object: place.object() });
    let stream = StoredRecord {
        key: 2,
        record: Record::Granted { session: 1, core: 0, request, note },
        descriptors: vec![socket.into()],
    };
    open_rings(&memory, &place).unwrap().1.try_write(&[7; 1000]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = EngineConfig::new(vec![isolane_reactor::cpu::allowed().unwrap()[0]]);
    let listener = listen(&dir.path().join("sock")).unwrap();
    let _engine = resume(config, listener, 2, Arc::new(StoreClient::none()), vec![session, stream]);
    peer.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut peer, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 1000]);
}

/// The supervisor is slow, the client opens several streams, then disconnects.
#[test]
fn opens_wait_for_their_deposits_side_by_side() {
    let (fixture, store, supervisor) = run_engine();
    let next_put = || receive_put(&supervisor);
    let (wire, memory) = (fixture.dial(), SharedMemory::create("client", 64 * PAGE_SIZE).unwrap());
    wire.send(&hello(), &[memory.memfd(), some_fd().as_fd()], true).unwrap();
    let session = next_put();
    store.on_stored(session, true);
    recv_reply(&wire);
    let page = PAGE_SIZE as u64;
    let place = StreamLayout { block: 0, rx: page, rx_capacity: page, tx: 2 * page, tx_capacity: page };
    let mut peers = Vec::new();
    for id in 1..=MAX_REQUESTS_IN_FLIGHT as u32 {
        let (socket, peer) = isolane_shm::testing::connection().unwrap();
        let open = OpenObject { id, core: None, queue: None, object: place.object() };
        wire.send(&Request::OpenObject(open).encode(id), &[socket.as_fd()], true).unwrap();
        peers.push(peer);
    }
    let streams: Vec<u64> = (0..MAX_REQUESTS_IN_FLIGHT).map(|_| next_put()).collect();
    store.on_stored(streams[0], false);
    assert!(matches!(recv_reply(&wire), Some(Reply::Refused(reason)) if reason.contains("ulimit -n")));
    store.on_stored(streams[1], true);
    assert!(matches!(recv_reply(&wire), Some(Reply::Opened { .. })));
    drop(wire);
    streams[2..].iter().for_each(|key| store.on_stored(*key, true));
    // All records of the client are removed.
    let mut stored: Vec<u64> = streams.iter().copied().chain([session]).collect();
    while !stored.is_empty() {
        let ToSupervisor::Remove { key } = recv_message(&supervisor) else { panic!("{stored:?}") };
        stored.retain(|stored| *stored != key);
    }
    assert!(peers.iter_mut().all(|peer| std::io::Read::read(peer, &mut [0]).unwrap() == 0));
}

const RECORDER: u16 = kind::FIRST_EXTERNAL + 7;

/// Kind of another crate with state to store: its objects write parameters and note to their descriptor.
struct RecorderKind;

struct Recorder {
    need_wakeup: WakeFlag,
    closing: bool,
}

impl ObjectKind for RecorderKind {
    fn name(&self) -> &'static str {
        "recorders"
    }

    fn id(&self) -> u16 {
        RECORDER
    }

    fn max_objects(&self, _: &SessionLimits) -> u32 {
        1
    }

    fn descriptors(&self) -> std::ops::RangeInclusive<usize> {
        1..=1
    }

    fn open(&self, _: &[u8], _: Vec<OwnedFd>) -> Result<ObjectBuilder, Rejection> {
        panic!("the object is opened, not resumed")
    }

    fn resume(&self, params: &[u8], note: &[u8], fds: Vec<OwnedFd>) -> Result<ObjectBuilder, Rejection> {
        let (bytes, output) = ([params, note].concat(), fds.into_iter().next().unwrap());
        let build = Box::new(move |_: ObjectContext| {
            rustix::io::write(&output, &bytes).unwrap();
            let object = Box::new(Recorder { need_wakeup: WakeFlag::new(), closing: false });
            Ok(BuiltObject { object, answer: Some(bytes) })
        });
        Ok(ObjectBuilder { core: None, build, recovery: RecoveryState::default() })
    }
}

impl PolledObject for Recorder {
    fn poll(&mut self, _: &Turn) -> Result<PollStatus, ProtocolViolation> {
        Ok(if self.closing { PollStatus::Closed(Ok(())) } else { PollStatus::Idle })
    }

    fn on_ready(&mut self, _: usize, _: Ready) {}

    fn on_close(&mut self, _: CloseReason) {
        self.closing = true;
    }

    fn need_wakeup(&self) -> &WakeFlag {
        &self.need_wakeup
    }
}

#[test]
fn next_engine_resumes_object_of_external_kind() {
    let memory = SharedMemory::create("client", 16 * PAGE_SIZE).unwrap();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (wire, engine_end) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let (wire, (mut output, engine_output)) =
        (PacketSocket::new(wire), std::os::unix::net::UnixStream::pair().unwrap());
    let session = StoredRecord {
        key: 1,
        record: Record::Session { session: 1, pid: 1, uid: 0 },
        descriptors: vec![engine_end, memory.memfd().try_clone_to_owned().unwrap(), some_fd()],
    };
    let object = Object { kind: RECORDER, params: vec![1, 2] };
    let request = Request::OpenObject(OpenObject { id: 5, core: None, queue: None, object });
    let granted = Record::Granted { session: 1, core: 0, request: request.clone(), note: vec![3] };
    let recorder = StoredRecord { key: 2, record: granted, descriptors: vec![engine_output.into()] };
    let dir = tempfile::tempdir().unwrap();
    let config = EngineConfig::new(vec![isolane_reactor::cpu::allowed().unwrap()[0]]);
    let (listener, store) = (listen(&dir.path().join("sock")).unwrap(), Arc::new(StoreClient::none()));
    let (kinds, records) = (vec![Box::new(RecorderKind) as Box<dyn ObjectKind>], vec![session, recorder]);
    let watch = crate::watch::Record::new().unwrap();
    let _engine = Engine::resume(config, listener, kinds, 2, store, records, watch).unwrap();
    assert_eq!(recv_reply(&wire), Some(Reply::EngineRestarted { epoch: 2 }));
    let mut bytes = [0; 3];
    output.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    std::io::Read::read_exact(&mut output, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 3]);
    // The application repeats a request whose reply was lost.
    wire.send(&request.encode(9), &[some_fd().as_fd()], true).unwrap();
    assert_eq!(recv_reply(&wire), Some(Reply::Opened { core: 0, answer: vec![1, 2, 3] }));
}
