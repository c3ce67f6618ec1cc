"""What the host shows: records of the sources processes, container_dev and pci."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from exporter.model.identities import DeviceNode, ProcessId

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cgroup:
    """Where a process lives. All empty: the host's root group, or a text that says nothing."""

    pod_uid: str = ""
    container_id: str = ""
    unit: str = ""  # host unit, e.g. nvidia-persistenced.service
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """A device file that a process has open or mapped. Descriptors opened with O_PATH hold nothing and are
    not counted.
    """

    node: DeviceNode
    descriptors: int = 0
    mappings: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """A thread in uninterruptible sleep, with what tells whether it moves."""

    tid: int
    cpu_ticks: int
    wchan: str


@dataclass(frozen=True, slots=True)
class Process:
    """One process of interest: a holder, one that NVML names, or a parent of such a one."""

    id: ProcessId
    parent: int
    state: str  # proc(5): R S D Z T t X I
    comm: str
    exe: str = ""
    cgroup: Cgroup = field(default_factory=Cgroup)
    threads: int = 1
    exiting: bool = False  # PF_EXITING (include/linux/sched.h)
    kill_pending: bool = False
    dumping: bool = False  # a core dump is being written
    cpu_ticks: int = 0
    wchan: str = ""
    blocked: tuple[Task, ...] = ()  # its threads in state D
    holds: tuple[Hold, ...] = ()
    numbers: tuple[int, ...] = ()  # numbers in NVML's lists that are this process or a thread of it
    unread: tuple[str, ...] = ()  # parts of /proc/PID that could not be read

    @property
    def dying(self) -> bool:
        """Whether it is dead, or has begun to end and let go of its files."""
        return self.exiting or self.state in "ZX"


@dataclass(frozen=True, slots=True)
class LiveContainer:
    """A container of a pod that has at least one process; `process` is the one with the lowest pid."""

    pod_uid: str
    container_id: str
    process: ProcessId


@dataclass(frozen=True, slots=True)
class CapabilityNode:
    """What an nvidia-caps minor gives access to (/proc/driver/nvidia-caps/mig-minors); gpu_minor is a device
    minor.
    """

    minor: int
    gpu_minor: int
    gi: int
    ci: int | None


@dataclass(frozen=True, slots=True)
class ProcessTable:
    """One scan of the host."""

    processes: tuple[Process, ...]
    containers: tuple[LiveContainer, ...]
    missing: tuple[int, ...]  # numbers asked for that have no /proc entry
    unreadable: tuple[int, ...]  # processes whose descriptors or mappings could not be read
    scanned: int
    truncated: int  # processes whose descriptors were not all looked at, because of a cap
    capabilities: tuple[CapabilityNode, ...]
    boot_id: str
    boot_time: float
    ticks_per_second: int
    driver_loaded: bool  # /proc/devices names an NVIDIA device
    agent: int = 0  # pid of the agent itself, whose children hold device files too


@dataclass(frozen=True, slots=True)
class ContainerView:
    """The NVIDIA nodes that a container's /dev shows; `unseen` says why `nodes` is not the truth, if so."""

    pod_uid: str
    container_id: str
    nodes: tuple[DeviceNode, ...]
    unseen: str = ""
    host: bool = False  # its /dev is the host's own
    exe: str = ""  # executable of the process that was asked, "" where it cannot be read


@dataclass(frozen=True, slots=True)
class ContainerDev:
    """What the containers' /dev directories show."""

    views: tuple[ContainerView, ...]


@dataclass(frozen=True, slots=True)
class PciGpu:
    """An NVIDIA GPU on the PCI bus."""

    address: str
    driver: str = ""  # nvidia, vfio-pci, nouveau, ... or "" when unbound
    minor: int | None = None
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Pci:
    """The PCI bus."""

    gpus: tuple[PciGpu, ...]
