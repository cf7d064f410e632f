//! The end of a turn: one vectored send for every lane that has something to say.

use isolane_proto::queue::TransmitPlan;

use super::lane::{Lane, Phase};
use super::{Core, Driver};

impl Core {
    /// The lane is to be sent from at the end of this turn.
    pub(super) fn mark_dirty(&mut self, lane: &mut Lane) {
        if !lane.is_dirty {
            lane.is_dirty = true;
            self.dirty.push(lane.key);
        }
    }

    /// Sends once. What does not fit into one call goes with the next turn; what the socket does not take, when
    /// it is writable again.
    pub(super) fn send(&mut self, lane: &mut Lane) {
        let Some(token) = lane.token else { return };
        if lane.queue.wants_transmit() {
            let mut plan = TransmitPlan::new();
            lane.queue.fill_transmit_plan(&mut plan);
            let offered = plan.bytes();
            let sent = self.reactor.send(token, &plan);
            drop(plan);
            match sent {
                Ok(count) => self.handle_sent(lane, count, offered),
                Err(error) => {
                    log::info!("{}: sending failed: {error}", lane.peer());
                    return self.close(lane, "the connection is broken");
                }
            }
        }
        self.shut_write_if_done(lane);
    }

    fn handle_sent(&mut self, lane: &mut Lane, count: usize, offered: usize) {
        self.counters.sent_bytes.add(count as u64);
        lane.queue.handle_transmitted(count, &mut self.memory.pool);
        if count == offered && (lane.queue.wants_transmit() || lane.is_limited()) {
            self.mark_dirty(lane);
        }
        self.resume_after_send(lane);
    }

    /// A lane on its way out has said everything: tell the host that nothing follows.
    fn shut_write_if_done(&mut self, lane: &mut Lane) {
        let Phase::Leaving { until, is_write_shut: false } = lane.phase else { return };
        let Some(token) = lane.token.filter(|_| !lane.queue.wants_transmit()) else { return };
        lane.phase = Phase::Leaving { until, is_write_shut: true };
        if self.reactor.shutdown_write(token).is_err() {
            self.close(lane, "the connection is broken");
        }
    }
}

impl Driver {
    /// Sends from every lane that has something to say.
    pub(super) fn send_dirty(&mut self) {
        let mut dirty = std::mem::take(&mut self.core.dirty);
        for key in dirty.drain(..) {
            if let Some(lane) = self.lanes.get_mut(key) {
                lane.is_dirty = false;
                self.core.send(lane);
            }
        }
        // Lanes that could not send everything in one call have entered themselves again.
        dirty.append(&mut self.core.dirty);
        self.core.dirty = dirty;
    }
}
