"""`cargo xtask`: measures Isolane alongside the floor and its peers, and prints tables of the results.

Each sample starts its programs again, so that nothing spins while another is measured, and the samples of all
contenders of a row alternate: whatever else the machine does affects all of them. The target runs on one core, the host
on another. The report is written after every sample, so that an interrupted run keeps what it has.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import explain
import report as reports
import streams
import verbs
from programs import MEMORY_FILE, Failure, Testbed
from rows import ROWS

END = "<!-- end of figures -->"


def main():
    options = parser().parse_args()
    sys.exit(options.run(options))


def parser():
    top = argparse.ArgumentParser(prog="cargo xtask", description="Tasks around the repository")
    tasks = top.add_subparsers(required=True, metavar="TASK")

    def task(name, function, help):
        found = tasks.add_parser(name, help=help, description=help)
        found.set_defaults(run=function)
        return found

    def add_testbed(found):
        for name in ["isolane", "floor", "minimal-host"]:
            found.add_argument(f"--{name}", metavar="FILE", help=f"the `{name}` program (default: next to xtask)")
        found.add_argument("--spdk", metavar="DIR", help="built tree of SPDK (default: $SPDK_DIR)")
        found.add_argument("--target-core", metavar="N", type=int, default=0, help="core of the target (default: 0)")
        found.add_argument("--host-core", metavar="N", type=int, default=1, help="core of the host (default: 1)")
        found.add_argument("--scratch", metavar="DIR", default=tempfile.gettempdir(), help="directory for files, on a disk")
        for name in ["serve", "bench"]:
            help = f"more arguments of every `isolane {name}`, separated by spaces"
            found.add_argument(f"--{name}-arguments", metavar="ARGS", default="", help=help)

    def add_measured(found, seconds):
        found.add_argument("--samples", metavar="N", type=at_least_one, default=5, help="samples of each contender (default: 5)")
        found.add_argument("--seconds", metavar="S", type=duration, default=seconds, help=f"seconds of each sample (default: {seconds})")
        found.add_argument("--json", metavar="FILE", required=True, help="the report")
        found.add_argument("--no-build", action="store_true", help="do not build the programs first")

    found = task("bench", bench, "Measure rows of the tables and print them; adds to an existing report")
    found.add_argument("rows", nargs="*", metavar="ROW", help="rows to measure (default: all)")
    found.add_argument("--peers", metavar="NAMES", default="", help="only these contenders, as floor,isolane,spdk; includes isolane+...")
    found.add_argument("--resume", action="store_true", help="keep the samples of the report and add the missing ones")
    add_measured(found, 2.0)
    add_testbed(found)
    found = task("explain", explain_scenarios, "Inject faults, and check that `isolane explain` names them")
    found.add_argument("--only", metavar="N", action="append", default=[], help="run only this scenario; repeatable")
    found.add_argument("--runs", metavar="N", type=at_least_one, default=1, help="runs of each scenario (default: 1)")
    found.add_argument("--json", metavar="FILE", help="write the results of each run into this file")
    help = "end a scenario with the first run that names its fault; succeed if each has one"
    found.add_argument("--until-named", action="store_true", help=help)
    found.add_argument("--snapshots", metavar="DIR", help="keep the snapshot of the target of each run there")
    found.add_argument("--no-build", action="store_true", help="do not build the programs first")
    add_testbed(found)
    found = task("table", print_tables, "Print the tables of a report")
    found.add_argument("report", help="the report")
    found.add_argument("--svg", metavar="FILE", help="draw the core rows into this file")
    help = "insert the tables into this Markdown file, between its comment `figures: REPORT` and the next `end of figures`"
    found.add_argument("--insert-into", metavar="FILE", help=help)
    found = task("streams", measure_streams, "Measure streams natively and through an engine, and print tables")
    add_measured(found, 1.0)
    add_testbed(found)
    found = task("verbs", measure_verbs, "Measure RDMA operations next to plain TCP and peers, and print a table")
    found.add_argument("rows", nargs="*", metavar="ROW", help="rows to measure (default: all)")
    add_measured(found, 1.0)
    add_testbed(found)
    add_testbed(task("list", print_list, "List all rows, their contenders, and the programs that are missing here"))
    return top


def duration(text):
    if not 0.01 <= float(text) <= 3600:
        raise argparse.ArgumentTypeError(f"{text}: not a number of seconds from 0.01 to 3600")
    return float(text)


def at_least_one(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: not a positive number")
    return int(text)


def build(*more):
    command = [os.environ.get("CARGO", "cargo"), "build", "--release", "--quiet", "-p", "isolane-cli", "-p", "isolane-bench"]
    command += more
    if subprocess.run(command).returncode != 0:
        raise SystemExit("xtask: cannot build the programs")


def command_line():
    return " ".join(["cargo xtask", *sys.argv[1:]])


def bench(options):
    by_name = {row.name: row for row in ROWS}
    peers = [peer for peer in options.peers.split(",") if peer]
    if unknown := [name for name in options.rows if name not in by_name]:
        raise SystemExit(f"xtask: no row {unknown[0]}; see cargo xtask list")
    rows = [by_name[name] for name in options.rows] or list(ROWS)
    names = {name for row in rows for contender in row.contenders for name in [contender.name, contender.peer]}
    if unknown := [peer for peer in peers if peer not in names]:
        raise SystemExit(f"xtask: no contender {unknown[0]} in these rows; see cargo xtask list")
    if not options.no_build:
        build()
    report = {"command": "", "rows": []} | (reports.read(options.json) if os.path.exists(options.json) else {})
    commands = [command for command in report["command"].split("; ") if command]
    report |= reports.here() | {"command": "; ".join(dict.fromkeys([*commands, command_line()]))}
    reports.write(report, options.json)  # fails before anything is measured
    with testbed(options) as bed:
        measure(bed, rows, peers, options, report)
    print(reports.tables(report))


@contextmanager
def testbed(options):
    """A testbed with a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="isolane-bench-", dir=options.scratch) as options.scratch:
        yield Testbed(options)


def measure(bed, rows, peers, options, report):
    skipped = set()
    for row in rows:
        contenders = []
        for contender in row.contenders:
            if peers and not {contender.name, contender.peer} & set(peers) or not contender.can_carry(row.load):
                continue
            if missing := bed.missing(contender):
                if missing not in skipped:
                    print(f"skipping {contender.name}: {missing}", file=sys.stderr)
                skipped.add(missing)
                continue
            contenders.append(contender)
            entry = reports.entry(report, row.name, options.seconds, contender.name)
            if not options.resume:
                entry["samples"] = []
                entry.pop("errors", None)
        for round in range(options.samples):
            for contender in contenders:
                entry = reports.entry(report, row.name, options.seconds, contender.name)
                if len(entry["samples"]) > round:
                    continue
                print(f"{row.name} {round + 1}/{options.samples} {contender.name}: ", end="", file=sys.stderr, flush=True)
                try:
                    with contender.target.start(bed, row.load) as (target, port):
                        sample = contender.host.measure(bed, target, port, row.load, options.seconds)
                    entry["samples"].append(sample)
                    value = sample.get(row.figure)
                    print(reports.FIGURES[row.figure].show(value) if value is not None else sample, file=sys.stderr)
                except (Failure, OSError, ValueError, LookupError) as error:
                    entry.setdefault("errors", []).append(str(error))
                    print(f"failed: {error}", file=sys.stderr)
                reports.write(report, options.json)
    MEMORY_FILE.unlink(missing_ok=True)


def measure_streams(options):
    if not options.no_build:
        build()
    with testbed(options) as bed:
        try:
            report = streams.measure(bed, options.samples, options.seconds, command_line())
        except Failure as error:
            raise SystemExit(f"xtask: {error}")
    reports.write(report, options.json)
    print(streams.tables(report), end="")


def measure_verbs(options):
    if not options.no_build:
        build("-p", "isolane-ibverbs")
    with testbed(options) as bed:
        report = verbs.measure(bed, options.samples, options.seconds, command_line(), options.json, options.rows)
    print(verbs.tables(report), end="")


def explain_scenarios(options):
    if not options.no_build:
        build()
    with testbed(options) as bed:
        path = options.json or bed.scratch / "explain.json"
        until_named = options.until_named
        report = explain.measure(bed, options.only, options.runs, command_line(), path, options.snapshots, until_named)
    print(explain.tables(report), end="")
    if not explain.is_complete(report, until_named):
        raise SystemExit(1)


def print_tables(options):
    report = reports.read(options.report)
    if options.svg:
        svg = reports.chart(report)
        if not svg:
            raise SystemExit("xtask: a chart needs the floor's samples")
        Path(options.svg).write_text(svg)
    tables, path = found_tables(report), options.insert_into
    if not path:
        print(tables, end="")
        return
    new = inserted(Path(path).read_text(), Path(options.report).name, tables)
    if not new:
        raise SystemExit(f"xtask: {path} has no lines {begin(Path(options.report).name)} and {END}")
    Path(path).write_text(new)


def begin(report):
    return f"<!-- figures: {report} -->"


def inserted(text, report, tables):
    """Returns the text of a document with the tables of a report in their place, or None without such a place."""
    before, found, rest = text.partition(f"{begin(report)}\n")
    _, end, after = rest.partition(END)
    return f"{before}{found}\n{tables}\n{end}{after}" if found and end else None


def found_tables(report):
    if "explain" in report:
        return explain.tables(report)
    if "verbs" in report:
        return verbs.tables(report)
    return streams.tables(report) if "cases" in report else reports.tables(report)


def print_list(options):
    print(list_rows(ROWS, Testbed(options).missing), end="")


def list_rows(rows, missing):
    """One line per core row, two per other row, and one per missing program."""
    core = [row for row in rows if row.core]
    lines = [f"Compared with the floor and peers: {', '.join(contender.name for contender in core[0].contenders)}"]
    for row in core:
        absent = ", ".join(contender.name for contender in row.contenders if not contender.can_carry(row.load))
        lines.append(f"  {row.name:<16} {row.title}{f' (without {absent})' if absent else ''}")
    lines.append("One change:")
    for row in rows:
        if not row.core:
            carrying = ", ".join(contender.name for contender in row.contenders if contender.can_carry(row.load))
            lines += [f"  {row.name:<16} {row.title}", f"{'':19}{carrying}"]
    lacking = {}
    for contender in [contender for row in rows for contender in row.contenders]:
        if reason := missing(contender):
            lacking.setdefault(reason, dict.fromkeys([]))[contender.name] = None
    lines += [f"Without {', '.join(names)}: {reason}" for reason, names in lacking.items()]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()
