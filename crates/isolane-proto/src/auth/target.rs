//! The controller of one queue, from AUTH_Negotiate to the end of the exchange.

use isolane_auth::{Digest, Exponent, Key, Nonces, Parties, Responder, Role, SharedSecret, Transaction};
use isolane_wire::auth::{MessageId, Success2};

use super::message::{self, Chosen, ParsedReply};
use super::refusal::Refusal;
use super::work::{Computed, Work};
use super::{ExchangeConfig, KeyPair};

/// The controller's side of authentication on one queue.
///
/// 1. Pass the data of each Authentication Send to [`Self::handle_message`]. Run the returned work, and pass
///    its result to [`Self::handle_computed`]; then complete the command.
/// 2. Take the data of an Authentication Receive with [`Self::poll_message`].
/// 3. Serve other commands while [`Self::is_authenticated`]. Close the queue once [`Self::refusal`] returns
///    a reason and no message is left.
pub struct TargetExchange {
    config: ExchangeConfig,
    state: State,
    is_authenticated: bool,
    refusal: Option<Refusal>,
}

/// Action after a message.
pub enum Received {
    /// Complete the command.
    Done,
    /// Run the work and pass its result to [`TargetExchange::handle_computed`], then complete the command.
    Compute(Work),
}

enum State {
    /// No exchange is running.
    Idle,
    /// The public value is being computed.
    Negotiated(Started),
    /// The host must receive the challenge.
    SendChallenge(Started, Vec<u8>),
    /// The host must reply.
    AwaitReply(Started),
    /// The shared secret is being computed.
    Replied(Started, ParsedReply),
    /// The host must receive the success; it responds if it has challenged the controller.
    SendSuccess1 { t_id: u16, is_mutual: bool, message: Vec<u8> },
    /// The host must confirm the controller's response.
    AwaitSuccess2 { t_id: u16 },
    /// The host must receive the failure.
    SendFailure1(Vec<u8>),
}

struct Started {
    chosen: Chosen,
    nonces: Nonces,
    exponent: Option<Exponent>,
}

impl TargetExchange {
    /// No exchange yet. `config` has a key pair for each key of the host that is valid.
    pub fn new(config: ExchangeConfig) -> TargetExchange {
        TargetExchange { config, state: State::Idle, is_authenticated: false, refusal: None }
    }

    /// No exchange yet, on a queue whose host has proved its identity before.
    pub fn authenticated(config: ExchangeConfig) -> TargetExchange {
        TargetExchange { is_authenticated: true, ..TargetExchange::new(config) }
    }

    /// Returns the names of both sides.
    pub fn parties(&self) -> &Parties {
        &self.config.parties
    }

    /// Changes the keys that are valid, and whether the host must ask for the controller's proof.
    pub fn set_keys(&mut self, keys: Vec<KeyPair>, is_mutual: bool) {
        self.config.keys = keys;
        self.config.is_mutual = is_mutual;
    }

    /// Whether the host has proved its identity. A later exchange does not change it before it fails.
    pub fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// Whether an exchange is running, which another process cannot continue.
    pub fn is_running(&self) -> bool {
        !matches!(self.state, State::Idle)
    }

    /// The reason for which the queue must be closed, as soon as the host has received it.
    pub fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    /// Handles the data of an Authentication Send. `nonces` are used only by the first message of an exchange.
    pub fn handle_message(&mut self, message: &[u8], nonces: Nonces) -> Received {
        match self.try_handle(message, nonces) {
            Ok(received) => received,
            Err((t_id, refusal)) => {
                self.refuse(t_id, refusal);
                Received::Done
            }
        }
    }

    /// Handles the result of a [`Received::Compute`].
    pub fn handle_computed(&mut self, computed: Computed) {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Negotiated(started) => {
                let started = Started { exponent: Some(computed.exponent), ..started };
                self.send_challenge(started, &computed.public_value);
            }
            State::Replied(started, reply) => {
                let t_id = started.chosen.t_id;
                let secret = computed.secret.and_then(Result::ok);
                let result = match secret {
                    Some(secret) => self.verify(&started, &reply, Some(&secret)),
                    None => Err(Refusal::Payload("DH value")),
                };
                result.unwrap_or_else(|refusal| self.refuse(t_id, refusal));
            }
            other => self.state = other,
        }
    }

    /// Takes the message for an Authentication Receive; `None` if there is none to receive.
    pub fn poll_message(&mut self) -> Option<Vec<u8>> {
        let (next, message) = match std::mem::replace(&mut self.state, State::Idle) {
            State::SendChallenge(started, message) => (State::AwaitReply(started), message),
            State::SendSuccess1 { t_id, is_mutual: true, message } => {
                (State::AwaitSuccess2 { t_id }, message)
            }
            State::SendSuccess1 { message, .. } | State::SendFailure1(message) => (State::Idle, message),
            other => {
                self.state = other;
                return None;
            }
        };
        self.state = next;
        Some(message)
    }

    /// Length in bytes of the message for an Authentication Receive; `None` if there is none to receive.
    pub fn message_len(&self) -> Option<usize> {
        match &self.state {
            State::SendChallenge(_, message)
            | State::SendSuccess1 { message, .. }
            | State::SendFailure1(message) => Some(message.len()),
            _ => None,
        }
    }

    fn try_handle(&mut self, message: &[u8], nonces: Nonces) -> Result<Received, (u16, Refusal)> {
        let (id, t_id) = message::identify(message).map_err(|refusal| (0, refusal))?;
        let with_id = |refusal| (t_id, refusal);
        if self.refusal.is_some() {
            return Err(with_id(Refusal::Message));
        }
        match (id, std::mem::replace(&mut self.state, State::Idle)) {
            (MessageId::Negotiate, _) => self.negotiate(message, nonces).map_err(with_id),
            (MessageId::Reply, State::AwaitReply(started)) => {
                self.handle_reply(message, started).map_err(with_id)
            }
            (MessageId::Success2, State::AwaitSuccess2 { t_id: expected }) => {
                check_success2(message, t_id, expected).map_err(with_id)?;
                self.is_authenticated = true;
                Ok(Received::Done)
            }
            // The host does not accept the challenge, or the controller's response.
            (MessageId::Failure2, State::AwaitReply(_) | State::AwaitSuccess2 { .. }) => {
                self.is_authenticated = false;
                self.refusal = Some(message::parse_failure(message));
                Ok(Received::Done)
            }
            _ => Err(with_id(Refusal::Message)),
        }
    }

    fn negotiate(&mut self, message: &[u8], nonces: Nonces) -> Result<Received, Refusal> {
        let chosen = message::choose(message, &self.config.policy)?;
        let exponent = Exponent::new(chosen.group, nonces.exponent());
        let started = Started { chosen, nonces, exponent: None };
        match exponent {
            Some(exponent) => {
                self.state = State::Negotiated(started);
                Ok(Received::Compute(Work { exponent, wants_public_value: true, peer: None }))
            }
            None => {
                self.send_challenge(started, &[]);
                Ok(Received::Done)
            }
        }
    }

    fn send_challenge(&mut self, started: Started, dh_value: &[u8]) {
        let challenge = started.nonces.challenge(started.chosen.hash);
        let message = message::challenge(started.chosen, started.nonces.sequence(), &challenge, dh_value);
        self.state = State::SendChallenge(started, message);
    }

    fn handle_reply(&mut self, message: &[u8], mut started: Started) -> Result<Received, Refusal> {
        let mut reply = message::parse_reply(message, started.chosen)?;
        match started.exponent.take() {
            Some(exponent) => {
                let peer = Some(std::mem::take(&mut reply.dh_value));
                self.state = State::Replied(started, reply);
                Ok(Received::Compute(Work { exponent, wants_public_value: false, peer }))
            }
            None => {
                self.verify(&started, &reply, None)?;
                Ok(Received::Done)
            }
        }
    }

    /// Compares the response with that of each valid key.
    fn verify(
        &mut self,
        started: &Started,
        reply: &ParsedReply,
        secret: Option<&SharedSecret>,
    ) -> Result<(), Refusal> {
        let challenge = started.nonces.challenge(started.chosen.hash);
        if reply.challenge.as_ref().is_some_and(|(theirs, _)| theirs.matches(challenge.as_bytes())) {
            return Err(Refusal::ReflectedChallenge);
        }
        let respond = |role, key: &Key, challenge: &Digest, sequence| {
            let parties = &self.config.parties;
            let responder = Responder { hash: started.chosen.hash, role, parties, secret };
            responder.response(key, challenge, Transaction { id: started.chosen.t_id, sequence })
        };
        let is_right = |pair: &&KeyPair| {
            let expected = respond(Role::Host, &pair.host, &challenge, started.nonces.sequence());
            expected.matches(reply.response.as_bytes())
        };
        let pair = self.config.keys.iter().find(is_right).ok_or(Refusal::WrongResponse)?;
        let response = match &reply.challenge {
            Some((challenge, sequence)) => {
                let key = pair.controller.as_ref().ok_or(Refusal::NoControllerKey)?;
                Some(respond(Role::Controller, key, challenge, *sequence))
            }
            None if self.config.is_mutual => return Err(Refusal::NoChallenge),
            None => None,
        };
        // A host that wants the controller's response decides after it.
        self.is_authenticated |= response.is_none();
        self.state = State::SendSuccess1 {
            t_id: started.chosen.t_id,
            is_mutual: response.is_some(),
            message: message::success1(started.chosen, response.as_ref()),
        };
        Ok(())
    }

    fn refuse(&mut self, t_id: u16, refusal: Refusal) {
        self.is_authenticated = false;
        self.refusal.get_or_insert(refusal);
        self.state = State::SendFailure1(message::failure(MessageId::Failure1, t_id, refusal));
    }
}

fn check_success2(message: &[u8], t_id: u16, expected: u16) -> Result<(), Refusal> {
    if message.len() != Success2::LEN {
        return Err(Refusal::Payload("length"));
    }
    message::check_transaction(t_id, expected)
}
