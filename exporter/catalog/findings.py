"""Rows about findings: counted for alerts, told in full for people, and what could not be judged.

A finding counts when it is active and no other one is its cause. Zero is said only where the diagnosis says
clear (truth rule 1); the bytes that nobody needs any more are told in disjoint parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from exporter.catalog.family import (
    INSTANCE,
    WORKLOAD,
    Devices,
    Family,
    Sample,
    Samples,
    answering,
    devices_of,
    known,
    text,
    workload,
)
from exporter.model import (
    NOBODY,
    DeviceKey,
    Finding,
    FindingName,
    NotApplicable,
    Owner,
    Report,
    Undetermined,
    Use,
    Visibility,
    value,
)

DETAIL_LIMIT = 512  # findings with rows of their own; `findings` counts the others too
_DETAIL = ("finding", "kind", *INSTANCE, "pid", "comm", "pod_uid", "explained_by", *WORKLOAD)
_NOT_JUDGED = ("finding", "kind", "uuid", "gi", "reason")
_NODE = ("",) * len(INSTANCE)


def _device(devices: Devices, key: DeviceKey | None) -> tuple[str, ...]:
    """Values of INSTANCE, all empty for the node as a whole."""
    return _NODE if key is None else devices.instance(key)


def _active(report: Report) -> list[Finding]:
    return [finding for finding in report.diagnosis.findings if finding.active]


# --- counted ------------------------------------------------------------------------------------------------


def _findings(report: Report) -> Samples:
    devices = devices_of(report)
    counts: Counter[tuple[str, ...]] = Counter()
    for finding, key in report.diagnosis.clear:
        counts[*_device(devices, key), finding.value, "", *workload(NOBODY)] = 0
    for one in _active(report):
        if one.explained_by is None:
            holds = one.holds
            device = _device(devices, holds.subject.device)
            counts[*device, holds.subject.finding.value, holds.kind, *workload(holds.workload)] += 1
    yield from counts.items()


# --- one by one ---------------------------------------------------------------------------------------------


def _details(report: Report) -> dict[tuple[str, ...], list[Finding]]:
    """Active findings by their labels: those that count come first, then those with the most memory."""
    devices = devices_of(report)
    ranked = sorted(
        _active(report),
        key=lambda one: (one.explained_by is not None, -(one.holds.memory or 0), one.holds.subject.order),
    )
    found: dict[tuple[str, ...], list[Finding]] = {}
    for one in ranked[:DETAIL_LIMIT]:
        found.setdefault(_detail(devices, one), []).append(one)
    return found


def _detail(devices: Devices, finding: Finding) -> tuple[str, ...]:
    holds = finding.holds
    return (
        holds.subject.finding.value,
        holds.kind,
        *_device(devices, holds.subject.device),
        str(holds.pid) if holds.pid else "",
        holds.comm,
        holds.pod_uid,
        finding.explained_by.value if finding.explained_by else "",
        *workload(holds.workload),
    )


def _info(report: Report) -> Samples:
    for labels in _details(report):
        yield labels, 1


def _memory(report: Report) -> Samples:
    """Findings that no label tells apart are about one thing: their bytes are not added."""
    for labels, found in _details(report).items():
        sizes = [one.holds.memory for one in found if one.holds.memory is not None]
        yield from known(labels, max(sizes, default=None))


def _since(report: Report) -> Samples:
    for labels, found in _details(report).items():
        yield labels, min(one.since for one in found)


# --- not judged ---------------------------------------------------------------------------------------------


def _not_judged(rulings: Iterable[Undetermined | NotApplicable]) -> Samples:
    rows = {
        (
            one.finding.value,
            one.kind,
            one.device.uuid if one.device else "",
            text(one.device.gi) if one.device else "",
            one.reason,
        )
        for one in rulings
    }
    for labels in rows:
        yield labels, 1


# --- memory that nobody needs any more ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Memory:
    """A memory that is used as one: a GPU's, or a GPU instance's with all its compute instances."""

    labels: tuple[str, ...]
    keys: frozenset[DeviceKey]
    unattributed: int | None


def _memories(report: Report) -> Iterator[_Memory]:
    """Memories of the GPUs that answer and whose process list is to be believed; not those of MIG parents."""
    devices = devices_of(report)
    for gpu in answering(report):
        if gpu.rows is None:
            continue
        if not gpu.mig_enabled and not gpu.instances:
            use = devices.use(gpu.uuid)
            labels = (*devices.gpu(gpu.uuid, gpu.index), "", "")
            yield _Memory(labels, frozenset({DeviceKey(gpu.uuid)}), use.unattributed if use else None)
        ordered = sorted(gpu.instances, key=lambda mig: (mig.gi, mig.ci))
        for gi, members in groupby(ordered, key=lambda mig: mig.gi):
            parts = tuple(members)
            whole = devices.use(gpu.uuid, gi)
            alone = devices.use(gpu.uuid, gi, parts[0].ci) if len(parts) == 1 else None
            use = whole or alone
            mig_uuid = parts[0].mig_uuid if len(parts) == 1 else ""
            keys = {DeviceKey(gpu.uuid, mig.gi, mig.ci, mig.mig_uuid) for mig in parts}
            yield _Memory(
                (*devices.gpu(gpu.uuid, gpu.index), text(gi), mig_uuid),
                frozenset(keys | {DeviceKey(gpu.uuid, gi)}),
                use.unattributed if use else None,
            )


class _Verdicts:
    """What this cycle says for certain, by finding and device."""

    def __init__(self, report: Report) -> None:
        diagnosis = report.diagnosis
        self._judged = set(diagnosis.clear)
        self._active: dict[tuple[FindingName, DeviceKey | None], list[Finding]] = {}
        for one in diagnosis.findings:
            about = (one.holds.subject.finding, one.holds.subject.device)
            self._judged.add(about)
            if one.active and not one.undetermined:
                self._active.setdefault(about, []).append(one)
        self._doubts = {(one.finding, one.device) for one in diagnosis.undetermined}
        pods = value(report.snapshot.pods)
        ended = [pod for pod in (pods.pods if pods else ()) if pod.ended]
        self._ended = {uid for pod in ended for uid in (pod.uid, pod.cgroup_uid)}

    def active(self, name: FindingName, memory: _Memory) -> list[Finding]:
        """Active findings on a memory that were judged in this cycle."""
        return [one for key in memory.keys for one in self._active.get((name, key), ())]

    def judged(self, name: FindingName, memory: _Memory) -> bool:
        """Whether the finding was judged there at all: it is clear, or something holds."""
        return any((name, key) in self._judged for key in memory.keys)

    def doubtful(self, name: FindingName, memory: _Memory) -> bool:
        """Whether a kind of it could not be judged there, or not for one subject."""
        return any((name, key) in self._doubts for key in (None, *memory.keys))

    def over(self, use: Use) -> bool:
        """Whether the pod of a process is gone, or has ended."""
        return use.owner is Owner.ORPHAN or use.pod_uid in self._ended


def _bytes(sizes: Iterable[int | None], *, doubtful: bool) -> int | None:
    """The sum of what is known for certain; None where a size is not known, or where 0 might be wrong."""
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return None if doubtful and not total else total


def _phantom(verdicts: _Verdicts, memory: _Memory) -> int | None:
    name = FindingName.PHANTOM_PROCESS
    if not verdicts.judged(name, memory):
        return None
    sizes = (one.holds.memory for one in verdicts.active(name, memory))
    return _bytes(sizes, doubtful=verdicts.doubtful(name, memory))


def _orphan(report: Report, verdicts: _Verdicts, memory: _Memory) -> int | None:
    """Rows of orphans, and of stuck processes whose pod is over; not the rows that are phantoms."""
    orphan, stuck = FindingName.ORPHAN_PROCESS, FindingName.STUCK_PROCESS
    if not verdicts.judged(orphan, memory):
        return None
    phantoms = {one.holds.pid for one in verdicts.active(FindingName.PHANTOM_PROCESS, memory)}
    orphans = {process for one in verdicts.active(orphan, memory) for process in one.holds.processes}
    halted = {process for one in verdicts.active(stuck, memory) for process in one.holds.processes}
    sizes = [
        use.memory
        for use in report.attribution.uses
        if use.device in memory.keys
        and use.visibility is not Visibility.HOLDER
        and use.pid not in phantoms
        and (use.process in orphans or (use.process in halted and verdicts.over(use)))
    ]
    doubtful = verdicts.doubtful(orphan, memory) or verdicts.doubtful(stuck, memory)
    return _bytes(sizes, doubtful=doubtful)


def _unattributed(verdicts: _Verdicts, memory: _Memory) -> int | None:
    name = FindingName.ORPHANED_MEMORY
    if memory.unattributed is None or not verdicts.judged(name, memory):
        return None
    sizes = [memory.unattributed] if verdicts.active(name, memory) else []
    return _bytes(sizes, doubtful=verdicts.doubtful(name, memory))


def _orphaned(report: Report) -> Samples:
    verdicts = _Verdicts(report)
    for memory in _memories(report):
        yield from known((*memory.labels, "phantom"), _phantom(verdicts, memory))
        yield from known((*memory.labels, "orphan"), _orphan(report, verdicts, memory))
        yield from known((*memory.labels, "unattributed"), _unattributed(verdicts, memory))


def _row(
    name: str, meaning: str, labels: tuple[str, ...], samples: Callable[[Report], Iterable[Sample]]
) -> Family:
    return Family(name, "gauge", meaning, labels, "stable", samples)


FAMILIES = (
    _row(
        "findings",
        "Active findings that no other finding explains, by device, kind and workload. 0 with an empty kind: "
        "everything was judged there, and nothing is wrong. Absent where something could not be judged. What "
        "concerns the whole node has an empty uuid.",
        (*INSTANCE, "finding", "kind", *WORKLOAD),
        _findings,
    ),
    _row(
        "finding_info",
        "An active finding, always 1. pid and comm are empty where it is about no process; explained_by "
        "names the finding that is its cause: then it is not counted in findings. At most "
        f"{DETAIL_LIMIT} are told.",
        _DETAIL,
        _info,
    ),
    _row(
        "finding_memory_bytes",
        "GPU memory that an active finding is about; absent where it is about none, or its size is unknown.",
        _DETAIL,
        _memory,
    ),
    _row(
        "finding_since_timestamp_seconds",
        "When an active finding was first seen, which is before it became active.",
        _DETAIL,
        _since,
    ),
    _row(
        "finding_undetermined",
        "A kind of finding that could not be judged in the last cycle, always 1; reason names the evidence "
        "that was missing and why. An empty uuid: on no device. It is neither clear nor resolved.",
        _NOT_JUDGED,
        lambda report: _not_judged(report.diagnosis.undetermined),
    ),
    _row(
        "finding_not_applicable_info",
        "A kind of finding without meaning here, always 1: a source is off, or the hardware is such. An "
        "empty uuid: on no device.",
        _NOT_JUDGED,
        lambda report: _not_judged(report.diagnosis.not_applicable),
    ),
    _row(
        "gpu_memory_orphaned_bytes",
        "GPU memory that is in use and that nobody needs any more, in disjoint parts: phantom (rows of "
        "processes that do not exist), orphan (processes of pods that are gone or over), unattributed (no "
        "process accounts for it). A part is above 0 only while its finding is active, at least what is "
        "certain where something is in doubt, and absent while it is not known. In MIG mode one for each GPU "
        "instance, with an empty mig_uuid where several compute instances share it.",
        (*INSTANCE, "cause"),
        _orphaned,
    ),
)
