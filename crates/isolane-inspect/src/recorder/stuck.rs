//! Turns that take too long, observed from outside.
//!
//! While a core works, its turn is compared every 10 ms. A turn that has not changed is described once, from `/proc`.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use isolane_observe::snapshot::StuckTurn;

use crate::program::Turn;
use crate::system::{Root, SMALL, decode_task_stat};

/// Interval of checks while a core works.
pub const INTERVAL: Duration = Duration::from_millis(10);
/// Descriptions that are kept.
const MAX_REPORTS: usize = 256;
/// Descriptions in each minute.
const MAX_PER_MINUTE: usize = 10;

/// The turns of all cores, as last seen.
#[derive(Debug, Default)]
pub struct Watch {
    seen: Vec<Seen>,
    recent: VecDeque<Instant>,
}

#[derive(Debug)]
struct Seen {
    turn: Turn,
    since: Instant,
    /// Time of the description of this turn.
    reported_us: Option<u64>,
}

impl Watch {
    /// Compares the turns with the last check, and adds descriptions. Returns `true` if a core works.
    pub fn check(
        &mut self,
        root: &Root,
        turns: &[Turn],
        now: Instant,
        reports: &mut VecDeque<StuckTurn>,
    ) -> bool {
        let mut is_working = false;
        self.seen.truncate(turns.len());
        for (at, turn) in turns.iter().enumerate() {
            let new = Seen { turn: *turn, since: now, reported_us: None };
            let Some(seen) = self.seen.get_mut(at) else {
                self.seen.push(new);
                is_working = true;
                continue;
            };
            let is_same = seen.turn.number == turn.number && seen.turn.core == turn.core;
            if turn.phase.is_none() || !is_same || seen.turn.phase.is_none() {
                is_working |= turn.phase.is_some() || !is_same;
                *seen = new;
                continue;
            }
            is_working = true;
            let lasted = now.duration_since(seen.since);
            if lasted < INTERVAL {
                continue;
            }
            let lasted_ns = lasted.as_nanos() as u64;
            let mut known = reports.iter_mut().rev();
            match known.find(|report| report.core == turn.core && Some(report.at_unix_us) == seen.reported_us)
            {
                Some(report) => report.lasted_ns = lasted_ns,
                None if seen.reported_us.is_none() && may_report(&mut self.recent, now) => {
                    let report = describe(root, turn, lasted_ns);
                    seen.reported_us = Some(report.at_unix_us);
                    reports.push_back(report);
                }
                None => {}
            }
        }
        reports.drain(..reports.len().saturating_sub(MAX_REPORTS));
        is_working
    }
}

fn may_report(recent: &mut VecDeque<Instant>, now: Instant) -> bool {
    while recent.front().is_some_and(|at| now.duration_since(*at) > Duration::from_secs(60)) {
        recent.pop_front();
    }
    let may = recent.len() < MAX_PER_MINUTE;
    if may {
        recent.push_back(now);
    }
    may
}

/// Reads the state of a thread. The kernel may hide parts of it.
fn describe(root: &Root, turn: &Turn, lasted_ns: u64) -> StuckTurn {
    let path = |file: &str| format!("/proc/self/task/{}/{file}", turn.thread);
    let state = root.parse(&path("stat"), SMALL, decode_task_stat).map(|stat| stat.state);
    let wchan = root.word(&path("wchan")).unwrap_or_default();
    let call = root.word(&path("syscall")).unwrap_or_default();
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    StuckTurn {
        at_unix_us: at.as_micros() as u64,
        core: turn.core,
        lasted_ns,
        phase: turn.phase.unwrap_or_default().to_owned(),
        state: state.map(String::from).unwrap_or_default(),
        wchan: if wchan == "0" { String::new() } else { wchan },
        // The number of the call, without its arguments, or `running`.
        call: call.split_whitespace().next().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn turn(number: u64, phase: Option<&'static str>) -> Turn {
        Turn { core: 0, thread: 9, number, phase }
    }

    fn tree() -> Tree {
        let stat =
            "9 (core) D 1 1 1 0 -1 0 0 0 0 0 5 0 0 0 20 0 1 0 1 1 1 1 1 1 1 0 0 0 0 0 0 0 0 0 17 3 0 0 0\n";
        let task = "/proc/self/task/9";
        Tree::new(&[
            (&format!("{task}/stat"), stat),
            (&format!("{task}/wchan"), "io_schedule"),
            (&format!("{task}/syscall"), "17 0x3 0x7f 0x1000 0x0 0x0 0x0 0x7ffd 0x7f\n"),
        ])
    }

    /// Checks these turns, 10 ms apart.
    fn check(turns: &[Turn]) -> (VecDeque<StuckTurn>, Vec<bool>) {
        let (tree, start) = (tree(), Instant::now());
        let (mut watch, mut reports) = (Watch::default(), VecDeque::new());
        let check = |(at, turn): (u32, &Turn)| {
            watch.check(&tree.root(), &[*turn], start + INTERVAL * at, &mut reports)
        };
        let working = (0..).zip(turns).map(check).collect();
        (reports, working)
    }

    #[test]
    fn describes_a_stuck_turn_once() {
        let (reports, working) = check(&[turn(5, Some("volume")); 5]);
        assert_eq!(reports.len(), 1);
        let StuckTurn { lasted_ns, phase, state, wchan, call, .. } = &reports[0];
        assert_eq!((&**phase, &**state, &**wchan, &**call), ("volume", "D", "io_schedule", "17"));
        assert_eq!((*lasted_ns, working), (40_000_000, vec![true; 5]));
    }

    #[test]
    fn idle_and_fast_turns_are_not_stuck() {
        let (reports, working) = check(&[turn(5, None); 4]);
        assert_eq!((reports.len(), working), (0, vec![true, false, false, false]));
        let turns: Vec<Turn> = (0..20).map(|number| turn(number, Some("send"))).collect();
        assert!(check(&turns).0.is_empty());
    }

    #[test]
    fn bounds_descriptions() {
        let turns: Vec<Turn> = (0..60).map(|at| turn(at / 2, Some("send"))).collect();
        assert_eq!(check(&turns).0.len(), MAX_PER_MINUTE);
    }
}
