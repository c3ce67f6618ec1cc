"""Rows about MIG. Families of their own, so that a sum over GPUs counts no memory twice.

Memory belongs to the GPU instance. Where several compute instances share one, its rows carry an empty
mig_uuid, and an owner only if they all have the same.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

from exporter.catalog.family import (
    INSTANCE,
    WORKLOAD,
    Devices,
    Family,
    Samples,
    answering,
    devices_of,
    gpus,
    known,
    text,
    workload,
)
from exporter.model import NOBODY, DeviceUse, Gpu, Memory, MigInstance, Report, Workload


@dataclass(frozen=True, slots=True)
class _GpuInstance:
    """One GPU instance: its labels, its memory and what attribution knows of it."""

    labels: tuple[str, ...]
    memory: Memory | None
    use: DeviceUse | None


def _placement(instance: MigInstance) -> str:
    if instance.start is None or instance.size is None:
        return ""
    return f"{instance.start}:{instance.size}"


def _info(report: Report) -> Samples:
    devices = devices_of(report)
    for gpu in gpus(report):
        for mig in gpu.instances:
            device = (*devices.gpu(gpu.uuid, gpu.index), text(mig.gi), mig.mig_uuid)
            facts = (text(mig.ci), mig.profile, _placement(mig))
            yield (*device, *facts, *devices.owner(gpu.uuid, mig.gi, mig.ci)), 1


def _common(owners: set[Workload]) -> Workload:
    """The one owner, with an empty container where only the pod is the same."""
    if len(owners) == 1:
        return next(iter(owners))
    pods = {(owner.namespace, owner.pod) for owner in owners}
    if len(pods) == 1:
        return Workload(*pods.pop())
    return NOBODY


def _gpu_instances(devices: Devices, gpu: Gpu) -> Iterator[_GpuInstance]:
    ordered = sorted(gpu.instances, key=lambda mig: (mig.gi, mig.ci))
    for gi, members in groupby(ordered, key=lambda mig: mig.gi):
        shares = tuple(members)
        uses = [devices.use(gpu.uuid, gi, mig.ci) for mig in shares]
        whole = devices.use(gpu.uuid, gi)
        if whole is None and len(shares) == 1:
            whole = uses[0]
        owner = _common({use.owner if use is not None else NOBODY for use in uses})
        mig_uuid = shares[0].mig_uuid if len(shares) == 1 else ""
        yield _GpuInstance(
            (*devices.gpu(gpu.uuid, gpu.index), text(gi), mig_uuid, *workload(owner)),
            next((mig.memory for mig in shares if mig.memory is not None), None),
            whole,
        )


def _row(name: str, meaning: str, read: Callable[[_GpuInstance], int | None]) -> Family:
    """A row with one number for each GPU instance of a GPU that answers."""

    def samples(report: Report) -> Samples:
        devices = devices_of(report)
        for gpu in answering(report):
            for instance in _gpu_instances(devices, gpu):
                yield from known(instance.labels, read(instance))

    return Family(name, "gauge", meaning, (*INSTANCE, *WORKLOAD), "stable", samples)


def _memory(name: str, meaning: str, read: Callable[[Memory], int]) -> Family:
    return _row(name, meaning, lambda instance: None if instance.memory is None else read(instance.memory))


def _judged(name: str, meaning: str, read: Callable[[DeviceUse], int | None]) -> Family:
    return _row(name, meaning, lambda instance: None if instance.use is None else read(instance.use))


FAMILIES = (
    Family(
        "mig_info",
        "gauge",
        "A MIG device, always 1. uuid and gpu are its parent's; placement is the first memory slice and "
        "their number, as start:size.",
        (*INSTANCE, "ci", "profile", "placement", *WORKLOAD),
        "stable",
        _info,
    ),
    _memory("mig_memory_total_bytes", "Frame buffer of the GPU instance.", lambda memory: memory.total),
    _memory("mig_memory_used_bytes", "Frame buffer of the GPU instance in use.", lambda memory: memory.used),
    _memory(
        "mig_memory_free_bytes", "Frame buffer of the GPU instance that is free.", lambda memory: memory.free
    ),
    _judged(
        "mig_memory_attributed_bytes",
        "Frame buffer of the GPU instance that belongs to known processes; absent where that cannot be "
        "judged.",
        lambda use: use.attributed,
    ),
    _judged(
        "mig_memory_unattributed_bytes",
        "Frame buffer of the GPU instance in use that neither a known process nor the baseline explains, at "
        "least 0; absent where that cannot be judged.",
        lambda use: use.unattributed,
    ),
)
