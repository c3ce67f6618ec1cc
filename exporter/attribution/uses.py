"""The rows *process on device*: NVML's lists, open descriptors and mappings, joined by process. Pure.

One row per device on which a process has an NVML row, a descriptor or a mapping. A process that NVML shows on
an instance of a GPU gets no second row for the parent whose file it must have open. A number that NVML lists
and /proc lacks is a row without a process, labelled with whom it belonged to when it was last seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from exporter.attribution.inventory import Inventory
from exporter.attribution.owners import Owners, Place
from exporter.model import (
    CapabilityNode,
    DeviceKey,
    Gpu,
    NodeKind,
    NvmlRow,
    Policy,
    Process,
    ProcessUsage,
    Snapshot,
    Use,
    Visibility,
    value,
)


def uses(policy: Policy, snapshot: Snapshot, inventory: Inventory, owners: Owners) -> tuple[Use, ...]:
    """All rows, sorted by device and pid."""
    table = value(snapshot.processes)
    processes = {process.id.pid: process for process in table.processes} if table else {}
    by_number = _numbered(processes, owners)
    capabilities = {node.minor: node for node in table.capabilities} if table else {}
    places = {pid: owners.place(process) for pid, process in processes.items()}

    rows = list(_listed(policy, inventory, by_number, places, owners))
    on: Mapping[tuple[str, int], list[DeviceKey]] = defaultdict(list)  # where NVML shows a process on a GPU
    for row in rows:
        on[row.device.uuid, row.pid].append(row.device)
    for pid, process in processes.items():
        rows.extend(
            _row(policy, device, process, places[pid], owners, Visibility.HOLDER)
            for device in held_devices(process, inventory, capabilities)
            if not any(_covers(listed, device) for listed in on[device.uuid, pid])
        )
    return tuple(sorted(rows, key=lambda row: (row.device.order, row.pid)))


def _numbered(processes: Mapping[int, Process], owners: Owners) -> dict[int, Process]:
    """Processes by NVML's numbers. A thread that NVML names may have exited: its process is remembered while
    it lives.
    """
    folded = {
        number: processes[known.id.pid]
        for number, known in owners.by_number.items()
        if known.id.pid in processes and processes[known.id.pid].id == known.id
    }
    told = {number: process for process in processes.values() for number in process.numbers}
    return folded | dict(processes) | told


def held_devices(
    process: Process, inventory: Inventory, capabilities: Mapping[int, CapabilityNode]
) -> tuple[DeviceKey, ...]:
    """The devices whose files a process has open or mapped: MIG devices where capability descriptors name
    them.
    """
    opened: dict[str, set[DeviceKey]] = {}
    for hold in process.holds:
        if hold.node.kind is NodeKind.GPU and (uuid := inventory.by_minor(hold.node.minor)):
            opened.setdefault(uuid, set())
    for hold in process.holds:
        if hold.node.kind is NodeKind.CAPABILITY and hold.node.minor in capabilities:
            for key in inventory.opened(capabilities[hold.node.minor]):
                if key.uuid in opened:
                    opened[key.uuid].add(key)
    found = [key for uuid, keys in opened.items() for key in keys or {DeviceKey(uuid)}]
    return tuple(sorted(found, key=lambda key: key.order))


def _covers(listed: DeviceKey, held: DeviceKey) -> bool:
    """Whether NVML's row tells of a file held of the same GPU: no parent row beside an instance row."""
    if listed.gi is None or held.gi is None:
        return True
    return listed.gi == held.gi and listed.ci in (None, held.ci)


def is_client(process: Process) -> bool:
    """Whether a process can own GPU memory: NVML row, nvidia-uvm descriptor, or mapping of a device."""
    return bool(process.numbers) or any(
        hold.mappings or (hold.node.kind is NodeKind.UVM and hold.descriptors) for hold in process.holds
    )


def _listed(
    policy: Policy,
    inventory: Inventory,
    by_number: Mapping[int, Process],
    places: Mapping[int, Place],
    owners: Owners,
) -> Iterator[Use]:
    for gpu in inventory.gpus.values():
        merged: dict[tuple[DeviceKey, int], Use] = {}
        samples = {sample.pid: sample for sample in reversed(gpu.usage or ())}
        for listed in sorted(gpu.rows or (), key=lambda row: row.pid):
            device = inventory.instance(gpu.uuid, listed.gi, listed.ci)
            process = by_number.get(listed.pid)
            usage = _usage(gpu, samples, listed)
            if process is None:
                row = _lost_row(device, listed, usage, owners)
            else:
                held = _holds_gpu(process, gpu)
                seen = Visibility.BOTH if held else Visibility.NVML
                place = places[process.id.pid]
                row = _row(policy, device, process, place, owners, seen, (listed.memory, usage))
            key = (device, row.pid)
            merged[key] = _sum(merged[key], row) if key in merged else row
        yield from merged.values()


def _row(
    policy: Policy,
    device: DeviceKey,
    process: Process,
    place: Place,
    owners: Owners,
    seen: Visibility,
    told: tuple[int | None, ProcessUsage | None] | None = None,
) -> Use:
    """`told` is memory and usage where NVML lists it."""
    known = owners.known.get(process.id)
    return Use(
        device=device,
        pid=process.id.pid,
        process=process.id,
        workload=place.workload,
        pod_uid=place.pod_uid,
        container_id=place.container_id,
        owner=place.owner,
        basis=place.basis,
        visibility=seen,
        client=told is not None or is_client(process),
        comm=known.comm if known else process.comm,
        state=_state(policy, process, owners),
        memory=told[0] if told else None,
        usage=told[1] if told else None,
    )


def _lost_row(device: DeviceKey, listed: NvmlRow, usage: ProcessUsage | None, owners: Owners) -> Use:
    """A row whose process was not seen: dead, or the scan was not had."""
    known = owners.by_number.get(listed.pid)
    place = owners.last_place(listed.pid)
    return Use(
        device=device,
        pid=known.id.pid if known else listed.pid,
        process=None,
        workload=place.workload,
        pod_uid=place.pod_uid,
        container_id=place.container_id,
        owner=place.owner,
        basis=place.basis,
        visibility=Visibility.NVML,
        client=True,
        comm=known.comm if known else "",
        state="",
        memory=listed.memory,
        usage=usage,
    )


def _sum(one: Use, other: Use) -> Use:
    """Two threads of one process that NVML lists apart on one device."""
    memory = None if one.memory is None or other.memory is None else one.memory + other.memory
    return replace(one, memory=memory, usage=_sum_of_usage(one.usage, other.usage))


def _sum_of_usage(one: ProcessUsage | None, other: ProcessUsage | None) -> ProcessUsage | None:
    if one is None or other is None:
        return one or other
    return ProcessUsage(
        one.pid,
        _sum_of_shares(one.sm, other.sm),
        _sum_of_shares(one.memory, other.memory),
        _sum_of_shares(one.encoder, other.encoder),
        _sum_of_shares(one.decoder, other.decoder),
    )


def _sum_of_shares(one: float | None, other: float | None) -> float | None:
    """A share of one engine; the driver rounds each, so that a sum may pass the whole."""
    return None if one is None or other is None else min(1.0, one + other)


def _holds_gpu(process: Process, gpu: Gpu) -> bool:
    return any(hold.node.kind is NodeKind.GPU and hold.node.minor == gpu.minor for hold in process.holds)


def _usage(gpu: Gpu, samples: Mapping[int, ProcessUsage], listed: NvmlRow) -> ProcessUsage | None:
    """NVML leaves idle processes out of its samples: where it gives samples at all, a listed process without
    one is idle.
    """
    if gpu.usage is None or listed.gi is not None:
        return None
    return samples.get(listed.pid) or ProcessUsage(listed.pid, 0.0, 0.0, 0.0, 0.0)


def _state(policy: Policy, process: Process, owners: Owners) -> str:
    """running, stuck, zombie, exiting or stopped, from the states of proc(5) and what is remembered of its
    progress.
    """
    if process.state in "ZX":
        return "zombie"
    if process.exiting:
        return "exiting"
    if process.state in "Tt":
        return "stopped"
    known = owners.known.get(process.id)
    return "stuck" if known and known.still_in(process) >= policy.stuck_reads else "running"
