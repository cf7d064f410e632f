"""Volumes: files, memory, and namespaces of NVMe/TCP targets, through `libisolane.so`."""

from __future__ import annotations

import asyncio
import collections
import ctypes
import errno
import os
import sys
import threading
import typing

from ._isolane import Export
from .errors import VolumeError

_READ, _WRITE, _FLUSH = 1, 2, 3
_READ_ONLY = _DURABLE = 1
_SLICE_NS = 100_000_000


class _Request(ctypes.Structure):
    _fields_ = [
        ("operation", ctypes.c_int),
        ("flags", ctypes.c_int),
        ("offset", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("buffer", ctypes.c_void_p),
        ("user_data", ctypes.c_uint64),
    ]


class _Completion(ctypes.Structure):
    _fields_ = [
        ("user_data", ctypes.c_uint64),
        ("error", ctypes.c_int),
        ("reserved", ctypes.c_int),
        ("text", ctypes.c_char_p),
    ]


def _load() -> ctypes.CDLL:
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libisolane.so")
    if not os.path.exists(path):
        raise ImportError(f"{path} is missing: install the wheel that scripts/build-wheel builds")
    library = ctypes.CDLL(path, use_errno=True)
    pointer, number, size, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_char_p
    functions: "typing.Dict[str, typing.Tuple[typing.Any, typing.List[typing.Any]]]" = {
        "error_text": (text, []),
        "volume_open": (pointer, [text, number]),
        "volume_name": (text, [pointer]),
        "volume_bytes": (ctypes.c_int64, [pointer]),
        "volume_block_bytes": (number, [pointer]),
        "volume_is_read_only": (number, [pointer]),
        "volume_max_request_bytes": (ctypes.c_ssize_t, [pointer]),
        "volume_close": (None, [pointer]),
        "queue_new": (pointer, [pointer, ctypes.c_uint32]),
        "queue_submit": (number, [pointer, ctypes.POINTER(_Request), size]),
        "queue_wait": (number, [pointer, ctypes.POINTER(_Completion), size, size, ctypes.c_int64]),
        "queue_arm": (number, [pointer]),
        "queue_disarm": (number, [pointer]),
        "queue_fd": (number, [pointer]),
        "queue_close": (None, [pointer]),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(library, "isolane_" + name)
        function.restype, function.argtypes = result, arguments
    return library


_library: "typing.Optional[ctypes.CDLL]" = None


def _lib() -> ctypes.CDLL:
    global _library
    if _library is None:
        _library = _load()
    return _library


def _failure(prefix: str) -> VolumeError:
    number = ctypes.get_errno()
    return VolumeError(number, f"{prefix}: {_lib().isolane_error_text().decode(errors='replace')}")


_Range = typing.Tuple[int, typing.Any, int]


class _Call:
    """Requests of one call."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.failure: "typing.Optional[VolumeError]" = None
        self.future: "typing.Optional[asyncio.Future[None]]" = None

    def finish(self, failure: "typing.Optional[VolumeError]") -> None:
        """Counts a finished request."""
        self.left -= 1
        self.failure = self.failure or failure
        if self.left == 0 and self.future is not None and not self.future.done():
            self.future.set_result(None)


class _Queue:
    """A queue of one thread or one event loop, with the memory of its requests."""

    def __init__(self, volume: "Volume") -> None:
        self.name, self.depth, self.max_bytes = volume.name, volume._depth, volume._max_bytes
        self.handle = _lib().isolane_queue_new(volume._open(), self.depth)
        if not self.handle:
            raise _failure(self.name)
        self.completions = (_Completion * self.depth)()
        self.in_flight: "typing.Dict[int, typing.Tuple[_Call, typing.Optional[Export]]]" = {}
        self.waiting: "typing.Deque[typing.Tuple[_Call, _Request, typing.Optional[Export]]]" = collections.deque()
        self.next = 0
        self.is_busy = False

    def add(self, ranges: "typing.List[_Range]", durable: bool) -> _Call:
        """Queues the requests of a call, each of at most the maximum length."""
        requests: "typing.List[typing.Tuple[_Request, typing.Optional[Export]]]" = []
        for operation, buffer, offset in ranges:
            if operation == _FLUSH:
                requests.append((_Request(operation, 0, 0, 0, None, 0), None))
                continue
            if not 0 <= offset < 1 << 63:
                raise ValueError(f"offset {offset}: pass bytes from 0 on")
            export = Export(buffer, operation == _READ)
            flags = _DURABLE if durable else 0
            for at in range(0, export.nbytes, self.max_bytes):
                length = min(self.max_bytes, export.nbytes - at)
                requests.append((_Request(operation, flags, offset + at, length, export.address + at, 0), export))
        call = _Call(len(requests))
        self.waiting.extend((call, request, export) for request, export in requests)
        self.submit()
        return call

    def submit(self) -> None:
        """Submits as many requests as fit."""
        while self.waiting and len(self.in_flight) < self.depth:
            call, request, export = self.waiting[0]
            self.next += 1
            request.user_data = self.next
            # Before the library has the memory: a signal can raise an exception after each statement.
            self.in_flight[self.next] = (call, export)
            self.waiting.popleft()
            if _lib().isolane_queue_submit(self.handle, ctypes.byref(request), 1) != 1:
                del self.in_flight[self.next]
                call.finish(_failure(self.name))

    def take(self, timeout_ns: int) -> None:
        """Takes the next completions, and submits further requests."""
        minimum = 1 if timeout_ns else 0
        count = _lib().isolane_queue_wait(self.handle, self.completions, self.depth, minimum, timeout_ns)
        if count < 0:
            raise _failure(self.name)
        for completion in self.completions[:count]:
            call, _ = self.in_flight.pop(completion.user_data)
            failure = None
            if completion.error:
                text = (completion.text or b"").decode(errors="replace")
                failure = VolumeError(completion.error, f"{self.name}: {text}")
            call.finish(failure)
        self.submit()

    def drain(self) -> None:
        """Takes completions when the descriptor is readable, and arms it again."""
        _lib().isolane_queue_disarm(self.handle)
        self.take(0)
        while self.in_flight and _lib().isolane_queue_arm(self.handle) == 1:
            self.take(0)

    def close(self) -> None:
        """Waits for the requests in flight. Calls of tasks fail."""
        _lib().isolane_queue_close(self.handle)
        for call in [call for call, _ in self.in_flight.values()] + [call for call, _, _ in self.waiting]:
            call.finish(VolumeError(errno.EBADF, f"{self.name}: the volume was closed during the call: open it again"))
        self.in_flight.clear()
        self.waiting.clear()


class Volume:
    """An open volume. `isolane.open` returns one.

    Offsets and lengths are in bytes, and multiples of `block_bytes`. Several threads can use a volume, and one event
    loop.
    """

    def __init__(self, uri: str, *, read_only: bool = False, depth: int = 64) -> None:
        self._volume: "typing.Optional[int]" = None
        if "\0" in uri:
            raise ValueError(f"{uri!r} has a zero byte: pass the name of a volume")
        lib = _lib()
        volume = lib.isolane_volume_open(uri.encode(), _READ_ONLY if read_only else 0)
        if not volume:
            raise _failure(uri)
        self._volume = volume
        self._name: str = lib.isolane_volume_name(volume).decode(errors="replace")
        self._max_bytes: int = lib.isolane_volume_max_request_bytes(volume)
        self._depth = depth
        # Queues that no thread uses. A queue whose call was interrupted is used until the volume is closed.
        self._lock = threading.Lock()
        self._idle: "typing.List[_Queue]" = []
        self._queues: "typing.List[_Queue]" = []
        self._loop: "typing.Optional[asyncio.AbstractEventLoop]" = None
        self._loop_queue: "typing.Optional[_Queue]" = None
        try:
            self._idle.append(self._new_queue())
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """Name of the volume without its options."""
        return self._name

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(_lib().isolane_volume_bytes(self._open()))

    @property
    def block_bytes(self) -> int:
        """Size of a block in bytes."""
        return int(_lib().isolane_volume_block_bytes(self._open()))

    @property
    def read_only(self) -> bool:
        """Whether changes are rejected."""
        return bool(_lib().isolane_volume_is_read_only(self._open()))

    def read_into(self, buffer: typing.Any, offset: int = 0) -> None:
        """Fills `buffer` with the data at `offset`."""
        self._run([(_READ, buffer, offset)], False)

    def write_from(self, buffer: typing.Any, offset: int = 0, *, durable: bool = False) -> None:
        """Writes `buffer` at `offset`. The data survives a crash after `flush`, or with `durable`."""
        self._run([(_WRITE, buffer, offset)], durable)

    def read_many(self, ranges: "typing.Iterable[typing.Tuple[typing.Any, int]]") -> None:
        """Fills the buffer of each pair `(buffer, offset)`, with up to `depth` requests in flight."""
        self._run([(_READ, buffer, offset) for buffer, offset in ranges], False)

    def write_many(
        self, ranges: "typing.Iterable[typing.Tuple[typing.Any, int]]", *, durable: bool = False
    ) -> None:
        """Writes the buffer of each pair `(buffer, offset)`, in any order."""
        self._run([(_WRITE, buffer, offset) for buffer, offset in ranges], durable)

    def flush(self) -> None:
        """Makes all completed writes durable."""
        self._run([(_FLUSH, None, 0)], False)

    async def read_into_async(self, buffer: typing.Any, offset: int = 0) -> None:
        """Fills `buffer` as `read_into`, without blocking the event loop."""
        await self._run_async([(_READ, buffer, offset)], False)

    async def write_from_async(self, buffer: typing.Any, offset: int = 0, *, durable: bool = False) -> None:
        """Writes `buffer` as `write_from`, without blocking the event loop."""
        await self._run_async([(_WRITE, buffer, offset)], durable)

    async def flush_async(self) -> None:
        """Makes all completed writes durable, without blocking the event loop."""
        await self._run_async([(_FLUSH, None, 0)], False)

    def close(self) -> None:
        """Waits for requests in flight, and closes the volume. Does not make writes durable: call `flush` first."""
        with self._lock:
            if any(queue.is_busy for queue in self._queues):
                raise VolumeError(errno.EBUSY, f"{self._name}: a call is in progress in another thread: wait for it")
            volume, self._volume = self._volume, None
        if volume is None:
            return
        if self._loop is not None and self._loop_queue is not None and not self._loop.is_closed():
            self._loop.remove_reader(_lib().isolane_queue_fd(self._loop_queue.handle))
        for queue in self._queues:
            queue.close()
        _lib().isolane_volume_close(volume)

    def __enter__(self) -> "Volume":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_volume", None) is not None and not sys.is_finalizing():
            self.close()

    def __repr__(self) -> str:
        return f"<isolane.Volume {self._name}{'' if self._volume else ', closed'}>"

    def _open(self) -> int:
        if self._volume is None:
            raise VolumeError(errno.EBADF, f"{self._name}: the volume is closed: open it again")
        return self._volume

    def _new_queue(self) -> _Queue:
        queue = _Queue(self)
        self._queues.append(queue)
        return queue

    def _run(self, ranges: "typing.List[_Range]", durable: bool) -> None:
        with self._lock:
            self._open()
            queue = self._idle.pop() if self._idle else self._new_queue()
            queue.is_busy = True
        try:
            call = queue.add(ranges, durable)
            while call.left:
                # Short waits, so that signals are handled.
                queue.take(_SLICE_NS)
        finally:
            with self._lock:
                queue.is_busy = False
                if not queue.in_flight and not queue.waiting:
                    self._idle.append(queue)
        if call.failure is not None:
            raise call.failure

    async def _run_async(self, ranges: "typing.List[_Range]", durable: bool) -> None:
        self._open()
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop and not self._loop.is_closed():
            raise RuntimeError(f"{self._name}: another event loop uses the volume: open one for each loop")
        if self._loop_queue is None or self._loop is not loop:
            self._loop, self._loop_queue = loop, self._new_queue()
            loop.add_reader(_lib().isolane_queue_fd(self._loop_queue.handle), self._loop_queue.drain)
        call = self._loop_queue.add(ranges, durable)
        if call.left:
            call.future = loop.create_future()
            self._loop_queue.drain()
            await call.future
        if call.failure is not None:
            raise call.failure


def open(uri: str, *, read_only: bool = False, depth: int = 64) -> Volume:
    """Opens a volume, named as for `isolane serve`, with up to `depth` requests of a call in flight (1 to 4096).

    `mem:1G`, `PATH,size=10G`, and `nvme+tcp://HOST[:4420]/NQN?nsid=N` are names. A connection to a target waits up to
    10 s.
    """
    return Volume(uri, read_only=read_only, depth=depth)
