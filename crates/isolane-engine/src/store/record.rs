//! Records of sessions, grants, and notes.

use isolane_engine_api::{MAX_MESSAGE_BYTES, Object, Request};
use serde::{Deserialize, Serialize};

use crate::object::RecoveryState;

/// State for the next engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Returns the session of the record, if any.
    pub fn session(&self) -> Option<u32> {
        match self {
            Record::Session { session, .. } | Record::Granted { session, .. } => Some(*session),
            Record::Note(_) => None,
        }
    }
}

/// Maximum length of an encoded request.
const MAX_REQUEST_BYTES: usize = Object::MAX_PARAMS_BYTES + 64;
const _: () = assert!(MAX_REQUEST_BYTES + RecoveryState::MAX_NOTE_BYTES + 64 < MAX_MESSAGE_BYTES);
