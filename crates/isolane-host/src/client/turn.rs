//! One turn of a client: send what is queued, receive what has come, hand completions out.
//!
//! Invariant: what the events of a turn bring is sent before it ends.

use std::sync::Arc;
use std::time::Instant;

use isolane_reactor::{Event, Token};

use super::Client;
use super::flow::Ends;
use super::lane::{Lane, Loss};
use super::link::Link;
use super::up::Place;
use crate::error::ConnectError;
use crate::request::Completion;

/// How long a turn waits when nothing happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    None,
    /// Until then.
    Until(Instant),
    /// Until something happens.
    Forever,
}

impl Client {
    /// One turn: sends what is queued, receives what has come, and appends completions. Waits as told if
    /// there is nothing to do; a [`Client::waker`] ends the wait. Returns how many completions were appended.
    pub fn turn(&mut self, completions: &mut Vec<Completion>, wait: Wait) -> usize {
        let before = completions.len();
        self.is_woken = false;
        self.transmit();
        loop {
            self.turn_once(wait);
            self.hand_out(completions);
            if completions.len() > before || self.is_woken || wait.is_over(self.now) {
                return completions.len() - before;
            }
        }
    }

    /// Appends what has finished; to an empty list without a copy.
    fn hand_out(&mut self, completions: &mut Vec<Completion>) {
        match completions.is_empty() {
            true => std::mem::swap(completions, &mut self.finished),
            false => completions.append(&mut self.finished),
        }
    }

    fn turn_once(&mut self, wait: Wait) {
        let is_busy = !self.finished.is_empty() || self.has_more || self.holding.is_holding();
        let deadline = if is_busy { Some(self.now) } else { wait.deadline(self.now) };
        let deadline = deadline.map_or(self.housekeeping, |deadline| deadline.min(self.housekeeping));
        let mut events = std::mem::take(&mut self.events);
        if let Err(error) = self.reactor.turn(Some(deadline), &mut events) {
            self.lose(&Loss::Socket(error.to_string()));
            self.fail_all(ConnectError::System { what: "a turn of the reactor", source: Arc::new(error) });
        }
        self.now = self.reactor.now();
        for event in events.drain(..) {
            self.on_event(event);
        }
        self.events = events;
        if self.now >= self.housekeeping {
            self.keep_house();
        }
        self.transmit();
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Readable(token) => self.receive(token),
            Event::Writable(token) => {
                if let Link::Up(up) = &mut self.link {
                    up.lane_mut(token).into_iter().for_each(|lane| lane.on_writable());
                }
            }
            Event::Woken => {
                self.is_woken = true;
                while let Some(message) = self.messages.poll() {
                    self.on_message(message);
                }
            }
            Event::Accepted { .. } | Event::File(_) => {}
        }
    }

    fn receive(&mut self, token: Token) {
        let Link::Up(up) = &mut self.link else { return };
        let Some(place) = up.place(token) else { return };
        let (reactor, overflow, now) = (&mut self.reactor, &mut self.overflow, self.now);
        let (tasks, finished, answers) = (&mut self.tasks, &mut self.finished, &mut self.answers);
        let received = match place {
            Place::Lane(lane) => {
                let mut ends = Ends { tasks, finished, answers, unflushed: &mut self.unflushed };
                up.lanes[lane].receive(reactor, overflow, now, &mut ends)
            }
            Place::Admin => up.keeper.lane.receive(reactor, overflow, now, answers),
        };
        let handled = self.handle_answers(place);
        match (received.and(handled), place) {
            (Err(loss), _) => self.lose(&loss),
            (Ok(()), Place::Lane(lane)) => self.pump(lane),
            (Ok(()), Place::Admin) => {}
        }
    }

    /// Acts on what a connection has answered.
    fn handle_answers(&mut self, place: Place) -> Result<(), Loss> {
        if self.answers.is_empty() {
            return Ok(());
        }
        let mut answers = std::mem::take(&mut self.answers);
        let handled = answers.drain(..).try_for_each(|answer| match place {
            Place::Lane(_) => {
                self.on_answer(answer);
                Ok(())
            }
            Place::Admin => self.on_admin_answer(answer),
        });
        self.answers = answers;
        handled
    }

    /// Sends what the lanes have queued, unless it is held; what is on lanes of the poll class never is. With
    /// several lanes each has its share of a turn, lest the others, those for reads and urgent requests
    /// before all, wait for megabytes of one.
    pub(crate) fn transmit(&mut self) {
        let is_held = self.holding.holds(self.tasks.len(), self.now);
        self.has_more = false;
        let Link::Up(up) = &mut self.link else { return };
        if !up.wants_transmit() {
            return;
        }
        let share = if up.lanes.len() > 1 { SHARE_BYTES } else { usize::MAX };
        let (reactor, now, answers) = (&mut self.reactor, self.now, &mut self.answers);
        let held = if is_held { self.classes.total() - self.classes.poll } else { 0 };
        let lanes = &mut up.lanes[held..];
        let sent = lanes.iter_mut().rev().try_for_each(|lane| lane.transmit(reactor, share, now, answers));
        self.has_more = share < usize::MAX && lanes.iter().any(Lane::wants_transmit);
        let sent = sent.and_then(|()| up.keeper.transmit(reactor, now));
        self.answer_lanes();
        if let Err(loss) = sent {
            self.lose(&loss);
        }
    }

    pub(super) fn answer_lanes(&mut self) {
        // Only the admin connection's answers can show a loss.
        let _ = self.handle_answers(Place::Lane(0));
    }
}

impl Wait {
    fn deadline(self, now: Instant) -> Option<Instant> {
        match self {
            Wait::None => Some(now),
            Wait::Until(deadline) => Some(deadline),
            Wait::Forever => None,
        }
    }

    fn is_over(self, now: Instant) -> bool {
        self.deadline(now).is_some_and(|deadline| now >= deadline)
    }
}

/// What each of several lanes sends in one turn, about.
const SHARE_BYTES: usize = 256 * 1024;
