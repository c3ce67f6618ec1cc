"""One thread a source, one call in flight, and no call that a cycle waits for longer than it said."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from exporter.model import Missed, Reason, Seen, SourceError
from exporter.slots import Answer, Slot


class Source:
    """Answers when told, and counts how often it was asked."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked = 0

    def __call__(self) -> Answer[int]:
        self.asked += 1
        number = self.asked
        assert self.go.wait(10)
        return number, True


@pytest.fixture
def slow() -> Iterator[Source]:
    source = Source()
    yield source
    source.go.set()


def soon(seconds: float = 0.05) -> float:
    return time.monotonic() + seconds


def ask(slot: Slot[int], source: Callable[[], Answer[int]], fresh_for: float = 60.0) -> Seen[int] | Missed:
    slot.start(source, fresh_for)
    reading = slot.collect(soon())
    assert isinstance(reading, Seen | Missed)
    return reading


def _ended(slot: Slot[int]) -> None:
    assert slot._call is not None
    assert slot._call.ended.wait(10)


def test_an_answer_is_seen_with_its_time_and_completeness() -> None:
    """The time is when it was asked for, or what the source says."""
    before = time.time()
    slot: Slot[int] = Slot("a")
    slot.start(lambda: (1, False), 60)
    first = slot.collect(soon(10))
    assert isinstance(first, Seen)
    assert (first.value, first.complete) == (1, False)
    assert before <= first.at <= time.time()
    slot.start(lambda: (2, True, 1234.5), 60)
    second = slot.collect(soon(10))
    assert isinstance(second, Seen)
    assert (second.value, second.at) == (2, 1234.5)


def test_a_source_that_never_returns_costs_one_thread(slow: Source) -> None:
    """Timeout in the cycle that asked, busy in all later ones, and it is asked no second time."""
    slot: Slot[int] = Slot("hung")
    before = threading.active_count()
    reasons = [ask(slot, slow) for _ in range(5)]
    assert [one.reason for one in reasons if isinstance(one, Missed)] == [Reason.TIMEOUT] + [Reason.BUSY] * 4
    assert threading.active_count() == before + 1
    assert slow.asked == 1
    threads = [thread for thread in threading.enumerate() if thread.name == "source-hung"]
    assert [thread.daemon for thread in threads] == [True]


def test_a_late_answer_is_taken_up_by_the_next_cycle(slow: Source) -> None:
    """Once: the cycle after that asks anew."""
    slot: Slot[int] = Slot("late")
    assert isinstance(ask(slot, slow), Missed)
    slow.go.set()
    _ended(slot)
    late = ask(slot, slow)
    assert isinstance(late, Seen)
    assert (late.value, slow.asked) == (1, 1)
    again = ask(slot, slow)
    assert isinstance(again, Seen)
    assert again.value == 2


def test_an_answer_that_took_longer_than_it_is_fresh_is_taken_up_all_the_same(slow: Source) -> None:
    """A scan that always takes three intervals must be heard of, or the node is never seen at all."""
    slot: Slot[int] = Slot("slow")
    assert isinstance(ask(slot, slow, 0.2), Missed)
    time.sleep(0.4)
    slow.go.set()
    _ended(slot)
    late = ask(slot, slow, 0.2)
    assert isinstance(late, Seen)
    assert late.value == 1


def test_an_answer_that_nobody_came_for_in_time_is_stale(slow: Source) -> None:
    """What ended long ago says nothing of now."""
    slot: Slot[int] = Slot("stale")
    assert isinstance(ask(slot, slow, 0.1), Missed)
    slow.go.set()
    _ended(slot)
    time.sleep(0.2)
    fresh = ask(slot, slow, 0.1)
    assert isinstance(fresh, Seen)
    assert fresh.value == 2


def test_a_refusal_keeps_its_reason() -> None:
    """And its line for the log."""

    def refuse() -> Answer[int]:
        raise SourceError(Reason.DENIED, "not yours")

    reading = ask(Slot("a"), refuse)
    assert isinstance(reading, Missed)
    assert (reading.reason, reading.detail) == (Reason.DENIED, "not yours")


def test_a_bug_is_a_protocol_error_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The source is missed, the log has the traceback, and the next call is made by the same thread."""
    slot: Slot[int] = Slot("buggy")

    def fail() -> Answer[int]:
        raise ZeroDivisionError("oops")

    reading = ask(slot, fail)
    assert isinstance(reading, Missed)
    assert reading.reason is Reason.PROTOCOL
    assert "ZeroDivisionError" in reading.detail
    assert "buggy" in caplog.text
    assert "Traceback" in caplog.text
    assert isinstance(ask(slot, lambda: (1, True)), Seen)


def test_an_answer_that_is_none_is_a_protocol_error() -> None:
    """A source that returns something else than it should is no reason to crash."""
    reading = ask(Slot("odd"), lambda: None)  # type: ignore[arg-type, return-value]
    assert isinstance(reading, Missed)
    assert reading.reason is Reason.PROTOCOL


def test_a_deadline_that_has_passed_still_takes_what_is_there() -> None:
    """A cycle that is late loses no answer that came in time."""
    slot: Slot[int] = Slot("a")
    slot.start(lambda: (1, True), 60)
    _ended(slot)
    assert isinstance(slot.collect(time.monotonic() - 5), Seen)
