//! One turn of a client: sends queued commands, receives, completes requests, and checks timeouts when due.
//!
//! Invariant: commands that the events of a turn cause are sent before the turn ends.

use std::time::{Duration, Instant};

use isolane_observe::snapshot::SlowOperation;
use isolane_reactor::{Event, Token};
use rustix::fd::BorrowedFd;

use super::Direct;
use super::association::{Link, QueueId};
use super::lane::{DisconnectReason, Lane};
use crate::client::{Backend, Client};
use crate::client_state::ClientState;
use crate::error::ConnectError;
use crate::request::{Completion, Wait};
use crate::request_table::Part;

impl Client {
    /// Turns the client once: sends queued requests, receives, and appends completions. Waits if nothing happens;
    /// a [`Client::waker`] ends the wait. Returns the number of completions.
    pub fn turn(&mut self, completions: &mut Vec<Completion>, wait: Wait) -> usize {
        let Client { backend, state, .. } = self;
        let direct = match backend {
            Backend::Direct(direct) => direct,
            Backend::Engine(engine) => return engine.serve(state, completions, wait),
        };
        direct.woken = false;
        Client::transmit(direct, state);
        loop {
            let (deadline, mut events) = (direct.deadline(state, wait), std::mem::take(&mut direct.events));
            if let Err(error) = direct.reactor.turn(Some(deadline), &mut events) {
                direct.on_disconnect(state, &DisconnectReason::Socket(error.to_string()));
                direct.fail_all(state, ConnectError::system("a turn of the reactor", error));
            }
            direct.now = direct.reactor.now();
            for event in events.drain(..) {
                match event {
                    Event::Readable(token) => Client::receive(direct, state, token),
                    other => direct.on_event(state, &other),
                }
            }
            direct.events = events;
            if direct.now >= direct.housekeeping {
                direct.run_housekeeping(state);
            }
            Client::transmit(direct, state);
            let finished = state.requests.take_completions(completions);
            if finished > 0 || direct.woken || wait.is_over(direct.now) {
                return finished;
            }
        }
    }

    /// Sends the queued commands of all lanes. The coalescer may delay them, except on lanes of the poll
    /// class. With several lanes, each sends a share per turn, so that reads and urgent requests do not wait
    /// for megabytes of another lane.
    fn transmit(direct: &mut Direct, state: &mut ClientState) {
        let was_delaying = direct.coalescer.is_delaying();
        let delayed = direct.coalescer.should_wait(state.requests.len(), direct.now);
        direct.has_more = false;
        let observer = &mut state.requests.observer;
        let Link::Up(live) = &mut direct.link else { return observer.on_sent(delayed) };
        if !live.wants_transmit() {
            return observer.on_sent(delayed);
        }
        if !delayed && was_delaying {
            observer.on_delay_over();
        }
        let share = if live.lanes.len() > 1 { SHARE_BYTES } else { usize::MAX };
        let first = if delayed { state.current_lanes.total() - state.current_lanes.poll } else { 0 };
        let (reactor, lanes) = (&mut direct.reactor, &mut live.lanes[first..]);
        let (now, completed) = (direct.now, &mut direct.completed);
        let sent = lanes.iter_mut().rev().try_for_each(|lane| {
            lane.send(reactor, share)?;
            lane.take_deferred(now, completed)
        });
        direct.has_more = share < usize::MAX && lanes.iter().any(Lane::wants_transmit);
        // No admin command sends data, so none can complete while it is sent.
        let sent = sent.and_then(|()| live.admin.lane.send(reactor, usize::MAX));
        observer.on_sent(delayed);
        direct.process_lane_completions(state);
        if let Err(reason) = sent {
            direct.on_disconnect(state, &reason);
        }
    }

    /// Receives from a connection and completes requests.
    fn receive(direct: &mut Direct, state: &mut ClientState, token: Token) {
        let Link::Up(live) = &mut direct.link else { return };
        let Some(queue) = live.queue(token) else { return };
        let lane = live.lane_mut(queue);
        let (in_flight, now) = (lane.conn.in_flight(), direct.now);
        let (reactor, overflow, slow) = (&mut direct.reactor, &mut direct.overflow, &mut direct.completed);
        let controller = state.info.controller.cntlid;
        let received = match queue {
            QueueId::Admin => lane.receive(reactor, overflow, now, |completed, _| slow.push(completed)),
            QueueId::Lane(index) => lane.receive(reactor, overflow, now, |completed, received_at| {
                state.requests.observer.on_received(received_at);
                let slot = Part::from_tag(completed.tag).slot;
                let is_success = completed.digest_ok && completed.entry.status.is_success();
                if is_success && state.requests.is_single(slot) {
                    // Queues are connected in the order of lanes.
                    let connection = SlowOperation::host_connection(controller, index as u16 + 1);
                    let command = (connection, completed.entry.cid);
                    let change = state.requests.complete_single(slot, completed.buffer, command);
                    state.unflushed.on_change(change);
                } else {
                    slow.push(completed);
                }
            }),
        };
        if let (QueueId::Lane(_), Some(tag)) = (queue, lane.conn.arriving()) {
            state.requests.on_first_byte(Part::from_tag(tag).slot, lane.received_at);
        }
        live.waits_for_progress &= queue == QueueId::Admin || lane.conn.in_flight() == in_flight;
        let processed = direct.process_completions(state, queue);
        match (received.and(processed), queue) {
            (Err(reason), _) => direct.on_disconnect(state, &reason),
            (Ok(()), QueueId::Lane(lane)) => direct.pump(state, lane),
            (Ok(()), QueueId::Admin) => {}
        }
    }
}

impl Direct {
    /// Returns when the next turn of the reactor must end.
    fn deadline(&self, state: &ClientState, wait: Wait) -> Instant {
        let is_busy = state.requests.has_finished() || self.has_more || self.coalescer.is_delaying();
        let deadline = if is_busy { Some(self.now) } else { wait.deadline(self.now) };
        deadline.map_or(self.housekeeping, |deadline| deadline.min(self.housekeeping))
    }

    fn on_event(&mut self, state: &mut ClientState, event: &Event) {
        match event {
            Event::Writable(token) => {
                if let Link::Up(live) = &mut self.link
                    && let Some(queue) = live.queue(*token)
                {
                    live.lane_mut(queue).blocked = false;
                }
            }
            Event::Woken => {
                self.woken = true;
                while let Some(message) = self.messages.poll() {
                    self.on_message(state, message);
                }
            }
            Event::Readable(_) | Event::Accepted { .. } | Event::File(_) => {}
        }
    }

    /// Processes the completions of a queue that [`Client::receive`] did not.
    fn process_completions(
        &mut self,
        state: &mut ClientState,
        queue: QueueId,
    ) -> Result<(), DisconnectReason> {
        if self.completed.is_empty() {
            return Ok(());
        }
        let mut completed = std::mem::take(&mut self.completed);
        let processed = completed.drain(..).try_for_each(|completed| match queue {
            QueueId::Lane(_) => {
                self.on_completed(state, completed);
                Ok(())
            }
            QueueId::Admin => self.on_admin_completed(state, completed),
        });
        self.completed = completed;
        processed
    }

    fn process_lane_completions(&mut self, state: &mut ClientState) {
        // Only completions of the admin queue can end the association.
        let _ = self.process_completions(state, QueueId::Lane(0));
    }

    /// Runs the work that needs no exact time: keep alive, timeouts, retries, and reconnecting.
    fn run_housekeeping(&mut self, state: &mut ClientState) {
        if let Err(reason) = self.handle_timeouts(state).and_then(|()| self.check_command_timeouts(state)) {
            self.on_disconnect(state, &reason);
        }
        self.poll_reconnect(state);
        self.send_due_retries(state);
        state.requests.observer.tick();
        self.housekeeping = self.now + self.housekeeping_interval();
    }

    fn handle_timeouts(&mut self, state: &mut ClientState) -> Result<(), DisconnectReason> {
        let Link::Up(live) = &mut self.link else { return Ok(()) };
        let (now, completed) = (self.now, &mut self.completed);
        let handled = live.lanes.iter_mut().try_for_each(|lane| lane.handle_timeout(now, completed));
        let handled = handled.and_then(|()| live.admin.handle_timeout(now));
        self.process_lane_completions(state);
        handled
    }

    /// Checks for commands without a completion.
    fn check_command_timeouts(&self, state: &mut ClientState) -> Result<(), DisconnectReason> {
        let (now, timeout) = (self.now, self.plan.options.command_timeout);
        for request in state.requests.iter_mut().filter(|request| request.in_flight > 0) {
            if now.saturating_duration_since(*request.seen_in_flight.get_or_insert(now)) >= timeout {
                return Err(DisconnectReason::CommandTimeout);
            }
        }
        Ok(())
    }

    fn housekeeping_interval(&self) -> Duration {
        let options = &self.plan.options;
        let interval = match (&self.link, options.keep_alive) {
            (Link::Down(outage), _) => outage.wait(self.now),
            (_, Duration::ZERO) => MAX_HOUSEKEEPING_INTERVAL,
            (_, keep_alive) => keep_alive / 8,
        };
        let retry = self.retries.next().map(|due| due.saturating_duration_since(self.now));
        interval
            .min(options.command_timeout / 4)
            .min(retry.unwrap_or(Duration::MAX))
            .clamp(MIN_HOUSEKEEPING_INTERVAL, MAX_HOUSEKEEPING_INTERVAL)
    }

    /// Returns the descriptor to wait on, as [`crate::Client::wait_fd`].
    pub(crate) fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.reactor.wait_fd()
    }

    /// Prepares for a wait on the descriptor, as [`crate::Client::prepare_wait`].
    pub(crate) fn prepare_wait(&mut self, state: &ClientState) -> Option<Instant> {
        let wants_transmit = matches!(&self.link, Link::Up(live) if live.wants_transmit());
        let has_finished = state.requests.has_finished();
        if has_finished || wants_transmit || self.has_more || self.coalescer.is_delaying() {
            return None;
        }
        let deadline = self.reactor.prepare_wait()?;
        Some(deadline.map_or(self.housekeeping, |until| until.min(self.housekeeping)))
    }

    /// Ends a wait on the descriptor; without one it does nothing.
    pub(crate) fn finish_wait(&mut self) {
        self.reactor.finish_wait();
    }
}

/// Approximate maximum that each of several lanes sends in one turn.
const SHARE_BYTES: usize = 256 * 1024;

const MIN_HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(1);
const MAX_HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(250);
