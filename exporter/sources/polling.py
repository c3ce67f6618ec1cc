"""What the sources of the Kubernetes API share: whom they ask, how seldom, and how a quantity reads.

For polling, what comes in is a function that asks once; what goes out, at every cycle, is its last answer or
its last error. It must never ask more often than it says: thousands of nodes poll one API server.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from exporter import device_ids
from exporter.model import Reason, SourceError

T = TypeVar("T")

PERIOD = 60.0  # seconds between polls
LEAST = 10.0  # seconds between polls that a nudge or an error asks for
JITTER = 0.2  # share of a wait by which it is made shorter or longer, so that nodes do not poll in step

_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_QUANTITY = re.compile(r"([0-9]{1,18})(k|M|G|Ki|Mi|Gi)?")


class NotFoundError(SourceError):
    """The API server answers, and has no such object."""


class Getter(Protocol):
    """Whoever can fetch an object of the Kubernetes API; raises SourceError."""

    def get(
        self,
        path: str,
        query: dict[str, str] | None = None,
        hook: Callable[[dict[str, Any]], object] | None = None,
    ) -> Any:
        """Return the JSON value at an API path; `hook` is json.loads' object_hook."""


class Poll(Generic[T]):
    """Ask once in a `period`, and at most once in `least` seconds when nudged or after an error.

    While asking fails the error is all there is: an old list must not pass for the present. One thread at a
    time.
    """

    def __init__(
        self,
        ask: Callable[[], tuple[T, bool]],
        period: float = PERIOD,
        least: float = LEAST,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._ask = ask
        self._period = period
        self._least = least
        self._clock = clock
        self._wall = wall
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._last: tuple[T, bool, float] | SourceError = SourceError(Reason.UNAVAILABLE, "not asked yet")
        self._failures = 0
        self._asked = float("-inf")
        self._due = float("-inf")

    def read(self, nudge: bool) -> tuple[T, bool, float]:
        """Return the last answer, whether it is complete, and its wall time; raises SourceError."""
        now = self._clock()
        nudged = nudge and now - self._asked >= self._least and not isinstance(self._last, SourceError)
        if now >= self._due or nudged:
            self._poll()
        if isinstance(self._last, SourceError):
            # A new one each time: an exception that is raised again and again collects tracebacks.
            raise SourceError(self._last.reason, self._last.detail)
        return self._last

    def _poll(self) -> None:
        began = self._wall()  # what happened since may be missing from the answer
        try:
            value, complete = self._ask()
        except SourceError as error:
            self._last = SourceError(error.reason, error.detail)
            self._wait(min(self._least * 2.0**self._failures, self._period))
            self._failures += 1
            raise
        self._last = (value, complete, began)
        self._wait(self._period)
        self._failures = 0

    def _wait(self, seconds: float) -> None:
        self._asked = self._clock()
        self._due = self._asked + seconds * self._rng.uniform(1 - JITTER, 1 + JITTER)


def gpu_quantities(quantities: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The GPU resources of a resource list, as whole numbers; raises ValueError for what is none."""
    for resource, text in quantities.items():
        if device_ids.is_gpu_resource(resource):
            found = _QUANTITY.fullmatch(str(text))
            if found is None:
                raise ValueError(f"{resource}: {text!r} is no count")
            yield resource, int(found[1]) * _SUFFIXES[found[2] or ""]
