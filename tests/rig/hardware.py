"""The rig's GPUs: one record each, from which NVML's document, sysfs, procfs and the kubelet's ids are told.

Stand-in: the hardware. What one source says about a GPU and what another says come from the same record, so
they agree unless a test makes them disagree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.rig.nvml import node as nvml

GIB = nvml.GIB
MIB = nvml.MIB
RESERVED = 640 * MIB
DRIVER = "570.148.08"


@dataclass(slots=True)
class Row:
    """One row of an NVML process list."""

    pid: int
    memory: int | None
    graphics: bool = False


@dataclass(slots=True)
class Mig:
    """A MIG instance with one compute instance. `caps`: its capability minors (GI, CI), if any."""

    gpu: Gpu
    uuid: str
    slot: int
    gi: int
    ci: int
    profile: str
    total: int
    start: int
    caps: tuple[int, int] | None = None
    rows: list[Row] = field(default_factory=list)
    extra: int = 0

    @property
    def resource(self) -> str:
        """The resource name under which a device plugin offers it."""
        return f"nvidia.com/mig-{self.profile}"

    @property
    def device_ids(self) -> list[str]:
        """The ids under which a device plugin offers it."""
        return [self.uuid]

    @property
    def used(self) -> int:
        """Bytes used: the listed processes and what nobody is listed for."""
        return sum(row.memory or 0 for row in self.rows) + self.extra

    def document(self) -> nvml.Object:
        """The instance in NVML's document."""
        return nvml.mig_instance(
            self.slot,
            self.gi,
            uuid=self.uuid,
            ci=self.ci,
            profile=self.profile,
            placement={"start": self.start, "size": 1},
            memory=nvml.memory(self.total, self.used),
        )


@dataclass(slots=True)
class Gpu:
    """A GPU. `extra` are bytes used that no listed process accounts for; `replicas` makes it time-sliced."""

    index: int
    uuid: str
    minor: int
    address: str
    name: str = "NVIDIA A100-SXM4-40GB"
    total: int = 40 * GIB
    mig: bool = False
    replicas: int = 0
    numa_node: int = 0
    utilization: int = 0
    rows: list[Row] = field(default_factory=list)
    instances: list[Mig] = field(default_factory=list)
    extra: int = 0
    overrides: nvml.Object = field(default_factory=dict)

    @property
    def resource(self) -> str:
        """The resource name under which a device plugin offers it."""
        return "nvidia.com/gpu.shared" if self.replicas else "nvidia.com/gpu"

    @property
    def device_ids(self) -> list[str]:
        """The ids under which a device plugin offers it: one, a replica each, or none of a MIG parent."""
        if self.mig:
            return []
        return [f"{self.uuid}::{index}" for index in range(self.replicas)] if self.replicas else [self.uuid]

    @property
    def used(self) -> int:
        """Bytes used, those of its instances included."""
        listed = sum(row.memory or 0 for row in self.rows)
        return listed + self.extra + sum(one.used for one in self.instances)

    def targets(self) -> Iterator[Gpu | Mig]:
        """The GPU and its instances."""
        yield self
        yield from self.instances

    def document(self) -> nvml.Object:
        """The GPU in NVML's document. On MIG the parent lists its instances' processes, by GI and CI."""
        compute = [nvml.process(row.pid, row.memory) for row in self.rows if not row.graphics]
        for one in self.instances:
            compute += [nvml.process(row.pid, row.memory, one.gi, one.ci) for row in one.rows]
        changes: nvml.Object = {
            "uuid": self.uuid,
            "minor": self.minor,
            "pci": f"0000{self.address.upper()}",
            "name": self.name,
            "memory": nvml.memory(self.total, self.used, RESERVED),
            "compute": compute,
            "graphics": [nvml.process(row.pid, row.memory) for row in self.rows if row.graphics],
        }
        if self.mig:
            documents = [one.document() for one in self.instances]
            return nvml.mig_gpu(self.index, *documents, **(changes | self.overrides))
        changes["utilization"] = {"gpu": self.utilization, "memory": self.utilization // 2}
        return nvml.gpu(self.index, **(changes | self.overrides))


Target = Gpu | Mig
