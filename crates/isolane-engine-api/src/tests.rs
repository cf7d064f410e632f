//! Golden vectors, malformed messages, and packets over a socket pair.

use std::os::fd::AsFd;

use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;
use crate::layout::{DoorbellLayout, NotificationLayout};
use crate::stream::{Origin, StreamLayout};

fn pair() -> (PacketSocket, PacketSocket) {
    let (one, other) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    (PacketSocket::new(one), PacketSocket::new(other))
}

#[test]
fn encodes_requests() {
    let hello = Request::Hello(Hello { version: 0x0102_0304 }).encode(0x0506_0708);
    assert_eq!(hello, [0x88, 0x8e, 0x98, 0x28, 0, 0x84, 0x86, 0x88, 8], "as in every version");
    let end = Request::CloseObject { id: 0x1122, how: CloseMode::Close }.encode(1);
    assert_eq!(end, [1, 4, 0xa2, 0x22, 1]);
    assert_eq!(Request::Relieve.encode(2), [2, 5]);
}

#[test]
fn encodes_replies() {
    let opened = Reply::Opened { core: 0x0102, answer: vec![7, 8] }.encode(3);
    assert_eq!(opened, [3, 3, 0x82, 2, 2, 7, 8]);
}

#[test]
fn rejects_values_out_of_bounds() {
    let hello = [Request::Hello(Hello { version: 1 }).encode(9), vec![0]].concat();
    let error = Request::decode(&hello).unwrap_err();
    assert_eq!(error.to_string(), "malformed control message: 1 excess bytes");
    let params = |len| {
        let object = Object { kind: kind::FIRST_EXTERNAL, params: vec![0; len] };
        Request::OpenObject(OpenObject { id: 1, core: None, queue: None, object }).encode(1)
    };
    assert!(Request::decode(&params(Object::MAX_PARAMS_BYTES)).is_ok());
    assert!(Request::decode(&params(Object::MAX_PARAMS_BYTES + 1)).is_err());
    for (count, is_valid) in [(0, false), (1, true), (MAX_CORES, true), (MAX_CORES + 1, false)] {
        let (cores, limits) = (vec![0; count], SessionLimits::default());
        let welcome = Reply::Welcome(Welcome { version: VERSION, session: 1, epoch: 1, cores, limits });
        assert_eq!(Reply::decode(&welcome.encode(1)).is_ok(), is_valid, "{count} cores");
    }
}

#[test]
fn round_trips_layout_and_origin_of_stream() {
    let layout = StreamLayout { block: 1, rx: 2, rx_capacity: 3, tx: 4, tx_capacity: u64::MAX };
    let params = layout.object().params;
    assert_eq!(decode(&params), Ok(layout));
    assert!((0..params.len()).all(|len| decode::<StreamLayout>(&params[..len]).is_err()));
    assert!(decode::<StreamLayout>(&[&params[..], &[0]].concat()).is_err());
    for oob_inline in [false, true] {
        let origin = Origin { written: u64::MAX - 1, oob_inline };
        assert_eq!(decode(&encode(&origin)), Ok(origin));
    }
    let bytes = encode(&Origin { written: 7, oob_inline: true });
    assert!((0..bytes.len()).all(|len| decode::<Origin>(&bytes[..len]).is_err()));
    assert!(decode::<Origin>(&[&bytes[..], &[0]].concat()).is_err());
    assert!(decode::<Origin>(&[2; 2]).is_err());
}

#[test]
fn long_refusal_is_truncated_between_characters() {
    let text = "é".repeat(MAX_MESSAGE_BYTES);
    let bytes = Reply::Refused(text).encode(1);
    assert!(bytes.len() <= MAX_MESSAGE_BYTES);
    let Ok((1, Reply::Refused(reason))) = Reply::decode(&bytes) else { panic!("not a refusal") };
    assert_eq!(reason, "é".repeat(MAX_TEXT_BYTES / 2));
}

#[test]
#[cfg_attr(miri, ignore = "not supported by Miri")]
fn packet_carries_descriptors_until_close() {
    let (one, other) = pair();
    assert!(matches!(other.receive(false), Ok(None)));
    one.send(&[1, 2], &[other.as_fd(), one.as_fd()], false).unwrap();
    let packet = other.receive(true).unwrap().unwrap();
    assert_eq!((packet.bytes, packet.descriptors.len()), (vec![1, 2], 2));
    drop(packet.descriptors);
    drop(one);
    assert!(matches!(other.receive(true), Err(PacketError::Closed)));
    assert!(matches!(other.send(&[1], &[], false), Err(PacketError::Closed)));
}

#[test]
#[cfg_attr(miri, ignore = "not supported by Miri")]
fn receives_packets_sent_before_close() {
    let (one, other) = pair();
    one.send(&[1], &[], true).unwrap();
    other.send(&[2], &[], true).unwrap();
    drop(other);
    assert!(matches!(one.send(&[3], &[], true), Err(PacketError::Closed)));
    assert_eq!(one.receive(true).unwrap().unwrap().bytes, [2]);
    assert!(matches!(one.receive(true), Err(PacketError::Closed)));
}

#[test]
#[cfg_attr(miri, ignore = "not supported by Miri")]
fn rejects_packets_beyond_limits() {
    let (one, other) = pair();
    let fd = one.as_fd();
    assert!(matches!(one.send(&[0; MAX_MESSAGE_BYTES + 1], &[], false), Err(PacketError::TooLong { .. })));
    assert!(matches!(one.send(&[0], &[fd; MAX_DESCRIPTORS + 1], false), Err(PacketError::TooLong { .. })));
    rustix::net::send(&one, &[0; MAX_MESSAGE_BYTES + 1], rustix::net::SendFlags::empty()).unwrap();
    assert!(matches!(other.receive(false), Err(PacketError::TooLong { .. })));
    assert!(matches!(other.receive(false), Ok(None)), "the packet was not discarded");
}

/// If it were mistaken for the end of the connection, the receiver would close the descriptors.
#[test]
#[cfg_attr(miri, ignore = "not supported by Miri")]
fn packet_without_data_returns_its_descriptors() {
    let (one, other) = pair();
    let (nothing, fds) = ([std::io::IoSlice::new(&[])], [one.as_fd(); 2]);
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(&one, &nothing, &mut control, rustix::net::SendFlags::empty()).unwrap();
    let error = other.receive(false).unwrap_err();
    assert!(matches!(error, PacketError::FdsWithoutData { .. }), "{error}");
    assert_eq!(error.into_descriptors().len(), 2);
    assert!(matches!(other.receive(false), Ok(None)), "mistaken for the end");
}

#[test]
#[cfg_attr(miri, ignore = "not supported by Miri")]
fn send_never_blocks_on_slow_peer() {
    let (one, _other) = pair();
    let full = (0..100_000).find_map(|_| one.send(&[0; 100], &[], false).err());
    assert!(matches!(full, Some(PacketError::WouldBlock)));
}

fn requests() -> impl Strategy<Value = Request> {
    let layout = || (any::<u64>(), any::<u32>());
    let optional = || prop::option::of(any::<u32>());
    let params = prop::collection::vec(any::<u8>(), 0..=Object::MAX_PARAMS_BYTES);
    let object = (any::<u16>(), params).prop_map(|(kind, params)| Object { kind, params });
    prop_oneof![
        any::<u32>().prop_map(|version| Request::Hello(Hello { version })),
        (any::<u32>(), layout()).prop_map(|(core, (offset, entries))| {
            Request::OpenDoorbells(OpenDoorbells { core, layout: DoorbellLayout { offset, entries } })
        }),
        (any::<u32>(), any::<u32>(), layout()).prop_map(|(queue, cores, (offset, entries))| {
            Request::OpenNotificationQueue(OpenNotificationQueue {
                queue,
                layout: NotificationLayout { offset, cores, entries },
            })
        }),
        (any::<u32>(), prop_oneof![Just(CloseMode::Release), Just(CloseMode::Close)])
            .prop_map(|(id, how)| Request::CloseObject { id, how }),
        Just(Request::Relieve),
        (any::<u32>(), optional(), optional(), object).prop_map(|(id, core, queue, object)| {
            Request::OpenObject(OpenObject { id, core, queue, object })
        }),
    ]
}

fn replies() -> impl Strategy<Value = Reply> {
    let limits = (any::<u64>(), any::<[u32; 3]>()).prop_map(|(memory_bytes, [streams, volumes, queues])| {
        SessionLimits { memory_bytes, streams, volumes, queues }
    });
    let cores = prop::collection::vec(any::<u32>(), 1..=MAX_CORES);
    let welcome = (any::<[u32; 2]>(), any::<u64>(), cores, limits).prop_map(
        |([version, session], epoch, cores, limits)| {
            Reply::Welcome(Welcome { version, session, epoch, cores, limits })
        },
    );
    prop_oneof![
        welcome,
        ".{0,200}".prop_map(Reply::Refused),
        Just(Reply::Ack),
        (any::<u32>(), prop::collection::vec(any::<u8>(), 0..=MAX_TEXT_BYTES))
            .prop_map(|(core, answer)| Reply::Opened { core, answer }),
        any::<u32>().prop_map(|id| Reply::ObjectClosed { id }),
        any::<u64>().prop_map(|epoch| Reply::EngineRestarted { epoch }),
    ]
}

proptest! {
    #[test]
    fn round_trips_requests_and_replies(request in requests(), reply in replies(), serial: u32) {
        let bytes = request.encode(serial);
        prop_assert!(bytes.len() <= MAX_MESSAGE_BYTES);
        prop_assert_eq!(Request::decode(&bytes), Ok((serial, request)));
        let bytes = reply.encode(serial);
        prop_assert!(bytes.len() <= MAX_MESSAGE_BYTES);
        prop_assert_eq!(Reply::decode(&bytes), Ok((serial, reply)));
    }

    #[test]
    fn decode_rejects_truncated_and_garbage(
        request in requests(), cut: prop::sample::Index, garbage in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let bytes = request.encode(7);
        let cut = cut.index(bytes.len());
        prop_assert!(Request::decode(&bytes[..cut]).is_err());
        if let Ok((serial, request)) = Request::decode(&garbage) {
            prop_assert_eq!(Request::decode(&request.encode(serial)), Ok((serial, request)));
        }
        if let Ok((serial, reply)) = Reply::decode(&garbage) {
            prop_assert_eq!(Reply::decode(&reply.encode(serial)), Ok((serial, reply)));
        }
    }
}
