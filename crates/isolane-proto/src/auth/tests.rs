//! Both sides against each other, and each message with wrong fields, lengths, and order.

use isolane_auth::{Key, KeyTransform};
use isolane_wire::Nqn;
use isolane_wire::auth::{AuthFailure, DhGroup, Failure, Hash};
use proptest::prelude::*;

use super::*;

fn parties() -> Parties {
    Parties { host: Nqn::new("nqn.host").unwrap(), subsystem: Nqn::new("nqn.subsystem").unwrap() }
}

fn key(byte: u8, transform: KeyTransform) -> Key {
    Key::new(&[byte; 32], transform).unwrap()
}

fn pair(host: u8, controller: Option<u8>) -> KeyPair {
    let transform = KeyTransform::Hash(Hash::Sha256);
    KeyPair { host: key(host, transform), controller: controller.map(|byte| key(byte, KeyTransform::None)) }
}

fn config(keys: Vec<KeyPair>, hash: Hash, group: DhGroup) -> ExchangeConfig {
    ExchangeConfig {
        parties: parties(),
        keys,
        policy: Policy { hashes: vec![hash], groups: vec![group] },
        is_mutual: false,
    }
}

fn small(keys: Vec<KeyPair>) -> ExchangeConfig {
    config(keys, Hash::Sha256, DhGroup::Null)
}

fn send(target: &mut TargetExchange, message: &[u8]) {
    if let Received::Compute(work) = target.handle_message(message, Nonces::from_seed(1)) {
        assert!(target.message_len().is_none(), "a message before its value is computed");
        target.handle_computed(work.run());
    }
}

/// Data of an Authentication Receive: 4 KiB, as hosts ask for.
fn receive(target: &mut TargetExchange) -> Vec<u8> {
    let mut data = target.poll_message().expect("a message");
    data.resize(4096, 0);
    data
}

/// Runs an exchange up to its success or the error of the host.
fn exchange(target: &mut TargetExchange, host: ExchangeConfig, t_id: u16) -> Result<(), HostError> {
    let (host, message) = HostNegotiating::start(host, t_id, Nonces::from_seed(2)).unwrap();
    send(target, &message);
    let host = host.handle_challenge(&receive(target))?;
    let computed = host.work().map(Work::run);
    let (host, message) = host.reply(computed)?;
    send(target, &message);
    match host.handle_success1(&receive(target)) {
        Ok(Some(message)) => send(target, &message),
        Ok(None) => {}
        Err(error) => {
            error.failure2.iter().for_each(|message| send(target, message));
            return Err(error);
        }
    }
    Ok(())
}

/// Messages of a one-way or mutual exchange that succeeds.
fn messages(is_mutual: bool) -> (TargetExchange, [Vec<u8>; 3]) {
    let controller = is_mutual.then_some(9);
    let mut target = TargetExchange::new(small(vec![pair(8, Some(9))]));
    let (host, negotiate) =
        HostNegotiating::start(small(vec![pair(8, controller)]), 5, Nonces::from_seed(2)).unwrap();
    send(&mut target, &negotiate);
    let host = host.handle_challenge(&receive(&mut target)).unwrap();
    let (host, reply) = host.reply(None).unwrap();
    send(&mut target, &reply);
    let success2 = host.handle_success1(&receive(&mut target)).unwrap().unwrap_or_default();
    (TargetExchange::new(small(vec![pair(8, Some(9))])), [negotiate, reply, success2])
}

fn refuses(target: &mut TargetExchange, code: AuthFailure) {
    assert!(!target.is_authenticated());
    assert_eq!(target.refusal().map(Refusal::code), Some(code), "{:?}", target.refusal());
    let failure = Failure::decode_prefix(&target.poll_message().expect("AUTH_Failure1")).unwrap();
    assert_eq!((failure.id, failure.reason), ([0, 0xf1], 1));
    assert_eq!(AuthFailure::decode(failure.explanation), Some(code));
    assert_eq!(target.poll_message(), None);
}

#[test]
fn each_hash_and_group_works_one_way_and_mutually() {
    for &hash in Hash::ALL {
        for &group in DhGroup::ALL {
            for controller in [None, Some(9)] {
                let host = config(vec![pair(8, controller)], hash, group);
                let mut target = TargetExchange::new(config(vec![pair(8, Some(9))], hash, group));
                let result = exchange(&mut target, host, 1);
                assert_eq!(result, Ok(()), "{hash} {group} {controller:?}");
                assert!(target.is_authenticated() && target.refusal().is_none(), "{hash} {group}");
            }
        }
    }
}

#[test]
fn host_authenticates_again_and_again() {
    let mut target = TargetExchange::new(small(vec![pair(8, Some(9))]));
    for t_id in 0..3 {
        assert_eq!(exchange(&mut target, small(vec![pair(8, Some(9))]), t_id), Ok(()));
        assert!(target.is_authenticated());
    }
    assert!(exchange(&mut target, small(vec![pair(7, None)]), 4).is_err());
    assert!(!target.is_authenticated(), "a failed repetition ends the first success");
}

#[test]
fn second_key_is_valid_during_a_rotation() {
    let keys = vec![pair(8, Some(18)), pair(9, Some(19))];
    for host in [8, 9] {
        let mut target = TargetExchange::new(small(keys.clone()));
        assert_eq!(exchange(&mut target, small(vec![pair(host, Some(host + 10))]), 1), Ok(()));
        assert!(target.is_authenticated());
    }
    let mut target = TargetExchange::new(small(keys));
    assert!(exchange(&mut target, small(vec![pair(10, None)]), 1).is_err());
}

#[test]
fn wrong_key_or_name_is_refused_by_both_sides() {
    let other = |change: fn(&mut ExchangeConfig)| {
        let mut config = small(vec![pair(8, None)]);
        change(&mut config);
        config
    };
    let wrong = [
        other(|config| config.keys = vec![pair(7, None)]),
        other(|config| config.keys[0].host = key(8, KeyTransform::None)),
        other(|config| config.parties.host = Nqn::new("nqn.other").unwrap()),
        other(|config| config.parties.subsystem = Nqn::new("nqn.other").unwrap()),
    ];
    for host in wrong {
        let mut target = TargetExchange::new(small(vec![pair(8, None)]));
        let error = exchange(&mut target, host, 1).unwrap_err();
        assert_eq!(error.kind, HostErrorKind::Refused(Refusal::Peer(AuthFailure::Failed)));
        assert_eq!(error.failure2, None, "the controller has ended the exchange");
        assert_eq!(target.refusal(), Some(Refusal::WrongResponse));
        assert!(error.kind.to_string().contains("does not accept the key"));
    }
}

#[test]
fn host_refuses_controller_with_another_key() {
    let mut target = TargetExchange::new(small(vec![pair(8, Some(7))]));
    let error = exchange(&mut target, small(vec![pair(8, Some(9))]), 1).unwrap_err();
    assert_eq!(error.kind, HostErrorKind::Rejected(Refusal::WrongResponse));
    assert!(!target.is_authenticated());
    assert_eq!(target.refusal(), Some(Refusal::Peer(AuthFailure::Failed)));
}

#[test]
fn controller_without_key_refuses_a_challenge() {
    let mut target = TargetExchange::new(small(vec![pair(8, None)]));
    let error = exchange(&mut target, small(vec![pair(8, Some(9))]), 1).unwrap_err();
    assert_eq!(error.kind, HostErrorKind::Refused(Refusal::Peer(AuthFailure::Failed)));
    assert_eq!(target.refusal(), Some(Refusal::NoControllerKey));
}

#[test]
fn controller_can_require_a_challenge() {
    let strict = ExchangeConfig { is_mutual: true, ..small(vec![pair(8, Some(9))]) };
    let mut target = TargetExchange::new(strict.clone());
    let error = exchange(&mut target, small(vec![pair(8, None)]), 1).unwrap_err();
    assert_eq!(error.kind, HostErrorKind::Refused(Refusal::Peer(AuthFailure::Failed)));
    assert_eq!(target.refusal(), Some(Refusal::NoChallenge));
    assert_eq!(exchange(&mut TargetExchange::new(strict), small(vec![pair(8, Some(9))]), 1), Ok(()));
}

#[test]
fn sides_without_common_hash_or_group_say_so() {
    let host = config(vec![pair(8, None)], Hash::Sha256, DhGroup::Ffdhe2048);
    let wrong_hash = config(vec![pair(8, None)], Hash::Sha384, DhGroup::Ffdhe2048);
    let wrong_group = config(vec![pair(8, None)], Hash::Sha256, DhGroup::Null);
    for (target, code, text) in [
        (wrong_hash, AuthFailure::HashUnusable, "hash functions"),
        (wrong_group, AuthFailure::DhGroupUnusable, "DH groups"),
    ] {
        let error = exchange(&mut TargetExchange::new(target), host.clone(), 1).unwrap_err();
        assert_eq!(error.kind, HostErrorKind::Refused(Refusal::Peer(code)));
        assert!(error.kind.to_string().contains(text), "{}", error.kind);
    }
}

/// The offset and value of each wrong field of AUTH_Negotiate, and the code of its failure.
#[test]
fn target_rejects_each_wrong_field_of_negotiate() {
    let (_, [negotiate, ..]) = messages(false);
    for (at, value, code) in [
        (0, 2, AuthFailure::IncorrectMessage),
        (1, 7, AuthFailure::IncorrectMessage),
        (6, 1, AuthFailure::ConcatenationMismatch),
        (7, 0, AuthFailure::IncorrectPayload),
        (7, 2, AuthFailure::IncorrectPayload),
        (7, 255, AuthFailure::IncorrectPayload),
        (8, 2, AuthFailure::ProtocolUnusable),
        (10, 0, AuthFailure::IncorrectPayload),
        (10, 31, AuthFailure::IncorrectPayload),
        (11, 0, AuthFailure::IncorrectPayload),
        (11, 31, AuthFailure::IncorrectPayload),
        (12, 4, AuthFailure::HashUnusable),
        (42, 6, AuthFailure::DhGroupUnusable),
    ] {
        let mut target = TargetExchange::new(small(vec![pair(8, None)]));
        let mut message = negotiate.clone();
        message[at] = value;
        send(&mut target, &message);
        refuses(&mut target, code);
    }
    for len in 0..negotiate.len() {
        let mut target = TargetExchange::new(small(vec![pair(8, None)]));
        send(&mut target, &negotiate[..len]);
        refuses(&mut target, AuthFailure::IncorrectPayload);
    }
}

#[test]
fn target_finds_its_protocol_behind_others() {
    let (mut target, [negotiate, ..]) = messages(false);
    let other = [2; 64];
    let mut message = [&negotiate[..8], &other, &negotiate[8..]].concat();
    message[7] = 2;
    send(&mut target, &message);
    assert!(target.message_len().is_some() && target.refusal().is_none());
}

#[test]
fn target_rejects_each_wrong_field_of_reply() {
    for (at, value, code) in [
        (0, 0, AuthFailure::IncorrectMessage),
        (1, 3, AuthFailure::IncorrectMessage),
        (4, 6, AuthFailure::IncorrectPayload),
        (6, 48, AuthFailure::IncorrectPayload),
        (8, 2, AuthFailure::IncorrectPayload),
        (10, 1, AuthFailure::IncorrectPayload),
        (11, 1, AuthFailure::IncorrectPayload),
        (16, 0xff, AuthFailure::Failed),
        (47, 0xff, AuthFailure::Failed),
    ] {
        let (mut target, [negotiate, mut reply, _]) = messages(true);
        send(&mut target, &negotiate);
        receive(&mut target);
        assert_ne!(reply[at], value);
        reply[at] = value;
        send(&mut target, &reply);
        refuses(&mut target, code);
    }
    let (_, [negotiate, reply, _]) = messages(true);
    for len in (0..reply.len()).chain([reply.len() + 1]) {
        let (mut target, _) = messages(true);
        send(&mut target, &negotiate);
        receive(&mut target);
        let mut message = reply.clone();
        message.resize(len, 0);
        send(&mut target, &message);
        refuses(&mut target, AuthFailure::IncorrectPayload);
    }
}

#[test]
fn target_rejects_challenge_without_sequence_number() {
    let (mut target, [negotiate, mut reply, _]) = messages(true);
    send(&mut target, &negotiate);
    receive(&mut target);
    reply[12..16].fill(0);
    send(&mut target, &reply);
    refuses(&mut target, AuthFailure::IncorrectPayload);
}

/// A host without the key could otherwise let the controller compute the response.
#[test]
fn target_rejects_its_own_challenge_as_the_hosts() {
    let (mut target, [negotiate, mut reply, _]) = messages(true);
    send(&mut target, &negotiate);
    let challenge = receive(&mut target);
    reply[48..80].copy_from_slice(&challenge[16..48]);
    send(&mut target, &reply);
    assert_eq!(target.refusal(), Some(Refusal::ReflectedChallenge));
    refuses(&mut target, AuthFailure::Failed);
}

#[test]
fn reply_of_an_older_challenge_is_refused() {
    let (mut target, [negotiate, reply, _]) = messages(false);
    target.handle_message(&negotiate, Nonces::from_seed(77));
    receive(&mut target);
    send(&mut target, &reply);
    refuses(&mut target, AuthFailure::Failed);
}

#[test]
fn messages_out_of_order_are_refused() {
    let (_, [negotiate, reply, success2]) = messages(true);
    // Each list of messages ends with the wrong one; the host receives after each.
    for sent in [
        vec![&reply],
        vec![&success2],
        vec![&negotiate, &success2],
        vec![&negotiate, &reply, &reply],
        vec![&negotiate, &reply, &success2, &success2],
        vec![&negotiate, &reply, &success2, &reply],
    ] {
        let (mut target, _) = messages(true);
        for message in &sent {
            send(&mut target, message);
            if !std::ptr::eq(*message, sent[sent.len() - 1]) {
                target.poll_message();
            }
        }
        refuses(&mut target, AuthFailure::IncorrectMessage);
        send(&mut target, &negotiate);
        refuses(&mut target, AuthFailure::IncorrectMessage);
    }
    // The host must receive the challenge before it replies.
    let (mut target, _) = messages(true);
    send(&mut target, &negotiate);
    send(&mut target, &reply);
    refuses(&mut target, AuthFailure::IncorrectMessage);
}

#[test]
fn mutual_host_is_authenticated_by_its_confirmation_only() {
    let (mut target, [negotiate, reply, success2]) = messages(true);
    send(&mut target, &negotiate);
    receive(&mut target);
    send(&mut target, &reply);
    assert!(!target.is_authenticated());
    receive(&mut target);
    assert!(!target.is_authenticated() && target.poll_message().is_none());
    let mut wrong = success2.clone();
    wrong[4] ^= 1;
    send(&mut target, &wrong);
    refuses(&mut target, AuthFailure::IncorrectPayload);
}

#[test]
fn unusable_dh_values_are_refused_by_both_sides() {
    let group = DhGroup::Ffdhe2048;
    let config = || config(vec![pair(8, None)], Hash::Sha256, group);
    for bad in [vec![0; 256], [vec![0; 255], vec![1]].concat(), vec![0xff; 256]] {
        let mut target = TargetExchange::new(config());
        let (host, negotiate) = HostNegotiating::start(config(), 1, Nonces::from_seed(2)).unwrap();
        send(&mut target, &negotiate);
        let mut challenge = receive(&mut target);
        let (started, _) = HostNegotiating::start(config(), 1, Nonces::from_seed(2)).unwrap();
        let challenged = host.handle_challenge(&challenge).unwrap();
        let computed = challenged.work().map(Work::run);
        let (_, mut reply) = challenged.reply(computed).unwrap();
        reply[80..336].copy_from_slice(&bad);
        send(&mut target, &reply);
        assert_eq!(target.refusal(), Some(Refusal::Payload("DH value")));
        refuses(&mut target, AuthFailure::IncorrectPayload);

        challenge[48..304].copy_from_slice(&bad);
        let challenged = started.handle_challenge(&challenge).unwrap();
        let computed = challenged.work().map(Work::run);
        let error = challenged.reply(computed).err().unwrap();
        assert_eq!(error.kind, HostErrorKind::Rejected(Refusal::Payload("DH value")));
    }
}

#[test]
fn host_rejects_each_wrong_field_of_challenge() {
    let start = || HostNegotiating::start(small(vec![pair(8, None)]), 5, Nonces::from_seed(2)).unwrap();
    let (mut target, [negotiate, ..]) = messages(false);
    send(&mut target, &negotiate);
    let challenge = receive(&mut target);
    for (at, value, code) in [
        (0, 2, AuthFailure::IncorrectMessage),
        (1, 3, AuthFailure::IncorrectMessage),
        (4, 6, AuthFailure::IncorrectPayload),
        (6, 48, AuthFailure::IncorrectPayload),
        (8, 2, AuthFailure::HashUnusable),
        (8, 9, AuthFailure::HashUnusable),
        (9, 1, AuthFailure::DhGroupUnusable),
        (9, 9, AuthFailure::DhGroupUnusable),
        (10, 1, AuthFailure::IncorrectPayload),
        (12, 0, AuthFailure::IncorrectPayload),
    ] {
        let mut message = challenge.clone();
        message[at] = value;
        let error = start().0.handle_challenge(&message).err().unwrap();
        let failure = Failure::decode_prefix(&error.failure2.unwrap()).unwrap();
        assert_eq!((failure.id, failure.t_id), ([0, 0xf0], 5));
        assert_eq!(AuthFailure::decode(failure.explanation), Some(code), "{at}: {:?}", error.kind);
    }
    for len in 0..48 {
        assert!(start().0.handle_challenge(&challenge[..len]).is_err());
    }
    assert!(start().0.handle_challenge(&challenge[..48]).is_ok());
}

#[test]
fn host_rejects_each_wrong_field_of_success1() {
    let (_, [negotiate, reply, _]) = messages(true);
    for (at, value, code) in [
        (1, 1, AuthFailure::IncorrectMessage),
        (4, 6, AuthFailure::IncorrectPayload),
        (6, 48, AuthFailure::IncorrectPayload),
        (8, 2, AuthFailure::IncorrectPayload),
        (8, 0, AuthFailure::Failed),
        (16, 0xff, AuthFailure::Failed),
    ] {
        let (mut target, _) = messages(true);
        let (host, _) =
            HostNegotiating::start(small(vec![pair(8, Some(9))]), 5, Nonces::from_seed(2)).unwrap();
        send(&mut target, &negotiate);
        let (host, _) = host.handle_challenge(&receive(&mut target)).unwrap().reply(None).unwrap();
        send(&mut target, &reply);
        let mut success = receive(&mut target);
        success[at] = value;
        let error = host.handle_success1(&success).unwrap_err();
        let failure = Failure::decode_prefix(&error.failure2.unwrap()).unwrap();
        assert_eq!(AuthFailure::decode(failure.explanation), Some(code), "{at}: {:?}", error.kind);
    }
}

/// One message of a fuzzer's choice between valid ones must not authenticate a host without the key.
fn forged() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let valid = messages(true).1;
    let message = (0..3usize, proptest::collection::vec((0..96usize, any::<u8>()), 0..4), 0..100usize);
    proptest::collection::vec(message, 1..6).prop_map(move |choices| {
        let forge = |(which, changes, len): (usize, Vec<(usize, u8)>, usize)| {
            let mut message: Vec<u8> = valid[which].clone();
            for (at, value) in changes {
                if let Some(byte) = message.get_mut(at) {
                    *byte = value;
                }
            }
            message.truncate(if len < 90 { usize::MAX } else { len });
            message
        };
        choices.into_iter().map(forge).collect()
    })
}

proptest! {
    #[test]
    fn no_forged_messages_authenticate(messages in forged()) {
        let mut target = TargetExchange::new(small(vec![pair(99, Some(9))]));
        for message in messages {
            send(&mut target, &message);
            target.poll_message();
            prop_assert!(!target.is_authenticated());
        }
    }

    #[test]
    fn keys_of_each_length_and_transform_work(
        host in key_strategy(), controller in key_strategy(), hash in 0..3usize, seed: u8,
    ) {
        let keys = KeyPair { host, controller: Some(controller) };
        let hash = Hash::ALL[hash];
        let mut target = TargetExchange::new(config(vec![keys.clone()], hash, DhGroup::Null));
        let result = exchange(&mut target, config(vec![keys], hash, DhGroup::Null), seed.into());
        prop_assert_eq!(result, Ok(()));
        prop_assert!(target.is_authenticated());
    }
}

fn key_strategy() -> impl Strategy<Value = Key> {
    let transform = prop_oneof![
        Just(KeyTransform::None),
        proptest::sample::select(Hash::ALL).prop_map(KeyTransform::Hash)
    ];
    (proptest::collection::vec(any::<u8>(), 64), proptest::sample::select(&Key::LENGTHS[..]), transform)
        .prop_map(|(bytes, len, transform)| Key::new(&bytes[..len], transform).unwrap())
}
