"""Identities that last longer than a cycle: processes, device nodes, devices, workloads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """A process of this boot: thread-group id and the leader's start in clock ticks since boot (proc(5), stat
    22).
    """

    pid: int
    start: int


class NodeKind(StrEnum):
    """What a character device of the NVIDIA driver is for."""

    GPU = "gpu"
    CONTROL = "control"
    MODESET = "modeset"
    UVM = "uvm"
    UVM_TOOLS = "uvm_tools"
    CAPABILITY = "capability"
    IMEX = "imex"
    NVSWITCH = "nvswitch"
    NVLINK = "nvlink"


@dataclass(frozen=True, slots=True, order=True)
class DeviceNode:
    """A device file by what the kernel says it is: its number, never its name."""

    kind: NodeKind
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class DeviceKey:
    """One thing that can be used or given: a whole GPU, or a MIG device of one.

    `uuid` is the (parent) GPU's. `gi` and `ci` are None for a whole GPU; `mig_uuid` is "" there and wherever
    the MIG device of (gi, ci) is not known.
    """

    uuid: str
    gi: int | None = None
    ci: int | None = None
    mig_uuid: str = ""

    @property
    def order(self) -> tuple[str, int, int, str]:
        """A sort key: None comes first."""
        none = -1
        return (
            self.uuid,
            none if self.gi is None else self.gi,
            none if self.ci is None else self.ci,
            self.mig_uuid,
        )


@dataclass(frozen=True, slots=True)
class Workload:
    """The labels by which people know a container."""

    namespace: str = ""
    pod: str = ""
    container: str = ""


NOBODY = Workload()
