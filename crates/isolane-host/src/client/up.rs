//! An association that is up: its connections, and which of them a token names.
//!
//! Invariant: the places know every connection by its token, and none of an association that is gone.

use std::io;
use std::time::{Duration, Instant};

use isolane_proto::host::Abandoned;
use isolane_reactor::{Reactor, Token};

use super::farewell;
use super::keeper::Keeper;
use super::lane::Lane;
use super::link::Outage;
use crate::predecessor::Note;
use crate::setup::Association;

/// The connections of a living association.
pub(super) struct Up {
    pub keeper: Keeper,
    pub lanes: Vec<Lane>,
    /// By the index of a token.
    places: Vec<Option<Place>>,
    pub raised: Instant,
    /// The outage that it ended.
    pub before: Outage,
    /// What the witness has.
    pub note: Option<Note>,
}

/// Which connection it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Admin,
    Lane(usize),
}

impl Up {
    /// Whether any connection has something to send and takes it.
    pub(super) fn wants_transmit(&self) -> bool {
        self.lanes.iter().any(Lane::wants_transmit) || self.keeper.lane.wants_transmit()
    }

    /// Takes the sockets of an association that was made.
    pub(super) fn adopt(
        association: Association,
        nsid: u32,
        keep_alive: Duration,
        before: Outage,
        reactor: &mut Reactor,
    ) -> io::Result<Up> {
        let Association { admin, lanes, mut note, async_events_max, .. } = association;
        if note.is_some() {
            lanes
                .iter()
                .chain([&admin])
                .for_each(|connection| farewell::reset_when_killed(&connection.stream));
        }
        let admin = Lane::adopt(admin, reactor)?;
        let raised = Instant::now();
        let keeper = Keeper::new(admin, nsid, keep_alive, async_events_max, raised);
        let lanes_up = Vec::with_capacity(lanes.len());
        note.iter_mut().for_each(Note::on_use);
        let mut up = Up { keeper, lanes: lanes_up, places: Vec::new(), raised, before, note };
        up.note(up.keeper.lane.token(), Place::Admin);
        for connection in lanes {
            match Lane::adopt(connection, reactor) {
                Ok(lane) => up.add(lane),
                Err(error) => {
                    up.note.take().into_iter().for_each(Note::on_dead);
                    up.dismiss(reactor);
                    return Err(error);
                }
            }
        }
        Ok(up)
    }

    fn add(&mut self, lane: Lane) {
        self.note(lane.token(), Place::Lane(self.lanes.len()));
        self.lanes.push(lane);
    }

    /// Resets all connections; what was in flight on the lanes comes back.
    pub(super) fn dismiss(self, reactor: &mut Reactor) -> Vec<Abandoned> {
        let abandoned = self.lanes.into_iter().flat_map(|lane| lane.abandon(reactor)).collect();
        self.keeper.lane.abandon(reactor);
        abandoned
    }

    fn note(&mut self, token: Token, place: Place) {
        let len = self.places.len().max(token.index() + 1);
        self.places.resize(len, None);
        self.places[token.index()] = Some(place);
    }

    /// Which connection a token names; none if it is one of an association that is gone.
    pub(super) fn place(&self, token: Token) -> Option<Place> {
        let place = (*self.places.get(token.index())?)?;
        let lane = match place {
            Place::Admin => &self.keeper.lane,
            Place::Lane(index) => &self.lanes[index],
        };
        (lane.token() == token).then_some(place)
    }

    /// A connection.
    pub(super) fn at_mut(&mut self, place: Place) -> &mut Lane {
        match place {
            Place::Admin => &mut self.keeper.lane,
            Place::Lane(index) => &mut self.lanes[index],
        }
    }

    /// The connection that a token names.
    pub(super) fn lane_mut(&mut self, token: Token) -> Option<&mut Lane> {
        self.place(token).map(|place| self.at_mut(place))
    }
}
