"""Numbers, moments and reasons in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from exporter.diagnosis.rule import EVIDENCE
from exporter.view.records import Doubt, Gap, Place

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def size(number: int) -> str:
    """Bytes in the largest unit that leaves at least one of it."""
    for unit, name in _UNITS:
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number} B"


def moment(at: float) -> str:
    """Seconds since the epoch as a date and time of day."""
    return datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def gap(one: Gap) -> str:
    """A source that did not answer, and why."""
    return f"{one.source}: {one.reason}" + (f" ({one.detail})" if one.detail else "")


def grouped(doubts: Iterable[Doubt]) -> Iterator[tuple[str, Place | None, str]]:
    """For each reason and device: the reason in words, the device, and all that it concerns."""
    concerned: dict[tuple[str, Place | None], dict[str, list[str]]] = {}
    for one in doubts:
        kinds = concerned.setdefault((one.reason, one.place), {}).setdefault(one.finding, [])
        if one.kind not in kinds:
            kinds.append(one.kind)
    for (why, place), findings in concerned.items():
        what = "; ".join(f"{finding} ({', '.join(kinds)})" for finding, kinds in findings.items())
        yield reason(why), place, what


def reason(text: str) -> str:
    """`rows:timeout` in words; another reason as it is."""
    evidence, colon, why = text.partition(":")
    words = next((meaning for one, meaning in EVIDENCE.items() if one == evidence), None)
    return f"{words} missing, {why}" if colon and words else text
