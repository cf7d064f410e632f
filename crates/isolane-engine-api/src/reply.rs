//! Replies of an engine.

use serde::{Deserialize, Serialize};

use super::codec::{self, DecodeError};
use super::{MAX_CORES, MAX_TEXT_BYTES};

/// A reply, or an unsolicited event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The session is open.
    Welcome(Welcome),
    /// The request failed, with the reason. After a refused [`Hello`](super::Hello) the engine closes the connection.
    Refused(String),
    /// The request is complete.
    Ack,
    /// The object is open.
    Opened {
        /// Index of its core.
        core: u32,
        /// Result specific to the kind of object: at most [`MAX_TEXT_BYTES`].
        answer: Vec<u8>,
    },
    /// A closed object has ended, and its memory is the application's again. Unsolicited.
    ObjectClosed {
        /// ID of the object.
        id: u32,
    },
    /// The engine was replaced. Completed requests remain in effect; repeat the others. Unsolicited.
    EngineRestarted {
        /// Epoch of the new engine: the previous epoch plus one.
        epoch: u64,
    },
}

/// Parameters of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Protocol version of the engine.
    pub version: u32,
    /// ID of the session, as in the engine's log.
    pub session: u32,
    /// Number of engines that this supervisor has started.
    pub epoch: u64,
    /// CPUs of the engine's cores: at least one, at most [`MAX_CORES`].
    pub cores: Vec<u32>,
    /// Limits of the session.
    pub limits: SessionLimits,
}

/// Limits of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionLimits {
    /// Size of its memory in bytes.
    pub memory_bytes: u64,
    /// Number of streams.
    pub streams: u32,
    /// Number of volumes.
    pub volumes: u32,
    /// Number of notification queues.
    pub queues: u32,
}

impl Default for SessionLimits {
    fn default() -> SessionLimits {
        SessionLimits { memory_bytes: 1 << 30, streams: 16384, volumes: 64, queues: 64 }
    }
}

impl Reply {
    /// Encodes a packet. The reason of a refusal is truncated between characters.
    pub fn encode(&self, serial: u32) -> Vec<u8> {
        match self {
            Reply::Refused(reason) if reason.len() > MAX_TEXT_BYTES => {
                let fits = (0..=MAX_TEXT_BYTES).rev().find(|end| reason.is_char_boundary(*end));
                Reply::Refused(reason[..fits.unwrap_or(0)].to_owned()).encode(serial)
            }
            reply => codec::encode(&(serial, reply)),
        }
    }

    /// Decodes a packet into its serial number and reply.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<(u32, Reply), DecodeError> {
        match codec::decode(bytes)? {
            (_, Reply::Welcome(welcome)) if !(1..=MAX_CORES).contains(&welcome.cores.len()) => {
                Err(DecodeError::new(format!("an engine of {} cores", welcome.cores.len())))
            }
            (_, Reply::Refused(reason)) if reason.len() > MAX_TEXT_BYTES => {
                Err(DecodeError::new(format!("a reason of {} bytes", reason.len())))
            }
            decoded => Ok(decoded),
        }
    }
}
