"""mooncake_rdma.py DEVICE: two processes write and read memory with Mooncake over rdma, and check each byte."""

import ctypes
import multiprocessing
import sys

BYTES = 16 << 20


def run(pipe, is_target, device):
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


def main():
    multiprocessing.set_start_method("spawn")
    pipes = multiprocessing.Pipe()
    ends = [multiprocessing.Process(target=run, args=(pipe, pipe is pipes[0], sys.argv[1])) for pipe in pipes]
    for end in ends:
        end.start()
    for end in ends:
        end.join(60)
        end.kill()
    sys.exit(any(end.exitcode != 0 for end in ends))


if __name__ == "__main__":
    main()
