//! Verdicts about a simulated target with known faults.

#![cfg(not(loom))]
#![forbid(unsafe_code)]

#[allow(dead_code, reason = "each test uses a part of the simulation")]
mod simulated;

use isolane_observe::snapshot::Snapshot;
use isolane_observe::stage::Stage;
use isolane_observe::verdict::{Kind, Options, Verdict, explain, to_text};
use simulated::World;
use simulated::faults::{Fault, What};

fn verdict_of(faults: &[What]) -> Verdict {
    let faults = faults.iter().map(|what| Fault { what: *what, start: 12 }).collect();
    let world = World { faults, ..World::healthy() };
    explain(&world.run(7).snapshot, Options::default())
}

/// All faults, each on a volume, core, or host that is not the first.
const ALL: [What; 18] = [
    What::SlowDevice { volume: 5, factor: 6.0 },
    What::StallingDevice { volume: 5, one_in: 60 },
    What::SlowWrites { volume: 5, factor: 7.0 },
    What::HotVolume { volume: 5, factor: 8 },
    What::DiskUser { volume: 5 },
    What::Common { factor: 3.0 },
    What::Process { core: 1 },
    What::Steal { core: 1 },
    What::Quota,
    What::StuckTurns { core: 1 },
    What::Memory,
    What::Qos { volume: 5 },
    What::Conflict { volume: 5, lba: 4096 },
    What::Flushes,
    What::FileThreads,
    What::BulkHost { host: 1 },
    What::PausedHost { host: 2 },
    What::LossyHost { host: 3 },
];

#[test]
fn names_each_fault() {
    for what in ALL {
        let verdict = verdict_of(&[what]);
        let fault = Fault { what, start: 0 };
        let text = to_text(&verdict);
        let found: Vec<Kind> = verdict.findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(found, [fault.kind()], "{what:?}:\n{text}");
        let name = &verdict.findings[0].name;
        assert!(name.contains(&fault.name()), "{what:?} has the name {name}:\n{text}");
    }
}

#[test]
fn maximum_speed_is_a_cause_of_its_own() {
    let verdict = verdict_of(&[What::Qos { volume: 5 }]);
    let [limit] = &*verdict.findings else { panic!("{}", to_text(&verdict)) };
    assert_eq!((limit.stage, limit.cause.as_deref()), (Some(Stage::Limit), Some("qos")));
}

#[test]
fn ignores_soft_interrupts_of_own_traffic() {
    let world =
        World { faults: vec![Fault { what: What::Process { core: 1 }, start: 12 }], ..World::healthy() };
    let mut snapshot = world.run(7).snapshot;
    let cpus = snapshot.steps.iter_mut().flat_map(|step| &mut step.system.cpus);
    cpus.for_each(|cpu| cpu.softirq_ms = 400);
    let verdict = explain(&snapshot, Options::default());
    let causes: Vec<_> = verdict.findings.iter().map(|finding| finding.cause.as_deref()).collect();
    assert_eq!(causes, [Some("process")], "{}", to_text(&verdict));
}

#[test]
fn names_a_network_that_delays_no_stage() {
    let mut snapshot = World::healthy().run(7).snapshot;
    let connections = snapshot.steps.iter_mut().flat_map(|step| &mut step.numbers.connections);
    for tcp in connections.filter(|at| at.host.ends_with('3')).filter_map(|at| at.tcp.as_mut()) {
        (tcp.retransmits, tcp.rtt_us) = (15, 5000);
    }
    let verdict = explain(&snapshot, Options::default());
    let text = to_text(&verdict);
    let [network] = &*verdict.findings else { panic!("{text}") };
    assert_eq!((network.kind, network.stage), (Kind::Network, Some(Stage::Peer)), "{text}");
    assert!(network.neighbors[0].name.ends_with('3') && network.share > 0.5, "{text}");
}

#[test]
fn finds_nothing_in_a_healthy_target() {
    let verdict = verdict_of(&[]);
    assert_eq!(verdict.findings, [], "{}", to_text(&verdict));
    assert!(to_text(&verdict).contains("no finding"));
}

#[test]
fn loses_positive_zero_without_operations() {
    let verdict = explain(&Snapshot::default(), Options::default());
    assert_eq!(verdict.tail.lost_us.to_string(), "0", "not -0");
}

#[test]
fn shares_agree_with_delays_of_operations() {
    let faults = [What::Memory, What::FileThreads].map(|what| Fault { what, start: 12 });
    let world = World { faults: faults.to_vec(), ..World::healthy() };
    let mut outcome = world.run(3);
    let verdict = explain(&outcome.snapshot, Options::default());
    outcome.last.sort_by_key(|io| std::cmp::Reverse(io.total_ns()));
    let tail = &outcome.last[..verdict.tail.operations as usize];
    let added = |fault: usize| tail.iter().map(|io| io.added_ns[fault]).sum::<u64>() as f64;
    let all = added(0) + added(1);
    for (at, kind) in [(0, Kind::Memory), (1, Kind::FileThreads)] {
        let found = verdict.findings.iter().find(|finding| finding.kind == kind).expect("a finding");
        let expected = added(at) / all;
        assert!((found.share - expected).abs() < 0.05, "{kind:?}: {} instead of {expected}", found.share);
    }
}

#[test]
fn escapes_names_in_text() {
    let mut outcome = World { faults: vec![Fault { what: ALL[0], start: 12 }], ..World::healthy() }.run(7);
    outcome.snapshot.volumes[5].name = "disk\u{1b}[2J\n1  fake".repeat(1000);
    let text = to_text(&explain(&outcome.snapshot, Options::default()));
    assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()), "{text:?}");
    assert!(text.len() < 4000);
}
