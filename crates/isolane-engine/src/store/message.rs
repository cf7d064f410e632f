//! Messages between an engine and its supervisor, one packet each.

use isolane_engine_api::{DecodeError, Decoder, Encoder};

use super::Record;

/// Message of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToSupervisor {
    /// Stores a record with the descriptors of the packet. Answered by [`ToEngine::Stored`] or [`ToEngine::StoreFailed`].
    Put { key: u64, record: Vec<u8> },
    /// Removes a record.
    Remove { key: u64 },
    /// First message: the protocol version ([`LINK_VERSION`]). Its format is the same in every version.
    Hello { version: u32 },
    /// The engine serves clients.
    Ready,
    /// No client has been attached for the idle time.
    Idle,
}

/// Message of the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToEngine {
    /// Restores a record with the descriptors of the packet.
    Restore { key: u64, record: Vec<u8> },
    /// Ends the restored records: the engine must serve. The packet contains the listener and the memory of the
    /// [`watch::Record`](crate::watch::Record).
    Start { version: u32, epoch: u64 },
    /// The record is stored.
    Stored { key: u64 },
    /// The record is not stored, because the supervisor has no descriptors left.
    StoreFailed { key: u64 },
    /// Closes all objects, then ends the engine.
    Shutdown,
    /// Ends the engine as it is; another one continues.
    Exit,
    /// Prints clients and their objects.
    PrintStatus,
}

/// Protocol version. A supervisor starts only engines of the same version.
pub(crate) const LINK_VERSION: u32 = 7;

impl ToSupervisor {
    pub fn encode(&self) -> Vec<u8> {
        let mut sink = Encoder::default();
        match self {
            ToSupervisor::Put { key, record } => keyed(&mut sink, PUT, *key, Some(record)),
            ToSupervisor::Remove { key } => keyed(&mut sink, REMOVE, *key, None),
            ToSupervisor::Hello { version } => {
                sink.u16(HELLO);
                sink.u32(*version);
            }
            ToSupervisor::Ready => sink.u16(READY),
            ToSupervisor::Idle => sink.u16(IDLE),
        }
        sink.into_bytes()
    }

    pub fn decode(bytes: &[u8]) -> Result<ToSupervisor, DecodeError> {
        let mut source = Decoder::new(bytes);
        let message = match source.u16("the kind of message")? {
            PUT => {
                let key = source.u64("the key")?;
                ToSupervisor::Put { key, record: source.bytes("the record", Record::MAX_BYTES)? }
            }
            REMOVE => ToSupervisor::Remove { key: source.u64("the key")? },
            HELLO => ToSupervisor::Hello { version: source.u32("the version")? },
            READY => ToSupervisor::Ready,
            IDLE => ToSupervisor::Idle,
            _ => return Err(DecodeError { what: "the kind of message", offset: 0 }),
        };
        source.end()?;
        Ok(message)
    }
}

impl ToEngine {
    pub fn encode(&self) -> Vec<u8> {
        let mut sink = Encoder::default();
        match self {
            ToEngine::Restore { key, record } => keyed(&mut sink, RESTORE, *key, Some(record)),
            ToEngine::Start { version, epoch } => {
                sink.u16(START);
                sink.u32(*version);
                sink.u64(*epoch);
            }
            ToEngine::Stored { key } => keyed(&mut sink, STORED, *key, None),
            ToEngine::StoreFailed { key } => keyed(&mut sink, STORE_FAILED, *key, None),
            ToEngine::Shutdown => sink.u16(SHUTDOWN),
            ToEngine::Exit => sink.u16(EXIT),
            ToEngine::PrintStatus => sink.u16(PRINT_STATUS),
        }
        sink.into_bytes()
    }

    pub fn decode(bytes: &[u8]) -> Result<ToEngine, DecodeError> {
        let mut source = Decoder::new(bytes);
        let message = match source.u16("the kind of message")? {
            RESTORE => {
                let key = source.u64("the key")?;
                ToEngine::Restore { key, record: source.bytes("the record", Record::MAX_BYTES)? }
            }
            START => ToEngine::Start { version: source.u32("the version")?, epoch: source.u64("the epoch")? },
            STORED => ToEngine::Stored { key: source.u64("the key")? },
            STORE_FAILED => ToEngine::StoreFailed { key: source.u64("the key")? },
            SHUTDOWN => ToEngine::Shutdown,
            EXIT => ToEngine::Exit,
            PRINT_STATUS => ToEngine::PrintStatus,
            _ => return Err(DecodeError { what: "the kind of message", offset: 0 }),
        };
        source.end()?;
        Ok(message)
    }
}

fn keyed(sink: &mut Encoder, kind: u16, key: u64, record: Option<&[u8]>) {
    sink.u16(kind);
    sink.u64(key);
    if let Some(record) = record {
        sink.bytes(record, Record::MAX_BYTES);
    }
}

const PUT: u16 = 1;
const REMOVE: u16 = 2;
const READY: u16 = 3;
const IDLE: u16 = 4;
const HELLO: u16 = 5;
const RESTORE: u16 = 0x81;
const START: u16 = 0x82;
const STORED: u16 = 0x83;
const SHUTDOWN: u16 = 0x84;
const EXIT: u16 = 0x85;
const STORE_FAILED: u16 = 0x86;
const PRINT_STATUS: u16 = 0x87;
