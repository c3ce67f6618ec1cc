"""The join of one cycle: who uses what, what was given to whom."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from exporter.model.cluster import Allocation
from exporter.model.driver import ProcessUsage
from exporter.model.identities import DeviceKey, DeviceNode, ProcessId, Workload


class Owner(StrEnum):
    """To whom a process belongs. Orphan: its pod is gone by the word of API server and kubelet."""

    POD = "pod"
    HOST = "host"
    SYSTEM = "system"
    ORPHAN = "orphan"
    UNKNOWN = "unknown"


class Visibility(StrEnum):
    """Who shows that a process is on a GPU: NVML's list, its open device files, or both."""

    NVML = "nvml"
    HOLDER = "holder"
    BOTH = "both"


class Basis(StrEnum):
    """By which evidence a pod got its name."""

    API = "api"  # the API server's pod with the UID of the cgroup
    KUBELET = "kubelet"  # log directory of that UID, and the kubelet lists the name
    LOGS = "logs"  # log directory of that UID alone
    MEMORY = "memory"  # one of the above, in an earlier cycle
    UID = "uid"  # nothing knows a name for the UID
    NONE = "none"  # in no pod


@dataclass(frozen=True, slots=True)
class Use:
    """A process on a device: one row per device on which it has an NVML row, a descriptor or a mapping.

    `process` is None where NVML lists a number that /proc lacks; `pid` is what users see.
    """

    device: DeviceKey
    pid: int
    process: ProcessId | None
    workload: Workload
    pod_uid: str
    container_id: str
    owner: Owner
    basis: Basis
    visibility: Visibility
    client: bool  # NVML row, nvidia-uvm descriptor or device mapping: it can own memory
    comm: str
    state: str  # running, stuck, zombie, exiting, stopped or "" unknown
    memory: int | None = None
    usage: ProcessUsage | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """A device that the kubelet gave to a container, resolved to what NVML knows.

    `device` is None where the id resolves to nothing that NVML shows. `shared` = the id says that others may
    be given the same device. `current` False = carried over from before a kubelet restart: not known, not to
    be exported.
    """

    allocation: Allocation
    device: DeviceKey | None
    workload: Workload
    pod_uid: str
    shared: bool
    current: bool = True


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What is known of one device as a whole. None = not known."""

    device: DeviceKey
    owner: Workload
    allocated: bool | None
    attributed: int | None = None
    unattributed: int | None = None
    baseline: int | None = None


@dataclass(frozen=True, slots=True)
class FileHolders:
    """Open descriptors and mappings of one device file, by who has them."""

    node: DeviceNode
    owner: Owner
    count: int


@dataclass(frozen=True, slots=True)
class Attribution:
    """The readings of one cycle, joined."""

    uses: tuple[Use, ...] = ()
    grants: tuple[Grant, ...] = ()
    devices: tuple[DeviceUse, ...] = ()
    holders: tuple[FileHolders, ...] | None = None  # None: the scan was not had
    unnamed_pods: tuple[str, ...] = ()  # cgroup UIDs that no source has a name for
    api_behind: bool = (
        False  # a cgroup or the kubelet knows of a pod that the API list lacks, or the other way round
    )
