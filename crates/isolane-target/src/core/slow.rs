//! Watch for commands that their volumes do not complete.
//!
//! Each tick publishes the age of the oldest command of each volume, for the counters, and logs a command
//! that becomes older than `stall-after`: one line for all commands of a stall.

use isolane_observe::stage::Operation;
use isolane_reactor::socket;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Driver;
use crate::slab::SlabKey;
use crate::work::{FileWork, Job, Waiting};

/// Watch of one volume on one core.
#[derive(Clone, Debug, Default)]
pub(super) struct SlowCommands {
    /// Start of the newest command that the last line covers.
    reported: Option<Instant>,
    /// Whether the counters show a command. Ticks continue without lanes until they show none.
    pub is_shown: bool,
    /// Age of the oldest command.
    pub age: Option<Duration>,
    /// A command was at the volume for too long.
    pub is_stalled: bool,
}

/// The commands at one volume.
#[derive(Clone, Copy, Debug)]
struct AtVolume {
    oldest: (Instant, Operation),
    newest: Instant,
    /// Start of the oldest command that does not wait for memory.
    oldest_there: Option<Instant>,
    /// Commands older than [`TargetConfig::stall_after`](crate::TargetConfig::stall_after).
    slow: usize,
}

impl SlowCommands {
    /// Returns the text of a line that is due now.
    fn check(&mut self, commands: Option<AtVolume>, now: Instant, stall_after: Duration) -> Option<String> {
        let AtVolume { oldest: (started, operation), newest, slow, .. } = commands?;
        let age = now.saturating_duration_since(started);
        if slow == 0 || self.reported.is_some_and(|reported| started <= reported) {
            return None;
        }
        self.reported = Some(newest);
        let operation = operation.name();
        Some(format!(
            "a {operation} has not completed for {age:.0?}, {slow} commands are older than {stall_after:?}; check its storage"
        ))
    }
}

impl Driver {
    /// Called in each tick.
    pub(super) fn watch_commands(&mut self) {
        let (now, stall_after) = (self.core.now, self.core.times.stall_after);
        let mut volumes: Vec<Option<AtVolume>> = vec![None; self.core.volumes.len()];
        let mut oldest = HashMap::<SlabKey, Instant>::new();
        self.for_each_job(|lane, job, is_there| {
            oldest.entry(lane).and_modify(|oldest| *oldest = job.started.min(*oldest)).or_insert(job.started);
            let slow = usize::from(now.saturating_duration_since(job.started) >= stall_after);
            let oldest_there = job.there_since.filter(|_| is_there);
            let command =
                AtVolume { oldest: (job.started, job.operation), newest: job.started, oldest_there, slow };
            let at = volumes[job.position].get_or_insert(AtVolume { slow: 0, ..command });
            at.oldest_there = at.oldest_there.into_iter().chain(oldest_there).min();
            if job.started < at.oldest.0 {
                at.oldest = command.oldest;
            }
            at.newest = at.newest.max(job.started);
            at.slow += slow;
        });
        for lane in self.lanes.values() {
            let Some(cells) = &lane.observed else { continue };
            let age = oldest.get(&lane.key).map(|started| now.saturating_duration_since(*started));
            let incoming_cpu = || socket::incoming_cpu(&self.core.reactor.socket(lane.token?)?);
            cells.set_state(age, &lane.conn, incoming_cpu);
        }
        for (position, commands) in volumes.into_iter().enumerate() {
            let age = commands.map(|commands| now.saturating_duration_since(commands.oldest.0));
            self.core.counters.oldest_commands[position].set(age);
            let since = commands.and_then(|commands| commands.oldest_there);
            let slow = &mut self.core.volumes[position].slow;
            slow.is_stalled = since.is_some_and(|since| now.saturating_duration_since(since) >= stall_after);
            (slow.is_shown, slow.age) = (age.is_some(), age);
            if let Some(text) = self.core.volumes[position].slow.check(commands, now, stall_after) {
                log::warn!("{}: {text}", self.core.namespaces.at(position).volume.name());
            }
        }
    }

    /// Calls `f` for each command that a volume has or that waits for one, and whether it does not wait for memory.
    fn for_each_job(&self, mut f: impl FnMut(SlabKey, &Job, bool)) {
        for work in self.core.files.values() {
            if let FileWork::Command { lane, job, .. } = work {
                f(*lane, job, true);
            }
        }
        let limited = self.core.waiting.limited.iter().filter_map(|key| self.lanes.get(*key));
        let limited =
            limited.flat_map(|lane| lane.volumes.iter().flat_map(|at| at.over_share.iter().flatten()));
        let there = self.core.waiting.iter_at_volumes().map(|waiting| (waiting, true));
        let elsewhere = self.core.waiting.iter_for_memory().chain(limited).map(|waiting| (waiting, false));
        for (waiting, is_there) in there.chain(elsewhere) {
            if let Waiting::Start { lane, job, .. } = waiting {
                f(*lane, job, is_there);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn logs_one_line_for_stalled_commands() {
        let (start, mut watch) = (Instant::now(), SlowCommands::default());
        let stalled = |slow| {
            Some(AtVolume {
                oldest: (start, Operation::Write),
                newest: start + 3 * S,
                oldest_there: None,
                slow,
            })
        };
        let mut check = |commands, now| watch.check(commands, now, 10 * S);
        assert_eq!(check(None, start), None);
        assert_eq!(check(stalled(0), start + 9 * S), None);
        let line = check(stalled(1), start + 10 * S).expect("a line is due");
        assert!(line.contains("a write has not completed for 10s"), "{line}");
        assert_eq!(check(stalled(64), start + 20 * S), None, "the same stall");
        assert_eq!(check(None, start + 30 * S), None);
        let next = Some(AtVolume {
            oldest: (start + 4 * S, Operation::Read),
            newest: start + 4 * S,
            oldest_there: None,
            slow: 1,
        });
        assert!(check(next, start + 40 * S).is_some(), "another stall");
    }
}
