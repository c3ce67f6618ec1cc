"""Asking sources side by side, none of them for longer than a cycle waits.

A slot is one source's worker thread with at most one call in flight. A call that does not return keeps its
slot busy and costs that one thread, once; threads are daemons, so that none keeps the process from exiting.
Nothing here knows what a source is or does.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from exporter.model import Missed, Reading, Reason, Seen, SourceError

T = TypeVar("T")
# A source's answer: value, whether it is complete, and (wall clock) when it was read if that was not now.
Answer: TypeAlias = tuple[T, bool] | tuple[T, bool, float]

log = logging.getLogger(__name__)


class _Call(Generic[T]):
    """One call, from when it is asked for until somebody has taken its reading."""

    def __init__(self, ask: Callable[[], Answer[T]]) -> None:
        self._ask = ask
        self.began = time.time()
        self.began_monotonic = time.monotonic()
        self.ended = threading.Event()
        self._ended_monotonic = 0.0
        self.late = False  # a cycle has waited for it in vain
        self.taken = False
        self._reading: Reading[T] | None = None

    def perform(self, name: str) -> None:
        """Run in the worker thread."""
        try:
            answer = self._ask()
            at = answer[2] if len(answer) > 2 else self.began
            self._reading = Seen(answer[0], at, self.age(), answer[1])
        except SourceError as error:
            self._reading = Missed(error.reason, self.began, self.age(), error.detail)
        except Exception as error:
            log.exception("source %s failed as it never should", name)
            self._reading = Missed(
                Reason.PROTOCOL, self.began, self.age(), f"{type(error).__name__}: {error}"
            )
        self._ended_monotonic = time.monotonic()
        self.ended.set()

    def waits(self, fresh_for: float) -> bool:
        """Whether it has ended, and nobody has taken its reading, and that is not long ago."""
        return (
            self.ended.is_set() and not self.taken and time.monotonic() - self._ended_monotonic <= fresh_for
        )

    def age(self) -> float:
        """Seconds since it was asked for."""
        return time.monotonic() - self.began_monotonic

    def reading(self, deadline: float) -> Reading[T]:
        """What became of it; waits until `deadline`."""
        if self.ended.wait(max(0.0, deadline - time.monotonic())) and self._reading is not None:
            self.taken = True
            return self._reading
        reason = Reason.BUSY if self.late else Reason.TIMEOUT
        self.late = True
        return Missed(reason, self.began, self.age(), f"no answer for {self.age():.1f} s")


class Slot(Generic[T]):
    """One source's place in the cycle: `start` it, do other things, `collect` what became of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._queue: queue.SimpleQueue[_Call[T]] = queue.SimpleQueue()
        self._call: _Call[T] | None = None
        self._thread: threading.Thread | None = None

    def start(self, ask: Callable[[], Answer[T]], fresh_for: float) -> None:
        """Begin a call, unless one is in flight, or one ended within `fresh_for` seconds and was not taken.

        So a source that always takes longer than a cycle waits is still heard of, a cycle or more late.
        """
        call = self._call
        if call is not None and (not call.ended.is_set() or call.waits(fresh_for)):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"source-{self.name}", daemon=True)
            self._thread.start()
        self._call = _Call(ask)
        self._queue.put(self._call)

    def collect(self, deadline: float) -> Reading[T]:
        """The reading of the call that `start` left in flight, waiting for it until `deadline` (monotonic
        clock).

        A call that is not back by then is missed as `timeout` in the cycle that began it and as `busy` in
        later ones.
        """
        if self._call is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._call.reading(deadline)

    def _work(self) -> None:
        while True:
            self._queue.get().perform(self.name)
