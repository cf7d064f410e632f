//! Where the connections of a client are: asked when somebody wants to know, so that it costs the data path
//! nothing.

use std::net::SocketAddr;

use isolane_reactor::{core, socket};

use super::Client;
use super::lane::Lane;
use super::link::Link;
use super::up::Up;
use crate::classes::Class;

/// One connection of a client, and where its packets arrive (H3, S6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// The controller that it belongs to: one for each association.
    pub cntlid: u16,
    /// The core that a volume with [`Options::cores`](crate::Options::cores) has placed it on; where it
    /// should be driven.
    pub core: Option<usize>,
    /// The queue; 0 is the admin queue.
    pub qid: u16,
    /// Its class and its number there, counted from 0, in a volume with cores over all of them; the admin
    /// queue has none.
    pub lane: Option<(Class, usize)>,
    /// This end of it, by which the target's list names it.
    pub local: SocketAddr,
    /// The core of the thread that drove it when this was asked; of a volume that threads share, whoever led
    /// then.
    pub driving_core: usize,
    /// The core that its packets were last processed on, if known.
    pub incoming_cpu: Option<usize>,
}

impl Client {
    /// Every connection of the association, the admin queue first, then lanes by class; none while it is
    /// down. One thread drives all of them: the one that turns the client.
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        let Link::Up(up) = &self.link else { return Vec::new() };
        let Up { keeper, lanes, .. } = &**up;
        let admin = self.status_of(&keeper.lane, 0, None);
        let lanes = lanes.iter().enumerate().filter_map(|(index, lane)| {
            // Queues are connected in the order of lanes.
            self.status_of(lane, index as u16 + 1, Some(self.classes.position(index)))
        });
        admin.into_iter().chain(lanes).collect()
    }

    fn status_of(
        &self,
        connection: &Lane,
        qid: u16,
        lane: Option<(Class, usize)>,
    ) -> Option<ConnectionStatus> {
        let socket = self.reactor.socket(connection.token())?;
        Some(ConnectionStatus {
            cntlid: self.info.controller.cntlid,
            core: None,
            qid,
            lane,
            local: socket::local_addr(&socket).ok()?,
            driving_core: core::current(),
            incoming_cpu: socket::incoming_cpu(&socket),
        })
    }
}
