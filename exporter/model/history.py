"""What is remembered from cycle to cycle."""

from __future__ import annotations

from dataclasses import dataclass

from exporter.model.attribution import Basis
from exporter.model.cluster import Allocation
from exporter.model.host import Cgroup, Process, Task
from exporter.model.identities import NOBODY, DeviceKey, ProcessId, Workload
from exporter.model.readings import Reason


@dataclass(frozen=True, slots=True)
class RowSighting:
    """When a number was first seen in a GPU's process list, and for how long it has been gone from it."""

    uuid: str
    pid: int
    first: float
    first_monotonic: float
    last_monotonic: float


@dataclass(frozen=True, slots=True)
class Known:
    """What is remembered of a process of interest while it lives, so that it keeps its name and owner when
    half gone.
    """

    id: ProcessId
    comm: str
    cgroup: Cgroup
    devices: tuple[DeviceKey, ...]
    numbers: tuple[int, ...]
    first: float
    last_monotonic: float
    workload: Workload = NOBODY
    pod_uid: str = ""
    client: bool = False
    blocked: tuple[Task, ...] = ()  # threads seen in state D in the last scan
    still: int = 0  # consecutive scans in which one of them had not moved: same ticks, same wait channel

    def still_in(self, process: Process) -> int:
        """The same count with one more scan, in which the process looks like `process`."""
        if not process.blocked:
            return 0
        return self.still + 1 if set(self.blocked) & set(process.blocked) else 1


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """What was last known of a GPU's identity, so that holders keep their device while NVML is silent."""

    uuid: str
    index: int
    minor: int | None
    instances: tuple[DeviceKey, ...] = ()


@dataclass(frozen=True, slots=True)
class NamedPod:
    """A pod UID of a cgroup and its name, kept while a process or the kubelet may still mention it."""

    uid: str
    namespace: str
    name: str
    basis: Basis
    last_monotonic: float
    containers: tuple[tuple[str, str], ...] = ()  # (container id, name)


@dataclass(frozen=True, slots=True)
class Carried:
    """The last word of the kubelet about one pod, until it is heard of again."""

    allocation: Allocation
    listed_monotonic: float


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """Health of one source over time. `errors` counts missed cycles by reason."""

    source: str
    last_success: float | None = None
    errors: tuple[tuple[Reason, int], ...] = ()
    up: bool | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """All state there is. Bounded (see `exporter.history`); emptied where a new boot or driver makes it
    meaningless.
    """

    boot_id: str = ""
    driver_version: str = ""
    indices: tuple[tuple[str, int], ...] = ()
    inventory: tuple[KnownGpu, ...] = ()
    rows: tuple[RowSighting, ...] = ()
    known: tuple[Known, ...] = ()
    pods: tuple[NamedPod, ...] = ()
    baselines: tuple[tuple[DeviceKey, int], ...] = ()
    last_active: tuple[tuple[str, float], ...] = ()
    carried: tuple[Carried, ...] = ()
    kubelet_settled: float | None = None  # monotonic time from which an absent pod counts as gone
    kubelet_heard: float | None = None  # monotonic time of the last List
    sources: tuple[SourceRecord, ...] = ()
    cycles: int = 0
    forgotten: int = 0  # entries dropped because a bound was reached
