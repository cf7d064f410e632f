//! Reasons to refuse a peer, with the code that it gets.

use isolane_wire::auth::AuthFailure;

/// Reason to end an exchange without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The response does not match.
    #[error("its response is wrong: the keys of both sides differ, or one side has another NQN for it")]
    WrongResponse,
    /// The host must challenge the controller, and does not.
    #[error("the host does not ask this target to prove itself, which this target requires")]
    NoChallenge,
    /// The host challenges a controller without a key.
    #[error("the host wants this target to prove itself, and it has no controller key for this host")]
    NoControllerKey,
    /// The controller did not respond to the host's challenge.
    #[error("the target did not prove itself: it has no controller key for this host")]
    NoControllerResponse,
    /// The challenge of the host is the controller's.
    #[error("it repeats the challenge that it received")]
    ReflectedChallenge,
    /// No descriptor of DH-HMAC-CHAP.
    #[error("it does not offer DH-HMAC-CHAP")]
    Protocol,
    /// Secure channel concatenation was requested.
    #[error("it requests a secure channel, which is not supported")]
    Concatenation,
    /// No common hash function, or one that was not offered.
    #[error("no hash function that both sides allow")]
    Hash,
    /// No common group, or one that was not offered.
    #[error("no DH group that both sides allow")]
    DhGroup,
    /// A field has an invalid value.
    #[error("invalid field in its message: {0}")]
    Payload(&'static str),
    /// The message does not follow the previous one.
    #[error("unexpected message")]
    Message,
    /// The peer has refused this side.
    #[error("the peer refuses this side: {0}")]
    Peer(AuthFailure),
    /// The peer has refused this side, with an unknown code.
    #[error("the peer refuses this side, with an unknown reason")]
    PeerUnknown,
}

impl Refusal {
    /// Reason code explanation for the peer.
    pub fn code(self) -> AuthFailure {
        match self {
            Refusal::WrongResponse
            | Refusal::NoChallenge
            | Refusal::NoControllerKey
            | Refusal::NoControllerResponse
            | Refusal::ReflectedChallenge
            | Refusal::Peer(_)
            | Refusal::PeerUnknown => AuthFailure::Failed,
            Refusal::Protocol => AuthFailure::ProtocolUnusable,
            Refusal::Concatenation => AuthFailure::ConcatenationMismatch,
            Refusal::Hash => AuthFailure::HashUnusable,
            Refusal::DhGroup => AuthFailure::DhGroupUnusable,
            Refusal::Payload(_) => AuthFailure::IncorrectPayload,
            Refusal::Message => AuthFailure::IncorrectMessage,
        }
    }

    /// The refusal that the peer reports by this code.
    pub(super) fn from_peer(code: u8) -> Refusal {
        AuthFailure::decode(code).map_or(Refusal::PeerUnknown, Refusal::Peer)
    }
}
