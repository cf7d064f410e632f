//! Stream as an object of a core.
//!
//! A failed stream stays until its application closes it: only then is it known how much the application has
//! read, and whether it can get the socket back.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use isolane_engine_api::stream::{Origin, StreamLayout};
use isolane_engine_api::{CloseMode, SessionLimits, decode, encode, kind};
use isolane_shm::WakeFlag;
use rustix::net::sockopt;

use super::dead_stream::DeadStream;
use super::notifications::PendingNotification;
use super::stream_times::StreamTimes;
use super::{SocketRefusal, StreamError, StreamMachine, StreamRecord};
use crate::EngineConfig;
use crate::close_threads::Socket;
use crate::object::{
    BuildFn, BuiltObject, CloseReason, NO_DESCRIPTORS, ObjectBuilder, ObjectContext, ObjectKind, PollStatus,
    PolledObject, ProtocolViolation, Ready, RecoveryState, Rejection, Turn,
};
use crate::observed::Owner;

/// Streams, as a kind of objects.
pub(crate) struct StreamKind {
    config: EngineConfig,
}

impl StreamKind {
    pub fn new(config: &EngineConfig) -> StreamKind {
        StreamKind { config: config.clone() }
    }
}

impl ObjectKind for StreamKind {
    fn name(&self) -> &'static str {
        "streams"
    }

    fn id(&self) -> u16 {
        kind::STREAM
    }

    fn descriptors(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn max_objects(&self, limits: &SessionLimits) -> u32 {
        limits.streams
    }

    fn open(&self, params: &[u8], descriptors: Vec<OwnedFd>) -> Result<ObjectBuilder, Rejection> {
        let place = decode(params).map_err(Rejection::violation)?;
        let socket = descriptors.into_iter().next();
        let socket = socket.ok_or_else(|| Rejection::violation("a stream without its socket"))?;
        adopt(socket, place, &self.config).map_err(|refusal| match refusal {
            SocketRefusal::System(error) => Rejection::system(&error),
            refusal => Rejection::Refused(refusal.to_string()),
        })
    }

    fn resume(&self, _: &[u8], note: &[u8], descriptors: Vec<OwnedFd>) -> Result<ObjectBuilder, Rejection> {
        let missing = || format!("the engine has no descriptor left for it{NO_DESCRIPTORS}");
        let socket = descriptors.into_iter().next().ok_or_else(missing);
        resume(socket, note).map_err(Rejection::Violation)
    }
}

/// Checks a socket and returns a builder that adopts it. The socket is unchanged until the builder runs, which
/// must not happen before the supervisor has stored the record.
///
/// # Errors
/// [`SocketRefusal`].
pub(super) fn adopt(
    socket: OwnedFd,
    place: StreamLayout,
    config: &EngineConfig,
) -> Result<ObjectBuilder, SocketRefusal> {
    let record = StreamRecord::capture(socket.as_fd(), place)?;
    let duplicate = socket.try_clone()?;
    Ok(ObjectBuilder {
        // Core that receives the packets of the connection.
        core: sockopt::socket_incoming_cpu(&duplicate)
            .ok()
            .and_then(|cpu| config.cores.iter().position(|core| *core == cpu as usize))
            .map(|index| index as u32),
        build: build(Ok(socket), record, false),
        recovery: RecoveryState { note: encode(&record), descriptors: vec![duplicate] },
    })
}

/// Returns a builder that resumes a stream of a previous engine from its note. If that fails, for example
/// because no descriptor is left for the socket, it builds a [`DeadStream`].
///
/// # Errors
/// Describes an invalid note.
pub(super) fn resume(socket: Result<OwnedFd, String>, note: &[u8]) -> Result<ObjectBuilder, String> {
    let record: StreamRecord = decode(note).map_err(|error| error.to_string())?;
    let build = build(socket, record, true);
    Ok(ObjectBuilder { core: None, build, recovery: RecoveryState::default() })
}

fn build(socket: Result<OwnedFd, String>, record: StreamRecord, resumed: bool) -> BuildFn {
    // If the builder is dropped, a close thread closes the socket.
    let socket = socket.map(Socket::new);
    Box::new(move |context: ObjectContext| {
        let (session, id) = (context.session, context.id);
        let owner = Owner { session, application: Arc::clone(&context.application) };
        let notification = PendingNotification::new(id, context.queue);
        let socket = socket.map(Socket::into_inner);
        let duplicate = socket.as_ref().ok().filter(|_| resumed).and_then(|socket| socket.try_clone().ok());
        let machine = socket.and_then(|socket| {
            StreamMachine::resume(socket, &context.memory, record).map_err(|error| error.to_string())
        });
        match machine {
            Ok(machine) => {
                let times = StreamTimes::new(&context.observer, owner, &machine.positions());
                Ok(built(&record, Stream::new(machine, times, notification, resumed)))
            }
            Err(error) if resumed => {
                log::warn!("session {session}: stream {id} cannot be resumed: {error}");
                let dead = DeadStream::new(&context.memory, &record, error, notification, duplicate);
                dead.map(|dead| built(&record, dead)).map_err(|error| error.to_string())
            }
            Err(error) => Err(error),
        }
    })
}

fn built(record: &StreamRecord, object: impl PolledObject + 'static) -> BuiltObject {
    let origin = Origin { written: record.written, oob_inline: record.oob_inline };
    BuiltObject { object: Box::new(object), answer: Some(encode(&origin)) }
}

/// Stream on its core.
struct Stream {
    machine: StreamMachine,
    times: StreamTimes,
    notification: PendingNotification,
    /// A previous engine had the stream, and its application knows that it is open.
    resumed: bool,
    /// Read events of the socket are on.
    reads: bool,
    /// Both directions were failed for the application.
    failed: bool,
    closing: Option<CloseReason>,
}

impl Stream {
    fn new(
        machine: StreamMachine,
        times: StreamTimes,
        notification: PendingNotification,
        resumed: bool,
    ) -> Stream {
        Stream { machine, times, notification, resumed, reads: true, failed: false, closing: None }
    }

    fn try_poll(&mut self, now: Instant) -> Result<PollStatus, StreamError> {
        match self.closing {
            None if self.failed => return Ok(PollStatus::Idle),
            None => {}
            Some(CloseReason::Requested(CloseMode::Close) | CloseReason::ClientGone) if self.failed => {
                self.machine.close_failed()?;
                return Ok(PollStatus::Closed(Ok(())));
            }
            Some(CloseReason::Requested(CloseMode::Close) | CloseReason::ClientGone) => {
                self.machine.close(now)
            }
            Some(_) => {
                self.machine.release()?;
                return Ok(PollStatus::Closed(Ok(())));
            }
        }
        let progress = self.machine.poll()?;
        self.times.on_poll(&self.machine.positions());
        if progress.notifies {
            self.notification.mark_due();
        }
        if progress.closed {
            self.machine.release()?;
            return Ok(PollStatus::Closed(Ok(())));
        }
        if self.reads != self.machine.wants_reads() {
            self.reads = !self.reads;
            return Ok(PollStatus::SetReadInterest { source: 0, reads: self.reads });
        }
        Ok(if progress.busy { PollStatus::Busy } else { PollStatus::Idle })
    }

    fn on_error(&mut self, error: StreamError) -> Result<PollStatus, ProtocolViolation> {
        match error {
            StreamError::InvalidIndex(error) => {
                self.machine.abandon();
                Err(error.into())
            }
            error if self.closing.is_some() => {
                self.machine.abandon();
                Ok(PollStatus::Closed(Err(error.to_string())))
            }
            error => {
                self.fail(&error.to_string());
                Ok(PollStatus::Busy)
            }
        }
    }

    fn fail(&mut self, reason: &str) {
        log::debug!("stream {} failed: {reason}", self.notification.id());
        self.failed = true;
        self.machine.fail();
        self.notification.mark_due();
    }
}

impl PolledObject for Stream {
    fn poll(&mut self, turn: &Turn) -> Result<PollStatus, ProtocolViolation> {
        let status = self.try_poll(turn.now).or_else(|error| self.on_error(error))?;
        self.notification.send()?;
        Ok(status)
    }

    fn prepare_idle(&mut self, turn: &Turn) -> Result<PollStatus, ProtocolViolation> {
        // A requested close must start first.
        if self.failed || (self.closing.is_some() && !self.machine.is_closing()) {
            return self.poll(turn);
        }
        let is_idle = self.machine.prepare_idle();
        self.times.on_poll(&self.machine.positions());
        match is_idle {
            Ok(true) => {
                self.times.on_idle();
                Ok(PollStatus::Idle)
            }
            Ok(false) => Ok(PollStatus::Busy),
            Err(error) => self.on_error(error),
        }
    }

    fn on_ready(&mut self, _: usize, ready: Ready) {
        self.machine.on_ready(ready);
    }

    fn on_doorbell(&mut self, at: u64) {
        self.times.on_doorbell(at);
    }

    fn on_watch_failed(&mut self, reason: &str) -> bool {
        if self.resumed {
            self.fail(reason);
        } else {
            // Nothing was read or written yet.
            let _ = self.machine.release();
        }
        self.resumed
    }

    fn relieve(&mut self, turn: &Turn) -> bool {
        self.machine.relieve(turn.now)
    }

    fn on_close(&mut self, reason: CloseReason) {
        // A closing stream continues to close during a shutdown.
        let closes =
            matches!(self.closing, Some(CloseReason::ClientGone | CloseReason::Requested(CloseMode::Close)));
        if !(closes && reason == CloseReason::Shutdown) {
            self.closing = Some(reason);
        }
    }

    fn need_wakeup(&self) -> &WakeFlag {
        self.machine.need_wakeup()
    }

    fn source(&self, index: usize) -> Option<BorrowedFd<'_>> {
        (index == 0).then(|| self.machine.socket())
    }

    fn deadline(&self) -> Option<Instant> {
        self.notification.deadline()
    }
}
