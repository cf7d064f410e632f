//! In-band authentication: Authentication Send and Receive, and the messages of DH-HMAC-CHAP (Base
//! 2.2 §6.1, §6.2, §8.3.4).
//!
//! A message has a header, which is a structure here, and values of variable length after it. Its first
//! two bytes, AUTH_TYPE and AUTH_ID, name it.

mod codes;
mod command;
mod message;
#[cfg(test)]
mod tests;

pub use codes::{AuthFailure, DhGroup, Hash};
pub use command::{AuthenticationReceiveCommand, AuthenticationSendCommand, MAX_MESSAGE_BYTES};
pub use message::{
    Challenge, DHCHAP_PROTOCOL, Failure, MessageHeader, MessageId, Negotiate, ProtocolDescriptor, Reply,
    Success1, Success2,
};
