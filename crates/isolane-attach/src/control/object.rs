//! What an application has opened in its engine: streams and volumes.

use super::fields::{Malformed, Sink, Source};
use super::{BYTES_MAX, TEXT_BYTES_MAX};

/// Asks for an object. Answered by [`Reply::Opened`](super::Reply::Opened).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The application's name for it: no other object of the session has it.
    pub id: u32,
    /// On which of the engine's cores, by index in [`Welcome::cores`](super::Welcome::cores); else the engine
    /// chooses.
    pub core: Option<u32>,
    /// The notification queue that hears of it.
    pub queue: Option<u32>,
    /// What it is.
    pub object: Object,
}

/// What can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A TCP connection. Its socket comes with the message.
    Stream(StreamPlace),
    /// A volume that the engine connects to, or is connected to already.
    Volume {
        /// Its URI: at most [`TEXT_BYTES_MAX`].
        uri: String,
        /// Where its rings are and how they are used, as `layout` and the volume service have it; at most
        /// [`Object::DETAILS_BYTES_MAX`].
        details: Vec<u8>,
    },
}

/// Where a stream is in the session's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPlace {
    /// Bytes before its block ([`layout::stream`](crate::layout::stream)).
    pub block: u64,
    /// Bytes before the ring of what was received, a multiple of the page.
    pub rx: u64,
    /// What that ring holds, in bytes.
    pub rx_capacity: u64,
    /// Bytes before the ring of what is to be sent, a multiple of the page.
    pub tx: u64,
    /// What that ring holds, in bytes.
    pub tx_capacity: u64,
}

/// How the application is done with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It takes it back, as it is: a stream's socket goes on without the engine.
    Release,
    /// It closes it. What it has written is still sent.
    Close,
}

impl Object {
    /// Bytes of the longest details.
    pub const DETAILS_BYTES_MAX: usize = 512;
}

impl Open {
    pub(super) fn encode(&self, sink: &mut Sink) {
        sink.u32(self.id);
        sink.optional(self.core);
        sink.optional(self.queue);
        match &self.object {
            Object::Stream(place) => {
                sink.u16(STREAM);
                place.words().into_iter().for_each(|word| sink.u64(word));
            }
            Object::Volume { uri, details } => {
                sink.u16(VOLUME);
                sink.bytes(uri.as_bytes(), TEXT_BYTES_MAX);
                sink.bytes(details, Object::DETAILS_BYTES_MAX);
            }
        }
    }

    pub(super) fn decode(source: &mut Source<'_>) -> Result<Open, Malformed> {
        Ok(Open {
            id: source.u32("the object's id")?,
            core: source.optional("the object's core")?,
            queue: source.optional("the object's queue")?,
            object: Object::decode(source)?,
        })
    }
}

impl Object {
    fn decode(source: &mut Source<'_>) -> Result<Object, Malformed> {
        let malformed = source.malformed("the kind of object");
        match source.u16("the kind of object")? {
            STREAM => StreamPlace::decode(source).map(Object::Stream),
            VOLUME => Ok(Object::Volume {
                uri: source.text("the volume's URI", TEXT_BYTES_MAX)?,
                details: source.bytes("the volume's details", Object::DETAILS_BYTES_MAX)?,
            }),
            _ => Err(malformed),
        }
    }
}

impl StreamPlace {
    fn words(self) -> [u64; 5] {
        [self.block, self.rx, self.rx_capacity, self.tx, self.tx_capacity]
    }

    fn decode(source: &mut Source<'_>) -> Result<StreamPlace, Malformed> {
        Ok(StreamPlace {
            block: source.u64("the stream's block")?,
            rx: source.u64("the stream's receive ring")?,
            rx_capacity: source.u64("the capacity of the stream's receive ring")?,
            tx: source.u64("the stream's transmit ring")?,
            tx_capacity: source.u64("the capacity of the stream's transmit ring")?,
        })
    }
}

impl End {
    pub(super) fn encode(self, sink: &mut Sink) {
        sink.u16(match self {
            End::Release => RELEASE,
            End::Close => CLOSE,
        });
    }

    pub(super) fn decode(source: &mut Source<'_>) -> Result<End, Malformed> {
        let malformed = source.malformed("how an object ends");
        match source.u16("how an object ends")? {
            RELEASE => Ok(End::Release),
            CLOSE => Ok(End::Close),
            _ => Err(malformed),
        }
    }
}

const STREAM: u16 = 1;
const VOLUME: u16 = 2;
const RELEASE: u16 = 1;
const CLOSE: u16 = 2;

const _: () = assert!(TEXT_BYTES_MAX + Object::DETAILS_BYTES_MAX + 64 < BYTES_MAX);
