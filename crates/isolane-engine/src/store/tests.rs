//! Records and messages come back as they were; a deposit waits for its answer.

use std::os::fd::AsFd;

use isolane_attach::control::{DESCRIPTORS_MAX, End, Object, Open, Request, TEXT_BYTES_MAX};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;
use crate::service;

fn volume() -> Record {
    let details = vec![1; Object::DETAILS_BYTES_MAX];
    let object = Object::Volume { uri: "u".repeat(TEXT_BYTES_MAX), details };
    let request = Request::Open(Open { id: 1, core: Some(2), queue: Some(3), object });
    Record::Granted { session: 4, core: 5, request, note: vec![6; service::Left::NOTE_BYTES_MAX] }
}

#[test]
fn the_longest_records_fit_and_come_back() {
    let session = Record::Session { session: 1, pid: -1, uid: 3 };
    for record in [session, volume(), Record::Note(vec![7; Record::NOTE_BYTES_MAX])] {
        assert_eq!(Record::decode(&record.encode()), Ok(record.clone()));
        let deposit = ToSupervisor::Deposit { key: 9, record: record.encode() };
        assert_eq!(ToSupervisor::decode(&deposit.encode()), Ok(deposit));
        let kept = ToEngine::Kept { key: u64::MAX, record: record.encode() };
        assert_eq!(ToEngine::decode(&kept.encode()), Ok(kept));
    }
}

#[test]
fn every_message_comes_back() {
    let here = ToSupervisor::Here { version: 7 };
    for message in [here, ToSupervisor::Withdraw { key: 1 }, ToSupervisor::Ready, ToSupervisor::Idle] {
        assert_eq!(ToSupervisor::decode(&message.encode()), Ok(message));
    }
    let go = ToEngine::Go { version: 1, epoch: 2 };
    let answers = [ToEngine::Deposited { key: 1 }, ToEngine::Unkept { key: 1 }];
    for message in answers.into_iter().chain([go, ToEngine::Stop, ToEngine::Halt, ToEngine::Show]) {
        assert_eq!(ToEngine::decode(&message.encode()), Ok(message));
    }
    assert!(ToEngine::decode(&ToSupervisor::Ready.encode()).is_err());
    let here = ToSupervisor::Here { version: 0x0a0b_0c0d }.encode();
    assert_eq!(here, [5, 0, 0x0d, 0x0c, 0x0b, 0x0a], "as in every version");
}

#[test]
fn a_deposit_waits_for_its_own_answer_or_the_end() {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let store = Store::of(Wire::new(ours), 7);
    let record = Record::Granted {
        session: 1,
        core: 0,
        request: Request::End { id: 1, how: End::Close },
        note: Vec::new(),
    };
    std::thread::scope(|scope| {
        let depositor = scope.spawn(|| store.deposit(&record, &[]));
        let theirs = Wire::new(theirs);
        let packet = theirs.receive(true).unwrap().unwrap();
        let expected = ToSupervisor::Deposit { key: 7, record: record.encode() };
        assert_eq!(ToSupervisor::decode(&packet.bytes), Ok(expected));
        store.on_deposited(6, true);
        store.on_deposited(7, true);
        assert_eq!(depositor.join().unwrap().unwrap(), 7);
        let depositor = scope.spawn(|| store.deposit(&record, &[]));
        theirs.receive(true).unwrap().unwrap();
        store.on_deposited(8, false);
        assert!(depositor.join().unwrap().unwrap_err().to_string().contains("ulimit -n"));
    });
    store.on_over();
    assert!(store.deposit(&record, &[]).is_err());
}

fn linked() -> (Store, Wire) {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    (Store::of(Wire::new(ours), 0), Wire::new(theirs))
}

fn note() -> Record {
    Record::Note(vec![1])
}

/// Next message that the supervisor receives.
fn received(supervisor: &Wire) -> ToSupervisor {
    ToSupervisor::decode(&supervisor.receive(true).unwrap().unwrap().bytes).unwrap()
}

/// The key of the next deposit that the supervisor receives.
fn deposited(supervisor: &Wire) -> u64 {
    match received(supervisor) {
        ToSupervisor::Deposit { key, .. } => key,
        other => panic!("{other:?}"),
    }
}

/// The store keeps the next deposit.
fn is_in_use(store: &Store, supervisor: &Wire) {
    std::thread::scope(|scope| {
        let next = scope.spawn(|| store.deposit(&note(), &[]));
        let key = deposited(supervisor);
        store.on_deposited(key, true);
        assert_eq!(next.join().unwrap().unwrap(), key);
    });
}

#[test]
fn deposit_that_cannot_be_sent_fails_alone() {
    let (store, supervisor) = linked();
    let too_many: Vec<_> = (0..DESCRIPTORS_MAX + 1).map(|_| supervisor.as_fd()).collect();
    store.deposit(&note(), &too_many).unwrap_err();
    assert!(!store.is_over(), "one message ends the store");
    is_in_use(&store, &supervisor);
}

#[test]
fn deposit_that_is_not_answered_fails_in_time_and_is_withdrawn() {
    let (mut store, supervisor) = linked();
    store.patience = Duration::from_millis(20);
    let error = store.deposit(&note(), &[]).unwrap_err();
    assert!(matches!(error, Unkept::Silent(_)) && !store.is_over(), "{error}");
    let key = deposited(&supervisor);
    assert_eq!(received(&supervisor), ToSupervisor::Withdraw { key }, "the supervisor keeps it");
    store.on_deposited(key, true);
    store.patience = PATIENCE;
    is_in_use(&store, &supervisor);
}

#[test]
fn messages_to_supervisor_that_reads_nothing_wait_for_nobody_and_arrive_later() {
    let (store, supervisor) = linked();
    const COUNT: u64 = 5_000;
    (0..COUNT).for_each(|key| store.withdraw(key));
    assert!(!store.state.lock().unsent.is_empty(), "the link takes all of them: nothing is tested");
    for key in 0..COUNT {
        assert_eq!(received(&supervisor), ToSupervisor::Withdraw { key });
        store.flush();
    }
}
