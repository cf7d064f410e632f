"""The suite of RDMA operations: rows, contenders, and tables.

Every contender runs a server on one core and a client on the other, and both spin. The contenders of a row alternate.
"""

import json
import re
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Callable

from programs import Failure, Process, find, free_port, run
from report import head, here, table, write

START_S = 0.7  # programs without a sign that they listen


@dataclass(frozen=True)
class Row:
    name: str
    operation: str
    size: int
    depth: int
    figure: str  # "p50_us" or "operations_per_s"
    contenders: tuple


@dataclass(frozen=True)
class Contender:
    name: str
    programs: tuple
    measure: Callable  # (bed, row, seconds) -> sample


def pair(bed, server, client, seconds):
    """Runs a server until its client has ended, and returns the output of the client."""
    with Process(server, bed.target_core) as started:
        time.sleep(START_S)
        if started.child.poll() not in (None, 0):
            raise started.failure("ended early")
        return run(client, bed.host_core, seconds)


def floor(bed, row, seconds):
    cores = f"{bed.target_core},{bed.host_core}"
    command = [bed.program("verbs-floor"), "--operation", row.operation, "--size", row.size, "--depth", row.depth]
    return json.loads(run([*command, "--seconds", seconds, "--cores", cores], None, seconds))


def isolane(bed, row, seconds):
    program, port = bed.program("isolane"), free_port()
    bench = [program, "verbs", "bench", "--time", f"{int(seconds * 1000)}ms"]
    with Process([program, "verbs", "bench", "--server", f"127.0.0.1:{port}"], bed.target_core) as server:
        server.wait_for(lambda: "listening" in server.stdout())
        options = ["--operation", row.operation, "--size", row.size, "--depth", row.depth, "--json"]
        return json.loads(run([*bench, *options, f"127.0.0.1:{port}"], bed.host_core, seconds))[0]


def libfabric(bed, row, seconds):
    """fi_pingpong over the provider tcp, at its defaults."""
    port = free_port()
    command = ["fi_pingpong", "-p", "tcp", "-e", "msg", "-S", row.size, "-I", int(50_000 * seconds)]
    text = pair(bed, [*command, "-B", port], [*command, "-P", port, "127.0.0.1"], seconds)
    return libfabric_sample(text)


def libfabric_sample(text):
    """The last line: bytes, number sent, number acknowledged, total, time, MB/s, microseconds per transfer, rate."""
    fields = [line for line in text.splitlines() if line.strip()][-1].split()
    us = float(fields[-2])
    return {"p50_us": us, "operations_per_s": 1e6 / us}


def ucx(tls, test, preload=False):
    """ucx_perftest at its defaults, over tcp or over our devices."""

    def measure(bed, row, seconds):
        port = free_port()
        wrapped = [bed.program("isolane"), "verbs", "run", "--"] if preload else []
        device = "isolane0:1" if preload else "lo"
        environment = ["env", f"UCX_TLS={tls}", f"UCX_NET_DEVICES={device}", "UCX_LOG_LEVEL=error"]
        count = max(200, int(seconds * min(100_000, 2e9 / row.size)))
        command = [*wrapped, *environment, "ucx_perftest", "-t", test, "-s", row.size, "-n", count, "-p", port]
        return ucx_sample(pair(bed, command, [*command, "127.0.0.1"], 4 * seconds))

    return measure


def ucx_sample(text):
    """The line `Final`: iterations, three latencies, two bandwidths in MB/s, two rates."""
    final = next((line for line in text.splitlines() if line.startswith("Final:")), None)
    if final is None:
        raise Failure(f"ucx_perftest reports no result: {text[-300:]}")
    fields = final.split()
    return {"p50_us": float(fields[2]), "operations_per_s": float(fields[-1]), "mib_per_s": float(fields[-3])}


def perftest(program, *options):
    """A program of perftest over our devices."""

    def measure(bed, row, seconds):
        port = free_port()
        wrapped = [bed.program("isolane"), "verbs", "run", "--", program, "-d", "isolane0", "-x", 0, "-F"]
        command = [*wrapped, "-s", row.size, "-p", port, *options]
        if "lat" not in program:
            command += ["-n", 500_000 if row.size <= 4096 else 5_000]
        return perftest_sample(pair(bed, command, [*command, "127.0.0.1"], 4 * seconds), row)

    return measure


def perftest_sample(text, row):
    """The line of the size: latencies with their typical value in column 5, or bandwidths with the average in column 4."""
    lines = [line.split() for line in text.splitlines() if re.match(rf"\s*{row.size}\s", line)]
    if not lines:
        raise Failure(f"perftest reports no result: {text[-300:]}")
    fields = lines[-1]
    if row.figure == "p50_us":
        return {"p50_us": float(fields[4])}
    return {"operations_per_s": float(fields[4]) * 1e6, "mib_per_s": float(fields[3])}


FLOOR = Contender("floor", ("verbs-floor",), floor)
ISOLANE = Contender("isolane", ("isolane",), isolane)
FABRIC = Contender("libfabric tcp", ("fi_pingpong",), libfabric)


def ucx_tcp(test):
    return Contender("ucx tcp", ("ucx_perftest",), ucx("tcp,self", test))


def ucx_rc(test):
    return Contender("ucx over isolane", ("isolane", "ucx_perftest"), ucx("rc_v,ud_v,self", test, preload=True))


def through(program, *options):
    return Contender(f"{program} over isolane", ("isolane", program), perftest(program, *options))


def latency(size, *more):
    return Row(f"SEND {text(size)}", "send", size, 1, "p50_us", (FLOOR, ISOLANE, FABRIC, ucx_tcp("tag_lat"), *more))


def rate(operation, size, depth, *more):
    name = f"{operation.upper()} {text(size)}, depth {depth}"
    return Row(name, operation, size, depth, "operations_per_s", (FLOOR, ISOLANE, *more))


def text(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB" if size >= 1024 else f"{size} B"


MIB = 1 << 20
ROWS = [
    latency(64, through("ib_send_lat")),
    latency(4096),
    latency(16384),
    rate("send", 64, 256, ucx_tcp("tag_bw"), through("ib_send_bw", "-N", "-t", 256, "-r", 512)),
    rate("write", 65536, 16, ucx_tcp("ucp_put_bw"), through("ib_write_bw", "-t", 16)),
    rate("write", MIB, 8, ucx_tcp("ucp_put_bw"), ucx_rc("ucp_put_bw"), through("ib_write_bw", "-t", 8)),
    rate("read", 65536, 16, through("ib_read_bw", "-t", 16)),
    rate("read", MIB, 8, ucx_rc("ucp_get"), through("ib_read_bw", "-t", 8)),
    rate("write", 4096, 128),
]


def measure(bed, samples, seconds, command, path, names=()):
    """Measures every row; a missing program is reported and never counts as a result."""
    suite = {"about": head(here() | {"command": command}) + ".", "seconds": seconds, "verbs": []}
    for row in [row for row in ROWS if not names or row.name in names]:
        entry = {"row": row.name, "figure": row.figure, "contenders": []}
        suite["verbs"].append(entry)
        runs = []
        for contender in row.contenders:
            kept = {"name": contender.name, "samples": [], "errors": []}
            entry["contenders"].append(kept)
            missing = [name for name in contender.programs if not find(str(bed.program(name)))]
            if missing:
                kept["errors"].append(f"not run: {missing[0]} is missing")
            else:
                runs.append((contender, kept))
        for round in range(1, samples + 1):
            for contender, kept in runs:
                try:
                    kept["samples"].append(contender.measure(bed, row, seconds))
                    value = kept["samples"][-1][row.figure]
                except (Failure, OSError, ValueError, LookupError) as error:
                    kept["errors"].append(str(error))
                    value = "failed"
                print(f"{row.name} {round}/{samples} {contender.name}: {value}", file=sys.stderr)
            write(suite, path)
    return suite


def tables(suite):
    lines = []
    for entry in suite["verbs"]:
        base = values(entry, "isolane")
        for contender in entry["contenders"]:
            found = values(entry, contender["name"])
            if not found:
                lines.append([entry["row"], contender["name"], "not run", ""])
                continue
            ratio = ""
            if base and contender["name"] != "isolane":
                ratios = [a / b for a, b in zip(base, found)]
                ratio = "{:.2f} ({:.2f}–{:.2f})".format(statistics.median(ratios), min(ratios), max(ratios))
            lines.append([entry["row"], contender["name"], show(entry["figure"], statistics.median(found)), ratio])
    header = ["Operation", "Program", "Median", "Isolane / program (range of the rounds)"]
    return f"{suite['about']}\n\n{table(header, lines)}"


def values(entry, name):
    contender = next((found for found in entry["contenders"] if found["name"] == name), {"samples": []})
    return [sample[entry["figure"]] for sample in contender["samples"]]


def show(figure, value):
    if figure == "p50_us":
        return f"{value:.2f} µs"
    return f"{value / 1e6:.2f} M/s" if value >= 1e6 else f"{value / 1e3:.1f} k/s"
