"""Placeholder for checks. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.diagnosis.facts import Facts
from exporter.model import Ruling


def mismatch(facts: Facts) -> Iterator[Ruling]:
    """Counts of GPUs that ought to agree and do not."""
    del facts
    yield from ()
