"""One look at this node: a Report in, a View out; and the taking of that look."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from exporter.describe.view import (
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
from exporter.model import (
    NOBODY,
    SOURCES,
    DeviceKey,
    DeviceUse,
    Finding,
    Gpu,
    Memory,
    MigInstance,
    Missed,
    Policy,
    ProcessTable,
    Reading,
    Reason,
    Report,
    Seen,
    Snapshot,
    Use,
    value,
)
from exporter.report import advance

LONGEST_WAIT = 20.0  # seconds: as interval of a Gatherer, so that it waits the 10 s that it may for a source
BETWEEN_LOOKS = 1.0  # seconds in which a thread that sleeps in the kernel may move
_PARTLY = {"kubelet": "it began lately or offers no GPU: its list may not be whole yet"}
_LATE = (Reason.TIMEOUT, Reason.BUSY)


def look(
    policy: Policy,
    gather: Callable[[Report | None], Snapshot],
    sleep: Callable[[float], None] = time.sleep,
) -> Report:
    """One look, and a second where the first leaves open what another moment shows."""
    report = advance(policy, None, gather(None))
    if _worth_another(report.snapshot):
        sleep(BETWEEN_LOOKS)
        report = advance(policy, report, gather(report))
    return report


def _worth_another(snapshot: Snapshot) -> bool:
    """A thread in uninterruptible sleep may move, a source that is late may answer."""
    table = value(snapshot.processes)
    if table is not None and any(process.blocked for process in table.processes):
        return True
    readings: Iterable[Reading[object]] = (getattr(snapshot, source) for source in SOURCES)
    return any(isinstance(reading, Missed) and reading.reason in _LATE for reading in readings)


def of_report(report: Report, origin: str = "this node, looked at once") -> View:
    """What one look shows. Pure: the same Report gives the same View."""
    snapshot, found = report.snapshot, report.diagnosis.findings
    given = tuple(_given(report))
    keys = _keys(report)
    return View(
        node=snapshot.node_name,
        origin=origin,
        at=snapshot.at,
        seen=isinstance(snapshot.nvml, Seen),
        devices=tuple(_device(report, key, given) for key in keys),
        problems=tuple(_problem(report.policy, one) for one in found if one.holds.subject.device not in keys),
        doubts=tuple(dict.fromkeys(_doubts(report))),
        gaps=tuple(_gaps(snapshot)),
        simulated=report.policy.simulated,
    )


def _place(key: DeviceKey) -> Place:
    return Place(key.uuid, "" if key.gi is None else str(key.gi), key.mig_uuid)


def _keys(report: Report) -> tuple[DeviceKey, ...]:
    """All devices that are known, or that a process is on; a shared GPU instance only in its parts."""
    indices = dict(report.history.indices)
    known = [use.device for use in report.attribution.devices if use.device.gi is None or use.device.mig_uuid]
    used = [use.device for use in report.attribution.uses]
    ordered = sorted({*known, *used}, key=lambda key: (indices.get(key.uuid, len(indices)), *key.order))
    return tuple(ordered)


def _device(report: Report, key: DeviceKey, given: tuple[Given, ...]) -> Device:
    nvml, place = value(report.snapshot.nvml), _place(key)
    gpu = next((one for one in nvml.gpus if one.uuid == key.uuid), None) if nvml else None
    instance = _instance(gpu, key)
    uses = {use.device: use for use in report.attribution.devices}
    use = uses.get(key) or DeviceUse(key, NOBODY, None)
    shared = uses.get(DeviceKey(key.uuid, key.gi), use) if key.gi is not None else use
    memory = _memory(gpu, instance, key)
    index = dict(report.history.indices).get(key.uuid, gpu.index if gpu else None)
    return Device(
        place=place,
        index="" if index is None else str(index),
        product=(instance.profile if instance else "")
        if key.gi is not None
        else (gpu.product if gpu else ""),
        used=memory.used if memory else None,
        total=memory.total if memory else None,
        attributed=shared.attributed,
        unattributed=shared.unattributed,
        allocated=use.allocated,
        given=given_here(place, given),
        holders=ranked(_holder(report, one, given) for one in report.attribution.uses if one.device == key),
        problems=tuple(
            _problem(report.policy, one)
            for one in report.diagnosis.findings
            if one.holds.subject.device == key
        ),
        lost=gpu.lost if gpu else "",
    )


def _instance(gpu: Gpu | None, key: DeviceKey) -> MigInstance | None:
    return next((one for one in (gpu.instances if gpu else ()) if (one.gi, one.ci) == (key.gi, key.ci)), None)


def _memory(gpu: Gpu | None, instance: MigInstance | None, key: DeviceKey) -> Memory | None:
    """A lost GPU only repeats what it said before."""
    if gpu is None or gpu.lost:
        return None
    if key.gi is not None:
        return instance.memory if instance else None
    return gpu.memory


def _holder(report: Report, use: Use, given: tuple[Given, ...]) -> Holder:
    who = use.workload
    return Holder(
        pid=use.pid,
        comm=use.comm,
        owner=use.owner.value,
        namespace=who.namespace,
        pod=who.pod,
        container=who.container,
        pod_uid=use.pod_uid,
        memory=use.memory,
        visibility=use.visibility.value,
        state=use.state or ("" if use.process else "dead"),
        given=is_given(_place(use.device), who.namespace, who.pod, given, known=_listed(report, who.pod)),
    )


def _listed(report: Report, pod: str) -> bool:
    """Whether the kubelet's list is whole, and nothing of the pod is carried over from before its restart."""
    kubelet = report.snapshot.kubelet
    carried = any(not grant.current and grant.workload.pod == pod for grant in report.attribution.grants)
    return isinstance(kubelet, Seen) and kubelet.complete and not carried


def _given(report: Report) -> Iterator[Given]:
    for grant in report.attribution.grants:
        if grant.current:
            who = grant.workload
            place = _place(grant.device) if grant.device else None
            yield Given(place, who.namespace, who.pod, who.container, grant.allocation.resource)


def _problem(policy: Policy, finding: Finding) -> Problem:
    holds = finding.holds
    name, who = holds.subject.finding.value, holds.workload
    rule = judged(name, holds.kind)
    return Problem(
        finding=name,
        kind=holds.kind,
        severity=holds.severity or rule.severity,
        summary=rule.summary,
        meaning=rule.meaning,
        remedy=rule.remedy,
        evidence=holds.evidence,
        namespace=who.namespace,
        pod=who.pod,
        container=who.container,
        pid=holds.pid,
        comm=holds.comm,
        memory=holds.memory,
        explained_by=finding.explained_by or "",
        undetermined=finding.undetermined,
        age=dict(policy.ages).get(f"{name}.{holds.kind}", rule.age),
    )


def _doubts(report: Report) -> Iterator[Doubt]:
    for one in report.diagnosis.undetermined:
        yield Doubt(one.finding.value, one.kind, _place(one.device) if one.device else None, one.reason)


def _gaps(snapshot: Snapshot) -> Iterator[Gap]:
    for source in SOURCES:
        reading: Reading[object] = getattr(snapshot, source)
        match reading:
            case Missed(reason=reason, detail=detail):
                call = _in_flight(snapshot) if source == "nvml" else ""
                yield Gap(source, reason.value, "; ".join(part for part in (detail, call) if part))
            case Seen(complete=False, value=ProcessTable() as table):
                yield Gap(source, "incomplete", _unread(table))
            case Seen(complete=False):
                yield Gap(
                    source,
                    "incomplete",
                    _in_flight(snapshot) if source == "nvml" else _PARTLY.get(source, ""),
                )
            case _:
                pass


def _in_flight(snapshot: Snapshot) -> str:
    call = snapshot.nvml_in_flight
    return waiting(call.call, "" if call.index is None else str(call.index)) if call else ""


def _unread(table: ProcessTable) -> str:
    if not table.unreadable:
        return f"{table.truncated} processes have more descriptors than are looked at"
    return f"{len(table.unreadable)} of {table.scanned} processes could not be read; root can"
