//! Queue pairs of datagrams over UDP on loopback.

use std::net::Ipv4Addr;

use super::*;
use crate::types::{DatagramRequest, Destination, GRH_BYTES};

struct End {
    pair: DatagramQueuePair,
    completions: Arc<CompletionQueue>,
    memory: Arc<Registration>,
    _device: Arc<Device>,
}

fn end(q_key: u32) -> End {
    end_of(DeviceConfig::default(), q_key)
}

fn end_of(config: DeviceConfig, q_key: u32) -> End {
    let Parts { device, memory, config } = parts(config, Limits::default());
    let pair = device.create_datagram_queue_pair(&config).unwrap();
    pair.set_q_key(q_key);
    for state in [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend] {
        assert!(pair.advance(state));
    }
    End { pair, completions: config.send_queue, memory, _device: device }
}

impl End {
    fn receive(&self, id: u64, length: u32) {
        let data = [Sge { address: 0, length, lkey: self.memory.key() }].into_iter().collect();
        self.pair.post_receive(ReceiveRequest { id, data }).unwrap();
    }

    fn send_to(&self, peer: &End, q_key: u32, data: &[u8]) {
        let (address, number) = (Ipv4Addr::LOCALHOST.into(), peer.pair.number());
        let destination = Destination { address, number, q_key };
        let (data, immediate) = (LocalData::Inline(data.to_vec()), None);
        let (signaled, solicited) = (false, false);
        let request = DatagramRequest { id: 0, data, destination, immediate, signaled, solicited };
        self.pair.post_send(&request).unwrap();
    }
}

#[test]
fn datagrams_arrive_at_their_queue_pair() {
    let (near, far, other) = (end(1), end(2), end(2));
    far.receive(7, 100);
    other.receive(8, 100);
    // The network can lose a datagram.
    let deadline = Instant::now() + TEST_TIMEOUT;
    let done = loop {
        assert!(Instant::now() < deadline, "no datagram arrives");
        near.send_to(&far, 1, b"wrong key");
        near.send_to(&far, 2, b"datagram");
        if let Some(done) = far.completions.wait(Duration::from_millis(100)) {
            break done.completion;
        }
    };
    assert_eq!((done.id, done.length, done.source), (7, GRH_BYTES as u64 + 8, Some(near.pair.number())));
    assert_eq!(far.memory.region().to_vec(GRH_BYTES, 8), b"datagram");
    assert_eq!(other.completions.poll(), None);
}

#[test]
fn failed_and_reset_queue_pairs_receive_nothing() {
    let (near, far) = (end(1), end(1));
    far.receive(7, 100);
    far.pair.fail();
    assert_eq!(far.completions.poll().map(|done| done.completion.status), Some(Status::Flushed));
    far.receive(8, 100);
    far.pair.reset();
    near.send_to(&far, 1, b"datagram");
    assert_eq!(
        (far.pair.state(), far.completions.wait(Duration::from_millis(10))),
        (QueuePairState::Reset, None)
    );
}

#[test]
fn queue_pair_receives_its_own_datagrams() {
    let near = end(1);
    near.receive(7, 100);
    let deadline = Instant::now() + TEST_TIMEOUT;
    while near.completions.wait(Duration::from_millis(100)).is_none() {
        assert!(Instant::now() < deadline, "no datagram arrives");
        near.send_to(&near, 1, b"own");
    }
    assert_eq!(near.memory.region().to_vec(GRH_BYTES, 3), b"own");
}

#[test]
fn datagrams_prove_the_shared_key() {
    let (near, far) = (end_of(keys::with_key(1), 1), end_of(keys::with_key(1), 1));
    let (other, plain) = (end_of(keys::with_key(2), 1), end(1));
    far.receive(7, GRH_BYTES as u32 + 100);
    plain.receive(8, GRH_BYTES as u32 + 100);
    let deadline = Instant::now() + TEST_TIMEOUT;
    let done = loop {
        assert!(Instant::now() < deadline, "no datagram arrives");
        other.send_to(&far, 1, b"another key");
        plain.send_to(&far, 1, b"no key");
        near.send_to(&plain, 1, b"proof for nobody");
        near.send_to(&far, 1, b"right");
        if let Some(done) = far.completions.wait(Duration::from_millis(100)) {
            break done.completion;
        }
    };
    assert_eq!((done.length, done.source), (GRH_BYTES as u64 + 5, Some(near.pair.number())));
    assert_eq!(far.memory.region().to_vec(GRH_BYTES, 5), b"right");
    assert_eq!(plain.completions.poll(), None);
}
