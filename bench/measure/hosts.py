"""Hosts: each runs a load against a target and returns one sample, the figures of one run by their keys."""

import http.client
import json
import os
import re
import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from programs import NQN, START_TIMEOUT_S, VOLUME_BYTES, Failure, Process, core_percent, resident_kib, run, shared_file
from targets import CEPH_IMAGE_BYTES, CEPH_POOL, ISCSI_NAME, bench, bench_command, ceph_images, spdk_memory

FLOOR_WORK = {("read", 4096): "read4k", ("write", 4096): "write4k", ("read", 131_072): "read128k", ("write", 131_072): "write128k"}


def of_report(report):
    """The figures of a JSON report in the shape of `isolane bench`."""
    sample = {"iops": report["iops"], "mean_us": report["latency_us"]["mean"]}
    optional = {"p99_9_us": report["latency_us"].get("p99_9"), "p99_99_us": report["latency_us"].get("p99_99"), "bulk_mib_per_s": report.get("background", {}).get("mib_per_s")}
    return sample | {key: value for key, value in optional.items() if value is not None}


class Host:
    def can_carry(self, load):
        return True


@dataclass(frozen=True)
class Floor(Host):
    """Both sides of the floor, which pins its threads itself."""

    arguments: str = ""
    programs = ("floor",)

    def can_carry(self, load):
        return (load.rw, load.block_bytes) in FLOOR_WORK

    def measure(self, bed, target, port, load, seconds):
        options = f"""--seconds {seconds} --work {FLOOR_WORK[load.rw, load.block_bytes]} --depth {load.depth}
            --connections {load.connections} --target-core {bed.target_core} --host-core {bed.host_core} {self.arguments}"""
        return of_report(json.loads(run([bed.program("floor"), *options.split()], None, seconds)))


def bench_arguments(bed, load, arguments, seconds):
    lanes = "" if "--lanes" in arguments else f"--lanes {load.connections}"
    shape = f"--rw {load.pattern} --bs {load.block_bytes} --depth {load.depth} {lanes} --time {int(seconds * 1e3)}ms"
    return " ".join([shape, arguments.format(bed=bed), *bed.bench_arguments])


@dataclass(frozen=True)
class Bench(Host):
    """`isolane bench` on the host's core, unless it places its threads itself."""

    arguments: str
    pinned: bool = True
    programs = ("isolane",)

    def measure(self, bed, target, port, load, seconds):
        return of_report(bench(bed, port, bench_arguments(bed, load, self.arguments, seconds), seconds, self.pinned))


@dataclass(frozen=True)
class SettledBench(Bench):
    """`isolane bench`, started before the measurement until connections have moved, and the target's processor time."""

    SETTLE_S = 12  # the scheduler checks once a second and moves a connection after several equal results

    def measure(self, bed, target, port, load, seconds):
        total = self.SETTLE_S + seconds
        with Process(bench_command(bed, port, bench_arguments(bed, load, self.arguments, total)), bed.host_core) as host:
            time.sleep(self.SETTLE_S)
            percent = core_percent(target.pid, seconds)
            return of_report(json.loads(host.finish(START_TIMEOUT_S + total))) | {"processor_percent": percent}


@dataclass(frozen=True)
class UpgradeBench(Bench):
    """`isolane bench`, which a lost connection or a failed command ends, while the program of the target is replaced. Also
    the time of the longest command."""

    upgrades: int = 0

    def measure(self, bed, target, port, load, seconds):
        arguments = f"{bench_arguments(bed, load, self.arguments, seconds)} --reconnect 0s"
        upgrade = [bed.program("isolane"), "ctl", "--socket", control_socket(target.pid), "upgrade", bed.program("isolane")]
        with Process(bench_command(bed, port, arguments), bed.host_core) as host:
            for _ in range(self.upgrades):
                time.sleep(seconds / (self.upgrades + 1))
                run(upgrade, bed.host_core, START_TIMEOUT_S)
            report = json.loads(host.finish(START_TIMEOUT_S + seconds))
            return of_report(report) | {"max_us": report["latency_us"]["max"]}


@dataclass(frozen=True)
class ReadBench(Bench):
    """`isolane bench` beside idle connections, while others read the numbers of the target as often as `isolane top` and
    a scraper do. Also the processor time of the target's side threads. The readers share the host's core."""

    reads: tuple = ()  # pairs of a path and an interval in seconds
    CONNECTIONS = 1000

    def measure(self, bed, target, port, load, seconds):
        with ExitStack() as stack:
            idle_load = replace(load, connections=self.CONNECTIONS)
            idle = stack.enter_context(Process(minimal_host(bed, port, idle_load, 1, "--idle"), bed.host_core))
            idle.wait_for(lambda: idle.stdout().startswith("idle"))
            control = control_socket(target.pid)
            reactors = {core["thread"] for core in json.loads(read_control(control, "/snapshot.json?steps=no"))["numbers"]["cores"]}
            ended = threading.Event()
            stack.callback(ended.set)
            for path, interval in self.reads:
                threading.Thread(target=read_until, args=(ended, control, path, interval)).start()
            before = side_ns(target.pid, reactors)
            sample = super().measure(bed, target, port, load, seconds)
            return sample | {"side_percent": (side_ns(target.pid, reactors) - before) / seconds / 1e7}


def control_socket(pid):
    """The control socket of a target, at its default place."""
    places = [os.environ.get("XDG_RUNTIME_DIR", "/nonexistent") + "/isolane", f"/tmp/isolane-{os.getuid()}"]
    found = [path for place in places if (path := Path(place) / f"serve-{pid}.sock").exists()]
    if not found:
        raise Failure(f"no control socket of process {pid} in {' or '.join(places)}")
    return str(found[0])


def read_control(path, request):
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    with connection.sock as client:
        client.connect(path)
        connection.request("GET", request)
        return connection.getresponse().read()


def read_until(ended, control, path, interval):
    while not ended.wait(interval):
        read_control(control, path)


def side_ns(pid, reactors):
    """Processor time of the threads of a process that are no reactors."""
    threads = [path for path in Path(f"/proc/{pid}/task").iterdir() if int(path.name) not in reactors]
    return sum(int((path / "schedstat").read_text().split()[0]) for path in threads)


@dataclass(frozen=True)
class SpdkPerf(Host):
    """spdk_nvme_perf. It is given the queue depth of all connections together, which it deals out in turn."""

    HOST_NQN = "nqn.2014-08.org.nvmexpress:uuid:be7c4000-0000-4000-8000-0000000000ff"  # only its own target takes none

    sockets: str
    arguments: str = ""
    programs = ("spdk_nvme_perf",)

    def measure(self, bed, target, port, load, seconds):
        whole_seconds = -int(-seconds // 1)
        options = f"""-c [{bed.host_core}] -q {load.in_flight} -P {load.connections} -o {load.block_bytes} -w {load.pattern}
            -a 1 -t {whole_seconds} {spdk_memory(512)} -S {self.sockets} -z {self.sockets} {self.arguments}"""
        address = f"trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:{port} subnqn:{NQN} hostnqn:{self.HOST_NQN}"
        output = run([bed.program("spdk_nvme_perf"), *options.split(), "-r", address], None, whole_seconds + 0.5)
        return of_spdk_perf(output)


def of_spdk_perf(output):
    """Its last table ends with `Total : IOPS MiB/s Average min max`."""
    for line in reversed(output.splitlines()):
        if line.strip().startswith("Total"):
            rate, _, mean_us, *_ = map(float, line.split(":")[1].split())
            return {"iops": rate, "mean_us": mean_us}
    raise Failure(f"spdk_nvme_perf shows no total: {output}")


class VhostLoad(Host):
    """`vhost-load`, which is the driver of a machine. It writes the volume first."""

    programs = ("vhost-load",)

    def measure(self, bed, target, port, load, seconds):
        options = f"--depth {load.depth} --span {VOLUME_BYTES} --seconds {seconds}{' --write' if load.rw == 'write' else ''}"
        return of_report(json.loads(run([bed.program("vhost-load"), port, *options.split()], bed.host_core, seconds)))


def minimal_host(bed, port, load, depth, *more):
    options = f"127.0.0.1:{port} {NQN} --depth {depth} --connections {load.connections}"
    return [bed.program("minimal-host"), *options.split(), *more]


@dataclass(frozen=True)
class MinimalHost(Host):
    """The plain host of this directory."""

    arguments: str = ""
    programs = ("minimal-host",)

    def can_carry(self, load):
        return load.rw == "read" and load.block_bytes == 4096

    def measure(self, bed, target, port, load, seconds):
        command = minimal_host(bed, port, load, load.depth, "--seconds", seconds, *self.arguments.split())
        return of_report(json.loads(run(command, bed.host_core, seconds)))


@dataclass(frozen=True)
class Idle(Host):
    """Connections that read once and then do nothing: processor time and memory of the target, after `settle_s`."""

    settle_s: int
    programs = ("minimal-host",)

    def measure(self, bed, target, port, load, seconds):
        time.sleep(2)  # the memory of the fill is released
        before_kib = resident_kib(target.pid)
        with Process(minimal_host(bed, port, load, 1, "--idle"), bed.host_core) as host:
            host.wait_for(lambda: host.stdout().startswith("idle"))
            time.sleep(self.settle_s)
            memory_kib = (resident_kib(target.pid) - before_kib) / load.connections
            return {"processor_percent": core_percent(target.pid, seconds), "memory_kib": memory_kib}


class ImageBench(Host):
    """One `isolane bench` for each image that the target serves, on any core."""

    programs = ("isolane",)

    def measure(self, bed, target, port, load, seconds):
        arguments = bench_arguments(bed, replace(load, connections=1), "", seconds)
        with ExitStack() as stack:
            commands = [bench_command(bed, port, arguments, nsid) for nsid in range(1, load.connections + 1)]
            hosts = [stack.enter_context(Process(command)) for command in commands]
            return sum_of([of_report(json.loads(host.finish(START_TIMEOUT_S + seconds))) for host in hosts])


class FioRbd(Host):
    """One fio with the rbd engine for each image, on any core."""

    programs = ("fio", "rbd")

    def measure(self, bed, target, port, load, seconds):
        options = f"""--name=bench --output-format=json --time_based --runtime={int(seconds * 1e3)}ms --ramp_time=300ms
            --rw={load.pattern} --bs={load.block_bytes} --iodepth={load.depth} --size={CEPH_IMAGE_BYTES} --norandommap
            --ioengine=rbd --clientname=admin --pool={CEPH_POOL} --rbdname="""
        with ExitStack() as stack:
            commands = [["fio", *f"{options}{image}".split()] for image in ceph_images(bed, load)]
            hosts = [stack.enter_context(Process(command)) for command in commands]
            return sum_of([of_fio(host.finish(START_TIMEOUT_S + 2 * seconds), load.rw) for host in hosts])


def sum_of(samples):
    """The sample of programs that ran at the same time."""
    return {"iops": sum(sample["iops"] for sample in samples), "mean_us": sum(sample["mean_us"] for sample in samples) / len(samples)}


def fio(core, engine, load, seconds):
    options = f"""--name=bench --output-format=json --group_reporting --time_based --runtime={int(seconds * 1e3)}ms
        --ramp_time=300ms --rw={load.pattern} --bs={load.block_bytes} --iodepth={load.depth} --numjobs={load.connections}
        --size={VOLUME_BYTES} --norandommap --thread {engine}"""
    return of_fio(run(["fio", *options.split()], core, seconds), load.rw)


def of_fio(output, rw):
    """fio may print hints about the job before its JSON."""
    try:
        side = json.loads(output[output.index("{") :])["jobs"][0][rw]
        return {"iops": side["iops"], "mean_us": side["lat_ns"]["mean"] / 1e3}
    except (ValueError, LookupError):
        raise Failure(f"fio shows no figures: {output}") from None


@dataclass(frozen=True)
class Fio(Host):
    """fio's NBD engine."""

    export: str
    programs = ("fio",)

    def measure(self, bed, target, port, load, seconds):
        engine = f"--ioengine=nbd --uri=nbd://127.0.0.1:{port}/{self.export}"
        fill = f"--name=fill --rw=write --bs=1m --iodepth=8 --thread --size={VOLUME_BYTES} {engine}"
        run(["fio", *fill.split()], bed.host_core)
        return fio(bed.host_core, engine, load, seconds)


@dataclass(frozen=True)
class FioEngine(Host):
    """fio over `isolane.h`."""

    programs = ("fio", "isolane.so")

    def measure(self, bed, target, port, load, seconds):
        engine = f"--ioengine=external:{bed.program('isolane.so')} --uri=nvme+tcp://127.0.0.1:{port}/{NQN}"
        return fio(bed.host_core, engine, load, seconds)


@dataclass(frozen=True)
class FioFile(Host):
    """fio on the file itself: on the target's core, and on a ring without fixed buffers and registered files."""

    direct: bool
    programs = ("fio",)

    def measure(self, bed, target, port, load, seconds):
        path = shared_file(bed, self.direct)
        return fio(bed.target_core, f"--ioengine=io_uring --direct={int(self.direct)} --filename={path}", load, seconds)


class IscsiPerf(Host):
    """iscsi-perf of libiscsi: random reads over one connection. It reports no round trips; Little's law gives their mean."""

    programs = ("iscsi-perf",)

    def can_carry(self, load):
        return load.rw == "read" and load.connections == 1

    def measure(self, bed, target, port, load, seconds):
        options = f"-m {load.depth} -b {load.block_bytes // 512} -t {-int(-seconds // 1)} -r"
        output = run(["iscsi-perf", *options.split(), f"iscsi://127.0.0.1:{port}/{ISCSI_NAME}/1"], bed.host_core, seconds)
        averages = re.findall(r"iops average (\S+)", output)
        if not averages:
            raise Failure(f"iscsi-perf shows no rate: {output}")
        rate = float(averages[-1])  # the last one is over the whole run
        return {"iops": rate, "mean_us": load.in_flight * 1e6 / rate}
