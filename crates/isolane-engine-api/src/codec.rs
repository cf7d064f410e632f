//! Encoding of messages, records, and the parameters of objects: postcard.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A malformed message, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed control message: {0}")]
pub struct DecodeError(String);

impl DecodeError {
    /// Creates the error of a message with an invalid field.
    pub fn new(reason: impl ToString) -> DecodeError {
        DecodeError(reason.to_string())
    }
}

/// Encodes a value.
///
/// # Panics
/// If the value has a sequence of unknown length.
pub fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).expect("a value of known length")
}

/// Decodes a value that occupies all of `bytes`. The memory that this allocates is in proportion to them.
///
/// # Errors
/// [`DecodeError`].
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    match postcard::take_from_bytes(bytes).map_err(DecodeError::new)? {
        (value, []) => Ok(value),
        (_, excess) => Err(DecodeError::new(format!("{} excess bytes", excess.len()))),
    }
}
