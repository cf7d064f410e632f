//! What other cores say to this one. A message for a lane that has ended finds nobody.

use isolane_proto::Completion;

use super::Driver;
use super::lane::Lane;
use crate::shared::Message;
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

    fn handle_message(&mut self, message: Message) {
        match message {
            Message::Adopt { socket, peer } => self.adopt(socket, peer),
            Message::Close { lane, reason } => self.on_lane(lane, |core, lane| core.close(lane, reason)),
            Message::AsyncEvent { lane, cid, completion } => self.answer_event(lane, cid, completion),
            Message::See(unseen) => drop(unseen),
            Message::Shutdown { id, busy } => self.core.plan_shutdown(id, busy),
            Message::ReadHost { host_nqn, reply_to } => self.begin_reading_host(&host_nqn, reply_to),
            Message::HostRead { lane, is_settled } => {
                self.on_lane(lane, |core, lane| core.on_host_read(lane, is_settled));
            }
            Message::RetryConnect { lane } => self.on_lane(lane, |core, lane| core.try_connect(lane)),
            Message::Stop { deadline } => self.begin_stop(deadline),
        }
    }

    fn on_lane(&mut self, key: Key, act: impl FnOnce(&mut super::Core, &mut Lane)) {
        if let Some(lane) = self.lanes.get_mut(key) {
            act(&mut self.core, lane);
        }
    }

    /// Answers a held Async Event Request.
    fn answer_event(&mut self, key: Key, cid: u16, completion: Completion) {
        self.on_lane(key, |core, lane| {
            if let Some(at) = lane.held.iter().position(|permit| permit.cid() == cid) {
                let permit = lane.held.swap_remove(at);
                core.complete(lane, permit, completion);
            }
        });
    }
}

const MESSAGES_PER_TURN: usize = 256;
