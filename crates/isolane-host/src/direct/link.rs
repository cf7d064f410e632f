//! Changes of the association: connected, lost, reconnecting, closed.
//!
//! Losing one connection loses the association, and all its connections are reset. Commands in flight go to
//! `replay`, which decides what to repeat. A thread makes the new association, with growing delays.
//!
//! Invariant: while the association is down, an attempt to connect is in progress or has a due time.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_proto::host::{Abandoned, Completed};
use isolane_shm::with_signals_blocked;

use super::association::{Link, LiveAssociation, Outage};
use super::graceful_close;
use super::lane::DisconnectReason;
use super::{Direct, Message};
use crate::client_state::ClientState;
use crate::connect::expiry::OldAssociation;
use crate::connect::fence::{MAX_FENCES, NewAssociation};
use crate::connect::journal::{JournalEntry, StaleAssociation};
use crate::connect::{self, Association, BlockingConnection};
use crate::difference::Difference;
use crate::error::{ConnectError, RequestError};
use crate::info::{Info, NamespaceInfo};
use crate::io_limits::IoLimits;
use crate::options::{Reconnect, WriteReplay};
use crate::request_table::{Part, PartRange};
use crate::unflushed::Era;

/// Reason for the failure of commands that were repeated for the whole time of reconnecting.
const UNANSWERED: &str = "the target does not answer a command, also after reconnecting; check its storage";

/// Time for the target to shut its controller down.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

impl Direct {
    /// Starts to use an association. A closed client drops it.
    pub(super) fn on_connected(
        &mut self,
        state: &mut ClientState,
        association: Association,
    ) -> Result<(), ConnectError> {
        let Link::Down(outage) = self.link else { return Ok(()) };
        check_volume(state, &association.info)?;
        self.check_quiesce(&association.info)?;
        let info = association.info.clone();
        let era = Era::new(&info, &state.namespace, self.plan.flush_after_loss());
        let cntlid = info.controller.cntlid;
        let new = NewAssociation { address: info.address, cntlid, started_at: association.started_at };
        let keep_alive = self.plan.options.keep_alive;
        self.retries.set_delays(association.retry_delays);
        let nsid = state.namespace.nsid;
        let mut live = LiveAssociation::adopt(association, nsid, keep_alive, outage, &mut self.reactor)
            .map_err(|source| ConnectError::system("a socket", source))?;
        live.waits_for_progress = state.requests.len() > 0;
        if let Some(error) = state.unflushed.enter(era) {
            log::error!("{}: the next flush fails: {error}", info.address);
        }
        self.replay.on_association(&new, self.plan.options.reconnect.writes);
        self.remap_backlog(state, info.negotiated.lanes);
        self.link = Link::Up(Box::new(live));
        state.info = info;
        self.now = Instant::now();
        self.housekeeping = self.now;
        self.apply_verdicts(state);
        (0..self.backlogs.len()).for_each(|lane| self.pump(state, lane));
        Ok(())
    }

    /// Rejects an association whose writes, if lost, could never be known to have ended.
    fn check_quiesce(&self, info: &Info) -> Result<(), ConnectError> {
        let Reconnect { writes, .. } = &self.plan.options.reconnect;
        let quiesce = self.plan.options.reconnect.quiesce_time(info.controller.command_quiesce_time);
        match quiesce {
            None if *writes == WriteReplay::AfterTimeout => Err(ConnectError::NoQuiesceTime(info.address)),
            _ => Ok(()),
        }
    }

    pub(super) fn on_message(&mut self, state: &mut ClientState, message: Message) {
        match message {
            // A closed client drops the association.
            Message::Connected(_) if !matches!(self.link, Link::Down(_)) => {}
            Message::Connected(Ok(association)) => {
                if let Err(error) = self.on_connected(state, *association) {
                    self.on_failed_attempt(state, error);
                } else {
                    log::info!("{}: reconnected", state.info.address);
                }
            }
            Message::Connected(Err(error)) => self.on_failed_attempt(state, error),
            Message::Fenced { id, verdict } => {
                self.replay.on_verdict(id, verdict);
                self.apply_verdicts(state);
            }
        }
    }

    pub(super) fn on_admin_completed(
        &mut self,
        state: &mut ClientState,
        completed: Completed,
    ) -> Result<(), DisconnectReason> {
        let Link::Up(live) = &mut self.link else { return Ok(()) };
        let Some(now) = live.admin.on_completed(completed)? else { return Ok(()) };
        let nsid = now.nsid;
        if let Some(difference) = Difference::of(&now, &state.namespace) {
            return Err(DisconnectReason::VolumeChanged { nsid, difference });
        }
        if now.blocks != state.namespace.blocks {
            log::info!("namespace {nsid} has {} blocks now", now.blocks);
        }
        state.limits.capacity_blocks = now.blocks;
        state.namespace = NamespaceInfo { generation: state.namespace.generation, ..now };
        Ok(())
    }

    /// Handles the loss of the association: resets its connections, sorts the commands in flight, and schedules
    /// an attempt to reconnect.
    pub(super) fn on_disconnect(&mut self, state: &mut ClientState, reason: &DisconnectReason) {
        let Link::Up(live) = &self.link else { return };
        let outage = Outage::after(live, &self.plan.options.reconnect, self.now);
        let Link::Up(mut live) = std::mem::replace(&mut self.link, Link::Down(outage)) else { return };
        let is_unanswered = live.has_only_unanswered();
        let in_flight: usize = live.lanes.iter().map(|lane| lane.conn.in_flight()).sum();
        let ends = outage.is_over(&self.plan.options.reconnect, self.now)
            || matches!(reason, DisconnectReason::VolumeChanged { .. });
        let next = if ends { "giving up" } else { "reconnecting" };
        log::warn!("{}: {reason}; {in_flight} commands in flight, {next}", state.info.address);
        let entry = live.entry.take();
        live.reset_all(&mut self.reactor)
            .into_iter()
            .for_each(|abandoned| self.on_abandoned(state, abandoned));
        let association = StaleAssociation::of(&state.info, &self.plan.options);
        let old = OldAssociation { association, died: Instant::now() };
        self.replay.raise_fence(old, entry, &self.plan);
        self.apply_verdicts(state);
        self.housekeeping = self.now;
        if let DisconnectReason::VolumeChanged { difference, .. } = reason {
            return self.fail_all(state, ConnectError::VolumeChanged(*difference));
        }
        if outage.is_over(&self.plan.options.reconnect, self.now) {
            let reason = if is_unanswered { UNANSWERED.to_owned() } else { reason.to_string() };
            self.fail_all(state, ConnectError::Lost { address: state.info.address, reason });
        }
    }

    fn on_abandoned(&mut self, state: &mut ClientState, abandoned: Abandoned) {
        let part = Part::from_tag(abandoned.tag);
        let Some(request) = state.requests.get_mut(part.slot) else { return };
        request.in_flight -= 1;
        request.return_buffer(part.index, abandoned.buffer);
        let lost_since = request.record_loss(self.now);
        let timeout = self.plan.options.reconnect.timeout;
        if timeout.is_some_and(|timeout| !timeout.is_zero() && self.now >= lost_since + timeout) {
            let (address, reason) = (state.info.address, UNANSWERED.to_owned());
            request.fail(RequestError::Lost(Arc::new(ConnectError::Lost { address, reason })));
        }
        if abandoned.sent && request.operation.changes_blocks() {
            self.replay.record_uncertain(part, request);
        } else {
            self.backlogs[request.lane].push_front(PartRange::one(part));
        }
    }

    /// Starts an attempt to connect if one is due.
    pub(super) fn poll_reconnect(&mut self, state: &mut ClientState) {
        let Link::Down(outage) = &mut self.link else { return };
        let is_due = outage.next.is_some_and(|next| self.now >= next);
        if !is_due {
            return;
        }
        if self.replay.fences() >= MAX_FENCES {
            if outage.is_over(&self.plan.options.reconnect, self.now) {
                let reason = format!("{MAX_FENCES} controllers of lost associations may still be alive");
                let address = state.info.address;
                self.fail_all(state, ConnectError::Lost { address, reason });
            }
            return;
        }
        outage.next = None;
        outage.attempt += 1;
        let (plan, sender) = (Arc::clone(&self.plan), self.sender.clone());
        let attempt = move || {
            let result = connect::associate(&plan).map(Box::new);
            // A dropped client needs no association, which is then closed.
            let _ = sender.send(Message::Connected(result));
        };
        let thread = std::thread::Builder::new().name("isolane-connect".to_owned());
        let thread = with_signals_blocked(|| thread.spawn(attempt));
        if let Err(error) = thread {
            self.on_failed_attempt(state, ConnectError::system("a thread", error));
        }
    }

    fn on_failed_attempt(&mut self, state: &mut ClientState, error: ConnectError) {
        let Link::Down(outage) = &mut self.link else { return };
        let (reconnect, address) = (&self.plan.options.reconnect, state.info.address);
        if outage.is_over(reconnect, self.now) || !error.is_transient() {
            log::error!("{address}: cannot reconnect: {error}");
            return self.fail_all(state, error);
        }
        let pause = reconnect.pause(outage.attempt);
        outage.next = Some(self.now + pause);
        self.housekeeping = self.now;
        let (attempt, next) = (outage.attempt, pause.as_millis());
        log::info!("{address}: attempt {attempt} to reconnect failed: {error}; next in {next} ms");
    }

    /// Closes the client for good: every request fails.
    pub(super) fn fail_all(&mut self, state: &mut ClientState, error: ConnectError) {
        let error = Arc::new(error);
        self.replay.abandon(&mut state.requests);
        self.retries.clear();
        self.backlogs.iter_mut().for_each(|backlog| backlog.clear());
        self.link = Link::Closed;
        state.closed = Some(Arc::clone(&error));
        state.requests.abort_all(|_| RequestError::Lost(Arc::clone(&error)));
    }

    /// Shuts the association down: I/O connections first, then CC.SHN over the admin queue. Commands in flight get
    /// no completion.
    pub(crate) fn close(mut self) {
        let Link::Up(live) = std::mem::replace(&mut self.link, Link::Closed) else { return };
        let LiveAssociation { admin, lanes, entry, .. } = *live;
        for (socket, _) in lanes.into_iter().filter_map(|lane| lane.into_parts(&mut self.reactor)) {
            graceful_close::clear_abortive_close(&socket);
        }
        let Some((socket, queue)) = admin.lane.into_parts(&mut self.reactor) else { return };
        graceful_close::clear_abortive_close(&socket);
        let resumed = BlockingConnection::resume(TcpStream::from(socket), queue, SHUTDOWN_TIMEOUT);
        let ended = resumed
            .map_err(|error| error.to_string())
            .and_then(|connection| connect::shutdown(connection).map_err(|error| error.to_string()));
        match ended {
            Ok(()) => entry.into_iter().for_each(JournalEntry::on_dead),
            Err(error) => {
                log::info!("{}: controller not shut down cleanly: {error}", self.plan.uri.authority());
            }
        }
    }
}

/// Updates the description of the volume, which must be the same volume as before.
fn check_volume(state: &mut ClientState, info: &Info) -> Result<(), ConnectError> {
    let namespace = info.choose(Some(state.namespace.nsid))?;
    if let Some(difference) = Difference::of_volume((info, namespace), (&state.info, &state.namespace)) {
        return Err(ConnectError::VolumeChanged(difference));
    }
    state.limits = IoLimits::new(namespace, info)?;
    state.namespace = namespace.clone();
    Ok(())
}
