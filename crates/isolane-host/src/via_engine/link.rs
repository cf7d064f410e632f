//! State of the volume at the engine: open, reopening after the engine was killed, or closed for good.
//!
//! Invariant: while it is down, an attempt to open it is in progress or has a due time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use isolane_attach::{Session, Watcher};
use isolane_reactor::Waker;
use isolane_shm::with_signals_blocked;

use super::EngineVolume;
use super::open::OpenVolume;
use crate::client_state::ClientState;
use crate::difference::Difference;
use crate::error::{ConnectError, RequestError};
use crate::io_limits::IoLimits;
use crate::request_table::Part;

/// State of the volume at the engine.
// Rarely moved, and used for every request.
#[allow(clippy::large_enum_variant)]
pub(super) enum Link {
    Up(OpenVolume),
    Down(Outage),
    /// [`ClientState::closed`] has the reason.
    Closed,
}

/// Time without the open volume.
pub(super) struct Outage {
    since: Instant,
    /// The volume at the killed engine.
    stale: Option<OpenVolume>,
    attempt: u32,
    /// When the next attempt is due, unless one is in progress.
    next: Instant,
    attempt_result: Option<mpsc::Receiver<Result<OpenVolume, ConnectError>>>,
}

/// Flag that the session has changed: the engine restarted, or the session was closed.
pub(super) struct SessionEvents {
    changed: AtomicBool,
    waker: Waker,
}

impl SessionEvents {
    pub fn watch(session: &Session, waker: Waker) -> Arc<SessionEvents> {
        // Changes before the watch begins are not reported.
        let events = Arc::new(SessionEvents { changed: AtomicBool::new(true), waker });
        let watcher: Arc<dyn Watcher> = Arc::clone(&events) as _;
        session.watch(Arc::downgrade(&watcher));
        events
    }

    #[inline]
    pub fn is_set(&self) -> bool {
        self.changed.load(Ordering::Acquire)
    }

    fn set(&self) {
        self.changed.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Watcher for SessionEvents {
    fn on_restart(&self, _: u64) {
        self.set();
    }

    fn on_close(&self) {
        self.set();
    }
}

impl EngineVolume {
    /// Handles the events of the session.
    #[cold]
    pub(super) fn poll_link(&mut self, state: &mut ClientState) {
        if matches!(self.link, Link::Closed) {
            return;
        }
        if self.is_connected() {
            // Remains set while the volume is down, so that each open volume is checked.
            self.events.changed.swap(false, Ordering::AcqRel);
        }
        if let Err(error) = self.session.check() {
            return self.abandon(state, error.into());
        }
        if let Link::Up(opened) = &self.link
            && self.session.epoch() != opened.epoch
        {
            self.on_engine_restart(state);
        }
        self.resume_opening(state);
    }

    /// Handles the end of the engine: takes its outcomes; the other requests are resubmitted later.
    fn on_engine_restart(&mut self, state: &mut ClientState) {
        if let Err(error) = self.reap(state) {
            return self.abandon(state, error);
        }
        let now = Instant::now();
        log::info!(
            "{}: engine restarted; {} requests are outstanding",
            state.info.address,
            state.requests.len()
        );
        let down = Outage { since: now, stale: None, attempt: 0, next: now, attempt_result: None };
        if let Link::Up(opened) = std::mem::replace(&mut self.link, Link::Down(down))
            && let Link::Down(outage) = &mut self.link
        {
            outage.stale = Some(opened);
        }
    }

    fn resume_opening(&mut self, state: &mut ClientState) {
        let Link::Down(outage) = &mut self.link else { return };
        if let Some(attempt_result) = &outage.attempt_result {
            match attempt_result.try_recv() {
                Ok(Ok(opened)) => self.on_opened(state, opened),
                Ok(Err(error)) => self.on_refused(state, error),
                Err(mpsc::TryRecvError::Empty) => {}
                Err(mpsc::TryRecvError::Disconnected) => {
                    self.abandon(
                        state,
                        ConnectError::Engine("the thread that opens the volume has ended".to_owned()),
                    );
                }
            }
        } else if Instant::now() >= outage.next {
            self.begin_opening(state);
        }
    }

    /// Opens the volume on a separate thread, because the engine may block.
    fn begin_opening(&mut self, state: &mut ClientState) {
        let waker = self.waker();
        let Link::Down(outage) = &mut self.link else { return };
        let (sender, receiver) = mpsc::sync_channel(1);
        let (opener, session, flag) = (Arc::clone(&self.opener), self.session.clone(), self.waiter.offset());
        let stale = outage.stale.take();
        let attempt = move || {
            let _ = sender.send(opener.open(&session, flag, stale));
            waker.wake();
        };
        (outage.attempt, outage.attempt_result) = (outage.attempt + 1, Some(receiver));
        let thread = std::thread::Builder::new().name("isolane-reopen".to_owned());
        let thread = with_signals_blocked(|| thread.spawn(attempt));
        if let Err(error) = thread {
            self.abandon(state, ConnectError::system("a thread", error));
        }
    }

    fn on_opened(&mut self, state: &mut ClientState, mut opened: OpenVolume) {
        let namespace = match opened.info.choose(Some(state.namespace.nsid)) {
            Ok(namespace) => namespace.clone(),
            Err(error) => return self.abandon(state, error),
        };
        let (now, before) = ((&opened.info, &namespace), (&state.info, &state.namespace));
        if let Some(difference) = Difference::of_volume(now, before) {
            return self.abandon(state, ConnectError::VolumeChanged(difference));
        }
        let part_blocks = state.limits.part_blocks;
        match IoLimits::new(&namespace, &opened.info).map(|limits| limits.within(self.slots.bytes())) {
            // The index of a part depends on the part size.
            Ok(limits) if limits.part_blocks < part_blocks && state.requests.len() > 0 => {
                let difference = Difference::CommandBlocks(part_blocks, limits.part_blocks);
                return self.abandon(state, ConnectError::VolumeChanged(difference));
            }
            Ok(limits) => {
                state.limits = IoLimits { part_blocks: part_blocks.min(limits.part_blocks), ..limits }
            }
            Err(error) => return self.abandon(state, error),
        }
        log::info!("{}: volume reopened", state.info.address);
        state.namespace = namespace;
        state.info = opened.info.clone();
        self.slots.resubmit_all(&mut opened.submissions);
        self.link = Link::Up(opened);
        self.pump(state);
    }

    fn on_refused(&mut self, state: &mut ClientState, error: ConnectError) {
        let Link::Down(outage) = &mut self.link else { return };
        let (now, reconnect) = (Instant::now(), &self.opener.options.reconnect);
        let is_over = reconnect.timeout.is_some_and(|after| now >= outage.since + after);
        if is_over || self.session.check().is_err() {
            return self.abandon(state, error);
        }
        let pause = reconnect.pause(outage.attempt);
        outage.next = now + pause;
        outage.attempt_result = None;
        log::info!(
            "{}: cannot reopen the volume: {error}; next attempt in {} ms",
            state.info.address,
            pause.as_millis()
        );
    }

    /// Returns when to check a volume that is down.
    pub(super) fn link_due(&self) -> Option<Instant> {
        match &self.link {
            Link::Down(outage) if outage.attempt_result.is_none() => Some(outage.next),
            _ => None,
        }
    }

    /// Closes the client for good: every request fails.
    #[cold]
    pub(super) fn abandon(&mut self, state: &mut ClientState, error: ConnectError) {
        log::error!("{}: {error}", state.info.address);
        let error = Arc::new(error);
        self.link = Link::Closed;
        state.closed = Some(Arc::clone(&error));
        self.backlog.clear();
        for (tag, buffer) in self.slots.drain() {
            let part = Part::from_tag(tag);
            let Some(request) = state.requests.get_mut(part.slot) else { continue };
            request.return_buffer(part.index, buffer);
        }
        state.requests.abort_all(|request| {
            let is_uncertain = request.in_flight > 0 && request.operation.changes_blocks();
            if is_uncertain { RequestError::FateUnknown } else { RequestError::Lost(Arc::clone(&error)) }
        });
    }
}
