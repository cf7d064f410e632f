"""`cargo xtask explain`: injects faults into real targets, and checks that `isolane explain` names them."""

import json
import os
import re
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from programs import Failure, Process, run as run_program
from report import head, here, lines_of, table, write
from scenarios import SCENARIOS, Run, host

WARM_UP_S = 1.5
WINDOW_S = 10
EXPLAIN_TIMEOUT_S = 30.0
LOAD_TIME = "120s"
# Load generators, whose use of a core is a fact and no wrong name.
OWN_PROGRAMS = ["isolane", "python3", "sh", "dd"]
# Least part of the absence of a core that the named processes outside of the scenario ran, measured here.
FOREIGN_SHARE = 0.5
# Share of such a core from which on a verdict says nothing about the injected fault, and most runs in place of one.
DISTURBED_SHARE = 0.5
MAX_REPEATS = 3


def measure(bed, names, runs, command, path, snapshots=None, until_named=False):
    """Runs scenarios, and returns the report, which is also written after each run.

    With `until_named`, the first run that names the fault is the last one of its scenario."""
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    if unknown := [name for name in names if name not in by_name]:
        raise SystemExit(f"xtask: no scenario {unknown[0]}; there are {', '.join(by_name)}")
    report = here() | {"command": command, "explain": []}
    # This program and its children stay away from the core of the target, except a child that is given a core.
    os.sched_setaffinity(0, {bed.host_core})
    for scenario in [by_name[name] for name in names] or SCENARIOS:
        entry = {"scenario": scenario.name, "title": scenario.title, "runs": []}
        report["explain"].append(entry)
        for number in range(1, runs + 1):
            keep = Path(snapshots) / f"{scenario.name}-{number}.json" if snapshots else None
            for _ in range(MAX_REPEATS):
                entry["runs"].append(found := attempt(bed, scenario, keep))
                result = "named" if not found["complaints"] else "; ".join(found["complaints"])
                result += " (disturbed by a process outside of the scenario)" * found["disturbed"]
                print(f"{scenario.name} {number}/{runs} ({found['seconds']:.0f} s): {result}", file=sys.stderr, flush=True)
                write(report, path)
                if not found["disturbed"]:
                    break
            if until_named and not found["complaints"]:
                break
    return report


def attempt(bed, scenario, keep=None):
    started = time.monotonic()
    try:
        found = observe(bed, scenario, keep)
        foreign = found["machine"]["foreign_ms"]
        complaints = complaints_about(found["verdict"], scenario, found["facts"], foreign)
        disturbed = bool(complaints) and is_disturbed(found["verdict"], foreign)
    except (Failure, OSError, ValueError, LookupError, TypeError) as error:
        found, complaints, disturbed = {"verdict": None}, [f"failed: {error}"], False
    seconds = round(time.monotonic() - started, 1)
    return {"complaints": complaints, "disturbed": disturbed, "seconds": seconds} | found


def is_disturbed(verdict, foreign):
    """A process outside of the scenario, whose time is measured here too, has caused most of the tail."""
    shares = [finding["share"] for finding in verdict["findings"] if is_foreign(finding, foreign)]
    return sum(shares) >= DISTURBED_SHARE


def observe(bed, scenario, keep):
    """Runs a scenario once: the verdict, the facts about the injected fault, and the figures of the machine."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="explain-", dir=bed.scratch)))
        run = Run(bed, directory)
        control = directory / "control.sock"
        target, port = stack.enter_context(serve(bed, scenario, directory, control))
        for number, load in enumerate(scenario.loads):
            run.hosts.append(stack.enter_context(Process(bench_command(bed, port, load, number), bed.host_core)))
        if scenario.inject:
            stack.enter_context(scenario.inject(run))
        time.sleep(WARM_UP_S)
        before, ran_before = figures(target.pid), running_times()
        time.sleep(WINDOW_S)
        source = ["--from", snapshot(bed, control, keep)] if keep else [control]
        command = [bed.program("isolane"), "explain", *source, "--window", f"{WINDOW_S}s", "--json"]
        verdict = json.loads(run_program(command, bed.host_core, EXPLAIN_TIMEOUT_S / 2))
        foreign = foreign_times(ran_before, running_times())
        machine = difference(before, figures(target.pid))
        for process, load in zip(run.hosts, scenario.loads):
            if process.child.poll() is not None:
                raise process.failure(f"{load.arguments}: ended early")
        return {"verdict": verdict, "facts": run.facts, "machine": machine | {"foreign_ms": foreign}}


def snapshot(bed, control, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    run_program([bed.program("isolane"), "snapshot", control, "-o", path], bed.host_core, EXPLAIN_TIMEOUT_S / 2)
    return path


@contextmanager
def serve(bed, scenario, directory, control):
    cores = bed.both_cores if scenario.both_cores else bed.target_core
    options = f"--listen 127.0.0.1:0 --log-level warn --nqn {SUBSYSTEM} --cores {cores} {scenario.serve}".split()
    options += ["--control-socket", str(control), *bed.serve_arguments]
    command = [bed.program("isolane"), "serve", *scenario.volumes(directory), *options]
    with Process(command, bed.both_cores) as process:
        listening = process.wait_for(lambda: re.search(r"^listening on \S*:(\d+)$", process.stdout(), re.M))
        yield process, int(listening[1])


def bench_command(bed, port, load, number):
    uri = f"nvme+tcp://127.0.0.1:{port}/{SUBSYSTEM}?nsid={load.nsid}"
    common = f"--mode sleep --log-level error --time {LOAD_TIME} --seed {number + 1}"
    identity = f"--host-nqn {load.host or host(f'host-{number + 1}')} --host-id {HOST_ID.format(number + 1)}"
    return [bed.program("isolane"), "bench", uri, *f"{common} {identity} {load.arguments}".split(), *bed.bench_arguments]


def complaints_about(verdict, scenario, facts, foreign):
    """Returns the reasons why a verdict does not name the fault as expected, or names others."""
    expected, found, complaints = scenario.expected, None, []
    others = [finding for finding in verdict["findings"] if not is_excused(finding, foreign)]
    if len(others) < len(verdict["findings"]):
        verdict = verdict | {"cleared": verdict["cleared"] + [{"kind": "core", "text": "excused"}]}
    if expected:
        fits = lambda finding: finding["kind"] == expected.kind and expected.name in str(finding["name"])
        found = next(filter(fits, verdict["findings"]), None)
        if not found:
            complaints.append(f"no {expected.kind} {expected.name}")
        else:
            complaints += failed(expected.checks, verdict, found, facts)
        others = [finding for finding in others if not fits(finding)]
    complaints += failed(scenario.checks, verdict, None, facts)
    return complaints + [f"wrong: {finding['kind']} {finding['name']}" for finding in others]


def failed(checks, verdict, finding, facts):
    call = lambda check: check(verdict, finding, facts) if hasattr(check, "needs_facts") else check(verdict, finding)
    return [complaint for complaint in map(call, checks) if complaint]


def is_excused(finding, foreign):
    """A core that the hypervisor, a load generator or a process outside of the scenario took is a fact about this
    machine."""
    is_own = lambda name: any(re.match(rf"{program}\b", name) for program in OWN_PROGRAMS)
    is_true = finding.get("cause") == "steal" or any(map(is_own, processes_of(finding)))
    return finding["kind"] == "core" and is_true or is_foreign(finding, foreign)


def processes_of(finding):
    return [entry["name"] for entry in finding["neighbours"] if entry["kind"] == "process"]


def is_foreign(finding, foreign):
    """A process outside of the scenario took the core. Its time is measured here too, and is most of the finding."""
    if finding["kind"] != "core":
        return False
    processes = processes_of(finding)
    pids = [found[1] for name in processes if (found := re.search(r"\(PID (\d+)\)$", name))]
    absent = sum(evidence["value"] for evidence in finding["evidence"] if evidence["what"] == "process")
    return sum(foreign.get(pid, 0.0) for pid in pids) >= absent * FOREIGN_SHARE > 0.0


def figures(pid):
    """Times in nanoseconds in which threads of a process waited for a core, and ticks of the hypervisor's steal."""
    waited = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            waited += int((task / "schedstat").read_text().split()[1])
        except FileNotFoundError:
            pass  # The thread has ended.
    steal = {}
    for line in Path("/proc/stat").read_text().splitlines():
        if re.match(r"cpu\d", line):
            name, *ticks = line.split()
            steal[name] = int(ticks[7])
    return {"at": time.monotonic(), "waited_ns": waited, "steal": steal}


def running_times():
    """Milliseconds for which the threads of each process ran, by PID and thread."""
    times = {}
    for path in Path("/proc").glob("[0-9]*/task/*/schedstat"):
        try:
            times[path.parts[2], path.parts[4]] = int(path.read_text().split()[0]) / 1e6
        except (OSError, IndexError, ValueError):
            pass  # The thread has ended.
    return times


def foreign_times(before, after):
    """Milliseconds for which each process ran that is no descendant of this one, by PID."""
    sums, own = {}, {}
    for (pid, thread), ms in after.items():
        if pid not in own:
            own[pid] = is_descendant(pid)
        if not own[pid]:
            sums[pid] = sums.get(pid, 0.0) + max(ms - before.get((pid, thread), 0.0), 0.0)
    return {pid: round(ms, 1) for pid, ms in sums.items() if ms >= 1.0}


def is_descendant(pid):
    while pid not in ["0", str(os.getpid())]:
        try:
            pid = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            return False
    return pid != "0"


def difference(before, after):
    seconds = after["at"] - before["at"]
    percent = lambda ticks: round(ticks * 100 / (os.sysconf("SC_CLK_TCK") * seconds), 2)
    steal = {name: percent(after["steal"][name] - before["steal"].get(name, 0)) for name in after["steal"]}
    return {"waited_percent": round((after["waited_ns"] - before["waited_ns"]) / seconds / 1e7, 2), "steal_percent": steal}


def tables(report):
    lines = []
    for entry in report["explain"]:
        runs = undisturbed(entry)
        named = sum(not run["complaints"] for run in runs)
        complaints = {complaint for run in runs for complaint in run["complaints"]}
        numbers = [f"{named} of {len(runs)}", str(len(entry["runs"]) - len(runs))]
        lines.append([entry["scenario"], entry["title"], *numbers, "; ".join(sorted(complaints))])
    return f"{head(report)}.\n\n{table(['', 'Injected', 'Named', 'Disturbed', 'Otherwise'], lines)}"


def undisturbed(entry):
    return [run for run in entry["runs"] if not run.get("disturbed")]


def is_complete(report, until_named=False):
    is_enough = any if until_named else all
    runs = [[not run["complaints"] for run in undisturbed(entry)] for entry in report["explain"]]
    return all(named and is_enough(named) for named in runs)


SUBSYSTEM = "nqn.2014-08.org.example:explain"
HOST_ID = "00000000-0000-4000-8000-{:012}"
