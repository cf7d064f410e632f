//! Metrics for Prometheus, as OpenMetrics text or as protobuf with native histograms.
//!
//! Histograms have borders at powers of two, up to which the counts are exact. Counters never decrease while the program
//! runs.

mod format;
mod protobuf;
mod text;
mod totals;

use std::collections::BTreeMap;
use std::fmt::Display;

use isolane_observe::histogram::Histogram;
use isolane_observe::peers::Level;
use isolane_observe::snapshot::{Series, Snapshot, Volume};
use isolane_observe::stage::{Operation, Side, SizeClass};

use crate::recorder::DeviceState;

use self::format::{Format, Kind, Labels, Value};
use self::protobuf::Protobuf;
use self::text::Text;
pub use self::totals::Totals;

/// Numbers that are not part of a snapshot.
#[derive(Debug, Default)]
pub struct Extra {
    /// Time that the hypervisor took from each CPU, in milliseconds.
    pub stolen_ms: BTreeMap<u32, u64>,
    /// Devices that have peers.
    pub(crate) devices: Vec<DeviceState>,
}

/// Format of the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposition {
    /// OpenMetrics 1.0.
    Text,
    /// Messages of Prometheus, each after its length.
    Protobuf,
}

impl Exposition {
    /// Returns the media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Exposition::Text => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Exposition::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }

    /// Writes all families.
    pub fn write(self, snapshot: &Snapshot, totals: &Totals, extra: &Extra) -> Vec<u8> {
        match self {
            Exposition::Text => {
                let mut text = Text::default();
                add_all(&mut text, snapshot, totals, extra);
                text.finish().into_bytes()
            }
            Exposition::Protobuf => {
                let mut families = Protobuf::default();
                add_all(&mut families, snapshot, totals, extra);
                families.finish()
            }
        }
    }
}

fn add_all(format: &mut dyn Format, snapshot: &Snapshot, totals: &Totals, extra: &Extra) {
    let volumes: BTreeMap<u32, &Volume> = snapshot.volumes.iter().map(|volume| (volume.id, volume)).collect();
    add_program(format, snapshot);
    add_series(format, &volumes, &sum_of_cores(&snapshot.numbers.series));
    add_volumes(format, snapshot, &volumes);
    add_devices(format, &extra.devices);
    add_cores(format, snapshot, totals, extra);
    add_counters(format, snapshot, totals);
    add_hosts(format, totals);
}

fn add_program(format: &mut dyn Format, snapshot: &Snapshot) {
    let program = &snapshot.program;
    format.family("isolane_build", Kind::Info, "Program and version.");
    let labels: Labels<'_> =
        &[("program", &program.name), ("version", &program.version), ("clock", &program.clock)];
    format.sample(labels, Value::Count(1));
    format.family("isolane_uptime_seconds", Kind::Gauge, "Time since the start of the program.");
    format.sample(&[], Value::Seconds(program.uptime_ms.saturating_mul(1_000_000)));
}

/// Kinds of volumes with several members.
const GROUPS: [&str; 2] = ["mirror", "stripe"];

/// Side, volume, operation, and size.
type Key = (Side, u32, Operation, SizeClass);

fn sum_of_cores(series: &[Series]) -> BTreeMap<Key, Series> {
    let mut sums: BTreeMap<Key, Series> = BTreeMap::new();
    for series in series {
        let key = (series.side, series.volume, series.operation, series.size);
        sums.entry(key).and_modify(|sum| sum.merge(series)).or_insert_with(|| series.clone());
    }
    sums
}

/// Labels that name one volume.
struct VolumeLabels(Vec<(&'static str, String)>);

impl VolumeLabels {
    /// Returns the labels of a namespace, or of the volume or streams of an application; none for members. Only the ID
    /// is different for all volumes: two sessions can use namespaces with one ID.
    fn new(volume: &Volume) -> Option<VolumeLabels> {
        if volume.nsid.is_none() && volume.application.is_none() {
            return None;
        }
        let nsid = volume.nsid.map(|nsid| ("nsid", nsid.to_string()));
        let application = volume.application.clone().map(|application| ("application", application));
        let name = [("volume", volume.name.clone()), ("id", volume.id.to_string())];
        Some(VolumeLabels(nsid.into_iter().chain(application).chain(name).collect()))
    }

    /// Returns these labels, followed by others.
    fn with<'a>(&'a self, others: Labels<'a>) -> Vec<(&'a str, &'a dyn Display)> {
        let own = self.0.iter().map(|(label, value)| (*label, value as &dyn Display));
        own.chain(others.iter().copied()).collect()
    }
}

fn add_series(format: &mut dyn Format, volumes: &BTreeMap<u32, &Volume>, sums: &BTreeMap<Key, Series>) {
    let labels: BTreeMap<u32, VolumeLabels> =
        volumes.iter().filter_map(|(id, volume)| Some((*id, VolumeLabels::new(volume)?))).collect();
    let named = |(key, series)| {
        let (side, volume, operation, size): &Key = key;
        Some((labels.get(volume)?, side.name(), operation.name(), size.name(), series))
    };
    let named: Vec<(&VolumeLabels, &str, &str, &str, &Series)> = sums.iter().filter_map(named).collect();
    format.family("isolane_io_seconds", Kind::Histogram, "Time of I/O commands.");
    for (volume, side, op, size, series) in &named {
        format.histogram(&volume.with(&[("side", side), ("op", op), ("size", size)]), &series.total);
    }
    format.family(
        "isolane_io_stage_seconds",
        Kind::Histogram,
        "Time of the stages of I/O commands that took time in them.",
    );
    for (volume, side, op, size, series) in &named {
        for stage in &series.stages {
            let name = stage.stage.name();
            let labels: Labels<'_> = &[("side", side), ("op", op), ("size", size), ("stage", &name)];
            format.histogram(&volume.with(labels), &stage.times);
        }
    }
    format.family("isolane_io_bytes", Kind::Counter, "Bytes of successful commands.");
    for (volume, side, op, size, series) in &named {
        let labels: Labels<'_> = &[("side", side), ("op", op), ("size", size)];
        format.sample(&volume.with(labels), Value::Count(series.bytes));
    }
    format.family("isolane_io_errors", Kind::Counter, "Failed commands.");
    for (volume, side, op, size, series) in &named {
        let labels: Labels<'_> = &[("side", side), ("op", op), ("size", size)];
        format.sample(&volume.with(labels), Value::Count(series.errors));
    }
    format.family("isolane_io_max_seconds", Kind::Gauge, "Longest time of a command since the start.");
    let mut longest: BTreeMap<(u32, Operation), u64> = BTreeMap::new();
    for ((_, volume, operation, _), series) in sums {
        let max = longest.entry((*volume, *operation)).or_default();
        *max = series.max_ns.max(*max);
    }
    for ((volume, operation), max_ns) in longest {
        let Some(volume) = labels.get(&volume) else { continue };
        format.sample(&volume.with(&[("op", &operation.name())]), Value::Seconds(max_ns));
    }
    format.family(
        "isolane_member_last",
        Kind::Counter,
        "Writes of a stripe or mirror that this member completed last.",
    );
    let mut last: BTreeMap<u32, u64> = BTreeMap::new();
    for ((_, volume, ..), series) in sums {
        *last.entry(*volume).or_default() += series.last;
    }
    for (volume, count) in last {
        let Some(member) = volumes.get(&volume) else { continue };
        let parent = member.parent.and_then(|parent| volumes.get(&parent));
        // A filter has one member, which is always the last.
        let Some(group) = parent.filter(|parent| GROUPS.contains(&parent.kind.as_str())) else { continue };
        let labels: Labels<'_> = &[("group", &group.name), ("member", &member.name), ("id", &volume)];
        format.sample(labels, Value::Count(count));
    }
}

fn add_volumes(format: &mut dyn Format, snapshot: &Snapshot, volumes: &BTreeMap<u32, &Volume>) {
    format.family("isolane_oldest_command_seconds", Kind::Gauge, "Age of the oldest command in flight.");
    for volume in snapshot.volumes.iter().filter(|volume| volume.nsid.is_some()) {
        let age_ns = volume.oldest_ms.unwrap_or(0).saturating_mul(1_000_000);
        let labels = VolumeLabels::new(volume);
        labels.iter().for_each(|labels| format.sample(&labels.with(&[]), Value::Seconds(age_ns)));
    }
    let mirrors: Vec<&&Volume> = volumes.values().filter(|volume| volume.kind == "mirror").collect();
    format.family("isolane_mirror_state", Kind::Gauge, "1 for the state of a mirror, 0 for the others.");
    for mirror in &mirrors {
        let current = match mirror.background.as_deref() {
            None => "in-sync",
            Some(text) if text.starts_with("copying") => "copying",
            Some("failed") => "failed",
            Some(_) => "degraded",
        };
        for state in ["in-sync", "copying", "degraded", "failed"] {
            let labels: Labels<'_> = &[("volume", &mirror.name), ("id", &mirror.id), ("state", &state)];
            format.sample(labels, Value::Count(u64::from(state == current)));
        }
    }
    format.family("isolane_mirror_copied_ratio", Kind::Gauge, "Part of the copy of a mirror that is done.");
    for mirror in &mirrors {
        let percent = mirror
            .background
            .as_deref()
            .and_then(|text| text.strip_prefix("copying ")?.split_whitespace().next()?.parse::<f64>().ok());
        if let Some(percent) = percent {
            format.sample(&[("volume", &mirror.name), ("id", &mirror.id)], Value::Ratio(percent / 100.0));
        }
    }
}

fn add_devices(format: &mut dyn Format, devices: &[DeviceState]) {
    format.family("isolane_device_slow", Kind::Gauge, "1 for a device that is slower than its peers.");
    for device in devices {
        let disk = device.disk.as_deref().unwrap_or_default();
        let labels: Labels<'_> = &[("volume", &device.volume), ("id", &device.id), ("device", &disk)];
        format.sample(labels, Value::Count(u64::from(device.level == Level::Slow)));
    }
    format.family(
        "isolane_device_ratio",
        Kind::Gauge,
        "Time of the operations of a device in relation to its peers, at a quantile; the largest of all operations.",
    );
    for device in devices {
        let disk = device.disk.as_deref().unwrap_or_default();
        for (quantile, ratio) in ["0.5", "0.99", "0.999"].iter().zip(device.ratios) {
            let labels: Labels<'_> =
                &[("volume", &device.volume), ("id", &device.id), ("device", &disk), ("quantile", quantile)];
            ratio.into_iter().for_each(|ratio| format.sample(labels, Value::Ratio(ratio)));
        }
    }
}

fn add_cores(format: &mut dyn Format, snapshot: &Snapshot, totals: &Totals, extra: &Extra) {
    let cores = &snapshot.numbers.cores;
    let mut family = |name, help, value: &dyn Fn(usize) -> Option<u64>| {
        format.family(name, Kind::Counter, help);
        for (at, core) in cores.iter().enumerate() {
            // A counter without a reading is left out: 0 would look like a restart.
            let value = value(at).map(Value::Seconds);
            value.into_iter().for_each(|value| format.sample(&[("core", &core.index)], value));
        }
    };
    family("isolane_core_busy_seconds", "Time in turns that did work.", &|at| Some(cores[at].busy_ns));
    family("isolane_core_asleep_seconds", "Time asleep in the kernel.", &|at| Some(cores[at].asleep_ns));
    family("isolane_core_waited_seconds", "Time in which another task had the core.", &|at| {
        Some(cores[at].waited_ns)
    });
    family("isolane_core_stolen_seconds", "Time that the hypervisor took from the core.", &|at| {
        let stolen = cores[at].cpu.and_then(|cpu| extra.stolen_ms.get(&cpu).copied());
        stolen.map(|ms| ms.saturating_mul(1_000_000))
    });
    family("isolane_core_stuck_seconds", "Time of turns that took more than 10 ms, as observed.", &|at| {
        Some(totals.stuck_ns.get(&cores[at].index).copied().unwrap_or(0))
    });
    format.family("isolane_core_turn_seconds", Kind::Histogram, "Time of turns.");
    let turns = cores.iter().filter_map(|core| Some((core.index, core.turns.as_ref()?)));
    turns.for_each(|(core, turns): (u32, &Histogram)| format.histogram(&[("core", &core)], turns));
}

fn add_counters(format: &mut dyn Format, snapshot: &Snapshot, totals: &Totals) {
    let counter = |name: &str| snapshot.numbers.counters.get(name).copied().unwrap_or(0);
    format.family("isolane_memory_waits", Kind::Counter, "Commands that waited for memory.");
    format.sample(&[], Value::Count(counter("memory-waits")));
    format.family(
        "isolane_range_waits",
        Kind::Counter,
        "Commands that waited for another one on the same blocks.",
    );
    format.sample(&[], Value::Count(counter("range-waits")));
    format.family("isolane_connections", Kind::Gauge, "Open connections.");
    format.sample(&[], Value::Count(counter("connections-open")));
    format.family(
        "isolane_slow_operations",
        Kind::Counter,
        "Listed slow operations, by the stage that took the most time.",
    );
    for (stage, count) in &totals.slow {
        format.sample(&[("stage", &stage.name())], Value::Count(*count));
    }
    format.family("isolane_observe_bytes", Kind::Gauge, "Memory of recorded numbers.");
    let bytes = counter("observe-bytes").saturating_add(counter("recorder-bytes"));
    format.sample(&[], Value::Count(bytes));
}

fn add_hosts(format: &mut dyn Format, totals: &Totals) {
    format.family("isolane_host_seconds", Kind::Histogram, "Time of the commands of a host.");
    for (host, at) in &totals.hosts {
        format.histogram(&[("host", host)], &at.times);
    }
    format.family(
        "isolane_host_peer_seconds",
        Kind::Histogram,
        "Stage peer: upper bounds of the time until a host acknowledged a sampled send (--acks).",
    );
    for (host, at) in totals.hosts.iter().filter(|(_, at)| at.peer_times.count() > 0) {
        format.histogram(&[("host", host)], &at.peer_times);
    }
    format.family("isolane_host_retransmits", Kind::Counter, "Retransmitted TCP segments to a host.");
    for (host, at) in &totals.hosts {
        format.sample(&[("host", host)], Value::Count(at.retransmits));
    }
    format.family(
        "isolane_host_rwnd_limited_seconds",
        Kind::Counter,
        "Time in which the receive window of a host was full.",
    );
    for (host, at) in &totals.hosts {
        format.sample(&[("host", host)], Value::Seconds(at.rwnd_limited_us.saturating_mul(1000)));
    }
}

#[cfg(test)]
mod tests {
    use isolane_observe::histogram::Resolution;
    use isolane_observe::snapshot::{Connection, Core, Numbers, StageHistogram};
    use isolane_observe::stage::Stage;

    use super::*;
    use crate::recorder::tests::{series, slow};

    fn snapshot() -> Snapshot {
        let volume = |id, nsid, parent, name: &str, kind: &str| Volume {
            id,
            nsid,
            parent,
            name: name.to_owned(),
            kind: kind.to_owned(),
            ..Volume::default()
        };
        let mut mirror = volume(0, Some(7), None, "m\"\n", "mirror");
        mirror.background = Some("copying 40 %".to_owned());
        let mut snapshot =
            Snapshot { volumes: vec![mirror, volume(1, None, Some(0), "a", "file")], ..Snapshot::default() };
        let mut member = series(1, 5);
        member.last = 4;
        let other_core = Series { core: 1, ..series(0, 20) };
        snapshot.numbers.series = vec![series(0, 10), other_core, member];
        let turns = Some(Histogram::new(Resolution::Four));
        snapshot.numbers.cores =
            vec![Core { busy_ns: 1_500_000_000, turns, cpu: Some(2), ..Core::default() }];
        snapshot
    }

    fn text(snapshot: &Snapshot, totals: &Totals, extra: &Extra) -> String {
        String::from_utf8(Exposition::Text.write(snapshot, totals, extra)).unwrap()
    }

    #[test]
    fn families_have_the_numbers_of_the_snapshot() {
        let mut totals = Totals::default();
        let mut peer_times = Histogram::new(Resolution::Four);
        peer_times.record(1_000, 3);
        let peer_times = Some(peer_times);
        let connection = Connection { host: "nqn.x".to_owned(), peer_times, ..Connection::default() };
        totals.add_step(&Numbers { connections: vec![connection], ..Numbers::default() });
        let mut operation = slow(1, 1);
        operation.stages = vec![(Stage::Device, 1)];
        totals.add_slow(&[operation]);
        let device = DeviceState {
            volume: "a".to_owned(),
            id: 1,
            disk: Some("sda".to_owned()),
            level: Level::Slow,
            ratios: [Some(6.5), None, None],
        };
        let extra = Extra { stolen_ms: [(2, 30)].into(), devices: vec![device] };
        let text = text(&snapshot(), &totals, &extra);
        for line in [
            r#"isolane_io_seconds_count{nsid="7",volume="m\"\n",id="0",side="target",op="read",size="4K"} 30"#,
            r#"isolane_io_bytes_total{nsid="7",volume="m\"\n",id="0",side="target",op="read",size="4K"} 122880"#,
            "isolane_member_last_total{group=\"m\\\"\\n\",member=\"a\",id=\"1\"} 4",
            "isolane_mirror_state{volume=\"m\\\"\\n\",id=\"0\",state=\"copying\"} 1",
            "isolane_mirror_copied_ratio{volume=\"m\\\"\\n\",id=\"0\"} 0.4",
            "isolane_device_slow{volume=\"a\",id=\"1\",device=\"sda\"} 1",
            "isolane_device_ratio{volume=\"a\",id=\"1\",device=\"sda\",quantile=\"0.5\"} 6.5",
            "isolane_core_busy_seconds_total{core=\"0\"} 1.5",
            "isolane_core_stolen_seconds_total{core=\"0\"} 0.03",
            "isolane_slow_operations_total{stage=\"device\"} 1",
            "isolane_host_peer_seconds_count{host=\"nqn.x\"} 3",
            "isolane_host_retransmits_total{host=\"nqn.x\"} 0",
            r#"isolane_oldest_command_seconds{nsid="7",volume="m\"\n",id="0"} 0.0"#,
        ] {
            assert!(text.lines().any(|at| at == line), "{line} in {text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn streams_are_labeled_with_their_application() {
        let mut snapshot = snapshot();
        let application = Some("fio (PID 7)".to_owned());
        let name = "streams (session 3)".to_owned();
        snapshot.volumes.push(Volume { id: 9, name, application, ..Volume::default() });
        snapshot.numbers.series.push(Series { side: Side::Stream, ..series(9, 4) });
        let text = text(&snapshot, &Totals::default(), &Extra::default());
        let labels = "application=\"fio (PID 7)\",volume=\"streams (session 3)\",id=\"9\",side=\"stream\"";
        let line = format!("isolane_io_seconds_count{{{labels},op=\"read\",size=\"4K\"}} 4");
        assert!(text.lines().any(|at| at == line), "{line} in {text}");
    }

    #[test]
    fn volumes_with_one_namespace_id_have_different_labels() {
        let mut snapshot = snapshot();
        snapshot.numbers.series[0].stages =
            vec![StageHistogram { stage: Stage::Device, times: Histogram::new(Resolution::Four) }];
        let application = |volume: u32| (volume < 20).then(|| "fio (PID 7)".to_owned());
        for (id, nsid) in [(10, Some(7)), (11, Some(7)), (12, None), (13, None), (20, Some(7)), (21, Some(7))]
        {
            let (name, application) = ("same".to_owned(), application(id));
            snapshot.volumes.push(Volume { id, nsid, name, application, ..Volume::default() });
            let copies: Vec<Series> = snapshot.numbers.series[..2].to_vec();
            snapshot.numbers.series.extend(copies.into_iter().map(|at| Series { volume: id, ..at }));
        }
        let text = text(&snapshot, &Totals::default(), &Extra::default());
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let mut names: Vec<&str> = samples.filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect();
        let count = names.len();
        assert!(
            names.iter().any(|name| name.contains("stage_seconds") && name.contains("id=\"21\"")),
            "{text}"
        );
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{text}");
    }

    #[test]
    fn each_mirror_has_one_state() {
        for (background, state) in [
            (None, "in-sync"),
            (Some("copying 40 %"), "copying"),
            (Some("degraded"), "degraded"),
            (Some("failed"), "failed"),
        ] {
            let mut snapshot = snapshot();
            snapshot.volumes[0].background = background.map(str::to_owned);
            let text = text(&snapshot, &Totals::default(), &Extra::default());
            let is_set = |line: &&str| line.starts_with("isolane_mirror_state") && line.ends_with(" 1");
            let set: Vec<&str> = text.lines().filter(is_set).collect();
            assert!(set.len() == 1 && set[0].contains(&format!("state=\"{state}\"")), "{set:?}");
        }
    }

    #[test]
    fn each_family_appears_once() {
        let text = text(&snapshot(), &Totals::default(), &Extra::default());
        let mut names: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE ")).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(count > 20, "{text}");
    }
}
