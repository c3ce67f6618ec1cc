"""A Report in, a View out. Pure: the same Report gives the same View."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TypeVar

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
    Owner,
    Policy,
    ProcessTable,
    Reading,
    Report,
    Seen,
    Snapshot,
    Use,
    value,
)
from exporter.view.records import (
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

_PARTLY = {"kubelet": "it began lately or offers no GPU: its list may not be whole yet"}
_T = TypeVar("_T")


def of_report(report: Report, origin: str = "this node, looked at once", *, followed: bool = False) -> View:
    """What one Report shows. `followed`: it is one of many, so that ages mean something; a single look has
    none, and says what holds now.
    """
    snapshot = report.snapshot
    given = tuple(_given(report))
    keys = _keys(report)
    uses = _by_device((use.device, use) for use in report.attribution.uses)
    found = _by_device((one.holds.subject.device, one) for one in report.diagnosis.findings)
    problems = {
        key: tuple(_problem(report.policy, one, followed=followed) for one in these)
        for key, these in found.items()
    }
    shown = set(keys)
    return View(
        node=snapshot.node_name,
        origin=origin,
        at=snapshot.at,
        seen=isinstance(snapshot.nvml, Seen),
        devices=tuple(_device(report, key, given, uses.get(key, []), problems.get(key, ())) for key in keys),
        problems=tuple(one for key, these in problems.items() if key not in shown for one in these),
        doubts=tuple(dict.fromkeys(_doubts(report))),
        gaps=tuple(_gaps(snapshot)),
        simulated=report.policy.simulated,
    )


def _by_device(rows: Iterator[tuple[DeviceKey | None, _T]]) -> Mapping[DeviceKey | None, list[_T]]:
    found: dict[DeviceKey | None, list[_T]] = defaultdict(list)
    for key, row in rows:
        found[key].append(row)
    return found


def _place(key: DeviceKey) -> Place:
    return Place(key.uuid, "" if key.gi is None else str(key.gi), key.mig_uuid)


def _keys(report: Report) -> tuple[DeviceKey, ...]:
    """All devices that are known, or that a process is on; a shared GPU instance only in its parts."""
    indices = dict(report.history.indices)
    known = [use.device for use in report.attribution.devices if use.device.gi is None or use.device.mig_uuid]
    used = [use.device for use in report.attribution.uses]
    ordered = sorted({*known, *used}, key=lambda key: (indices.get(key.uuid, len(indices)), *key.order))
    return tuple(ordered)


def _device(
    report: Report,
    key: DeviceKey,
    given: tuple[Given, ...],
    users: list[Use],
    problems: tuple[Problem, ...],
) -> Device:
    nvml, place = value(report.snapshot.nvml), _place(key)
    gpu = next((one for one in nvml.gpus if one.uuid == key.uuid), None) if nvml else None
    instance = _instance(gpu, key)
    uses = {use.device: use for use in report.attribution.devices if use.device.uuid == key.uuid}
    use = uses.get(key) or DeviceUse(key, NOBODY, None)
    shared = uses.get(DeviceKey(key.uuid, key.gi), use) if key.gi is not None else use
    memory = _memory(gpu, instance, key)
    index = dict(report.history.indices).get(key.uuid, gpu.index if gpu else None)
    profile, product = instance.profile if instance else "", gpu.product if gpu else ""
    scan = report.snapshot.processes
    scanned = isinstance(scan, Seen) and scan.complete
    listed = gpu is not None and not gpu.lost and gpu.rows is not None and scanned
    return Device(
        place=place,
        index="" if index is None else str(index),
        product=product if key.gi is None else profile,
        used=memory.used if memory else None,
        total=memory.total if memory else None,
        attributed=shared.attributed,
        unattributed=shared.unattributed,
        allocated=use.allocated,
        given=given_here(place, given),
        holders=ranked(_holder(report, one, given) for one in users),
        problems=problems,
        lost=gpu.lost if gpu else "",
        listed=listed,
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
        # A pod of its name may have been given it since: that is another one.
        given=use.owner is not Owner.ORPHAN
        and is_given(_place(use.device), who.namespace, who.pod, given, known=_listed(report, who.pod)),
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


def _problem(policy: Policy, finding: Finding, *, followed: bool) -> Problem:
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
        since=finding.since if followed else None,
        active=finding.active if followed else None,
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
