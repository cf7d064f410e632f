"""Targets: each starts a server, waits until it listens, and yields its process and port."""

import json
import os
import re
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from programs import MEMORY_FILE, NQN, VOLUME_BYTES, Failure, Process, free_port, random_file, run, shared_file, volume_of


class NoTarget:
    programs = ()

    @contextmanager
    def start(self, bed, load):
        yield None, 0


@dataclass(frozen=True)
class Isolane:
    """`isolane serve` with a memory volume, on the target's core or with a reactor on each of both cores."""

    arguments: str
    both_cores: bool = False
    programs = ("isolane",)

    @contextmanager
    def start(self, bed, load):
        cores = bed.both_cores if self.both_cores else bed.target_core
        with serve(bed, [f"mem:{VOLUME_BYTES}"], cores, self.arguments) as (process, port):
            fill(bed, port)
            yield process, port


@dataclass(frozen=True)
class IsolaneMany:
    """`isolane serve` with many memory volumes of 1 MiB: the same number of namespaces in each of the subsystems of a
    file. Only the first subsystem is measured."""

    subsystems: int
    namespaces: int
    programs = ("isolane",)

    @contextmanager
    def start(self, bed, load):
        subsystem = '[[subsystem]]\nnqn = "{}"\nports = ["all"]\nhosts = "any"\n'
        namespaces = "".join(f'[[subsystem.namespace]]\nnsid = {nsid}\nvolume = "mem:1M"\n' for nsid in range(1, self.namespaces + 1))
        names = [NQN, *(f"{NQN}-{number}" for number in range(1, self.subsystems))]
        config = bed.scratch / f"{self.subsystems}-subsystems.toml"
        server = f'server = {{ cores = "{bed.target_core}", mode = "poll" }}\n[[port]]\nname = "all"\nlisten = "127.0.0.1:0"\n'
        config.write_text(server + "".join(subsystem.format(name) + namespaces for name in names))
        options = f"--config {config} --log-level warn".split()
        with Process([bed.program("isolane"), "serve", *options], bed.target_core) as process:
            yield process, listening_port(process)


@dataclass(frozen=True)
class IsolaneStalled:
    """`isolane serve` with 31 memory volumes, and one of another target, which stops unless the volume is healthy."""

    is_stalled: bool
    arguments: str
    programs = ("isolane",)

    @contextmanager
    def start(self, bed, load):
        with serve(bed, ["mem:1M"], bed.host_core, "--mode sleep") as (other, other_port):
            volumes = ["mem:1M"] * 31 + [f"nvme+tcp://127.0.0.1:{other_port}/{NQN}"]
            with serve(bed, volumes, bed.target_core, self.arguments) as (process, port):
                if self.is_stalled:
                    os.kill(other.pid, signal.SIGSTOP)
                try:
                    yield process, port
                finally:
                    os.kill(other.pid, signal.SIGCONT)


@dataclass(frozen=True)
class IsolaneFile:
    direct: bool
    arguments: str = ""
    programs = ("isolane",)

    def start(self, bed, load):
        path = volume_of(shared_file(bed, self.direct))
        volume = f"{path}{'' if self.direct else ',buffered'},block-size=4096"
        return serve(bed, [volume], bed.target_core, f"--mode poll {self.arguments}")


class IsolaneNbd:
    """`isolane export --nbd` with a memory volume."""

    programs = ("isolane",)

    @contextmanager
    def start(self, bed, load):
        options = "--nbd 127.0.0.1:0 --log-level warn".split()
        with Process([bed.program("isolane"), "export", f"mem:{VOLUME_BYTES}", *options], bed.target_core) as process:
            yield process, listening_port(process)


class IsolaneVhost:
    """`isolane export --vhost-user-blk` with a memory volume. Yields its socket as the port."""

    programs = ("isolane",)

    @contextmanager
    def start(self, bed, load):
        socket = bed.scratch / "vhost.sock"
        options = f"--vhost-user-blk {socket} --mode poll --log-level warn".split()
        with Process([bed.program("isolane"), "export", f"mem:{VOLUME_BYTES}", *options], bed.target_core) as process:
            process.wait_for(lambda: "exporting on vhost-user-blk" in process.stdout())
            yield process, socket


@dataclass(frozen=True)
class IsolaneRbd:
    """`isolane serve` with one image of a Ceph cluster for each connection of the load, whose threads run on both cores."""

    arguments: str = ""
    both_cores: bool = True
    programs = ("isolane", "rbd")

    def start(self, bed, load):
        volumes = [f"rbd:{CEPH_POOL}/{image}" for image in ceph_images(bed, load)]
        return serve(bed, volumes, bed.both_cores if self.both_cores else bed.target_core, self.arguments, pinned=False)


CEPH_POOL = "rbd"


def ceph_images(bed, load):
    """Creates the images of a load without librbd's cache, writes them once, and returns their names."""
    names = [f"isolane-bench-{number}" for number in range(1, load.connections + 1)]
    present = run(["rbd", "ls", CEPH_POOL]).split()
    for name in names:
        image = f"{CEPH_POOL}/{name}"
        if name not in present:
            run(["rbd", "create", "--size", f"{CEPH_IMAGE_BYTES}B", image])
            run(["rbd", "config", "image", "set", image, "rbd_cache", "false"])
            run(["rbd", "bench", "--io-type", "write", "--io-size", "4M", "--io-total", CEPH_IMAGE_BYTES, image])
    return names


CEPH_IMAGE_BYTES = 64 << 20  # the OSDs of a test have them in memory


@contextmanager
def serve(bed, volumes, cores, arguments, pinned=True):
    options = f"--listen 127.0.0.1:0 --log-level warn --nqn {NQN} --cores {cores} {arguments}".split()
    pin = bed.target_core if pinned and cores == bed.target_core else None
    with Process([bed.program("isolane"), "serve", *volumes, *options, *bed.serve_arguments], pin) as process:
        yield process, listening_port(process)


def listening_port(process):
    return int(process.wait_for(lambda: re.search(r"^(?:listening|exporting) on \S*:(\d+)$", process.stdout(), re.M))[1])


def fill(bed, port):
    """Writes the whole volume, so that reads find pages of their own instead of the one zero page.

    The rate of first writes varies; runs get longer until one has covered the volume. The queue is deep, so that the
    target also allocates the memory that the requests of every row take.
    """
    for seconds in [0.5, 2.0, 8.0, 32.0]:
        report = bench(bed, port, f"--rw write --bs 1m --depth 64 --time {int(seconds * 1e3)}ms --mode poll", seconds)
        if report["iops"] * seconds * (1 << 20) >= VOLUME_BYTES * 1.1:
            return
    raise Failure("cannot write the whole volume in 32 s")


def bench(bed, port, arguments, seconds, pinned=True):
    """Runs `isolane bench`, and returns its JSON report."""
    return json.loads(run(bench_command(bed, port, arguments), bed.host_core if pinned else None, seconds))


def bench_command(bed, port, arguments, nsid=1):
    uri = f"nvme+tcp://127.0.0.1:{port}/{NQN}?nsid={nsid}"
    return [bed.program("isolane"), "bench", uri, "--log-level", "warn", "--json", "-", *arguments.split()]


@dataclass(frozen=True)
class Spdk:
    """nvmf_tgt with a memory device, on its epoll (posix) or io_uring sockets.

    Zero-copy send is off: over loopback the kernel copies in any case. Without huge pages in the machine, the first
    access to each page takes it from the kernel, so our host writes the device once.
    """

    sockets: str
    programs = ("nvmf_tgt", "isolane")

    @contextmanager
    def start(self, bed, load):
        memory = ("bdev_malloc_create", {"name": "bdev1", "num_blocks": VOLUME_BYTES // 4096, "block_size": 4096})
        with serve_spdk(bed, self.sockets, [memory], 1, spdk_target_mib(load.connections)) as (process, port):
            fill(bed, port)
            yield process, port


@dataclass(frozen=True)
class SpdkRbd:
    """nvmf_tgt with one image of a Ceph cluster for each connection of the load. Its reactor spins on the target's core
    unless the arguments differ; librbd's threads run on both cores."""

    arguments: str = ""
    programs = ("nvmf_tgt", "isolane", "rbd")

    def start(self, bed, load):
        cluster = {"name": "ceph", "user_id": "admin", "config_file": os.environ["CEPH_CONF"]}
        common = {"pool_name": CEPH_POOL, "cluster_name": "ceph", "block_size": 4096}
        images = [{"name": f"bdev{nsid}", "rbd_name": image} for nsid, image in enumerate(ceph_images(bed, load), 1)]
        bdevs = [("bdev_rbd_register_cluster", cluster), *(("bdev_rbd_create", image | common) for image in images)]
        return serve_spdk(bed, "posix", bdevs, len(images), spdk_target_mib(load.connections), self.arguments)


@contextmanager
def serve_spdk(bed, sockets, bdevs, namespaces, size_mib, arguments=""):
    port = free_port()
    config = bed.scratch / f"spdk-{port}.json"
    config.write_text(json.dumps(spdk_config(sockets, port, bdevs, namespaces)))
    options = f"-m [{bed.target_core}] --no-pci --disable-cpumask-locks {spdk_memory(size_mib)} {arguments}"
    command = [bed.program("nvmf_tgt"), *options.split(), "-r", bed.scratch / f"spdk-{port}.sock", "-c", config]
    with Process(command) as process:
        process.wait_for_port(port)
        config.unlink()  # the listener is its last entry
        yield process, port


def spdk_target_mib(connections):
    """Memory of nvmf_tgt: the volume, its pools, and 3 MiB of buffers per connection, or it resets connections."""
    return max(1024, (VOLUME_BYTES >> 20) + 256 + 3 * connections)


def spdk_memory(size_mib):
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free_kib = int(fields.get("HugePages_Free", "0")) * int(fields.get("Hugepagesize", "0").split()[0])
    return f"-s {size_mib}" if free_kib >> 10 >= size_mib else f"-s {size_mib} --no-huge"


def spdk_config(sockets, port, bdevs, namespaces):
    """The configuration of nvmf_tgt: calls that make `bdev1` and so on, and a namespace for each."""
    listen = {"trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": str(port)}
    options = {"impl_name": sockets, "enable_zerocopy_send_server": False, "enable_zerocopy_send_client": False}
    calls = {
        "sock": [("sock_set_default_impl", {"impl_name": sockets}), ("sock_impl_set_options", options)],
        "bdev": bdevs,
        "nvmf": [
            ("nvmf_create_transport", {"trtype": "TCP", "max_queue_depth": 256}),
            ("nvmf_create_subsystem", {"nqn": NQN, "allow_any_host": True}),
            *(
                ("nvmf_subsystem_add_ns", {"nqn": NQN, "namespace": {"bdev_name": f"bdev{nsid}", "nsid": nsid}})
                for nsid in range(1, namespaces + 1)
            ),
            ("nvmf_subsystem_add_listener", {"nqn": NQN, "listen_address": listen}),
        ],
    }
    systems = [
        {"subsystem": name, "config": [{"method": method, "params": params} for method, params in entries]}
        for name, entries in calls.items()
    ]
    return {"subsystems": systems}


class Nbdkit:
    programs = ("nbdkit",)

    @contextmanager
    def start(self, bed, load):
        port = free_port()
        options = f"--foreground --exit-with-parent --ipaddr 127.0.0.1 --port {port} memory {VOLUME_BYTES}"
        with Process(["nbdkit", *options.split()], bed.target_core) as process:
            yield process, process.wait_for_port(port)


class QemuNbd:
    """An export of a file in memory: QEMU has no memory of its own to export that holds data."""

    programs = ("qemu-storage-daemon",)

    @contextmanager
    def start(self, bed, load):
        port = free_port()
        options = f"""--blockdev driver=file,node-name=disk,filename={random_file(MEMORY_FILE)}
            --nbd-server addr.type=inet,addr.host=127.0.0.1,addr.port={port}
            --export type=nbd,id=export,node-name=disk,name=disk,writable=on"""
        with Process(["qemu-storage-daemon", *options.split()], bed.target_core) as process:
            yield process, process.wait_for_port(port)


ISCSI_NAME = "iqn.2026-01.org.isolane:bench"


class Tgt:
    """The iSCSI target tgtd with one disk, a file in memory."""

    programs = ("tgtd", "tgtadm")

    @contextmanager
    def start(self, bed, load):
        port = free_port()
        control = port % 32_000 + 1  # each daemon needs its own
        options = f"-f -C {control} --iscsi portal=127.0.0.1:{port}".split()
        with Process([bed.program("tgtd"), *options], bed.target_core) as process:
            process.wait_for_port(port)
            for command in [
                f"--mode target --op new --tid 1 --targetname {ISCSI_NAME}",
                f"--mode logicalunit --op new --tid 1 --lun 1 --backing-store {random_file(MEMORY_FILE)}",
                "--mode target --op bind --tid 1 --initiator-address ALL",
            ]:
                run([bed.program("tgtadm"), "-C", control, "--lld", "iscsi", *command.split()])
            yield process, port
