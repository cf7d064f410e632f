//! What other cores say to this one. A message for a lane that has ended finds nobody.

use std::sync::mpsc::Sender;

use isolane_reactor::socket;

use super::Driver;
use super::lane::Lane;
use crate::connections::ConnectionStatus;
use crate::shared::{Address, Message};
use crate::table::Key;

impl Driver {
    /// Reads a bounded number of messages.
    pub(super) fn read_mailbox(&mut self) {
        for _ in 0..MESSAGES_PER_TURN {
            match self.mailbox.poll() {
                Some(message) => self.handle_message(message),
                None => return,
            }
        }
        self.core.reactor.waker().wake();
    }

    pub(super) fn handle_message(&mut self, message: Message) {
        match message {
            Message::Adopt { socket, peer } => self.adopt(socket, peer),
            Message::Close { lane, reason } => self.on_named(lane, |core, lane| core.close(lane, reason)),
            Message::AsyncEvents { lane } => self.on_named(lane, |core, lane| core.answer_async_events(lane)),
            Message::Displace { lane } => self.displace(lane),
            Message::See(unseen) => drop(unseen),
            Message::Shutdown { id, busy } => self.core.plan_shutdown(id, busy),
            Message::ReadHost { host, fence, reply_to } => self.begin_reading_host(*host, fence, reply_to),
            Message::HostRead { lane } => self.on_lane(lane, |core, lane| core.on_host_read(lane)),
            Message::Load { core, load } => self.note_load(core, load),
            Message::Depart { lane, to } => self.begin_departure(lane, to),
            Message::DepartPeer { peer, to } => self.begin_departure_of(peer, to),
            Message::Arrive(traveller) => self.arrive(traveller),
            Message::Describe(asker) => self.describe_lanes(&asker),
            Message::Stop { deadline } => self.begin_stop(deadline),
        }
    }

    fn on_lane(&mut self, key: Key, act: impl FnOnce(&mut super::Core, &mut Lane)) {
        if let Some(lane) = self.lanes.get_mut(key) {
            act(&mut self.core, lane);
        }
    }

    fn on_named(&mut self, name: Address, act: impl FnOnce(&mut super::Core, &mut Lane)) {
        if let Some(key) = self.key_of(name) {
            self.on_lane(key, act);
        }
    }

    /// Tells somebody about every connection.
    fn describe_lanes(&self, asker: &Sender<ConnectionStatus>) {
        for lane in self.lanes.iter() {
            let Some(socket) = lane.token.and_then(|token| self.core.reactor.socket(token)) else { continue };
            let association = lane.association.as_ref();
            // Whoever asked may have lost patience.
            let _ = asker.send(ConnectionStatus {
                peer: lane.peer(),
                host_nqn: association.and_then(|it| it.host.nqn),
                qid: association.map(|it| it.qid),
                reactor: self.core.index,
                core: None,
                incoming_cpu: socket::incoming_cpu(&socket),
                moved_bytes: lane.conn.moved_bytes(),
                unsent_bytes: socket::unsent_bytes(&socket).unwrap_or(0),
            });
        }
    }
}

const MESSAGES_PER_TURN: usize = 256;
