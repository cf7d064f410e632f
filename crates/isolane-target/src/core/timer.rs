//! Deadlines, checked four times per second so that commands pay nothing for them.

use super::{Core, Driver, TICK};
use crate::lane::{Lane, Phase};

impl Driver {
    /// Checks every deadline if a tick is due.
    pub(super) fn tick_if_due(&mut self) {
        if self.core.now < self.next_tick || self.core.frozen {
            return;
        }
        self.next_tick = self.core.now + TICK;
        self.core.times = self.core.shared.stall_times.present();
        let mut newcomers_left = NEWCOMERS_PER_TICK;
        self.lanes.values_mut().for_each(|lane| self.core.check_deadlines(lane, &mut newcomers_left));
        self.watch_commands();
        self.answer_late();
        self.release_unused();
        self.fail_held();
        self.core.observer.tick();
        self.core.counters.file_thread_waits.set(self.core.reactor.file_thread_waits());
        self.core.check_keep_alive();
    }
}

impl Core {
    fn check_deadlines(&mut self, lane: &mut Lane, newcomers_left: &mut usize) {
        self.check_stuck(lane);
        match lane.phase {
            Phase::Open => {
                self.check_connect_deadline(lane);
                self.check_idle_memory(lane);
                self.check_authentication_deadline(lane);
                let is_due = lane.conn.poll_timeout().is_some_and(|deadline| self.now >= deadline);
                // A stalled lane waits for memory, not for its host.
                if is_due && lane.stalled.is_none() && can_end(lane, newcomers_left) {
                    lane.conn.handle_timeout(self.now);
                    self.process_input(lane, &[]);
                }
            }
            Phase::Closing { until, .. } if self.now >= until => {
                self.close(lane, "the host did not close in time");
            }
            Phase::Closing { .. } | Phase::Closed => {}
        }
    }

    fn check_keep_alive(&mut self) {
        let now = self.now;
        self.shared.control(|port| {
            if port.poll_timeout().is_some_and(|deadline| now >= deadline) {
                port.handle_timeout(now);
            }
        });
    }
}

/// Returns `true` if a lane can be closed now. Newcomers that arrived together are closed over several ticks,
/// so that other lanes do not wait for long.
fn can_end(lane: &Lane, newcomers_left: &mut usize) -> bool {
    let is_now = lane.newcomer.is_none() || *newcomers_left > 0;
    *newcomers_left -= usize::from(is_now && lane.newcomer.is_some());
    is_now
}

/// Maximum number of expired connections before Connect that one tick closes.
const NEWCOMERS_PER_TICK: usize = 256;
