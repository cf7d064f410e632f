//! Requests of an application.

use serde::{Deserialize, Serialize};

use super::MAX_MESSAGE_BYTES;
use super::codec::{self, DecodeError};
use crate::layout::{DoorbellLayout, NotificationLayout};

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// First request of every connection, with two descriptors: the memfd of the session, and the write end of a pipe.
    /// The engine and its supervisor close the pipe once they hold no object of the session, so the application knows
    /// when only it uses its sockets. The first variant, whose encoding is the same in every version.
    Hello(Hello),
    /// Opens the doorbells of one core, with the engine's end of their bell.
    OpenDoorbells(OpenDoorbells),
    /// Opens a notification queue, with the engine's end of its bell.
    OpenNotificationQueue(OpenNotificationQueue),
    /// Opens an object, with the descriptors of its kind: at most [`MAX_DESCRIPTORS`](super::MAX_DESCRIPTORS).
    OpenObject(OpenObject),
    /// Releases or closes an object, or closes a queue.
    ///
    /// A release is acknowledged once the engine has stopped using the object, even if it did not exist. A close is
    /// acknowledged immediately, and [`Reply::ObjectClosed`](super::Reply::ObjectClosed) follows once the engine has sent
    /// all data; until then the engine uses the object's memory. A queue is closed even if objects still refer to it:
    /// they send no more notifications, and `ObjectClosed` precedes the acknowledgment.
    CloseObject {
        /// ID of the object or queue.
        id: u32,
        /// How to close it.
        how: CloseMode,
    },
    /// Abandons closed streams whose peers have acknowledged nothing for long, because the session's memory is used up.
    Relieve,
}

/// See [`Request::Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Protocol version: [`VERSION`](super::VERSION).
    pub version: u32,
}

/// See [`Request::OpenDoorbells`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenDoorbells {
    /// Index of the core.
    pub core: u32,
    /// Location in the memory.
    pub layout: DoorbellLayout,
}

/// See [`Request::OpenNotificationQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenNotificationQueue {
    /// ID of the queue, chosen by the application.
    pub queue: u32,
    /// Location in the memory.
    pub layout: NotificationLayout,
}

/// See [`Request::OpenObject`]. The reply is [`Reply::Opened`](super::Reply::Opened).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenObject {
    /// ID of the object, chosen by the application and unique in the session.
    pub id: u32,
    /// Core to use, by index in [`Welcome::cores`](super::Welcome::cores); `None` lets the engine choose.
    pub core: Option<u32>,
    /// Queue for its notifications.
    pub queue: Option<u32>,
    /// Kind and parameters.
    pub object: Object,
}

/// Kind and parameters of an object. The kind defines the parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// ID of the kind ([`kind`](crate::kind)).
    pub kind: u16,
    /// Encoded parameters: at most [`Object::MAX_PARAMS_BYTES`].
    pub params: Vec<u8>,
}

/// How to close an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CloseMode {
    /// The application takes the object back as it is: a stream's socket continues without the engine.
    Release,
    /// The engine sends all written data, then closes the object.
    Close,
}

impl Request {
    /// Encodes a packet. The reply has the same serial number.
    pub fn encode(&self, serial: u32) -> Vec<u8> {
        codec::encode(&(serial, self))
    }

    /// Decodes a packet into its serial number and request.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<(u32, Request), DecodeError> {
        match codec::decode(bytes)? {
            (_, Request::OpenObject(open)) if open.object.params.len() > Object::MAX_PARAMS_BYTES => {
                Err(DecodeError::new(format!("{} bytes of parameters", open.object.params.len())))
            }
            decoded => Ok(decoded),
        }
    }

    /// Returns the number of descriptors sent with the request; `None` if the kind of an object determines it.
    pub fn descriptors(&self) -> Option<usize> {
        match self {
            Request::Hello(_) => Some(2),
            Request::OpenDoorbells(_) | Request::OpenNotificationQueue(_) => Some(1),
            Request::OpenObject(_) => None,
            Request::CloseObject { .. } | Request::Relieve => Some(0),
        }
    }
}

impl Object {
    /// Maximum length of the parameters in bytes.
    pub const MAX_PARAMS_BYTES: usize = 1600;
}

const _: () = assert!(Object::MAX_PARAMS_BYTES + 64 < MAX_MESSAGE_BYTES);
