"""Reports as JSON, the medians and ratios of their samples, and tables in Markdown."""

import json
import os
import platform
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from rows import ALL_SPDK, ROWS


def digits(value):
    """Three or four digits are more than a measurement holds."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 20 else f"{value:.2f}"


@dataclass(frozen=True)
class Figure:
    title: str
    show: Callable
    more_is_better: bool = False


FIGURES = {
    "iops": Figure("rate", lambda value: f"{digits(value / 1e3)} k/s", True),
    "mean_us": Figure("mean", lambda value: f"{digits(value)} µs"),
    "p99_9_us": Figure("p99.9", lambda value: f"{digits(value)} µs"),
    "p99_99_us": Figure("p99.99", lambda value: f"{digits(value)} µs"),
    "max_us": Figure("longest", lambda value: f"{digits(value / 1e3)} ms"),
    "bulk_mib_per_s": Figure("bulk", lambda value: f"{value:.0f} MiB/s", True),
    "processor_percent": Figure("processor", lambda value: f"{value:.2f} % of a core"),
    "side_percent": Figure("side threads", lambda value: f"{value:.2f} % of a core"),
    "memory_kib": Figure("memory per connection", lambda value: f"{value:.1f} KiB"),
}


def read(path):
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"cannot read the report {path}: {error}")


def write(report, path):
    """Replaces the file, so that a crash leaves the old report or the new one."""
    new = Path(f"{path}.new")
    try:
        new.write_text(lines_of(report) + "\n")
        new.replace(path)
    except OSError as error:
        raise SystemExit(f"cannot write the report {path}: {error}")


def lines_of(value, level=0):
    """JSON with one line for each contender of a row, and for each object without others in it."""
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if level == 4 or not any(isinstance(part, (dict, list)) for part in parts):
        return json.dumps(value, ensure_ascii=False)
    names = [f"{json.dumps(name)}: " for name in value] if isinstance(value, dict) else [""] * len(parts)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    inner = ",\n".join(" " * (level + 1) + name + lines_of(part, level + 1) for name, part in zip(names, parts))
    return f"{opening}\n{inner}\n{' ' * level}{closing}"


def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def here():
    """This machine, the commit that is checked out, and today."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    processor = models[0].split(":", 1)[1].strip() if models else "unknown"
    machine = {"processor": processor, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release()}
    changes = output("git", "status", "--porcelain", "--", "crates", "bench/src", "Cargo.lock")
    commit = output("git", "rev-parse", "--short", "HEAD") + (" with changes" if changes else "")
    return {"machine": machine, "commit": commit, "date": output("date", "-u", "+%Y-%m-%d")}


def head(report):
    machine = report["machine"]
    command, *others = report["command"].split("; ")
    more = f" and {len(others)} more in the report" if others else ""
    return (
        f"**Machine**: {machine['cores']} cores of {machine['processor']}, Linux {machine['kernel']}, loopback.\n"
        f"**Commit**: `{report['commit']}`, {report['date']}. **Command**: `{command}`{more}"
    )


def find(report, row):
    return next((measured for measured in report["rows"] if measured["row"] == row), None)


def entry(report, row, seconds, contender):
    """Returns the entry of a contender's samples, created if it is missing."""
    measured = find(report, row)
    if not measured:
        measured = {"row": row, "seconds": seconds, "contenders": []}
        report["rows"].append(measured)
    measured["seconds"] = seconds
    found = of(measured, contender)
    if not found:
        found = {"name": contender, "samples": []}
        measured["contenders"].append(found)
    return found


def of(measured, contender):
    return next((found for found in measured["contenders"] if found["name"] == contender), None)


def values(measured, contender, figure):
    found = of(measured, contender)
    return [sample[figure] for sample in found["samples"] if figure in sample] if found else []


def ratio(measured, contender, others, figure):
    """Returns one figure of a contender, divided by the best of the others that have it, or None.

    The ratio is the median over the rounds, because a machine that gets faster or slower does so for all that are
    measured in a round. It is the ratio of the medians if a sample is missing.
    """
    medians = {name: statistics.median(found) for name in others if (found := values(measured, name, figure))}
    own = values(measured, contender, figure)
    if not medians or not own:
        return None
    best = (max if FIGURES[figure].more_is_better else min)(medians, key=medians.get)
    other = values(measured, best, figure)
    failed = any(of(measured, name).get("errors") for name in [contender, best])
    if failed or len(own) != len(other):
        return statistics.median(own) / medians[best]
    return statistics.median(a / b for a, b in zip(own, other))


def table(header, lines):
    """A Markdown table, or nothing without lines."""
    if not lines:
        return ""
    return "".join(f"| {' | '.join(cells)} |\n" if cells else f"|{'---|' * len(header)}\n" for cells in [header, None, *lines])


TITLES = {
    "floor": "floor",
    "isolane": "Isolane",
    "spdk": "SPDK, epoll",
    "spdk-uring": "SPDK, io_uring",
    "nbdkit": "NBD: nbdkit, fio",
    "qemu-nbd": "NBD: QEMU, fio",
    "tgt": "iSCSI: tgt, iscsi-perf",
}
BESIDE = {name: TITLES[name] for name in ["floor", "isolane", "spdk", "spdk-uring"]}
BLOCK_SERVICES = {name: TITLES[name] for name in ["floor", "isolane", "nbdkit", "qemu-nbd", "tgt"]}
MIXED = {
    "spdk": "SPDK only",
    "spdk-host": "our target, SPDK's host",
    "spdk-target": "SPDK's target, our host",
    "isolane": "Isolane only",
}


def tables(report):
    sections = {
        "Compared with the floor and SPDK": columns(report, BESIDE),
        "Each other's hosts and targets": columns(report, MIXED),
        "Compared with NBD and iSCSI": columns(report, BLOCK_SERVICES),
        "Switches and surroundings": switches(report),
        "Goals": goals(report),
        "Failures": failures(report),
    }
    count = max((len(found["samples"]) for row in report["rows"] for found in row["contenders"]), default=0)
    seconds = report["rows"][0]["seconds"] if report["rows"] else 0.0
    heading = (
        f"{head(report)}: medians of {count} samples of {seconds:g} s, taken in turn; smallest and largest in brackets; "
        "ratios are medians of the rounds' ratios.\n"
    )
    return "\n".join([heading, *(f"## {title}\n\n{body}" for title, body in sections.items() if body)])


def cell(measured, contender, figure):
    found, show = values(measured, contender, figure), FIGURES[figure].show
    if not found:
        return "–"
    low, high = (show(value).split(" ")[0] for value in [min(found), max(found)])
    return f"{show(statistics.median(found))} ({low}–{high})"


def columns(report, columns):
    """Core rows with the ratio of every column to the first, if that adds to the comparison with the floor and SPDK."""
    measured = [(row, found) for row in ROWS if row.core and (found := find(report, row.name))]
    present = {name: title for name, title in columns.items() if any(values(found, name, "iops") for _, found in measured)}
    first = next(iter(columns))
    if len(present) < 2 or first not in present or columns != BESIDE and not set(present) - set(BESIDE):
        return ""

    def line(row, found):
        yield row.title
        for name in present:
            quotient = ratio(found, name, [first], row.figure) if name != first else None
            yield cell(found, name, row.figure) + (f" **{quotient:.2f}x**" if quotient is not None else "")

    return table(["work", *present.values()], [list(line(row, found)) for row, found in measured])


def switches(report):
    lines = []
    for row in ROWS:
        measured = None if row.core else find(report, row.name)
        for contender in row.contenders if measured else []:
            figures = [
                f"{FIGURES[key].title} {cell(measured, contender.name, key)}"
                for key in FIGURES
                if values(measured, contender.name, key)
            ]
            if figures:
                lines.append([row.title, contender.name, "; ".join(figures)])
    return table(["work", "contender", "figures"], lines)


def goals(report):
    lines = []
    for row in ROWS:
        measured = find(report, row.name)
        for goal in row.goals if measured else []:
            quotient = ratio(measured, goal.of, goal.to, goal.figure)
            if quotient is not None:
                to = "spdk, the better one" if goal.to == tuple(ALL_SPDK.split()) else ", ".join(goal.to)
                limit = f"{goal.limit[0]} {float(goal.limit[2:]):.2f}"
                met = "met" if goal.is_met(quotient) else "**not met**"
                lines.append([row.title, FIGURES[goal.figure].title, f"{goal.of} / {to}", f"{quotient:.2f}", limit, met])
    return table(["work", "figure", "ratio", "is", "goal", ""], lines)


def failures(report):
    lines = []
    for measured in report["rows"]:
        for found in measured["contenders"]:
            if errors := found.get("errors"):
                last = (errors[-1].splitlines() or [""])[-1]
                lines.append(f"* {measured['row']}, {found['name']}: {len(errors)} times, most recently: {last}\n")
    return "".join(lines)


COLORS = {
    "isolane": "#1f77b4",
    "spdk": "#ff7f0e",
    "spdk-uring": "#ffbb78",
    "nbdkit": "#2ca02c",
    "qemu-nbd": "#98df8a",
    "tgt": "#9467bd",
}


def shares(report):
    """Core rows with each contender's share of the floor, where more is better for round trips also."""
    for row in ROWS:
        measured = find(report, row.name) if row.core else None
        found = {name: ratio(measured, name, ["floor"], row.figure) for name in COLORS} if measured else {}
        found = {name: share for name, share in found.items() if share is not None}
        if found:
            more = FIGURES[row.figure].more_is_better
            yield row.title, {name: share if more else 1 / share for name, share in found.items()}


def chart(report):
    """An SVG with one bar per contender of each core row, or None without the floor."""
    left, unit, width, y, body = 290, 480, 900, 60, []

    def text(x, y, anchor, words):
        body.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="#222">{words}</text>')

    def bar(x, y, width, height, color):
        body.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{color}"/>')

    for index, (name, color) in enumerate(COLORS.items()):
        bar(20 + 145 * index, 12, 10, 10, color)
        text(34 + 145 * index, 21, "start", TITLES[name])
    for title, found in shares(report):
        text(left - 8, y + 10, "end", title)
        for name, share in found.items():
            length = min(round(share * unit), width - left - 50)
            bar(left, y, length, 12, COLORS[name])
            text(left + length + 4, y + 10, "start", f"{share:.2f}")
            y += 14
        y += 14
    if y == 60:
        return None
    line = left + unit
    body.append(f'<line x1="{line}" y1="48" x2="{line}" y2="{y}" stroke="#555" stroke-dasharray="4 3"/>')
    text(line, 44, "middle", "floor: plain TCP")
    size = f'width="{width}" height="{y + 10}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    return "\n".join([head, f'<rect {size} fill="white"/>', *body, "</svg>\n"])
