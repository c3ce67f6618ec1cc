"""Small random nodes over time: what hypothesis draws for the properties of the diagnosis.

A history begins with a node and changes it part by part, so that most of what is wrong stays wrong for a few
cycles. In some, sources come, go, and tell only a part of the truth (losses.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from hypothesis import strategies as st

from exporter.model import (
    AllocatableDevice,
    Allocation,
    CapabilityNode,
    Cgroup,
    ContainerDev,
    ContainerKind,
    ContainerView,
    DeviceRef,
    Gpu,
    GpuByUuid,
    Kubelet,
    KubeletPod,
    LiveContainer,
    MigByUuid,
    Node,
    NodeKind,
    NvmlRow,
    Passthrough,
    Pod,
    PodName,
    Pods,
    Policy,
    Process,
    ProcessId,
    ProcessTable,
    Snapshot,
    Task,
    Unrecognised,
)
from tests import builders as b
from tests.unit.losses import LOSSES, lose

T = TypeVar("T")
PODS = (1, 2, 3)
PIDS = (100, 101, 102, 103)
THREADS = 1000  # thread ids of a process are its pid and this
NOBODYS = 9  # a number that no process has
CYCLE = 15.0
OLD = 5_000_000  # start of most processes, in clock ticks since boot
CAPABILITIES = (CapabilityNode(31, 1, 1, 0), CapabilityNode(41, 1, 2, 0))
SERVICES = ("", "session-7.scope", "nvidia-persistenced.service", "train.service")
RESOURCES = (b.RESOURCE, "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb")
IDS: tuple[tuple[str, DeviceRef, str, str], ...] = (
    (b.gpu_uuid(0), GpuByUuid(b.gpu_uuid(0)), "", RESOURCES[0]),
    (b.gpu_uuid(1), GpuByUuid(b.gpu_uuid(1)), "", RESOURCES[0]),
    (f"{b.gpu_uuid(0)}::1", GpuByUuid(b.gpu_uuid(0)), "1", RESOURCES[1]),
    (b.mig_uuid(1, 1), MigByUuid(b.mig_uuid(1, 1)), "", RESOURCES[2]),
    (b.gpu_uuid(7), GpuByUuid(b.gpu_uuid(7)), "", RESOURCES[0]),  # of a GPU that is not there
    ("0000:65:00.0", Passthrough("0000:65:00.0"), "", "nvidia.com/GH100_H100"),
    ("odd", Unrecognised("odd"), "", "example.com/odd"),
)


def policy(ages: float | None, kinds: tuple[str, ...] = ()) -> Policy:
    """The defaults, or every kind at one age."""
    return Policy(version="0", ages=() if ages is None else tuple((kind, ages) for kind in sorted(kinds)))


@dataclass(frozen=True, slots=True)
class World:
    """What is true on the node, part by part."""

    gpus: tuple[Gpu, ...]
    processes: tuple[Process, ...]
    kubelet: Kubelet
    pods: tuple[Pod, ...]
    names: tuple[PodName, ...]
    views: tuple[ContainerView, ...]
    node: Node


# ---------------------------------------------------------------- parts


@st.composite
def rows(draw: st.DrawFn, instances: tuple[int | None, ...]) -> tuple[NvmlRow, ...]:
    """Processes, their threads and a number of nobody's."""
    numbers = (*PIDS, PIDS[0] + THREADS, NOBODYS)
    chosen = draw(st.lists(st.sampled_from(numbers), unique=True, max_size=4))
    made = []
    for number in chosen:
        gi = draw(st.sampled_from(instances))
        size = draw(st.sampled_from((b.GIB, b.GIB, b.GIB, 0, None)))
        made.append(b.row(number, size, gi=gi, ci=None if gi is None else 0))
    return tuple(made)


@st.composite
def gpus(draw: st.DrawFn, seconds: float) -> tuple[Gpu, ...]:
    """One whole GPU and perhaps one in MIG mode; either may leak, be lost or keep its list to itself."""
    del seconds
    made = []
    for index in range(draw(st.sampled_from((1, 2, 2)))):
        listed = draw(st.none() | rows((1, 2) if index else (None,)))
        parts = tuple(b.mig_instance(gi, index=index, used=draw(_leaks)) for gi in (1, 2)) if index else ()
        lost = draw(st.sampled_from(("", "", "", "", "GPU_IS_LOST")))
        made.append(
            b.gpu(
                index,
                used=sum(row.memory or 0 for row in listed or ()) + draw(_leaks),
                mig_enabled=bool(index),
                instances=parts,
                rows=None if lost else listed,
                usage=None,
                lost=lost,
            )
        )
    return tuple(made)


_leaks = st.sampled_from((0, 0, 4 * b.GIB))


@st.composite
def processes(draw: st.DrawFn, seconds: float) -> tuple[Process, ...]:
    """Up to four, in pods or not, on GPUs or not, well or not; some began only just now."""
    made = []
    for pid in PIDS:
        if draw(st.integers(0, 2)) == 0:
            continue
        pod = draw(st.sampled_from((0, *PODS)))
        kinds = draw(st.sets(st.sampled_from((NodeKind.UVM, NodeKind.GPU, NodeKind.CAPABILITY))))
        minors = {NodeKind.UVM: (None,), NodeKind.GPU: (0, 1), NodeKind.CAPABILITY: (31, 41)}
        holds = tuple(
            b.hold(kind, draw(st.sampled_from(minors[kind])), mappings=draw(st.integers(0, 1)))
            for kind in sorted(kinds)
        )
        group = Cgroup(deleted=draw(st.sampled_from((False, False, True))))
        if pod:  # some runtimes show the container and not the pod
            uid = b.pod_uid(pod) if draw(st.integers(0, 4)) else ""
            old = draw(st.sampled_from((0, 0, 0, 50)))
            group = replace(group, pod_uid=uid, container_id=b.container_id(pod + old))
        else:
            group = replace(group, unit=draw(st.sampled_from(SERVICES)))
        began = draw(st.sampled_from((None, None, None, seconds - 5)))
        process = b.process(
            pid,
            start=OLD if began is None else int((b.MONOTONIC + began) * b.TICKS),
            state=draw(st.sampled_from("SSSDZ")),
            cgroup=group,
            holds=holds,
            parent=draw(st.sampled_from((1, PIDS[0], PIDS[1]))),
            threads=draw(st.sampled_from((1, 1, 2))),
        )
        blocked = draw(st.lists(st.sampled_from(_TASKS), unique=True, max_size=2))
        state = draw(st.sampled_from(("", "", "", "exiting", "kill_pending", "dumping")))
        changes = {state: True} if state else {}
        made.append(replace(process, blocked=tuple(blocked), **changes))  # type: ignore[arg-type]
    return tuple(made)


HUNG = (Task(200, 7, "nv_lock"), Task(201, 9, "folio_wait_bit"))
_TASKS = (*HUNG, Task(202, 1, "__refrigerator"))


@st.composite
def kubelets(draw: st.DrawFn, seconds: float) -> Kubelet:
    """Pods, with devices or without, and healthy devices."""
    del seconds
    listed: list[KubeletPod] = []
    given: list[Allocation] = []
    for number in sorted(draw(st.sets(st.sampled_from(PODS)))):
        listed.append(KubeletPod("team-a", f"train-{number}", ("main",)))
        for identity, ref, replica, resource in draw(st.lists(st.sampled_from(IDS), unique=True, max_size=2)):
            given.append(Allocation("team-a", f"train-{number}", "main", resource, identity, ref, replica))
    healthy = tuple(
        AllocatableDevice(resource, identity, ref)
        for identity, ref, _, resource in draw(st.lists(st.sampled_from(IDS[:4]), unique=True))
    )
    return Kubelet(tuple(listed), tuple(given), draw(st.sampled_from((healthy, None))))


@st.composite
def pods(draw: st.DrawFn, seconds: float) -> tuple[Pod, ...]:
    """Pods of the API server: running, ended, terminating, with a container of now or of before."""
    made = []
    for number in sorted(draw(st.sets(st.sampled_from(PODS)))):
        since = draw(st.sampled_from((b.NOW - 3600, b.NOW - 3600, b.NOW + seconds - 5)))
        status = b.container_status(
            identity=b.container_id(number),
            running=draw(st.sampled_from((True, True, True, False))),
            started_at=since,
            privileged=draw(st.booleans()),
            kind=draw(st.sampled_from((ContainerKind.APP, ContainerKind.APP, ContainerKind.INIT))),
        )
        made.append(
            b.pod(
                f"train-{number}",
                uid=b.pod_uid(number),
                phase=draw(st.sampled_from(("Running", "Running", "Running", "Succeeded"))),
                deletion_timestamp=draw(st.sampled_from((None, None, b.NOW - 600, b.NOW + seconds))),
                containers=(status,),
                annotations=draw(st.sampled_from(((), (), (), (("hami.io/vgpu-time", "1"),)))),
                runtime_class=draw(st.sampled_from(("", "", "kata-qemu"))),
            )
        )
    return tuple(made)


@st.composite
def names(draw: st.DrawFn, seconds: float) -> tuple[PodName, ...]:
    """Log directories of pods."""
    del seconds
    chosen = draw(st.sets(st.sampled_from(PODS)))
    return tuple(b.pod_name(f"train-{number}", uid=b.pod_uid(number)) for number in sorted(chosen))


@st.composite
def views(draw: st.DrawFn, seconds: float) -> tuple[ContainerView, ...]:
    """What containers see in their /dev."""
    del seconds
    made = []
    for number in sorted(draw(st.sets(st.sampled_from(PODS)))):
        seen = draw(st.sets(st.sampled_from((0, 1))))
        nodes = [b.device_node(minor=minor) for minor in sorted(seen)]
        nodes += [b.device_node(NodeKind.CAPABILITY, minor) for minor in draw(st.sets(st.just(31)))]
        unseen = draw(st.sampled_from(("", "", "", "denied")))
        made.append(
            ContainerView(
                b.pod_uid(number),
                b.container_id(number),
                () if unseen else tuple(nodes),
                unseen,
                draw(st.sampled_from((False, False, True))),
            )
        )
    return tuple(made)


@st.composite
def nodes(draw: st.DrawFn, seconds: float) -> Node:
    """Counts that may or may not agree with what there is."""
    del seconds
    counts = [(resource, draw(st.integers(0, 2))) for resource in RESOURCES]
    free = [(resource, draw(st.integers(0, count))) for resource, count in counts]
    return Node("node-1", tuple(counts), tuple(free))


PARTS = {
    "gpus": gpus,
    "processes": processes,
    "kubelet": kubelets,
    "pods": pods,
    "names": names,
    "views": views,
    "node": nodes,
}

# ---------------------------------------------------------------- over time


def look(world: World, seconds: float, *, api_age: float = 0.0, bus: int = 2) -> Snapshot:
    """The node as all sources show it, so many seconds after the beginning."""
    listed = {row.pid for gpu in world.gpus for row in gpu.rows or ()}
    told = tuple(
        replace(_with_files(world, one), numbers=tuple(sorted(listed & {one.id.pid, one.id.pid + THREADS})))
        for one in world.processes
    )
    known = {number for one in told for number in one.numbers}
    table = b.process_table(*told, missing=tuple(sorted(listed - known)))
    at = b.NOW + seconds
    return b.snapshot(
        nvml=b.seen(b.nvml(*world.gpus), at=at),
        processes=b.seen(
            replace(table, capabilities=CAPABILITIES, containers=_containers(world, table)), at=at
        ),
        container_dev=b.seen(ContainerDev(world.views), at=at),
        kubelet=b.seen(world.kubelet, at=at),
        pods=b.seen(Pods(world.pods), at=at - api_age),
        node=world.node,
        pod_names=world.names,
        pci=b.pci(*(b.pci_gpu(index) for index in range(bus))),
        at=at,
        monotonic=b.MONOTONIC + seconds,
    )


def _with_files(world: World, process: Process) -> Process:
    """Who is listed and well has the files of what it is listed on; one that began lately and has none, has
    only the number.
    """
    if (process.id.start > OLD and not process.holds) or process.dying:
        return process
    needed = set()
    for gpu in world.gpus:
        for row in gpu.rows or ():
            if row.pid in (process.id.pid, process.id.pid + THREADS):
                needed.add(b.hold(minor=gpu.minor))
                needed |= {
                    b.hold(NodeKind.CAPABILITY, one.minor)
                    for one in CAPABILITIES
                    if (one.gpu_minor, one.gi) == (gpu.minor, row.gi)
                }
    there = {hold.node for hold in process.holds}
    missing = sorted((hold for hold in needed if hold.node not in there), key=lambda hold: hold.node)
    return replace(process, holds=(*process.holds, *missing))


def _containers(world: World, table: ProcessTable) -> tuple[LiveContainer, ...]:
    """Every pod that the kubelet lists has one, if only its sandbox, until it has ended."""
    over = {pod.name for pod in world.pods if pod.ended}
    numbers = [int(pod.name.rpartition("-")[2]) for pod in world.kubelet.pods if pod.name not in over]
    listed = {(b.pod_uid(number), b.container_id(number)): ProcessId(50 + number, OLD) for number in numbers}
    living = {(one.pod_uid, one.container_id): one.process for one in table.containers}
    return tuple(LiveContainer(*key, process) for key, process in sorted((listed | living).items()))


class Frames(list[Snapshot]):
    """A history that says only its length: nobody reads the pages that its records fill."""

    def __repr__(self) -> str:
        return f"<{len(self)} frames>"


@st.composite
def histories(draw: st.DrawFn, least: int = 1, most: int = 6) -> Frames:
    """A few cycles of one node. Most of it stays as it is from one cycle to the next."""
    seconds = 0.0
    world = World(**{name: draw(part(seconds)) for name, part in PARTS.items()})  # type: ignore[arg-type]
    found = Frames()
    for _ in range(draw(st.integers(least, most))):
        age = draw(st.sampled_from((0.0, 0.0, 40.0)))
        found.append(look(world, seconds, api_age=age, bus=draw(st.sampled_from((2, 2, 2, 1)))))
        seconds += draw(st.sampled_from((CYCLE, CYCLE, CYCLE, CYCLE, 130.0, 500.0)))
        for name in sorted(draw(st.sets(st.sampled_from(sorted(PARTS)), max_size=2))):
            if draw(st.booleans()):
                change: dict[str, Any] = {name: draw(PARTS[name](seconds))}
                world = replace(world, **change)
    return found


@st.composite
def stormy_histories(draw: st.DrawFn, most: int = 7) -> Frames:
    """The same, in which sources come, go and tell only a part."""
    found = Frames()
    for whole in draw(histories(most=most)):
        frame = whole
        for loss in sorted(draw(st.sets(st.sampled_from(LOSSES), max_size=2))):
            frame = lose(frame, loss)
        found.append(frame)
    return found
