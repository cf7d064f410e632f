"""Rows of the tables: a load, the contenders that carry it, and the goals for their ratios."""

from dataclasses import dataclass, replace

from hosts import Bench, Fio, FioEngine, FioFile, FioRbd, Floor, Idle, ImageBench, IscsiPerf, MinimalHost, ReadBench, SettledBench, SpdkPerf, UpgradeBench, VhostLoad
from targets import Isolane, IsolaneFile, IsolaneMany, IsolaneNbd, IsolaneRbd, IsolaneStalled, IsolaneVhost, Nbdkit, NoTarget, QemuNbd, Spdk, SpdkRbd, Tgt


@dataclass(frozen=True)
class Load:
    rw: str  # "read" or "write", at random offsets
    block_bytes: int
    depth: int  # operations in flight on each connection
    connections: int  # all driven by one core on each side

    @property
    def pattern(self):
        return f"rand{self.rw}"

    @property
    def in_flight(self):
        return self.depth * self.connections


@dataclass(frozen=True)
class Contender:
    name: str  # what follows a `+` is the one change that a row is about
    target: object
    host: object

    @property
    def peer(self):
        return self.name.split("+")[0]

    def can_carry(self, load):
        return self.host.can_carry(load)


@dataclass(frozen=True)
class Goal:
    figure: str
    of: str
    to: tuple  # the ratio is to the best of these that were measured
    limit: str  # "≥ 0.90" or "≤ 1.08"

    def is_met(self, ratio):
        limit = float(self.limit[2:])
        return ratio >= limit if self.limit[0] == "≥" else ratio <= limit


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    load: Load
    contenders: tuple  # in the order in which samples are taken
    goals: tuple = ()
    figure: str = "iops"
    core: bool = False  # compares with the floor and with peers, else changes one thing about Isolane


def reads(depth, connections=1, block_bytes=4096):
    return Load("read", block_bytes, depth, connections)


def writes(depth, block_bytes=4096):
    return Load("write", block_bytes, depth, 1)


def isolane(name, serve, bench):
    return Contender(f"isolane+{name}", Isolane(serve), Bench(bench))


def on_both(name, serve, host):
    return Contender(f"isolane+{name}", Isolane(serve, both_cores=True), host)


def goals(of, to, **limits):
    return tuple(Goal(figure, of, tuple(to.split()), limit) for figure, limit in limits.items())


POLL, ADAPTIVE = "--mode poll", "--mode adaptive"
BULK = f"{POLL} --background write:1m:32"
SHARED = f"{BULK} --share-depth --lanes 4"
SETTLE_S = 14  # the scheduler moves a connection that was idle for ten seconds
ALL_SPDK = "spdk spdk-uring"

FLOOR = Contender("floor", NoTarget(), Floor())
ISOLANE = Contender("isolane", Isolane(POLL), Bench(POLL))
SPDK = Contender("spdk", Spdk("posix"), SpdkPerf("posix"))
PEERS = (
    FLOOR,
    ISOLANE,
    SPDK,
    Contender("spdk-uring", Spdk("uring"), SpdkPerf("uring")),
    Contender("spdk-host", Isolane(POLL), SpdkPerf("posix")),
    Contender("spdk-target", Spdk("posix"), Bench(POLL)),
    Contender("nbdkit", Nbdkit(), Fio("")),
    Contender("qemu-nbd", QemuNbd(), Fio("disk")),
    Contender("tgt", Tgt(), IscsiPerf()),
)


def core(name, title, load, figure, to_floor, to_spdk, mixed):
    """A row with goals to the floor and to SPDK, and for pairs of our programs and SPDK's to SPDK's own."""
    limits = [("isolane", "floor", to_floor), ("isolane", ALL_SPDK, to_spdk), ("spdk-host", ALL_SPDK, mixed), ("spdk-target", ALL_SPDK, mixed)]
    return Row(name, title, load, PEERS, sum((goals(of, to, **{figure: limit}) for of, to, limit in limits), ()), figure, core=True)


def rate(name, title, load, to_floor, to_spdk):
    return core(name, title, load, "iops", f"≥ {to_floor:.2f}", f"≥ {to_spdk:.2f}", "≥ 1.00")


def round_trip(name, title, load):
    return core(name, title, load, "mean_us", "≤ 1.08", "≤ 0.83", "≤ 1.00")


DIGESTS = (
    ISOLANE,
    isolane("digests", POLL, f"{POLL} --hdr-digest --data-digest"),
    SPDK,
    Contender("spdk+digests", Spdk("posix"), SpdkPerf("posix", "-H -I")),
)
DIGEST_GOALS = goals("isolane+digests", "isolane", iops="≥ 0.85") + goals("isolane+digests", "spdk+digests", iops="≥ 1.20")
MODES = (ISOLANE, isolane("adaptive", ADAPTIVE, ADAPTIVE))
MODE_GOALS = goals("isolane+adaptive", "isolane", iops="≥ 0.97")
# How a Linux host behaves whose applications submit one at a time and wait; the floor shows what its calls alone cost.
SEGMENTS = (
    Contender("floor+unbatched", NoTarget(), Floor("--unbatched")),
    Contender("isolane+batched", Isolane(POLL), MinimalHost()),
    Contender("isolane+unbatched", Isolane(POLL), MinimalHost("--unbatched")),
)
SEGMENT_GOALS = goals("isolane+unbatched", "isolane+batched", iops="≥ 0.50")
FILE_GOALS = goals("isolane", "fio", iops="≥ 0.8696")
# The cost of recording, at the target and at the host.
UNOBSERVED = f"{POLL} --observe off"
OBSERVED_TARGET = (ISOLANE, isolane("unobserved", UNOBSERVED, POLL))
OBSERVED_HOST = (ISOLANE, isolane("unobserved", POLL, UNOBSERVED))
TOP, SCRAPER = ("/snapshot.json?steps=no", 0.5), ("/metrics", 1.0)
READ = tuple(
    Contender(f"isolane+{name}", Isolane(POLL), ReadBench(POLL, reads=reads))
    for name, reads in [("unread", ()), ("scraped", (SCRAPER,)), ("read", (SCRAPER, TOP))]
)
READ_GOALS = goals("isolane+read", "isolane+unread", iops="≥ 0.98", p99_9_us="≤ 1.05")
# A file, because memory ends with the program. The longest command may take 200 ms.
UPGRADES = tuple(
    Contender(f"isolane+{name}", IsolaneFile(direct=False, arguments="--io-queues 128"), UpgradeBench(POLL, upgrades=upgrades))
    for name, upgrades in [("steady", 0), ("upgraded", 4)]
)
# One namespace, and the same beside 999 others; and 31 namespaces while reads of the 32nd wait on the same connection.
MANY = tuple(Contender(f"isolane+{name}", IsolaneMany(*counts), Bench(POLL)) for name, counts in [("one", (1, 1)), ("1000", (100, 10))])
STALLED = tuple(
    Contender(f"isolane+{name}", IsolaneStalled(is_stalled, POLL), MinimalHost(f"--namespaces 31 --latencies {beside}"))
    for name, is_stalled, beside in [("healthy", False, ""), ("stalled", True, "--beside 32")]
)
STALLED_GOALS = goals("isolane+stalled", "isolane+healthy", iops="≥ 0.95", p99_9_us="≤ 1.10")
NBD = (Contender("isolane", IsolaneNbd(), Fio("")), Contender("nbdkit", Nbdkit(), Fio("")))
NBD_GOALS = goals("isolane", "nbdkit", iops="≥ 1.00")
# A machine and an NVMe/TCP host with the same volume.
VHOST = (ISOLANE, Contender("isolane+vhost", IsolaneVhost(), VhostLoad()))
CEPH = (
    Contender("isolane", IsolaneRbd(), ImageBench()),
    Contender("isolane+poll", IsolaneRbd(POLL, both_cores=False), ImageBench()),
    Contender("fio-rbd", NoTarget(), FioRbd()),
    Contender("spdk-rbd", SpdkRbd(), ImageBench()),
    Contender("spdk-rbd+interrupts", SpdkRbd("--interrupt-mode"), ImageBench()),
)
CEPH_GOALS = goals("isolane", "fio-rbd", iops="≥ 0.90")
CEPH_GOALS += goals("isolane", "spdk-rbd+interrupts", iops="≥ 1.00") + goals("isolane+poll", "spdk-rbd", iops="≥ 1.00")
# The library has no option for its idle behavior.
C_API = (Contender("isolane", Isolane(POLL), Bench(ADAPTIVE)), Contender("isolane+c", Isolane(POLL), FioEngine()))
C_API_GOALS = goals("isolane+c", "isolane", iops="≥ 0.95")
INLINE_GOALS = goals("isolane+inline", "isolane+handoff", mean_us="≤ 0.90")


def file(direct):
    return (
        Contender("fio", NoTarget(), FioFile(direct)),
        Contender("isolane", IsolaneFile(direct), Bench(POLL)),
    )


def observed(name, title, load, contenders=OBSERVED_TARGET, figure="iops"):
    limit = "≤ 1.015" if figure == "mean_us" else "≥ 0.985"
    return Row(f"observe-{name}", f"stages recorded, {title}", load, contenders, goals("isolane", "isolane+unobserved", **{figure: limit}), figure)


def inline(mode):
    return tuple(
        isolane(name, mode, f"{mode} --threads 1 --inline {switch}") for name, switch in [("handoff", "off"), ("inline", "on")]
    )


# Without goals: threads, lanes, and the target share two cores, so that only the handoff between them changes.
TWO_THREADS = f"{ADAPTIVE} --threads 2 --thread-cores {{bed.both_cores}}"
CORES = tuple(
    on_both(name, ADAPTIVE, Bench(f"{TWO_THREADS} {lanes}", pinned=False))
    for name, lanes in [("anywhere", ""), ("one", "--cores {bed.target_core}"), ("each", "--cores {bed.both_cores}")]
)
NBD_LOADS = (
    ("r4k-qd1", "4 KiB random read, QD1", reads(1)),
    ("r4k-qd32", "4 KiB random read, QD32", reads(32)),
    ("w4k-qd32", "4 KiB random write, QD32", writes(32)),
    ("r4k-4x8", "4 KiB random read, 4 connections x QD8", reads(8, 4)),
    ("r128k-qd16", "128 KiB random read, QD16", reads(16, 1, 128 << 10)),
)
VHOST_LOADS = (
    *((f"r4k-qd{depth}", f"4 KiB random read, QD{depth}", reads(depth)) for depth in [1, 32]),
    *((f"w4k-qd{depth}", f"4 KiB random write, QD{depth}", writes(depth)) for depth in [1, 32]),
)
CEPH_LOADS = (
    *((f"r4k-qd{depth}", f"4 KiB random read, QD{depth}", reads(depth)) for depth in [1, 16, 64]),
    *((f"w4k-qd{depth}", f"4 KiB random write, QD{depth}", writes(depth)) for depth in [1, 16, 64]),
    ("r4k-8x8", "4 KiB random read, 8 images x QD8", reads(8, 8)),
)

ROWS = (
    round_trip("r4k-qd1", "4 KiB random read, QD1", reads(1)),
    round_trip("w4k-qd1", "4 KiB in-capsule write, QD1", writes(1)),
    rate("r4k-qd8", "4 KiB random read, QD8", reads(8), 0.90, 1.35),
    rate("r4k-qd32", "4 KiB random read, QD32", reads(32), 0.90, 1.35),
    rate("r4k-qd128", "4 KiB random read, QD128", reads(128), 0.90, 1.35),
    rate("w4k-qd32", "4 KiB random write, QD32", writes(32), 0.80, 1.6),
    rate("r4k-4x8", "4 KiB random read, 4 connections x QD8", reads(8, 4), 0.85, 1.85),
    rate("r4k-16x1", "4 KiB random read, 16 connections x QD1", reads(1, 16), 0.95, 1.25),
    rate("r128k-qd16", "128 KiB random read, QD16", reads(16, 1, 128 << 10), 0.97, 1.0),
    rate("w128k-qd16", "128 KiB random write, QD16", writes(16, 128 << 10), 0.97, 1.0),
    Row("digests-4k", "header and data digests, 4 KiB read, QD32", reads(32), DIGESTS, DIGEST_GOALS),
    Row("digests-128k", "header and data digests, 128 KiB read, QD16", reads(16, 1, 128 << 10), DIGESTS, DIGEST_GOALS),
    Row("adaptive", "adaptive mode, 4 KiB read, QD32", reads(32), MODES, MODE_GOALS),
    Row("adaptive-128k", "adaptive mode, 128 KiB read, QD16", reads(16, 1, 128 << 10), MODES, MODE_GOALS),
    Row("segments-qd8", "one capsule per segment, 4 KiB read, QD8", reads(8), SEGMENTS, SEGMENT_GOALS),
    Row("segments", "one capsule per segment, 4 KiB read, QD32", reads(32), SEGMENTS, SEGMENT_GOALS),
    Row("file-buffered", "file in the page cache, 4 KiB read, QD32", reads(32), file(direct=False), FILE_GOALS),
    Row("file-direct", "file with O_DIRECT, 4 KiB read, QD32", reads(32), file(direct=True), FILE_GOALS),
    Row(
        "bulk-one",
        "4 KiB reads, QD16, with 1 MiB writes, QD32, on one connection",
        reads(16),
        (
            isolane("first-come", f"{POLL} --fair-queueing off", BULK),
            isolane("fair", f"{POLL} --fair-queueing on", BULK),
        ),
        goals("isolane+fair", "isolane+first-come", p99_99_us="≤ 0.25", mean_us="≤ 1.00", bulk_mib_per_s="≥ 0.90"),
        "p99_99_us",
    ),
    Row(
        "bulk-classes",
        "16 readers of 4 KiB with a writer of 1 MiB, QD32, 4 connections",
        reads(16, 4),
        (
            isolane("first-come", f"{POLL} --fair-queueing off", SHARED),
            isolane("shared", POLL, SHARED),
            isolane("classes", POLL, f"{BULK} --share-depth --lanes 2 --read-lanes 2"),
        ),
        goals("isolane+classes", "isolane+shared", iops="≥ 2.10", mean_us="≤ 0.4545", p99_99_us="≤ 0.10")
        + goals("isolane+classes", "isolane+first-come", p99_99_us="≤ 0.10"),
        "p99_99_us",
    ),
    Row("inline-poll", "inline submission, 4 KiB read, QD1, poll mode", reads(1), inline(POLL), INLINE_GOALS, "mean_us"),
    Row("inline-adaptive", "inline submission, 4 KiB read, QD1, adaptive mode", reads(1), inline(ADAPTIVE), INLINE_GOALS, "mean_us"),
    Row("c-qd1", "isolane.h under fio, 4 KiB read, QD1", reads(1), C_API, C_API_GOALS),
    Row("c-qd32", "isolane.h under fio, 4 KiB read, QD32", reads(32), C_API, C_API_GOALS),
    Row(
        "coalesce-single",
        "request coalescing, 4 KiB read, QD1",
        reads(1),
        (ISOLANE, isolane("coalesced", POLL, f"{POLL} --coalesce")),
        goals("isolane+coalesced", "isolane", mean_us="≤ 1.02"),
        "mean_us",
    ),
    Row("cores", "a thread and a reactor on each core, 4 KiB read, QD16 each, 2 connections", reads(16, 2), CORES),
    Row("cores-single", "a thread and a reactor on each core, 4 KiB read, QD1 each, 2 connections", reads(1, 2), CORES, (), "mean_us"),
    Row(
        "zero-copy",
        "zero-copy send, 128 KiB read, QD16",
        reads(16, 1, 128 << 10),
        (ISOLANE, isolane("zero-copy", f"{POLL} --zerocopy-threshold 64k", POLL)),
    ),
    Row(
        "scheduler-light",
        "two polling reactors, 8 connections without traffic",
        reads(1, 8),
        tuple(on_both(name, f"{POLL} --scheduler {name}", Idle(SETTLE_S)) for name in ["static", "dynamic"]),
        goals("isolane+dynamic", "isolane+static", processor_percent="≤ 0.60"),
        "processor_percent",
    ),
    Row(
        "scheduler-full",
        "two adaptive reactors at full load, 4 KiB read, 4 connections x QD32",
        reads(32, 4),
        tuple(on_both(name, f"{ADAPTIVE} --scheduler {name}", SettledBench(POLL)) for name in ["static", "dynamic"]),
        goals("isolane+dynamic", "isolane+static", iops="≥ 0.95"),
    ),
    observed("qd1", "4 KiB read, QD1", reads(1), figure="mean_us"),
    observed("qd32", "4 KiB read, QD32", reads(32)),
    observed("qd128", "4 KiB read, QD128", reads(128)),
    observed("4x8", "4 KiB read, 4 connections x QD8", reads(8, 4)),
    observed("16x1", "4 KiB read, 16 connections x QD1", reads(1, 16)),
    observed("128k", "128 KiB read, QD16", reads(16, 1, 128 << 10)),
    observed(
        "file",
        "file in the page cache, 4 KiB read, QD32",
        reads(32),
        (
            Contender("isolane", IsolaneFile(direct=False), Bench(POLL)),
            Contender("isolane+unobserved", IsolaneFile(direct=False, arguments="--observe off"), Bench(POLL)),
        ),
    ),
    observed("host", "at the host, 4 KiB read, QD32", reads(32), OBSERVED_HOST),
    Row("upgrade", "the program replaced 4 times, 4 KiB read, 100 connections x QD1", reads(1, 100), UPGRADES, (), "max_us"),
    *(
        Row(f"{name}-qd{depth}", f"{title}, 4 KiB read, QD{depth}", reads(depth), contenders, goals_of)
        for name, title, contenders, goals_of in [
            ("many", "one of 1,000 namespaces in 100 subsystems", MANY, goals("isolane+1000", "isolane+one", iops="≥ 0.98")),
            ("stalled", "beside a stalled namespace", STALLED, STALLED_GOALS),
        ]
        for depth in [1, 32]
    ),
    Row("observe-readers", "numbers read beside 1,000 connections, 4 KiB read, QD32", reads(32), READ, READ_GOALS),
    *(Row(f"nbd-{name}", f"NBD, {title}", load, NBD, NBD_GOALS) for name, title, load in NBD_LOADS),
    *(Row(f"vhost-{name}", f"virtual machine, {title}", load, VHOST) for name, title, load in VHOST_LOADS),
    *(Row(f"ceph-{name}", f"Ceph RBD, {title}", load, CEPH, CEPH_GOALS) for name, title, load in CEPH_LOADS),
    Row(
        "idle",
        "1,000 idle connections, adaptive mode",
        reads(1, 1000),
        (Contender("isolane", Isolane(ADAPTIVE), Idle(2)), replace(SPDK, host=Idle(2))),
        (),
        "processor_percent",
    ),
)
