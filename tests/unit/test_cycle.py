"""The agent's beat: what is published, what is logged, and when the next cycle begins."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from exporter.cycle import STALLED, Cycle
from exporter.exposition import Renderer
from exporter.model import Policy, Reading, Reason, Report, Snapshot
from tests import builders as b


def _renderer() -> Renderer:
    return Renderer()


def cycle(
    looks: Sequence[Snapshot] = (), interval: float = 15.0, gather: Callable[..., Snapshot] | None = None
) -> Cycle:
    queue = list(looks)

    def take(_previous: Report | None) -> Snapshot:
        return queue.pop(0) if queue else b.snapshot()

    return Cycle(Policy(interval=interval, version="0"), gather or take, _renderer())


def test_a_report_is_published_with_each_cycle() -> None:
    """Ready from the first on, even where it saw nothing; each is built on the one before."""
    beat = cycle([b.snapshot(nvml=b.missed(), processes=b.missed()), b.snapshot()])
    assert not beat.ready()[0]
    first = beat.once()
    assert beat.ready() == (True, "ready")
    second = beat.once()
    assert (first.history.cycles, second.history.cycles) == (1, 2)
    assert beat.published is not None
    assert beat.published.report is second
    assert second.took is not None


def test_the_gatherer_is_told_of_the_last_report() -> None:
    """It asks the host to watch what was known."""
    told: list[Report | None] = []

    def gather(previous: Report | None) -> Snapshot:
        told.append(previous)
        return b.snapshot()

    beat = cycle(gather=gather)
    first = beat.once()
    beat.once()
    assert told == [None, first]


def _readings(*readings: Reading[object]) -> list[Snapshot]:
    return [b.snapshot(nvml=reading) for reading in readings]  # type: ignore[arg-type]


SEEN = b.seen(b.nvml())
GONE = b.missed(Reason.UNAVAILABLE, detail="no library")


@pytest.mark.parametrize(
    ("readings", "lines"),
    [
        ([SEEN, SEEN], []),
        ([GONE, GONE, GONE], ["missing: unavailable"]),
        ([SEEN, GONE, GONE, SEEN, SEEN, GONE], ["missing: unavailable", "back", "missing: unavailable"]),
        ([b.missed(), b.missed(Reason.BUSY), b.missed(Reason.BUSY), b.missed()], ["missing: timeout"]),
        ([b.missed(Reason.BUSY), GONE, GONE], ["missing: busy", "missing: unavailable"]),
    ],
    ids=["never", "from the start", "comes and goes", "a hang is one event", "another reason"],
)
def test_transitions_are_logged_once(
    readings: list[Reading[object]], lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A night of silence is one line, not one per cycle."""
    caplog.set_level(logging.INFO, "exporter")
    beat = cycle(_readings(*readings))
    for _ in readings:
        beat.once()
    said = [record.getMessage() for record in caplog.records if "source nvml" in record.getMessage()]
    assert len(said) == len(lines)
    assert all(part in text for part, text in zip(lines, said, strict=True))


def _starts(durations: Sequence[float], interval: float) -> list[float]:
    """When cycles began that took so long, relative to the first."""
    began: list[float] = []

    def gather(_previous: Report | None) -> Snapshot:
        began.append(time.monotonic())
        if len(began) > len(durations):
            beat.stop()
        else:
            time.sleep(durations[len(began) - 1])
        return b.snapshot()

    beat = cycle(interval=interval, gather=gather)
    thread = threading.Thread(target=beat.run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    return [one - began[0] for one in began]


def test_cycles_begin_on_a_fixed_beat() -> None:
    """What a cycle takes does not add up."""
    starts = _starts([0.1, 0.05, 0.1, 0.0], 0.4)
    assert [round(one / 0.4) for one in starts] == [0, 1, 2, 3, 4]
    assert all(abs(one - 0.4 * number) < 0.2 for number, one in enumerate(starts))


def test_a_long_cycle_skips_beats_and_is_not_hurried_after() -> None:
    """One cycle follows at once, and the next is a beat after the beat that was missed."""
    starts = _starts([1.3, 0.0, 0.0], 0.5)
    assert len(starts) == 4
    assert starts[1] < 1.6
    assert starts[2] >= 1.45
    assert starts[3] - starts[2] > 0.35


def test_stop_ends_the_wait_between_cycles() -> None:
    """The agent's end does not take an interval."""
    beat = cycle(interval=60.0)
    thread = threading.Thread(target=beat.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while beat.published is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    beat.stop()
    thread.join(5)
    assert not thread.is_alive()


def test_health_is_that_of_the_loop_alone() -> None:
    """A dead driver restarts no pod; a loop that stands still does."""
    beat = cycle(_readings(GONE))
    beat.once()
    assert beat.healthy() == (True, "healthy")
    beat._beat -= STALLED[1] + STALLED[0] * 15.0
    healthy, why = beat.healthy()
    assert not healthy
    assert "no cycle has begun" in why
