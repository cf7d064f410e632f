//! Authentication of a queue by DH-HMAC-CHAP, after its Connect (Base 2.2 §8.3.4).
//!
//! The keys are read from their files for each connection, so a new key needs no restart.
//!
//! Invariant: with a controller's key, no queue is used whose target has not proved its identity.

use std::path::Path;

use isolane_auth::{Key, KeyFile};
use isolane_memory::Buffer;
use isolane_proto::auth::{
    ExchangeConfig, HostError, HostErrorKind, HostNegotiating, KeyPair, Nonces, Parties, Policy, Work,
};
use isolane_proto::host::Data;
use isolane_wire::auth::{AuthenticationReceiveCommand, AuthenticationSendCommand, MAX_MESSAGE_BYTES};
use isolane_wire::fabrics::ConnectResponse;
use isolane_wire::{CompletionEntry, Nqn};

use super::connection::BlockingConnection;
use crate::error::{ConnectError, Step};
use crate::options::Options;

/// Authenticates the queue if the target requires it, or if this host requires the target's proof. `reply` is the
/// completion of the Connect.
pub(crate) fn authenticate(
    connection: &mut BlockingConnection,
    reply: &CompletionEntry,
    subsystem: &Nqn,
    options: &Options,
) -> Result<(), ConnectError> {
    let authreq = ConnectResponse(reply.dw0).authreq();
    if authreq & ConnectResponse::ASCR != 0 {
        return Err(ConnectError::Unsupported(
            "a secure channel (TLS), which the target requires".to_owned(),
        ));
    }
    let Some(keys) = read_keys(options)? else {
        return if authreq == 0 { Ok(()) } else { Err(ConnectError::NoKey(connection.address)) };
    };
    if authreq == 0 && keys.controller.is_none() {
        log::debug!("{}: the target requires no authentication", connection.address);
        return Ok(());
    }
    let config = ExchangeConfig {
        parties: Parties { host: options.host_nqn, subsystem: *subsystem },
        keys: vec![keys],
        policy: Policy::default(),
        is_mutual: false,
    };
    exchange(connection, config)
}

/// Runs an exchange from AUTH_Negotiate to DH-HMAC-CHAP_Success2.
fn exchange(connection: &mut BlockingConnection, config: ExchangeConfig) -> Result<(), ConnectError> {
    let nonces = Nonces::generate().map_err(|error| {
        ConnectError::system("random bytes for authentication", std::io::Error::other(error))
    })?;
    let (host, message) =
        HostNegotiating::start(config, fastrand::u16(..), nonces).expect("the configuration has a key pair");
    send(connection, &message)?;
    let challenge = receive(connection)?;
    let host = host.handle_challenge(&challenge).map_err(|error| fail(connection, error))?;
    let computed = host.work().map(Work::run);
    let (host, message) = host.reply(computed).map_err(|error| fail(connection, error))?;
    send(connection, &message)?;
    let success1 = receive(connection)?;
    match host.handle_success1(&success1).map_err(|error| fail(connection, error))? {
        Some(success2) => send(connection, &success2),
        None => Ok(()),
    }
}

fn send(connection: &mut BlockingConnection, message: &[u8]) -> Result<(), ConnectError> {
    let command = AuthenticationSendCommand::new(message.len() as u32);
    let mut buffer = Buffer::contiguous(message.len());
    buffer.copy_in(0, message);
    connection.command(Step::Authenticate, command.entry(), Data::Write(buffer)).map(drop)
}

fn receive(connection: &mut BlockingConnection) -> Result<Vec<u8>, ConnectError> {
    let command = AuthenticationReceiveCommand::new(MAX_MESSAGE_BYTES);
    // SPDK's target sends only the message, the kernel's pads it.
    let buffer = Buffer::contiguous(MAX_MESSAGE_BYTES as usize);
    let reply = connection.read_up_to(Step::Authenticate, command.entry(), buffer)?;
    let short = || connection.protocol_violation(Step::Authenticate, "returned no message".to_owned());
    reply.buffer.map(|buffer| buffer.to_vec()).ok_or_else(short)
}

/// Reports the failure to the target, if it does not know it yet.
fn fail(connection: &mut BlockingConnection, error: HostError) -> ConnectError {
    if let Some(message) = &error.failure2 {
        // The connection ends even if the target does not receive it.
        let _ = send(connection, message);
    }
    let reason = match error.kind {
        HostErrorKind::Refused(_) => error.kind.to_string(),
        HostErrorKind::Rejected(refusal) => format!("this host refuses the target: {refusal}"),
    };
    ConnectError::Authentication { address: connection.address, reason }
}

/// Reads the keys of both sides; `None` without a key of this host.
fn read_keys(options: &Options) -> Result<Option<KeyPair>, ConnectError> {
    let read = |path: &Path| KeyFile::read(path).map_err(|error| ConnectError::Key(error.to_string()));
    let controller: Option<Key> = options.ctrl_key.as_deref().map(read).transpose()?;
    match options.key.as_deref().map(read).transpose()? {
        Some(host) => Ok(Some(KeyPair { host, controller })),
        None if controller.is_some() => Err(ConnectError::Key(
            "the key of the target needs a key of this host also; give it with `--key FILE`".to_owned(),
        )),
        None => Ok(None),
    }
}
