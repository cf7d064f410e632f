"""The suite of streams: every case of the `streams` program, measured in turn, and its tables."""

import json
import statistics
import sys

from programs import Process, run
from report import head, here, table

SIZES = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10]
COMBINING = ["buffered", "nagle", "more"]  # native programs that combine messages


def cases():
    """Options of the cases."""

    def case(work, via, size=64):
        return ["--work", work, "--via", via, "--size", size]

    found = [case(work, via, size) for work in ["transmit", "receive"] for size in SIZES for via in ["native", "engine"]]
    found += [case("transmit", via, size) for size in SIZES for via in COMBINING]
    return found + [case(work, via) for work in ["echo", "compute"] for via in ["native", "engine"]]


def measure(bed, samples, seconds, command):
    """Measures every case once in each round; any failure ends the suite."""
    measured = cases()
    suite = {"about": head(here() | {"command": command}) + ".", "seconds": seconds, "cases": [[] for _ in measured]}
    for round in range(1, samples + 1):
        for options, kept in zip(measured, suite["cases"]):
            report = run_case(bed, [*options, "--seconds", seconds], seconds)
            kept.append(report)
            print(
                f"{round}/{samples} {report['work']} {report['via']} {report['size']} B: "
                f"{report['mb_per_s']:.1f} MB/s, {report['app_ns']:.0f} ns, {report['total_ns']:.0f} ns in total",
                file=sys.stderr,
            )
    return suite


def run_case(bed, options, seconds):
    """Runs one case, with an engine of its own on the peer's core if it needs one."""
    if "engine" not in options:
        return json.loads(run([bed.program("streams"), *options], None, seconds))
    socket = bed.scratch / "engine.sock"
    with Process([bed.program("isolane"), "--log-level", "warn", "engine", "--cores", 1, "--socket", socket]) as engine:
        engine.wait_for(lambda: "listening on " in engine.stdout())
        more = ["--socket", socket, "--supervisor", engine.pid]
        return json.loads(run([bed.program("streams"), *options, *more], None, seconds))


def median(case, key):
    return statistics.median(report[key] for report in case)


def ratios(case, other, key):
    """Returns the median, the smallest, and the largest of the rounds' ratios."""
    found = [a[key] / b[key] for a, b in zip(case, other)]
    return statistics.median(found), min(found), max(found)


def spread(case, other, key):
    return "{:.2f} ({:.2f}–{:.2f})".format(*ratios(case, other, key))


def tables(suite):
    found = {}
    for case in filter(None, suite["cases"]):
        report = case[0]
        found[report["work"], report["via"], report["size"]] = case
    sections = [throughput(found, "transmit"), throughput(found, "receive"), combining(found), others(found)]
    return "\n".join([f"{suite['about']}\n", *filter(None, sections)])


def sizes(found, work):
    """Sizes with both cases, native and engine."""
    for size in sorted({key[2] for key in found}):
        native, engine = (found.get((work, via, size)) for via in ["native", "engine"])
        if native and engine:
            yield size, native, engine


def throughput(found, work):
    header = [work.title(), "MB/s: native, engine", "ratio", "application ns/message", "ratio", "total ns/message", "ratio"]
    lines = []
    for size, native, engine in sizes(found, work):
        line = [f"{size} B", f"{median(native, 'mb_per_s'):.1f}, {median(engine, 'mb_per_s'):.1f}", spread(engine, native, "mb_per_s")]
        for key in ["app_ns", "total_ns"]:
            line += [f"{median(native, key):.0f}, {median(engine, key):.0f}", f"{ratios(engine, native, key)[0]:.2f}"]
        lines.append(line)
    return table(header, lines)


def combining(found):
    """Native programs that combine messages themselves, compared with the engine."""
    header = ["Transmit, native", "MB/s: 64 KiB buffer, Nagle, MSG_MORE", "application ns/message", "total ns/message", "engine's rate / each"]
    lines = []
    for size in SIZES:
        engine, *native = (found.get(("transmit", via, size)) for via in ["engine", *COMBINING])
        if engine and all(native):
            line = [f"{size} B", ", ".join(f"{median(case, 'mb_per_s'):.1f}" for case in native)]
            line += [", ".join(f"{median(case, key):.0f}" for case in native) for key in ["app_ns", "total_ns"]]
            lines.append([*line, ", ".join(f"{ratios(engine, case, 'mb_per_s')[0]:.2f}" for case in native)])
    return table(header, lines)


def others(found):
    lines = []
    for via in ["native", "engine"]:
        if case := found.get(("echo", via, 64)):
            mean, middle, p99 = (statistics.median(report["round_trip_us"][at] for report in case) for at in range(3))
            lines.append([f"echo, {via}", f"mean {mean:.1f} µs, median {middle:.1f} µs", f"p99 {p99:.1f} µs"])
    for via in ["native", "engine"]:
        if case := found.get(("compute", via, 64)):
            share, app = 100 * median(case, "compute_share"), median(case, "app_ns")
            work = f"computing during 20,000 messages a second, {via}"
            lines.append([work, f"{share:.1f} % of its speed without messages", f"application {app:.0f} ns/message"])
    return table(["64 B", "", ""], lines)
