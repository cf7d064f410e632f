//! Records and messages come back as they were; a deposit waits for its answer.

use isolane_attach::control::{End, Object, Open, Request, TEXT_BYTES_MAX};
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
