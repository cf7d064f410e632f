"""mooncake_rdma.py DEVICE: two processes write and read memory with Mooncake over rdma, and check each byte."""

import ctypes
import sys

from two_processes import run_both

BYTES = 16 << 20


def run(device, pipe, is_target):
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", device) == 0
    pattern = (bytes(range(251)) * (BYTES // 251 + 1))[:BYTES]
    memory = ctypes.create_string_buffer(BYTES)
    address = ctypes.addressof(memory)
    assert engine.register_memory(address, BYTES) == 0
    if is_target:
        pipe.send((f"127.0.0.1:{engine.get_rpc_port()}", address))
        pipe.recv()
        assert memory.raw == pattern, "the written bytes are wrong"
        memory.raw = pattern[::-1]
        pipe.send("changed")
    else:
        peer, remote = pipe.recv()
        memory.raw = pattern
        assert engine.transfer_sync_write(peer, address, remote, BYTES) == 0
        pipe.send("written")
        pipe.recv()
        assert engine.transfer_sync_read(peer, address, remote, BYTES) == 0
        assert memory.raw == pattern[::-1], "the read bytes are wrong"
        print(BYTES, "bytes written and read", flush=True)
    pipe.send("done")
    assert pipe.recv() == "done"


if __name__ == "__main__":
    run_both(run, sys.argv[1], 60)
