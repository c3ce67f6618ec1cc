"""The guard of the connections: how many there may be, which one makes room, and the descriptors for them."""

import resource
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

_OTHERS = 256  # descriptors of the rest of the agent: pipes, the kubelet, the API server; a tenth is used


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may cost."""

    request_seconds: float = 10.0  # from connecting, or from the last response, to a complete request
    response_seconds: float = 20.0  # from a complete request until its response is handed to the kernel
    handshake_seconds: float = 10.0  # of TLS
    connections: int = 256


class Guarded(Protocol):
    """A connection, in whichever state."""

    def abort(self) -> None:
        """Close it at once, whatever is buffered."""


class Guard:
    """The open connections, oldest first, apart by whether a request is being answered."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._waiting: dict[Guarded, None] = {}
        self._answering: dict[Guarded, None] = {}

    def __iter__(self) -> Iterator[Guarded]:
        return iter((*self._waiting, *self._answering))

    def admit(self, connection: Guarded) -> None:
        """Take in a connection, closing an old one if there are too many.

        The oldest without a request makes room, unless stuck readers fill more than half: then the oldest of
        these does. So a newcomer has at least half of all places behind it, and time to send its request.
        """
        if len(self._waiting) + len(self._answering) >= self.limits.connections:
            crowd = self._waiting if 2 * len(self._waiting) >= self.limits.connections else self._answering
            oldest = next(iter(crowd))
            self.forget(oldest)
            oldest.abort()
        self._waiting[connection] = None

    def wait(self, connection: Guarded) -> None:
        """Note that no request of this connection is being answered."""
        self.forget(connection)
        self._waiting[connection] = None

    def answer(self, connection: Guarded) -> None:
        """Note that a complete request of this connection is being answered."""
        self.forget(connection)
        self._answering[connection] = None

    def forget(self, connection: Guarded) -> None:
        """Drop a connection from the count."""
        self._waiting.pop(connection, None)
        self._answering.pop(connection, None)


def room_for(limits: Limits) -> Limits:
    """Make room for so many connections: raises the process' soft limit of descriptors to the hard one where
    that is needed, and where it is not enough returns limits with fewer connections.
    """
    needed = limits.connections + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return limits
    return replace(limits, connections=max(8, hard - _OTHERS, hard // 4))
