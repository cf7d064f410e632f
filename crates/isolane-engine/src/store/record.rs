//! Records of sessions, grants, and notes.

use isolane_engine_api::{DecodeError, Decoder, Encoder, MAX_MESSAGE_BYTES, Object, Request};

use crate::object::RecoveryState;

/// State for the next engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// Session. Descriptors: its connection, its memory, and the end of a pipe that the client uses to detect
    /// that no process holds anything of the session any longer.
    Session { session: u32, pid: i32, uid: u32 },
    /// Granted request of a session, its core, and the note of the object's kind. Descriptors: those needed to
    /// grant the request again.
    Granted { session: u32, core: u32, request: Request, note: Vec<u8> },
    /// Note that belongs to no session.
    Note(Vec<u8>),
}

impl Record {
    /// Maximum length of a record, in bytes.
    pub const MAX_BYTES: usize = MAX_MESSAGE_BYTES - 16;
    /// Maximum length of a note that belongs to no session, in bytes.
    pub const MAX_NOTE_BYTES: usize = 1024;

    /// Returns the session of the record, if any.
    pub fn session(&self) -> Option<u32> {
        match self {
            Record::Session { session, .. } | Record::Granted { session, .. } => Some(*session),
            Record::Note(_) => None,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut sink = Encoder::default();
        match self {
            Record::Session { session, pid, uid } => {
                sink.u16(SESSION);
                sink.u32(*session);
                sink.u32(*pid as u32);
                sink.u32(*uid);
            }
            Record::Granted { session, core, request, note } => {
                sink.u16(GRANTED);
                sink.u32(*session);
                sink.u32(*core);
                sink.bytes(note, RecoveryState::MAX_NOTE_BYTES);
                sink.bytes(&request.encode(0), MAX_REQUEST_BYTES);
            }
            Record::Note(note) => {
                sink.u16(NOTE);
                sink.bytes(note, Record::MAX_NOTE_BYTES);
            }
        }
        sink.into_bytes()
    }

    pub fn decode(bytes: &[u8]) -> Result<Record, DecodeError> {
        let mut source = Decoder::new(bytes);
        let record = match source.u16("the kind of record")? {
            SESSION => Record::Session {
                session: source.u32("the session")?,
                pid: source.u32("the process")? as i32,
                uid: source.u32("the user")?,
            },
            GRANTED => {
                let (session, core) = (source.u32("the session")?, source.u32("the core")?);
                let note = source.bytes("the note", RecoveryState::MAX_NOTE_BYTES)?;
                let request = Request::decode(&source.bytes("the request", MAX_REQUEST_BYTES)?)?.request;
                Record::Granted { session, core, request, note }
            }
            NOTE => Record::Note(source.bytes("the note", Record::MAX_NOTE_BYTES)?),
            _ => return Err(DecodeError { what: "the kind of record", offset: 0 }),
        };
        source.end()?;
        Ok(record)
    }
}

const SESSION: u16 = 1;
const GRANTED: u16 = 2;
const NOTE: u16 = 3;
/// Maximum length of a request.
const MAX_REQUEST_BYTES: usize = Object::MAX_PARAMS_BYTES + 64;

const _: () = assert!(MAX_REQUEST_BYTES + RecoveryState::MAX_NOTE_BYTES + 64 < Record::MAX_BYTES);
