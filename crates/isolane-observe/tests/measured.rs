//! Verdicts with the times of trace events.

#![cfg(not(loom))]
#![forbid(unsafe_code)]

#[allow(dead_code, reason = "each test uses a part of the simulation")]
mod simulated;

use isolane_observe::snapshot::{Line, Snapshot};
use isolane_observe::verdict::{
    Grade, Handler, Issuer, Measured, Neighbor, Options, RanTask, Requests, Times, Verdict, explain,
    explain_measured, to_text,
};
use simulated::World;
use simulated::faults::{Fault, What};

fn snapshot_of(what: What) -> Snapshot {
    World { faults: vec![Fault { what, start: 12 }], ..World::healthy() }.run(7).snapshot
}

fn times(count: u64, mean_us: u64) -> Times {
    let mut times = Times::default();
    (0..count).for_each(|_| times.add(mean_us * 1000));
    times
}

fn verdict_of(snapshot: &Snapshot, measured: &Measured) -> Verdict {
    let verdict = explain_measured(snapshot, Options::default(), Some(measured));
    assert_eq!(verdict.findings.len(), 1, "{}", to_text(&verdict));
    verdict
}

fn measured_neighbors(verdict: &Verdict) -> Vec<&str> {
    let is_measured = |neighbor: &&Neighbor| neighbor.grade == Grade::Measured;
    verdict.findings[0].neighbors.iter().filter(is_measured).map(|neighbor| neighbor.name.as_str()).collect()
}

#[test]
fn grades_the_task_on_a_core_as_measured() {
    let task = |thread, name: &str, cpu, delayed| RanTask {
        thread,
        process: (thread < 9000).then_some(thread),
        name: name.into(),
        cpu,
        times: times(400, 2000),
        delayed,
    };
    let tasks = vec![
        task(4242, "spinner", 1, times(400, 2000)),
        task(9001, "ended", 1, times(100, 1000)),
        task(8, "small", 1, times(40, 1000)),
        task(9, "while asleep", 1, Times::default()),
        task(10, "elsewhere", 0, times(400, 2000)),
    ];
    let measured = Measured { seconds: 2.0, tasks, ..Measured::default() };
    let snapshot = snapshot_of(What::Process { core: 1 });
    let verdict = verdict_of(&snapshot, &measured);
    assert_eq!(measured_neighbors(&verdict), ["spinner (PID 4242)", "ended (thread 9001)"]);
    let text = to_text(&verdict);
    assert_eq!(verdict.findings[0].neighbors.len(), 2, "it replaces the weaker grade: {text}");
    let evidence = "spinner (PID 4242) kept it waiting for 40 % of the time (400 x 2.00 ms, at most 2.00 ms)";
    assert!(text.contains(evidence), "{text}");
    assert!(text.contains("no interrupt handler took 0.50 % of the time"), "{text}");
    assert!(!text.contains("small (PID 8) kept") && !text.contains("while asleep"), "{text}");
}

#[test]
fn grades_a_handler_on_a_line_as_measured() {
    let mut snapshot = snapshot_of(What::SlowDevice { volume: 5, factor: 6.0 });
    let line = |number, actions: &[&str]| Line {
        number,
        actions: actions.iter().map(|action| (*action).to_owned()).collect(),
        cpus: vec![3],
    };
    snapshot.devices[5].interrupts = vec![line(142, &["nvme5q0", "switchtec"]), line(143, &["nvme5q1"])];
    let handler = |line, name: &str, cpu, times| Handler { line, name: name.into(), cpu, times };
    let slow = Times { max_ns: 5_000_000, ..times(1000, 400) };
    let handlers = vec![
        handler(142, "switchtec", 2, slow),
        handler(142, "nvme5q0", 2, times(1000, 300)),
        handler(143, "renamed", 3, times(1000, 300)),
        handler(7, "eth0", 3, times(1000, 200)),
        handler(8, "elsewhere", 2, times(1000, 200)),
        handler(142, "short", 3, times(1000, 2)),
        handler(9, "usual", 3, times(1000, 80)),
    ];
    let disk = |disk: &str, us| Requests { disk: disk.into(), times: times(10, us), issuers: Vec::new() };
    let disks = vec![disk("nvme5n1", 900), disk("nvme1n1", 100), disk("nvme2n1", 120), disk("sda", 9000)];
    let measured = Measured { seconds: 2.0, handlers, disks, ..Measured::default() };
    let verdict = verdict_of(&snapshot, &measured);
    assert_eq!(measured_neighbors(&verdict), ["switchtec (interrupt 142)", "eth0 (interrupt 7)"]);
    let text = to_text(&verdict);
    assert_eq!(verdict.findings[0].cause.as_deref(), Some("interrupt"));
    for wanted in [
        "try: unload the driver of switchtec, or move its interrupts to another core",
        "handler switchtec on its interrupt line 142 took 20 % of the time (1,000 x 400 us, at most 5.00 ms)",
        "handler eth0 on core 3, which gets its interrupts, took 10 % of the time",
        "disk nvme5n1 took 900 us for each of 10 requests, and the other disks 120 us (measured)",
        "functions in switchtec: sudo bpftrace -e 'hardware:cycles:1000003 /cpu == 2/ ",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
}

#[test]
fn names_no_cause_for_short_handlers() {
    let mut snapshot = snapshot_of(What::SlowDevice { volume: 5, factor: 6.0 });
    let actions = vec!["nvme5q0".to_owned(), "switchtec".to_owned()];
    snapshot.devices[5].interrupts = vec![Line { number: 142, actions, cpus: vec![3] }];
    let handlers = vec![Handler { line: 142, name: "switchtec".into(), cpu: 3, times: times(10_000, 10) }];
    let measured = Measured { seconds: 2.0, handlers, ..Measured::default() };
    let verdict = verdict_of(&snapshot, &measured);
    assert_eq!(measured_neighbors(&verdict), ["switchtec (interrupt 142)"]);
    assert_eq!(verdict.findings[0].cause, None, "10 us explain no loss of ms: {}", to_text(&verdict));
}

#[test]
fn grades_processes_on_a_disk_as_measured() {
    let mut snapshot = snapshot_of(What::DiskUser { volume: 5 });
    snapshot.program.pid = 11;
    let issuer = |process: u32, name: &str, requests| Issuer {
        thread: process,
        process: Some(process),
        name: name.into(),
        requests,
    };
    let issuers = vec![issuer(77, "dd", 900), issuer(11, "isolane", 90), issuer(78, "small", 10)];
    let disks = vec![Requests { disk: "nvme5n1".into(), times: times(1000, 100), issuers }];
    let measured = Measured { seconds: 2.0, disks, ..Measured::default() };
    let verdict = verdict_of(&snapshot, &measured);
    assert_eq!(measured_neighbors(&verdict), ["dd (PID 77)"]);
    let text = to_text(&verdict);
    assert!(text.contains("dd (PID 77) issued 900 of 1,000 requests of nvme5n1 (measured)"), "{text}");
}

#[test]
fn lists_times_that_were_not_measured() {
    let snapshot = snapshot_of(What::Process { core: 1 });
    let text = to_text(&explain(&snapshot, Options::default()));
    let needs =
        "time inside interrupt handlers (needs root: sudo isolane explain --deep measures it for 2 s)";
    assert!(text.contains(needs), "{text}");
    let missing = vec![("times of disk requests".to_owned(), "a kernel".to_owned())];
    let measured = Measured { seconds: 2.0, lost_events: 1234, not_seen: missing, ..Measured::default() };
    let text = to_text(&explain_measured(&snapshot, Options::default(), Some(&measured)));
    assert!(text.contains("times of disk requests (needs a kernel)"), "{text}");
    assert!(text.contains("1,234 trace events, which were lost (needs "), "{text}");
    assert!(!text.contains("sudo isolane"), "{text}");
}
