"""One row per device: who has it for himself, whether it is given at all, and whose memory is on it. Pure.

Memory that NVML's rows account for is *attributed*; what is used beyond that and beyond the driver's own
share (the baseline, learned as a minimum) is *unattributed*. Where a row has no figure, or the driver's
figures mean something else, nothing is said: a parent in MIG mode, unified or NUMA memory, confidential
computing, a vGPU host, memory version 1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from exporter.attribution import grants as granted
from exporter.attribution.inventory import Inventory
from exporter.attribution.names import Names
from exporter.model import (
    NOBODY,
    DeviceKey,
    DeviceUse,
    Gpu,
    Grant,
    History,
    Memory,
    NvmlRow,
    Policy,
)

_JUDGED = ("", "none", "passthrough")  # virtualization modes in which the frame buffer is this node's alone


def devices(
    policy: Policy,
    history: History,
    inventory: Inventory,
    given: Collection[Grant],
    names: Names,
    *,
    certain: bool,
) -> Iterator[DeviceUse]:
    """Rows for every whole GPU, every MIG device, and every GPU instance that several MIG devices share.

    `certain`: the kubelet's list is whole, so that a device that nobody was given is free.
    """
    baselines = dict(history.baselines)
    of_device: dict[DeviceKey | None, list[Grant]] = {}  # None: an id that names no device that is known
    for grant in given:
        of_device.setdefault(grant.device, []).append(grant)
    for uuid, known in sorted(inventory.known.items()):
        gpu = inventory.gpus.get(uuid)
        parent = bool(known.instances or (gpu and gpu.mig_enabled))
        for key in (DeviceKey(uuid), *sorted(known.instances, key=lambda key: key.order)):
            # A parent in MIG mode is given only in parts, unless the device plugin has no MIG strategy.
            counts = key.gi is not None or not parent or key in of_device
            mine = of_device.get(key, [])
            near = [grant for one in {key, DeviceKey(uuid), None} for grant in of_device.get(one, ())]
            yield DeviceUse(
                device=key,
                owner=granted.owner(key, mine, names),
                allocated=granted.allocated(key, near, names, certain) if counts else None,
                **_memory(policy, baselines, gpu, key),
            )
        for key in shared_instances(known.instances):
            yield DeviceUse(key, NOBODY, None, **_memory(policy, baselines, gpu, key))


def shared_instances(instances: Collection[DeviceKey]) -> tuple[DeviceKey, ...]:
    """GPU instances with several compute instances: they share the memory, which then belongs to no MIG
    device alone.
    """
    by_gi: dict[int, list[DeviceKey]] = {}
    for key in instances:
        if key.gi is not None:
            by_gi.setdefault(key.gi, []).append(key)
    return tuple(DeviceKey(keys[0].uuid, gi) for gi, keys in sorted(by_gi.items()) if len(keys) > 1)


def measured(gpu: Gpu, key: DeviceKey) -> tuple[Memory, int] | None:
    """A device's memory and what NVML's rows account for of it; None where either is not to be had."""
    of_instance = [one for one in gpu.instances if one.gi == key.gi]
    if key.gi is not None and key.ci is not None and len(of_instance) != 1:
        return None  # the GPU instance has its own row
    memory = gpu.memory if key.gi is None else next((one.memory for one in of_instance), None)
    rows = attributed(gpu, key)
    return None if memory is None or rows is None else (memory, rows)


def attributed(gpu: Gpu, key: DeviceKey) -> int | None:
    """Bytes that NVML's rows account for on a GPU or GPU instance; None where the list or a figure in it is
    missing.
    """
    if gpu.rows is None:
        return None
    if key.gi is not None and any(row.gi is None for row in gpu.rows):
        return None  # the driver does not say which instance that process is on
    mine: list[NvmlRow] = [row for row in gpu.rows if key.gi is None or row.gi == key.gi]
    total = 0
    for row in mine:
        if row.memory is None:
            return None
        total += row.memory
    return total


def judged(gpu: Gpu, key: DeviceKey, memory: Memory) -> bool:
    """Whether used minus attributed means anything here."""
    if key.gi is None and (gpu.mig_enabled or gpu.instances):
        return False
    return (
        memory.version >= 2  # version 1 counts the driver's reserve as used
        and not gpu.coherent_memory
        and not gpu.confidential
        and gpu.virtualization in _JUDGED
    )


def _memory(
    policy: Policy, baselines: Mapping[DeviceKey, int], gpu: Gpu | None, key: DeviceKey
) -> dict[str, int | None]:
    if gpu is None or (found := measured(gpu, key)) is None:
        return {}
    memory, rows = found
    if not judged(gpu, key, memory):
        return {"attributed": rows}
    baseline = learned(policy, baselines.get(key), memory, rows)
    return {
        "attributed": rows,
        "baseline": baseline,
        "unattributed": max(0, memory.used - rows - baseline),
    }


def learned(policy: Policy, before: int | None, memory: Memory, rows: int) -> int:
    """The driver's own share: the least that was ever used beyond the rows, and no more than the policy
    allows.
    """
    now = min(max(0, memory.used - rows), policy.baseline_limit)
    return now if before is None else min(before, now)
