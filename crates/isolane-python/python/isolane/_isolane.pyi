"""Verbs over TCP. Lengths and offsets are in bytes, and timeouts in seconds."""

import typing

__version__: str
_Result = typing.TypeVar("_Result")
_Parts = typing.Union[typing.Sequence[typing.Sequence[int]], typing.Any]

def _after_fork() -> None:
    """Forgets the objects of the parent, in a child of `fork`."""

@typing.final
class Device:
    """A set of connections and of memory that their peers can reach."""

    def __new__(cls, *, lanes: int = 1, progress: str = "polling", address: str = "127.0.0.1") -> Device:
        """Opens a device with up to `lanes` TCP connections for each connection, 1 to 8.

        `progress` is "polling", or "thread:N" for a thread on core N that never sleeps. At `address`, peers open
        further lanes.
        """
    def register(self, object: typing.Any, *, remote_write: bool = True, remote_read: bool = True) -> Memory: ...
    def listen(self, address: str = "127.0.0.1:0") -> Listener: ...
    def connect(self, address: str) -> Connection: ...

@typing.final
class Memory:
    """Memory of a Python object that is registered with a device. A slice is a part of it."""

    @property
    def remote(self) -> RemoteMemory:
        """Description for peers."""
    @property
    def nbytes(self) -> int:
        """Length in bytes."""
    def close(self) -> None:
        """Ends the registration, once its slices are closed and its requests have completed."""
    def __len__(self) -> int: ...
    def __getitem__(self, part: slice) -> Memory: ...
    def __enter__(self) -> Memory: ...
    def __exit__(self, *exception: object) -> None: ...

@typing.final
class RemoteMemory:
    """Registered memory of a peer: a key, and a range in bytes. A slice is a part of it."""

    def __new__(cls, rkey: int, nbytes: int, offset: int = 0) -> RemoteMemory: ...
    @property
    def rkey(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def offset(self) -> int: ...
    def pack(self) -> bytes:
        """Returns 20 bytes that `unpack` reads."""
    @staticmethod
    def unpack(data: typing.Any) -> RemoteMemory: ...
    def __len__(self) -> int: ...
    def __getitem__(self, part: slice) -> RemoteMemory: ...
    def __hash__(self) -> int: ...

@typing.final
class Listener:
    """Accepts connections."""

    @property
    def address(self) -> str:
        """Address, as `HOST:PORT`."""
    @property
    def port(self) -> int: ...
    def accept(self, timeout: typing.Optional[float] = None) -> Connection:
        """Waits for the next connection."""
    def close(self) -> None:
        """Stops listening."""
    def __enter__(self) -> Listener: ...
    def __exit__(self, *exception: object) -> None: ...

@typing.final
class Connection:
    """A queue pair that is connected to a peer. Several threads can use it.

    `local` is a `Memory`, or another object with memory, which is registered for the time of the request. Up to 256
    requests are in flight; `start_*` waits while more would be. Up to 256 receives are posted; a further one is an error.
    A call that waits releases Python's lock. After a failure, connect again.
    """

    def write(
        self,
        local: typing.Any,
        remote: RemoteMemory,
        offset: int = 0,
        *,
        immediate: typing.Optional[int] = None,
        timeout: typing.Optional[float] = None,
    ) -> None:
        """Writes `local` to the peer's memory at `offset`, and waits until it is there.

        With `immediate`, a number of 32 bits, it then completes a `recv` of the peer, which returns the number.
        """
    def read(
        self, local: typing.Any, remote: RemoteMemory, offset: int = 0, *, timeout: typing.Optional[float] = None
    ) -> None:
        """Fills `local` with the peer's memory from `offset` on."""
    def send(
        self, local: typing.Any, *, immediate: typing.Optional[int] = None, timeout: typing.Optional[float] = None
    ) -> None:
        """Sends a message, and waits until a `recv` of the peer has it."""
    def recv(self, local: typing.Any = None, *, timeout: typing.Optional[float] = None) -> Received:
        """Waits for the next message, which fills `local` from its start, or for a notification of `write`.

        After a timeout, the receive is still posted, and the next message fills it: wait for the attribute `request` of
        the exception.
        """
    def start_write(
        self, local: typing.Any, remote: RemoteMemory, offset: int = 0, *, immediate: typing.Optional[int] = None
    ) -> Request[None]:
        """Starts a `write`."""
    def start_read(self, local: typing.Any, remote: RemoteMemory, offset: int = 0) -> Request[None]:
        """Starts a `read`."""
    def start_send(self, local: typing.Any, *, immediate: typing.Optional[int] = None) -> Request[None]:
        """Starts a `send`."""
    def write_batch(
        self,
        local: typing.Any,
        remote: RemoteMemory,
        parts: _Parts,
        *,
        immediate: typing.Optional[int] = None,
        timeout: typing.Optional[float] = None,
    ) -> None:
        """Writes parts of `local`, and waits until all are in the peer's memory.

        Each part is (offset in `local`, offset in `remote`, length), in bytes: a list of tuples, or an array of numpy
        with three columns. With `immediate`, the last part completes a `recv` of the peer. A part that fails ends the
        connection. This is faster than a `start_write` for each part.
        """
    def read_batch(
        self,
        local: typing.Any,
        remote: RemoteMemory,
        parts: _Parts,
        *,
        timeout: typing.Optional[float] = None,
    ) -> None:
        """Fills parts of `local` with parts of the peer's memory, as `write_batch` writes them."""
    def start_write_batch(
        self,
        local: typing.Any,
        remote: RemoteMemory,
        parts: _Parts,
        *,
        immediate: typing.Optional[int] = None,
    ) -> Request[None]:
        """Starts a `write_batch`, which is one request. Waits while more than 256 parts are in flight."""
    def start_read_batch(self, local: typing.Any, remote: RemoteMemory, parts: _Parts) -> Request[None]:
        """Starts a `read_batch`, which is one request. Waits while more than 256 parts are in flight."""
    def compare_swap(
        self,
        remote: RemoteMemory,
        compare: int,
        swap: int,
        offset: int = 0,
        *,
        timeout: typing.Optional[float] = None,
    ) -> int:
        """Replaces 8 bytes of the peer at `offset` by `swap` if they are `compare`. Returns their former value.

        The bytes are a number from 0 to 2**64 - 1 in the byte order of the peer, at a multiple of 8 bytes. The operation
        is atomic with respect to those of all connections to the peer's device.
        """
    def fetch_add(
        self, remote: RemoteMemory, add: int, offset: int = 0, *, timeout: typing.Optional[float] = None
    ) -> int:
        """Adds to 8 bytes of the peer at `offset`, modulo 2**64, as `compare_swap`. Returns their former value."""
    def start_compare_swap(self, remote: RemoteMemory, compare: int, swap: int, offset: int = 0) -> Request[int]:
        """Starts a `compare_swap`."""
    def start_fetch_add(self, remote: RemoteMemory, add: int, offset: int = 0) -> Request[int]:
        """Starts a `fetch_add`."""
    def start_recv(self, local: typing.Any = None) -> Request[Received]:
        """Posts a receive. Messages fill the receives in order."""
    def close(self) -> None:
        """Ends the connection. Requests in flight fail."""
    def __enter__(self) -> Connection: ...
    def __exit__(self, *exception: object) -> None: ...

@typing.final
class Request(typing.Generic[_Result]):
    """A request in flight, or its result. `await` it, or call `wait`. It keeps its memory until it completes."""

    @property
    def done(self) -> bool:
        """Whether the request has completed."""
    def wait(self, timeout: typing.Optional[float] = None) -> _Result:
        """Waits for the result: `Received` of a receive, the former value of an atomic operation, otherwise None."""
    def __class_getitem__(cls, result: typing.Any) -> typing.Any: ...
    def __await__(self) -> typing.Generator[typing.Any, None, _Result]: ...
    _watcher: typing.Any
    def _fileno(self) -> int: ...
    def _arm(self) -> None: ...
    def _disarm(self) -> None: ...

@typing.final
class Received:
    """A received message, or a notification."""

    @property
    def nbytes(self) -> int:
        """Length in bytes: of the message, or of the write."""
    @property
    def immediate(self) -> typing.Optional[int]:
        """Number that the peer has passed."""

@typing.final
class Export:
    """Memory of an object, which cannot be resized or freed while this exists."""

    def __new__(cls, object: typing.Any, writable: bool) -> Export: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
