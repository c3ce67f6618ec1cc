"""What is left of a look at the node when a source is not heard, or tells only a part of what it knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from exporter.model import (
    InFlight,
    Kubelet,
    Missed,
    Nvml,
    Pci,
    PodNames,
    Pods,
    ProcessTable,
    Reading,
    Reason,
    Seen,
    Snapshot,
    value,
)
from tests import builders as b

T = TypeVar("T")
# What may be lost of each source; the views and the node object come whole or not at all.
LOSSES = tuple(
    (source, partly)
    for source in ("nvml", "processes", "container_dev", "kubelet", "pods", "node", "pod_names", "pci")
    for partly in ((False,) if source in ("container_dev", "node") else (False, True))
)
Loss = tuple[str, bool]


def lose(frame: Snapshot, loss: Loss) -> Snapshot:
    """The frame without a source, or with a part of what it said; and what is not asked for want of it."""
    source, partly = loss
    reading = getattr(frame, source)
    if not isinstance(reading, Seen):
        return frame
    missed = Missed(Reason.TIMEOUT, frame.at, 5.0)
    left = replace(reading, value=truncated(reading.value), complete=False) if partly else missed
    change: dict[str, Any] = {source: left}
    frame = replace(frame, **change)
    match source:
        case "nvml":
            call = InFlight("nvmlDeviceGetMemoryInfo", 0, b.gpu_uuid(0), frame.at)
            return replace(frame, nvml_in_flight=call, processes=_scan_told_of(frame))
        case "processes" if not partly:
            return replace(frame, container_dev=missed)
        case _:
            return frame


def _scan_told_of(frame: Snapshot) -> Reading[ProcessTable]:
    """The scan as it is told only of the numbers that NVML gave."""
    nvml, scan = value(frame.nvml), frame.processes
    if not isinstance(scan, Seen):
        return scan
    listed = {row.pid for gpu in (nvml.gpus if nvml else ()) for row in gpu.rows or ()}
    table = scan.value
    told = tuple(
        replace(one, numbers=tuple(n for n in one.numbers if n in listed)) for one in table.processes
    )
    missing = tuple(number for number in table.missing if number in listed)
    return replace(scan, value=replace(table, processes=told, missing=missing))


def truncated(record: T) -> T:
    """A part of what a source says, cut as the source cuts it: the later half is missing."""
    match record:
        case Nvml(gpus=cards):
            return replace(record, gpus=cards[: len(cards) // 2])
        case Pci(gpus=slots):
            return replace(record, gpus=slots[: len(slots) // 2])
        case PodNames(names=found):
            return replace(record, names=found[: len(found) // 2])
        case Pods(pods=found):
            return replace(record, pods=found[: len(found) // 2])
        case Kubelet(pods=found, allocations=given):
            kept = {(pod.namespace, pod.name) for pod in found[: len(found) // 2]}
            mine = tuple(one for one in given if (one.namespace, one.pod) in kept)
            return replace(record, pods=found[: len(found) // 2], allocations=mine)
        case ProcessTable(processes=found):  # it sees every process, and not every one's files
            half = len(found) // 2
            blind = tuple(replace(one, holds=(), unread=("fd",)) for one in found[half:])
            unreadable = tuple(one.id.pid for one in blind)
            return replace(record, processes=found[:half] + blind, unreadable=unreadable)
        case _:
            raise TypeError(f"{type(record).__name__} comes whole or not at all")
