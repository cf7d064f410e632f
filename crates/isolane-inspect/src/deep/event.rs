//! Lines of `trace_pipe`.

use crate::system::Malformed;

/// An event of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// Core on which it happened.
    pub cpu: u32,
    /// Thread that ran on the core; none if the kernel dropped events.
    pub thread: Option<u32>,
    /// Time of the trace clock, in nanoseconds.
    pub at_ns: u64,
    /// Kind, with its values.
    pub kind: EventKind<'a>,
}

/// Kind of an event, with its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind<'a> {
    /// An interrupt handler begins.
    HandlerEntry {
        /// Number of the line.
        line: u32,
        /// Name of the handler.
        name: &'a str,
    },
    /// An interrupt handler ends.
    HandlerExit {
        /// Number of the line.
        line: u32,
    },
    /// A core changes to another task.
    Switch {
        /// The task that ran.
        from: Task<'a>,
        /// The task is still ready to run.
        is_ready: bool,
        /// The task that runs now.
        to: Task<'a>,
    },
    /// A thread is ready to run after a sleep.
    Wakeup {
        /// The thread.
        thread: u32,
        /// Core on which it will run.
        cpu: u32,
    },
    /// A request is given to the driver of a disk.
    Issue {
        /// Disk and first sector.
        request: Request,
        /// Name of the thread that runs on the core.
        name: &'a str,
    },
    /// A request of a disk is complete.
    Complete {
        /// Disk and first sector.
        request: Request,
    },
    /// The kernel dropped events of this core.
    Lost {
        /// Number of events, or 1 if the kernel does not know it.
        count: u64,
    },
}

/// A thread with its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task<'a> {
    /// Thread ID.
    pub thread: u32,
    /// Name.
    pub name: &'a str,
}

/// Names a request in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// Number of the disk: major, minor.
    pub disk: (u32, u32),
    /// First sector.
    pub sector: u64,
}

/// Decodes the values of an event.
type Decode = for<'a> fn(&'a str) -> Option<EventKind<'a>>;

/// The events, as they are in a line.
const EVENTS: [(&str, Decode); 6] = [
    (": irq_handler_entry: ", handler_entry),
    (": irq_handler_exit: ", handler_exit),
    (": sched_switch: ", switch),
    (": sched_wakeup: ", wakeup),
    (": block_rq_issue: ", issue),
    (": block_rq_complete: ", complete),
];

/// Decodes a line. A name of a task can have any characters, but is too short to contain the name of an event.
///
/// # Errors
/// The line is not one of the events that this program enables.
pub fn decode_event(line: &str) -> Result<Event<'_>, Malformed> {
    let line = line.trim_end_matches('\n');
    lost(line).or_else(|| event(line)).ok_or(Malformed::at(0, "an event"))
}

fn event(line: &str) -> Option<Event<'_>> {
    let found = EVENTS.iter().filter_map(|(name, decode)| Some((line.find(name)?, name.len(), decode)));
    let (at, len, decode) = found.min_by_key(|found| found.0)?;
    let (origin, at_ns) = line[..at].rsplit_once(' ')?;
    // `TASK-THREAD [CPU] FLAGS`
    let (origin, _) = origin.rsplit_once("] ")?;
    let (task, cpu) = origin.rsplit_once(" [")?;
    let (_, thread) = task.trim_end().rsplit_once('-')?;
    Some(Event {
        cpu: cpu.parse().ok()?,
        thread: Some(thread.parse().ok()?),
        at_ns: time(at_ns)?,
        kind: decode(&line[at + len..])?,
    })
}

/// Decodes `CPU:1 [LOST 12 EVENTS]`, or `CPU:1 [LOST EVENTS]`.
fn lost(line: &str) -> Option<Event<'static>> {
    let (cpu, count) = line.strip_prefix("CPU:")?.split_once(" [LOST ")?;
    let count = count.split(' ').next()?.parse().unwrap_or(1);
    Some(Event { cpu: cpu.parse().ok()?, thread: None, at_ns: 0, kind: EventKind::Lost { count } })
}

/// Decodes seconds with six digits after the point.
fn time(text: &str) -> Option<u64> {
    let (seconds, micros) = text.split_once('.')?;
    let (seconds, micros): (u64, u64) = (seconds.parse().ok()?, micros.parse().ok()?);
    let micros = seconds.checked_mul(1_000_000)?.checked_add(micros)?;
    (text.len() - text.find('.')? == 7).then_some(micros)?.checked_mul(1000)
}

/// Decodes `irq=142 name=nvme5q1`.
fn handler_entry(values: &str) -> Option<EventKind<'_>> {
    let (line, name) = values.strip_prefix("irq=")?.split_once(" name=")?;
    Some(EventKind::HandlerEntry { line: line.parse().ok()?, name })
}

/// Decodes `irq=142 ret=handled`.
fn handler_exit(values: &str) -> Option<EventKind<'_>> {
    let (line, _) = values.strip_prefix("irq=")?.split_once(" ret=")?;
    Some(EventKind::HandlerExit { line: line.parse().ok()? })
}

/// Decodes `prev_comm=NAME prev_pid=7 prev_prio=120 prev_state=R ==> next_comm=NAME next_pid=8 next_prio=120`.
fn switch(values: &str) -> Option<EventKind<'_>> {
    let (values, _) = values.rsplit_once(" next_prio=")?;
    let (values, to) = values.rsplit_once(" next_pid=")?;
    let (from, to_name) = values.rsplit_once(" ==> next_comm=")?;
    let (from, state) = from.rsplit_once(" prev_state=")?;
    let (from, _) = from.rsplit_once(" prev_prio=")?;
    let (name, thread) = from.strip_prefix("prev_comm=")?.rsplit_once(" prev_pid=")?;
    let from = Task { thread: thread.parse().ok()?, name };
    let to = Task { thread: to.parse().ok()?, name: to_name };
    Some(EventKind::Switch { from, is_ready: state.starts_with('R'), to })
}

/// Decodes `comm=NAME pid=7 prio=120 target_cpu=001`.
fn wakeup(values: &str) -> Option<EventKind<'_>> {
    let (values, cpu) = values.rsplit_once(" target_cpu=")?;
    let (values, _) = values.rsplit_once(" prio=")?;
    let (_, thread) = values.rsplit_once(" pid=")?;
    Some(EventKind::Wakeup { thread: thread.parse().ok()?, cpu: cpu.parse().ok()? })
}

/// Decodes `259,0 R 4096 () 123 + 8 none,0,0 [NAME]`.
fn issue(values: &str) -> Option<EventKind<'_>> {
    let (_, name) = values.split_once(") ")?.1.split_once('[')?;
    Some(EventKind::Issue { request: request(values)?, name: name.strip_suffix(']')? })
}

/// Decodes `259,0 R () 123 + 8 none,0,0 [0]`.
fn complete(values: &str) -> Option<EventKind<'_>> {
    Some(EventKind::Complete { request: request(values)? })
}

/// Decodes disk and sector. The parentheses contain a command of the driver in hexadecimal.
fn request(values: &str) -> Option<Request> {
    let (disk, rest) = values.split_once(' ')?;
    let (major, minor) = disk.split_once(',')?;
    let (sector, _) = rest.split_once(") ")?.1.split_once(" + ")?;
    Some(Request { disk: (major.parse().ok()?, minor.parse().ok()?), sector: sector.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(line: &str) -> EventKind<'_> {
        decode_event(line).unwrap_or_else(|error| panic!("{error}: {line}")).kind
    }

    #[test]
    fn decodes_core_thread_and_time() {
        let line = "    opt cgu.0-6252    [003] dNh3. 59061.514342: irq_handler_exit: irq=42 ret=handled\n";
        let event = decode_event(line).unwrap();
        assert_eq!((event.cpu, event.thread, event.at_ns), (3, Some(6252), 59_061_514_342_000));
        assert_eq!(event.kind, EventKind::HandlerExit { line: 42 });
        let line = "  <...>-7 [128] d..2. 1.000001: irq_handler_entry: irq=9 name=a b: c";
        assert_eq!(kind(line), EventKind::HandlerEntry { line: 9, name: "a b: c" });
    }

    #[test]
    fn decodes_names_with_separators() {
        let line = "x [1] -y-7  [001] d..2. 5.000000: sched_switch: prev_comm=a prev_pid=1 b prev_pid=7 \
                    prev_prio=120 prev_state=R+ ==> next_comm=next_pid=8 next_pid=9 next_prio=120";
        let from = Task { thread: 7, name: "a prev_pid=1 b" };
        let to = Task { thread: 9, name: "next_pid=8" };
        assert_eq!(kind(line), EventKind::Switch { from, is_ready: true, to });
        let line = "a-1 [001] d..2. 5.000000: sched_wakeup: comm=x pid=3 pid=7 prio=115 target_cpu=002";
        assert_eq!(kind(line), EventKind::Wakeup { thread: 7, cpu: 2 });
    }

    #[test]
    fn decodes_requests_of_all_kernels() {
        let request = Request { disk: (254, 0), sector: 123 };
        for values in ["() 123 + 8 [d[]d]", "(aa 0) 123 + 8 be,0,4 [d[]d]"] {
            let line = format!("dd-76 [000] ..... 2.516891: block_rq_issue: 254,0 RA 4096 {values}");
            assert_eq!(kind(&line), EventKind::Issue { request, name: "d[]d" });
        }
        let line = "dd-76 [000] ..s.. 2.517727: block_rq_complete: 254,0 R () 123 + 8 be,0,4 [0]";
        assert_eq!(kind(line), EventKind::Complete { request });
    }

    #[test]
    fn decodes_lost_events() {
        for (line, count) in [("CPU:2 [LOST 12 EVENTS]\n", 12), ("CPU:2 [LOST EVENTS]", 1)] {
            assert_eq!(kind(line), EventKind::Lost { count });
            assert_eq!(decode_event(line).unwrap().cpu, 2);
        }
    }

    #[test]
    fn rejects_truncated_and_changed_lines() {
        let good = "dd-76 [000] ..... 2.516891: block_rq_issue: 254,0 RA 4096 () 123 + 8 be,0,4 [dd]";
        assert!(decode_event(good).is_ok());
        for len in 0..good.len() {
            assert!(decode_event(&good[..len]).is_err(), "{}", &good[..len]);
        }
        for (from, to) in [
            ("76", "4294967296"),
            ("[000]", "000"),
            ("[000]", "[-1]"),
            ("2.516891", "2.51689"),
            ("2.516891", "18446744073709551615.516891"),
            ("254,0", "254:0"),
            ("123", "18446744073709551616"),
            ("block_rq_issue", "block_rq_insert"),
        ] {
            assert!(decode_event(&good.replace(from, to)).is_err(), "{from} → {to}");
        }
    }
}
