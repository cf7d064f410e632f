//! Hosts that must prove who they are: only then are their commands served.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::auth::{SameForAll, fast, host_config, keys};
use common::*;
use isolane_proto::auth::{ExchangeConfig, HostErrorKind, Refusal};
use isolane_target::{AuthConfig, HostKeys, KeyPair, Policy, RequiredAuth, TargetConfig};
use isolane_wire::auth::{
    AuthFailure, AuthenticationReceiveCommand, AuthenticationSendCommand, DhGroup, Hash,
};
use isolane_wire::fabrics::{
    ConnectData, ConnectResponse, DisconnectCommand, PropertyGetCommand, PropertySize,
};
use isolane_wire::pdu::IcReq;
use isolane_wire::registers::Cc;
use isolane_wire::{Nqn, NqnField, Sgl, Status, SubmissionEntry, admin, io as nvm};

const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

fn refused(code: AuthFailure) -> Result<(), HostErrorKind> {
    Err(HostErrorKind::Refused(Refusal::Peer(code)))
}

#[test]
fn each_hash_and_group_opens_admin_and_io_queues() {
    let (_target, address) = start(SameForAll::new(vec![keys(0, Some(1))]).config());
    for &hash in Hash::ALL {
        for &group in DhGroup::ALL {
            for controller in [None, Some(1)] {
                let policy = Policy { hashes: vec![hash], groups: vec![group] };
                let host = host_config(keys(0, controller), policy);
                let admin = MockHost::authenticated(address, &host);
                let mut queue = MockHost::locked(address, 1, admin.cntlid);
                queue.authenticate(&host).unwrap();
                assert_eq!(queue.run(nvm::flush(1)).status, Status::SUCCESS, "{hash} {group}");
            }
        }
    }
}

#[test]
fn unproven_host_gets_no_other_command() {
    let (_target, address) = start(SameForAll::new(vec![keys(0, None)]).config());
    let host = host_config(keys(0, None), fast());
    let mut admin = MockHost::locked(address, 0, 0xffff);
    let property = PropertyGetCommand { size: PropertySize::Bytes4, offset: CSTS }.entry();
    for entry in [property, admin::keep_alive(), admin::async_event_request()] {
        assert_eq!(without_dnr(admin.run(entry).status), Status::AUTHENTICATION_REQUIRED, "{entry:?}");
    }
    let (answer, data) = admin.fetch(admin::IdentifyCommand::new(admin::Cns::Controller, 0).entry(), 4096);
    assert_eq!((without_dnr(answer.status), data.len()), (Status::AUTHENTICATION_REQUIRED, 0));
    // Its I/O queues are refused, because it cannot enable the controller.
    let mut early = MockHost::initialized(address, IcReq::default());
    let answer = early.connect(1, admin.cntlid, NQN, HOST, 31);
    assert_eq!(without_dnr(answer.status), Status::COMMAND_SEQUENCE_ERROR);
    admin.authenticate(&host).unwrap();
    admin.set_property(CC, Cc::enabled().0);

    let mut queue = MockHost::locked(address, 1, admin.cntlid);
    let block = [9; 512];
    assert_eq!(without_dnr(queue.run(nvm::flush(1)).status), Status::AUTHENTICATION_REQUIRED);
    let (answer, data) = queue.fetch(read_entry(0, 1), 512);
    assert_eq!((without_dnr(answer.status), data.len()), (Status::AUTHENTICATION_REQUIRED, 0));
    let answer = queue.write(write_entry(0, 1), &block).0;
    assert_eq!(without_dnr(answer.status), Status::AUTHENTICATION_REQUIRED);
    assert_eq!(without_dnr(queue.push(write_entry(0, 1), &block).status), Status::AUTHENTICATION_REQUIRED);
    queue.authenticate(&host).unwrap();
    assert!(queue.fetch(read_entry(0, 1), 512).1 == [0; 512], "a write was served before");
}

fn without_dnr(status: Status) -> Status {
    Status(status.0 & !(1 << 14))
}

#[test]
fn unproven_host_can_disconnect_its_queue() {
    let (_target, address) = start(SameForAll::new(vec![keys(0, None)]).config());
    let admin = MockHost::authenticated(address, &host_config(keys(0, None), fast()));
    let mut queue = MockHost::locked(address, 1, admin.cntlid);
    assert_eq!(queue.run(DisconnectCommand::default().entry()).status, Status::SUCCESS);
    queue.expect_end();
}

#[test]
fn host_authenticates_again_during_io() {
    let (_target, address) = start(SameForAll::new(vec![keys(0, Some(1)), keys(2, None)]).config());
    let host = host_config(keys(0, Some(1)), Policy::default());
    let mut admin = MockHost::authenticated(address, &host);
    let mut queue = MockHost::locked(address, 1, admin.cntlid);
    queue.authenticate(&host).unwrap();
    for round in 0..3 {
        let (awaiting, reply) = queue.challenged(&host).unwrap();
        assert_eq!(queue.write(write_entry(round, 1), &[9; 512]).0.status, Status::SUCCESS);
        queue.pass(&reply);
        assert_eq!(queue.fetch(read_entry(round, 1), 512).1, [9; 512]);
        let success2 = awaiting.handle_success1(&queue.message()).unwrap().unwrap();
        queue.pass(&success2);
        admin.authenticate(&host).unwrap();
        assert_eq!(admin.run(admin::keep_alive()).status, Status::SUCCESS);
    }
    // The second key is valid also.
    queue.authenticate(&host_config(keys(2, None), fast())).unwrap();
    // A failure ends what the first success allowed.
    assert_eq!(queue.authenticate(&host_config(keys(1, None), fast())), refused(AuthFailure::Failed));
    queue.expect_end();
    assert_eq!(admin.run(admin::keep_alive()).status, Status::SUCCESS);
}

/// Keys that can change.
#[derive(Debug)]
struct Changing(Mutex<Vec<KeyPair>>);

impl HostKeys for Changing {
    fn required(&self, _: Option<&Nqn>, _: &Nqn) -> Option<RequiredAuth> {
        Some(RequiredAuth { keys: self.0.lock().unwrap().clone(), is_mutual: false })
    }
}

#[test]
fn connected_host_authenticates_with_the_keys_that_are_valid_now() {
    let valid = Arc::new(Changing(Mutex::new(vec![keys(0, None)])));
    let auth = AuthConfig::new(Arc::<Changing>::clone(&valid));
    let (_target, address) = start(TargetConfig { auth: Some(auth), ..config(&["mem:1M"]) });
    let [first, second] = [keys(0, None), keys(1, Some(2))].map(|pair| host_config(pair, fast()));
    let mut admin = MockHost::authenticated(address, &first);
    let mut queue = MockHost::locked(address, 1, admin.cntlid);
    queue.authenticate(&first).unwrap();

    valid.0.lock().unwrap().push(keys(1, Some(2)));
    for host in [&second, &first, &second] {
        admin.authenticate(host).unwrap();
        queue.authenticate(host).unwrap();
    }
    valid.0.lock().unwrap().remove(0);
    assert_eq!(queue.write(write_entry(0, 1), &[9; 512]).0.status, Status::SUCCESS);
    assert_eq!(queue.authenticate(&first), refused(AuthFailure::Failed));
    queue.expect_end();
    admin.authenticate(&second).unwrap();
    // Without any key, no proof is right.
    valid.0.lock().unwrap().clear();
    assert_eq!(admin.authenticate(&second), refused(AuthFailure::Failed));
    admin.expect_end();
}

#[test]
fn wrong_key_name_hash_or_group_is_refused_with_its_code() {
    let target = Policy { hashes: vec![Hash::Sha384], groups: vec![DhGroup::Ffdhe2048] };
    let mut config = SameForAll::new(vec![keys(0, None)]).config();
    config.auth.as_mut().unwrap().policy = target.clone();
    let (_target, address) = start(config);
    let right = host_config(keys(0, None), Policy::default());
    let other = |change: fn(&mut ExchangeConfig)| {
        let mut config = right.clone();
        change(&mut config);
        config
    };
    let wrong = [
        (other(|host| host.keys = vec![keys(1, None)]), AuthFailure::Failed),
        (other(|host| host.parties.host = DISCOVERY.parse().unwrap()), AuthFailure::Failed),
        (other(|host| host.parties.subsystem = DISCOVERY.parse().unwrap()), AuthFailure::Failed),
        (other(|host| host.keys = vec![keys(0, Some(1))]), AuthFailure::Failed),
        (other(|host| host.policy.hashes = vec![Hash::Sha256]), AuthFailure::HashUnusable),
        (other(|host| host.policy.groups = vec![DhGroup::Null]), AuthFailure::DhGroupUnusable),
    ];
    for (host, code) in wrong {
        let mut admin = MockHost::locked(address, 0, 0xffff);
        assert_eq!(admin.authenticate(&host), refused(code));
        admin.expect_end();
    }
    MockHost::authenticated(address, &right);
}

#[test]
fn host_refuses_target_with_another_key() {
    let (_target, address) = start(SameForAll::new(vec![keys(0, Some(2))]).config());
    let mut admin = MockHost::locked(address, 0, 0xffff);
    let result = admin.authenticate(&host_config(keys(0, Some(1)), fast()));
    assert_eq!(result, Err(HostErrorKind::Rejected(Refusal::WrongResponse)));
    admin.expect_end();
}

#[test]
fn target_can_insist_on_its_own_proof() {
    let mut source = SameForAll::new(vec![keys(0, Some(1))]);
    source.required.is_mutual = true;
    let (_target, address) = start(source.config());
    let mut admin = MockHost::locked(address, 0, 0xffff);
    assert_eq!(admin.authenticate(&host_config(keys(0, None), fast())), refused(AuthFailure::Failed));
    admin.expect_end();
    MockHost::authenticated(address, &host_config(keys(0, Some(1)), fast()));
}

#[test]
fn discovery_requires_a_proof_only_if_configured() {
    for discovery in [false, true] {
        let (_target, address) =
            start(SameForAll { discovery, ..SameForAll::new(vec![keys(0, None)]) }.config());
        let mut host = MockHost::initialized(address, IcReq::default());
        let answer = host.connect(0, 0xffff, DISCOVERY, HOST, 31);
        assert_eq!(answer.status, Status::SUCCESS);
        assert_eq!(ConnectResponse(answer.dw0).authreq() != 0, discovery);
        let mut config = host_config(keys(0, None), fast());
        config.parties.subsystem = DISCOVERY.parse().unwrap();
        if discovery {
            host.authenticate(&config).unwrap();
        } else {
            // There is nothing to authenticate.
            assert_eq!(without_dnr(host.send_message(&[0; 8]).status), Status::INVALID_OPCODE);
        }
        host.set_property(CC, Cc::enabled().0);
    }
}

/// Requires a proof of all hosts, and has a key of one.
#[derive(Debug)]
struct OneKey;

impl HostKeys for OneKey {
    fn required(&self, host: Option<&Nqn>, _: &Nqn) -> Option<RequiredAuth> {
        let is_known = host.is_some_and(|host| host.as_str() == HOST);
        Some(RequiredAuth { keys: if is_known { vec![keys(0, None)] } else { Vec::new() }, is_mutual: false })
    }
}

#[test]
fn host_without_key_or_name_is_refused() {
    let (target, address) =
        start(TargetConfig { auth: Some(AuthConfig::new(Arc::new(OneKey))), ..config(&["mem:1M"]) });
    MockHost::authenticated(address, &host_config(keys(0, None), fast()));
    let mut stranger = MockHost::initialized(address, IcReq::default());
    let answer = stranger.connect(0, 0xffff, NQN, "nqn.2014-08.org.example:stranger", 31);
    assert_eq!(without_dnr(answer.status), Status::CONNECT_INVALID_HOST);
    stranger.expect_end();
    let mut nameless = MockHost::initialized(address, IcReq::default());
    let nqn: Nqn = NQN.parse().unwrap();
    let data = ConnectData { hostid: [7; 16], cntlid: 0xffff, subnqn: nqn.into(), hostnqn: NqnField::EMPTY };
    let answer = nameless.write(connect_entry(0, 31), &data.encode()).0;
    assert_eq!(without_dnr(answer.status), Status::CONNECT_INVALID_HOST);
    nameless.expect_end();
    eventually("all queues have ended", || target.counters().connections_open == 0);
}

#[test]
fn silent_host_is_closed_in_time() {
    let mut config = SameForAll::new(vec![keys(0, None)]).config();
    config.auth.as_mut().unwrap().timeout = Duration::from_millis(50);
    let (target, address) = start(config);
    let mut silent = MockHost::locked(address, 0, 0xffff);
    let mut begun = MockHost::locked(address, 0, 0xffff);
    let _ = begun.negotiated(&host_config(keys(0, None), fast()));
    silent.expect_end();
    begun.expect_end();
    drop((silent, begun));
    eventually("the associations are gone", || target.associations().is_empty());
}

#[test]
fn commands_with_wrong_fields_fail_and_change_nothing() {
    let (_target, address) = start(SameForAll::new(vec![keys(0, None)]).config());
    let mut admin = MockHost::locked(address, 0, 0xffff);
    let valid = AuthenticationSendCommand::new(64);
    for command in [
        AuthenticationSendCommand { secp: 0xea, ..valid },
        AuthenticationSendCommand { spsp0: 2, ..valid },
        AuthenticationSendCommand { spsp1: 0, ..valid },
        AuthenticationSendCommand { tl: 0, ..valid },
        AuthenticationSendCommand { tl: 4097, ..valid },
        AuthenticationSendCommand { tl: u32::MAX, ..valid },
    ] {
        let answer = admin.write(command.entry(), &[0; 64]).0;
        assert_eq!(without_dnr(answer.status), Status::INVALID_FIELD, "{command:?}");
    }
    let answer = admin.write(AuthenticationSendCommand::new(65).entry(), &[0; 64]).0;
    assert_eq!(without_dnr(answer.status), Status::DATA_SGL_LENGTH_INVALID);
    let answer = admin.run(AuthenticationSendCommand::new(64).entry());
    assert_ne!(answer.status, Status::SUCCESS, "without data");
    let valid = AuthenticationReceiveCommand::new(64);
    for command in [
        AuthenticationReceiveCommand { secp: 0xea, ..valid },
        AuthenticationReceiveCommand { spsp0: 2, ..valid },
        AuthenticationReceiveCommand { spsp1: 0, ..valid },
        AuthenticationReceiveCommand { al: 0, ..valid },
        AuthenticationReceiveCommand { al: 4097, ..valid },
    ] {
        let answer = admin.fetch(command.entry(), 64).0;
        assert_eq!(without_dnr(answer.status), Status::INVALID_FIELD, "{command:?}");
    }
    let answer = admin.fetch(AuthenticationReceiveCommand::new(65).entry(), 64).0;
    assert_eq!(without_dnr(answer.status), Status::DATA_SGL_LENGTH_INVALID);
    // There is no message yet.
    assert_eq!(without_dnr(admin.receive_message(4096).0.status), Status::COMMAND_SEQUENCE_ERROR);
    admin.authenticate(&host_config(keys(0, None), fast())).unwrap();
    assert_eq!(without_dnr(admin.receive_message(4096).0.status), Status::COMMAND_SEQUENCE_ERROR);
}

#[test]
fn message_stays_until_the_buffer_is_long_enough() {
    let (_target, address) = start(SameForAll::new(vec![keys(0, None)]).config());
    let host = host_config(keys(0, None), fast());
    let mut admin = MockHost::locked(address, 0, 0xffff);
    let nonces = isolane_proto::auth::Nonces::generate().unwrap();
    let (negotiating, negotiate) = isolane_proto::auth::HostNegotiating::start(host, 1, nonces).unwrap();
    admin.pass(&negotiate);
    assert_eq!(without_dnr(admin.receive_message(47).0.status), Status::INVALID_FIELD);
    let (answer, challenge) = admin.receive_message(48);
    assert_eq!(answer.status, Status::SUCCESS);
    let (awaiting, reply) = negotiating.handle_challenge(&challenge).unwrap().reply(None).unwrap();
    // The data of this message is requested by the target.
    let answer = admin.push(AuthenticationSendCommand::new(reply.len() as u32).entry(), &reply);
    assert_eq!(answer.status, Status::SUCCESS);
    let (_, success1) = admin.receive_message(16);
    assert_eq!(awaiting.handle_success1(&success1), Ok(None));
}

#[test]
fn second_message_at_the_same_time_is_refused() {
    let (_target, address) = start(SameForAll::new(vec![keys(0, None)]).config());
    let mut admin = MockHost::locked(address, 0, 0xffff);
    let entry = AuthenticationSendCommand::new(64).entry();
    let first = admin.send(SubmissionEntry { sgl: Sgl::Transport { len: 64 }, ..entry }, &[]);
    let isolane_wire::pdu::ControllerPdu::R2t(r2t) = admin.answer().pdu else { panic!("no R2T") };
    let second = admin.send(in_capsule(entry, &[0; 64]), &[0; 64]);
    let (answer, _) = admin.completion(second);
    assert_eq!(without_dnr(answer.status), Status::COMMAND_SEQUENCE_ERROR);
    let third = admin.send(
        SubmissionEntry { sgl: Sgl::Transport { len: 64 }, ..AuthenticationReceiveCommand::new(64).entry() },
        &[],
    );
    assert_eq!(without_dnr(admin.completion(third).0.status), Status::COMMAND_SEQUENCE_ERROR);
    admin.send_granted(&r2t, &[9; 64]);
    assert_eq!(admin.completion(first).0.status, Status::SUCCESS);
    admin.expect_failure1(AuthFailure::IncorrectMessage);
}

/// Two Connects whose data is on its way: the data of the second is not a message.
#[test]
fn data_of_second_connect_is_not_a_message() {
    let (_target, address) = start(SameForAll::new(vec![keys(0, None)]).config());
    let mut host = MockHost::initialized(address, IcReq::default());
    let data = connect_data(0xffff, NQN, HOST);
    let entry = SubmissionEntry { sgl: Sgl::Transport { len: data.len() as u32 }, ..connect_entry(0, 31) };
    let mut grants = Vec::new();
    for _ in 0..2 {
        host.send(entry, &[]);
    }
    for _ in 0..2 {
        let isolane_wire::pdu::ControllerPdu::R2t(r2t) = host.answer().pdu else { panic!("no R2T") };
        grants.push(r2t);
    }
    host.send_granted(&grants[0], &data);
    assert_eq!(host.completion(grants[0].cccid).0.status, Status::SUCCESS);
    host.send_granted(&grants[1], &data);
    let answer = host.completion(grants[1].cccid).0;
    assert_eq!(without_dnr(answer.status), Status::COMMAND_SEQUENCE_ERROR);
    host.authenticate(&host_config(keys(0, None), fast())).unwrap();
}

/// All fields, lengths, and orders are tested in `isolane-proto`; here, that a failure reaches the host and closes.
#[test]
fn hostile_messages_are_refused_and_close_the_queue() {
    let (_target, address) = start(SameForAll::new(vec![keys(0, Some(1))]).config());
    let group = Policy { hashes: vec![Hash::Sha256], groups: vec![DhGroup::Ffdhe2048] };
    let host = host_config(keys(0, Some(1)), group);
    let bad_values = [
        vec![0; 256],
        [vec![0; 255], vec![1]].concat(),
        vec![0xff; 256],
        [vec![0xff; 255], vec![0xfe]].concat(),
    ];
    for bad in bad_values {
        let mut admin = MockHost::locked(address, 0, 0xffff);
        let (_, mut reply) = admin.challenged(&host).unwrap();
        reply[80..336].copy_from_slice(&bad);
        admin.pass(&reply);
        admin.expect_failure1(AuthFailure::IncorrectPayload);
    }
    let host = host_config(keys(0, Some(1)), fast());
    // A reply of another queue, which another challenge asked for.
    let mut other = MockHost::locked(address, 0, 0xffff);
    let (_, replayed) = other.challenged(&host).unwrap();
    let mut admin = MockHost::locked(address, 0, 0xffff);
    let _ = admin.challenged(&host).unwrap();
    admin.pass(&replayed);
    admin.expect_failure1(AuthFailure::Failed);
    // The same reply a second time.
    other.pass(&replayed);
    other.message();
    other.pass(&replayed);
    other.expect_failure1(AuthFailure::IncorrectMessage);
    // The target's own challenge, so that it computes the response of the host.
    let mut admin = MockHost::locked(address, 0, 0xffff);
    let nonces = isolane_proto::auth::Nonces::generate().unwrap();
    let (negotiating, negotiate) = isolane_proto::auth::HostNegotiating::start(host, 1, nonces).unwrap();
    admin.pass(&negotiate);
    let challenge = admin.message();
    let (_, mut reply) = negotiating.handle_challenge(&challenge).unwrap().reply(None).unwrap();
    reply[48..80].copy_from_slice(&challenge[16..48]);
    admin.pass(&reply);
    admin.expect_failure1(AuthFailure::Failed);
    for message in [vec![0; 1], vec![0xff; 4096], vec![0; 4096]] {
        let mut admin = MockHost::locked(address, 0, 0xffff);
        admin.pass(&message);
        let failure = isolane_wire::auth::Failure::decode_prefix(&admin.message()).unwrap();
        assert_eq!(failure.id, [0, 0xf1]);
        admin.expect_end();
    }
}

/// Handshakes that are never finished: their exponentiations fill the queue, and a host from another address and the
/// I/O of a connected one continue.
#[test]
fn flood_of_handshakes_is_bounded() {
    let (target, address) = start(SameForAll::new(vec![keys(0, None)]).config());
    let group = Policy { hashes: vec![Hash::Sha256], groups: vec![DhGroup::Ffdhe8192] };
    let host = host_config(keys(0, None), group);
    let admin = MockHost::authenticated(address, &host_config(keys(0, None), fast()));
    let mut queue = MockHost::locked(address, 1, admin.cntlid);
    queue.authenticate(&host_config(keys(0, None), fast())).unwrap();
    let nonces = isolane_proto::auth::Nonces::generate().unwrap();
    let (_, negotiate) = isolane_proto::auth::HostNegotiating::start(host, 1, nonces).unwrap();
    let entry = AuthenticationSendCommand::new(negotiate.len() as u32).entry();
    let mut flood: Vec<MockHost> = (0..300).map(|_| MockHost::locked(address, 0, 0xffff)).collect();
    for attacker in &mut flood {
        attacker.send(in_capsule(entry, &negotiate), &negotiate);
    }
    eventually("some are refused", || target.counters().connections_refused > 0);
    assert_eq!(queue.run(nvm::flush(1)).status, Status::SUCCESS);
    let busy = |host: &mut MockHost| {
        let answer = host.try_answer();
        matches!(answer.map(|answer| answer.pdu), Some(isolane_wire::pdu::ControllerPdu::CapsuleResp(it))
            if it.entry.status == Status::CONNECT_CONTROLLER_BUSY)
    };
    assert!(flood.iter_mut().rev().any(busy), "hosts hear that the target is busy");
    // The queue is free as soon as its hosts are gone.
    drop(flood);
    let host =
        host_config(keys(0, None), Policy { hashes: vec![Hash::Sha256], groups: vec![DhGroup::Ffdhe2048] });
    MockHost::authenticated(address, &host);
}

#[test]
fn connection_ends_during_its_exponentiation() {
    let (target, address) = start(SameForAll::new(vec![keys(0, None)]).config());
    let group = Policy { hashes: vec![Hash::Sha256], groups: vec![DhGroup::Ffdhe8192] };
    let host = host_config(keys(0, None), group);
    for _ in 0..20 {
        let mut admin = MockHost::locked(address, 0, 0xffff);
        let nonces = isolane_proto::auth::Nonces::generate().unwrap();
        let (_, negotiate) = isolane_proto::auth::HostNegotiating::start(host.clone(), 1, nonces).unwrap();
        let entry = AuthenticationSendCommand::new(negotiate.len() as u32).entry();
        admin.send(in_capsule(entry, &negotiate), &negotiate);
    }
    eventually("the connections are gone", || target.counters().connections_open == 0);
    // The target stops although an exponentiation is in progress.
    let mut admin = MockHost::locked(address, 0, 0xffff);
    let nonces = isolane_proto::auth::Nonces::generate().unwrap();
    let (_, negotiate) = isolane_proto::auth::HostNegotiating::start(host, 1, nonces).unwrap();
    let entry = AuthenticationSendCommand::new(negotiate.len() as u32).entry();
    admin.send(in_capsule(entry, &negotiate), &negotiate);
    drop(target);
    admin.expect_end();
}

#[test]
fn documentation_has_each_refusal() {
    let text = include_str!("../../../docs/AUTH.md");
    let table: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
    let of_exchange = [
        Refusal::WrongResponse,
        Refusal::NoChallenge,
        Refusal::NoControllerKey,
        Refusal::NoControllerResponse,
        Refusal::ReflectedChallenge,
        Refusal::Protocol,
        Refusal::Concatenation,
        Refusal::Hash,
        Refusal::DhGroup,
        Refusal::Payload("length"),
        Refusal::Message,
        Refusal::PeerUnknown,
    ];
    let of_exchange = of_exchange.map(|refusal| refusal.to_string());
    let of_codes =
        AuthFailure::ALL.iter().map(|code| HostErrorKind::Refused(Refusal::Peer(*code)).to_string());
    let of_target = [
        "it did not authenticate in time",
        "it must authenticate, and this target has no key of it",
        "too many hosts authenticate at the same time",
        "too many connections of its address have not authenticated",
        "raise limits.associations of the host",
    ];
    for refusal in of_exchange.into_iter().chain(of_codes).chain(of_target.map(str::to_owned)) {
        // Names and values follow.
        let start = refusal.split([':', ',']).next().unwrap();
        assert!(table.iter().any(|row| row.contains(start)), "{refusal}");
    }
}
