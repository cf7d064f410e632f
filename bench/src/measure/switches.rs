//! The rows that change one thing about Isolane, or about its surroundings.

use super::entrant::{Entrant, Host, ISOLANE, Lanes, POLL, SPDK, Sockets, Target, entrant, isolane};
use super::figures::Figure;
use super::row::{Goal, Group, Limit, Load, Row, Rw};
use super::rows::{goal, load, reads};

/// All of them.
pub const SWITCHES: &[Row] = &[
    switch("digests-4k", "header and data digests, 4 KiB read, QD32", reads(32, 1), DIGESTS, &DIGEST_GOALS),
    switch(
        "digests-128k",
        "header and data digests, 128 KiB read, QD16",
        load(Rw::Read, 128 << 10, 16, 1),
        DIGESTS,
        &DIGEST_GOALS,
    ),
    switch("adaptive", "adaptive mode, 4 KiB read, QD32", reads(32, 1), MODES, &MODE_GOALS),
    switch(
        "adaptive-128k",
        "adaptive mode, 128 KiB read, QD16",
        load(Rw::Read, 128 << 10, 16, 1),
        MODES,
        &MODE_GOALS,
    ),
    switch("segments-qd8", SEGMENTS_QD8, reads(8, 1), SEGMENTS, &SEGMENT_GOALS),
    switch("segments", "one capsule a segment, 4 KiB read, QD32", reads(32, 1), SEGMENTS, &SEGMENT_GOALS),
    switch(
        "file-buffered",
        "a file in the page cache, 4 KiB read, QD32",
        reads(32, 1),
        BUFFERED,
        &FILE_GOALS,
    ),
    switch("file-direct", "a file past the page cache, 4 KiB read, QD32", reads(32, 1), DIRECT, &FILE_GOALS),
    Row { figure: Figure::Tail, ..switch("bulk-one", BULK_ONE, reads(16, 1), SCHEDULING, &SCHEDULING_GOALS) },
    Row { figure: Figure::Tail, ..switch("bulk-classes", BULK_CLASSES, reads(16, 4), CLASSES, &CLASS_GOALS) },
    Row {
        figure: Figure::Mean,
        ..switch("inline-poll", INLINE_POLL, reads(1, 1), INLINE_POLLING, &INLINE_GOALS)
    },
    Row {
        figure: Figure::Mean,
        ..switch("inline-adaptive", INLINE_ADAPTIVE, reads(1, 1), INLINE, &INLINE_GOALS)
    },
    switch(
        "batching",
        "8 threads, 4 KiB read, QD16 each, one connection",
        reads(16, 1),
        BATCHING,
        &BATCHING_GOALS,
    ),
    Row { figure: Figure::Mean, ..switch("batching-lone", BATCHING_LONE, reads(1, 1), LONE, &LONE_GOALS) },
    Row { figure: Figure::Mean, ..switch("hold-lone", HOLD_LONE, reads(1, 1), HELD, &HELD_GOALS) },
    switch("cores", CORES_TITLE, reads(16, 2), CORES, &[]),
    Row { figure: Figure::Mean, ..switch("cores-lone", CORES_LONE, reads(1, 2), CORES, &[]) },
    switch(
        "zero-copy",
        "zero-copy send, 128 KiB read, QD16",
        load(Rw::Read, 128 << 10, 16, 1),
        ZERO_COPY,
        &[],
    ),
    Row {
        figure: Figure::Processor,
        ..switch("scheduler-light", SCHEDULER_LIGHT, reads(1, 8), LIGHT, &LIGHT_GOALS)
    },
    switch("scheduler-full", SCHEDULER_FULL, reads(32, 4), FULL, &FULL_GOALS),
    Row { figure: Figure::Processor, ..switch("idle", IDLE_TITLE, reads(1, 1000), IDLE, &[]) },
];

const DIGESTS: &[Entrant] = &[
    ISOLANE,
    isolane("isolane+digests", POLL, "--mode poll --hdr-digest --data-digest"),
    SPDK,
    entrant("spdk+digests", Target::Spdk(Sockets::Posix), Host::Spdk(Sockets::Posix, "-H -I")),
];
const DIGEST_GOALS: [Goal; 2] = [
    goal(Figure::Rate, "isolane+digests", &["isolane"], Limit::AtLeast(0.85)),
    goal(Figure::Rate, "isolane+digests", &["spdk+digests"], Limit::AtLeast(1.2)),
];

const ADAPTIVE: &str = "--mode adaptive";
const MODES: &[Entrant] = &[ISOLANE, isolane("isolane+adaptive", ADAPTIVE, ADAPTIVE)];
const MODE_GOALS: [Goal; 1] = [goal(Figure::Rate, "isolane+adaptive", &["isolane"], Limit::AtLeast(0.97))];

/// How a Linux host behaves whose applications submit one at a time and wait.
const SEGMENTS_QD8: &str = "one capsule a segment at low depth, 4 KiB read, QD8";
/// The floor with a call for each request shows what the calls alone leave of the rate.
const SEGMENTS: &[Entrant] = &[
    entrant("floor+single", Target::None, Host::Floor("--single")),
    entrant("isolane+batched", Target::Isolane(POLL), Host::Capsules("")),
    entrant("isolane+single", Target::Isolane(POLL), Host::Capsules("--single")),
];
const SEGMENT_GOALS: [Goal; 1] =
    [goal(Figure::Rate, "isolane+single", &["isolane+batched"], Limit::AtLeast(0.5))];

const BUFFERED: &[Entrant] = &[
    entrant("fio", Target::None, Host::FioFile { is_direct: false }),
    entrant("isolane", Target::IsolaneFile { is_direct: false }, Host::Isolane(POLL)),
];
const DIRECT: &[Entrant] = &[
    entrant("fio", Target::None, Host::FioFile { is_direct: true }),
    entrant("isolane", Target::IsolaneFile { is_direct: true }, Host::Isolane(POLL)),
];
/// Within 1.15 times of the local program's time.
const FILE_GOALS: [Goal; 1] = [goal(Figure::Rate, "isolane", &["fio"], Limit::AtLeast(1.0 / 1.15))];

const BULK_ONE: &str = "4 KiB reads, QD16, beside 1 MiB writes, QD32, on one connection";
const BESIDE: &str = "--mode poll --beside write:1m:32";
const SCHEDULING: &[Entrant] = &[
    isolane("isolane+first-come", "--mode poll --scheduling off", BESIDE),
    isolane("isolane+scheduled", "--mode poll --scheduling on", BESIDE),
];
const SCHEDULING_GOALS: [Goal; 3] = [
    goal(Figure::Tail, "isolane+scheduled", &["isolane+first-come"], Limit::AtMost(0.25)),
    goal(Figure::Mean, "isolane+scheduled", &["isolane+first-come"], Limit::AtMost(1.0)),
    goal(Figure::Bulk, "isolane+scheduled", &["isolane+first-come"], Limit::AtLeast(0.9)),
];

const BULK_CLASSES: &str = "16 readers of 4 KiB beside a writer of 1 MiB, QD32, 4 connections";
/// What one class is without the rest: first come, first served is what a host without classes mostly meets.
const CLASSES: &[Entrant] = &[
    isolane("isolane+first-come", "--mode poll --scheduling off", SHARED),
    isolane("isolane+shared", POLL, SHARED),
    isolane("isolane+classes", POLL, "--mode poll --beside write:1m:32 --spread --lanes 2 --read-lanes 2"),
];
const SHARED: &str = "--mode poll --beside write:1m:32 --spread --lanes 4";
const CLASS_GOALS: [Goal; 4] = [
    goal(Figure::Rate, "isolane+classes", &["isolane+shared"], Limit::AtLeast(2.1)),
    goal(Figure::Mean, "isolane+classes", &["isolane+shared"], Limit::AtMost(1.0 / 2.2)),
    goal(Figure::Tail, "isolane+classes", &["isolane+shared"], Limit::AtMost(0.1)),
    goal(Figure::Tail, "isolane+classes", &["isolane+first-come"], Limit::AtMost(0.1)),
];

const INLINE_POLL: &str = "a thread that submits itself, 4 KiB read, QD1, poll mode";
const INLINE_ADAPTIVE: &str = "a thread that submits itself, 4 KiB read, QD1, adaptive mode";
const INLINE_POLLING: &[Entrant] = &[
    isolane("isolane+handed", POLL, "--mode poll --threads 1 --inline off"),
    isolane("isolane+inline", POLL, "--mode poll --threads 1 --inline on"),
];
const INLINE: &[Entrant] = &[
    isolane("isolane+handed", ADAPTIVE, "--mode adaptive --threads 1 --inline off"),
    isolane("isolane+inline", ADAPTIVE, "--mode adaptive --threads 1 --inline on"),
];
const INLINE_GOALS: [Goal; 1] =
    [goal(Figure::Mean, "isolane+inline", &["isolane+handed"], Limit::AtMost(0.9))];

const BATCHING: &[Entrant] = &[
    isolane("isolane+single", POLL, "--mode adaptive --threads 8 --batching off"),
    isolane("isolane+batched", POLL, "--mode adaptive --threads 8 --batching on"),
    isolane("isolane+held", POLL, "--mode adaptive --threads 8 --batching on --hold"),
];
const BATCHING_GOALS: [Goal; 1] =
    [goal(Figure::Rate, "isolane+batched", &["isolane+single"], Limit::AtLeast(1.5))];
const BATCHING_LONE: &str = "a lone thread with batching, 4 KiB read, QD1";
const LONE: &[Entrant] = &[
    isolane("isolane+single", POLL, "--mode adaptive --threads 1 --batching off"),
    isolane("isolane+batched", POLL, "--mode adaptive --threads 1 --batching on"),
    isolane("isolane+held", POLL, "--mode adaptive --threads 1 --batching on --hold"),
];
const LONE_GOALS: [Goal; 2] = [
    goal(Figure::Mean, "isolane+batched", &["isolane+single"], Limit::AtMost(1.02)),
    goal(Figure::Mean, "isolane+held", &["isolane+single"], Limit::AtMost(1.02)),
];

const CORES_TITLE: &str = "a thread and a reactor on either core, 4 KiB read, QD16 each, 2 connections";
const CORES_LONE: &str = "a thread and a reactor on either core, 4 KiB read, QD1 each, 2 connections";
/// Without goals: threads, lanes and the target share two cores, so what is saved on the way between them is
/// all there is to see.
const CORES: &[Entrant] = &[
    entrant("isolane+anywhere", BOTH, Host::IsolaneOnBoth(Lanes::Anywhere)),
    entrant("isolane+one", BOTH, Host::IsolaneOnBoth(Lanes::OnOne)),
    entrant("isolane+each", BOTH, Host::IsolaneOnBoth(Lanes::OnEach)),
];
const BOTH: Target = Target::IsolaneOnBoth(ADAPTIVE);

const HOLD_LONE: &str = "requests are held for others, 4 KiB read, QD1";
const HELD: &[Entrant] = &[ISOLANE, isolane("isolane+held", POLL, "--mode poll --hold")];
const HELD_GOALS: [Goal; 1] = [goal(Figure::Mean, "isolane+held", &["isolane"], Limit::AtMost(1.02))];

const SCHEDULER_LIGHT: &str = "two reactors that poll, and 8 connections without traffic";
/// The scheduler moves a connection when it has seen nothing of it for ten seconds.
const LIGHT_REST: u64 = 14;
const LIGHT: &[Entrant] = &[
    entrant(
        "isolane+static",
        Target::IsolaneOnBoth("--mode poll --scheduler static"),
        Host::Idle(LIGHT_REST),
    ),
    entrant(
        "isolane+dynamic",
        Target::IsolaneOnBoth("--mode poll --scheduler dynamic"),
        Host::Idle(LIGHT_REST),
    ),
];
const LIGHT_GOALS: [Goal; 1] =
    [goal(Figure::Processor, "isolane+dynamic", &["isolane+static"], Limit::AtMost(0.6))];
const SCHEDULER_FULL: &str = "two adaptive reactors at full load, 4 KiB read, 4 connections x QD32";
const FULL: &[Entrant] = &[
    on_both("isolane+static", "--mode adaptive --scheduler static", POLL),
    on_both("isolane+dynamic", "--mode adaptive --scheduler dynamic", POLL),
];
const FULL_GOALS: [Goal; 1] =
    [goal(Figure::Rate, "isolane+dynamic", &["isolane+static"], Limit::AtLeast(0.95))];

/// Isolane with a reactor on either core, measured when its connections have found their places.
const fn on_both(name: &'static str, serve: &'static str, bench: &'static str) -> Entrant {
    entrant(name, Target::IsolaneOnBoth(serve), Host::Settled(bench))
}

const ZERO_COPY: &[Entrant] =
    &[ISOLANE, isolane("isolane+zero-copy", "--mode poll --zero-copy-above 64k", POLL)];

const IDLE_TITLE: &str = "1,000 idle connections, adaptive mode";
/// Until spinning has ended and pools have given back what they give back.
const IDLE_REST: u64 = 2;
const IDLE: &[Entrant] = &[
    entrant("isolane", Target::Isolane(ADAPTIVE), Host::Idle(IDLE_REST)),
    entrant("spdk", Target::Spdk(Sockets::Posix), Host::Idle(IDLE_REST)),
];

const fn switch(
    name: &'static str,
    title: &'static str,
    load: Load,
    entrants: &'static [Entrant],
    goals: &'static [Goal],
) -> Row {
    Row { name, title, group: Group::Switch, load, figure: Figure::Rate, entrants, goals }
}
