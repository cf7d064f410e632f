//! One turn of a client: sends queued commands, receives, completes requests, and checks timeouts when due.
//!
//! Invariant: commands that the events of a turn cause are sent before the turn ends.

use std::time::{Duration, Instant};

use isolane_proto::host::Completed;
use isolane_reactor::{Event, Token};
use rustix::fd::BorrowedFd;

use super::Client;
use super::association::{Link, QueueId};
use super::lane::{CompletionSink, DisconnectReason, Lane};
use crate::client_state::ClientState;
use crate::error::ConnectError;
use crate::request::{Completion, Wait};
use crate::request_table::Part;

impl Client {
    /// Turns the client once, as [`crate::Client::turn`].
    pub(crate) fn turn(&mut self, completions: &mut Vec<Completion>, wait: Wait) -> usize {
        self.woken = false;
        self.transmit();
        loop {
            self.turn_once(wait);
            let finished = self.state.requests.take_completions(completions);
            if finished > 0 || self.woken || wait.is_over(self.now) {
                return finished;
            }
        }
    }

    fn turn_once(&mut self, wait: Wait) {
        let is_busy = self.state.requests.has_finished() || self.has_more || self.coalescer.is_delaying();
        let deadline = if is_busy { Some(self.now) } else { wait.deadline(self.now) };
        let deadline = deadline.map_or(self.housekeeping, |deadline| deadline.min(self.housekeeping));
        let mut events = std::mem::take(&mut self.events);
        if let Err(error) = self.reactor.turn(Some(deadline), &mut events) {
            self.on_disconnect(&DisconnectReason::Socket(error.to_string()));
            self.fail_all(ConnectError::system("a turn of the reactor", error));
        }
        self.now = self.reactor.now();
        for event in events.drain(..) {
            self.on_event(event);
        }
        self.events = events;
        if self.now >= self.housekeeping {
            self.run_housekeeping();
        }
        self.transmit();
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Readable(token) => self.receive(token),
            Event::Writable(token) => {
                if let Link::Up(live) = &mut self.link
                    && let Some(queue) = live.queue(token)
                {
                    live.lane_mut(queue).on_writable();
                }
            }
            Event::Woken => {
                self.woken = true;
                while let Some(message) = self.messages.poll() {
                    self.on_message(message);
                }
            }
            Event::Accepted { .. } | Event::File(_) => {}
        }
    }

    fn receive(&mut self, token: Token) {
        let Link::Up(live) = &mut self.link else { return };
        let Some(queue) = live.queue(token) else { return };
        let (reactor, overflow, now) = (&mut self.reactor, &mut self.overflow, self.now);
        let slow = &mut self.completed;
        let received = match queue {
            QueueId::Lane(lane) => {
                let mut completions = LaneCompletions { state: &mut self.state, slow };
                let in_flight = live.lanes[lane].in_flight();
                let received = live.lanes[lane].receive(reactor, overflow, now, &mut completions);
                live.waits_for_progress &= live.lanes[lane].in_flight() == in_flight;
                received
            }
            QueueId::Admin => live.admin.lane.receive(reactor, overflow, now, slow),
        };
        let processed = self.process_completions(queue);
        match (received.and(processed), queue) {
            (Err(reason), _) => self.on_disconnect(&reason),
            (Ok(()), QueueId::Lane(lane)) => self.pump(lane),
            (Ok(()), QueueId::Admin) => {}
        }
    }

    /// Processes the completions of a queue that [`LaneCompletions`] did not.
    fn process_completions(&mut self, queue: QueueId) -> Result<(), DisconnectReason> {
        if self.completed.is_empty() {
            return Ok(());
        }
        let mut completed = std::mem::take(&mut self.completed);
        let processed = completed.drain(..).try_for_each(|completed| match queue {
            QueueId::Lane(_) => {
                self.on_completed(completed);
                Ok(())
            }
            QueueId::Admin => self.on_admin_completed(completed),
        });
        self.completed = completed;
        processed
    }

    fn process_lane_completions(&mut self) {
        // Only completions of the admin queue can end the association.
        let _ = self.process_completions(QueueId::Lane(0));
    }

    /// Sends the queued commands of all lanes. The coalescer may delay them, except on lanes of the poll
    /// class. With several lanes, each sends a share per turn, so that reads and urgent requests do not wait
    /// for megabytes of another lane.
    fn transmit(&mut self) {
        let delayed = self.coalescer.should_wait(self.state.requests.len(), self.now);
        self.has_more = false;
        let Link::Up(live) = &mut self.link else { return };
        if !live.wants_transmit() {
            return;
        }
        let share = if live.lanes.len() > 1 { SHARE_BYTES } else { usize::MAX };
        let (reactor, now, completed) = (&mut self.reactor, self.now, &mut self.completed);
        let delayed = if delayed { self.lanes.total() - self.lanes.poll } else { 0 };
        let lanes = &mut live.lanes[delayed..];
        let sent = lanes.iter_mut().rev().try_for_each(|lane| lane.transmit(reactor, share, now, completed));
        self.has_more = share < usize::MAX && lanes.iter().any(Lane::wants_transmit);
        let sent = sent.and_then(|()| live.admin.transmit(reactor, now));
        self.process_lane_completions();
        if let Err(reason) = sent {
            self.on_disconnect(&reason);
        }
    }

    /// Runs the work that needs no exact time: keep alive, timeouts, retries, and reconnecting.
    fn run_housekeeping(&mut self) {
        if let Err(reason) = self.handle_timeouts().and_then(|()| self.check_command_timeouts()) {
            self.on_disconnect(&reason);
        }
        self.poll_reconnect();
        self.send_due_retries();
        self.housekeeping = self.now + self.housekeeping_interval();
    }

    fn handle_timeouts(&mut self) -> Result<(), DisconnectReason> {
        let Link::Up(live) = &mut self.link else { return Ok(()) };
        let (now, completed) = (self.now, &mut self.completed);
        let handled = live.lanes.iter_mut().try_for_each(|lane| lane.handle_timeout(now, completed));
        let handled = handled.and_then(|()| live.admin.handle_timeout(now));
        self.process_lane_completions();
        handled
    }

    /// Checks for commands without a completion.
    fn check_command_timeouts(&mut self) -> Result<(), DisconnectReason> {
        let (now, timeout) = (self.now, self.plan.options.command_timeout);
        for request in self.state.requests.iter_mut().filter(|request| request.in_flight > 0) {
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
    pub(crate) fn prepare_wait(&mut self) -> Option<Instant> {
        let wants_transmit = matches!(&self.link, Link::Up(live) if live.wants_transmit());
        let has_finished = self.state.requests.has_finished();
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

/// Completions of one lane.
struct LaneCompletions<'a> {
    state: &'a mut ClientState,
    /// Completions that need [`Client::on_completed`].
    slow: &'a mut Vec<Completed>,
}

impl CompletionSink for LaneCompletions<'_> {
    #[inline(always)]
    fn push(&mut self, completed: Completed) {
        let slot = Part::from_tag(completed.tag).slot;
        if completed.digest_ok && completed.entry.status.is_success() && self.state.requests.is_single(slot) {
            let change = self.state.requests.complete_single(slot, completed.buffer);
            return self.state.unflushed.on_change(change);
        }
        self.slow.push(completed);
    }
}

/// Approximate maximum that each of several lanes sends in one turn.
const SHARE_BYTES: usize = 256 * 1024;

const MIN_HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(1);
const MAX_HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(250);
