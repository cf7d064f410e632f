//! Volumes: the engine connects to targets, and applications submit commands through rings.
//!
//! ```text
//! VolumeQueue::poll ─ submit_pending ─ Submission::decode ─ PayloadBuffers::acquire ─ SharedClient::submit ─ Client
//!                   ─ SharedClient::turn ─ Client::turn ─ Member ─ deliver ─ Outcome::encode
//! ```
//!
//! Sessions that open the same URI with the same options on the same core share a [`SharedClient`], thus one
//! association and its lanes. Each session has its own [`VolumeQueue`]. An entry is copied once and checked.
//! Payload is sent from and received into the session's memory directly, or through private memory if digests
//! are computed.
//!
//! Invariants: a session has at most as many commands in flight as its completion ring has space for, so that
//! completions never wait; all sessions together have at most as many as the lanes accept, and take turns beyond
//! that; the memory of a session stays mapped until its last command has completed.

mod command_times;
mod journal;
mod payload_buffers;
mod shared_client;
mod volume_queue;

use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_engine_api::{SessionLimits, kind};
use isolane_host::via_engine::wire::{OpenParams, OpenParamsError};
use isolane_host::{IoChoice, Options, Uri};
use isolane_reactor::Mode;

use self::command_times::CommandTimes;
use self::journal::AssociationRegistry;
pub use self::journal::JournalStore;
use self::shared_client::{ClientParams, SharedClient};
use self::volume_queue::VolumeQueue;
use crate::EngineConfig;
use crate::object::{BuiltObject, ObjectBuilder, ObjectContext, ObjectKind, RecoveryState, Rejection};

/// Volumes, as a kind of objects.
pub(crate) struct VolumeKind {
    mode: Mode,
    spin: Duration,
    observe: bool,
    registry: Arc<AssociationRegistry>,
}

impl VolumeKind {
    /// `journal` stores notes of associations beyond the end of this process; `notes` are from previous
    /// processes.
    pub fn new(
        config: &EngineConfig,
        journal: Arc<dyn JournalStore>,
        notes: impl IntoIterator<Item = (u64, Vec<u8>)>,
    ) -> VolumeKind {
        let EngineConfig { mode, spin, observe, .. } = *config;
        VolumeKind { mode, spin, observe, registry: Arc::new(AssociationRegistry::new(journal, notes)) }
    }

    fn builder(&self, params: OpenParams) -> Result<ObjectBuilder, String> {
        let uri: Uri = params.uri.parse().map_err(|error: isolane_host::UriError| error.to_string())?;
        if uri.via.is_some() || !uri.cores.is_empty() {
            return Err("the URI of a volume in an engine must not have via or cores".into());
        }
        // An application could name a key that only this process can read.
        if uri.key.is_some() || uri.ctrl_key.is_some() {
            return Err("the URI of a volume in an engine must not have key or ctrl-key".into());
        }
        let place = params.layout;
        let params = ClientParams {
            key: (uri.to_string(), params.client_key()),
            uri,
            options: self.options(params.options),
            registry: Arc::clone(&self.registry),
        };
        let build = Box::new(move |context: ObjectContext| {
            let times = CommandTimes::new(&context.observer, context.owner(), &params.key.0);
            let queue = VolumeQueue::new(context, place, times, |waker| SharedClient::open(params, waker))?;
            Ok(BuiltObject { object: Box::new(queue), answer: None })
        });
        Ok(ObjectBuilder { core: None, build, recovery: RecoveryState::default() })
    }

    /// Returns the options of the application with overrides of the engine.
    fn options(&self, requested: Options) -> Options {
        Options {
            mode: self.mode,
            // The core also spins, after its clients.
            spin: self.spin / 2,
            io: IoChoice::Epoll,
            // Bounded by the capacity of the lanes.
            max_requests: usize::MAX,
            observe: self.observe,
            ..requested
        }
    }
}

impl ObjectKind for VolumeKind {
    fn name(&self) -> &'static str {
        "volumes"
    }

    fn id(&self) -> u16 {
        kind::VOLUME
    }

    fn descriptors(&self) -> RangeInclusive<usize> {
        0..=0
    }

    fn max_objects(&self, limits: &SessionLimits) -> u32 {
        limits.volumes
    }

    fn open(&self, params: &[u8], _: Vec<OwnedFd>) -> Result<ObjectBuilder, Rejection> {
        match OpenParams::decode(params) {
            Ok(params) => self.builder(params).map_err(Rejection::Refused),
            Err(error @ OpenParamsError::Malformed(_)) => Err(Rejection::violation(error)),
            Err(error) => Err(Rejection::Refused(error.to_string())),
        }
    }

    fn describe(&self, params: &[u8]) -> Option<String> {
        // Escaped, because the client chooses the text.
        OpenParams::decode(params).ok().map(|OpenParams { uri, .. }| format!("{uri:?}"))
    }

    fn on_timer(&self, now: Instant) {
        self.registry.expire(now);
    }

    fn deadline(&self, now: Instant) -> Option<Instant> {
        self.registry.next_check(now)
    }
}
