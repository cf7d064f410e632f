//! What an engine and its supervisor say to each other: packets as of [`control`](isolane_attach::control).

use isolane_attach::control::{Malformed, Sink, Source};

use super::Record;

/// What the engine says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToSupervisor {
    /// Keep this, and what comes with it. Answered by [`ToEngine::Deposited`].
    Deposit { key: u64, record: Vec<u8> },
    /// Keep that no more.
    Withdraw { key: u64 },
    /// First of all: what it speaks ([`LINK_VERSION`]). This message is the same in every version.
    Here { version: u32 },
    /// It serves.
    Ready,
    /// Nobody has been attached for as long as an engine may wait for somebody.
    Idle,
}

/// What the supervisor says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToEngine {
    /// This was kept, with what comes with it.
    Kept { key: u64, record: Vec<u8> },
    /// That was all: serve. The listener comes with it, and the memory for the [record](crate::watch::Record) of
    /// sessions that threads work for.
    Go { version: u32, epoch: u64 },
    /// The record is kept.
    Deposited { key: u64 },
    /// It is not, because there is no descriptor left for what came with it.
    Unkept { key: u64 },
    /// End in order.
    Stop,
    /// End as you are: another goes on.
    Halt,
    /// Print who is attached, and what they have.
    Show,
}

/// What is spoken here. A supervisor and the engines that it starts speak the same, or there is no engine.
pub(crate) const LINK_VERSION: u32 = 6;

impl ToSupervisor {
    pub fn encode(&self) -> Vec<u8> {
        let mut sink = Sink::default();
        match self {
            ToSupervisor::Deposit { key, record } => keyed(&mut sink, DEPOSIT, *key, Some(record)),
            ToSupervisor::Withdraw { key } => keyed(&mut sink, WITHDRAW, *key, None),
            ToSupervisor::Here { version } => {
                sink.u16(HERE);
                sink.u32(*version);
            }
            ToSupervisor::Ready => sink.u16(READY),
            ToSupervisor::Idle => sink.u16(IDLE),
        }
        sink.into_bytes()
    }

    pub fn decode(bytes: &[u8]) -> Result<ToSupervisor, Malformed> {
        let mut source = Source::new(bytes);
        let message = match source.u16("the kind of message")? {
            DEPOSIT => {
                let key = source.u64("the key")?;
                ToSupervisor::Deposit { key, record: source.bytes("the record", Record::BYTES_MAX)? }
            }
            WITHDRAW => ToSupervisor::Withdraw { key: source.u64("the key")? },
            HERE => ToSupervisor::Here { version: source.u32("the version")? },
            READY => ToSupervisor::Ready,
            IDLE => ToSupervisor::Idle,
            _ => return Err(Malformed { what: "the kind of message", offset: 0 }),
        };
        source.end()?;
        Ok(message)
    }
}

impl ToEngine {
    pub fn encode(&self) -> Vec<u8> {
        let mut sink = Sink::default();
        match self {
            ToEngine::Kept { key, record } => keyed(&mut sink, KEPT, *key, Some(record)),
            ToEngine::Go { version, epoch } => {
                sink.u16(GO);
                sink.u32(*version);
                sink.u64(*epoch);
            }
            ToEngine::Deposited { key } => keyed(&mut sink, DEPOSITED, *key, None),
            ToEngine::Unkept { key } => keyed(&mut sink, UNKEPT, *key, None),
            ToEngine::Stop => sink.u16(STOP),
            ToEngine::Halt => sink.u16(HALT),
            ToEngine::Show => sink.u16(SHOW),
        }
        sink.into_bytes()
    }

    pub fn decode(bytes: &[u8]) -> Result<ToEngine, Malformed> {
        let mut source = Source::new(bytes);
        let message = match source.u16("the kind of message")? {
            KEPT => {
                let key = source.u64("the key")?;
                ToEngine::Kept { key, record: source.bytes("the record", Record::BYTES_MAX)? }
            }
            GO => ToEngine::Go { version: source.u32("the version")?, epoch: source.u64("the epoch")? },
            DEPOSITED => ToEngine::Deposited { key: source.u64("the key")? },
            UNKEPT => ToEngine::Unkept { key: source.u64("the key")? },
            STOP => ToEngine::Stop,
            HALT => ToEngine::Halt,
            SHOW => ToEngine::Show,
            _ => return Err(Malformed { what: "the kind of message", offset: 0 }),
        };
        source.end()?;
        Ok(message)
    }
}

fn keyed(sink: &mut Sink, kind: u16, key: u64, record: Option<&[u8]>) {
    sink.u16(kind);
    sink.u64(key);
    if let Some(record) = record {
        sink.bytes(record, Record::BYTES_MAX);
    }
}

const DEPOSIT: u16 = 1;
const WITHDRAW: u16 = 2;
const READY: u16 = 3;
const IDLE: u16 = 4;
const HERE: u16 = 5;
const KEPT: u16 = 0x81;
const GO: u16 = 0x82;
const DEPOSITED: u16 = 0x83;
const STOP: u16 = 0x84;
const HALT: u16 = 0x85;
const UNKEPT: u16 = 0x86;
const SHOW: u16 = 0x87;
