"""The agent's beat: gather → advance → render → publish, again and again on a fixed interval.

In: a function that looks at the node, and a policy. Out: one immutable `Rendered` report, replaced by
assigning one attribute, so that readers never lock. Logs what changes of the sources, not how they are.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from exporter.exposition import Rendered, Renderer
from exporter.model import Missed, Policy, Reason, Report, Snapshot, SourceRecord
from exporter.report import advance

STALLED = (10.0, 120.0)  # the loop counts as stalled after so many intervals, but not before so many seconds

# The garbage collector, see _Tidiness: thresholds; cycles after which is looked how much is out of its sight;
# and how many objects more than usual that may be, some 10 MB.
YOUNG = (10_000, 10, 10)
COUNTED = 20
SURPLUS = 50_000

log = logging.getLogger(__name__)


class Cycle:
    """The background loop. `run` is a daemon thread's; everything else may be called from any thread."""

    def __init__(
        self, policy: Policy, gather: Callable[[Report | None], Snapshot], renderer: Renderer
    ) -> None:
        self._policy = policy
        self._gather = gather
        self._renderer = renderer
        self._stopping = threading.Event()
        self._beat = time.monotonic()
        self.published: Rendered | None = None

    def run(self) -> None:
        """Cycle until `stop`. A cycle that took too long skips beats rather than hurry after them."""
        due, tidiness = time.monotonic(), _Tidiness()
        while not self._stopping.is_set():
            tidiness.before()
            self.once()
            tidiness.after()
            now = time.monotonic()
            due = max(due + self._policy.interval, now - (now - due) % self._policy.interval)
            self._stopping.wait(max(0.0, due - now))

    def stop(self) -> None:
        """End the loop after the cycle in progress."""
        self._stopping.set()

    def once(self) -> Report:
        """One cycle."""
        self._beat = time.monotonic()
        previous = self.published.report if self.published else None
        report = advance(self._policy, previous, self._gather(previous))
        report = replace(report, took=time.monotonic() - self._beat)
        _log_transitions(previous, report)
        self.published = self._renderer.render(report)
        return report

    def ready(self) -> tuple[bool, str]:
        """Whether the first cycle is complete, even a partial one."""
        return (True, "ready") if self.published else (False, "the first cycle is not complete yet")

    def healthy(self) -> tuple[bool, str]:
        """Whether the loop makes progress. What sources do has no part in it: a restart does not cure a
        driver.
        """
        age = time.monotonic() - self._beat
        limit = max(STALLED[0] * self._policy.interval, STALLED[1])
        return (True, "healthy") if age < limit else (False, f"no cycle has begun for {age:.0f} s")


class _Tidiness:
    """When the garbage collector looks at what: meanwhile it holds the interpreter, and with it every scrape.

    A cycle makes tens of thousands of objects that live until the next, and reference counting frees them.
    So what a cycle leaves is put out of the collector's sight. Before a cycle that leaves little to look at:
    what connections left since the last one. What they leave during a cycle may get out of sight too, so that
    is looked at where it has become much.
    """

    def __init__(self) -> None:
        gc.set_threshold(*YOUNG)
        self._cycles = 0
        self._usual = 0

    def before(self) -> None:
        gc.collect()

    def after(self) -> None:
        gc.collect(0)
        gc.freeze()
        self._cycles += 1
        if self._cycles % COUNTED == 0 and gc.get_freeze_count() > self._usual + SURPLUS:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._usual = gc.get_freeze_count()


def _log_transitions(previous: Report | None, report: Report) -> None:
    """One line where a source goes missing, comes back, or is missing for another reason."""
    before = {record.source: record for record in (previous.history.sources if previous else ())}
    for record in report.history.sources:
        reading = getattr(report.snapshot, record.source)
        earlier = before.get(record.source, SourceRecord(record.source))
        if isinstance(reading, Missed):
            reasons = {_reason(previous, record.source), reading.reason}
            if earlier.up is not False or (len(reasons) > 1 and reasons != {Reason.TIMEOUT, Reason.BUSY}):
                log.warning("source %s is missing: %s: %s", record.source, reading.reason, reading.detail)
        elif record.up and earlier.up is False:
            log.info("source %s is back", record.source)


def _reason(previous: Report | None, source: str) -> Reason | None:
    reading = getattr(previous.snapshot, source) if previous else None
    return reading.reason if isinstance(reading, Missed) else None
