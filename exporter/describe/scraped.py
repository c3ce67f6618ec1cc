"""What a running exporter says: its metrics in text form in, a View out. Pure.

The text comes from elsewhere: every label is made printable, and what is no sample is passed over. The
exporter has followed its findings, so they are active, and since when is known; their evidence is not in the
metrics.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

from exporter.catalog import PREFIX
from exporter.diagnosis import RULES
from exporter.text import NAME_LIMIT, printable
from exporter.view import (
    Device,
    Doubt,
    Gap,
    Given,
    Holder,
    Place,
    Problem,
    View,
    given_here,
    is_given,
    judged,
    ranked,
    waiting,
)

Labels: TypeAlias = Mapping[str, str]
Samples: TypeAlias = Mapping[str, list[tuple[Labels, float]]]

_SAMPLE = re.compile(rf"{PREFIX}(?P<name>[a-z0-9_]+)(?:\{{(?P<labels>.*)\}})? +(?P<value>\S+)(?: +-?\d+)?")
_LABEL = re.compile(r'(?P<name>[a-zA-Z_]\w*)="(?P<value>(?:[^"\\]|\\.)*)",?')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


def samples(text: str) -> Samples:
    """The samples of our own families, by name without the prefix."""
    found: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
    for line in text.split("\n"):  # splitlines() would also split inside labels
        match = _SAMPLE.fullmatch(line)
        if match is None:
            continue
        try:
            number = float(match["value"])
        except ValueError:
            continue
        if math.isfinite(number):
            found[match["name"]].append((_labels(match["labels"] or ""), number))
    return found


def _labels(text: str) -> Labels:
    return {match["name"]: _label(match["value"]) for match in _LABEL.finditer(text)}


def _label(text: str) -> str:
    raw = re.sub(r'\\[n"\\]', lambda match: _ESCAPES[match[0]], text)
    return printable(raw, NAME_LIMIT)


def of_metrics(text: str, origin: str) -> View:
    """What an exporter at `origin` says. One that has ended no cycle, or none lately, has seen nothing."""
    found = samples(text)
    up = {labels.get("source", ""): number > 0 for labels, number in found.get("source_up", ())}
    given = tuple(_given(found))
    places = _places(found)
    stamps = [number for _, number in found.get("cycle_timestamp_seconds", ())]
    names = [labels.get("node", "") for labels, _ in found.get("node_info", ())]
    builds = found.get("exporter_build_info", ())
    return View(
        node=names[0] if names else "",
        origin=origin,
        at=stamps[0] if stamps else None,
        seen=up.get("nvml", False),
        devices=tuple(_device(found, place, given, listed=up.get("kubelet", False)) for place in places),
        problems=tuple(_problems(found, None)),
        doubts=tuple(_doubts(found, places)),
        gaps=tuple(_gaps(found, up)),
        simulated=any(labels.get("simulated") == "true" for labels, _ in builds),
    )


def _doubts(found: Samples, places: Collection[Place]) -> Iterator[Doubt]:
    """What could not be judged, and findings of which nothing is said at all: families may be denied."""
    for labels, _ in found.get("finding_undetermined", ()):
        yield Doubt(
            labels.get("finding", ""), labels.get("kind", ""), _instance(labels), labels.get("reason", "")
        )
    told = ("findings", "finding_info", "finding_undetermined", "finding_not_applicable_info")
    named = {labels.get("finding", "") for name in told for labels, _ in found.get(name, ())}
    for rule in RULES if places else ():
        if rule.finding.value not in named:
            yield Doubt(rule.finding.value, "", None, "not exported")


def _place(labels: Labels) -> Place:
    return Place(labels.get("uuid", ""), labels.get("gi", ""), labels.get("mig_uuid", ""))


def _instance(labels: Labels) -> Place | None:
    return _place(labels) if labels.get("uuid") else None


def _places(found: Samples) -> list[Place]:
    """Every device that has a name here, the parts of a GPU after it."""
    named = ("gpu_info", "mig_info", "process_info", "finding_info", "gpu_allocated")
    index = {
        labels.get("uuid", ""): labels.get("gpu", "") for name in named for labels, _ in found.get(name, ())
    }
    places = {_place(labels) for name in named for labels, _ in found.get(name, ()) if labels.get("uuid")}
    order = {
        uuid: (not text.isdecimal(), int(text) if text.isdecimal() else 0) for uuid, text in index.items()
    }
    return sorted(places, key=lambda one: (order[one.uuid], one.uuid, len(one.gi), one.gi, one.mig_uuid))


def _given(found: Samples) -> Iterator[Given]:
    for labels, _ in found.get("allocation_info", ()):
        yield Given(_place(labels), *_workload(labels), labels.get("resource", ""))


def _workload(labels: Labels) -> tuple[str, str, str]:
    return labels.get("namespace", ""), labels.get("pod", ""), labels.get("container", "")


def _number(found: Samples, name: str, place: Place) -> int | None:
    """A number of a device; a GPU instance that several MIG devices share has it under an empty mig_uuid."""
    for labels, number in found.get(name, ()):
        other = _place(labels)
        if other == place or (place.gi and other == Place(place.uuid, place.gi)):
            return int(number)
    return None


def _device(found: Samples, place: Place, given: tuple[Given, ...], *, listed: bool) -> Device:
    family = "mig_memory" if place.gi else "gpu_memory"
    about = "mig_info" if place.gi else "gpu_info"
    info = next((labels for labels, _ in found.get(about, ()) if _place(labels) == place), {})
    allocated = next(
        (number > 0 for labels, number in found.get("gpu_allocated", ()) if _place(labels) == place), None
    )
    faults = [labels for labels, _ in found.get("nvml_faults", ()) if labels.get("uuid") == place.uuid]
    return Device(
        place=place,
        index=info.get("gpu", ""),
        product=info.get("profile" if place.gi else "product", ""),
        used=_number(found, f"{family}_used_bytes", place),
        total=_number(found, f"{family}_total_bytes", place),
        attributed=_number(found, f"{family}_attributed_bytes", place),
        unattributed=_number(found, f"{family}_unattributed_bytes", place),
        allocated=allocated,
        given=given_here(place, given),
        holders=ranked(_holders(found, place, given, listed=listed)),
        problems=tuple(_problems(found, place)),
        lost=next((labels.get("error", "") for labels in faults if not labels.get("call")), ""),
    )


def _holders(found: Samples, place: Place, given: tuple[Given, ...], *, listed: bool) -> Iterator[Holder]:
    sizes = {
        labels.get("pid", ""): int(number)
        for labels, number in found.get("process_memory_bytes", ())
        if _place(labels) == place
    }
    for labels, _ in found.get("process_info", ()):
        if _place(labels) != place:
            continue
        namespace, pod, container = _workload(labels)
        yield Holder(
            pid=_pid(labels),
            comm=labels.get("comm", ""),
            owner=labels.get("owner", ""),
            namespace=namespace,
            pod=pod,
            container=container,
            pod_uid=labels.get("pod_uid", ""),
            memory=sizes.get(labels.get("pid", "")),
            visibility=labels.get("visibility", ""),
            state=labels.get("state", ""),
            given=labels.get("owner") != "orphan" and is_given(place, namespace, pod, given, known=listed),
        )


def _pid(labels: Labels) -> int:
    pid = labels.get("pid", "")
    return int(pid) if pid.isdecimal() else 0


def _problems(found: Samples, place: Place | None) -> Iterator[Problem]:
    since = {
        frozenset(labels.items()): number
        for labels, number in found.get("finding_since_timestamp_seconds", ())
    }
    sizes = {frozenset(labels.items()): number for labels, number in found.get("finding_memory_bytes", ())}
    # Where the details are denied, the counts still say that something is wrong.
    details = found.get("finding_info") or [row for row in found.get("findings", ()) if row[1] > 0]
    for labels, _ in details:
        if _instance(labels) != place:
            continue
        finding, kind = labels.get("finding", ""), labels.get("kind", "")
        rule = judged(finding, kind)
        namespace, pod, container = _workload(labels)
        memory = sizes.get(frozenset(labels.items()))
        yield Problem(
            finding=finding,
            kind=kind,
            severity=rule.severity,
            summary=rule.summary,
            meaning=rule.meaning,
            remedy=rule.remedy,
            namespace=namespace,
            pod=pod,
            container=container,
            pid=_pid(labels),
            comm=labels.get("comm", ""),
            memory=None if memory is None else int(memory),
            explained_by=labels.get("explained_by", ""),
            since=since.get(frozenset(labels.items())),
            active=True,
        )


def _gaps(found: Samples, up: Mapping[str, bool]) -> Iterator[Gap]:
    paused = {labels.get("source") for labels, number in found.get("source_paused", ()) if number}
    calls = [
        waiting(labels.get("call", ""), labels.get("gpu", ""))
        for labels, _ in found.get("nvml_call_in_flight_info", ())
    ]
    for source, is_up in up.items():
        detail = "; ".join(calls) if source == "nvml" else ""
        if not is_up:
            yield Gap(source, "paused" if source in paused else "missing", detail)
        elif detail:
            yield Gap(source, "incomplete", detail)
    for _, number in found.get("processes_unreadable", ()):
        if number:
            yield Gap("processes", "incomplete", f"{number:.0f} processes could not be read")
