//! Client of a volume that an isolated engine is connected to: the same requests, through shared memory.
//!
//! ```text
//! Client::submit_with ─ accept ─ Slots::put ─ submission ring (must wait: RequestTable ─ backlog ─ pump)
//! Client::turn ─ serve: doorbell if the engine sleeps ─ outcome ring ─ reap ─ RequestTable::complete_single
//! ```
//!
//! Payload is copied into and out of slots in the session's memory. The engine never sees a caller's buffer, and a
//! later change of a slot by the engine or the target does not reach a caller. If the engine is killed, the
//! outstanding requests are submitted to its successor, which writes nothing before the associations of its
//! predecessor are known dead ([`StaleAssociation`](crate::StaleAssociation)).
//!
//! Invariants: each request gets exactly one completion; values from the engine are validated before use.

mod link;
mod open;
mod slots;
mod wait;
pub mod wire;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use isolane_attach::Session;
use isolane_reactor::spin::AdaptiveSpin;
use isolane_reactor::{Waker, clock};

use self::link::{Link, SessionEvents};
use self::open::VolumeOpener;
use self::slots::Slots;
use self::wait::FutexWaiter;
use self::wire::{Operation, Outcome, Submission};
use crate::client_state::ClientState;
use crate::error::{ConnectError, RequestError};
use crate::info::EngineStatus;
use crate::io_limits::IoLimits;
use crate::lane_class::LaneCounts;
use crate::operation;
use crate::options::Options;
use crate::reply::Reply;
use crate::request::{BlockRange, Completion, Request, Wait};
use crate::request_table::{Part, PartRange};
use crate::uri::Uri;

/// The volume of a client at an engine.
pub(crate) struct EngineVolume {
    opener: Arc<VolumeOpener>,
    session: Session,
    link: Link,
    events: Arc<SessionEvents>,
    slots: Slots,
    /// Parts that wait for a slot.
    backlog: VecDeque<PartRange>,
    waiter: FutexWaiter,
    spin: AdaptiveSpin,
    woken: bool,
    has_worked: bool,
}

impl EngineVolume {
    /// Connects to the volume through the engine that `uri` or `options` name.
    pub(crate) fn connect(uri: &Uri, options: Options) -> Result<(EngineVolume, ClientState), ConnectError> {
        let opener = Arc::new(VolumeOpener::new(uri, options)?);
        let session = opener.attach()?;
        let slots = Slots::new(&session, &opener.options)?;
        let waiter = FutexWaiter::new(&session)?;
        let opened = opener.open(&session, waiter.offset(), None)?;
        let events = SessionEvents::watch(&session, waiter.waker());
        let (info, namespace) = (opened.info.clone(), opened.info.choose(None)?.clone());
        let limits = IoLimits::new(&namespace, &info)?.within(slots.bytes());
        let options = &opener.options;
        let state = ClientState::new(info, namespace, limits, options);
        let volume = EngineVolume {
            link: Link::Up(opened),
            events,
            slots,
            backlog: VecDeque::new(),
            spin: AdaptiveSpin::new(options.mode, options.spin, Instant::now()),
            waiter,
            woken: false,
            has_worked: false,
            session,
            opener,
        };
        Ok((volume, state))
    }

    pub(crate) fn status(&self) -> Option<EngineStatus> {
        let Link::Up(opened) = &self.link else { return None };
        Some(opened.status(&self.opener.path, &self.session))
    }

    pub(crate) fn waker(&self) -> Waker {
        self.waiter.waker()
    }

    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }

    /// Does the work of [`crate::Client::turn`].
    pub(crate) fn serve(
        &mut self,
        state: &mut ClientState,
        completions: &mut Vec<Completion>,
        wait: Wait,
    ) -> usize {
        self.woken = false;
        loop {
            self.poll(state);
            let finished = state.requests.take_completions(completions);
            if finished > 0 || self.woken || !self.idle(state, wait) {
                return finished;
            }
        }
    }

    /// Publishes submissions to the engine.
    fn transmit(&mut self, state: &mut ClientState) {
        if let Link::Up(opened) = &mut self.link
            && self.slots.take_unpublished()
            && let Err(error) = opened.publish(&self.session)
        {
            self.abandon(state, error.into());
        }
        state.requests.observer.on_sent(false);
    }

    /// Closes the volume, unless commands are in flight, which the engine completes first.
    pub(crate) fn close(self) {
        if let Link::Up(opened) = self.link
            && self.slots.is_idle()
        {
            opened.close(&self.session);
        }
    }

    /// Submits a single command at once if nothing precedes it; otherwise queues the request.
    #[inline]
    pub(crate) fn accept(
        &mut self,
        state: &mut ClientState,
        lane: usize,
        range: BlockRange,
        request: Request,
        reply: Reply,
        submitted: u64,
    ) {
        if let Link::Up(opened) = &mut self.link
            && self.backlog.is_empty()
            && self.slots.has_free()
            && state.limits.parts(&range) == 1
        {
            let kind = request.kind();
            let (operation, buffer) = match request {
                Request::Read { buffer, .. } => (operation::Operation::Read, buffer),
                Request::Write { buffer, fua, .. } => (operation::Operation::Write { fua }, buffer),
                other => return self.enqueue(state, lane, range, other, reply, submitted),
            };
            let command = submission(&state.current_lanes, lane, &operation, range);
            let key = state.requests.observer.on_queued(submitted, false, kind, range.blocks);
            let tag = state.requests.insert_in_flight(reply, lane, range, key, || operation);
            self.slots.put(&mut opened.submissions, command, tag, Some(buffer));
            return;
        }
        self.enqueue(state, lane, range, request, reply, submitted);
    }

    fn enqueue(
        &mut self,
        state: &mut ClientState,
        lane: usize,
        range: BlockRange,
        request: Request,
        reply: Reply,
        submitted: u64,
    ) {
        let (slot, request) = state.insert(reply, lane, request, range, submitted);
        self.backlog.push_back(PartRange::all(slot, request));
        self.pump(state);
    }

    /// Submits waiting parts while slots are free.
    fn pump(&mut self, state: &mut ClientState) {
        while let Some(parts) = self.backlog.front_mut()
            && self.slots.has_free()
            && let Link::Up(opened) = &mut self.link
        {
            let (part, is_last) = parts.take();
            if is_last {
                self.backlog.pop_front();
            }
            let Some(request) = state.requests.get_mut(part.slot) else { continue };
            if request.has_failed() {
                request.remaining -= 1;
                state.requests.finish_if_done(part.slot);
                continue;
            }
            let lanes = state.current_lanes;
            let Some((request, range, buffer)) = state.begin_part(part) else { continue };
            let command = submission(&lanes, request.lane, &request.operation, range);
            match &request.operation {
                operation::Operation::Deallocate(ranges) => {
                    self.slots.put_ranges(&mut opened.submissions, command, part.tag(), ranges);
                }
                _ => self.slots.put(&mut opened.submissions, command, part.tag(), buffer),
            }
        }
    }

    /// Does all available work.
    #[inline]
    fn poll(&mut self, state: &mut ClientState) {
        self.woken |= self.waiter.was_woken();
        if !self.is_connected() || self.events.is_set() {
            self.poll_link(state);
        }
        self.transmit(state);
        if let Err(error) = self.reap(state) {
            self.abandon(state, error);
        }
        if !self.backlog.is_empty() {
            self.pump(state);
            self.transmit(state);
        }
    }

    /// Takes the available outcomes.
    #[inline]
    fn reap(&mut self, state: &mut ClientState) -> Result<(), ConnectError> {
        let Link::Up(opened) = &mut self.link else { return Ok(()) };
        if opened.outcomes.refresh().map_err(invalid_index)? == 0 {
            return Ok(());
        }
        self.has_worked = true;
        state.requests.observer.on_received(clock::now());
        let taken_at = self.slots.time_of_take();
        while let Some(entry) = opened.outcomes.pop() {
            let outcome = Outcome::decode(&entry).ok_or_else(malformed_outcome)?;
            let is_good = outcome.result.is_ok();
            if is_good && let Some(error) = state.unflushed.enter(outcome.era) {
                log::error!("{}: the next flush fails: {error}", state.info.address);
            }
            let (tag, buffer) = self.slots.take(outcome.tag, is_good).ok_or_else(malformed_outcome)?;
            let part = Part::from_tag(tag);
            if is_good && state.requests.is_single(part.slot) {
                let change = state.requests.complete_single(part.slot, buffer, (0, 0));
                state.unflushed.on_change(change);
            } else {
                complete_part(state, part, outcome.result, buffer);
            }
        }
        opened.outcomes.publish_at(taken_at);
        Ok(())
    }
}

#[cold]
fn complete_part(
    state: &mut ClientState,
    part: Part,
    result: Result<(), RequestError>,
    buffer: Option<isolane_memory::Buffer>,
) {
    let Some(request) = state.requests.get_mut(part.slot) else { return };
    request.in_flight -= 1;
    request.return_buffer(part.index, buffer);
    state.complete_part(part, result);
}

/// Returns a submission without a tag and payload.
#[inline]
fn submission(
    lanes: &LaneCounts,
    lane: usize,
    operation: &operation::Operation,
    range: BlockRange,
) -> Submission {
    let operation = match operation {
        operation::Operation::Read => Operation::Read,
        operation::Operation::Write { fua } => Operation::Write { fua: *fua },
        operation::Operation::Flush(_) => Operation::Flush,
        operation::Operation::WriteZeroes { fua, deallocate } => {
            Operation::WriteZeroes { fua: *fua, deallocate: *deallocate }
        }
        operation::Operation::Deallocate(_) => Operation::Deallocate,
    };
    let (class, lane) = lanes.locate(lane);
    Submission { tag: 0, operation, class, lane: lane as u16, range, offset: 0, len: 0, pushed: 0 }
}

fn invalid_index(error: isolane_shm::InvalidIndex) -> ConnectError {
    ConnectError::Engine(error.to_string())
}

#[cold]
fn malformed_outcome() -> ConnectError {
    ConnectError::Engine("outcome of an unknown command".to_owned())
}

impl From<isolane_attach::AttachError> for ConnectError {
    fn from(error: isolane_attach::AttachError) -> ConnectError {
        let (reason, raw_os_error) = (error.to_string(), error.raw_os_error());
        match error {
            isolane_attach::AttachError::Refused { .. } => ConnectError::Engine(reason),
            _ => ConnectError::Attach { reason, raw_os_error },
        }
    }
}
