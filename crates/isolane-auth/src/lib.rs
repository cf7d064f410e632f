//! Keys and cryptography of DH-HMAC-CHAP, the authentication of NVMe over Fabrics (Base 2.2 §8.3.4).
//!
//! * [`Key`]: a secret in its text form `DHHC-1:…:`; [`KeyFile`] reads it from a file of its owner only.
//! * [`Responder`]: computes and compares the responses to challenges.
//! * [`Exponent`], [`SharedSecret`]: the Diffie-Hellman exchange, in constant time.
//! * [`MacKey`]: authenticates messages of other protocols by a key.
//! * [`Nonces`]: the random values of one transaction.
//!
//! The messages are in `isolane-wire`, the state machines of both sides in `isolane-proto`.
//!
//! Invariant: no secret is in `Debug`, `Display`, or an error, and its memory is zeroed when it is dropped.
#![forbid(unsafe_code)]

mod dh;
mod digest;
mod ffdhe;
mod key;
mod key_file;
mod mac;
mod nonces;
mod response;

pub use dh::{Exponent, SharedSecret, UnusableDhValue};
pub use digest::Digest;
pub use key::{Key, KeyError, KeyTransform};
pub use key_file::{KeyFile, KeyFileError};
pub use mac::MacKey;
pub use nonces::{Nonces, RandomError};
pub use response::{Parties, Responder, Role, Transaction};
