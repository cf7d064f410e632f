//! Codec and timeouts of the store.

use std::os::fd::AsFd;

use isolane_engine_api::{
    CloseMode, MAX_DESCRIPTORS, MAX_MESSAGE_BYTES, Object, OpenObject, Request, decode, kind,
};
use isolane_host::StaleAssociation;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;
use crate::object::RecoveryState;

fn volume() -> Record {
    let object = Object { kind: kind::VOLUME, params: vec![1; Object::MAX_PARAMS_BYTES] };
    let request = Request::OpenObject(OpenObject { id: 1, core: Some(2), queue: Some(3), object });
    Record::Granted { session: 4, core: 5, request, note: vec![6; RecoveryState::MAX_NOTE_BYTES] }
}

#[test]
fn round_trips_longest_records() {
    let session = Record::Session { session: 1, pid: -1, uid: 3 };
    for record in [session, volume(), Record::Note(vec![7; StaleAssociation::MAX_BYTES])] {
        let put = ToSupervisor::Put { key: u64::MAX, record: record.clone() };
        let restore = ToEngine::Restore { key: u64::MAX, record };
        let (put_bytes, restore_bytes) = (encode(&put), encode(&restore));
        assert_eq!((decode(&put_bytes), decode(&restore_bytes)), (Ok(put), Ok(restore)));
        assert!(put_bytes.len().max(restore_bytes.len()) <= MAX_MESSAGE_BYTES);
    }
}

#[test]
fn round_trips_every_message() {
    let hello = ToSupervisor::Hello { version: 7 };
    for message in [hello, ToSupervisor::Remove { key: 1 }, ToSupervisor::Ready, ToSupervisor::Idle] {
        assert_eq!(decode(&encode(&message)), Ok(message));
    }
    let start = ToEngine::Start { version: 1, epoch: 2 };
    let replies = [ToEngine::Stored { key: 1 }, ToEngine::StoreFailed { key: 1 }];
    for message in
        replies.into_iter().chain([start, ToEngine::Shutdown, ToEngine::Exit, ToEngine::PrintStatus])
    {
        assert_eq!(decode(&encode(&message)), Ok(message));
    }
    assert!(decode::<ToEngine>(&encode(&ToSupervisor::Ready)).is_err());
    let hello = encode(&ToSupervisor::Hello { version: 0x0a0b_0c0d });
    assert_eq!(hello, [0, 0x8d, 0x98, 0xac, 0x50], "as in every version");
}

#[test]
fn put_waits_for_its_own_reply_or_close() {
    let (ours, peer_end) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let store = StoreClient::new(PacketSocket::new(ours), 7);
    let record = Record::Granted {
        session: 1,
        core: 0,
        request: Request::CloseObject { id: 1, how: CloseMode::Close },
        note: Vec::new(),
    };
    std::thread::scope(|scope| {
        let putter = scope.spawn(|| store.put(&record, &[]));
        let supervisor = PacketSocket::new(peer_end);
        let packet = supervisor.receive(true).unwrap().unwrap();
        let expected = ToSupervisor::Put { key: 7, record: record.clone() };
        assert_eq!(decode(&packet.bytes), Ok(expected));
        store.on_stored(6, true);
        store.on_stored(7, true);
        assert_eq!(putter.join().unwrap().unwrap(), 7);
        let putter = scope.spawn(|| store.put(&record, &[]));
        supervisor.receive(true).unwrap().unwrap();
        store.on_stored(8, false);
        assert!(putter.join().unwrap().unwrap_err().to_string().contains("ulimit -n"));
    });
    store.close();
    assert!(store.put(&record, &[]).is_err());
}

fn linked() -> (StoreClient, PacketSocket) {
    let (ours, peer_end) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    (StoreClient::new(PacketSocket::new(ours), 0), PacketSocket::new(peer_end))
}

fn note() -> Record {
    Record::Note(vec![1])
}

/// Receives the next message of the engine.
fn received(supervisor: &PacketSocket) -> ToSupervisor {
    decode(&supervisor.receive(true).unwrap().unwrap().bytes).unwrap()
}

/// Receives the next record. Returns its key.
fn receive_put(supervisor: &PacketSocket) -> u64 {
    match received(supervisor) {
        ToSupervisor::Put { key, .. } => key,
        other => panic!("{other:?}"),
    }
}

/// Checks that the next put succeeds.
fn assert_usable(store: &StoreClient, supervisor: &PacketSocket) {
    std::thread::scope(|scope| {
        let next = scope.spawn(|| store.put(&note(), &[]));
        let key = receive_put(supervisor);
        store.on_stored(key, true);
        assert_eq!(next.join().unwrap().unwrap(), key);
    });
}

#[test]
fn unsendable_put_fails_alone() {
    let (store, supervisor) = linked();
    let too_many: Vec<_> = (0..MAX_DESCRIPTORS + 1).map(|_| supervisor.as_fd()).collect();
    store.put(&note(), &too_many).unwrap_err();
    assert!(!store.is_closed(), "one message closes the store");
    assert_usable(&store, &supervisor);
}

#[test]
fn unanswered_put_times_out_and_is_removed() {
    let (mut store, supervisor) = linked();
    store.timeout = Duration::from_millis(20);
    let error = store.put(&note(), &[]).unwrap_err();
    assert!(matches!(error, StoreError::Timeout(_)) && !store.is_closed(), "{error}");
    let key = receive_put(&supervisor);
    assert_eq!(received(&supervisor), ToSupervisor::Remove { key }, "the supervisor would keep it");
    store.on_stored(key, true);
    store.timeout = PUT_TIMEOUT;
    assert_usable(&store, &supervisor);
}

#[test]
fn messages_to_stalled_supervisor_are_queued() {
    let (store, supervisor) = linked();
    const COUNT: u64 = 5_000;
    (0..COUNT).for_each(|key| store.remove(key));
    assert!(!store.state.lock().unsent.is_empty(), "the link accepts all messages, so nothing is tested");
    for key in 0..COUNT {
        assert_eq!(received(&supervisor), ToSupervisor::Remove { key });
        store.flush();
    }
}
