"""Requests of a connection in an event loop."""

from __future__ import annotations

import asyncio
import typing

if typing.TYPE_CHECKING:
    from ._isolane import Request

_Result = typing.TypeVar("_Result")


class Watcher:
    """Waits for the completions of one connection, as long as a task needs one."""

    def __init__(self, request: "Request[typing.Any]", loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiting: "typing.List[typing.Tuple[Request[typing.Any], asyncio.Future[None]]]" = []
        self.descriptor = request._fileno()
        loop.add_reader(self.descriptor, self.settle)

    def settle(self) -> None:
        """Resolves the futures of completed requests, and requests another notice for the others."""
        last = self.waiting[-1][0]
        last._disarm()
        # Arming first: a completion that arrives after the check has a notice.
        last._arm()
        waiting, self.waiting = self.waiting, []
        for request, future in waiting:
            if future.done():
                continue
            if request.done:
                future.set_result(None)
            else:
                self.waiting.append((request, future))
        if not self.waiting:
            self.loop.remove_reader(self.descriptor)
            last._disarm()
            last._watcher = None


async def wait(request: "Request[_Result]") -> "_Result":
    """Waits for a request without blocking the event loop."""
    if not request.done:
        loop = asyncio.get_running_loop()
        watcher = request._watcher
        if watcher is None or watcher.loop.is_closed():
            watcher = request._watcher = Watcher(request, loop)
        if watcher.loop is not loop:
            raise RuntimeError("another event loop waits for this connection: use a connection for each loop")
        future = loop.create_future()
        watcher.waiting.append((request, future))
        request._arm()
        # Another thread can have recorded the completion before.
        if request.done:
            watcher.settle()
        await future
    return request.wait(0)
