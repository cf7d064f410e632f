#!/usr/bin/env python3
"""READs of Mooncake's transfer engine and of NIXL over Isolane, relative to the same programs over their TCP.

Run it with the interpreter of an environment that has PyPI's mooncake-transfer-engine-non-cuda, nixl-cu12, and numpy. The
contenders alternate. All processes may use all cores, because their threads spin. The figure is the number of blocks
per second.
"""

import argparse
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

import paired

# Name, bytes of a block, blocks of a batch, and workers of Mooncake: 0 is its default, two in each process.
ROWS = [
    ("mooncake", 4096, 128, 1),
    ("mooncake", 4096, 128, 0),
    ("mooncake", 1 << 20, 16, 1),
    ("mooncake", 1 << 20, 16, 0),
    ("nixl", 65536, 64, 0),
]
START_S = 60


def started(command, environment, log):
    return subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log, start_new_session=True)


def stop(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def output_of(command, environment, seconds):
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True,
                          timeout=START_S + seconds)
    return done.stdout + done.stderr


def mooncake(isolane, contender, size, blocks, workers, seconds, folder):
    import mooncake

    program = next(pathlib.Path(path, "transfer_engine_bench") for path in mooncake.__path__)
    environment = {"MC_GID_INDEX": "0", **({"MC_WORKERS_PER_CTX": str(workers)} if workers else {})}
    protocol, wrapped = ("rdma", [isolane, "verbs", "run", "--"]) if contender == "isolane" else ("tcp", [])
    common = [*wrapped, program, "-metadata_server=P2PHANDSHAKE", f"-protocol={protocol}", "-device_name=isolane0"]
    common += ["-buffer_size=134217728", "-threads=1", f"-batch_size={blocks}", f"-block_size={size}"]
    log_path = folder / "target.log"
    with open(log_path, "w") as log:
        target = started([*common, "-mode=target", "-local_server_name=127.0.0.1:12345"], environment, log)
    try:
        deadline = time.monotonic() + START_S
        while not (found := re.search(r"listening on ([0-9.:]+)", log_path.read_text())):
            if time.monotonic() > deadline or target.poll() is not None:
                sys.exit(f"the target does not listen: {log_path.read_text()[-400:]}")
            time.sleep(0.1)
        command = [*common, "-mode=initiator", "-local_server_name=127.0.0.1:12346", f"-segment_id={found[1]}"]
        text = output_of([*command, "-operation=read", f"-duration={seconds}"], environment, seconds)
        done = re.search(r"duration ([0-9.]+), batch count (\d+)", text)
        if not done:
            sys.exit(f"transfer_engine_bench reports no result: {text[-400:]}")
        return int(done[2]) * blocks / float(done[1])
    finally:
        stop(target)


def nixl(isolane, contender, size, blocks, _, seconds, folder):
    environment, wrapped = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}, []
    if contender == "isolane":
        environment = {"UCX_TLS": "rc_v,ud_v,self", "UCX_NET_DEVICES": "isolane0:1"}
        wrapped = [isolane, "verbs", "run", "--"]
    environment |= {"NIXL_UCX_DEEPBIND": "0", "NIXL_LOG_LEVEL": "FATAL", "UCX_LOG_LEVEL": "fatal"}
    command = [*wrapped, sys.executable, __file__, "--nixl"]
    path = folder / "socket"
    path.unlink(missing_ok=True)
    with open(folder / "target.log", "w") as log:
        target = started([*command, "target", path, str(size), str(blocks), "0"], environment, log)
    try:
        text = output_of([*command, "initiator", path, str(size), str(blocks), str(seconds)], environment, seconds)
        done = re.search(r"blocks per second: ([0-9.]+)", text)
        if not done:
            sys.exit(f"NIXL reports no result: {text[-400:]}")
        return float(done[1])
    finally:
        stop(target)


def nixl_process(role, path, size, blocks, seconds):
    """One of the two processes: the initiator reads all blocks of the target again and again."""
    import numpy
    from nixl_cu12._api import nixl_agent, nixl_agent_config

    expected = numpy.arange(size * blocks, dtype=numpy.uint64).astype(numpy.uint8) ^ 0x5A
    memory = expected.copy() if role == "target" else numpy.zeros_like(expected)
    agent = nixl_agent(role, nixl_agent_config(backends=["UCX"]))
    agent.register_memory([(memory.ctypes.data, memory.size, 0, "")], "DRAM")
    blocks_at = lambda start: agent.get_xfer_descs([(start + at * size, size, 0) for at in range(blocks)], "DRAM")
    stream = socket.socket(socket.AF_UNIX)
    if role == "target":
        stream.bind(path)
        stream.listen(1)
        peer, _ = stream.accept()
        metadata = agent.get_agent_metadata()
        peer.sendall(struct.pack("<IQ", len(metadata), memory.ctypes.data) + metadata)
        peer.recv(1)
        return
    deadline = time.monotonic() + START_S
    while stream.connect_ex(path) != 0 and time.monotonic() < deadline:
        stream = socket.socket(socket.AF_UNIX)
        time.sleep(0.1)
    with stream.makefile("rb") as offer:
        length, start = struct.unpack("<IQ", offer.read(12))
        target = agent.add_remote_agent(offer.read(length))
    transfer = agent.initialize_xfer("READ", blocks_at(memory.ctypes.data), blocks_at(start), target)

    def read():
        state = agent.transfer(transfer)
        while state != "DONE":
            if state == "ERR":
                sys.exit("a READ has failed")
            state = agent.check_xfer_state(transfer)

    read()
    if not (memory == expected).all():
        sys.exit("NIXL has read wrong bytes")
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        read()
        count += blocks
    print(f"blocks per second: {count / (time.perf_counter() - begun)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("isolane", nargs="?", help="the program isolane")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--json", help="file for all samples")
    parser.add_argument("--nixl", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.nixl:
        role, path, size, blocks, seconds = args.nixl
        return nixl_process(role, path, int(size), int(blocks), float(seconds))
    rows = []
    for name, size, blocks, workers in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            measure = lambda contender: globals()[name](
                args.isolane, contender, size, blocks, workers, args.seconds, pathlib.Path(folder))
            rounds = paired.alternate(measure, ("tcp", "isolane"), args.rounds)
        rows.append({"program": name, "bytes": size, "blocks": blocks, "workers": workers, "rounds": rounds})
        tcp, _ = paired.ratio(rounds, "tcp", "tcp")
        isolane, ratio = paired.ratio(rounds, "isolane", "tcp")
        print(f"{name} READ {size} B, {blocks} in a batch, {workers or 'default'} workers: tcp {tcp:.0f}/s, isolane "
              f"{isolane:.0f}/s, {ratio}", flush=True)
    if args.json:
        paired.save(args.json, "blocks read per second over loopback", args.isolane, rows)


main()
