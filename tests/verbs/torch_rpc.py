"""torch_rpc.py RANK PORT: two processes of PyTorch send tensors with TensorPipe, whose only transport is ibv."""

import sys

import torch
from torch.distributed import rpc


def add(tensor, number):
    return tensor + number


def main():
    rank, port = int(sys.argv[1]), sys.argv[2]
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://127.0.0.1:{port}", rpc_timeout=60, _transports=["ibv"], _channels=["basic"]
    )
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        for nbytes in (1024, 64 << 20):
            sent = torch.arange(nbytes // 4, dtype=torch.int32)
            assert torch.equal(rpc.rpc_sync("worker1", add, args=(sent, 7)), sent + 7), f"{nbytes} bytes are wrong"
            print(nbytes, "bytes sent and returned", flush=True)
    rpc.shutdown()


main()
