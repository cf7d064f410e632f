//! What needs no exact time: keep alive, commands without an answer, retries, the next attempt to
//! connect.

use std::time::Duration;

use super::Client;
use super::lane::Loss;
use super::link::Link;

impl Client {
    pub(super) fn keep_house(&mut self) {
        if let Err(loss) = self.tell_time().and_then(|()| self.check_patience()) {
            self.lose(&loss);
        }
        self.try_to_connect();
        self.send_due_retries();
        self.housekeeping = self.now + self.housekeeping_interval();
    }

    fn tell_time(&mut self) -> Result<(), Loss> {
        let Link::Up(up) = &mut self.link else { return Ok(()) };
        let (now, answers) = (self.now, &mut self.answers);
        let told = up.lanes.iter_mut().try_for_each(|lane| lane.handle_timeout(now, answers));
        let told = told.and_then(|()| up.keeper.handle_timeout(now));
        self.answer_lanes();
        told
    }

    /// Looks for commands without an answer.
    fn check_patience(&mut self) -> Result<(), Loss> {
        let (now, patience) = (self.now, self.plan.options.command_timeout);
        for task in self.tasks.iter_mut().filter(|task| task.in_flight > 0) {
            if now.saturating_duration_since(*task.seen_in_flight.get_or_insert(now)) >= patience {
                return Err(Loss::CommandTimeout);
            }
        }
        Ok(())
    }

    fn housekeeping_interval(&self) -> Duration {
        let options = &self.plan.options;
        let finest = match (&self.link, options.keep_alive) {
            (Link::Down(outage), _) => outage.wait(self.now),
            (_, Duration::ZERO) => HOUSEKEEPING_MAX,
            (_, keep_alive) => keep_alive / 8,
        };
        let retry = self.retries.next().map(|due| due.saturating_duration_since(self.now));
        finest
            .min(options.command_timeout / 4)
            .min(retry.unwrap_or(Duration::MAX))
            .clamp(HOUSEKEEPING_MIN, HOUSEKEEPING_MAX)
    }
}

/// Bounds of the time between two looks at what needs no exact time.
const HOUSEKEEPING_MIN: Duration = Duration::from_millis(1);
const HOUSEKEEPING_MAX: Duration = Duration::from_millis(250);
