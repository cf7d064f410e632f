"""Exceptions. Each text names the culprit and the remedy."""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    from ._isolane import Request


class Error(Exception):
    """Base of all exceptions of this package."""


class AccessError(Error):
    """The memory that a request names is not registered, is too short, or does not allow the access."""


class ConnectionLost(Error, ConnectionError):
    """The peer has ended the connection, does not respond, or cannot be reached."""


class Timeout(Error, TimeoutError):
    """A call has not finished in time. A request stays in flight, and keeps its memory."""

    #: The request that is still in flight, if the call has started one.
    request: "typing.Optional[Request[typing.Any]]" = None


class VolumeError(Error, OSError):
    """A request of a volume has failed; `errno` has the reason."""
