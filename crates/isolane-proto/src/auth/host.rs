//! The host, from AUTH_Negotiate to DH-HMAC-CHAP_Success2.
//!
//! Each state consumes itself and returns the next one with the message to send.

use std::fmt;

use isolane_auth::{Digest, Exponent, Nonces, Responder, Role, SharedSecret, Transaction};
use isolane_wire::auth::{Hash, MessageId};

use super::message::{self, ParsedChallenge, ParsedReply};
use super::refusal::Refusal;
use super::work::{Computed, Work};
use super::{ExchangeConfig, KeyPair};

/// AUTH_Negotiate is sent; DH-HMAC-CHAP_Challenge follows.
pub struct HostNegotiating(Common);

/// The challenge is accepted; the reply follows from the result of [`HostChallenged::work`].
pub struct HostChallenged {
    common: Common,
    challenge: ParsedChallenge,
}

/// DH-HMAC-CHAP_Reply is sent; DH-HMAC-CHAP_Success1 follows.
pub struct HostAwaiting {
    t_id: u16,
    hash: Hash,
    /// The response that the controller must send.
    expected: Option<Digest>,
}

/// End of an exchange without success.
#[derive(Debug, PartialEq, Eq)]
pub struct HostError {
    /// The reason.
    pub kind: HostErrorKind,
    /// AUTH_Failure2, which the controller must get.
    pub failure2: Option<Vec<u8>>,
}

/// Side that has ended an exchange, and its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostErrorKind {
    /// The controller has refused the host.
    Refused(Refusal),
    /// The host has refused the controller.
    Rejected(Refusal),
}

struct Common {
    config: ExchangeConfig,
    keys: KeyPair,
    nonces: Nonces,
    t_id: u16,
}

impl HostNegotiating {
    /// Starts an exchange with the first key pair. Returns AUTH_Negotiate; `None` if `config` has no keys.
    pub fn start(config: ExchangeConfig, t_id: u16, nonces: Nonces) -> Option<(HostNegotiating, Vec<u8>)> {
        let keys = config.keys.first()?.clone();
        let message = message::negotiate(t_id, &config.policy);
        Some((HostNegotiating(Common { config, keys, nonces, t_id }), message))
    }

    /// Handles the data of an Authentication Receive.
    ///
    /// # Errors
    ///
    /// The controller refuses the host, or the challenge is not valid.
    pub fn handle_challenge(self, data: &[u8]) -> Result<HostChallenged, HostError> {
        let common = self.0;
        check(data, MessageId::Challenge, common.t_id)?;
        let challenge = message::parse_challenge(data, &common.config.policy)
            .map_err(|refusal| reject(common.t_id, refusal))?;
        Ok(HostChallenged { common, challenge })
    }
}

impl HostChallenged {
    /// Exponentiations to run before the reply; `None` with the NULL group.
    pub fn work(&self) -> Option<Work> {
        let exponent = Exponent::new(self.challenge.group, self.common.nonces.exponent())?;
        Some(Work { exponent, wants_public_value: true, peer: Some(self.challenge.dh_value.clone()) })
    }

    /// Returns DH-HMAC-CHAP_Reply. `computed` is the result of [`Self::work`].
    ///
    /// # Errors
    ///
    /// The DH value of the controller is not usable.
    pub fn reply(self, computed: Option<Computed>) -> Result<(HostAwaiting, Vec<u8>), HostError> {
        let HostChallenged { common, challenge: theirs } = self;
        let (secret, dh_value) = match computed {
            None => (None, Vec::new()),
            Some(Computed { secret: Some(Ok(secret)), public_value, .. }) => (Some(secret), public_value),
            Some(_) => return Err(reject(common.t_id, Refusal::Payload("DH value"))),
        };
        let (hash, nonces) = (theirs.hash, &common.nonces);
        let respond = responder(&common, hash, secret.as_ref());
        let response = respond(Role::Host, &common.keys.host, &theirs.challenge, theirs.sequence);
        let (mut challenge, mut expected) = (None, None);
        if let Some(key) = &common.keys.controller {
            let ours = nonces.challenge(hash);
            expected = Some(respond(Role::Controller, key, &ours, nonces.sequence()));
            challenge = Some((ours, nonces.sequence()));
        }
        let reply = message::reply(common.t_id, hash, &ParsedReply { response, challenge, dh_value });
        Ok((HostAwaiting { t_id: common.t_id, hash, expected }, reply))
    }
}

impl HostAwaiting {
    /// Handles the data of an Authentication Receive. The exchange has succeeded; returns
    /// DH-HMAC-CHAP_Success2, if the controller must get it.
    ///
    /// # Errors
    ///
    /// The controller refuses the host, or did not prove itself.
    pub fn handle_success1(self, data: &[u8]) -> Result<Option<Vec<u8>>, HostError> {
        check(data, MessageId::Success1, self.t_id)?;
        let response =
            message::parse_success1(data, self.hash).map_err(|refusal| reject(self.t_id, refusal))?;
        match (self.expected, response) {
            (None, None) => Ok(None),
            (Some(expected), Some(response)) if expected.matches(response.as_bytes()) => {
                Ok(Some(message::success2(self.t_id)))
            }
            (Some(_), Some(_)) => Err(reject(self.t_id, Refusal::WrongResponse)),
            (Some(_), None) => Err(reject(self.t_id, Refusal::NoControllerResponse)),
            (None, Some(_)) => Err(reject(self.t_id, Refusal::Payload("RVALID"))),
        }
    }
}

fn responder<'a>(
    common: &'a Common,
    hash: Hash,
    secret: Option<&'a SharedSecret>,
) -> impl Fn(Role, &isolane_auth::Key, &Digest, u32) -> Digest + 'a {
    move |role, key, challenge, sequence| {
        let responder = Responder { hash, role, parties: &common.config.parties, secret };
        responder.response(key, challenge, Transaction { id: common.t_id, sequence })
    }
}

/// Checks that `data` is the expected message of this transaction.
fn check(data: &[u8], expected: MessageId, t_id: u16) -> Result<(), HostError> {
    let (id, received) = message::identify(data).map_err(|refusal| reject(t_id, refusal))?;
    if id == MessageId::Failure1 {
        let kind = HostErrorKind::Refused(message::parse_failure(data));
        return Err(HostError { kind, failure2: None });
    }
    if id != expected {
        return Err(reject(t_id, Refusal::Message));
    }
    message::check_transaction(received, t_id).map_err(|refusal| reject(t_id, refusal))
}

fn reject(t_id: u16, refusal: Refusal) -> HostError {
    let failure2 = Some(message::failure(MessageId::Failure2, t_id, refusal));
    HostError { kind: HostErrorKind::Rejected(refusal), failure2 }
}

impl fmt::Display for HostErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostErrorKind::Refused(refusal) => f.write_str(explain(*refusal)),
            HostErrorKind::Rejected(refusal) => write!(f, "{refusal}"),
        }
    }
}

impl std::error::Error for HostErrorKind {}

/// Explains to the user of a host why the target refuses it.
fn explain(refusal: Refusal) -> &'static str {
    use isolane_wire::auth::AuthFailure;
    match refusal {
        Refusal::Peer(AuthFailure::Failed) => {
            "the target does not accept the key: it has another key for the NQN of this host, or none for itself"
        }
        Refusal::Peer(AuthFailure::ProtocolUnusable) => "the target does not accept DH-HMAC-CHAP",
        Refusal::Peer(AuthFailure::ConcatenationMismatch) => "the target requires a secure channel",
        Refusal::Peer(AuthFailure::HashUnusable) => {
            "the target accepts none of the hash functions of this host"
        }
        Refusal::Peer(AuthFailure::DhGroupUnusable) => {
            "the target accepts none of the DH groups of this host"
        }
        Refusal::Peer(AuthFailure::IncorrectPayload) => "the target rejects a field of a message",
        Refusal::Peer(AuthFailure::IncorrectMessage) => "the target expects another message",
        _ => "the target gives an unknown reason",
    }
}
