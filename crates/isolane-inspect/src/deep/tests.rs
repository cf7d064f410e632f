use std::fs;

use super::*;

/// A line of an event on core 1, at a time in microseconds.
fn line(thread: u32, at_us: u64, event: &str) -> String {
    format!(
        "            task-{thread}    [001] d..2. {}.{:06}: {event}\n",
        at_us / 1_000_000,
        at_us % 1_000_000
    )
}

fn switch(at_us: u64, from: (u32, &str), to: u32) -> String {
    let (thread, state) = from;
    let event = format!(
        "sched_switch: prev_comm=task{thread} prev_pid={thread} prev_prio=120 prev_state={state} ==> \
         next_comm=task{to} next_pid={to} next_prio=120"
    );
    line(thread, at_us, &event)
}

#[test]
fn adds_times_of_handlers_by_action() {
    let text = [
        line(7, 100, "irq_handler_entry: irq=9 name=nvme0q1"),
        line(7, 103, "irq_handler_exit: irq=9 ret=handled"),
        line(7, 103, "irq_handler_entry: irq=9 name=switchtec"),
        line(7, 903, "irq_handler_exit: irq=9 ret=unhandled"),
        line(7, 1000, "irq_handler_exit: irq=9 ret=handled"),
        line(7, 1001, "irq_handler_entry: irq=9 name=nvme0q1"),
        line(7, 1002, "irq_handler_exit: irq=8 ret=handled"),
    ];
    let measured = summarize(text.concat().as_bytes(), &[], 1.0);
    let found: Vec<_> =
        measured.handlers.iter().map(|at| (at.name.as_str(), at.cpu, at.times.sum_ns)).collect();
    assert_eq!(found, [("switchtec", 1, 800_000), ("nvme0q1", 1, 3_000)]);
    assert_eq!(measured.lost_events, 0);
}

#[test]
fn counts_tasks_only_while_a_thread_is_ready() {
    let wakeup = "sched_wakeup: comm=reactor pid=7 prio=120 target_cpu=001";
    let text = [
        switch(0, (0, "R"), 8),
        // The reactor sleeps until 300, and runs at 400.
        line(8, 300, wakeup),
        switch(400, (8, "R"), 7),
        // A wakeup of a thread that runs does not count.
        line(7, 450, wakeup),
        switch(500, (7, "S"), 8),
        switch(600, (8, "S"), 7),
        // It is preempted.
        switch(1000, (7, "R+"), 9),
        switch(1700, (9, "S"), 7),
        switch(2000, (7, "R"), 0),
        switch(2500, (0, "R"), 8),
    ];
    let measured = summarize(text.concat().as_bytes(), &[7], 1.0);
    let found = |thread| measured.tasks.iter().find(|task| task.thread == thread).unwrap();
    let times = |thread| (found(thread).times.sum_ns / 1000, found(thread).delayed.sum_ns / 1000);
    assert_eq!(times(9), (700, 700));
    assert_eq!(times(8), (400 + 100, 100), "it still runs at the last event, for no time");
    assert_eq!(times(7).1, 0);
    assert_eq!(measured.tasks[0].thread, 9, "the longest delay is first");
    assert!(measured.tasks.iter().all(|task| task.thread != 0), "idle");
}

#[test]
fn adds_times_of_requests_by_disk_and_thread() {
    let text = [
        line(8, 100, "block_rq_issue: 259,1 R 4096 () 64 + 8 be,0,4 [dd]"),
        line(8, 110, "block_rq_issue: 259,1 R 4096 () 72 + 8 be,0,4 [dd]"),
        line(9, 120, "block_rq_issue: 8,0 W 4096 () 64 + 8 be,0,4 [x]"),
        line(0, 150, "block_rq_complete: 259,1 R () 64 + 8 be,0,4 [0]"),
        line(0, 160, "block_rq_complete: 259,1 R () 80 + 8 be,0,4 [0]"),
        line(0, 220, "block_rq_complete: 8,0 W () 64 + 8 be,0,4 [0]"),
    ];
    let measured = summarize(text.concat().as_bytes(), &[], 1.0);
    let found: Vec<_> = measured.disks.iter().map(|at| (at.disk.as_str(), at.times.sum_ns)).collect();
    assert_eq!(found, [("8:0", 100_000), ("259:1", 50_000)]);
    let issuer = &measured.disks[1].issuers[0];
    assert_eq!((issuer.thread, issuer.name.as_str(), issuer.requests), (8, "dd", 2));
}

#[test]
fn counts_lost_and_malformed_events() {
    let text = [
        line(7, 100, "irq_handler_entry: irq=9 name=a"),
        line(7, 100, "block_rq_issue: 8,0 W 4096 () 64 + 8 be,0,4 [x]"),
        "# comment\n\n".to_owned(),
        "CPU:1 [LOST 12 EVENTS]\n".to_owned(),
        line(7, 900, "irq_handler_exit: irq=9 ret=handled"),
        line(7, 900, "block_rq_complete: 8,0 W () 64 + 8 be,0,4 [0]"),
        "x\n".to_owned(),
        "\u{0}".repeat(100_000) + "\n",
        "truncated".to_owned(),
    ];
    let measured = summarize(text.concat().as_bytes(), &[], 1.0);
    assert_eq!(measured.lost_events, 14);
    assert!(measured.handlers.is_empty() && measured.disks.is_empty(), "no time over a gap: {measured:?}");
}

#[test]
fn bounds_the_results_of_hostile_text() {
    let mut text = String::new();
    for at in 0..70_000_u32 {
        text += &line(at, 100, &format!("irq_handler_entry: irq={at} name=a{at}"));
        text += &line(at, 200, &format!("irq_handler_exit: irq={at} ret=handled"));
        text += &switch(100, (at, "S"), at + 1);
        text += &line(at, 100, &format!("block_rq_issue: 8,0 W 4096 () {at} + 8 be,0,4 [x]"));
        text += &line(at, 100, &format!("block_rq_issue: 8,{at} W 4096 () 0 + 8 be,0,4 [x]"));
    }
    text += &line(1, 200, "block_rq_complete: 8,0 W () 64 + 8 be,0,4 [0]");
    let measured = summarize(text.as_bytes(), &[1, 2], 1.0);
    assert!(measured.handlers.len() <= 64 && measured.tasks.len() <= 64 && measured.disks.len() <= 64);
    assert!(measured.disks.iter().all(|disk| disk.issuers.len() <= 64));
    assert!(measured.lost_events > 2 * 65_000, "{}", measured.lost_events);
}

#[test]
fn reassembles_lines_of_any_split() {
    let text = [switch(0, (0, "R"), 8), switch(400, (8, "R"), 0)].concat();
    for at in 0..text.len() {
        let (mut lines, mut summary) = (Lines::default(), Summary::new(&[]));
        for part in [&text[..at], &text[at..]] {
            lines.split(part.as_bytes(), &mut |line| summary.add_line(line));
        }
        assert_eq!(summary.finish(1.0).tasks[0].times.sum_ns, 400_000, "split at {at}");
    }
}

#[test]
fn removes_the_instance_after_an_error() {
    let root = tempfile::tempdir().unwrap();
    let error = Instance::create(root.path(), &Cores::default()).unwrap_err();
    assert_eq!(
        (error.reason.as_str(), error.needs.contains("mount -t tracefs")),
        ("tracefs is not mounted", true)
    );
    let instances = root.path().join("sys/kernel/tracing/instances");
    let (old, other) = (instances.join("isolane-1"), instances.join("perf-1"));
    fs::create_dir_all(&old).unwrap();
    fs::create_dir_all(&other).unwrap();
    let error = Instance::create(root.path(), &Cores::default()).unwrap_err();
    assert!(error.path.ends_with("/trace_pipe") && error.needs.contains("CONFIG_FTRACE"), "{error}");
    let left: Vec<_> = fs::read_dir(&instances).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [other]);
}

#[test]
fn buffers_of_all_cores_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    for (cores, kb) in [(1, 4096), (64, 4096), (256, 1024)] {
        for core in 0..cores {
            fs::create_dir_all(dir.path().join(format!("per_cpu/cpu{core}"))).unwrap();
        }
        assert_eq!(instance::buffer_kb(dir.path()), kb, "{cores} cores");
    }
}
