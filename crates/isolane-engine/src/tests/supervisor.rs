//! What an engine and its supervisor owe the clients.

use super::*;

/// More messages than the link of a supervisor takes.
const TOO_MANY: u64 = 5_000;

/// If the engine is killed now, the next one goes on with the stream: its client must not have heard that it is its own
/// again.
#[test]
fn release_is_answered_only_after_link_has_taken_its_withdrawal() {
    let (fixture, store, supervisor) = supervised();
    let keep = || match heard(&supervisor) {
        ToSupervisor::Deposit { key, .. } => store.on_deposited(key, true),
        other => panic!("{other:?}"),
    };
    let (wire, memory) = (fixture.dial(), Memory::create("client", 64 * PAGE_SIZE).unwrap());
    wire.send(&hello(), &[memory.memfd(), some_fd().as_fd()], true).unwrap();
    keep();
    told(&wire);
    let page = PAGE_SIZE as u64;
    let place = StreamPlace { block: 0, rx: page, rx_capacity: page, tx: 2 * page, tx_capacity: page };
    let (socket, _peer) = isolane_ring::mock::connection().unwrap();
    let open = Open { id: 1, core: None, queue: None, object: Object::Stream(place) };
    wire.send(&Request::Open(open).encode(2), &[socket.as_fd()], true).unwrap();
    keep();
    assert!(matches!(told(&wire), Some(Reply::Opened { .. })));

    (0..TOO_MANY).for_each(|key| store.withdraw(TOO_MANY + key));
    assert!(store.told().taken < TOO_MANY, "the link takes all of them: nothing is tested");
    wire.send(&Request::End { id: 1, how: End::Release }.encode(3), &[], true).unwrap();
    while store.told().all == TOO_MANY {
        std::thread::yield_now();
    }
    let moment = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let mut watched = [rustix::event::PollFd::new(&wire, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut watched, Some(&moment)), Ok(0), "the supervisor could still keep it");
    (0..=TOO_MANY).for_each(|_| drop(heard(&supervisor)));
    assert_eq!(told(&wire), Some(Reply::Done));
}

/// An end may overtake the answer of the supervisor; then no core is to make the object any more.
#[test]
fn stream_that_is_closed_before_it_is_kept_is_never_made() {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let store = Arc::new(Store::of(Wire::new(ours), 0));
    let fixture = Fixture::with(Arc::clone(&store), |config| config.limits.streams = 1);
    let supervisor = Wire::new(theirs);
    let deposited = || loop {
        if let ToSupervisor::Deposit { key, .. } = heard(&supervisor) {
            break key;
        }
    };
    let (wire, memory) = (fixture.dial(), Memory::create("client", 64 * PAGE_SIZE).unwrap());
    wire.send(&hello(), &[memory.memfd(), some_fd().as_fd()], true).unwrap();
    store.on_deposited(deposited(), true);
    told(&wire);
    let page = PAGE_SIZE as u64;
    let place = StreamPlace { block: 0, rx: page, rx_capacity: page, tx: 2 * page, tx_capacity: page };
    for id in 1..200 {
        let (socket, mut peer) = isolane_ring::mock::connection().unwrap();
        let open = Open { id, core: None, queue: None, object: Object::Stream(place) };
        wire.send(&Request::Open(open).encode(2 * id), &[socket.as_fd()], true).unwrap();
        let key = deposited();
        wire.send(&Request::End { id, how: End::Release }.encode(2 * id + 1), &[], true).unwrap();
        store.on_deposited(key, true);
        let answers = [told(&wire), told(&wire)];
        assert!(answers.contains(&Some(Reply::Done)), "{answers:?}");
        drop(socket);
        peer.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let read = std::io::Read::read(&mut peer, &mut [0]);
        assert!(matches!(read, Ok(0)), "round {id}: the engine still has the socket: {read:?}");
    }
}

/// As of an application that has exited: its connection is over, and the kernel does not say who it was.
#[test]
fn stream_of_application_that_has_ended_is_sent_by_the_next_engine() {
    let memory = Memory::create("client", 16 * PAGE_SIZE).unwrap();
    let page = PAGE_SIZE as u64;
    let place = StreamPlace { block: 0, rx: page, rx_capacity: page, tx: 2 * page, tx_capacity: page };
    let wire = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let session = Deposit {
        key: 1,
        record: Record::Session { session: 1, pid: 1, uid: 0 },
        descriptors: vec![wire, memory.memfd().try_clone_to_owned().unwrap(), some_fd()],
    };
    let (socket, mut peer) = isolane_ring::mock::connection().unwrap();
    let note = stream::Kept::of(socket.as_fd(), place).unwrap().encode().to_vec();
    let request = Request::Open(Open { id: 1, core: None, queue: None, object: Object::Stream(place) });
    let stream = Deposit {
        key: 2,
        record: Record::Granted { session: 1, core: 0, request, note },
        descriptors: vec![socket.into()],
    };
    ends(&memory, &place).unwrap().1.try_write(&[7; 1000]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = Config::new(vec![isolane_reactor::core::usable().unwrap()[0]]);
    let listener = listen(&folder.path().join("sock")).unwrap();
    let record = crate::watch::Record::new().unwrap();
    let _engine = Engine::resume(config, listener, 2, Store::none(), vec![session, stream], record).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut peer, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 1000]);
}

/// The supervisor takes its time, and several are asked for meanwhile; then their client leaves.
#[test]
fn opens_wait_for_their_deposits_side_by_side() {
    let (fixture, store, supervisor) = supervised();
    let deposited = || deposit(&supervisor);
    let (wire, memory) = (fixture.dial(), Memory::create("client", 64 * PAGE_SIZE).unwrap());
    wire.send(&hello(), &[memory.memfd(), some_fd().as_fd()], true).unwrap();
    let session = deposited();
    store.on_deposited(session, true);
    told(&wire);
    let page = PAGE_SIZE as u64;
    let place = StreamPlace { block: 0, rx: page, rx_capacity: page, tx: 2 * page, tx_capacity: page };
    let mut peers = Vec::new();
    for id in 1..=ASKED_MAX as u32 {
        let (socket, peer) = isolane_ring::mock::connection().unwrap();
        let open = Open { id, core: None, queue: None, object: Object::Stream(place) };
        wire.send(&Request::Open(open).encode(id), &[socket.as_fd()], true).unwrap();
        peers.push(peer);
    }
    let streams: Vec<u64> = (0..ASKED_MAX).map(|_| deposited()).collect();
    store.on_deposited(streams[0], false);
    assert!(matches!(told(&wire), Some(Reply::Refused(why)) if why.contains("ulimit -n")));
    store.on_deposited(streams[1], true);
    assert!(matches!(told(&wire), Some(Reply::Opened { .. })));
    drop(wire);
    streams[2..].iter().for_each(|key| store.on_deposited(*key, true));
    // Nothing is left of the client.
    let mut kept: Vec<u64> = streams.iter().copied().chain([session]).collect();
    while !kept.is_empty() {
        let ToSupervisor::Withdraw { key } = heard(&supervisor) else { panic!("{kept:?}") };
        kept.retain(|kept| *kept != key);
    }
    assert!(peers.iter_mut().all(|peer| std::io::Read::read(peer, &mut [0]).unwrap() == 0));
}
