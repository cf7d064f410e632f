//! Authentication of hosts: passes the messages of a queue to its exchange, and unlocks the queue.
//!
//! An exponentiation runs in a side thread; its Authentication Send completes with the result.
//!
//! Invariant: a queue whose host must authenticate has at most one Authentication Send in progress, and serves other
//! commands only after a success.

use std::sync::Arc;

use isolane_memory::Payload;
use isolane_proto::auth::{Computed, ExchangeConfig, Nonces, Parties, Received, TargetExchange, Work};
use isolane_proto::subsystem::{Host, parse_host};
use isolane_proto::target::{Permit, Transfer};
use isolane_proto::{Completion, Failure};
use isolane_wire::auth::{AuthenticationReceiveCommand, AuthenticationSendCommand};
use isolane_wire::fabrics::{ConnectData, ConnectResponse};
use isolane_wire::opcode::{AdminOpcode, FabricsType};
use isolane_wire::{Nqn, SubmissionEntry};

use super::Core;
use super::control_data::take_small_data;
use crate::auth_requests::{AuthRequest, QueueFull};
use crate::lane::{Authentication, Computing, Lane};
use crate::limits::LimitReached;
use crate::shared::Message;

/// A command of authentication.
pub(super) enum AuthenticationCommand {
    Send(AuthenticationSendCommand),
    Receive(AuthenticationReceiveCommand),
}

impl AuthenticationCommand {
    /// Returns the command, if it is one of authentication.
    pub(super) fn parse(entry: &SubmissionEntry) -> Option<AuthenticationCommand> {
        match FabricsType::decode(entry.fctype()) {
            _ if entry.opcode != AdminOpcode::Fabrics.code() => None,
            Some(FabricsType::AuthenticationSend) => {
                Some(AuthenticationCommand::Send(AuthenticationSendCommand::parse(entry)))
            }
            Some(FabricsType::AuthenticationReceive) => {
                Some(AuthenticationCommand::Receive(AuthenticationReceiveCommand::parse(entry)))
            }
            _ => None,
        }
    }

    fn is_valid(&self) -> bool {
        match self {
            AuthenticationCommand::Send(command) => command.is_valid(),
            AuthenticationCommand::Receive(command) => command.is_valid(),
        }
    }
}

/// The host must authenticate, and the target has no key of it.
pub(super) struct NoKey;

impl Core {
    /// Returns the authentication that a Connect with this data requires; `None` if none.
    pub(super) fn required_authentication(&self, data: &[u8]) -> Result<Option<Box<Authentication>>, NoKey> {
        if self.shared.auth.is_none() {
            return Ok(None);
        }
        let subsystem = ConnectData::decode_prefix(data).and_then(|data| data.subnqn.parse().ok());
        // The port refuses names that are not valid.
        let (Some(subsystem), Some(host)) = (subsystem, parse_host(data)) else { return Ok(None) };
        self.authentication_of(&host, subsystem, false)
    }

    /// Returns the authentication that a queue of this host requires; `is_authenticated`: it has succeeded before.
    pub(super) fn authentication_of(
        &self,
        host: &Host,
        subsystem: Nqn,
        is_authenticated: bool,
    ) -> Result<Option<Box<Authentication>>, NoKey> {
        let Some(config) = &self.shared.auth else { return Ok(None) };
        let Some(required) = config.keys.required(host.nqn.as_ref(), &subsystem) else { return Ok(None) };
        let host = host.nqn.filter(|_| !required.keys.is_empty()).ok_or(NoKey)?;
        let exchange = ExchangeConfig {
            parties: Parties { host, subsystem },
            keys: required.keys,
            policy: config.policy.clone(),
            is_mutual: required.is_mutual,
        };
        Ok(Some(Box::new(Authentication {
            exchange: if is_authenticated {
                TargetExchange::authenticated(exchange)
            } else {
                TargetExchange::new(exchange)
            },
            is_receiving: false,
            computing: None,
            is_reported: is_authenticated,
            until: self.now + config.timeout,
        })))
    }

    /// Handles a command of authentication before its data has arrived.
    #[cold]
    pub(super) fn on_authentication(
        &mut self,
        lane: &mut Lane,
        permit: Permit,
        command: AuthenticationCommand,
        transfer: Transfer,
    ) {
        let Some(auth) = lane.authentication() else { return self.fail(lane, permit, Failure::Opcode) };
        if auth.is_receiving || auth.computing.is_some() {
            return self.fail(lane, permit, Failure::Sequence);
        }
        match (command, transfer) {
            (command, _) if !command.is_valid() => self.fail(lane, permit, Failure::Field),
            (AuthenticationCommand::Send(command), Transfer::FromHost { len, place })
                if len == command.tl =>
            {
                auth.is_receiving = true;
                take_small_data(lane, permit, len, place);
            }
            (AuthenticationCommand::Receive(command), Transfer::ToHost { len }) if len == command.al => {
                self.send_message(lane, permit, len);
            }
            _ => self.fail(lane, permit, Failure::SglLength),
        }
    }

    /// Handles the data of an Authentication Send, or of a second Connect.
    #[cold]
    pub(super) fn on_authentication_data(&mut self, lane: &mut Lane, permit: Permit, message: &[u8]) {
        if !lane.end_authentication_data(&permit) {
            return self.fail(lane, permit, Failure::Sequence);
        }
        let Ok(nonces) = Nonces::generate() else { return self.fail(lane, permit, Failure::Internal) };
        let Some(auth) = lane.authentication() else { return self.fail(lane, permit, Failure::Sequence) };
        self.take_valid_keys(&mut auth.exchange);
        match auth.exchange.handle_message(message, nonces) {
            Received::Done => self.end_message(lane, permit),
            Received::Compute(work) => self.compute(lane, permit, work),
        }
    }

    /// The keys can have changed since the Connect. If the host need no longer authenticate, those of the Connect stay.
    fn take_valid_keys(&self, exchange: &mut TargetExchange) {
        let Some(config) = &self.shared.auth else { return };
        let Parties { host, subsystem } = exchange.parties();
        if let Some(required) = config.keys.required(Some(host), subsystem) {
            exchange.set_keys(required.keys, required.is_mutual);
        }
    }

    fn compute(&mut self, lane: &mut Lane, permit: Permit, work: Work) {
        let (id, peer, waits) = (lane.id, lane.peer().ip(), Arc::new(()));
        let request = AuthRequest { work, lane: id, core: self.index, peer, waits: Arc::downgrade(&waits) };
        match self.shared.auth_requests.send(request) {
            Ok(displaced) => displaced.into_iter().for_each(|AuthRequest { lane, core, .. }| {
                self.shared.post(core, Message::Computed { lane, computed: None });
            }),
            Err(QueueFull) => return self.refuse_busy(lane, permit),
        }
        if let Some(auth) = lane.authentication() {
            auth.computing = Some(Computing { permit, _waits: waits });
        }
    }

    /// Handles the result of an exponentiation; `None`: another has displaced it.
    pub(super) fn on_computed(&mut self, lane: &mut Lane, computed: Option<Box<Computed>>) {
        let Some(auth) = lane.authentication() else { return };
        let Some(Computing { permit, .. }) = auth.computing.take() else { return };
        match computed {
            Some(computed) => {
                auth.exchange.handle_computed(*computed);
                self.end_message(lane, permit);
            }
            None => self.refuse_busy(lane, permit),
        }
    }

    fn refuse_busy(&mut self, lane: &mut Lane, permit: Permit) {
        self.fail(lane, permit, Failure::Busy);
        self.refuse_host(lane, "too many hosts authenticate at the same time");
    }

    /// Closes a queue whose host does not authenticate.
    pub(super) fn check_authentication_deadline(&mut self, lane: &mut Lane) {
        let association = lane.association.as_ref().filter(|association| association.is_locked());
        let auth = association.and_then(|association| association.auth.as_ref());
        if auth.is_some_and(|auth| auth.until <= self.now) {
            self.refuse_host(lane, "it did not authenticate in time");
        }
    }

    /// Completes an Authentication Receive.
    fn send_message(&mut self, lane: &mut Lane, permit: Permit, len: u32) {
        let Some(auth) = lane.authentication() else { return self.fail(lane, permit, Failure::Sequence) };
        match auth.exchange.message_len() {
            None => return self.fail(lane, permit, Failure::Sequence),
            Some(message) if message > len as usize => return self.fail(lane, permit, Failure::Field),
            Some(_) => {}
        }
        let mut message = auth.exchange.poll_message().unwrap_or_default();
        let refusal = auth.exchange.refusal();
        message.resize(len as usize, 0);
        lane.conn.complete_with_data(permit, Payload::from(message), Completion::success());
        self.sends.add(lane);
        if let Some(refusal) = refusal {
            self.refuse_host(lane, &refusal.to_string());
        }
    }

    /// Completes an Authentication Send, and unlocks or locks its queue.
    fn end_message(&mut self, lane: &mut Lane, permit: Permit) {
        if let Err(reached) = self.count_proven(lane) {
            return self.refuse_proven(lane, permit, reached);
        }
        self.complete(lane, permit, Completion::success());
        let Some(association) = &mut lane.association else { return };
        let is_locked = association.is_locked();
        let Some(auth) = &mut association.auth else { return };
        association.serves_io = association.qid != 0 && !is_locked;
        if !is_locked && !std::mem::replace(&mut auth.is_reported, true) && association.qid == 0 {
            log::limited!(Info, "{}: {} has authenticated", lane.connection.remote, association.host);
        }
        // A failure of this side is sent first.
        let refusal = auth.exchange.refusal().filter(|_| auth.exchange.message_len().is_none());
        if !is_locked {
            self.leave_unauthenticated(lane);
        }
        if let Some(refusal) = refusal {
            self.refuse_host(lane, &refusal.to_string());
        }
    }

    /// Counts a queue for its host, if that has just proven its identity.
    fn count_proven(&self, lane: &Lane) -> Result<(), LimitReached> {
        match lane.association.as_ref().filter(|it| lane.unauthenticated.is_some() && !it.is_locked()) {
            Some(association) => self.shared.count_proven(association.id, lane.id),
            None => Ok(()),
        }
    }

    /// Closes a queue of a host with too many of them.
    fn refuse_proven(&mut self, lane: &mut Lane, permit: Permit, reached: LimitReached) {
        let host = lane.association.as_ref().map(|association| association.host.to_string());
        self.shared.log_limit(&self.counters, lane.peer(), reached, &host.unwrap_or_default());
        self.fail(lane, permit, Failure::Busy);
        self.close_gracefully(lane, "its host is above a limit");
    }

    pub(super) fn refuse_host(&mut self, lane: &mut Lane, reason: &str) {
        let Some(association) = &lane.association else { return };
        let reason = format!("authentication of {}: {reason}", association.host);
        self.counters.authentication_refused.add(1);
        self.shared.log_refusal(&self.counters, lane.peer(), &reason);
        self.close_gracefully(lane, "its host did not authenticate");
    }
}

impl Lane {
    fn authentication(&mut self) -> Option<&mut Authentication> {
        self.association.as_mut()?.auth.as_deref_mut()
    }

    /// Called when the data of a command has arrived. Returns `true` if the command is an Authentication Send.
    pub(super) fn end_authentication_data(&mut self, permit: &Permit) -> bool {
        let command = AuthenticationCommand::parse(self.conn.entry(permit));
        let auth = self.authentication().filter(|_| command.is_some());
        auth.is_some_and(|auth| std::mem::take(&mut auth.is_receiving))
    }

    /// Adds the request to authenticate to the completion of a Connect.
    pub(super) fn with_authreq(&self, completion: Completion) -> Completion {
        if !self.association.as_ref().is_some_and(|association| association.is_locked()) {
            return completion;
        }
        Completion { dw0: ConnectResponse(completion.dw0).with_authreq(ConnectResponse::ATR).0, ..completion }
    }
}
