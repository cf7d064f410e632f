//! Asking an engine for a volume.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use isolane_attach::control::{Object, Open, Reply, Request, TEXT_BYTES_MAX};
use isolane_attach::{AttachError, Room, Session};
use isolane_ring::entries::{Receiver, Sender};
use isolane_ring::{Flag, Impossible, Shared};

use super::EngineStatus;
use super::slots::Slots;
use super::wire::{Answer, Details, VolumePlace};
use crate::cores::Cores;
use crate::error::ConnectError;
use crate::info::Info;
use crate::options::Options;
use crate::uri::{Uri, Via};

/// What to ask for, and where.
pub(super) struct Opening {
    /// The volume alone, without the way to it.
    uri: Uri,
    pub options: Options,
    /// Where the engine listens.
    pub path: PathBuf,
    /// Whether one is started if there is none.
    starts: bool,
}

/// A volume that is open.
pub(super) struct Opened {
    pub id: u32,
    /// On which of the engine's cores, by index.
    pub core: u32,
    pub submissions: Sender,
    pub outcomes: Receiver,
    told: Shared<Flag>,
    pub info: Info,
    /// Where the rings are.
    room: Room,
}

impl Opening {
    pub fn new(uri: &Uri, options: Options) -> Result<Opening, ConnectError> {
        if !options.cores.is_empty() || !uri.cores.is_empty() {
            let cores = "cores of this process for a volume that an engine drives; leave them out";
            return Err(ConnectError::Unsupported(cores.to_owned()));
        }
        let (path, starts) = match options.via.as_ref().or(uri.via.as_ref()) {
            Some(Via::EngineAt(path)) => (path.clone(), false),
            Some(Via::Engine) | None => (isolane_attach::default_path(), true),
        };
        Ok(Opening { uri: Uri { via: None, cores: Cores::default(), ..uri.clone() }, options, path, starts })
    }

    /// A session with the engine.
    pub fn attach(&self) -> Result<Session, ConnectError> {
        let (count, bytes) = Slots::shape(&self.options);
        let memory_bytes = count * bytes + OTHER_BYTES;
        let (path, starts) = (self.path.clone(), self.starts);
        let options = isolane_attach::Options { path, memory_bytes, starts, ..Default::default() };
        Session::open(&options).map_err(at_engine)
    }

    /// Has the engine open the volume, in the place of `old` if there was one, and wake who sleeps on the flag at
    /// `flag`. Returns for which engine this holds.
    pub fn open(
        &self,
        session: &Session,
        flag: u64,
        old: Option<Old>,
    ) -> Result<(u64, Opened), ConnectError> {
        old.into_iter().for_each(|old| old.end(session));
        loop {
            let epoch = session.epoch();
            let opened = self.ask(session, flag)?;
            // An engine that was killed meanwhile may have been the one that answered.
            if session.epoch() == epoch {
                return Ok((epoch, opened));
            }
            opened.into_old().end(session);
        }
    }

    fn ask(&self, session: &Session, flag: u64) -> Result<Opened, ConnectError> {
        let count = Slots::shape(&self.options).0 as u32;
        let bytes = VolumePlace::bytes(count, count);
        let room = session.take(bytes).map_err(at_engine)?;
        room.clear(bytes).map_err(at_engine)?;
        let uri = self.uri.to_string();
        if uri.len() > TEXT_BYTES_MAX {
            let long =
                format!("a URI of {} bytes through an engine; at most {TEXT_BYTES_MAX} fit", uri.len());
            return Err(ConnectError::Unsupported(long));
        }
        let place = VolumePlace { offset: room.offset(), flag, submissions: count, outcomes: count };
        let details = Details { place, options: self.options.clone() };
        let details = details.encode().map_err(|error| ConnectError::Unsupported(error.to_string()))?;
        let (memory, id) = (session.memory(), session.next_id());
        let nowhere = "a place of our own choice";
        let at_memory = |error: isolane_ring::MemoryError| at_engine(error.into());
        let submissions = Sender::new(memory, place.submissions().expect(nowhere)).map_err(at_memory)?;
        let outcomes = Receiver::new(memory, place.outcomes().expect(nowhere)).map_err(at_memory)?;
        let told = memory.flag(place.told().expect(nowhere)).map_err(at_memory)?;
        let object = Object::Volume { uri, details };
        let open = Open { id, core: None, queue: None, object };
        let reply = session.ask("the volume", &Request::Open(open), &[]).map_err(at_engine)?;
        let Reply::Opened { core, answer } = reply else {
            return Err(ConnectError::Engine("it has not answered what was asked".to_owned()));
        };
        let answer = Answer::decode(&answer).map_err(|error| ConnectError::Engine(error.to_string()))?;
        if core as usize >= session.cores().len() {
            return Err(ConnectError::Engine(format!("it has no core {core}")));
        }
        Ok(Opened { id, core, submissions, outcomes, told, info: answer.0, room })
    }
}

impl Opened {
    /// Shows the engine what was put into the ring, and rings its doorbell if it looks no more.
    #[inline]
    pub fn show(&mut self, session: &Session) -> Result<(), AttachError> {
        self.submissions.publish();
        match self.told.take() {
            true => session.port(self.core).tell(self.id),
            false => Ok(()),
        }
    }

    /// Whether there are outcomes.
    pub fn has_outcomes(&mut self) -> Result<bool, Impossible> {
        Ok(self.outcomes.refresh()? > 0)
    }

    pub fn status(&self, path: &Path, session: &Session) -> EngineStatus {
        // That there is such a core was checked when it answered.
        let core = session.cores().get(self.core as usize).copied().unwrap_or_default();
        EngineStatus { path: path.to_owned(), core: core as usize }
    }

    /// What is left of it when the engine has it no more, or is to have it no more.
    pub fn into_old(self) -> Old {
        Old { id: self.id, room: self.room }
    }
}

/// A volume that was open. The engine may still look at its rings.
pub(super) struct Old {
    id: u32,
    room: Room,
}

impl Old {
    /// Has the engine let go of it, without waiting for that.
    pub fn end(self, session: &Session) {
        // A session that is over has no volumes any more.
        let _ = session.close(self.id, self.room);
    }
}

pub(super) fn at_engine(error: AttachError) -> ConnectError {
    ConnectError::Engine(error.to_string())
}

impl From<AttachError> for ConnectError {
    fn from(error: AttachError) -> ConnectError {
        at_engine(error)
    }
}

pub(super) fn system(what: &'static str, source: std::io::Error) -> ConnectError {
    ConnectError::System { what, source: Arc::new(source) }
}

/// For doorbells of up to 128 cores, and the rings of the volume, twice.
const OTHER_BYTES: usize = 64 << 20;
