"""Scenarios run through all of the agent that is pure, and expectations that a person can write by hand.

An expectation is Prometheus text with three liberties. It names only the families that its story is about,
each of them whole: every series, no more and no less; a family's name alone says that it has none. A label
that is empty is left out, which to Prometheus is the same. A value may be a size such as 61GiB, or a time as
start+30.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from exporter.catalog import FAMILIES
from exporter.exposition import Format, expose
from exporter.model import Policy, Report
from exporter.report import advance
from exporter.scenario import Scenario, snapshots

START = 1_800_000_000.0
MONOTONIC = 50_000.0

Series: TypeAlias = tuple[tuple[str, str], ...]
Samples: TypeAlias = dict[str, dict[Series, float]]

_LINE = re.compile(r"(?P<name>[a-z_]+)(?:\{(?P<labels>.*)\})?(?: +(?P<value>\S+))?")
_LABEL = re.compile(r'\s*(?P<name>[a-z_]+)="(?P<value>[^"]*)"\s*(?:,|$)')
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def reports(scenario: Scenario) -> Iterator[tuple[float, Report]]:
    """Every cycle of a scenario: seconds from its start, and the report."""
    policy = Policy(interval=scenario.interval, version="0.1.0", simulated=True)
    report: Report | None = None
    for snapshot in snapshots(scenario, START, MONOTONIC):
        report = advance(policy, report, snapshot)
        yield snapshot.at - START, report


def text(report: Report) -> str:
    """The whole exposition."""
    return expose(report, Format.TEXT).decode()


def samples(report: Report) -> Samples:
    """All samples of the exposition by family and labels, empty labels left out."""
    found: Samples = {family.full_name: {} for family in FAMILIES}
    for family in text_string_to_metric_families(text(report)):
        for sample in family.samples:
            labels = tuple(sorted((k, v) for k, v in sample.labels.items() if v))
            assert labels not in found[sample.name], f"{sample.name}{dict(labels)} is served twice"
            found[sample.name][labels] = sample.value
    return found


def expected(path: Path) -> Samples:
    """An expectation. Raises ValueError naming the line that is none."""
    found: Samples = {}
    known = {family.full_name: set(family.labels) for family in FAMILIES}
    for number, raw in enumerate(path.read_text().splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        where = f"{path}:{number}: {line!r}"
        match = _LINE.fullmatch(line)
        if match is None or match["name"] not in known:
            raise ValueError(f"{where} names no family of the catalog")
        series = found.setdefault(match["name"], {})
        if match["value"] is None:
            if match["labels"] is not None or series:
                raise ValueError(f"{where} is no family without series")
            continue
        labels = _labels(match["labels"] or "", where)
        if unknown := {name for name, _ in labels} - known[match["name"]]:
            raise ValueError(f"{where}: the family has no label {unknown}")
        if labels in series:
            raise ValueError(f"{where} stands twice")
        series[labels] = _value(match["value"])
    return found


def _labels(written: str, where: str) -> Series:
    found = []
    at = 0
    while at < len(written):
        match = _LABEL.match(written, at)
        if match is None:
            raise ValueError(f"{where}: labels cannot be read from {written[at:]!r} on")
        found.append((match["name"], match["value"]))
        at = match.end()
    return tuple(sorted(found))


def _value(written: str) -> float:
    if written.startswith("start"):
        return START + float(written.removeprefix("start") or 0)
    unit = _UNITS.get(written[-3:])
    return float(written[:-3]) * unit if unit else float(written)


@dataclass(frozen=True)
class Difference:
    """One series that is not as it should be. None: it is not there."""

    family: str
    labels: Series
    wanted: float | None
    got: float | None

    def __str__(self) -> str:
        labels = ",".join(f'{name}="{value}"' for name, value in self.labels)
        return f"{self.family}{{{labels}}} wanted {_number(self.wanted)}, got {_number(self.got)}"


def differences(wanted: Samples, got: Samples) -> list[Difference]:
    """Where the families that an expectation names differ from it."""
    return [
        Difference(family, labels, series.get(labels), got[family].get(labels))
        for family, series in wanted.items()
        for labels in sorted(series.keys() | got[family].keys())
        if series.get(labels) != got[family].get(labels)
    ]


def _number(number: float | None) -> str:
    return "none" if number is None else f"{number:.12g}"
