#!/usr/bin/env python3
"""The Python module, as its wheel installs it: run by tests/wheel.sh with the interpreter of that environment.

Prints a line for each check, `ok NAME` or `not ok NAME`. Needs numpy; uses torch if it is installed.
"""

import ast
import asyncio
import errno
import gc
import importlib.util
import inspect
import mmap
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import traceback

import numpy

import isolane
from isolane import _isolane

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = pathlib.Path(sys.prefix) / "bin/isolane"
TIMEOUT = 20


class Pair:
    """Two connected ends."""

    def __enter__(self):
        self.listener = isolane.listen()
        ends = []
        thread = threading.Thread(target=lambda: ends.append(self.listener.accept(TIMEOUT)))
        thread.start()
        self.client = isolane.connect(self.listener.address)
        thread.join()
        [self.server] = ends
        return self

    def __exit__(self, *_exception):
        for end in (self.client, self.server, self.listener):
            end.close()


class OnlyDlpack:
    """A tensor as of torch: DLPack without the buffer protocol."""

    def __init__(self, array, device=1):
        self.array, self.device = array, device

    def __dlpack_device__(self):
        return (self.device, 0)

    def __dlpack__(self, **_options):
        return self.array.__dlpack__()


class AsTorch(OnlyDlpack):
    """A tensor that only an array keeps in its place, as of torch."""

    def __dlpack__(self, **_options):
        raise AssertionError("a capsule lets the tensor be resized")

    def detach(self):
        return self

    def numpy(self):
        return self.array


def raises(kind, *words):
    """Context that expects an exception whose text has the words."""

    class Expect:
        def __enter__(self):
            return self

        def __exit__(self, found, value, _trace):
            assert found is not None, f"no {kind.__name__}"
            if not issubclass(found, kind):
                return False
            self.value = value
            missing = [word for word in words if word not in str(value)]
            assert not missing, f"{value} lacks {missing}"
            return True

    return Expect()


def writes_and_reads():
    sources = [numpy.arange(65536, dtype=numpy.float64), b"b" * 5000, memoryview(b"m" * 300), b"short", b""]
    mapped = mmap.mmap(-1, 8192)
    mapped[:] = bytes(range(256)) * 32
    with Pair() as pair:
        target = numpy.zeros(1 << 19, numpy.uint8)
        memory = isolane.register(target)
        for source in [*sources, mapped]:
            data = bytes(memoryview(source).cast("B") if len(source) else b"")
            pair.client.write(source, memory.remote, 0, timeout=TIMEOUT)
            assert target[: len(data)].tobytes() == data
            back = bytearray(len(data))
            pair.client.read(back, memory.remote, 0, timeout=TIMEOUT)
            assert back == data
        pair.client.write(b"slice", memory.remote[100:200], 7)
        assert target[107:112].tobytes() == b"slice"
        registered = isolane.register(bytearray(b"0123456789"))
        pair.client.write(registered[2:5], memory.remote)
        assert target[:3].tobytes() == b"234"


def tensors_of_dlpack():
    with Pair() as pair:
        source, target = numpy.arange(3000, dtype=numpy.int32), numpy.zeros((3, 1000), numpy.int32)
        memory = isolane.register(OnlyDlpack(target))
        pair.client.write(OnlyDlpack(source.reshape(3, 1000)), memory.remote, timeout=TIMEOUT)
        assert (target.ravel() == source).all()
        assert pair.client.write(OnlyDlpack(numpy.zeros((3, 0, 2))), memory.remote) is None
        with raises(BufferError, "contiguous"):
            isolane.register(OnlyDlpack(numpy.zeros((10, 10))[:, :5]))
        with raises(BufferError, "type 2", "CPU"):
            isolane.register(OnlyDlpack(source, device=2))
        memory.close()
        memory = isolane.register(AsTorch(target))
        pair.client.write(AsTorch(numpy.negative(source)), memory.remote, timeout=TIMEOUT)
        assert (target.ravel() == -source).all()
        target[:] = source.reshape(3, 1000)
        if importlib.util.find_spec("torch"):
            import torch

            tensor = torch.zeros(3000, dtype=torch.int32)
            pair.client.read(tensor, memory.remote, timeout=TIMEOUT)
            assert (tensor.numpy() == source).all()


def messages_and_notifications():
    with Pair() as pair:
        buffer = bytearray(1 << 16)
        memory = isolane.register(buffer)
        small, large = pair.server.start_recv(bytearray(10)), pair.server.start_recv(buffer)
        pair.client.send(b"hello", immediate=0xFFFFFFFF, timeout=TIMEOUT)
        pair.client.send(b"x" * 60000, timeout=TIMEOUT)
        first, second = isolane.wait([small, large], TIMEOUT)
        assert (first.nbytes, first.immediate) == (5, 0xFFFFFFFF)
        assert (second.nbytes, second.immediate) == (60000, None) and buffer[:60000] == b"x" * 60000
        notice = pair.server.start_recv()
        assert not notice.done
        pair.client.write(b"noticed", memory.remote, immediate=3)
        received = notice.wait(TIMEOUT)
        assert (received.nbytes, received.immediate, buffer[:7]) == (7, 3, b"noticed")


def batches():
    with Pair() as pair:
        target = numpy.zeros(1000 * 1024, numpy.uint8)
        memory, rows = isolane.register(target), numpy.repeat(numpy.arange(1000) % 251, 1024).astype(numpy.uint8)
        local = isolane.register(rows)
        requests = [
            pair.client.start_write(local[at * 1024 : (at + 1) * 1024], memory.remote, at * 1024) for at in range(1000)
        ]
        assert isolane.wait(requests, TIMEOUT) == [None] * 1000 and (target == rows).all()
        # A receive beyond the limit is an error, because only the peer ends the wait.
        receives = [pair.server.start_recv() for _ in range(256)]
        with raises(isolane.Error, "256 receives"):
            pair.server.start_recv()
        del receives


def batches_in_one_call():
    with Pair() as pair:
        target, source = bytearray(1000 * 96), bytes(at % 251 for at in range(1000 * 96))
        memory, local = isolane.register(target), isolane.register(source)
        # More parts than can be in flight, in the reverse order.
        parts = [(at * 96, (999 - at) * 96, 96) for at in range(1000)]
        wanted = b"".join(source[at * 96 :][:96] for at in reversed(range(1000)))
        pair.client.write_batch(local, memory.remote, parts, timeout=TIMEOUT)
        assert target == wanted
        back = bytearray(len(target))
        pair.client.read_batch(back, memory.remote, numpy.array(parts)[:, [1, 0, 2]], timeout=TIMEOUT)
        assert back == b"".join(wanted[at * 96 :][:96] for at in reversed(range(1000))) == source
        # One notification, once all parts are there.
        target[:] = bytes(len(target))
        requests = [pair.client.start_write_batch(source, memory.remote, parts, immediate=3)]
        notice = pair.server.recv(timeout=TIMEOUT)
        assert (notice.nbytes, notice.immediate) == (96, 3) and target == wanted
        # Slices have their own offsets, and a batch that the program forgets is completed.
        pair.client.start_write_batch(local[96:], memory.remote[10:], [[1, 5, 2], (4, 7, 1)])
        requests.append(pair.client.start_write_batch(b"", memory.remote, []))
        assert isolane.wait(requests, TIMEOUT) == [None, None] and all(request.done for request in requests)
        pair.client.write(b"x", memory.remote)
        assert target[15:18] == source[97:99] + source[100:101]
        for wrong, error, word in (
            ([(0, 0, 1), (95, 0, 2)], ValueError, "part 1 of the batch: 2 bytes at offset 95 exceed the 96 bytes"),
            ([(0, 95_999, 2)], ValueError, "part 0 of the batch: 2 bytes at offset 95999 exceed the 96000 bytes"),
            ([(2**64 - 1, 0, 2)], ValueError, "exceed"),
            ([(0, 0, 1), (0, -1, 2)], TypeError, "part 1 of the batch: pass (offset in local"),
            ([(0, 0)], TypeError, "part 0"),
            ([3], TypeError, "part 0"),
            (numpy.zeros((2, 4), int), TypeError, "part 0"),
            (iter([(0, 0, 1)]), TypeError, "len"),
            (range(1 << 45), TypeError, "part 0"),
        ):
            with raises(error, word):
                pair.client.write_batch(local[:96], memory.remote, wrong)
        with raises(ValueError, "without parts"):
            pair.client.write_batch(local, memory.remote, [], immediate=1)
        with raises(ValueError, "read-only"):
            pair.client.read_batch(local, memory.remote, parts)
        # The second part fails, and so does the batch, with all parts after it.
        beyond = isolane.RemoteMemory(memory.remote.rkey, 1 << 40)
        with raises(isolane.AccessError, "write of 287904 bytes", "remote access error"):
            bad = [(0, 0, 96), (0, 1 << 30, 96)] + [(0, 0, 96)] * 2997
            pair.client.write_batch(local, beyond, bad, timeout=TIMEOUT)
        with raises(isolane.ConnectionLost, "earlier failure"):
            pair.client.write_batch(local, memory.remote, parts)
    with raises(isolane.ConnectionLost, "closed"):
        pair.client.write_batch(local, memory.remote, parts)


def atomic_operations():
    counters = numpy.zeros(4, numpy.uint64)
    memory = isolane.register(counters)
    with Pair() as first, Pair() as second:
        assert first.client.fetch_add(memory.remote, 5, 8, timeout=TIMEOUT) == 0
        assert second.client.fetch_add(memory.remote[8:], 5) == 5 and counters[1] == 10
        assert first.client.compare_swap(memory.remote, 10, 99, 8) == 10 and counters[1] == 99
        assert first.client.compare_swap(memory.remote, 10, 7, 8, timeout=TIMEOUT) == 99 and counters[1] == 99
        assert first.client.start_fetch_add(memory.remote, 2**64 - 1, 8).wait(TIMEOUT) == 99 and counters[1] == 98
        assert first.client.start_compare_swap(memory.remote, 98, 2**64 - 1, 8).wait(TIMEOUT) == 98
        assert counters[1] == 2**64 - 1

        def add(client):
            return [client.fetch_add(memory.remote, 1, timeout=TIMEOUT) for _ in range(200)]

        found = []
        threads = [threading.Thread(target=lambda pair=pair: found.extend(add(pair.client))) for pair in (first, second)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert sorted(found) == list(range(400)) and counters[0] == 400

        async def main():
            return await asyncio.gather(*[first.client.start_fetch_add(memory.remote, 1, 16) for _ in range(50)])

        assert sorted(asyncio.run(main())) == list(range(50)) and counters[2] == 50
        with raises(ValueError, "exceed"):
            first.client.fetch_add(memory.remote, 1, 25)
        with raises(ValueError, "multiple of 8"):
            first.client.fetch_add(memory.remote, 1, 4)
        with raises(OverflowError):
            first.client.compare_swap(memory.remote, -1, 0)
        odd = isolane.register(memoryview(bytearray(17))[1:])
        with raises(isolane.Error, "atomic operation of 8 bytes", "no multiple of 8 bytes"):
            first.client.fetch_add(odd.remote, 1, timeout=TIMEOUT)
        with raises(isolane.AccessError):
            second.client.fetch_add(isolane.register(counters, remote_write=False).remote, 1, timeout=TIMEOUT)


def event_loop():
    async def run():
        with Pair() as pair:
            receives = [pair.server.start_recv(bytearray(4)) for _ in range(50)]

            async def send():
                for at in range(50):
                    await pair.client.start_send(b"data", immediate=at)

            received, _ = await asyncio.wait_for(asyncio.gather(asyncio.gather(*receives), send()), TIMEOUT)
            assert [one.immediate for one in received] == list(range(50))
            waiting = asyncio.ensure_future(wait_for(pair.server.start_recv()))
            await asyncio.sleep(0)
            waiting.cancel()
            late = asyncio.ensure_future(wait_for(pair.server.start_recv()))
            await asyncio.sleep(0)
            pair.client.close()
            with raises(isolane.ConnectionLost):
                await asyncio.wait_for(late, TIMEOUT)

    async def wait_for(request):
        return await request

    asyncio.run(run())


def threads_share_a_connection():
    with Pair() as pair:
        target = numpy.zeros(8 * 4096, numpy.uint8)
        memory = isolane.register(target)
        failures = []

        def work(at):
            try:
                for value in range(200):
                    data = bytes([value]) * 4096
                    pair.client.write(data, memory.remote, at * 4096, timeout=TIMEOUT)
                    back = bytearray(4096)
                    pair.client.read(back, memory.remote, at * 4096, timeout=TIMEOUT)
                    assert back == data
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not failures, failures


def waits_without_the_lock():
    with Pair() as pair:
        ticks, stop = [0], threading.Event()

        def count():
            while not stop.is_set():
                ticks[0] += 1
                if ticks[0] > 1000:
                    pair.client.send(b"now")
                    return

        thread = threading.Thread(target=count)
        thread.start()
        # The other thread sends only after it has run 1000 times.
        assert pair.server.recv(bytearray(3), timeout=TIMEOUT).nbytes == 3
        stop.set()
        thread.join()


def signals_end_a_wait():
    with Pair() as pair:

        def interrupt(_signal, _frame):
            raise KeyboardInterrupt

        old = signal.signal(signal.SIGUSR1, interrupt)
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        with raises(KeyboardInterrupt):
            pair.server.recv()
        signal.signal(signal.SIGUSR1, old)


def timeout_keeps_the_request():
    with Pair() as pair:
        buffer = bytearray(5)
        with raises(isolane.Timeout, "in flight") as late:
            pair.server.recv(buffer, timeout=0.05)
        pair.client.send(b"later", timeout=TIMEOUT)
        assert late.value.request.wait(TIMEOUT).nbytes == 5 and buffer == b"later"
        with raises(TimeoutError):
            pair.listener.accept(timeout=0.05)


def timeout_ends_posting():
    process, line = started(PROGRAM, "verbs", "serve", "127.0.0.1:0", "--bytes", "3M")
    try:
        _, address, key, _ = re.fullmatch(r"(listening on) (\S+), rkey (\S+), (\d+) bytes\n", line).groups()
        remote = isolane.RemoteMemory(int(key, 16), 3 << 20)
        connection = isolane.connect(address)
        connection.write(b"before", remote, timeout=TIMEOUT)
        os.kill(process.pid, signal.SIGSTOP)
        local = isolane.register(bytearray(1 << 20))
        with raises(isolane.Timeout, "not posted", "256 requests"):
            connection.write_batch(local, remote, [(0, 0, 1 << 20)] * 1000, timeout=0.2)
        with raises(isolane.Timeout, "not posted", "256 requests"):
            connection.write(local, remote, timeout=0.2)
        os.kill(process.pid, signal.SIGCONT)
        connection.write(b"after", remote, timeout=TIMEOUT)
        connection.close()
    finally:
        process.kill()
        process.wait()


def memory_stays_exported():
    data = bytearray(5000)
    memory = isolane.register(data)
    part = memory[10:20]
    with raises(BufferError):
        data.extend(b"more")
    memory.close()
    with raises(isolane.Error, "closed"):
        memory.remote
    with raises(BufferError):
        data.extend(b"more")
    part.close()
    data.extend(b"more")
    with Pair() as pair:
        request = pair.server.start_recv(data)
        with raises(BufferError):
            data.extend(b"more")
        del request
        gc.collect()
        with raises(BufferError):
            data.extend(b"more")
        pair.client.send(b"end", timeout=TIMEOUT)
        pair.server.close()
        data.extend(b"more")
        assert data[:3] == b"end"


def rights_and_keys():
    read_only, private = isolane.register(bytes(5000)), isolane.register(bytearray(5000), remote_read=False)
    gone = isolane.register(bytearray(5000))
    remote = gone.remote
    gone.close()
    for use in (
        lambda client: client.write(b"x", read_only.remote),
        lambda client: client.read(bytearray(1), private.remote),
        lambda client: client.write(b"x", remote),
        lambda client: client.write(b"x", isolane.RemoteMemory(private.remote.rkey, 1 << 40), 5000),
    ):
        with Pair() as pair:
            with raises(isolane.AccessError, "remote access error", "register()"):
                use(pair.client)
            with raises(isolane.ConnectionLost, "earlier failure", "remote access error"):
                pair.client.write(b"x", private.remote)
    with Pair() as pair:
        with raises(ValueError, "exceed"):
            pair.client.write(bytes(5000), private.remote, 1)
        with raises(BufferError, "read-only"):
            pair.client.read(bytes(10), private.remote)
        with raises(ValueError, "another device"):
            pair.client.write(isolane.Device().register(bytearray(9)), private.remote)
        pair.client.write(b"works", private.remote, timeout=TIMEOUT)


def peers_that_go():
    with Pair() as pair:
        waiting = pair.server.start_recv(bytearray(10))
        pair.client.close()
        with raises(isolane.ConnectionLost, "connect again"):
            waiting.wait(TIMEOUT)
        with raises(isolane.ConnectionLost, "closed"):
            pair.client.send(b"x")
    with raises(isolane.ConnectionLost, "127.0.0.1:1", "listener"):
        isolane.connect("127.0.0.1:1")
    with raises(ValueError, "HOST:PORT"):
        isolane.connect("nowhere")
    with Pair() as pair:
        short = pair.server.start_recv(bytearray(3))
        with raises(isolane.Error, "too short"):
            pair.client.send(b"longer", timeout=TIMEOUT)
        with raises(isolane.Error, "longer than the buffer"):
            short.wait(TIMEOUT)


def children_of_fork():
    with Pair() as pair:
        memory = isolane.register(bytearray(5000))
        waiting = pair.server.start_recv(bytearray(10))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for use in (
                    lambda: pair.client.send(b"x"), lambda: pair.client.write(b"x" * 5000, memory.remote),
                    lambda: waiting.done, lambda: waiting.wait(1), lambda: pair.listener.accept(1),
                ):
                    with raises(isolane.Error, "parent of this process"):
                        use()
                pair.client.close()
                with Pair() as own:
                    target = isolane.register(bytearray(9))
                    own.client.write(b"child", target.remote, timeout=TIMEOUT)
                pair.client = pair.server = pair.listener = memory = waiting = None
                gc.collect()
                status = 0
            except BaseException:
                traceback.print_exc(file=sys.stdout)
                sys.stdout.flush()
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        pair.client.write(b"x" * 5000, memory.remote, timeout=TIMEOUT)
        pair.client.send(b"parent", timeout=TIMEOUT)
        assert waiting.wait(TIMEOUT).nbytes == 6


def shared_keys():
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([PROGRAM, "key", "gen", f"{directory}/key"], check=True, stdout=subprocess.DEVNULL)
        os.environ["ISOLANE_VERBS_KEY"] = f"{directory}/key"
        try:
            with_key, peer = isolane.Device(), isolane.Device()
            os.environ["ISOLANE_VERBS_KEY"] = f"{directory}/missing"
            with raises(isolane.Error, "ISOLANE_VERBS_KEY", "missing"):
                isolane.Device()
        finally:
            del os.environ["ISOLANE_VERBS_KEY"]
        with with_key.listen() as listener:
            with raises(isolane.ConnectionLost, "cannot connect"):
                isolane.Device().connect(listener.address)
            accepted = []
            thread = threading.Thread(target=lambda: accepted.append(listener.accept(TIMEOUT)))
            thread.start()
            with peer.connect(listener.address) as connection:
                thread.join()
                receive = accepted[0].start_recv(bytearray(3))
                connection.send(b"key", timeout=TIMEOUT)
                assert receive.wait(TIMEOUT).nbytes == 3


def descriptions_survive_packing():
    remote = isolane.RemoteMemory(0x12345678, 1 << 40, 1 << 33)
    assert isolane.RemoteMemory.unpack(remote.pack()) == remote
    part = remote[16:48]
    assert (part.nbytes, part.offset - remote.offset, part.rkey) == (32, 16, remote.rkey)
    with raises(ValueError, "20"):
        isolane.RemoteMemory.unpack(b"short")
    with raises(IndexError, "step"):
        remote[::2]
    with raises(ValueError, "64 bits"):
        isolane.RemoteMemory(1, 2**64 - 1, 1)


def volumes():
    with tempfile.TemporaryDirectory() as directory:
        data = numpy.random.default_rng(1).integers(0, 256, 40 << 20, numpy.uint8)
        for uri in ("mem:64M", f"{directory}/disk.img,size=64M", sys.argv[1]):
            with isolane.open(uri) as volume:
                assert volume.nbytes == 64 << 20 and not volume.read_only, volume
                volume.write_from(data, 8192)
                volume.flush()
                back = numpy.zeros_like(data)
                volume.read_into(back, 8192)
                assert (back == data).all()
                parts = [bytearray(4096) for _ in range(300)]
                volume.read_many((part, 8192 + 4096 * at) for at, part in enumerate(parts))
                assert b"".join(parts) == data[: 300 * 4096].tobytes()
                asyncio.run(tasks(volume, data))
                threads = [threading.Thread(target=volume.read_into, args=(bytearray(1 << 20), 0)) for _ in range(4)]
                [thread.start() for thread in threads]
                [thread.join() for thread in threads]
                with raises(isolane.VolumeError, "block size") as wrong:
                    volume.read_into(bytearray(100))
                assert wrong.value.errno == errno.EINVAL
            with raises(isolane.VolumeError, "closed"):
                volume.flush()
    with raises(isolane.VolumeError, "/no/such/file") as missing:
        isolane.open("/no/such/file")
    assert missing.value.errno == errno.ENOENT
    with isolane.open("mem:1M", read_only=True) as volume, raises(isolane.VolumeError, "read-only"):
        volume.write_from(bytes(4096))


def closing_a_volume():
    async def run():
        volume = isolane.open("delay:50ms:mem:1M")
        reading = asyncio.ensure_future(volume.read_into_async(bytearray(4096)))
        await asyncio.sleep(0)
        volume.close()
        with raises(isolane.VolumeError, "closed during the call"):
            await asyncio.wait_for(reading, TIMEOUT)

    asyncio.run(run())
    volume = isolane.open("delay:2s:mem:1M")
    thread = threading.Thread(target=volume.read_into, args=(bytearray(4096),))
    thread.start()
    while not any(queue.is_busy for queue in volume._queues):
        pass
    with raises(isolane.VolumeError, "in progress") as busy:
        volume.close()
    assert busy.value.errno == errno.EBUSY
    thread.join()
    volume.close()
    code = "import isolane; v = isolane.open('mem:1M'); c = isolane.listen(); m = isolane.register(bytearray(9))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0 and not done.stderr, done


async def tasks(volume, data):
    parts = [bytearray(4096) for _ in range(300)]
    await asyncio.gather(*[volume.read_into_async(part, 8192 + 4096 * at) for at, part in enumerate(parts)])
    assert b"".join(parts) == data[: 300 * 4096].tobytes()
    await volume.write_from_async(b"a" * 4096, 0)
    await volume.flush_async()
    with raises(isolane.VolumeError, "block size"):
        await volume.write_from_async(b"a" * 100, 0)


def hints_match_the_module():
    stub = ast.parse((pathlib.Path(isolane.__file__).parent / "_isolane.pyi").read_text())
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    exported = {name for name, value in vars(_isolane).items() if inspect.isclass(value)}
    assert exported == set(classes), exported ^ set(classes)
    inherited = {"__new__", "__init__", "__hash__", "__repr__", "__doc__", "__module__"}
    for name, node in classes.items():
        hinted = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
        hinted |= {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)}
        found = {one for one in vars(getattr(_isolane, name)) if one not in inherited}
        comparisons = {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"}
        assert hinted - inherited == found - comparisons, (name, (hinted - inherited) ^ (found - comparisons))


def started(*command):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline()


def serve_offers_memory():
    process, line = started(PROGRAM, "verbs", "serve", "127.0.0.1:0", "--bytes", "3M")
    try:
        found = re.fullmatch(r"listening on (\S+), rkey (0x[0-9a-f]{8}), (\d+) bytes\n", line)
        address, key, size = found[1], int(found[2], 16), int(found[3])
        data = os.urandom((2 << 20) + 5)
        command = [PROGRAM, "verbs", "write", address, "--rkey", str(key), "--offset", "1000"]
        subprocess.run(command, input=data, check=True, timeout=TIMEOUT)
        with isolane.connect(address) as connection:
            back = bytearray(len(data))
            connection.read(back, isolane.RemoteMemory(key, size), 1000, timeout=TIMEOUT)
            assert back == data
            connection.write(b"python", isolane.RemoteMemory(key, size), size - 6, timeout=TIMEOUT)
        command = [PROGRAM, "verbs", "read", address, "--rkey", hex(key), "--offset", str(size - 6), "--bytes", "6"]
        assert subprocess.run(command, capture_output=True, timeout=TIMEOUT).stdout == b"python"
        command[-1] = "7"
        refused = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        assert refused.returncode == 1 and "remote access error" in refused.stderr, refused
    finally:
        process.kill()
        process.wait()


def example_sends_arrays():
    example = ROOT / "crates/isolane-python/examples/send_arrays.py"
    process, address = started(sys.executable, example)
    try:
        subprocess.run([sys.executable, example, address.strip()], check=True, timeout=TIMEOUT)
        output = process.communicate(timeout=TIMEOUT)[0]
    finally:
        process.kill()
    assert output == "array: 262144 bytes, sum 65536.0\ntensor: 4096 bytes, sum 1024.0\n", output


def documents_run():
    text = (ROOT / "docs/PYTHON.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(examples) >= 6
    process, line = started(PROGRAM, "verbs", "serve", "127.0.0.1:0", "--bytes", "1M", "--rkey", "0x5eed")
    try:
        address = line.split()[2].rstrip(",")
        for example in examples:
            code = example.replace("127.0.0.1:18520", address)
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT)
            assert done.returncode == 0, f"{code}{done.stderr}"
    finally:
        process.kill()
        process.wait()


def main():
    failed = 0
    for check in (
        writes_and_reads, tensors_of_dlpack, messages_and_notifications, batches, batches_in_one_call,
        atomic_operations, event_loop,
        threads_share_a_connection, waits_without_the_lock, signals_end_a_wait, timeout_keeps_the_request,
        timeout_ends_posting, memory_stays_exported, rights_and_keys, peers_that_go, shared_keys, children_of_fork, descriptions_survive_packing, volumes,
        closing_a_volume,
        hints_match_the_module, serve_offers_memory, example_sends_arrays, documents_run,
    ):
        name = "the Python module: " + check.__name__.replace("_", " ")
        try:
            check()
            print(f"ok {name}", flush=True)
        except BaseException:
            failed += 1
            print(f"not ok {name}", flush=True)
            traceback.print_exc(file=sys.stdout)
    sys.exit(failed > 0)


main()
