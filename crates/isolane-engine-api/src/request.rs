//! Requests of an application.

use super::MAX_MESSAGE_BYTES;
use super::codec::{DecodeError, Decoder, Encoder};
use crate::layout::{DoorbellLayout, NotificationLayout};

/// A decoded request and its serial number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Serial number, repeated in the reply.
    pub serial: u32,
    /// The request.
    pub request: Request,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// First request of every connection, with two descriptors: the memfd of the session, and the write end of a pipe.
    /// The engine and its supervisor close the pipe once they hold no object of the session, so the application knows
    /// when only it uses its sockets.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Protocol version: [`VERSION`](super::VERSION).
    pub version: u32,
}

/// See [`Request::OpenDoorbells`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenDoorbells {
    /// Index of the core.
    pub core: u32,
    /// Location in the memory.
    pub layout: DoorbellLayout,
}

/// See [`Request::OpenNotificationQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenNotificationQueue {
    /// ID of the queue, chosen by the application.
    pub queue: u32,
    /// Location in the memory.
    pub layout: NotificationLayout,
}

/// See [`Request::OpenObject`]. The reply is [`Reply::Opened`](super::Reply::Opened).
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// Kind and parameters of an object. The codec of the parameters belongs to the kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// ID of the kind ([`kind`](crate::kind)).
    pub kind: u16,
    /// Encoded parameters: at most [`Object::MAX_PARAMS_BYTES`].
    pub params: Vec<u8>,
}

/// How to close an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseMode {
    /// The application takes the object back as it is: a stream's socket continues without the engine.
    Release,
    /// The engine sends all written data, then closes the object.
    Close,
}

impl Request {
    /// Encodes a packet.
    pub fn encode(&self, serial: u32) -> Vec<u8> {
        let mut encoder = Encoder::default();
        encoder.u16(self.kind());
        encoder.u32(serial);
        match self {
            Request::Hello(hello) => {
                encoder.u32(MAGIC);
                encoder.u32(hello.version);
            }
            Request::OpenDoorbells(OpenDoorbells { core, layout }) => {
                encoder.u32(*core);
                encoder.u64(layout.offset);
                encoder.u32(layout.entries);
            }
            Request::OpenNotificationQueue(OpenNotificationQueue { queue, layout }) => {
                encoder.u32(*queue);
                encoder.u64(layout.offset);
                encoder.u32(layout.cores);
                encoder.u32(layout.entries);
            }
            Request::OpenObject(open) => open.encode(&mut encoder),
            Request::CloseObject { id, how } => {
                encoder.u32(*id);
                encoder.u16(match how {
                    CloseMode::Release => RELEASE,
                    CloseMode::Close => CLOSE,
                });
            }
            Request::Relieve => {}
        }
        encoder.into_bytes()
    }

    /// Decodes a packet.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Envelope, DecodeError> {
        let mut decoder = Decoder::new(bytes);
        let kind = decoder.u16("message kind")?;
        let serial = decoder.u32("serial number")?;
        let request = match kind {
            HELLO => Request::Hello(Hello::decode(&mut decoder)?),
            OPEN_DOORBELLS => Request::OpenDoorbells(OpenDoorbells {
                core: decoder.u32("core of the doorbells")?,
                layout: DoorbellLayout {
                    offset: decoder.u64("offset of the doorbells")?,
                    entries: decoder.u32("number of doorbells")?,
                },
            }),
            OPEN_QUEUE => Request::OpenNotificationQueue(OpenNotificationQueue {
                queue: decoder.u32("queue ID")?,
                layout: NotificationLayout {
                    offset: decoder.u64("offset of the queue")?,
                    cores: decoder.u32("cores of the queue")?,
                    entries: decoder.u32("entries of the queue")?,
                },
            }),
            OPEN => Request::OpenObject(OpenObject::decode(&mut decoder)?),
            CLOSE_OBJECT => Request::CloseObject {
                id: decoder.u32("ID to close")?,
                how: CloseMode::decode(&mut decoder)?,
            },
            RELIEVE => Request::Relieve,
            _ => return Err(DecodeError { what: "message kind", offset: 0 }),
        };
        decoder.end()?;
        Ok(Envelope { serial, request })
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

    fn kind(&self) -> u16 {
        match self {
            Request::Hello(_) => HELLO,
            Request::OpenDoorbells(_) => OPEN_DOORBELLS,
            Request::OpenNotificationQueue(_) => OPEN_QUEUE,
            Request::OpenObject(_) => OPEN,
            Request::CloseObject { .. } => CLOSE_OBJECT,
            Request::Relieve => RELIEVE,
        }
    }
}

impl Hello {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Hello, DecodeError> {
        let malformed = decoder.malformed("magic number of an Isolane application");
        if decoder.u32("magic number")? != MAGIC {
            return Err(malformed);
        }
        Ok(Hello { version: decoder.u32("version")? })
    }
}

impl OpenObject {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.u32(self.id);
        encoder.optional(self.core);
        encoder.optional(self.queue);
        encoder.u16(self.object.kind);
        encoder.bytes(&self.object.params, Object::MAX_PARAMS_BYTES);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<OpenObject, DecodeError> {
        Ok(OpenObject {
            id: decoder.u32("object ID")?,
            core: decoder.optional("core of the object")?,
            queue: decoder.optional("queue of the object")?,
            object: Object {
                kind: decoder.u16("object kind")?,
                params: decoder.bytes("parameters of the object", Object::MAX_PARAMS_BYTES)?,
            },
        })
    }
}

impl Object {
    /// Maximum length of the parameters in bytes.
    pub const MAX_PARAMS_BYTES: usize = 1600;
}

impl CloseMode {
    fn decode(decoder: &mut Decoder<'_>) -> Result<CloseMode, DecodeError> {
        let malformed = decoder.malformed("close mode");
        match decoder.u16("close mode")? {
            RELEASE => Ok(CloseMode::Release),
            CLOSE => Ok(CloseMode::Close),
            _ => Err(malformed),
        }
    }
}

const HELLO: u16 = 1;
const OPEN_DOORBELLS: u16 = 2;
const OPEN_QUEUE: u16 = 3;
const OPEN: u16 = 5;
const CLOSE_OBJECT: u16 = 6;
const RELIEVE: u16 = 7;
/// "ISOL".
const MAGIC: u32 = 0x4c4f_5349;
const RELEASE: u16 = 1;
const CLOSE: u16 = 2;

const _: () = assert!(Object::MAX_PARAMS_BYTES + 64 < MAX_MESSAGE_BYTES);
