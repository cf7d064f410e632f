//! Replies of an engine.

use super::codec::{DecodeError, Decoder, Encoder};
use super::{MAX_CORES, MAX_TEXT_BYTES};

/// A reply, or an unsolicited event.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Encodes a packet.
    pub fn encode(&self, serial: u32) -> Vec<u8> {
        let mut encoder = Encoder::default();
        encoder.u16(self.kind());
        encoder.u32(serial);
        match self {
            Reply::Welcome(welcome) => welcome.encode(&mut encoder),
            Reply::Refused(reason) => encoder.text(reason, MAX_TEXT_BYTES),
            Reply::Ack => {}
            Reply::Opened { core, answer } => {
                encoder.u32(*core);
                encoder.bytes(answer, MAX_TEXT_BYTES);
            }
            Reply::ObjectClosed { id } => encoder.u32(*id),
            Reply::EngineRestarted { epoch } => encoder.u64(*epoch),
        }
        encoder.into_bytes()
    }

    /// Decodes a packet into its serial number and reply.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<(u32, Reply), DecodeError> {
        let mut decoder = Decoder::new(bytes);
        let kind = decoder.u16("message kind")?;
        let serial = decoder.u32("serial number")?;
        let reply = match kind {
            WELCOME => Reply::Welcome(Welcome::decode(&mut decoder)?),
            REFUSED => Reply::Refused(decoder.text("reason", MAX_TEXT_BYTES)?),
            ACK => Reply::Ack,
            OPENED => Reply::Opened {
                core: decoder.u32("core of the object")?,
                answer: decoder.bytes("result of the object", MAX_TEXT_BYTES)?,
            },
            OBJECT_CLOSED => Reply::ObjectClosed { id: decoder.u32("object ID")? },
            ENGINE_RESTARTED => Reply::EngineRestarted { epoch: decoder.u64("epoch")? },
            _ => return Err(DecodeError { what: "message kind", offset: 0 }),
        };
        decoder.end()?;
        Ok((serial, reply))
    }

    fn kind(&self) -> u16 {
        match self {
            Reply::Welcome(_) => WELCOME,
            Reply::Refused(_) => REFUSED,
            Reply::Ack => ACK,
            Reply::Opened { .. } => OPENED,
            Reply::ObjectClosed { .. } => OBJECT_CLOSED,
            Reply::EngineRestarted { .. } => ENGINE_RESTARTED,
        }
    }
}

impl Welcome {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.u32(self.version);
        encoder.u32(self.session);
        encoder.u64(self.epoch);
        encoder.u64(self.limits.memory_bytes);
        encoder.u32(self.limits.streams);
        encoder.u32(self.limits.volumes);
        encoder.u32(self.limits.queues);
        assert!(self.cores.len() <= MAX_CORES, "an engine of {} cores", self.cores.len());
        encoder.u16(self.cores.len() as u16);
        self.cores.iter().for_each(|core| encoder.u32(*core));
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Welcome, DecodeError> {
        let (version, session) = (decoder.u32("version")?, decoder.u32("session")?);
        let epoch = decoder.u64("epoch")?;
        let limits = SessionLimits {
            memory_bytes: decoder.u64("memory limit")?,
            streams: decoder.u32("stream limit")?,
            volumes: decoder.u32("volume limit")?,
            queues: decoder.u32("queue limit")?,
        };
        let malformed = decoder.malformed("number of cores");
        let count = usize::from(decoder.u16("number of cores")?);
        if count == 0 || count > MAX_CORES {
            return Err(malformed);
        }
        let cores = (0..count).map(|_| decoder.u32("core")).collect::<Result<_, _>>()?;
        Ok(Welcome { version, session, epoch, cores, limits })
    }
}

const WELCOME: u16 = 0x81;
const REFUSED: u16 = 0x82;
const ACK: u16 = 0x83;
const OPENED: u16 = 0x84;
const OBJECT_CLOSED: u16 = 0x85;
const ENGINE_RESTARTED: u16 = 0x86;
