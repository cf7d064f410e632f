//! What was granted to whom.

use isolane_attach::control::{BYTES_MAX, Malformed, Request, Sink, Source};

use crate::service;

/// Something that the next engine must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// A session. With it come its connection, its memory, and the end of a pipe that says that
    /// there still is something of it.
    Session { session: u32, pid: i32, uid: u32 },
    /// A request of a session that was carried out, on a core if it belongs to one, and what its kind of objects
    /// has noted. With it comes what is needed to carry it out again.
    Granted { session: u32, core: u32, request: Request, note: Vec<u8> },
    /// What belongs to no session.
    Note(Vec<u8>),
}

impl Record {
    /// Bytes of the longest record: that of a volume with the longest name.
    pub const BYTES_MAX: usize = BYTES_MAX - 16;
    /// Bytes of the longest note that belongs to no session.
    pub const NOTE_BYTES_MAX: usize = 1024;

    /// Returns the session that it belongs to, if any.
    pub fn session(&self) -> Option<u32> {
        match self {
            Record::Session { session, .. } | Record::Granted { session, .. } => Some(*session),
            Record::Note(_) => None,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut sink = Sink::default();
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
                sink.bytes(note, service::Left::NOTE_BYTES_MAX);
                sink.bytes(&request.encode(0), REQUEST_BYTES_MAX);
            }
            Record::Note(note) => {
                sink.u16(NOTE);
                sink.bytes(note, Record::NOTE_BYTES_MAX);
            }
        }
        sink.into_bytes()
    }

    pub fn decode(bytes: &[u8]) -> Result<Record, Malformed> {
        let mut source = Source::new(bytes);
        let record = match source.u16("the kind of record")? {
            SESSION => Record::Session {
                session: source.u32("the session")?,
                pid: source.u32("the process")? as i32,
                uid: source.u32("the user")?,
            },
            GRANTED => {
                let (session, core) = (source.u32("the session")?, source.u32("the core")?);
                let note = source.bytes("the note", service::Left::NOTE_BYTES_MAX)?;
                let request = Request::decode(&source.bytes("the request", REQUEST_BYTES_MAX)?)?.request;
                Record::Granted { session, core, request, note }
            }
            NOTE => Record::Note(source.bytes("the note", Record::NOTE_BYTES_MAX)?),
            _ => return Err(Malformed { what: "the kind of record", offset: 0 }),
        };
        source.end()?;
        Ok(record)
    }
}

const SESSION: u16 = 1;
const GRANTED: u16 = 2;
const NOTE: u16 = 3;
/// That of a volume with the longest name and details.
const REQUEST_BYTES_MAX: usize = 1700;

const _: () = assert!(REQUEST_BYTES_MAX + service::Left::NOTE_BYTES_MAX + 64 < Record::BYTES_MAX);
