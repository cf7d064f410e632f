//! Lanes whose ends prove a shared key.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown};

use isolane_auth::{Key, KeyTransform};

use super::by_number::{connect, unconnected_at};
use super::*;
use crate::shared_key::PROOF_LEN;
use crate::wire::{Capabilities, Extension, Hello, MAX_PREFIX_BYTES, Opcode, Segment, Syndrome};

fn shared(byte: u8) -> Arc<SharedKey> {
    Arc::new(SharedKey::new(&Key::new(&[byte; 32], KeyTransform::None).unwrap()))
}

pub(super) fn with_key(byte: u8) -> DeviceConfig {
    DeviceConfig { key: Some(shared(byte)), ..DeviceConfig::default() }
}

/// A valid hello of a first lane from this machine.
fn hello(peer: u32) -> Hello {
    let here = gid(Ipv4Addr::LOCALHOST.into());
    Hello {
        capabilities: Capabilities(0).with_authenticated(true),
        source_gid: here,
        destination_gid: here,
        source_qpn: 0x77,
        destination_qpn: peer,
        nonce: [7; 16],
        ..Hello::example()
    }
}

/// Sends a hello, and returns the stream with the reply.
fn greet(address: SocketAddr, hello: &Hello) -> (TcpStream, Hello) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.write_all(&hello.encode()).unwrap();
    let mut reply = [0; Hello::LEN];
    stream.read_exact(&mut reply).unwrap();
    (stream, Hello::decode_from(&reply, Role::Accepts).unwrap())
}

fn assert_closed(mut stream: TcpStream, context: &str) {
    // A lane can have sent acknowledgments before.
    let end = stream.read_to_end(&mut Vec::new());
    let is_reset = matches!(&end, Err(error) if error.kind() == ErrorKind::ConnectionReset);
    assert!(is_reset || end.is_ok(), "{context}: {end:?}");
}

#[test]
fn ends_with_the_same_key_connect() {
    let config = || DeviceConfig { lanes: 3, checksums: true, ..with_key(1) };
    let (near, far) = connected(config(), config(), Limits::default());
    run_each_operation(&near, &far);
    let (near, far) = (unconnected_at(config(), |_| ()), unconnected_at(config(), |_| ()));
    connect(&near, &far);
    run_each_operation(&near, &far);
    run_each_operation(&far, &near);
}

#[test]
fn many_peers_prove_the_key_to_one_listener() {
    let (near, far) = (parts(with_key(1), Limits::default()), parts(with_key(1), Limits::default()));
    let listener = far.device.listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // A peer that sends no proof has no effect on them.
    let (silent, _) = greet_in_background(address, &listener, &far.config);
    std::thread::scope(|scope| {
        let accept = || (0..20).map(|_| listener.accept(&far.config).unwrap()).collect::<Vec<_>>();
        let accepted = scope.spawn(accept);
        let connected: Vec<QueuePair> =
            (0..20).map(|_| near.device.connect(address, &near.config).unwrap()).collect();
        assert_eq!((connected.len(), accepted.join().unwrap().len()), (20, 20));
    });
    drop(silent);
}

/// Greets a listener while it accepts one valid peer.
fn greet_in_background(
    address: SocketAddr,
    listener: &Listener<&Device>,
    config: &QueuePairConfig,
) -> (TcpStream, QueuePair) {
    let near = parts(with_key(1), Limits::default());
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept(config).unwrap());
        let (stream, _) = greet(address, &hello(0));
        let _pair = near.device.connect(address, &near.config).unwrap();
        (stream, accepted.join().unwrap())
    })
}

/// The hello of a peer of a listener names a queue pair of the listener's device, which ends before the proof arrives.
#[test]
fn offer_survives_the_queue_pair_that_its_peer_names() {
    let (near, far) = (parts(with_key(1), Limits::default()), parts(with_key(1), Limits::default()));
    let listener = far.device.listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let named = far.device.create_queue_pair(&far.config).unwrap();
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept(&far.config).unwrap());
        let (_silent, _) = greet(address, &hello(named.number()));
        drop(named);
        // The thread of the lanes goes on.
        let _pair = near.device.connect(address, &near.config).unwrap();
        accepted.join().unwrap();
    });
    far.device.create_queue_pair(&far.config).unwrap();
}

#[test]
fn one_end_without_the_key_is_an_error_at_both() {
    type Expected = fn(&ConnectError) -> bool;
    let cases: [(DeviceConfig, DeviceConfig, Expected); 3] = [
        (with_key(1), DeviceConfig::default(), |error| matches!(error, ConnectError::PeerLacksKey)),
        (DeviceConfig::default(), with_key(1), |error| matches!(error, ConnectError::KeyRequired)),
        (with_key(1), with_key(2), |error| matches!(error, ConnectError::WrongKey)),
    ];
    for (near, far, is_expected) in cases {
        let (near, far) = (parts(near, Limits::default()), parts(far, Limits::default()));
        let listener = far.device.listen("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connect = |end: &Parts| end.device.connect(address, &end.config);
        let error = if near.device.manager.key().is_some() && far.device.manager.key().is_some() {
            std::thread::scope(|scope| {
                // The listener offers a queue pair, which the peer refuses; the next peer has the right key.
                let accepted = scope.spawn(|| listener.accept(&far.config));
                let error = connect(&near).err().unwrap();
                let right = parts(with_key(2), Limits::default());
                let _pair = connect(&right).unwrap();
                assert!(accepted.join().unwrap().is_ok());
                error
            })
        } else {
            connect(&near).err().unwrap()
        };
        assert!(is_expected(&error), "{error}");
        assert!(error.to_string().contains("ISOLANE_VERBS_KEY"), "{error}");
    }
}

/// Returns a queue pair that expects a peer with the number 0x77 at this address, and the address of its port.
fn expecting(config: DeviceConfig) -> (End, SocketAddr) {
    let end = unconnected_at(config, |_| ());
    end.pair.initialize(ALL).unwrap();
    let peer = Peer { address: Ipv4Addr::LOCALHOST.into(), number: 0x77 };
    end.pair.start_receiving(peer, 0, &ReceiveAttributes::default()).unwrap();
    let port = (end.pair.number() >> 8) as u16;
    (end, SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

fn has_lane(end: &End) -> bool {
    end.pair.is_lane_open(0)
}

#[test]
fn wrong_proofs_open_no_lane() {
    let (end, address) = expecting(with_key(1));
    let (key, hello) = (shared(1), hello(end.pair.number()));
    let (_stream, other) = greet(address, &hello);
    let right = |reply: &Hello| key.sign_connection(&hello, reply);
    type Proof<'a> = Box<dyn Fn(&Hello) -> Vec<u8> + 'a>;
    let proofs: [(&str, Proof<'_>); 6] = [
        ("of another reply", Box::new(|_| right(&other).iter().map(|byte| byte ^ 1).collect())),
        ("sent back", Box::new(|reply| reply.authentication.to_vec())),
        ("of another key", Box::new(|reply| shared(2).sign_connection(&hello, reply).to_vec())),
        (
            "of another hello",
            Box::new(|reply| {
                let hello = Hello { epoch: 2, ..hello.clone() };
                key.sign_connection(&hello, reply).to_vec()
            }),
        ),
        ("truncated", Box::new(|reply| right(reply)[..PROOF_LEN - 1].to_vec())),
        ("of zeros", Box::new(|_| vec![0; PROOF_LEN])),
    ];
    for (context, proof) in proofs {
        let (mut stream, reply) = greet(address, &hello);
        assert!(key.verifies_reply(&hello, &reply), "{context}");
        stream.write_all(&proof(&reply)).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_closed(stream, context);
        assert!(!has_lane(&end), "a proof {context}");
    }
    let (mut stream, reply) = greet(address, &hello);
    stream.write_all(&right(&reply)).unwrap();
    wait_until(|| has_lane(&end));
    // The same messages again are refused: the epoch has passed.
    let mut replay = TcpStream::connect(address).unwrap();
    replay.write_all(&[&hello.encode()[..], &right(&reply)].concat()).unwrap();
    assert_closed(replay, "a repeated hello");
    assert!(has_lane(&end));
}

#[test]
fn repeated_messages_open_no_lane_of_another_queue_pair() {
    let (first, address) = expecting(with_key(1));
    let hello = hello(first.pair.number());
    let (mut stream, reply) = greet(address, &hello);
    let proof = shared(1).sign_connection(&hello, &reply);
    stream.write_all(&proof).unwrap();
    wait_until(|| has_lane(&first));
    first.pair.reset();
    first.pair.initialize(ALL).unwrap();
    let peer = Peer { address: Ipv4Addr::LOCALHOST.into(), number: 0x77 };
    first.pair.start_receiving(peer, 0, &ReceiveAttributes::default()).unwrap();
    let (mut stream, _) = greet(address, &hello);
    stream.write_all(&proof).unwrap();
    assert_closed(stream, "the proof of an earlier queue pair");
    assert!(!has_lane(&first));
}

#[test]
fn open_lane_ends_only_with_a_proof() {
    let (end, address) = expecting(with_key(1));
    let key = shared(1);
    let hello = hello(end.pair.number());
    let (mut lane, reply) = greet(address, &hello);
    lane.write_all(&key.sign_connection(&hello, &reply)).unwrap();
    wait_until(|| has_lane(&end));
    // The peer opens the lane again, because it has lost the connection.
    let next = Hello { epoch: 2, ..hello.clone() };
    let (mut stream, reply) = greet(address, &next);
    assert_eq!(reply.epoch, 0, "a lane that is open cannot be offered");
    assert!(key.verifies_reply(&next, &reply) && has_lane(&end));
    stream.write_all(&key.sign_connection(&next, &reply)).unwrap();
    assert_closed(stream, "the lane was open");
    assert_closed(lane, "the lane is lost");
    assert!(!has_lane(&end));
    let next = Hello { epoch: 3, ..hello };
    let (mut stream, reply) = greet(address, &next);
    assert_eq!(reply.epoch, 3);
    stream.write_all(&key.sign_connection(&next, &reply)).unwrap();
    wait_until(|| has_lane(&end));
}

/// A program at the address of the peer, without the key, greets as long as the peer has not sent its proof.
#[test]
fn peer_without_the_key_holds_up_no_proof() {
    let (end, address) = expecting(with_key(1));
    let hello = hello(end.pair.number());
    let (mut stream, reply) = greet(address, &hello);
    let others: Vec<_> =
        (1..9).map(|epoch| greet(address, &Hello { epoch, nonce: [9; 16], ..hello.clone() })).collect();
    stream.write_all(&shared(1).sign_connection(&hello, &reply)).unwrap();
    wait_until(|| has_lane(&end));
    drop(others);
}

/// Two connections of the peer are offered the same lane. The report of the second is wrong once the first has carried
/// a segment.
#[test]
fn offer_with_an_old_report_opens_no_lane() {
    let (end, address) = expecting(with_key(1));
    let key = shared(1);
    let first = hello(end.pair.number());
    let second = Hello { epoch: 2, ..first.clone() };
    let (mut lane, reply) = greet(address, &first);
    let (mut later, later_reply) = greet(address, &second);
    lane.write_all(&key.sign_connection(&first, &reply)).unwrap();
    wait_until(|| has_lane(&end));
    let probe = Segment {
        acknowledged: reply.first_message,
        extension: Extension::Acknowledgment(Syndrome::Probe, 0, 0),
        ..Segment::default()
    };
    let mut prefix = [0; MAX_PREFIX_BYTES];
    let len = probe.encode_to(&mut prefix);
    lane.write_all(&prefix[..len]).unwrap();
    loop {
        let mut segment = [0; MAX_PREFIX_BYTES];
        let segment = &mut segment[..Segment::prefix_len(Opcode::Acknowledge.code()).unwrap()];
        lane.read_exact(segment).unwrap();
        if let Extension::Acknowledgment(Syndrome::Alive, ..) = Segment::decode(segment, 0).unwrap().extension
        {
            break;
        }
    }
    later.write_all(&key.sign_connection(&second, &later_reply)).unwrap();
    assert_closed(later, "the report of the reply is old");
    assert!(!has_lane(&end));
}

fn wait_until(is_done: impl Fn() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !is_done() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn proofs_have_golden_vectors() {
    let (key, hello) = (shared(0x0b), hello(0x01_0203));
    let mut reply = Hello { role: Role::Accepts.code(), nonce: [8; 16], ..hello.clone() };
    reply.authentication = key.sign_reply(&hello, &reply);
    assert_eq!(
        hex(&reply.authentication),
        "afa2ce95d81916747fa384406decd4e80c3ae0fa5679679ff3ab2574d997f75c"
    );
    assert_eq!(
        hex(&key.sign_connection(&hello, &reply)),
        "4cc973cc7841b6cfe21e2c284ef2c814f5852b91ee7fb6a9df98d72bf0063caf"
    );
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
