"""Scenarios run through all of the agent that is pure, and expectations that a person can write by hand.

An expectation is Prometheus text with three liberties. It names only the families that its story is about,
each of them whole: every series, no more and no less; a family's name alone says that it has none. A label
that is empty is left out, which to Prometheus is the same. A value may be a size such as 61GiB, or a time as
start+30.

`findings.yaml` tells the findings of a whole story: what it does not tell is silent in every cycle.

    silent_on: [idle_allocation]  # findings that the story is not about, and that are not compared
    found:                        # active findings: from which second, and until which one they are not
      - {from: 135, until: 180, finding: stuck_process, kind: kill_pending, gpu: 0, pid: 100, comm: train,
         pod: ml/train-0/main, pod_uid: ..., bytes: 8GiB, evidence: SIGKILL pending}
    clear: [{finding: stuck_process, gpu: 1}]  # said to be 0
    unjudged:                     # kinds said to be undetermined or not applicable, and why
      - {from: 30, until: 60, finding: phantom_process, kind: held, gpu: 0, reason: "rows:busy"}

All labels of `kubegpu_finding_info` count, less the UUIDs that `gpu` and `gi` stand for; `pod` has namespace
and container in it. `undetermined: true`: it is held, though it cannot be judged again.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from prometheus_client.parser import text_string_to_metric_families

from exporter.catalog import FAMILIES
from exporter.exposition import Format, expose
from exporter.model import Finding, FindingName, Policy, Report
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


# --- findings over a whole story ----------------------------------------------------------------------------

_INFO, _COUNT, _BYTES = "kubegpu_finding_info", "kubegpu_findings", "kubegpu_finding_memory_bytes"
_OF_INFO = ("finding", "kind", "gpu", "gi", "pid", "comm", "pod_uid", "explained_by")
_OF_COUNT = ("finding", "kind", "gpu", "gi", "namespace", "pod", "container")
_OF_UNJUDGED = ("finding", "kind", "uuid", "gi", "reason")
_UNJUDGED = ("kubegpu_finding_undetermined", "kubegpu_finding_not_applicable_info")
_SPAN = ("from", "until")
_TOLD = {*_SPAN, *_OF_INFO, "pod", "bytes", "evidence", "undetermined"}


@dataclass(frozen=True)
class Course:
    """What `findings.yaml` expects, as written."""

    found: tuple[dict[str, Any], ...]
    clear: tuple[dict[str, Any], ...]
    unjudged: tuple[dict[str, Any], ...]
    silent_on: frozenset[str]


def course(path: Path) -> Course:
    """An expectation of a whole story. Raises ValueError naming the entry that is none."""
    plain = yaml.safe_load(path.read_text()) or {}
    if unknown := plain.keys() - {"found", "clear", "unjudged", "silent_on"}:
        raise ValueError(f"{path}: {unknown} is nothing that can be expected")
    for entry, known in (
        *((one, _TOLD) for one in plain.get("found") or ()),
        *((one, {*_SPAN, "finding", "gpu", "gi"}) for one in plain.get("clear") or ()),
        *((one, {*_SPAN, *_OF_UNJUDGED, "gpu"}) for one in plain.get("unjudged") or ()),
    ):
        if entry.keys() - known or entry.get("finding") not in set(FindingName):
            raise ValueError(f"{path}: {entry} tells of {entry.keys() - known or 'no finding'}")
    return Course(
        tuple(plain.get("found") or ()),
        tuple(plain.get("clear") or ()),
        tuple(plain.get("unjudged") or ()),
        frozenset(plain.get("silent_on") or ()),
    )


def departures(wanted: Course, at: float, report: Report) -> Iterator[str]:
    """Where the findings of one cycle are not as its story says."""
    got = _served(report)
    now = [one for one in wanted.found if _spans(one, at)]
    told = Counter(_sorted(_labels_of(one), _OF_INFO) for one in now)
    info = [dict(labels) for labels in got[_INFO]]
    counted = [one for one in now if "explained_by" not in one]
    counts = Counter(_sorted(_labels_of(one), _OF_COUNT) for one in counted)
    served: Counter[Series] = Counter()
    for labels, number in got[_COUNT].items():
        if number:
            served[_sorted(dict(labels), _OF_COUNT)] += int(number)
    for what, want, have in (
        ("finding", told, Counter(_sorted(labels, _OF_INFO) for labels in info)),
        ("count", counts, served),
    ):
        about = Counter({key: n for key, n in have.items() if dict(key)["finding"] not in wanted.silent_on})
        yield from (f"{at:g} s: no {what} {dict(key)}" for key in (want - about).elements())
        yield from (f"{at:g} s: unexpected {what} {dict(key)}" for key in (about - want).elements())
    for one in now:
        yield from (f"{at:g} s: {one['finding']}: {problem}" for problem in _details(one, got, report))
    zeros = {_sorted(dict(labels), _OF_COUNT) for labels, number in got[_COUNT].items() if not number}
    for one in wanted.clear:
        if _spans(one, at) and _sorted(_labels_of(one), _OF_COUNT) not in zeros:
            yield f"{at:g} s: {one} is not clear"
    for one in wanted.unjudged:
        if _spans(one, at) and not _is_unjudged(one, got, report):
            yield f"{at:g} s: {one} is judged, or for another reason not"


def _served(report: Report) -> Samples:
    """The families that tell of findings, straight from the catalog: a story has many cycles."""
    asked = {_INFO, _COUNT, _BYTES, *_UNJUDGED}
    return {
        family.full_name: {
            tuple((name, text) for name, text in zip(family.labels, labels, strict=True) if text): number
            for labels, number in family.samples(report)
        }
        for family in FAMILIES
        if family.full_name in asked
    }


def _spans(entry: dict[str, Any], at: float) -> bool:
    return float(entry.get("from", 0)) <= at < float(entry.get("until", "inf"))


def _labels_of(entry: dict[str, Any]) -> dict[str, str]:
    """The labels that an entry stands for."""
    labels = {name: str(entry[name]) for name in _OF_INFO if name in entry}
    parts = zip(("namespace", "pod", "container"), str(entry.get("pod", "")).split("/"), strict=False)
    return labels | {name: part for name, part in parts if part}


def _sorted(labels: dict[str, str], names: tuple[str, ...]) -> Series:
    names = (*names, "namespace", "pod", "container")
    return tuple(sorted((name, value) for name, value in labels.items() if name in names and value))


def _details(entry: dict[str, Any], got: Samples, report: Report) -> Iterator[str]:
    """What is wrong about one finding that the labels do not tell."""
    finding = _finding(entry, report)
    if finding is None:
        return
    if bool(finding.undetermined) is not bool(entry.get("undetermined", False)):
        yield f"undetermined is {finding.undetermined!r}"
    asked = entry.get("evidence", ())
    for line in [asked] if isinstance(asked, str) else asked:
        if not any(line in one for one in finding.holds.evidence):
            yield f"{line!r} is not in its evidence {finding.holds.evidence}"
    if "bytes" in entry:
        want = _sorted(_labels_of(entry), _OF_INFO)
        sizes = [size for labels, size in got[_BYTES].items() if _sorted(dict(labels), _OF_INFO) == want]
        if sizes != [_value(str(entry["bytes"]))]:
            yield f"{entry['bytes']} wanted, got {sizes}"


def _finding(entry: dict[str, Any], report: Report) -> Finding | None:
    indices = {str(index): uuid for uuid, index in report.history.indices}
    uuid, gi = indices.get(str(entry.get("gpu"))), entry.get("gi")
    for finding in report.diagnosis.findings:
        holds, device = finding.holds, finding.holds.subject.device
        place = (device.uuid, device.gi) if device else (None, None)
        named = holds.subject.finding == entry["finding"] and holds.pid == entry.get("pid", 0)
        if finding.active and named and place == (uuid, gi):
            return finding
    return None


def _is_unjudged(entry: dict[str, Any], got: Samples, report: Report) -> bool:
    wanted = {(name, str(entry[name])) for name in _OF_UNJUDGED if name in entry}
    uuid = {str(index): uuid for uuid, index in report.history.indices}.get(str(entry.get("gpu")))
    return any(
        wanted <= set(labels) and dict(labels).get("uuid") == uuid
        for family in _UNJUDGED
        for labels in got[family]
    )
