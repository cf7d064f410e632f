"""Scenarios of `cargo xtask explain`: a fault, the load under which it happens, and the verdict that names it.

The target has one reactor on its core, and all hosts share the other core, except where a scenario has its own cores.
"""

import os
import random
import re
import signal
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Callable

from programs import Process, random_file, volume_of

TAIL_QUANTILE = 0.999


@dataclass(frozen=True)
class Load:
    """One `isolane bench`, with its own name of a host."""

    nsid: int
    arguments: str
    host: str = ""


@dataclass(frozen=True)
class Expected:
    """The finding that names the injected fault."""

    kind: str
    name: str  # a part of the name
    checks: tuple = ()  # each returns a complaint about the verdict and the finding, or None


@dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    volumes: Callable  # of the directory for files: texts
    loads: tuple
    expected: Expected = None
    checks: tuple = ()
    serve: str = ""
    both_cores: bool = False
    inject: Callable = None  # context manager with the run as its argument


@dataclass
class Run:
    """A scenario while it runs."""

    bed: object
    directory: object
    hosts: list = field(default_factory=list)  # processes, in the order of the loads
    facts: dict = field(default_factory=dict)  # about the injected fault, for the checks


# Faults


@contextmanager
def spin(run):
    """A thread that never sleeps, on the core of the target."""
    script = run.directory / SPINNER
    script.write_text("#!/bin/sh\nwhile :; do :; done\n")
    script.chmod(0o755)
    with Process([script], run.bed.target_core) as process:
        run.facts["pid"] = process.pid
        yield


@contextmanager
def pause_last_host(run):
    """Stops the last host for 50 ms, again and again: its socket is not read then."""
    ended, pid = threading.Event(), run.hosts[-1].pid

    def pause():
        while not ended.wait(0.1 + 0.1 * random.random()):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.05)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=pause)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def write_to_disk(run):
    """Direct writes to the disk of the volumes, past them."""
    with ExitStack() as stack:
        for number in range(WRITERS):
            path = run.directory / f"other-{number}"
            dd = f"dd if=/dev/zero of={path} bs=4k count=262144 conv=notrunc oflag=direct status=none"
            stack.enter_context(Process(["sh", "-c", f"while {dd}; do :; done"], run.bed.host_core))
        yield


# Checks


def ratio(low, high):
    def check(_, finding):
        ratios = [evidence["ratio"] for evidence in finding["evidence"] if evidence.get("ratio") is not None]
        return None if any(low <= found <= high for found in ratios) else f"no ratio from {low} to {high}: {ratios}"

    return check


def cleared(*kinds):
    def check(verdict, _):
        missing = set(kinds) - {entry["kind"] for entry in verdict["cleared"]}
        return f"not cleared: {', '.join(sorted(missing))}" if missing else None

    return check


def value_of(name, expected):
    def check(_, finding):
        return None if finding.get(name) == expected else f"{name} is {finding.get(name)}, not {expected}"

    return check


def mentions(pattern, part=None):
    """The finding, or one part of it, or the verdict without a finding, has a text."""

    def check(verdict, finding):
        place = verdict if finding is None else finding if part is None else finding.get(part)
        return None if re.search(pattern, str(place), re.I) else f"no /{pattern}/ in {part or 'the text'}"

    return check


def neighbour(kind, *texts):
    """A neighbor has this kind and these texts; `{pid}` stands for the injected process."""

    def check(_, finding, facts):
        wanted = [text.format(**facts) for text in texts]
        found = [entry for entry in finding["neighbours"] if entry["kind"] == kind]
        if any(all(text in str(entry) for text in wanted) for entry in found):
            return None
        return f"no {kind} {' '.join(wanted)} among the neighbors: {finding['neighbours']}"

    check.needs_facts = True
    return check


def tail_quantile(verdict, _):
    quantile = verdict["tail"]["quantile"]
    return None if quantile >= TAIL_QUANTILE else f"the tail begins at {quantile}"


def completes_last(share):
    def check(_, finding):
        found = [evidence for evidence in finding["evidence"] if "last" in str(evidence.get("what"))]
        percent = lambda entry: entry["value"] * (1 if entry.get("unit") in ["%", "percent"] else 100)
        best = max(map(percent, found), default=0)
        return None if best >= share else f"last in {best} %, not {share} %"

    return check


# Volumes and loads


def group(*volumes):
    """Volumes that are expected to be alike. Their sizes differ, so that their names do."""
    return lambda _: [f"{volume.format(size=f'mem:{64 + at}M')},group=drives" for at, volume in enumerate(volumes)]


def rates(each, depth=32):
    """Random reads of the same rate on eight volumes."""
    return tuple(Load(nsid, f"--rate {each} --depth {depth}") for nsid in range(1, 9))


def host(name):
    return f"nqn.2014-08.org.example:{name}"


def stripe(_):
    members = [f"(delay:{1000 + at}us:mem:64M)" for at in range(8)]
    members[5] = f"(delay:4ms:{members[5]},on=write)"
    return [f"stripe:4k:{';'.join(members)}"]


def mirror(directory):
    return [f"mirror:(delay:200us:mem:1G);(delay:300us:mem:1G),bitmap={directory / 'bitmap'},create=yes"]


def file(name, bytes):
    return lambda directory: [f"{volume_of(directory / name)},size={bytes}"]


def filled_file(name):
    """A file whose reads reach the disk, unlike those of a sparse file."""
    return lambda directory: [volume_of(random_file(directory / name))]


SPINNER = "spinning-task"
WRITERS = 4
ALIKE = "delay:200us-400us:{size}"
READS = "--rate 1000 --depth 32"
CONFLICT_LBA = 2048

SCENARIOS = [
    Scenario(
        "1",
        "one of 8 volumes with 6x the delay of the others",
        group(*["delay:1ms:{size}"] * 3, "delay:6ms:{size}", *["delay:1ms:{size}"] * 4),
        rates(1000),
        Expected("device", "mem:67M", (ratio(5, 7), cleared("network", "core"))),
    ),
    Scenario(
        "2",
        "one of 8 volumes stalls 1 operation in 200 for 20 ms",
        group(*[ALIKE] * 6, f"stall:20ms:({ALIKE}),one-in=200,seed=7", ALIKE),
        rates(2000, 64),
        Expected("device", "mem:70M", (tail_quantile, mentions("alike"))),
    ),
    Scenario(
        "3",
        "a stripe of 8 with 5x the delay of writes on one member",
        stripe,
        (Load(1, "--rw randwrite --bs 32k --rate 500 --depth 32"), Load(1, "--rate 2000 --depth 32")),
        Expected("device", "1005us", (value_of("operation", "write"), completes_last(90))),
    ),
    Scenario(
        "4",
        "a spinning thread on the core of one of two reactors",
        lambda _: ["delay:200us:mem:64M"],
        tuple(Load(1, "--rate 2000 --depth 32") for _ in range(4)),
        Expected("core", "0", (value_of("cause", "process"), neighbour("process", SPINNER, "{pid}"))),
        serve="--mode poll",
        both_cores=True,
        inject=spin,
    ),
    Scenario(
        "5",
        "a memory pool of 4 MiB under writes of 1 MiB",
        lambda _: ["mem:256M"],
        (Load(1, "--rw randwrite --bs 1m --depth 32"), Load(1, READS)),
        Expected("memory", "", (mentions("--pool", "remedy"),)),
        serve="--pool 4M",
    ),
    Scenario(
        "6",
        "without fair queueing, one host streams writes of 1 MiB, and another reads",
        lambda _: ["mem:256M"],
        (Load(1, "--rw randwrite --bs 1m --depth 8", host("bulk")), Load(1, "--rate 4000 --depth 32", host("reader"))),
        Expected("connection", "", (mentions(host("bulk")),)),
        serve="--fair-queueing off",
    ),
    Scenario(
        "7",
        "one of 4 hosts repeatedly stops reading for 50 ms",
        lambda _: ["delay:4ms:mem:64M"],
        (
            *(Load(1, READS, host(f"steady-{at}")) for at in range(3)),
            Load(1, "--bs 64k --depth 64 --socket receive-buffer=131072", host("paused")),  # more than the kernel of the target can buffer
        ),
        Expected("host", host("paused"), (value_of("cause", "rwnd"),)),
        inject=pause_last_host,
    ),
    Scenario(
        "8",
        "64 writers on one block alongside random writers",
        file("disk.img", "256M"),
        (
            Load(1, f"--rw randwrite --depth 64 --size 4k --offset {CONFLICT_LBA * 512}"),
            Load(1, "--rw randwrite --rate 500 --depth 32"),
        ),
        Expected("conflict", "", (mentions(rf"\b{CONFLICT_LBA}\b"),)),
    ),
    Scenario(
        "9",
        "one of 8 equal volumes gets 10x the load",
        group(*["delay:300us-500us:{size},depth=1"] * 8),
        (*(Load(nsid, "--rate 220 --depth 4") for nsid in range(1, 8)), Load(8, "--depth 10")),
        Expected("hot", "mem:71M"),
    ),
    Scenario(
        "10",
        "dd with direct writes on the disk of a file volume",
        filled_file("disk.img"),
        (Load(1, "--rate 2000 --depth 32"),),
        Expected("shared-device", "", (neighbour("process", "dd"),)),
        inject=write_to_disk,
    ),
    Scenario(
        "13",
        "a mirror that copies regions while one member has 1.5x the delay",
        mirror,
        (Load(1, READS),),
        checks=(mentions("cop(y|ies|ying)"),),
    ),
    Scenario("control", "nothing injected", group(*[ALIKE] * 8), rates(1000)),
]
