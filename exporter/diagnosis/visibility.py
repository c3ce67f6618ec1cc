"""Placeholder for checks. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.diagnosis.facts import Facts
from exporter.model import Ruling


def exposed(facts: Facts) -> Iterator[Ruling]:
    """Containers that can see GPUs beyond what they were given."""
    del facts
    yield from ()


def unseen(facts: Facts) -> Iterator[Ruling]:
    """Devices that were given and have no file in the container."""
    del facts
    yield from ()
