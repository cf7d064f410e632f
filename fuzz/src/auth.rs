//! Authentication: the messages, both sides, and the text of keys.
//!
//! Invariant: no input authenticates a host without the key, or proves a controller without its key.

use isolane_auth::{Key, KeyTransform, Parties};
use isolane_proto::auth::{
    ExchangeConfig, HostNegotiating, KeyPair, Nonces, Policy, Received, TargetExchange,
};
use isolane_wire::auth::{
    AuthFailure, AuthenticationReceiveCommand, AuthenticationSendCommand, Challenge, DhGroup, Failure, Hash,
    MessageHeader, MessageId, Negotiate, ProtocolDescriptor, Reply, Success1, Success2,
};
use isolane_wire::{Field, Nqn, SubmissionEntry};

use crate::Target;
use crate::input::Input;

pub(crate) const TARGETS: &[Target] = &[
    Target { name: "auth-message", check: message, corpus: messages },
    Target { name: "auth-exchange", check: exchange, corpus: dialogues },
    Target { name: "auth-key", check: key, corpus: keys },
];

fn reproduces<T: Field + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().max(T::LEN), 0);
    let value = T::read(&padded[..T::LEN]);
    let mut encoded = vec![0; T::LEN];
    value.write(&mut encoded);
    assert_eq!(T::read(&encoded), value);
}

fn message(bytes: &[u8]) {
    reproduces::<MessageHeader>(bytes);
    reproduces::<Negotiate>(bytes);
    reproduces::<ProtocolDescriptor>(bytes);
    reproduces::<Challenge>(bytes);
    reproduces::<Reply>(bytes);
    reproduces::<Success1>(bytes);
    reproduces::<Success2>(bytes);
    reproduces::<Failure>(bytes);
    let mut input = Input::new(bytes);
    let codes = input.array();
    if let Some(id) = MessageId::decode_id(codes) {
        assert_eq!(id.codes(), codes);
    }
    let _ = (Hash::decode(codes[0]), DhGroup::decode(codes[0]), AuthFailure::decode(codes[0]));
    let entry = SubmissionEntry::decode(&input.array());
    let (send, receive) =
        (AuthenticationSendCommand::parse(&entry), AuthenticationReceiveCommand::parse(&entry));
    assert_eq!(AuthenticationSendCommand::parse(&send.entry()), send);
    assert_eq!(AuthenticationReceiveCommand::parse(&receive.entry()), receive);
    assert_eq!(send.is_valid(), receive.is_valid());
}

fn config(host: u8) -> ExchangeConfig {
    let key = |byte| Key::new(&[byte; 32], KeyTransform::None).expect("32 bytes");
    ExchangeConfig {
        parties: Parties { host: Nqn::new("nqn.h").expect("a name"), subsystem: Nqn::discovery() },
        keys: vec![KeyPair { host: key(host), controller: Some(key(host ^ 0x80)) }],
        policy: Policy { hashes: Hash::ALL.to_vec(), groups: vec![DhGroup::Null] },
        is_mutual: host % 2 == 1,
    }
}

/// Messages of any content to a target, and to hosts in each state. A length of two bytes precedes each.
fn exchange(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut target = TargetExchange::new(config(1));
    while !input.is_empty() {
        let len = usize::from(input.u16() % 512);
        let message = input.bytes(len);
        assert!(matches!(target.handle_message(message, Nonces::from_seed(1)), Received::Done));
        assert!(!target.is_authenticated());
        let received = target.poll_message().unwrap_or_default();
        host(message, &received);
    }
}

/// The first message of the peer is `message`, or a valid one that `received` may be.
fn host(message: &[u8], received: &[u8]) {
    for challenge in [message, received] {
        let (host, _) = HostNegotiating::start(config(2), 1, Nonces::from_seed(2)).expect("a key");
        let Ok(host) = host.handle_challenge(challenge) else { continue };
        assert!(host.work().is_none());
        let (host, _) = host.reply(None).unwrap_or_else(|error| panic!("{:?}", error.kind));
        assert!(host.handle_success1(message).is_err(), "a controller without the key has proved itself");
    }
}

fn key(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(key) = Key::parse(&text) {
        assert_eq!(*key.to_text(), *text);
        assert!(!format!("{key:?}").contains(&text[10..]));
    }
}

/// The messages of an exchange between hosts and targets with the same key.
fn messages() -> Vec<Vec<u8>> {
    let mut target = TargetExchange::new(config(2));
    let (host, negotiate) = HostNegotiating::start(config(2), 1, Nonces::from_seed(2)).expect("a key");
    target.handle_message(&negotiate, Nonces::from_seed(1));
    let challenge = target.poll_message().expect("a challenge");
    let host = host.handle_challenge(&challenge).expect("a valid challenge");
    let (host, reply) = host.reply(None).unwrap_or_else(|error| panic!("{:?}", error.kind));
    target.handle_message(&reply, Nonces::from_seed(1));
    let success1 = target.poll_message().expect("a success");
    let success2 = host.handle_success1(&success1).expect("the same key").expect("a challenge of the host");
    vec![negotiate, challenge, reply, success1, success2]
}

fn dialogues() -> Vec<Vec<u8>> {
    let framed = |message: &Vec<u8>| [&(message.len() as u16).to_le_bytes()[..], message].concat();
    let messages: Vec<Vec<u8>> = messages().iter().map(framed).collect();
    vec![messages.concat(), [&messages[0][..], &messages[2]].concat(), messages[1].clone()]
}

fn keys() -> Vec<Vec<u8>> {
    vec![b"DHHC-1:01:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:".to_vec(), b"DHHC-1:00::".to_vec()]
}
