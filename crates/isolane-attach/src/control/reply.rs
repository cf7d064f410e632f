//! What an engine answers.

use super::fields::{Malformed, Sink, Source};
use super::{CORES_MAX, TEXT_BYTES_MAX};

/// What an engine says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// There is a session.
    Welcome(Welcome),
    /// It is not done, and why. After a refused hello the engine closes the connection.
    Refused(String),
    /// It is done.
    Done,
    /// The object is there.
    Opened {
        /// On which core, by index.
        core: u32,
        /// What its kind says about it, at most [`TEXT_BYTES_MAX`] bytes.
        answer: Vec<u8>,
    },
    /// An object that was closed has ended: its places are the application's again. Unasked.
    Ended {
        /// Its id.
        id: u32,
    },
    /// The engine that was asked is gone, this is the next. All that was answered holds, what was not is to be
    /// asked again.
    Restarted {
        /// Which engine this is: one more than the last.
        epoch: u64,
    },
}

/// What an application is told about its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// What the engine speaks.
    pub version: u32,
    /// The engine's name for the session, as in its log.
    pub session: u32,
    /// Which engine this is since its supervisor began.
    pub epoch: u64,
    /// Numbers of the cores it runs on: at least one, at most [`CORES_MAX`].
    pub cores: Vec<u32>,
    /// How much the session may have.
    pub limits: Limits,
}

/// How much one session may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Streams.
    pub streams: u32,
    /// Volumes.
    pub volumes: u32,
    /// Notification queues.
    pub queues: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { memory_bytes: 1 << 30, streams: 16384, volumes: 64, queues: 64 }
    }
}

impl Reply {
    /// As bytes of a packet.
    pub fn encode(&self, serial: u32) -> Vec<u8> {
        let mut sink = Sink::default();
        sink.u16(self.kind());
        sink.u32(serial);
        match self {
            Reply::Welcome(welcome) => welcome.encode(&mut sink),
            Reply::Refused(why) => sink.text(why, TEXT_BYTES_MAX),
            Reply::Done => {}
            Reply::Opened { core, answer } => {
                sink.u32(*core);
                sink.bytes(answer, TEXT_BYTES_MAX);
            }
            Reply::Ended { id } => sink.u32(*id),
            Reply::Restarted { epoch } => sink.u64(*epoch),
        }
        sink.into_bytes()
    }

    /// From the bytes of a packet: its serial number and what it says.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<(u32, Reply), Malformed> {
        let mut source = Source::new(bytes);
        let kind = source.u16("the kind of message")?;
        let serial = source.u32("the serial number")?;
        let reply = match kind {
            WELCOME => Reply::Welcome(Welcome::decode(&mut source)?),
            REFUSED => Reply::Refused(source.text("the reason", TEXT_BYTES_MAX)?),
            DONE => Reply::Done,
            OPENED => Reply::Opened {
                core: source.u32("the object's core")?,
                answer: source.bytes("the object's answer", TEXT_BYTES_MAX)?,
            },
            ENDED => Reply::Ended { id: source.u32("the object's id")? },
            RESTARTED => Reply::Restarted { epoch: source.u64("the epoch")? },
            _ => return Err(Malformed { what: "the kind of message", offset: 0 }),
        };
        source.end()?;
        Ok((serial, reply))
    }

    fn kind(&self) -> u16 {
        match self {
            Reply::Welcome(_) => WELCOME,
            Reply::Refused(_) => REFUSED,
            Reply::Done => DONE,
            Reply::Opened { .. } => OPENED,
            Reply::Ended { .. } => ENDED,
            Reply::Restarted { .. } => RESTARTED,
        }
    }
}

impl Welcome {
    fn encode(&self, sink: &mut Sink) {
        sink.u32(self.version);
        sink.u32(self.session);
        sink.u64(self.epoch);
        sink.u64(self.limits.memory_bytes);
        sink.u32(self.limits.streams);
        sink.u32(self.limits.volumes);
        sink.u32(self.limits.queues);
        assert!(self.cores.len() <= CORES_MAX, "an engine of {} cores", self.cores.len());
        sink.u16(self.cores.len() as u16);
        self.cores.iter().for_each(|core| sink.u32(*core));
    }

    fn decode(source: &mut Source<'_>) -> Result<Welcome, Malformed> {
        let (version, session) = (source.u32("the version")?, source.u32("the session")?);
        let epoch = source.u64("the epoch")?;
        let limits = Limits {
            memory_bytes: source.u64("the limit of memory")?,
            streams: source.u32("the limit of streams")?,
            volumes: source.u32("the limit of volumes")?,
            queues: source.u32("the limit of queues")?,
        };
        let malformed = source.malformed("how many cores there are");
        let count = usize::from(source.u16("how many cores there are")?);
        if count == 0 || count > CORES_MAX {
            return Err(malformed);
        }
        let cores = (0..count).map(|_| source.u32("a core")).collect::<Result<_, _>>()?;
        Ok(Welcome { version, session, epoch, cores, limits })
    }
}

const WELCOME: u16 = 0x81;
const REFUSED: u16 = 0x82;
const DONE: u16 = 0x83;
const OPENED: u16 = 0x84;
const ENDED: u16 = 0x85;
const RESTARTED: u16 = 0x86;
