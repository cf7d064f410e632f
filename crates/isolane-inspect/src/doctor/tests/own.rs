//! A running target.

use std::os::unix::net::UnixListener;

use isolane_observe::snapshot::{Connection, Core};

use super::*;
use crate::source::Source;

pub(super) fn with_counter(name: &str, value: u64) -> Snapshot {
    let mut snapshot = target(7);
    snapshot.numbers.counters.insert(name.to_owned(), value);
    snapshot
}

#[test]
fn counters_of_the_target_must_not_rise() {
    for (id, name) in [("own.pool", "memory-waits"), ("own.log", "log-lines-lost")] {
        let check = |snapshot| {
            let context = Context::new(Tree::new(&[]).root(), None).with_snapshot(snapshot);
            super::super::survey(&context, select(id).unwrap()[0])
        };
        assert_eq!(check(with_counter(name, 0)).state, State::Good, "{id}");
        let finding = check(with_counter(name, 3));
        assert!(finding.state == State::Bad && finding.value.starts_with("3 "), "{finding:?}");
        assert_eq!(check(target(7)).state, State::Unseen, "{id}");
        assert_eq!(state(&Tree::new(&[]), id), State::Absent, "{id}");
    }
}

#[test]
fn packets_and_reactor_share_a_core() {
    let check = |queue: u16, peer: &str, incoming_cpu: Option<u32>| {
        let mut snapshot = target(7);
        snapshot.numbers.cores = vec![Core { index: 1, cpu: Some(5), ..Core::default() }];
        snapshot.numbers.connections = vec![Connection {
            queue,
            core: 1,
            incoming_cpu,
            local: "10.0.0.1:4420".into(),
            peer: peer.into(),
            ..Connection::default()
        }];
        let mut context = Context::new(Tree::new(&[]).root(), None).with_snapshot(snapshot);
        run(&mut context, &select("own.place").unwrap()).remove(0)
    };
    assert_eq!(check(1, "10.0.0.2:5000", Some(5)).state, State::Good);
    let finding = check(1, "10.0.0.2:5000", Some(2));
    let expected = "1 connections: packets on core 2, reactor on core 5";
    assert_eq!((finding.state, &*finding.value), (State::Bad, expected));
    for (queue, peer, cpu) in [
        (0, "10.0.0.2:5000", Some(2)),
        (1, "10.0.0.1:5000", Some(2)),
        (1, "127.0.0.1:5000", Some(2)),
        (1, "10.0.0.2:5000", None),
    ] {
        assert_eq!(check(queue, peer, cpu).state, State::Absent, "{queue} {peer}");
    }
    assert_eq!(state(&Tree::new(&[]), "own.place"), State::Absent);
}

#[test]
fn dynamic_scheduler_sets_the_clock() {
    let tree = Tree::new(&[
        ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
        ("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance\n"),
    ]);
    for (dynamic, expected) in [(0, State::Bad), (1, State::Good)] {
        let mut snapshot = target(7);
        snapshot.program.limits.insert("scheduler-dynamic".to_owned(), dynamic);
        let mut context = Context::new(tree.root(), Some(vec![0, 1])).with_snapshot(snapshot);
        assert_eq!(run(&mut context, &select("cpu.governor").unwrap())[0].state, expected, "{dynamic}");
    }
}

#[test]
fn cores_and_connections_are_those_of_the_target() {
    let tree = Tree::new(&[
        ("/proc/7/status", "Cpus_allowed_list:\t0-3\n"),
        ("/proc/7/limits", "Max open files 1024 1025 files\n"),
        ("/proc/7/task/8/stat", ""),
        ("/proc/7/task/8/schedstat", "0 0 0\n"),
    ]);
    let mut snapshot = target(7);
    snapshot.numbers.cores = vec![Core { cpu: Some(4), thread: 8, ..Core::default() }];
    snapshot.numbers.connections = vec![Connection::default(), Connection::default()];
    let mut context = Context::new(tree.root(), None).with_snapshot(snapshot);
    let check = |context: &Context, id: &str| super::super::survey(context, select(id).unwrap()[0]);
    assert_eq!(check(&context, "cpu.allowed").value, "0-3 allowed, reactors on 4");
    assert_eq!(check(&context, "lim.files").state, State::Bad);
    tree.write_bytes("/proc/7/limits", b"Max open files 1024 1026 files\n");
    assert_eq!(check(&context, "lim.files").state, State::Good);
    fs::remove_file(tree.path("/proc/7/task/8/stat")).unwrap();
    check(&context, "cpu.thieves");
    context.start_second_reading();
    assert_eq!(check(&context, "cpu.thieves").state, State::Good);
    tree.write_bytes("/proc/7/task/8/schedstat", b"0 2000000 0\n");
    let finding = check(&context, "cpu.thieves");
    assert_eq!((finding.state, &*finding.value), (State::Bad, "reactor of core 4 waited 0.2 % of the time"));
    fs::remove_file(tree.path("/proc/7/task/8/schedstat")).unwrap();
    assert_eq!(check(&context, "cpu.thieves").state, State::Unseen);
}

/// The target sends its numbers once, and ends before the second reading.
#[test]
fn target_that_ends_is_not_good() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("serve-7.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let body = serde_json::to_string(&Snapshot { version: 1, ..with_counter("memory-waits", 0) }).unwrap();
    let server = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 1024];
        assert!(stream.read(&mut request).unwrap() > 0);
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
    });
    let context = Context::new(Tree::new(&[]).root(), None);
    let mut context = context.with_target(Source::Socket(path.clone())).unwrap();
    server.join().unwrap();
    let check = |context: &Context| super::super::survey(context, select("own.pool").unwrap()[0]);
    assert_eq!(check(&context).state, State::Good);
    context.start_second_reading();
    let finding = check(&context);
    assert!(finding.state == State::Unseen && finding.value.contains("serve-7.sock"), "{finding:?}");
    assert!(Context::new(Tree::new(&[]).root(), None).with_target(Source::Socket(path)).is_err());
}
