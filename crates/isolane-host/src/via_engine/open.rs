//! Opening and closing of a volume at an engine.

use std::path::{Path, PathBuf};

use isolane_attach::{Allocation, AttachError, Session};
use isolane_engine_api::{MAX_TEXT_BYTES, OpenObject, Reply, Request, decode};
use isolane_shm::entries::{Receiver, Sender};
use isolane_shm::{InvalidIndex, ShmRef, WakeFlag};

use super::slots::Slots;
use super::wire::{OpenParams, VolumeLayout};
use crate::cores::Cores;
use crate::error::ConnectError;
use crate::info::{EngineStatus, Info};
use crate::options::{Options, Via};
use crate::uri::Uri;

/// The volume and the engine to use.
pub(super) struct VolumeOpener {
    /// URI of the volume, without the engine.
    uri: Uri,
    pub options: Options,
    /// Path of the engine's socket.
    pub path: PathBuf,
    /// Whether to start an engine if none listens.
    starts: bool,
}

/// A volume that is open at an engine.
pub(super) struct OpenVolume {
    pub id: u32,
    /// Epoch of the engine that has it.
    pub epoch: u64,
    /// Index of its core in the list of the engine.
    pub core: u32,
    pub submissions: Sender,
    pub outcomes: Receiver,
    need_wakeup: ShmRef<WakeFlag>,
    pub info: Info,
    /// Memory of the rings.
    allocation: Allocation,
}

impl VolumeOpener {
    pub fn new(uri: &Uri, options: Options) -> Result<VolumeOpener, ConnectError> {
        if !options.cores.is_empty() || !uri.cores.is_empty() {
            let cores = "cores with an engine; leave them out";
            return Err(ConnectError::Unsupported(cores.to_owned()));
        }
        if [&options.key, &options.ctrl_key, &uri.key, &uri.ctrl_key].iter().any(|key| key.is_some()) {
            let keys = "keys with an engine, which would read them as another user; leave out the engine";
            return Err(ConnectError::Unsupported(keys.to_owned()));
        }
        let (path, starts) = match options.via.as_ref().or(uri.via.as_ref()) {
            Some(Via::EngineAt(path)) => (path.clone(), false),
            Some(Via::Engine) | None => (isolane_attach::default_path(), true),
        };
        Ok(VolumeOpener {
            uri: Uri { via: None, cores: Cores::default(), ..uri.clone() },
            options,
            path,
            starts,
        })
    }

    /// Opens a session with the engine.
    pub fn attach(&self) -> Result<Session, ConnectError> {
        let (count, bytes) = Slots::dimensions(&self.options);
        let memory_bytes = count * bytes + OTHER_BYTES;
        let (path, starts) = (self.path.clone(), self.starts);
        let options =
            isolane_attach::SessionOptions { path, memory_bytes, spawn_engine: starts, ..Default::default() };
        Ok(Session::open(&options)?)
    }

    /// Opens the volume, in place of one at a killed engine. The engine wakes a thread that sleeps on the flag at `flag`.
    pub fn open(
        &self,
        session: &Session,
        flag: u64,
        stale: Option<OpenVolume>,
    ) -> Result<OpenVolume, ConnectError> {
        stale.into_iter().for_each(|stale| stale.close(session));
        loop {
            let opened = self.request_open(session, flag)?;
            // The reply may be from an engine that was killed in the meantime.
            if session.epoch() == opened.epoch {
                return Ok(opened);
            }
            opened.close(session);
        }
    }

    fn request_open(&self, session: &Session, flag: u64) -> Result<OpenVolume, ConnectError> {
        let (epoch, count) = (session.epoch(), Slots::dimensions(&self.options).0 as u32);
        let bytes = VolumeLayout::bytes(count, count);
        let allocation = session.alloc(bytes)?;
        allocation.clear(bytes)?;
        let uri = self.uri.to_string();
        if uri.len() > MAX_TEXT_BYTES {
            let long = format!("a URI of {} bytes with an engine; at most {MAX_TEXT_BYTES}", uri.len());
            return Err(ConnectError::Unsupported(long));
        }
        let layout = VolumeLayout { offset: allocation.offset(), flag, submissions: count, outcomes: count };
        let params = OpenParams { uri, layout, options: self.options.clone() };
        let object = params.object().map_err(|error| ConnectError::Unsupported(error.to_string()))?;
        let (memory, id) = (session.memory(), session.next_id());
        let valid = "the layout is valid";
        let submissions =
            Sender::open(memory, layout.submissions().expect(valid)).map_err(AttachError::from)?;
        let outcomes = Receiver::open(memory, layout.outcomes().expect(valid)).map_err(AttachError::from)?;
        let need_wakeup = memory.flag(layout.need_wakeup().expect(valid)).map_err(AttachError::from)?;
        let open = OpenObject { id, core: None, queue: None, object };
        let reply = session.request("the volume", &Request::OpenObject(open), &[])?;
        let Reply::Opened { core, answer } = reply else {
            return Err(ConnectError::Engine("unexpected reply".to_owned()));
        };
        let info = decode::<Info>(&answer).map_err(|error| ConnectError::Engine(error.to_string()))?;
        if core as usize >= session.cores().len() {
            return Err(ConnectError::Engine(format!("core {core} does not exist at the engine")));
        }
        Ok(OpenVolume { id, epoch, core, submissions, outcomes, need_wakeup, info, allocation })
    }
}

impl OpenVolume {
    /// Publishes submissions, and rings the doorbell if the engine does not poll.
    #[inline]
    pub fn publish(&mut self, session: &Session) -> Result<(), AttachError> {
        self.submissions.publish();
        if self.need_wakeup.take() { session.doorbells(self.core).ring(self.id) } else { Ok(()) }
    }

    /// Returns whether outcomes are available.
    pub fn has_outcomes(&mut self) -> Result<bool, InvalidIndex> {
        Ok(self.outcomes.refresh()? > 0)
    }

    pub fn status(&self, path: &Path, session: &Session) -> EngineStatus {
        // The core index was checked when the volume was opened.
        let core = session.cores().get(self.core as usize).copied().unwrap_or_default();
        EngineStatus { path: path.to_owned(), core: core as usize }
    }

    /// Closes it without waiting. The engine may still access its rings.
    pub fn close(self, session: &Session) {
        // A closed session has no volumes.
        let _ = session.close(self.id, self.allocation);
    }
}

/// For doorbells of up to 128 cores, and the rings of the volume, twice.
const OTHER_BYTES: usize = 64 << 20;
