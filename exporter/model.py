"""The vocabulary: what every other module talks about, and nothing else.

Records are frozen and hold plain values, tuples and each other: no library objects, no open files, no clocks.
`None` always means *not known or not supported*; a number is a number that somebody read (truth rules 1 and
2). Times are seconds since the epoch unless a name says otherwise, memory is in bytes, shares are ratios from
0 to 1. This module imports the standard library only and must never do I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")


# --- readings: what became of asking a source ---------------------------------------------------------------


class Reason(StrEnum):
    """Why a source gave nothing."""

    TIMEOUT = "timeout"  # asked in this cycle, no answer within the time a cycle waits
    BUSY = "busy"  # an earlier call is still in flight
    DENIED = "denied"  # permission
    UNAVAILABLE = "unavailable"  # nobody answers there: no library, no socket, no such path
    PROTOCOL = "protocol"  # an answer that cannot be understood
    BLIND = "blind"  # it can look, but not see what it must (hidepid, foreign pid namespace)
    PAUSED = "paused"  # switched off for now by the operator


class SourceError(Exception):
    """The only error that a source raises. `detail` is one printable line for the log."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """An answer. `complete` is False where the source knows that it saw only part."""

    value: T
    at: float
    took: float
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Missed:
    """No answer in this cycle. It never means zero, empty or healthy."""

    reason: Reason
    at: float
    took: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Off:
    """The operator does not want this source; nothing that needs it applies."""


Reading: TypeAlias = Seen[T] | Missed | Off


# --- identities ---------------------------------------------------------------------------------------------


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


# --- device ids as the kubelet's device plugins and DRA drivers spell them ----------------------------------


@dataclass(frozen=True, slots=True)
class GpuByUuid:
    """A whole GPU by UUID."""

    uuid: str


@dataclass(frozen=True, slots=True)
class GpuByMinor:
    """A whole GPU by device minor (GKE, DRA), which is not the NVML index."""

    minor: int


@dataclass(frozen=True, slots=True)
class MigByUuid:
    """A MIG device by its UUID."""

    mig_uuid: str


@dataclass(frozen=True, slots=True)
class MigByInstance:
    """A MIG device by its parent (UUID in old drivers' ids, minor at GKE) and instance numbers; ci None = any
    of the GI.
    """

    uuid: str | None
    minor: int | None
    gi: int
    ci: int | None


@dataclass(frozen=True, slots=True)
class MigByPlacement:
    """A MIG device of a DRA claim: parent minor, GPU-instance profile id, first memory slice."""

    minor: int
    profile_id: int
    start: int


@dataclass(frozen=True, slots=True)
class Passthrough:
    """A device handed to a virtual machine: there is no NVML device behind it."""

    name: str


@dataclass(frozen=True, slots=True)
class Advisory:
    """An id of a scheme whose kubelet choice is not the device that the container gets (HAMi, Volcano,
    gpushare, KAI).
    """

    scheme: str
    raw: str


@dataclass(frozen=True, slots=True)
class Unrecognised:
    """An id that no matcher knows. It is data: counted, exported, and it makes verdicts undetermined."""

    raw: str


DeviceRef: TypeAlias = (
    GpuByUuid
    | GpuByMinor
    | MigByUuid
    | MigByInstance
    | MigByPlacement
    | Passthrough
    | Advisory
    | Unrecognised
)


# --- source nvml --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Memory:
    """Frame buffer of a GPU or GPU instance. In version 1 `used` has the driver's reserve in it (nvml.h)."""

    total: int
    used: int
    free: int
    reserved: int | None = None
    version: int = 2


@dataclass(frozen=True, slots=True)
class NvmlRow:
    """One entry of NVML's process lists, merged over the lists by (gi, ci, pid).

    `pid` is the number as NVML gave it, which some drivers fill with a thread id. `memory` None = the driver
    says N/A.
    """

    pid: int
    gi: int | None = None
    ci: int | None = None
    memory: int | None = None
    kinds: tuple[str, ...] = ("compute",)  # of compute, graphics, mps


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """Shares of a GPU's engines that one process had since the last look; None = not given."""

    pid: int
    sm: float | None
    memory: float | None
    encoder: float | None
    decoder: float | None


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG device. Its memory belongs to the GPU instance: compute instances of one GI share it."""

    mig_uuid: str
    gi: int
    ci: int
    profile: str = ""
    profile_id: int | None = None
    start: int | None = None
    size: int | None = None
    memory: Memory | None = None


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What a thermometer, a wattmeter and the engine counters of one GPU say; absent where unsupported."""

    utilization: float | None = None
    memory_activity: float | None = None
    encoder: float | None = None
    decoder: float | None = None
    temperature: float | None = None  # degrees Celsius
    thresholds: tuple[tuple[str, float], ...] = ()  # (shutdown, slowdown, ...), degrees Celsius
    power: float | None = None  # watts
    power_limit: float | None = None  # watts, as enforced
    energy: float | None = None  # joules since the driver was loaded
    clocks: tuple[tuple[str, float], ...] = ()  # (graphics, sm, memory, video), hertz


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as NVML sees it in this cycle.

    `rows` is None where the process list could not be had or is not to be believed, and `rows_problem` says
    why; an empty tuple means that NVML lists nobody. `lost` is the NVML error of a GPU that stopped
    answering: then the inventory is what was read before.
    """

    uuid: str
    index: int
    minor: int | None = None
    pci_address: str = ""  # domain:bus:device.function as sysfs writes it
    product: str = ""
    mig_enabled: bool | None = None  # None: the GPU has no MIG
    virtualization: str = ""  # none, passthrough, vgpu, host_vgpu, host_vsga or unknown ""
    memory: Memory | None = None
    coherent_memory: bool | None = None  # frame buffer is a NUMA node or addressed by the CPU's page tables
    confidential: bool | None = None
    instances: tuple[MigInstance, ...] = ()
    rows: tuple[NvmlRow, ...] | None = None
    rows_problem: str = ""
    usage: tuple[ProcessUsage, ...] | None = None
    telemetry: Telemetry = field(default_factory=Telemetry)
    lost: str = ""


@dataclass(frozen=True, slots=True)
class GpuFault:
    """An NVML call on one GPU that failed with something else than *not supported*."""

    index: int
    uuid: str  # "" where the GPU could not even be named
    call: str
    error: str


@dataclass(frozen=True, slots=True)
class Nvml:
    """What the driver says of all its GPUs."""

    driver_version: str
    cuda_version: str
    nvml_version: str
    count: int  # as nvmlDeviceGetCount says, also of those that gave no handle
    gpus: tuple[Gpu, ...]
    faults: tuple[GpuFault, ...] = ()


@dataclass(frozen=True, slots=True)
class InFlight:
    """The NVML call that has not returned yet, and on which GPU."""

    call: str
    index: int | None
    uuid: str
    since: float


# --- source processes ---------------------------------------------------------------------------------------


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


# --- source container_dev -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ContainerView:
    """The NVIDIA nodes that a container's /dev shows; `unseen` says why `nodes` is not the truth, if so."""

    pod_uid: str
    container_id: str
    nodes: tuple[DeviceNode, ...]
    unseen: str = ""


@dataclass(frozen=True, slots=True)
class ContainerDev:
    """What the containers' /dev directories show."""

    views: tuple[ContainerView, ...]


# --- source kubelet -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Allocation:
    """The kubelet says: this container was given this device. `replica` is set for a shared device (`::n`,
    vgpu).
    """

    namespace: str
    pod: str
    container: str
    resource: str
    device_id: str
    ref: DeviceRef
    replica: str = ""


@dataclass(frozen=True, slots=True)
class KubeletPod:
    """A pod that the kubelet lists, with devices or without."""

    namespace: str
    name: str
    containers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AllocatableDevice:
    """A healthy device of a device plugin, given or not."""

    resource: str
    device_id: str
    ref: DeviceRef


@dataclass(frozen=True, slots=True)
class Kubelet:
    """One answer of the pod-resources API."""

    pods: tuple[KubeletPod, ...]
    allocations: tuple[Allocation, ...]
    allocatable: tuple[AllocatableDevice, ...] | None  # None: this kubelet does not offer the call


# --- sources pods, node, pod_names, pci ---------------------------------------------------------------------


class ContainerKind(StrEnum):
    """Which list of the pod a container stands in; a sidecar is a restartable init container."""

    APP = "app"
    INIT = "init"
    SIDECAR = "sidecar"
    EPHEMERAL = "ephemeral"


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """A container of a pod, as the API server has it."""

    name: str
    kind: ContainerKind
    container_id: str = ""  # without the runtime prefix
    previous_id: str = ""
    running: bool = False
    ready: bool = False
    started_at: float | None = None
    privileged: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of this node by the API server. `cgroup_uid` is the config hash for a static pod's mirror."""

    uid: str
    cgroup_uid: str
    namespace: str
    name: str
    phase: str
    deletion_timestamp: float | None = None
    containers: tuple[ContainerStatus, ...] = ()
    gpu_requests: tuple[tuple[str, int], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()  # only those that a GPU scheduler writes
    labels: tuple[tuple[str, str], ...] = ()  # only those that name a component of the GPU stack
    runtime_class: str = ""
    host_pid: bool = False
    ready: bool = False

    @property
    def ended(self) -> bool:
        """Whether all its containers have run to their end."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods of this node."""

    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """The node object."""

    name: str
    capacity: tuple[tuple[str, int], ...]  # resources of GPUs only
    allocatable: tuple[tuple[str, int], ...]
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PodName:
    """A directory `<namespace>_<name>_<uid>` of the kubelet's pod logs, and the containers that have logs in
    it.
    """

    uid: str
    namespace: str
    name: str
    containers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PodNames:
    """The directories of the kubelet's pod logs."""

    names: tuple[PodName, ...]


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


# --- one look at the node -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All readings of one cycle. `monotonic` counts on while the wall clock is set: it gives ages."""

    at: float
    monotonic: float
    node_name: str
    nvml: Reading[Nvml] = Off()
    processes: Reading[ProcessTable] = Off()
    container_dev: Reading[ContainerDev] = Off()
    kubelet: Reading[Kubelet] = Off()
    pods: Reading[Pods] = Off()
    node: Reading[Node] = Off()
    pod_names: Reading[PodNames] = Off()
    pci: Reading[Pci] = Off()
    nvml_in_flight: InFlight | None = None


SOURCES = ("nvml", "processes", "container_dev", "kubelet", "pods", "node", "pod_names", "pci")


def value(reading: Reading[T]) -> T | None:
    """The value of a reading that was seen, else None: for callers that treat missing and off alike."""
    return reading.value if isinstance(reading, Seen) else None


# --- attribution --------------------------------------------------------------------------------------------


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
class Workload:
    """The labels by which people know a container."""

    namespace: str = ""
    pod: str = ""
    container: str = ""


NOBODY = Workload()


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


# --- what is remembered -------------------------------------------------------------------------------------


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


# --- policy and report --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers that the operator may set, and those that the design fixes. Seconds and counts."""

    interval: float = 15.0
    kubelet_grace: float = 60.0
    kubelet_restart_grace: float = 180.0
    baseline_limit: int = 256 * 2**20
    remember: int = 8192  # bound of each table of the history
    stuck_reads: int = 5  # scans without progress after which a process in state D is called stuck
    process_series: bool = True
    process_series_limit: int = 512
    telemetry: bool = True
    version: str = ""
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one cycle, and all that the next one needs of it."""

    policy: Policy
    snapshot: Snapshot
    attribution: Attribution
    history: History
    took: float | None = None  # seconds that gathering and judging took, once that is known
