"""Findings about memory: what is in use on a device and no process accounts for. Pure.

Judged is what has memory of its own: a whole GPU, a MIG device, or a GPU instance that several MIG devices
share; never a GPU that is cut into parts. How much is unaccounted for is attribution's figure; here it is
held against the threshold, and said who has the device open, for that is who may hold the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from exporter.diagnosis.facts import Facts, one_workload
from exporter.diagnosis.rule import Evidence
from exporter.model import (
    DeviceKey,
    DeviceUse,
    FindingName,
    Gpu,
    Holds,
    Memory,
    NotApplicable,
    Owner,
    Policy,
    Process,
    ProcessId,
    Ruling,
    Subject,
    Undetermined,
    Use,
    Visibility,
    value,
)

NAME = FindingName.ORPHANED_MEMORY
KINDS = ("none", "fd_only", "live_peer")
MIB = 2**20
# Virtualisation modes (NVML) in which the frame buffer is not this node's alone to account for. A host hands
# it out in fixed profiles; a guest sees its share of it.
VIRTUAL = {"host_vgpu": "vgpu_host", "host_vsga": "vgpu_host", "vgpu": "vgpu_guest"}


def orphaned(facts: Facts) -> Iterator[Ruling]:
    """Devices on which more is in use than processes and driver account for."""
    for device in facts.device_uses:
        if facts.is_parent(device):
            yield from _waived(device, "mig_parent")
    for device in facts.memories:
        gpu, use = facts.gpu(device), facts.device_uses[device]
        if gpu is None or facts.lack(Evidence.MEMORY, device) is not None:
            continue  # the engine says what is missing
        memory = _memory(gpu, device)
        if memory is None or use.unattributed is None:
            yield from _unjudged(facts, gpu, device, memory)
        elif use.unattributed > _limit(facts.policy, device, memory):
            yield from _leak(facts, use, use.unattributed)


# --- what cannot be judged ----------------------------------------------------------------------------------


def _waived(device: DeviceKey, reason: str) -> Iterator[NotApplicable]:
    yield from (NotApplicable(NAME, kind, device, reason) for kind in KINDS)


def _doubtful(device: DeviceKey, reason: str) -> Iterator[Undetermined]:
    """All kinds: which one it is hangs on the same look."""
    yield from (Undetermined(NAME, kind, device, reason) for kind in KINDS)


def _unjudged(facts: Facts, gpu: Gpu, device: DeviceKey, memory: Memory | None) -> Iterator[Ruling]:
    """Why there is no figure: because it means nothing on this device, or because reading it failed."""
    if reason := _by_nature(gpu):
        yield from _waived(device, reason)
    elif fault := _fault(facts, device):
        yield from _doubtful(device, f"{Evidence.MEMORY}:{fault}")
    elif memory is None:
        yield from _waived(device, "memory_unsupported")
    elif memory.version < 2:
        yield from _waived(device, "memory_v1")  # counts the driver's reserve as used (nvml.h)
    elif any(row.memory is None for row in gpu.rows or () if device.gi in (None, row.gi)):
        yield from _waived(device, "na_rows")
    else:
        yield from _doubtful(device, f"{Evidence.MEMORY}:unknown")


def _by_nature(gpu: Gpu) -> str:
    if gpu.coherent_memory:
        return "coherent_memory"  # the kernel may keep any process' pages there
    if gpu.confidential:
        return "confidential"
    return VIRTUAL.get(gpu.virtualization, "")


def _fault(facts: Facts, device: DeviceKey) -> str:
    """The error of a memory call on this GPU; one that is not supported is no fault."""
    nvml = value(facts.snapshot.nvml)
    for fault in nvml.faults if nvml else ():
        if fault.uuid == device.uuid and "MemoryInfo" in fault.call:
            return fault.error.lower()
    return ""


# --- a leak -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Suspects:
    """Who may hold memory that no row tells of."""

    holders: tuple[Use, ...]  # have the device open, and NVML does not list them
    peers: tuple[Use, ...]  # are listed, or work for one that is
    ending: tuple[Process, ...]  # were on the device before their files were closed


def _memory(gpu: Gpu, device: DeviceKey) -> Memory | None:
    if device.gi is None:
        return gpu.memory
    return next((one.memory for one in gpu.instances if one.gi == device.gi), None)


def _limit(policy: Policy, device: DeviceKey, memory: Memory) -> float:
    if device.gi is None:
        return max(policy.orphaned_bytes, policy.orphaned_share * memory.total)
    return max(policy.orphaned_mig_bytes, policy.orphaned_mig_share * memory.total)


def _leak(facts: Facts, use: DeviceUse, leaked: int) -> Iterator[Ruling]:
    suspects = _suspects(facts, use.device)
    lack = facts.lack(Evidence.WHOLE_SCAN, use.device)
    unseen = f"{lack.evidence}:{lack.reason}" if lack else ""
    if suspects.holders:
        yield _holds(use, leaked, "fd_only", suspects.holders, "has its files open and no row")
    elif suspects.peers:
        yield _holds(use, leaked, "live_peer", suspects.peers, "works on it, with or for a row")
        if unseen:  # somebody whom the scan could not look at may hold it instead
            yield Undetermined(NAME, "fd_only", use.device, unseen)
    elif unseen:
        yield from _doubtful(use.device, unseen)
    else:
        yield _nobody(use, leaked, suspects.ending)


def _suspects(facts: Facts, device: DeviceKey) -> _Suspects:
    holders, peers = [], []
    shared = facts.under_mps(device)
    for use in _uses(facts, device):
        process = facts.processes.get(use.process) if use.process else None
        if process is None:
            continue  # a phantom's memory is in its row
        if use.owner is Owner.SYSTEM:
            if facts.is_mps_server(use):
                peers.append(use)
        elif use.visibility is not Visibility.HOLDER or shared or facts.is_worker(use, process):
            peers.append(use)
        else:
            holders.append(use)
    return _Suspects(tuple(holders), tuple(peers), tuple(_ending(facts, device)))


def _uses(facts: Facts, device: DeviceKey) -> Iterator[Use]:
    """Rows that may be about a device: of a MIG device also clients whose capability files are not known."""
    for use in facts.uses_of_gpu(device.uuid):
        unplaced = use.device.gi is None and use.client
        if device.gi is None or use.device.gi == device.gi or unplaced:
            yield use


def _ending(facts: Facts, device: DeviceKey) -> Iterator[Process]:
    """Processes that were on the device, and cannot end: their files are closed, or cannot be seen."""
    for known in facts.before.known:
        process = facts.processes.get(known.id)
        if process is None or not any(
            key.uuid == device.uuid and device.gi in (None, key.gi) for key in known.devices
        ):
            continue
        if process.exiting or process.kill_pending or (process.state == "Z" and process.threads > 1):
            yield process


def _holds(use: DeviceUse, leaked: int, kind: str, suspects: tuple[Use, ...], what: str) -> Holds:
    first = suspects[0]
    return Holds(
        subject=Subject(NAME, use.device),
        kind=kind,
        evidence=(_sum(use, leaked), *(f"pid {one.pid} ({one.comm}) {what}" for one in suspects)),
        workload=one_workload(one.workload for one in suspects),
        pod_uid=first.pod_uid if len({one.pod_uid for one in suspects}) == 1 else "",
        pid=first.pid,
        comm=first.comm,
        memory=leaked,
        processes=_ids(one.process for one in suspects),
    )


def _nobody(use: DeviceUse, leaked: int, ending: tuple[Process, ...]) -> Holds:
    evidence = [_sum(use, leaked), "no process has its files open"]
    evidence += [f"pid {one.id.pid} ({one.comm}) was on it and does not get to its end" for one in ending]
    return Holds(
        subject=Subject(NAME, use.device),
        kind="none",
        evidence=tuple(evidence),
        memory=leaked,
        processes=_ids(one.id for one in ending),
    )


def _ids(found: Iterable[ProcessId | None]) -> tuple[ProcessId, ...]:
    return tuple(sorted({one for one in found if one is not None}))


def _sum(use: DeviceUse, leaked: int) -> str:
    rows, driver = (use.attributed or 0) // MIB, (use.baseline or 0) // MIB
    return (
        f"{use.device.mig_uuid or use.device.uuid}: {leaked // MIB} MiB in use beyond the {rows} MiB of "
        f"NVML's rows and the {driver} MiB that the driver has always used"
    )
