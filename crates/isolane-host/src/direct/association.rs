//! State of the association: connected, down, or closed for good.

use std::io;
use std::time::{Duration, Instant};

use isolane_proto::host::Abandoned;
use isolane_reactor::{Reactor, Token};

use super::admin_queue::AdminQueue;
use super::graceful_close;
use super::lane::Lane;
use crate::connect::Association;
use crate::connect::journal::JournalEntry;
use crate::options::Reconnect;

/// State of the association.
pub(super) enum Link {
    Up(Box<LiveAssociation>),
    Down(Outage),
    /// [`ClientState::closed`](crate::client_state::ClientState::closed) has the reason.
    Closed,
}

/// Time without an association, including associations that lived only briefly.
#[derive(Clone, Copy)]
pub(super) struct Outage {
    pub since: Instant,
    /// Attempts to connect.
    pub attempt: u32,
    /// When the next attempt is due; `None` during an attempt.
    pub next: Option<Instant>,
}

impl Outage {
    /// Before the first association.
    pub(super) fn initial() -> Outage {
        Outage { since: Instant::now(), attempt: 0, next: None }
    }

    /// Begins with the loss of an association. Continues the previous outage if the association lived less than
    /// the longest delay, or has completed none of the commands that it repeated: a target that drops every
    /// association, or never answers, must not be flooded, nor tried forever.
    pub(super) fn after(lost: &LiveAssociation, reconnect: &Reconnect, now: Instant) -> Outage {
        if now >= lost.connected_at + reconnect.max_delay && !lost.has_only_unanswered() {
            return Outage { since: now, attempt: 0, next: Some(now) };
        }
        Outage { next: Some(now + reconnect.pause(lost.outage.attempt)), ..lost.outage }
    }

    /// Returns the time until the next attempt.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        self.next.map_or(Duration::MAX, |next| next.saturating_duration_since(now))
    }

    /// Returns whether the client must stop trying to connect.
    pub(super) fn is_over(&self, reconnect: &Reconnect, now: Instant) -> bool {
        reconnect.timeout.is_some_and(|after| now >= self.since + after)
    }
}

/// Connections of an association in use.
pub(super) struct LiveAssociation {
    pub admin: AdminQueue,
    pub lanes: Vec<Lane>,
    /// Queues by the index of a token.
    queues: Vec<Option<QueueId>>,
    pub connected_at: Instant,
    /// Whether it repeats commands of the association before, and none of its commands has completed.
    pub waits_for_progress: bool,
    /// The outage that it ended.
    pub outage: Outage,
    /// Its entry in the journal.
    pub entry: Option<JournalEntry>,
}

/// A queue of the association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueId {
    Admin,
    Lane(usize),
}

impl LiveAssociation {
    /// Returns whether a connection has data to send that its socket accepts.
    pub(super) fn wants_transmit(&self) -> bool {
        self.lanes.iter().any(Lane::wants_transmit) || self.admin.lane.wants_transmit()
    }

    /// Registers the sockets of a new association.
    pub(super) fn adopt(
        association: Association,
        nsid: u32,
        keep_alive: Duration,
        outage: Outage,
        reactor: &mut Reactor,
    ) -> io::Result<LiveAssociation> {
        let Association { admin, lanes, note: mut entry, max_async_events, .. } = association;
        if entry.is_some() {
            let connections = lanes.iter().chain([&admin]);
            connections.for_each(|connection| graceful_close::set_abortive_close(&connection.stream));
        }
        let admin = Lane::adopt(admin, reactor)?;
        let connected_at = Instant::now();
        let admin = AdminQueue::new(admin, nsid, keep_alive, max_async_events, connected_at);
        entry.iter_mut().for_each(JournalEntry::on_use);
        let mut live = LiveAssociation {
            admin,
            lanes: Vec::with_capacity(lanes.len()),
            queues: Vec::new(),
            connected_at,
            waits_for_progress: false,
            outage,
            entry,
        };
        live.register(live.admin.lane.token, QueueId::Admin);
        for connection in lanes {
            match Lane::adopt(connection, reactor) {
                Ok(lane) => {
                    live.register(lane.token, QueueId::Lane(live.lanes.len()));
                    live.lanes.push(lane);
                }
                Err(error) => {
                    live.entry.take().into_iter().for_each(JournalEntry::on_dead);
                    live.reset_all(reactor);
                    return Err(error);
                }
            }
        }
        Ok(live)
    }

    /// Whether it repeats commands, and has completed none.
    pub(super) fn has_only_unanswered(&self) -> bool {
        self.waits_for_progress && self.lanes.iter().any(|lane| lane.conn.in_flight() > 0)
    }

    /// Resets all connections and returns the commands in flight on the lanes.
    pub(super) fn reset_all(self, reactor: &mut Reactor) -> Vec<Abandoned> {
        let abandoned = self.lanes.into_iter().flat_map(|lane| lane.abandon(reactor)).collect();
        self.admin.lane.abandon(reactor);
        abandoned
    }

    fn register(&mut self, token: Token, queue: QueueId) {
        let len = self.queues.len().max(token.index() + 1);
        self.queues.resize(len, None);
        self.queues[token.index()] = Some(queue);
    }

    /// Returns the queue of a token, or `None` for a token of an earlier association.
    pub(super) fn queue(&self, token: Token) -> Option<QueueId> {
        let queue = (*self.queues.get(token.index())?)?;
        let lane = match queue {
            QueueId::Admin => &self.admin.lane,
            QueueId::Lane(index) => &self.lanes[index],
        };
        (lane.token == token).then_some(queue)
    }

    /// Returns the connection of a queue.
    pub(super) fn lane_mut(&mut self, queue: QueueId) -> &mut Lane {
        match queue {
            QueueId::Admin => &mut self.admin.lane,
            QueueId::Lane(index) => &mut self.lanes[index],
        }
    }
}
