"""Which devices there are, and every way to reach one: by UUID, device minor, MIG UUID, or instance numbers.

In: the NVML and PCI readings and the history. What NVML said in this cycle outranks what PCI says, which
outranks what is remembered; identity does not change while NVML is silent, so holders keep their GPU. Pure.
"""

from __future__ import annotations

from typing import assert_never

from exporter.model import (
    Advisory,
    CapabilityNode,
    DeviceKey,
    DeviceRef,
    Gpu,
    GpuByMinor,
    GpuByUuid,
    History,
    KnownGpu,
    MigByInstance,
    MigByPlacement,
    MigByUuid,
    Passthrough,
    PciGpu,
    Snapshot,
    Unrecognised,
    value,
)


class Inventory:
    """Look-ups over all GPUs and MIG devices known in this cycle."""

    def __init__(self, snapshot: Snapshot, history: History) -> None:
        nvml = value(snapshot.nvml)
        self.gpus: dict[str, Gpu] = {gpu.uuid: gpu for gpu in nvml.gpus} if nvml else {}
        self.known: dict[str, KnownGpu] = {gpu.uuid: gpu for gpu in history.inventory}
        for gpu in self.gpus.values():
            if not (gpu.lost and gpu.uuid in self.known):  # what a lost one was cut into is what it was
                self.known[gpu.uuid] = _known(gpu)
        pci = value(snapshot.pci)
        # Later ones outrank earlier ones.
        told: list[KnownGpu | PciGpu | Gpu] = [
            *history.inventory,
            *(pci.gpus if pci else ()),
            *self.gpus.values(),
        ]
        self._by_minor = {one.minor: one.uuid for one in told if one.uuid and one.minor is not None}
        self._instances = {key.mig_uuid: key for gpu in self.known.values() for key in gpu.instances}

    def by_minor(self, minor: int) -> str | None:
        """The UUID of the GPU with this device minor."""
        return self._by_minor.get(minor)

    def instance(self, uuid: str, gi: int | None, ci: int | None) -> DeviceKey:
        """The device that (gi, ci) of a GPU mean; without `mig_uuid` where no such MIG device is known."""
        if gi is None:
            return DeviceKey(uuid)
        of_gi = [key for key in self._of(uuid) if key.gi == gi]
        exact = [key for key in of_gi if key.ci == ci]
        if exact:
            return exact[0]
        # Some driver versions leave the compute instance out: it is clear where the GPU instance has only
        # one.
        return of_gi[0] if len(of_gi) == 1 and ci is None else DeviceKey(uuid, gi, ci)

    def opened(self, node: CapabilityNode) -> tuple[DeviceKey, ...]:
        """The MIG devices that a capability descriptor gives access to; GI access alone opens no compute
        instance.
        """
        uuid = self.by_minor(node.gpu_minor)
        if uuid is None or node.ci is None:
            return ()
        return tuple(key for key in self._of(uuid) if (key.gi, key.ci) == (node.gi, node.ci))

    def resolve(self, ref: DeviceRef) -> DeviceKey | None:
        """What a device id of the kubelet stands for, or None where that is not known or no NVML device."""
        match ref:
            case GpuByUuid(uuid):
                return DeviceKey(uuid)
            case GpuByMinor(minor):
                return DeviceKey(found) if (found := self.by_minor(minor)) else None
            case MigByUuid(mig_uuid):
                return self._instances.get(mig_uuid)
            case MigByInstance(uuid, minor, gi, ci):
                parent = uuid or (self.by_minor(minor) if minor is not None else None)
                return self.instance(parent, gi, ci) if parent else None
            case MigByPlacement():
                return self._placed(ref)
            case Passthrough() | Advisory() | Unrecognised():
                return None
            case _:
                assert_never(ref)

    def _placed(self, ref: MigByPlacement) -> DeviceKey | None:
        gpu = self.gpus.get(self.by_minor(ref.minor) or "")
        for one in gpu.instances if gpu else ():
            if one.profile_id == ref.profile_id and one.start == ref.start:
                return DeviceKey(gpu.uuid, one.gi, one.ci, one.mig_uuid) if gpu else None
        return None

    def _of(self, uuid: str) -> tuple[DeviceKey, ...]:
        known = self.known.get(uuid)
        return known.instances if known else ()


def _known(gpu: Gpu) -> KnownGpu:
    return KnownGpu(
        gpu.uuid,
        gpu.index,
        gpu.minor,
        tuple(DeviceKey(gpu.uuid, one.gi, one.ci, one.mig_uuid) for one in gpu.instances),
    )
