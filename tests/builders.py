"""Builders of records with quiet defaults, so that a test names only what matters to it.

Quiet means: one idle GPU that the driver, the PCI bus and the node object agree on, every source seen, no
process, no pod, nothing allocated. A source may be given as a record (then it was seen) or as a reading.
"""

from typing import TypeVar

from exporter.model import (
    NOBODY,
    NOTHING_FOUND,
    Allocation,
    Attribution,
    Basis,
    Cgroup,
    ContainerDev,
    ContainerKind,
    ContainerStatus,
    DeviceKey,
    DeviceNode,
    DeviceRef,
    DeviceUse,
    Diagnosis,
    Finding,
    FindingName,
    Gpu,
    GpuByUuid,
    GpuFault,
    Grant,
    History,
    Hold,
    Holds,
    InFlight,
    Kubelet,
    KubeletPod,
    LiveContainer,
    Memory,
    MigInstance,
    Missed,
    Node,
    NodeKind,
    Nvml,
    NvmlRow,
    Off,
    Owner,
    Pci,
    PciGpu,
    Pod,
    PodName,
    PodNames,
    Pods,
    Policy,
    Process,
    ProcessId,
    ProcessTable,
    ProcessUsage,
    Reading,
    Reason,
    Report,
    Seen,
    Snapshot,
    Subject,
    Telemetry,
    Use,
    Visibility,
    Workload,
    value,
)

T = TypeVar("T")

GIB = 2**30
MIB = 2**20
NOW = 1_760_000_000.0
MONOTONIC = 100_000.0
BOOT_TIME = NOW - MONOTONIC
TICKS = 100
RESOURCE = "nvidia.com/gpu"
IDLE = Telemetry(utilization=0.0, memory_activity=0.0)

MAJOR = 195
UVM_MAJOR = 511
CAPS_MAJOR = 509
MAJORS = {NodeKind.UVM: UVM_MAJOR, NodeKind.UVM_TOOLS: UVM_MAJOR, NodeKind.CAPABILITY: CAPS_MAJOR}
MINORS = {NodeKind.CONTROL: 255, NodeKind.MODESET: 254, NodeKind.UVM_TOOLS: 1}


# --- readings -----------------------------------------------------------------------------------------------


def seen(record: T, *, at: float = NOW, took: float = 0.01, complete: bool = True) -> Seen[T]:
    return Seen(record, at, took, complete)


def missed(
    reason: Reason = Reason.TIMEOUT, *, at: float = NOW, took: float = 5.0, detail: str = ""
) -> Missed:
    return Missed(reason, at, took, detail)


def _reading(given: T | Reading[T]) -> Reading[T]:
    return given if isinstance(given, Seen | Missed | Off) else seen(given)


# --- nvml ---------------------------------------------------------------------------------------------------


def gpu_uuid(index: int) -> str:
    return f"GPU-{index:08x}-0000-4000-8000-000000000000"


def mig_uuid(index: int, gi: int, ci: int = 0) -> str:
    return f"MIG-{index:08x}-{gi:04x}-4000-8000-{ci:012x}"


def memory(
    used: int = 0, *, total: int = 80 * GIB, reserved: int | None = 500 * MIB, version: int = 2
) -> Memory:
    return Memory(total, used, total - used - (reserved or 0), reserved, version)


def row(
    pid: int,
    used: int | None = GIB,
    *,
    gi: int | None = None,
    ci: int | None = None,
    kinds: tuple[str, ...] = ("compute",),
) -> NvmlRow:
    return NvmlRow(pid, gi, ci, used, kinds)


def gpu(
    index: int = 0,
    *,
    uuid: str = "",
    minor: int | None = -1,
    used: int = 0,
    frame_buffer: Memory | None = None,
    mig_enabled: bool | None = False,
    instances: tuple[MigInstance, ...] = (),
    rows: tuple[NvmlRow, ...] | None = (),
    rows_problem: str = "",
    usage: tuple[ProcessUsage, ...] | None = (),
    telemetry: Telemetry | None = None,
    product: str = "NVIDIA H100 80GB HBM3",
    lost: str = "",
    virtualization: str = "none",
    coherent_memory: bool | None = False,
    confidential: bool | None = False,
) -> Gpu:
    """An idle GPU. Its minor is its index unless given; `used` is a short form of `frame_buffer`.

    In MIG mode it has no utilisation, as on hardware.
    """
    return Gpu(
        uuid=uuid or gpu_uuid(index),
        index=index,
        minor=index if minor == -1 else minor,
        pci_address=f"0000:{index + 1:02x}:00.0",
        product=product,
        mig_enabled=mig_enabled,
        virtualization=virtualization,
        memory=frame_buffer or memory(used),
        coherent_memory=coherent_memory,
        confidential=confidential,
        instances=instances,
        rows=rows,
        rows_problem=rows_problem,
        usage=usage,
        telemetry=telemetry or (Telemetry() if mig_enabled else IDLE),
        lost=lost,
    )


def mig_instance(
    gi: int = 1,
    ci: int = 0,
    *,
    index: int = 0,
    uuid: str = "",
    profile: str = "1g.10gb",
    profile_id: int | None = 19,
    start: int | None = None,
    size: int | None = 1,
    used: int = 0,
    frame_buffer: Memory | None = None,
) -> MigInstance:
    """An idle MIG device; `index` is its parent's. It starts at the slice before its number unless told."""
    return MigInstance(
        mig_uuid=uuid or mig_uuid(index, gi, ci),
        gi=gi,
        ci=ci,
        profile=profile,
        profile_id=profile_id,
        start=gi - 1 if start is None else start,
        size=size,
        memory=frame_buffer or memory(used, total=10 * GIB, reserved=None),
    )


def nvml(*gpus: Gpu, count: int | None = None, faults: tuple[GpuFault, ...] = ()) -> Nvml:
    """What NVML says; one idle GPU unless told."""
    named = gpus or (gpu(),)
    return Nvml("570.148.08", "12.8", "12.570.148.08", len(named) if count is None else count, named, faults)


# --- processes ----------------------------------------------------------------------------------------------


def device_node(kind: NodeKind = NodeKind.GPU, minor: int | None = None) -> DeviceNode:
    return DeviceNode(kind, MAJORS.get(kind, MAJOR), MINORS.get(kind, 0) if minor is None else minor)


def hold(
    kind: NodeKind = NodeKind.GPU, minor: int | None = None, *, descriptors: int = 1, mappings: int = 0
) -> Hold:
    return Hold(device_node(kind, minor), descriptors, mappings)


def process(
    pid: int = 4000,
    *,
    start: int = 5_000_000,
    parent: int = 1,
    state: str = "S",
    comm: str = "python",
    exe: str = "/usr/bin/python3",
    pod_uid: str = "",
    container_id: str = "",
    unit: str = "",
    cgroup: Cgroup | None = None,
    holds: tuple[Hold, ...] = (),
    numbers: tuple[int, ...] = (),
    unread: tuple[str, ...] = (),
    threads: int = 1,
) -> Process:
    """A sleeping process in no pod that holds nothing."""
    return Process(
        id=ProcessId(pid, start),
        parent=parent,
        state=state,
        comm=comm,
        exe=exe,
        cgroup=cgroup or Cgroup(pod_uid, container_id, unit),
        threads=threads,
        holds=holds,
        numbers=numbers,
        unread=unread,
    )


def process_table(
    *processes: Process,
    containers: tuple[LiveContainer, ...] | None = None,
    missing: tuple[int, ...] = (),
    unreadable: tuple[int, ...] = (),
    truncated: int = 0,
    boot_id: str = "b0b0b0b0-0000-4000-8000-000000000000",
    driver_loaded: bool = True,
) -> ProcessTable:
    """A complete scan. Containers are those that the processes are in, unless given."""
    found: dict[tuple[str, str], LiveContainer] = {}
    for item in sorted(processes, key=lambda item: (item.id.start, item.id.pid)):
        group = item.cgroup
        if group.pod_uid and group.container_id:
            key = (group.pod_uid, group.container_id)
            found.setdefault(key, LiveContainer(*key, item.id))
    return ProcessTable(
        processes=processes,
        containers=tuple(found.values()) if containers is None else containers,
        missing=missing,
        unreadable=unreadable,
        scanned=200 + len(processes),
        truncated=truncated,
        capabilities=(),
        boot_id=boot_id,
        boot_time=BOOT_TIME,
        ticks_per_second=TICKS,
        driver_loaded=driver_loaded,
    )


# --- kubelet and API server ---------------------------------------------------------------------------------


def pod_uid(number: int = 1) -> str:
    return f"{number:08x}-aaaa-4000-8000-000000000000"


def container_id(number: int = 1) -> str:
    return f"{number:064x}"


def allocation(
    device_id: str = "",
    *,
    namespace: str = "team-a",
    pod: str = "train-0",
    container: str = "main",
    resource: str = RESOURCE,
    ref: DeviceRef | None = None,
    replica: str = "",
) -> Allocation:
    """The first GPU, given to the first pod; an id is taken for a GPU's UUID unless `ref` says what it is."""
    spelled = device_id or gpu_uuid(0)
    return Allocation(namespace, pod, container, resource, spelled, ref or GpuByUuid(spelled), replica)


def kubelet(*allocations: Allocation, pods: tuple[KubeletPod, ...] | None = None) -> Kubelet:
    """A kubelet that lists the pods of its allocations, unless told, and nothing as allocatable."""
    if pods is None:
        names = dict.fromkeys((given.namespace, given.pod) for given in allocations)
        pods = tuple(
            KubeletPod(
                namespace,
                name,
                tuple(
                    dict.fromkeys(
                        given.container
                        for given in allocations
                        if (given.namespace, given.pod) == (namespace, name)
                    )
                ),
            )
            for namespace, name in names
        )
    return Kubelet(pods, allocations, ())


def container_status(
    name: str = "main",
    *,
    kind: ContainerKind = ContainerKind.APP,
    identity: str = "",
    running: bool = True,
    started_at: float | None = NOW - 3600,
    privileged: bool = False,
) -> ContainerStatus:
    return ContainerStatus(
        name=name,
        kind=kind,
        container_id=identity or container_id(),
        running=running,
        ready=running,
        started_at=started_at,
        privileged=privileged,
    )


def pod(
    name: str = "train-0",
    *,
    namespace: str = "team-a",
    uid: str = "",
    phase: str = "Running",
    deletion_timestamp: float | None = None,
    containers: tuple[ContainerStatus, ...] | None = None,
    gpus: int = 0,
    annotations: tuple[tuple[str, str], ...] = (),
    labels: tuple[tuple[str, str], ...] = (),
    runtime_class: str = "",
) -> Pod:
    """A running pod with one container that wants no GPU."""
    return Pod(
        uid=uid or pod_uid(),
        cgroup_uid=uid or pod_uid(),
        namespace=namespace,
        name=name,
        phase=phase,
        deletion_timestamp=deletion_timestamp,
        containers=(container_status(),) if containers is None else containers,
        gpu_requests=((RESOURCE, gpus),) if gpus else (),
        annotations=annotations,
        labels=labels,
        runtime_class=runtime_class,
        ready=phase == "Running",
    )


def pod_name(name: str = "train-0", *, namespace: str = "team-a", uid: str = "") -> PodName:
    return PodName(uid or pod_uid(), namespace, name, ("main",))


def node(gpus: int = 1, *, allocatable: int | None = None, resource: str = RESOURCE) -> Node:
    free = gpus if allocatable is None else allocatable
    return Node("node-1", ((resource, gpus),), ((resource, free),))


def pci(*gpus: PciGpu) -> Pci:
    """The bus; it shows the GPU of `nvml()` unless told."""
    return Pci(gpus or (pci_gpu(),))


def pci_gpu(index: int = 0, *, driver: str = "nvidia") -> PciGpu:
    return PciGpu(f"0000:{index + 1:02x}:00.0", driver, index, gpu_uuid(index))


# --- a cycle ------------------------------------------------------------------------------------------------


def snapshot(
    *,
    nvml: Nvml | Reading[Nvml] | None = None,
    processes: ProcessTable | Reading[ProcessTable] | None = None,
    container_dev: ContainerDev | Reading[ContainerDev] | None = None,
    kubelet: Kubelet | Reading[Kubelet] | None = None,
    pods: Pods | Reading[Pods] | tuple[Pod, ...] | None = None,
    node: Node | Reading[Node] | None = None,
    pod_names: PodNames | Reading[PodNames] | tuple[PodName, ...] | None = None,
    pci: Pci | Reading[Pci] | None = None,
    in_flight: InFlight | None = None,
    at: float = NOW,
    monotonic: float = MONOTONIC,
    node_name: str = "node-1",
) -> Snapshot:
    """A look at a quiet node. The PCI bus and the node object agree with the GPUs, unless told."""
    drivers_view = _reading(_DEFAULT_NVML if nvml is None else nvml)
    named = value(drivers_view)
    gpus = named.gpus if named is not None else _DEFAULT_NVML.gpus
    bus = Pci(tuple(PciGpu(item.pci_address, "nvidia", item.minor, item.uuid) for item in gpus))
    resources = ((RESOURCE, len(gpus)),)
    return Snapshot(
        at=at,
        monotonic=monotonic,
        node_name=node_name,
        nvml=drivers_view,
        processes=_reading(process_table() if processes is None else processes),
        container_dev=_reading(ContainerDev(()) if container_dev is None else container_dev),
        kubelet=_reading(Kubelet((), (), ()) if kubelet is None else kubelet),
        pods=_reading(Pods(pods or ()) if pods is None or isinstance(pods, tuple) else pods),
        node=_reading(Node(node_name, resources, resources) if node is None else node),
        pod_names=_reading(
            PodNames(pod_names or ()) if pod_names is None or isinstance(pod_names, tuple) else pod_names
        ),
        pci=_reading(bus if pci is None else pci),
        nvml_in_flight=in_flight,
    )


_DEFAULT_NVML = nvml()


# --- what attribution makes of it ---------------------------------------------------------------------------


def key(index: int = 0, gi: int | None = None, ci: int | None = None) -> DeviceKey:
    """A GPU by its index, or a MIG device of it."""
    if gi is None:
        return DeviceKey(gpu_uuid(index))
    return DeviceKey(gpu_uuid(index), gi, ci, "" if ci is None else mig_uuid(index, gi, ci))


TRAINER = Workload("team-a", "train-0", "main")


def use(
    pid: int = 4000,
    device: DeviceKey | None = None,
    *,
    workload: Workload = TRAINER,
    start: int | None = 5_000_000,
    owner: Owner = Owner.POD,
    basis: Basis = Basis.API,
    visibility: Visibility = Visibility.BOTH,
    client: bool = True,
    comm: str = "python",
    state: str = "running",
    used: int | None = GIB,
    usage: ProcessUsage | None = None,
    uid: str = "",
) -> Use:
    """A process of the first pod on the first GPU. `start` None: /proc does not know it."""
    return Use(
        device=device or key(),
        pid=pid,
        process=None if start is None else ProcessId(pid, start),
        workload=workload,
        pod_uid=uid or (pod_uid() if owner in (Owner.POD, Owner.ORPHAN) else ""),
        container_id="",
        owner=owner,
        basis=basis,
        visibility=visibility,
        client=client,
        comm=comm,
        state=state,
        memory=used,
        usage=usage,
    )


def grant(
    device: DeviceKey | None = None,
    *,
    given: Allocation | None = None,
    workload: Workload = TRAINER,
    shared: bool = False,
    current: bool = True,
) -> Grant:
    """The first GPU, given to the first pod."""
    return Grant(given or allocation(), device, workload, pod_uid(), shared, current)


def device_use(
    device: DeviceKey | None = None,
    *,
    owner: Workload = NOBODY,
    allocated: bool | None = False,
    attributed: int | None = 0,
    unattributed: int | None = 0,
    baseline: int | None = 0,
) -> DeviceUse:
    return DeviceUse(device or key(), owner, allocated, attributed, unattributed, baseline)


def finding(
    name: FindingName = FindingName.STUCK_PROCESS,
    kind: str = "kill_pending",
    device: DeviceKey | None = None,
    *,
    of_node: bool = False,
    who: str | None = None,
    pid: int = 4000,
    start: int | None = 5_000_000,
    comm: str = "python",
    workload: Workload = TRAINER,
    uid: str | None = None,
    used: int | None = GIB,
    since: float = NOW - 300,
    active: bool = True,
    undetermined: str = "",
    explained_by: FindingName | None = None,
) -> Finding:
    """An active finding about a process of the first pod on the first GPU. `start` None: about no process."""
    return Finding(
        holds=Holds(
            subject=Subject(
                name, None if of_node else device or key(), f"{pid}/{start}" if who is None else who
            ),
            kind=kind,
            evidence=("somebody looked",),
            workload=workload,
            pod_uid=(pod_uid() if workload.pod else "") if uid is None else uid,
            pid=pid,
            comm=comm,
            memory=used,
            processes=() if start is None else (ProcessId(pid, start),),
        ),
        since=since,
        since_monotonic=MONOTONIC - (NOW - since),
        held_monotonic=MONOTONIC,
        cycles=20,
        active=active,
        undetermined=undetermined,
        explained_by=explained_by,
    )


def clear_of(*devices: DeviceKey, but: tuple[FindingName, ...] = ()) -> Diagnosis:
    """A diagnosis in which these devices and the node are clear of every finding, but for some."""
    node = FindingName.NODE_CAPACITY_MISMATCH
    names = [name for name in FindingName if name not in but]
    return Diagnosis(
        clear=(
            *((name, device) for name in names if name is not node for device in devices),
            *((name, None) for name in names if name is node),
        )
    )


def report(
    look: Snapshot | None = None,
    attribution: Attribution | None = None,
    *,
    history: History | None = None,
    policy: Policy | None = None,
    diagnosis: Diagnosis = NOTHING_FOUND,
) -> Report:
    """A first cycle. Where no attribution is given, its GPUs and MIG devices are unowned and unused."""
    look = look or snapshot()
    named = value(look.nvml)
    gpus = named.gpus if named is not None else ()
    if attribution is None:
        wholes = [device_use(DeviceKey(item.uuid)) for item in gpus]
        parts = [
            device_use(DeviceKey(item.uuid, mig.gi, mig.ci, mig.mig_uuid))
            for item in gpus
            for mig in item.instances
        ]
        scanned = isinstance(look.processes, Seen)
        attribution = Attribution(devices=(*wholes, *parts), holders=() if scanned else None)
    if history is None:
        history = History(indices=tuple((item.uuid, item.index) for item in gpus), cycles=1)
    return Report(policy or Policy(version="0.1.0"), look, attribution, history, diagnosis, took=0.02)
