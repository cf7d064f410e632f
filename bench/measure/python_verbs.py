#!/usr/bin/env python3
"""WRITEs of the Python module relative to `isolane verbs bench`, at the same kind of server.

Run it with the interpreter of an environment that has the wheel. The contenders alternate; each has a new server, which
spins on core 0, and the client spins on core 1. The figure is the number of WRITEs per second. `batch` has the depth in two
batches of half the size.
"""

import argparse
import collections
import json
import pathlib
import struct
import subprocess
import sys
import time

import paired

PROGRAM = pathlib.Path(sys.prefix) / "bin/isolane"
ROWS = [(65536, 1), (65536, 16), (4096, 1), (4096, 16)]


def client(contender, address, size, depth, seconds):
    """Measures in this process. The first messages are those of `isolane verbs bench`."""
    import isolane

    connection = isolane.connect(address)
    answer = bytearray(16)
    offer = connection.start_recv(answer)
    connection.send(struct.pack("<QQ", 0, size))
    offer.wait(10)
    offset, key = struct.unpack("<QQ", answer)
    remote, local = isolane.RemoteMemory(key, size, offset), isolane.register(bytes(size))
    count, begun = 0, time.perf_counter()
    end = begun + seconds
    if depth == 1:
        while time.perf_counter() < end:
            connection.write(local, remote)
            count += 1
    elif contender == "batch":
        parts = [(0, 0, size)] * (depth // 2)
        requests = collections.deque(connection.start_write_batch(local, remote, parts) for _ in range(2))
        while time.perf_counter() < end:
            requests.popleft().wait()
            count += len(parts)
            requests.append(connection.start_write_batch(local, remote, parts))
    else:
        requests = collections.deque(connection.start_write(local, remote) for _ in range(depth))
        while time.perf_counter() < end:
            requests.popleft().wait()
            count += 1
            requests.append(connection.start_write(local, remote))
    return count / (time.perf_counter() - begun)


def measure(contender, size, depth, seconds):
    server = subprocess.Popen(
        [PROGRAM, "verbs", "bench", "--server", "127.0.0.1:0", "--core", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        address = server.stdout.readline().split()[-1]
        if contender != "rust":
            command = [sys.executable, __file__, "--client", contender, address, str(size), str(depth), str(seconds)]
            done = subprocess.run(["taskset", "-c", "1", *command], capture_output=True, text=True, check=True, timeout=60)
            return float(done.stdout)
        command = [PROGRAM, "verbs", "bench", address, "--operation", "write", "--size", str(size), "--depth", str(depth)]
        command += ["--time", f"{seconds}s", "--core", "1", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return json.loads(done.stdout)[0]["operations_per_s"]
    finally:
        server.kill()
        server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", help="file for all samples")
    parser.add_argument("--client", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        contender, address, size, depth, seconds = args.client
        print(client(contender, address, int(size), int(depth), float(seconds)))
        return
    rows = []
    for size, depth in ROWS:
        contenders = ("rust", "python", "batch") if depth > 1 else ("rust", "python")
        rounds = paired.alternate(lambda contender: measure(contender, size, depth, args.seconds), contenders, args.rounds)
        rows.append({"bytes": size, "depth": depth, "rounds": rounds})
        for contender in contenders:
            rate, ratio = paired.ratio(rounds, contender, "rust")
            print(f"WRITE {size} B, depth {depth}, {contender}: {rate:.0f}/s, {ratio}")
    if args.json:
        paired.save(args.json, "WRITEs per second over loopback", PROGRAM, rows)


main()
