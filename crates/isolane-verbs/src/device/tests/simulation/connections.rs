//! TCP connections between the two ends: hellos, their replies, and the bytes of lanes, in flight for any time.

use std::sync::atomic::AtomicBool;

use super::end::SimulatedLane;
use super::*;
use crate::wire::Hello;

/// A connection that becomes a lane. End 0 connects, and end 1 accepts.
pub(super) struct Connection {
    /// The life that has started it.
    pub(super) link: usize,
    pub(super) lane: usize,
    hello: Hello,
    reply: Option<Hello>,
    pub(super) stage: Stage,
    /// The lives at both ends that have it as a lane.
    owners: [Option<usize>; 2],
    /// Whether their queue pairs have dropped it.
    dropped: [Arc<AtomicBool>; 2],
    /// End 0 has closed it before it was a lane.
    pub(super) is_abandoned: bool,
    /// In-flight bytes of each end, and when the oldest of them was sent.
    pub(super) pipes: [VecDeque<u8>; 2],
    pub(super) sent_at: [u64; 2],
    /// Nothing more enters the pipes.
    pub(super) is_cut: bool,
}

/// Message of a handshake that is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Hello,
    Reply,
    Proof,
    Done,
}

impl Connection {
    fn new(link: usize, lane: usize, hello: Hello) -> Connection {
        Connection {
            link,
            lane,
            hello,
            reply: None,
            stage: Stage::Hello,
            owners: [None; 2],
            dropped: Default::default(),
            is_abandoned: false,
            pipes: Default::default(),
            sent_at: [0; 2],
            is_cut: false,
        }
    }

    /// Returns the life at an end that has the connection as a lane.
    pub(super) fn owner(&self, side: usize) -> Option<usize> {
        self.owners[side].filter(|_| !self.dropped[side].load(Ordering::Relaxed))
    }

    pub(super) fn is_over(&self) -> bool {
        self.stage == Stage::Done && (0..2).all(|side| self.owner(side).is_none())
    }

    /// Cuts the connection where an end has dropped it.
    fn notice_drops(&mut self) {
        for side in 0..2 {
            self.is_cut |= self.owners[side].is_some() && self.owner(side).is_none();
        }
        self.is_cut |= self.is_abandoned;
    }
}

impl Simulation {
    /// End 0 of a life starts to open a lane that is missing.
    pub(super) fn start_lane(&mut self, link: usize, lane: u8) {
        let end = &mut self.links[link].ends[0];
        let Some(attempt) = end.context.start_lane(lane).filter(|_| !end.is_dead) else { return };
        self.count(Event::CutSegment, attempt.received.bytes > 0);
        let hello = self.links[link].ends[0].hello(attempt, None);
        // It ends the attempt before.
        for connection in &mut self.connections {
            let is_same = (connection.link, connection.lane) == (link, lane.into());
            connection.is_abandoned |= is_same && connection.owner(0).is_none();
        }
        self.connections.push(Connection::new(link, lane.into(), hello));
    }

    /// Returns the life at end 1 that a hello reaches, which can be a later one with the same number.
    fn accepting_life(&mut self, link: usize) -> Option<usize> {
        let can_accept = |life: &usize| {
            !self.links[*life].ends[1].is_dead && self.links[*life].ends[1].context.has_connected()
        };
        let others: Vec<usize> =
            (0..self.links.len()).filter(|life| *life != link).filter(can_accept).collect();
        let own = Some(link).filter(|link| !self.links[*link].ends[1].is_dead);
        if !others.is_empty() && (own.is_none() || self.rng.u8(0..4) == 0) {
            return self.rng.choice(others);
        }
        own
    }

    /// The message of a handshake that is in flight arrives. Returns whether a lane is open then.
    pub(super) fn advance(&mut self, index: usize) -> bool {
        let is_lost = self.connections[index].is_cut && self.rng.bool();
        let link = self.connections[index].link;
        match std::mem::replace(&mut self.connections[index].stage, Stage::Done) {
            Stage::Hello if !is_lost => self.on_hello(index, link),
            Stage::Reply if !self.connections[index].is_cut => return self.on_reply(index, link),
            Stage::Proof if !is_lost => self.on_proof(index, link),
            _ => {}
        }
        false
    }

    fn on_hello(&mut self, index: usize, link: usize) {
        let target = self.accepting_life(link);
        let connection = &mut self.connections[index];
        let Some(target) = target else {
            connection.is_cut = true;
            return;
        };
        let end = &mut self.links[target].ends[1];
        let (hello, parameters) = (&connection.hello, end.parameters(&connection.hello));
        let is_offer = hello.capabilities.authenticated();
        let attempt = if is_offer {
            end.context.offer_lane(hello, &parameters)
        } else {
            end.context.accept_lane(hello, &parameters)
        };
        if let Some(attempt) = attempt {
            assert_eq!(target, link, "seed {}: the hello of another life is accepted", self.seed);
            connection.reply = Some(end.hello(attempt, Some(hello)));
            connection.stage = Stage::Reply;
            if !is_offer {
                let lane = Box::new(SimulatedLane(Arc::clone(&connection.dropped[1])));
                connection.owners[1] = end.context.open_lane(lane, hello, &parameters).then_some(target);
            }
        } else {
            connection.is_cut = true;
            self.count(Event::OtherLife, target != link);
        }
        self.notice_drops();
    }

    fn on_reply(&mut self, index: usize, link: usize) -> bool {
        let connection = &mut self.connections[index];
        let end = &mut self.links[link].ends[0];
        let Some(reply) = connection.reply.clone().filter(|_| !end.is_dead) else { return false };
        if reply.capabilities.authenticated() {
            connection.stage = Stage::Proof;
        }
        let parameters = end.parameters(&reply);
        let lane = Box::new(SimulatedLane(Arc::clone(&connection.dropped[0])));
        // The reply has the epoch 0 if the lane was open at the peer.
        let is_open =
            reply.epoch == connection.hello.epoch && end.context.open_lane(lane, &reply, &parameters);
        connection.owners[0] = is_open.then_some(link);
        connection.is_abandoned = !is_open;
        self.notice_drops();
        is_open
    }

    fn on_proof(&mut self, index: usize, link: usize) {
        let connection = &mut self.connections[index];
        let end = &mut self.links[link].ends[1];
        let Some(reply) = connection.reply.as_ref().filter(|_| !end.is_dead) else {
            connection.is_cut = true;
            return;
        };
        let (hello, parameters) = (&connection.hello, end.parameters(&connection.hello));
        let attempt = end.context.accept_lane(hello, &parameters);
        if attempt.is_some_and(|attempt| attempt.agrees_with(reply)) {
            let lane = Box::new(SimulatedLane(Arc::clone(&connection.dropped[1])));
            connection.owners[1] = end.context.open_lane(lane, hello, &parameters).then_some(link);
        } else {
            connection.is_cut = true;
        }
        self.notice_drops();
    }

    /// Moves bytes of an end to a connection, as a socket does.
    pub(super) fn transmit(&mut self, index: usize, side: usize, max_bytes: usize) -> usize {
        let connection = &mut self.connections[index];
        let Some(link) = connection.owner(side) else { return 0 };
        let context = &mut self.links[link].ends[side].context;
        let bytes = context.connection.transmit_to_pipe(connection.lane, max_bytes);
        context.drop_closed_lanes();
        if !connection.is_cut && !bytes.is_empty() {
            if connection.pipes[side].is_empty() {
                self.clock += 1;
                connection.sent_at[side] = self.clock;
            }
            connection.pipes[side].extend(&bytes);
        }
        self.notice_drops();
        bytes.len()
    }

    /// Delivers bytes of a connection to an end.
    pub(super) fn deliver(&mut self, index: usize, side: usize, max_bytes: usize) -> usize {
        let connection = &self.connections[index];
        let (pipe, sent_at, lane) =
            (&connection.pipes[1 - side], connection.sent_at[1 - side], connection.lane);
        let Some(link) = connection.owner(side).filter(|_| !pipe.is_empty()) else { return 0 };
        let is_older = |other: &Connection| {
            other.owner(side) == Some(link)
                && !other.pipes[1 - side].is_empty()
                && other.sent_at[1 - side] < sent_at
        };
        let overtakes = self.connections.iter().any(is_older);
        self.count(Event::Reordered, overtakes);
        let context = &mut self.links[link].ends[side].context;
        let pipe = &mut self.connections[index].pipes[1 - side];
        let count = context.connection.receive_from_pipe(lane, pipe, max_bytes, self.now);
        context.drop_closed_lanes();
        self.notice_drops();
        count
    }

    /// Cuts a connection: only a part of the sent bytes arrives before the end.
    pub(super) fn cut(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        connection.is_cut = true;
        for pipe in &mut connection.pipes {
            pipe.truncate(self.rng.usize(0..=pipe.len()));
        }
        self.count(Event::Cut, true);
    }

    /// Changes a bit in flight, if checksums detect that.
    pub(super) fn flip(&mut self, index: usize, side: usize) {
        let connection = &mut self.connections[index];
        let pipe = &mut connection.pipes[side];
        let is_checked = self.links[connection.link].ends[0].context.connection.has_checksums();
        if is_checked && !pipe.is_empty() {
            let at = self.rng.usize(0..pipe.len());
            pipe[at] ^= 1 << self.rng.u8(0..8);
            self.count(Event::Changed, true);
        }
    }

    /// An end notices that a connection is cut.
    pub(super) fn notice(&mut self, index: usize, side: usize) {
        let connection = &self.connections[index];
        if let Some(link) = connection.owner(side).filter(|_| connection.is_cut) {
            self.links[link].ends[side].context.lose_lane(connection.lane, "it is cut");
            self.notice_drops();
        }
    }

    pub(super) fn notice_drops(&mut self) {
        self.connections.iter_mut().for_each(Connection::notice_drops);
    }
}
