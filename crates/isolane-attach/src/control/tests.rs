//! Golden vectors, what is malformed, and packets over a real pair of sockets.

use std::os::fd::AsFd;

use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;
use crate::layout::{PortPlace, QueuePlace};

fn pair() -> (Wire, Wire) {
    let (one, other) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    (Wire::new(one), Wire::new(other))
}

#[test]
fn a_request_is_these_bytes() {
    let hello = Request::Hello(Hello { version: 0x0102_0304 }).encode(0x0506_0708);
    assert_eq!(hello, [1, 0, 8, 7, 6, 5, b'I', b'S', b'O', b'L', 4, 3, 2, 1]);
    let end = Request::End { id: 0x1122, how: End::Close }.encode(1);
    assert_eq!(end, [6, 0, 1, 0, 0, 0, 0x22, 0x11, 0, 0, 2, 0]);
    assert_eq!(Request::Relieve.encode(2), [7, 0, 2, 0, 0, 0]);
}

#[test]
fn a_reply_is_these_bytes() {
    let opened = Reply::Opened { core: 0x0102, answer: vec![7, 8] }.encode(3);
    assert_eq!(opened, [0x84, 0, 3, 0, 0, 0, 2, 1, 0, 0, 2, 0, 7, 8]);
}

#[test]
fn the_first_wrong_field_is_named() {
    let mut hello = Request::Hello(Hello { version: 1 }).encode(9);
    assert_eq!(Request::decode(&hello[..12]).unwrap_err(), Malformed { what: "the version", offset: 10 });
    hello.push(0);
    assert_eq!(Request::decode(&hello).unwrap_err().offset, 14);
    hello[6] = 0;
    let error = Request::decode(&hello).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a control message is malformed: the word that an application of Isolane begins with at byte 6"
    );
}

#[test]
fn a_refusal_longer_than_a_message_is_cut_between_letters() {
    let text = "é".repeat(BYTES_MAX);
    let bytes = Reply::Refused(text).encode(1);
    assert!(bytes.len() <= BYTES_MAX);
    let Ok((1, Reply::Refused(told))) = Reply::decode(&bytes) else { panic!("it is a refusal") };
    assert_eq!(told, "é".repeat(TEXT_BYTES_MAX / 2));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no such sockets")]
fn a_packet_carries_descriptors_and_ends_with_its_connection() {
    let (one, other) = pair();
    assert!(matches!(other.receive(false), Ok(None)));
    one.send(&[1, 2], &[other.as_fd(), one.as_fd()], false).unwrap();
    let packet = other.receive(true).unwrap().unwrap();
    assert_eq!((packet.bytes, packet.descriptors.len()), (vec![1, 2], 2));
    drop(packet.descriptors);
    drop(one);
    assert!(matches!(other.receive(true), Err(WireError::Closed)));
    assert!(matches!(other.send(&[1], &[], false), Err(WireError::Closed)));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no such sockets")]
fn what_was_said_before_hanging_up_is_heard_though_nobody_listened() {
    let (one, other) = pair();
    one.send(&[1], &[], true).unwrap();
    other.send(&[2], &[], true).unwrap();
    drop(other);
    assert!(matches!(one.send(&[3], &[], true), Err(WireError::Closed)));
    assert_eq!(one.receive(true).unwrap().unwrap().bytes, [2]);
    assert!(matches!(one.receive(true), Err(WireError::Closed)));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no such sockets")]
fn packets_that_are_too_long_are_neither_sent_nor_received() {
    let (one, other) = pair();
    let fd = one.as_fd();
    assert!(matches!(one.send(&[0; BYTES_MAX + 1], &[], false), Err(WireError::TooLong { .. })));
    assert!(matches!(one.send(&[0], &[fd; DESCRIPTORS_MAX + 1], false), Err(WireError::TooLong { .. })));
    rustix::net::send(&one, &[0; BYTES_MAX + 1], rustix::net::SendFlags::empty()).unwrap();
    assert!(matches!(other.receive(false), Err(WireError::TooLong { .. })));
    assert!(matches!(other.receive(false), Ok(None)), "the packet is gone");
}

/// Taken for the end of the connection, it would have what came with it closed by who receives.
#[test]
#[cfg_attr(miri, ignore = "Miri has no such sockets")]
fn a_packet_of_nothing_but_descriptors_is_an_error_that_carries_them() {
    let (one, other) = pair();
    let (nothing, gifts) = ([std::io::IoSlice::new(&[])], [one.as_fd(); 2]);
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&gifts)));
    rustix::net::sendmsg(&one, &nothing, &mut control, rustix::net::SendFlags::empty()).unwrap();
    let error = other.receive(false).unwrap_err();
    assert!(matches!(error, WireError::Empty { .. }), "{error}");
    assert_eq!(error.into_descriptors().len(), 2);
    assert!(matches!(other.receive(false), Ok(None)), "it was not the end");
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no such sockets")]
fn who_does_not_listen_keeps_nobody_waiting() {
    let (one, _other) = pair();
    let full = (0..100_000).find_map(|_| one.send(&[0; 100], &[], false).err());
    assert!(matches!(full, Some(WireError::Full)));
}

fn requests() -> impl Strategy<Value = Request> {
    let place = || (any::<u64>(), any::<u32>());
    let optional = || prop::option::of(0..u32::MAX);
    let stream = any::<[u64; 5]>().prop_map(|[block, rx, rx_capacity, tx, tx_capacity]| {
        Object::Stream(StreamPlace { block, rx, rx_capacity, tx, tx_capacity })
    });
    let details = prop::collection::vec(any::<u8>(), 0..=Object::DETAILS_BYTES_MAX);
    let volume = (".{0,200}", details).prop_map(|(uri, details)| Object::Volume { uri, details });
    let object = prop_oneof![stream, volume];
    prop_oneof![
        any::<u32>().prop_map(|version| Request::Hello(Hello { version })),
        (any::<u32>(), place()).prop_map(|(core, (offset, entries))| {
            Request::OpenPort(OpenPort { core, place: PortPlace { offset, entries } })
        }),
        (any::<u32>(), any::<u32>(), place()).prop_map(|(queue, cores, (offset, entries))| {
            Request::OpenQueue(OpenQueue { queue, place: QueuePlace { offset, cores, entries } })
        }),
        (any::<u32>(), prop_oneof![Just(End::Release), Just(End::Close)])
            .prop_map(|(id, how)| Request::End { id, how }),
        Just(Request::Relieve),
        (any::<u32>(), optional(), optional(), object)
            .prop_map(|(id, core, queue, object)| Request::Open(Open { id, core, queue, object })),
    ]
}

fn replies() -> impl Strategy<Value = Reply> {
    let limits = (any::<u64>(), any::<[u32; 3]>()).prop_map(|(memory_bytes, [streams, volumes, queues])| {
        Limits { memory_bytes, streams, volumes, queues }
    });
    let cores = prop::collection::vec(any::<u32>(), 1..=CORES_MAX);
    let welcome = (any::<[u32; 2]>(), any::<u64>(), cores, limits).prop_map(
        |([version, session], epoch, cores, limits)| {
            Reply::Welcome(Welcome { version, session, epoch, cores, limits })
        },
    );
    prop_oneof![
        welcome,
        ".{0,200}".prop_map(Reply::Refused),
        Just(Reply::Done),
        (any::<u32>(), prop::collection::vec(any::<u8>(), 0..=TEXT_BYTES_MAX))
            .prop_map(|(core, answer)| Reply::Opened { core, answer }),
        any::<u32>().prop_map(|id| Reply::Ended { id }),
        any::<u64>().prop_map(|epoch| Reply::Restarted { epoch }),
    ]
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(request in requests(), reply in replies(), serial: u32) {
        let bytes = request.encode(serial);
        prop_assert!(bytes.len() <= BYTES_MAX);
        prop_assert_eq!(Request::decode(&bytes), Ok(Asked { serial, request }));
        let bytes = reply.encode(serial);
        prop_assert!(bytes.len() <= BYTES_MAX);
        prop_assert_eq!(Reply::decode(&bytes), Ok((serial, reply)));
    }

    #[test]
    fn what_is_cut_or_garbage_is_malformed_within_its_bytes(
        request in requests(), cut: prop::sample::Index, garbage in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let bytes = request.encode(7);
        let cut = cut.index(bytes.len());
        prop_assert!(Request::decode(&bytes[..cut]).unwrap_err().offset <= cut);
        if let Err(malformed) = Request::decode(&garbage) {
            prop_assert!(malformed.offset <= garbage.len());
        }
        if let Err(malformed) = Reply::decode(&garbage) {
            prop_assert!(malformed.offset <= garbage.len());
        }
    }
}
