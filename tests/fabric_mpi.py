"""fabric_mpi.py - two or more processes of MPI: messages, a reduction, and one-sided access, each with its result checked.

Needs mpi4py. Each process prints nothing; the first one ends with `ok`.
"""
from array import array

from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
right, left = (rank + 1) % size, (rank - 1) % size


def pattern(length, seed):
    return bytes((index * 7 + seed) % 251 for index in range(min(length, 4096))) * (max(length, 4096) // 4096)


def check(condition, what):
    if not condition:
        print(f"wrong: {what} of rank {rank}", flush=True)
        world.Abort(1)


def messages():
    """Passes messages around a ring, in both orders of posting, across the limit of each protocol."""
    for length in 0, 1, 64, 4096, 1 << 14, 1 << 17, 1 << 20, 1 << 23:
        for turn in range(3):
            sent, received = pattern(length, rank + turn), bytearray(max(length, 4096))
            request = world.Irecv([received, max(length, 4096), MPI.BYTE], left, turn) if turn else None
            sending = world.Isend([sent, length, MPI.BYTE], right, turn)
            status = MPI.Status()
            if request is None:
                world.Recv([received, max(length, 4096), MPI.BYTE], left, turn, status)
            else:
                request.Wait(status)
            sending.Wait()
            check(status.Get_count(MPI.BYTE) == length, f"length {length}")
            check(received[:length] == pattern(length, left + turn)[:length], f"message of {length} bytes")


def reductions():
    for length in 1, 100, 100_000:
        values, sums = array("d", [rank + 1.0] * length), array("d", [0.0] * length)
        world.Allreduce(values, sums)
        check(all(value == size * (size + 1) / 2 for value in sums), f"sum of {length}")


def one_sided():
    length = 1 << 20
    window = MPI.Win.Allocate(length + 64, 1, comm=world)
    memory = memoryview(window)
    memory[:64] = bytes(64)
    window.Fence()
    window.Put([pattern(length, rank), MPI.BYTE], right, 64)
    window.Fence()
    check(bytes(memory[64:]) == pattern(length, left), "put")
    read = bytearray(length)
    window.Get([read, MPI.BYTE], right, 64)
    window.Fence()
    check(bytes(read) == pattern(length, rank), "get")
    one, old = array("q", [1]), array("q", [0])
    window.Lock_all()
    for _ in range(100):
        window.Fetch_and_op([one, MPI.INT64_T], [old, MPI.INT64_T], 0, 0)
    window.Flush_all()
    window.Unlock_all()
    world.Barrier()
    if rank == 0:
        window.Lock(0)
        check(int.from_bytes(memory[:8], "little") == 100 * size, "fetch and add")
        window.Unlock(0)
    world.Barrier()
    window.Free()


messages()
reductions()
one_sided()
world.Barrier()
if rank == 0:
    print("ok", MPI.Get_library_version().splitlines()[0].strip("\0"))
