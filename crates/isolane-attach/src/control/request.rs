//! What an application asks its engine for.

use super::fields::{Malformed, Sink, Source};
use super::object::{End, Open};
use crate::layout::{PortPlace, QueuePlace};

/// A request and its serial number, as it was decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Repeated in the answer.
    pub serial: u32,
    /// What is asked for.
    pub request: Request,
}

/// What can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first of every connection. With it come the memfd of the session, and the end that writes of a pipe:
    /// the engine, and whoever keeps the session for it, closes that once nothing of the session is left, so that
    /// the application hears when nobody else works on its sockets any more.
    Hello(Hello),
    /// A port on one of the engine's cores. The engine's end of its bell comes with it.
    OpenPort(OpenPort),
    /// A notification queue. The engine's end of its bell comes with it.
    OpenQueue(OpenQueue),
    /// A stream or a volume; what comes with it depends on which.
    Open(Open),
    /// No more of an object. A release is answered with `Done` when that is so, also if there was none. A close
    /// is answered at once, and [`Reply::Ended`](super::Reply::Ended) follows when the object has ended, for what
    /// was written is still sent: until then its places are the engine's. A queue is closed likewise, even if
    /// objects still name it: they tell nobody any more, and its end comes before the answer.
    End {
        /// Its id.
        id: u32,
        /// How it is to end.
        how: End,
    },
    /// The session's memory is used up: closed streams whose peers have taken nothing for long are to be abandoned.
    Relieve,
}

/// Who wants a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What it speaks: [`VERSION`](super::VERSION).
    pub version: u32,
}

/// A port: the doorbells of one session on one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenPort {
    /// Which core, by index.
    pub core: u32,
    /// Where it is.
    pub place: PortPlace,
}

/// A queue: what one thread of the application is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenQueue {
    /// The application's name for it.
    pub queue: u32,
    /// Where it is.
    pub place: QueuePlace,
}

impl Request {
    /// As bytes of a packet.
    pub fn encode(&self, serial: u32) -> Vec<u8> {
        let mut sink = Sink::default();
        sink.u16(self.kind());
        sink.u32(serial);
        match self {
            Request::Hello(hello) => {
                sink.u32(MAGIC);
                sink.u32(hello.version);
            }
            Request::OpenPort(port) => {
                sink.u32(port.core);
                sink.u64(port.place.offset);
                sink.u32(port.place.entries);
            }
            Request::OpenQueue(OpenQueue { queue, place }) => {
                sink.u32(*queue);
                sink.u64(place.offset);
                sink.u32(place.cores);
                sink.u32(place.entries);
            }
            Request::Open(open) => open.encode(&mut sink),
            Request::End { id, how } => {
                sink.u32(*id);
                how.encode(&mut sink);
            }
            Request::Relieve => {}
        }
        sink.into_bytes()
    }

    /// From the bytes of a packet.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Asked, Malformed> {
        let mut source = Source::new(bytes);
        let kind = source.u16("the kind of message")?;
        let serial = source.u32("the serial number")?;
        let request = match kind {
            HELLO => Request::Hello(Hello::decode(&mut source)?),
            OPEN_PORT => Request::OpenPort(OpenPort {
                core: source.u32("the port's core")?,
                place: PortPlace {
                    offset: source.u64("the port's place")?,
                    entries: source.u32("the port's entries")?,
                },
            }),
            OPEN_QUEUE => Request::OpenQueue(OpenQueue {
                queue: source.u32("the queue's id")?,
                place: QueuePlace {
                    offset: source.u64("the queue's place")?,
                    cores: source.u32("the queue's cores")?,
                    entries: source.u32("the queue's entries")?,
                },
            }),
            OPEN => Request::Open(Open::decode(&mut source)?),
            END => {
                Request::End { id: source.u32("the id of what is to end")?, how: End::decode(&mut source)? }
            }
            RELIEVE => Request::Relieve,
            _ => return Err(Malformed { what: "the kind of message", offset: 0 }),
        };
        source.end()?;
        Ok(Asked { serial, request })
    }

    /// Descriptors that must come with it, if that is certain before looking closer.
    pub fn descriptors(&self) -> usize {
        match self {
            Request::Hello(_) => 2,
            Request::OpenPort(_) | Request::OpenQueue(_) => 1,
            Request::Open(open) => matches!(open.object, super::Object::Stream(_)).into(),
            Request::End { .. } | Request::Relieve => 0,
        }
    }

    fn kind(&self) -> u16 {
        match self {
            Request::Hello(_) => HELLO,
            Request::OpenPort(_) => OPEN_PORT,
            Request::OpenQueue(_) => OPEN_QUEUE,
            Request::Open(_) => OPEN,
            Request::End { .. } => END,
            Request::Relieve => RELIEVE,
        }
    }
}

impl Hello {
    fn decode(source: &mut Source<'_>) -> Result<Hello, Malformed> {
        let malformed = source.malformed("the word that an application of Isolane begins with");
        if source.u32("the first word")? != MAGIC {
            return Err(malformed);
        }
        Ok(Hello { version: source.u32("the version")? })
    }
}

const HELLO: u16 = 1;
const OPEN_PORT: u16 = 2;
const OPEN_QUEUE: u16 = 3;
const OPEN: u16 = 5;
const END: u16 = 6;
const RELIEVE: u16 = 7;
/// "ISOL".
const MAGIC: u32 = 0x4c4f_5349;
