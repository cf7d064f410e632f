//! Verdicts about volumes with members, volumes on one disk, and hosts.

#![cfg(not(loom))]
#![forbid(unsafe_code)]

use isolane_observe::cells::{SeriesCells, StageTimes, set_stage};
use isolane_observe::snapshot::{Device, SeriesKey, Snapshot, Volume};
use isolane_observe::stage::{Operation, Side, SizeClass, Stage};
use isolane_observe::verdict::{Kind, Options, Verdict, explain, to_text};

fn key(side: Side, volume: u32, operation: Operation) -> SeriesKey {
    SeriesKey { side, volume, core: 0, operation, size: SizeClass::Small }
}

/// Records operations that take between `us` and twice that in one stage.
fn record(cells: &SeriesCells, side: Side, stage: Stage, us: u64, count: u64) {
    for part in 0..16 {
        let mut times = StageTimes::default();
        set_stage(&mut times, side, stage, (us + us * part / 16) * 1000);
        cells.record(&times, count / 16);
    }
}

fn add(snapshot: &mut Snapshot, key: SeriesKey, cells: &SeriesCells) {
    snapshot.numbers.series.extend(cells.copy(key));
}

fn volume(id: u32, parent: Option<u32>, name: &str, kind: &str) -> Volume {
    Volume { id, parent, name: name.into(), kind: kind.into(), ..Volume::default() }
}

fn empty() -> Snapshot {
    let mut snapshot = Snapshot::default();
    snapshot.program.uptime_ms = 10_000;
    snapshot
}

fn kinds(verdict: &Verdict) -> Vec<(Kind, &str)> {
    verdict.findings.iter().map(|finding| (finding.kind, finding.name.as_str())).collect()
}

/// A volume whose four members take the same time for reads. One takes `factor` times the time for writes.
fn with_members(kind: &str, factor: u64) -> Snapshot {
    let mut snapshot = empty();
    snapshot.volumes.push(volume(0, None, "array", kind));
    for member in 1..5 {
        snapshot.volumes.push(volume(member, Some(0), &format!("member{member}"), "delay"));
        snapshot.volumes.push(volume(member + 4, Some(member), "memory", "memory"));
        for (operation, us) in
            [(Operation::Read, 200), (Operation::Write, if member == 3 { 200 * factor } else { 200 })]
        {
            let cells = SeriesCells::default();
            record(&cells, Side::Target, Stage::Device, us, 3200);
            if operation == Operation::Write {
                (0..if member == 3 { 3000 } else { 60 }).for_each(|_| cells.add_last(500_000));
            }
            add(&mut snapshot, key(Side::Target, member, operation), &cells);
        }
    }
    for (operation, slow_us) in [(Operation::Read, 200), (Operation::Write, 200 * factor)] {
        let cells = SeriesCells::default();
        record(&cells, Side::Target, Stage::Device, 200, 9600);
        record(&cells, Side::Target, Stage::Device, slow_us, 3200);
        add(&mut snapshot, key(Side::Target, 0, operation), &cells);
    }
    snapshot
}

#[test]
fn names_member_with_slow_writes() {
    let verdict = explain(&with_members("stripe", 5), Options::default());
    assert_eq!(kinds(&verdict), [(Kind::Device, "member3")], "{}", to_text(&verdict));
    let finding = &verdict.findings[0];
    assert_eq!(finding.operation, Some(Operation::Write));
    assert_eq!(finding.cause.as_deref(), Some("delay"), "the filter of the member");
    let last = finding.evidence.iter().find(|evidence| evidence.what == "last").expect("order of completion");
    assert!(last.value > 90.0, "{last:?}");
}

#[test]
fn leaves_out_member_that_copies() {
    let mut snapshot = with_members("mirror", 5);
    snapshot.volumes.iter_mut().find(|at| at.name == "member3").expect("member").background =
        Some("copying 40 %".into());
    let verdict = explain(&snapshot, Options::default());
    assert_eq!(verdict.findings, [], "{}", to_text(&verdict));
    assert!(to_text(&verdict).contains("member3 is left out of the comparison: copying 40 %"));
}

/// Volumes on disks of one model, two on the last one, which is slow.
fn on_disks() -> Snapshot {
    let mut snapshot = empty();
    for id in 0..5_u32 {
        let disk = format!("disk{}", id.min(3));
        let name = format!("volume{id}");
        snapshot.volumes.push(Volume { device: Some(disk), ..volume(id, None, &name, "file") });
        let cells = SeriesCells::default();
        record(&cells, Side::Target, Stage::Device, if id < 3 { 200 } else { 1500 }, 3200);
        add(&mut snapshot, key(Side::Target, id, Operation::Read), &cells);
    }
    let device = |id| Device { name: format!("disk{id}"), model: "EXAMPLE".into(), ..Device::default() };
    snapshot.devices = (0..4).map(device).collect();
    snapshot
}

#[test]
fn names_disk_of_two_volumes_once() {
    let verdict = explain(&on_disks(), Options::default());
    let [(kind, name)] = kinds(&verdict)[..] else { panic!("{}", to_text(&verdict)) };
    assert!(matches!(kind, Kind::Device | Kind::Hot), "{}", to_text(&verdict));
    assert!(["disk3", "volume3", "volume4"].iter().all(|part| name.contains(part)), "{name}");
}

#[test]
fn compares_no_disks_of_different_models() {
    let mut snapshot = on_disks();
    snapshot.devices.iter_mut().for_each(|device| device.model = device.name.clone());
    let verdict = explain(&snapshot, Options::default());
    assert_eq!(verdict.findings, [], "half of the loss is of each volume: {}", to_text(&verdict));
}

#[test]
fn names_caller_that_fetches_late() {
    let mut snapshot = empty();
    snapshot.program.name = "database".into();
    let cells = SeriesCells::default();
    record(&cells, Side::Host, Stage::Wait, 100, 32_000);
    record(&cells, Side::Host, Stage::Wake, 8_000, 320);
    add(&mut snapshot, key(Side::Host, 0, Operation::Read), &cells);
    let verdict = explain(&snapshot, Options::default());
    assert_eq!(kinds(&verdict), [(Kind::Caller, "database (PID 0)")], "{}", to_text(&verdict));
}

#[test]
fn names_application_that_fetches_late() {
    let applications = |late: &[u32]| {
        let mut snapshot = empty();
        snapshot.program.name = "engine".into();
        for id in 0..4 {
            let application = Some(format!("application {id}"));
            snapshot.volumes.push(Volume { application, ..volume(id, None, "uri", "remote") });
            let cells = SeriesCells::default();
            record(&cells, Side::Engine, Stage::Wait, 100, 8_000 * (1 + u64::from(id)));
            if late.contains(&id) {
                record(&cells, Side::Engine, Stage::Notice, 8_000, 80);
            }
            add(&mut snapshot, key(Side::Engine, id, Operation::Read), &cells);
        }
        explain(&snapshot, Options::default())
    };
    let verdict = applications(&[3]);
    assert_eq!(kinds(&verdict), [(Kind::Caller, "application 3")], "{}", to_text(&verdict));
    assert_eq!(verdict.findings[0].stage, Some(Stage::Notice));
    let verdict = applications(&[0, 1, 3]);
    assert_eq!(kinds(&verdict), [(Kind::Caller, "4 applications")], "{}", to_text(&verdict));
}

#[test]
fn names_application_that_receives_late() {
    let mut snapshot = empty();
    let streams =
        Volume { application: Some("redis (PID 7)".into()), ..volume(9, None, "streams", "stream") };
    snapshot.volumes.push(streams);
    let cells = SeriesCells::default();
    record(&cells, Side::Stream, Stage::Rx, 20, 32_000);
    record(&cells, Side::Stream, Stage::Rx, 8_000, 320);
    add(&mut snapshot, key(Side::Stream, 9, Operation::Read), &cells);
    let verdict = explain(&snapshot, Options::default());
    let text = to_text(&verdict);
    assert_eq!(kinds(&verdict), [(Kind::Caller, "redis (PID 7)")], "{text}");
    assert!(text.starts_with("10 s, 32,320 operations on streams: half take"), "{text}");
    assert!(text.contains("its data waits") && text.contains("fetch data more often"), "{text}");
    assert!(!text.contains("completions"), "{text}");
    assert_eq!((verdict.volumes, verdict.streams), (0, 1));

    snapshot.volumes.push(volume(1, None, "uri", "remote"));
    let cells = SeriesCells::default();
    record(&cells, Side::Engine, Stage::Wait, 100, 32_000);
    add(&mut snapshot, key(Side::Engine, 1, Operation::Read), &cells);
    let text = to_text(&explain(&snapshot, Options::default()));
    assert!(text.starts_with("10 s, 64,320 operations on 1 volume and streams: half"), "{text}");
}

#[test]
fn explains_many_volumes_and_members() {
    let mut snapshot = empty();
    for id in 0..20_000_u32 {
        // Chains, pairs, and cycles.
        let parent = match id % 4 {
            0 => None,
            1 => Some(id - 1),
            2 => Some(id - 2),
            _ => Some(id),
        };
        snapshot.volumes.push(volume(id, parent, "volume", "stripe"));
        if id % 10 == 0 {
            let cells = SeriesCells::default();
            record(&cells, Side::Target, Stage::Device, u64::from(id % 7 + 1) * 100, 1600);
            add(&mut snapshot, key(Side::Target, id, Operation::Read), &cells);
        }
    }
    let verdict = explain(&snapshot, Options::default());
    assert_eq!(verdict.operations, 2000 / 2 * 1600, "only volumes without a parent");
}
