"""The taking of one look at this node: a policy and a way to gather in, a Report out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from exporter.model import SOURCES, Missed, Policy, Reading, Reason, Report, Snapshot, value
from exporter.report import advance

LONGEST_WAIT = 20.0  # seconds: as interval of a Gatherer, so that it waits the 10 s that it may for a source
BETWEEN_LOOKS = 1.0  # seconds in which a thread that sleeps in the kernel may move
_LATE = (Reason.TIMEOUT, Reason.BUSY)


def look(
    policy: Policy,
    gather: Callable[[Report | None], Snapshot],
    sleep: Callable[[float], None] = time.sleep,
) -> Report:
    """One look, and a second where the first leaves open what another moment shows."""
    report = advance(policy, None, gather(None))
    if _worth_another(report.snapshot):
        sleep(BETWEEN_LOOKS)
        report = advance(policy, report, gather(report))
    return report


def _worth_another(snapshot: Snapshot) -> bool:
    """A thread in uninterruptible sleep may move, a source that is late may answer."""
    table = value(snapshot.processes)
    if table is not None and any(process.blocked for process in table.processes):
        return True
    readings: Iterable[Reading[object]] = (getattr(snapshot, source) for source in SOURCES)
    return any(isinstance(reading, Missed) and reading.reason in _LATE for reading in readings)
