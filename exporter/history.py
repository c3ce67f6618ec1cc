"""What must be remembered from cycle to cycle, and for how long. Pure: (policy, before, snapshot,
attribution) → after.

Every table is bounded by `policy.remember`; the oldest entries go first and are counted in `forgotten`. What
was learned of one driver or one boot means nothing in the next, so memory of rows, processes and baselines is
emptied when either changes. A missed source changes nothing that it would have told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from exporter.model import (
    NOBODY,
    SOURCES,
    Attribution,
    Basis,
    Carried,
    Cgroup,
    DeviceKey,
    History,
    Known,
    KnownGpu,
    Missed,
    NamedPod,
    Policy,
    Process,
    ProcessId,
    Reason,
    RowSighting,
    Seen,
    Snapshot,
    SourceRecord,
    Use,
    value,
)

FORGET_ROW = 600.0  # seconds for which a number that left NVML's list keeps its first sighting
FORGET_PROCESS = 900.0  # and a process its name, so that a phantom can be called by its last owner
FORGET_POD = 1800.0
CONTAINERS_OF_POD = 32  # container ids remembered of one pod, which gets a new one with each restart

T = TypeVar("T")


def forget_other_world(before: History, snapshot: Snapshot) -> History:
    """`before`, or what still means something of it after a reboot or a change of driver."""
    table, nvml = value(snapshot.processes), value(snapshot.nvml)
    boot_id = table.boot_id if table else before.boot_id
    driver = nvml.driver_version if nvml else before.driver_version
    rebooted = before.boot_id not in ("", boot_id)
    reloaded = before.driver_version not in ("", driver)
    if not (rebooted or reloaded):
        return before
    return History(
        pods=() if rebooted else before.pods,
        carried=() if rebooted else before.carried,
        kubelet_heard=None if rebooted else before.kubelet_heard,
        kubelet_settled=None if rebooted else before.kubelet_settled,
        indices=() if rebooted else before.indices,
        sources=before.sources,
        cycles=before.cycles,
        forgotten=before.forgotten,
    )


def remember(policy: Policy, before: History, snapshot: Snapshot, attribution: Attribution) -> History:
    """The history after this cycle. `before` has been through `forget_other_world`."""
    table, nvml = value(snapshot.processes), value(snapshot.nvml)
    bound = _Bound(policy.remember)
    return History(
        boot_id=table.boot_id if table else before.boot_id,
        driver_version=nvml.driver_version if nvml else before.driver_version,
        indices=_indices(before, snapshot),
        inventory=_inventory(before, snapshot, attribution),
        # Of those that are still there the older ones stay: their age is what findings are made of.
        rows=bound.keep(_rows(before, snapshot), lambda row: (row.last_monotonic, -row.first)),
        known=bound.keep(
            _known(before, snapshot, attribution), lambda known: (known.last_monotonic, -known.first)
        ),
        pods=bound.keep(_pods(before, snapshot, attribution), lambda pod: (pod.last_monotonic,)),
        baselines=_baselines(before, attribution),
        last_active=_last_active(before, snapshot),
        carried=bound.keep(
            _carried(before, snapshot, attribution), lambda carried: (carried.listed_monotonic,)
        ),
        kubelet_settled=_settled(policy, before, snapshot),
        kubelet_heard=snapshot.monotonic if isinstance(snapshot.kubelet, Seen) else before.kubelet_heard,
        sources=tuple(_source(name, before, snapshot) for name in SOURCES),
        cycles=before.cycles + 1,
        forgotten=before.forgotten + bound.dropped,
    )


class _Bound:
    """Keeps the newest entries of a table, in a fixed order, and counts what it drops."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.dropped = 0

    def keep(self, entries: Sequence[T], age: Callable[[T], tuple[float, ...]]) -> tuple[T, ...]:
        surplus = len(entries) - self.size
        if surplus <= 0:
            return tuple(entries)
        self.dropped += surplus
        return tuple(sorted(entries, key=age)[surplus:])


def _indices(before: History, snapshot: Snapshot) -> tuple[tuple[str, int], ...]:
    """The index that a GPU had when it was first seen in this boot: NVML renumbers when a GPU drops off the
    bus.
    """
    nvml = value(snapshot.nvml)
    found = {gpu.uuid: gpu.index for gpu in nvml.gpus} if nvml else {}
    return tuple(sorted({**found, **dict(before.indices)}.items()))


def _inventory(before: History, snapshot: Snapshot, attribution: Attribution) -> tuple[KnownGpu, ...]:
    nvml = value(snapshot.nvml)
    if nvml is None:
        return before.inventory
    known = {gpu.uuid: gpu for gpu in before.inventory}
    seen = {}
    for gpu in nvml.gpus:
        if gpu.lost and gpu.uuid in known:
            seen[gpu.uuid] = known[gpu.uuid]  # what a lost GPU was cut into is what it was before
            continue
        keys = [DeviceKey(gpu.uuid, one.gi, one.ci, one.mig_uuid) for one in gpu.instances]
        in_order = tuple(sorted(keys, key=lambda key: key.order))
        seen[gpu.uuid] = KnownGpu(gpu.uuid, gpu.index, gpu.minor, in_order)
    complete = isinstance(snapshot.nvml, Seen) and snapshot.nvml.complete
    # GPUs that were not reached in this cycle are still there, and so are those whose files somebody holds.
    held = {use.device.uuid for use in attribution.uses}
    scanned = isinstance(snapshot.processes, Seen)
    kept = {uuid: gpu for uuid, gpu in known.items() if uuid in held or not (complete and scanned)}
    return tuple(gpu for _, gpu in sorted({**kept, **seen}.items()))


def _rows(before: History, snapshot: Snapshot) -> list[RowSighting]:
    """First sightings of numbers in process lists: a process that started later is not the one that NVML
    lists.
    """
    nvml = value(snapshot.nvml)
    rows = {(row.uuid, row.pid): row for row in before.rows}
    now = snapshot.monotonic
    silent = {gpu.uuid for gpu in before.inventory} if nvml is None else set()
    for gpu in nvml.gpus if nvml else ():
        if gpu.rows is None:
            silent.add(gpu.uuid)
        for listed in gpu.rows or ():
            key = (gpu.uuid, listed.pid)
            known = rows.get(key)
            first = (known.first, known.first_monotonic) if known else (snapshot.at, now)
            rows[key] = RowSighting(gpu.uuid, listed.pid, *first, now)
    return [
        row for _, row in sorted(rows.items()) if now - row.last_monotonic <= FORGET_ROW or row.uuid in silent
    ]


def _known(before: History, snapshot: Snapshot, attribution: Attribution) -> list[Known]:
    known = {one.id: one for one in before.known}
    table = value(snapshot.processes)
    processes = {process.id: process for process in table.processes} if table else {}
    by_process: dict[ProcessId, list[Use]] = {}
    for use in attribution.uses:
        if use.process is not None:
            by_process.setdefault(use.process, []).append(use)
    for process_id, uses in by_process.items():
        if process_id in processes:
            known[process_id] = _acquainted(known.get(process_id), processes[process_id], uses, snapshot)
    for one in before.known:
        process = processes.get(one.id)
        if process and one.id not in by_process and _is_half_dead(process):
            known[one.id] = replace(
                one,
                last_monotonic=snapshot.monotonic,
                blocked=process.blocked,
                still=one.still_in(process),
            )
    listed = {use.pid for use in attribution.uses if use.process is None}
    for one in before.known:
        if one.id.pid in listed and one.id not in processes:  # NVML's row is the last that tells of it
            known[one.id] = replace(one, last_monotonic=snapshot.monotonic)
    now = snapshot.monotonic
    if table is None:
        return list(known.values())
    return [one for _, one in sorted(known.items()) if now - one.last_monotonic <= FORGET_PROCESS]


def _is_half_dead(process: Process) -> bool:
    """Whether a process may hang after it let go of its files: then only memory says that it was a client."""
    return process.exiting or process.kill_pending or bool(process.blocked) or process.state in "DZ"


def _acquainted(known: Known | None, process: Process, uses: Sequence[Use], snapshot: Snapshot) -> Known:
    """What is known of a process after one more look: its name stays as first seen, its place as last seen
    alive.
    """
    place = uses[0]
    named = place.workload != NOBODY or known is None
    empty = process.cgroup == Cgroup()
    return Known(
        id=process.id,
        comm=known.comm if known else process.comm,
        cgroup=known.cgroup if known and empty else process.cgroup,
        devices=tuple(sorted({use.device for use in uses}, key=lambda key: key.order)),
        numbers=tuple(sorted({*process.numbers, *(known.numbers if known else ())})),
        first=known.first if known else snapshot.at,
        last_monotonic=snapshot.monotonic,
        workload=place.workload if named or known is None else known.workload,
        pod_uid=place.pod_uid or (known.pod_uid if known else ""),
        client=place.client or (known is not None and known.client),
        blocked=process.blocked,
        still=known.still_in(process) if known else min(1, len(process.blocked)),
    )


def _pods(before: History, snapshot: Snapshot, attribution: Attribution) -> list[NamedPod]:
    """Names of pods that use GPUs, so that a process that outlives its pod can still be called by it."""
    pods = {pod.uid: pod for pod in before.pods}
    now = snapshot.monotonic
    for use in attribution.uses:
        if not (use.pod_uid and use.workload.pod):
            continue
        known = pods.get(use.pod_uid)
        containers = dict(known.containers) if known else {}
        if use.container_id and use.workload.container:
            containers[use.container_id] = use.workload.container
        basis = known.basis if known and use.basis is Basis.MEMORY else use.basis
        pods[use.pod_uid] = NamedPod(
            use.pod_uid,
            use.workload.namespace,
            use.workload.pod,
            basis,
            now,
            tuple(sorted(containers.items())[-CONTAINERS_OF_POD:]),
        )
    return [pod for _, pod in sorted(pods.items()) if now - pod.last_monotonic <= FORGET_POD]


def _baselines(before: History, attribution: Attribution) -> tuple[tuple[DeviceKey, int], ...]:
    learned = {row.device: row.baseline for row in attribution.devices if row.baseline is not None}
    there = {row.device for row in attribution.devices}
    kept = {key: held for key, held in before.baselines if key in there}
    return tuple(sorted({**kept, **learned}.items(), key=lambda item: item[0].order))


def _last_active(before: History, snapshot: Snapshot) -> tuple[tuple[str, float], ...]:
    nvml = value(snapshot.nvml)
    active = {gpu.uuid: snapshot.at for gpu in (nvml.gpus if nvml else ()) if gpu.telemetry.utilization}
    return tuple(sorted({**dict(before.last_active), **active}.items()))


def _carried(before: History, snapshot: Snapshot, attribution: Attribution) -> list[Carried]:
    """The allocations of this cycle's grants, each with the time when the kubelet last listed it."""
    kubelet = value(snapshot.kubelet)
    listed = set(kubelet.allocations) if kubelet else set()
    earlier = {carried.allocation: carried.listed_monotonic for carried in before.carried}
    return [
        Carried(
            grant.allocation,
            snapshot.monotonic if grant.allocation in listed else earlier.get(grant.allocation, 0.0),
        )
        for grant in attribution.grants
    ]


def _settled(policy: Policy, before: History, snapshot: Snapshot) -> float | None:
    """From when on a pod that the kubelet does not list counts as not there."""
    if isinstance(snapshot.kubelet, Seen) and not snapshot.kubelet.complete:
        return snapshot.monotonic + policy.kubelet_restart_grace
    return before.kubelet_settled


def _source(name: str, before: History, snapshot: Snapshot) -> SourceRecord:
    """A source's counters. They exist from the first cycle and only grow."""
    record = next((one for one in before.sources if one.source == name), None) or SourceRecord(name)
    errors = dict.fromkeys(Reason, 0) | dict(record.errors)
    match getattr(snapshot, name):
        case Seen(at=at):
            return SourceRecord(name, at, tuple(errors.items()), up=True)
        case Missed(reason=reason, detail=detail):
            errors[reason] += 1
            return SourceRecord(name, record.last_success, tuple(errors.items()), up=False, detail=detail)
        case _:
            return SourceRecord(name)
