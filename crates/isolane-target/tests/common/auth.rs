//! A host that authenticates over the connection of a [`MockHost`], step by step.
#![allow(dead_code)]

use std::net::SocketAddr;
use std::sync::Arc;

use isolane_proto::auth::{
    ExchangeConfig, HostAwaiting, HostChallenged, HostErrorKind, HostNegotiating, Nonces, Parties, Work,
};
use isolane_target::{AuthConfig, HostKeys, Key, KeyPair, Policy, RequiredAuth, TargetConfig};
use isolane_wire::auth::{AuthenticationReceiveCommand, AuthenticationSendCommand, DhGroup, Failure, Hash};
use isolane_wire::fabrics::ConnectResponse;
use isolane_wire::pdu::IcReq;
use isolane_wire::registers::{Cc, Csts};
use isolane_wire::{CompletionEntry, Nqn, Status};

use super::{CC, CSTS, HOST, MockHost, NQN, TEST_TIMEOUT, config};

/// Three keys: without a transform, and with two.
const KEYS: [&str; 3] = [
    "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:",
    "DHHC-1:01:ZWZnaGlqa2xtbm9wcXJzdHV2d3h5ent8fX5/gIGCg4QqhWEu:",
    "DHHC-1:02:ycrLzM3Oz9DR0tPU1dbX2Nna29zd3t/g4eLj5OXm5+gJTFLW:",
];

/// The host's key and the controller's.
pub fn keys(host: usize, controller: Option<usize>) -> KeyPair {
    let key = |at: usize| Key::parse(KEYS[at]).unwrap();
    KeyPair { host: key(host), controller: controller.map(key) }
}

/// Requires the same proof of each host, and no proof at the discovery subsystem unless `discovery` is set.
#[derive(Clone, Debug)]
pub struct SameForAll {
    pub required: RequiredAuth,
    pub discovery: bool,
}

impl HostKeys for SameForAll {
    fn required(&self, _: Option<&Nqn>, subsystem: &Nqn) -> Option<RequiredAuth> {
        (self.discovery || !subsystem.is_discovery()).then(|| self.required.clone())
    }
}

impl SameForAll {
    pub fn new(keys: Vec<KeyPair>) -> SameForAll {
        SameForAll { required: RequiredAuth { keys, is_mutual: false }, discovery: false }
    }

    /// A memory volume behind these keys.
    pub fn config(self) -> TargetConfig {
        let auth = AuthConfig { timeout: 10 * TEST_TIMEOUT, ..AuthConfig::new(Arc::new(self)) };
        TargetConfig { auth: Some(auth), ..config(&["mem:1M"]) }
    }
}

/// Offers of a host that needs no exponentiation.
pub fn fast() -> Policy {
    Policy { hashes: vec![Hash::Sha256], groups: vec![DhGroup::Null] }
}

/// Configuration of a host.
pub fn host_config(keys: KeyPair, policy: Policy) -> ExchangeConfig {
    let parties = Parties { host: HOST.parse().unwrap(), subsystem: NQN.parse().unwrap() };
    ExchangeConfig { parties, keys: vec![keys], policy, is_mutual: false }
}

impl MockHost {
    /// A connected queue whose host must authenticate.
    pub fn locked(address: SocketAddr, qid: u16, cntlid: u16) -> MockHost {
        let mut host = MockHost::initialized(address, IcReq::default());
        let answer = host.connect(qid, cntlid, NQN, HOST, 31);
        assert_eq!(answer.status, Status::SUCCESS);
        let response = ConnectResponse(answer.dw0);
        assert_eq!(response.authreq(), ConnectResponse::ATR);
        host.cntlid = response.cntlid();
        host
    }

    /// The admin queue of a host that has authenticated, and its controller is enabled.
    pub fn authenticated(address: SocketAddr, host: &ExchangeConfig) -> MockHost {
        let mut admin = MockHost::locked(address, 0, 0xffff);
        admin.authenticate(host).unwrap();
        admin.set_property(CC, Cc::enabled().0);
        assert!(Csts(admin.property(CSTS) as u32).rdy());
        admin
    }

    /// Authenticates, and returns the reason of a failure.
    pub fn authenticate(&mut self, config: &ExchangeConfig) -> Result<(), HostErrorKind> {
        let (host, reply) = self.challenged(config)?;
        self.pass(&reply);
        let host = host.handle_success1(&self.message());
        if let Some(success2) = host.map_err(|error| self.give_up(error))? {
            self.pass(&success2);
        }
        Ok(())
    }

    /// Authenticates up to the reply, which is not sent.
    pub fn challenged(&mut self, config: &ExchangeConfig) -> Result<(HostAwaiting, Vec<u8>), HostErrorKind> {
        let host = self.negotiated(config)?;
        let computed = host.work().map(Work::run);
        host.reply(computed).map_err(|error| self.give_up(error))
    }

    /// Authenticates up to the challenge.
    pub fn negotiated(&mut self, config: &ExchangeConfig) -> Result<HostChallenged, HostErrorKind> {
        let nonces = Nonces::generate().unwrap();
        let (host, negotiate) = HostNegotiating::start(config.clone(), 7, nonces).unwrap();
        self.pass(&negotiate);
        let challenge = self.message();
        host.handle_challenge(&challenge).map_err(|error| self.give_up(error))
    }

    fn give_up(&mut self, error: isolane_proto::auth::HostError) -> HostErrorKind {
        error.failure2.iter().for_each(|message| self.pass(message));
        error.kind
    }

    /// Sends a message that the target takes.
    pub fn pass(&mut self, message: &[u8]) {
        assert_eq!(self.send_message(message).status, Status::SUCCESS);
    }

    pub fn send_message(&mut self, message: &[u8]) -> CompletionEntry {
        self.write(AuthenticationSendCommand::new(message.len() as u32).entry(), message).0
    }

    /// The message that the target has for this host.
    pub fn message(&mut self) -> Vec<u8> {
        let (answer, message) = self.receive_message(4096);
        assert_eq!((answer.status, message.len()), (Status::SUCCESS, 4096));
        message
    }

    pub fn receive_message(&mut self, len: u32) -> (CompletionEntry, Vec<u8>) {
        self.fetch(AuthenticationReceiveCommand::new(len).entry(), len)
    }

    /// The target sends AUTH_Failure1 with this explanation, and closes.
    pub fn expect_failure1(&mut self, explanation: isolane_wire::auth::AuthFailure) {
        let failure = Failure::decode_prefix(&self.message()).unwrap();
        assert_eq!((failure.id, failure.reason), ([0, 0xf1], Failure::REASON));
        assert_eq!(failure.explanation, explanation.code(), "{explanation}");
        self.expect_end();
    }
}
