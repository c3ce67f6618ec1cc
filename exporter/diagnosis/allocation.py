"""Placeholder for checks. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.diagnosis.facts import Facts
from exporter.model import Ruling


def shared(facts: Facts) -> Iterator[Ruling]:
    """Devices of one pod that two pods use, or that were given twice."""
    del facts
    yield from ()


def misplaced(facts: Facts) -> Iterator[Ruling]:
    """Clients of pods on devices that those pods were not given."""
    del facts
    yield from ()


def idle(facts: Facts) -> Iterator[Ruling]:
    """Devices that a pod was given and that none of its processes uses."""
    del facts
    yield from ()
