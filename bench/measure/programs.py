"""Child processes, pinned to a core and limited in time, and the testbed that they run on."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

VOLUME_BYTES = 256 << 20  # served by every target, the floor's working set
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 3.0
POLL_INTERVAL_S = 0.02  # too rare to disturb a measurement
NQN = "nqn.2014-08.org.nvmexpress:uuid:be7c4000-0000-4000-8000-000000000001"
MEMORY_FILE = Path("/dev/shm/isolane-bench.img")


class Failure(Exception):
    """A program that cannot run, fails, or takes too long."""


class Process:
    """A child that the kernel kills with this program (`setpriv`). Its output goes to files, so that no pipe fills up."""

    def __init__(self, command, core=None):
        command = [str(part) for part in command]
        self.name = Path(command[0]).name
        self.output, self.log = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        pin = ["taskset", "-c", str(core)] if core is not None else []
        wrapped = ["setpriv", "--pdeathsig", "KILL", "--", *pin, *command]
        self.child = subprocess.Popen(wrapped, stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.terminate()
        try:
            self.child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()

    @property
    def pid(self):
        return self.child.pid

    def stdout(self):
        return read(self.output)

    def wait_for(self, ready, timeout_s=START_TIMEOUT_S):
        """Polls `ready` until it returns a value, and returns that."""
        deadline = time.monotonic() + timeout_s
        while True:
            status = self.child.poll()
            if found := ready():
                return found
            if status is not None:
                raise self.failure(f"ended with status {status}")
            if time.monotonic() > deadline:
                raise self.failure("was not ready in time")
            time.sleep(POLL_INTERVAL_S)

    def wait_for_port(self, port):
        def connects():
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", port)) == 0

        self.wait_for(connects)
        return port

    def finish(self, timeout_s):
        """Waits for the end, and returns the output."""
        with self:
            try:
                status = self.child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                raise self.failure("did not end in time") from None
        if status != 0:
            raise self.failure(f"ended with status {status}")
        return self.stdout()

    def failure(self, reason):
        return Failure(f"{self.name} {reason}: {read(self.log)[-1000:].strip()}")


def read(file):
    return os.pread(file.fileno(), 1 << 24, 0).decode(errors="replace")


def run(command, core=None, seconds=0.0):
    """Runs a program that measures for `seconds`, and returns its output."""
    return Process(command, core).finish(START_TIMEOUT_S + 2 * seconds)


def find(program):
    """Returns the path of a program; daemons are not on every user's path."""
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


class Testbed:
    """Where the programs are, and the cores that they run on."""

    def __init__(self, options):
        self.options = options
        self.built = Path(os.environ.get("XTASK_PROGRAMS", "target/release"))
        self.spdk = options.spdk or os.environ.get("SPDK_DIR")
        self.target_core, self.host_core = options.target_core, options.host_core
        self.both_cores = f"{self.target_core},{self.host_core}"
        self.scratch = Path(options.scratch)
        self.serve_arguments, self.bench_arguments = options.serve_arguments.split(), options.bench_arguments.split()

    def program(self, name):
        """Returns the path of a program: given, built here, in the tree of SPDK, or installed."""
        if name == "isolane.so":
            return os.environ.get("ISOLANE_FIO_ENGINE", name)
        if name in BUILT:
            return vars(self.options).get(name.replace("-", "_")) or self.built / name
        if name in SPDK and self.spdk:
            return Path(self.spdk) / "build/bin" / name
        return find(name) or name

    def missing(self, contender):
        """Returns what a contender lacks on this machine and how to get it, or None."""
        for name in ["setpriv", "taskset", *contender.target.programs, *contender.host.programs]:
            if not find(program := str(self.program(name))):
                return f"{program} is missing: {REMEDIES.get(name, 'install the package of that name')}"
            if name == "rbd" and not Path(os.environ.get("CEPH_CONF", "/etc/ceph/ceph.conf")).exists():
                return "no Ceph cluster: tests/with-ceph.sh COMMAND runs a command beside one"
        return None


BUILT = ["isolane", "floor", "verbs-floor", "minimal-host", "streams", "vhost-load"]
SPDK = ["nvmf_tgt", "spdk_nvme_perf"]
REMEDIES = {
    **dict.fromkeys(BUILT, "cargo build --release -p isolane-cli -p isolane-bench"),
    **dict.fromkeys(SPDK, "build SPDK (./configure --with-uring --with-rbd && make) and name its directory with --spdk or SPDK_DIR"),
    **dict.fromkeys(["tgtd", "tgtadm"], "install the package tgt"),
    "rbd": "install the package ceph-common",
    "isolane.so": "compile crates/isolane-capi/fio/isolane.c as its comment says, and name it in ISOLANE_FIO_ENGINE",
    "iscsi-perf": "install the package libiscsi-bin",
    "qemu-storage-daemon": "install the package qemu-utils or qemu-system-common",
    **dict.fromkeys(["setpriv", "taskset"], "install the package util-linux"),
}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def random_file(path):
    """Creates a file of the volume's size without holes, unless it exists."""
    if not path.exists() or path.stat().st_blocks * 512 < VOLUME_BYTES:
        with open(path, "wb") as file:
            for _ in range(VOLUME_BYTES >> 20):
                file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
    return path


def volume_of(path):
    """Returns the text of a file volume, in which each comma of the path is doubled."""
    return str(path).replace(",", ",,")


def shared_file(bed, direct):
    """The file of the rows about files, in the page cache unless it is opened with O_DIRECT."""
    path = random_file(bed.scratch / "isolane-bench.img")
    if not direct:
        path.read_bytes()
    return path


def core_percent(pid, seconds):
    """Waits for `seconds`, and returns the share of a core that a process used."""

    def ticks():
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(seconds)
    return (ticks() - before) * 100 / (os.sysconf("SC_CLK_TCK") * seconds)


def resident_kib(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise Failure(f"process {pid} reports no memory")
