"""Isolane: RDMA verbs over TCP, and NVMe/TCP volumes, in user space.

Verbs: `register` memory, `listen` and `connect`, then `write`, `read`, `send`, and `recv` of a `Connection`.
Volumes: `open` one, then `read_into`, `write_from`, and `flush`.

Lengths and offsets are in bytes, and timeouts in seconds.
"""

from __future__ import annotations

import os
import threading
import typing

from . import _isolane
from ._isolane import Connection, Device, Listener, Memory, Received, RemoteMemory, Request, __version__
from .errors import AccessError, ConnectionLost, Error, Timeout, VolumeError
from .volumes import Volume, open

__all__ = [
    "AccessError",
    "Connection",
    "ConnectionLost",
    "Device",
    "Error",
    "Listener",
    "Memory",
    "Received",
    "RemoteMemory",
    "Request",
    "Timeout",
    "Volume",
    "VolumeError",
    "__version__",
    "connect",
    "listen",
    "open",
    "register",
    "wait",
]

_Result = typing.TypeVar("_Result")
_device: "typing.Optional[Device]" = None
_lock = threading.Lock()


def _after_fork() -> None:
    global _device, _lock
    _isolane._after_fork()
    _device, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _default() -> Device:
    global _device
    with _lock:
        if _device is None:
            _device = Device()
        return _device


def register(obj: typing.Any, *, remote_write: bool = True, remote_read: bool = True) -> Memory:
    """Registers the memory of an object, which stays in place until the registration ends.

    The object has the buffer protocol (bytearray, memoryview, mmap, numpy) or DLPack on the CPU (torch, JAX), and is
    contiguous. Peers of all connections of the process reach it with its key: they write it with `remote_write`, unless
    the object is read-only, and read it with `remote_read`.
    """
    return _default().register(obj, remote_write=remote_write, remote_read=remote_read)


def listen(address: str = "127.0.0.1:0") -> Listener:
    """Listens for connections at `HOST:PORT`; with port 0, the system chooses one."""
    return _default().listen(address)


def connect(address: str) -> Connection:
    """Connects to a listener at `HOST:PORT`. Waits up to 10 s."""
    return _default().connect(address)


def wait(requests: "typing.Iterable[Request[_Result]]", timeout: "typing.Optional[float]" = None) -> "typing.List[_Result]":
    """Waits for each of several requests, up to `timeout` seconds for each. Returns the results in order."""
    return [request.wait(timeout) for request in requests]
