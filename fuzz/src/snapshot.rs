//! Targets for the snapshot of a program, and for the verdict about it.
//!
//! Invariant: a snapshot of any content gives a verdict, and its text has no control characters.

use isolane_observe::histogram::{Histogram, Resolution};
use isolane_observe::snapshot::{
    Connection, Core, Cpu, Device, Disk, DiskUser, Interrupts, Line, Numbers, Series, SlowOperation,
    Snapshot, StageHistogram, Step, StuckTurn, System, TailRow, Task, Tcp, Volume,
};
use isolane_observe::stage::{Operation, Side, SizeClass, Stage};
use isolane_observe::verdict::{
    Handler, Issuer, Measured, Options, RanTask, Requests, Times, Verdict, explain, explain_measured, to_text,
};

use crate::Target;
use crate::input::Input;

/// All targets.
pub(crate) const TARGETS: &[Target] = &[
    Target { name: "snapshot-document", check: document, corpus: documents },
    Target { name: "verdict", check: verdict, corpus: decisions },
];

/// A document from a file or a socket.
fn document(bytes: &[u8]) {
    if let Ok(snapshot) = serde_json::from_slice::<Snapshot>(bytes) {
        check(&explain(&snapshot, Options::default()));
    }
}

/// Contradictory numbers of any size.
fn verdict(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let options = Options {
        window_s: f64::from_bits(input.u64()),
        quantile: f64::from_bits(input.u64()),
        ..Options::default()
    };
    let snapshot = snapshot(&mut input);
    check(&explain(&snapshot, options));
    check(&explain_measured(&snapshot, Options::default(), Some(&measured(&mut input))));
}

/// Checks a verdict.
pub(crate) fn check(verdict: &Verdict) {
    let text = to_text(verdict);
    assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()), "{text:?}");
    let json = serde_json::to_string(verdict).expect("JSON");
    let again: Verdict = serde_json::from_str(&json).expect("the document of a verdict");
    assert_eq!(again.findings.len(), verdict.findings.len());
    for finding in &verdict.findings {
        assert!((0.1..=1.0).contains(&finding.share), "share {}", finding.share);
    }
}

fn documents() -> Vec<Vec<u8>> {
    let snapshots = decisions().into_iter().map(|bytes| snapshot(&mut Input::new(&bytes)));
    let text = |snapshot| serde_json::to_vec(&snapshot).expect("JSON");
    snapshots.map(text).chain([b"{}".to_vec()]).collect()
}

fn decisions() -> Vec<Vec<u8>> {
    let bytes = |seed: u64| {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..2000).map(|_| random.u8(..)).collect()
    };
    (0..8).map(bytes).chain([Vec::new()]).collect()
}

fn snapshot(input: &mut Input<'_>) -> Snapshot {
    let mut snapshot = Snapshot { at_unix_ms: number(input), ..Snapshot::default() };
    snapshot.program.uptime_ms = number(input);
    snapshot.program.pid = input.u32();
    snapshot.volumes = list(input, volume);
    snapshot.devices = list(input, device);
    snapshot.numbers = numbers(input);
    snapshot.slow = list(input, slow);
    snapshot.stuck = list(input, stuck);
    snapshot.steps = list(input, step);
    if input.u8() & 1 == 1 {
        // Enough steps for a correlation.
        let steps = std::mem::take(&mut snapshot.steps);
        snapshot.steps = (0..40).flat_map(|_| steps.clone()).collect();
    }
    snapshot
}

fn list<T>(input: &mut Input<'_>, item: fn(&mut Input<'_>) -> T) -> Vec<T> {
    (0..input.u8() % 6).map(|_| item(input)).collect()
}

/// Small, usual, and extreme numbers.
fn number(input: &mut Input<'_>) -> u64 {
    match input.u8() % 4 {
        0 => u64::from(input.u8()),
        1 => 1_795_788_000_000 + u64::from(input.u16()),
        2 => 1 << (input.u8() % 64),
        _ => input.u64(),
    }
}

fn small(input: &mut Input<'_>) -> u32 {
    u32::from(input.u8() % 6)
}

fn name(input: &mut Input<'_>) -> String {
    let names = [
        "",
        "disk",
        "nvme0n1",
        "nvme1n1",
        "nvme1q1",
        "idle",
        "\u{1b}[2J\n",
        "\u{202e}<b>\"'",
        "delay",
        "142",
    ];
    input.pick(&names).to_owned()
}

fn histogram(input: &mut Input<'_>, usual: Resolution) -> Histogram {
    let resolution = match usual {
        Resolution::Eight if input.u8() == 0 => Resolution::Four,
        Resolution::Four if input.u8() == 0 => Resolution::Eight,
        usual => usual,
    };
    let mut histogram = Histogram::new(resolution);
    for _ in 0..input.u8() % 5 {
        histogram.record(number(input), number(input));
    }
    histogram
}

fn stage(input: &mut Input<'_>) -> Stage {
    let side = input.pick(&[Side::Target, Side::Host, Side::Engine, Side::Stream]);
    input.pick(side.stages())
}

fn stages(input: &mut Input<'_>) -> Vec<(Stage, u64)> {
    list(input, |input| (stage(input), number(input)))
}

fn series(input: &mut Input<'_>) -> Series {
    Series {
        side: input.pick(&[Side::Target, Side::Target, Side::Host, Side::Engine, Side::Stream]),
        volume: small(input),
        core: small(input),
        operation: input.pick(&Operation::ALL),
        size: input.pick(&SizeClass::ALL),
        total: histogram(input, Resolution::Eight),
        stages: list(input, |input| StageHistogram {
            stage: stage(input),
            times: histogram(input, Resolution::Four),
        }),
        tail: list(input, |input| TailRow { row: input.u8() % 40, sums_ns: list(input, number) }),
        bytes: number(input),
        errors: number(input),
        last: number(input),
        last_by_ns: number(input),
        max_ns: number(input),
        unseen: (input.u8() & 1 == 1).then(|| histogram(input, Resolution::Four)),
    }
}

fn numbers(input: &mut Input<'_>) -> Numbers {
    let counters = ["memory-waits", "range-waits", "flush-waits", "file-thread-waits"];
    Numbers {
        series: list(input, series),
        connections: list(input, connection),
        cores: list(input, core),
        counters: (0..4).map(|at: usize| (counters[at].to_owned(), number(input))).collect(),
    }
}

fn connection(input: &mut Input<'_>) -> Connection {
    let tcp = Tcp {
        rwnd_limited_us: number(input),
        retransmits: number(input),
        segments: number(input),
        ..Tcp::default()
    };
    Connection {
        id: u64::from(small(input)),
        host: name(input),
        core: small(input),
        incoming_cpu: (input.u8() & 1 == 1).then(|| small(input)),
        peer: name(input),
        totals: list(input, |input| (input.pick(&SizeClass::ALL), histogram(input, Resolution::Four))),
        stages_ns: stages(input),
        received_bytes: number(input),
        sent_bytes: number(input),
        peer_times: (input.u8() & 1 == 1).then(|| histogram(input, Resolution::Four)),
        tcp: (input.u8() & 1 == 1).then_some(tcp),
        ..Connection::default()
    }
}

fn core(input: &mut Input<'_>) -> Core {
    Core {
        index: small(input),
        cpu: (input.u8() & 1 == 1).then(|| small(input)),
        asleep_ns: number(input),
        late_ns: number(input),
        waited_ns: number(input),
        ran_ns: number(input),
        turns: (input.u8() & 1 == 1).then(|| histogram(input, Resolution::Four)),
        ..Core::default()
    }
}

fn volume(input: &mut Input<'_>) -> Volume {
    Volume {
        id: small(input),
        parent: (input.u8() & 1 == 1).then(|| small(input)),
        nsid: (input.u8() & 1 == 1).then(|| small(input)),
        name: name(input),
        kind: name(input),
        group: (input.u8() & 1 == 1).then(|| name(input)),
        path: (input.u8() & 1 == 1).then(|| name(input)),
        device: (input.u8() & 1 == 1).then(|| name(input)),
        background: (input.u8() == 0).then(|| name(input)),
        ..Volume::default()
    }
}

fn device(input: &mut Input<'_>) -> Device {
    let line = |input: &mut Input<'_>| Line { number: 142, actions: list(input, name), ..Line::default() };
    Device {
        name: name(input),
        model: name(input),
        beneath: list(input, name),
        interrupts: list(input, line),
        resync: name(input),
        ..Device::default()
    }
}

fn slow(input: &mut Input<'_>) -> SlowOperation {
    SlowOperation {
        side: Side::Target,
        at_unix_us: number(input),
        volume: small(input),
        operation: input.pick(&Operation::ALL),
        bytes: number(input),
        lba: number(input),
        core: small(input),
        connection: u64::from(small(input)),
        cid: 0,
        depth: 0,
        total_ns: number(input),
        stages: stages(input),
        last_member: None,
    }
}

fn stuck(input: &mut Input<'_>) -> StuckTurn {
    StuckTurn {
        at_unix_us: number(input),
        core: small(input),
        lasted_ns: number(input),
        phase: name(input),
        state: name(input),
        wchan: name(input),
        call: name(input),
    }
}

fn step(input: &mut Input<'_>) -> Step {
    let mut system = System {
        interrupts: list(input, |input| Interrupts {
            line: name(input),
            cpu: small(input),
            count: number(input),
        }),
        cpus: list(input, |input| Cpu { cpu: small(input), steal_ms: number(input), ..Cpu::default() }),
        disks: list(input, |input| Disk {
            name: name(input),
            reads: number(input),
            read_bytes: number(input),
            own: number(input),
            own_bytes: number(input),
            ..Disk::default()
        }),
        tasks: list(input, |input| Task {
            pid: small(input),
            name: name(input),
            cpu: small(input),
            ran_ms: number(input),
        }),
        users: list(input, |input| DiskUser {
            pid: small(input),
            name: name(input),
            read_bytes: number(input),
            written_bytes: number(input),
        }),
        not_seen: list(input, |input| (name(input), name(input))),
        ..System::default()
    };
    system.quota.throttled_ms = number(input);
    Step { at_unix_ms: number(input), length_ms: number(input), numbers: numbers(input), system }
}

fn measured(input: &mut Input<'_>) -> Measured {
    Measured {
        seconds: f64::from_bits(number(input)),
        handlers: list(input, |input| Handler {
            line: 142,
            name: name(input),
            cpu: small(input),
            times: times(input),
        }),
        tasks: list(input, |input| RanTask {
            thread: small(input),
            process: (input.u8() & 1 == 1).then(|| small(input)),
            name: name(input),
            cpu: small(input),
            times: times(input),
            delayed: times(input),
        }),
        disks: list(input, |input| Requests {
            disk: name(input),
            times: times(input),
            issuers: list(input, |input| Issuer {
                thread: small(input),
                process: (input.u8() & 1 == 1).then(|| small(input)),
                name: name(input),
                requests: number(input),
            }),
        }),
        lost_events: number(input),
        not_seen: list(input, |input| (name(input), name(input))),
    }
}

fn times(input: &mut Input<'_>) -> Times {
    Times { count: number(input), sum_ns: number(input), max_ns: number(input) }
}
