"""What the sources show of a node: late, in part, or not at all. State in, one Snapshot per cycle out.

Each source lags or fails as the real one does: NVML hangs or loses a card, its rows run a cycle behind /proc
or ahead of it, the API server is asked once a minute and on need, the kubelet restarts with an empty list.
"""

from dataclasses import replace
from typing import TypeVar

from exporter.model import (
    CapabilityNode,
    Cgroup,
    ContainerDev,
    ContainerView,
    Gpu,
    Kubelet,
    LiveContainer,
    Memory,
    MigInstance,
    Missed,
    Nvml,
    NvmlRow,
    Pci,
    PciGpu,
    PodName,
    PodNames,
    Pods,
    Process,
    ProcessId,
    ProcessTable,
    Reading,
    Reason,
    Seen,
    Snapshot,
    Telemetry,
)
from exporter.model import (
    Node as NodeObject,
)
from tests.simulation.node_cluster import container_nodes, holds, kubelet, pods
from tests.simulation.node_life import Life
from tests.simulation.node_state import BOOT, EPOCH, GIB, LAST_SEEN, MIB, TICKS, Card, Node, Proc

T = TypeVar("T")


class Senses:
    """The eight sources, and what is the matter with each."""

    def __init__(self, node: Node, life: Life) -> None:
        self.node = node
        self.life = life
        self.nvml_fault = ""  # hang, missed, partial
        self.scan_fault = ""  # missed, incomplete
        self.kubelet_state = "full"  # refused, empty, partial, full, mute
        self.kubelet_doubt = False  # its next answer comes from a new socket
        self.empty_since: float | None = None
        self.lagging = False
        self.watched: set[int] = set()
        self._rows: dict[str, tuple[NvmlRow, ...]] = {}
        self._hung = 0
        self._api: Reading[Pods] = Missed(Reason.UNAVAILABLE, EPOCH, 0.0)
        self._node: Reading[NodeObject] = Missed(Reason.UNAVAILABLE, EPOCH, 0.0)
        self._asked = 0.0
        self._due = 0.0

    def snapshot(self) -> Snapshot:
        """One look at everything."""
        node = self.node
        nvml = self._nvml()
        listed = self._kubelet()
        self._poll(listed)
        table = self._scan(nvml)
        return Snapshot(
            at=node.now,
            monotonic=node.now - BOOT,
            node_name="sim",
            nvml=nvml,
            processes=table,
            container_dev=self._views(table),
            kubelet=listed,
            pods=self._api,
            node=self._node,
            pod_names=self._seen(self._names()),
            pci=self._seen(Pci(tuple(PciGpu(_address(c), "nvidia", c.minor, c.uuid) for c in node.cards))),
        )

    def _seen(self, value: T, *, complete: bool = True) -> Seen[T]:
        return Seen(value, self.node.now, 0.01, complete)

    def _missed(self, reason: Reason) -> Missed:
        return Missed(reason, self.node.now, 5.0)

    # --- nvml

    def _nvml(self) -> Reading[Nvml]:
        if self.nvml_fault in ("hang", "missed"):
            self._hung += 1
            self._rows = {}  # the next list is not older than a cycle
            return self._missed(Reason.TIMEOUT if self._hung == 1 else Reason.BUSY)
        self._hung = 0
        cards = [card for card in self.node.cards if not card.fallen]
        rows = {card.uuid: driver_rows(self.node, card) for card in cards}
        shown = {uuid: self._lagged(uuid, now) for uuid, now in rows.items()}
        self._rows = rows
        gpus = tuple(self._gpu(card, index, shown[card.uuid]) for index, card in enumerate(cards))
        partial = self.nvml_fault == "partial"
        nvml = Nvml(self.node.driver, "12.8", "12.570", len(cards), gpus[:1] if partial else gpus)
        return self._seen(nvml, complete=not partial)

    def _lagged(self, uuid: str, now: tuple[NvmlRow, ...]) -> tuple[NvmlRow, ...]:
        """At times the list is the one of a cycle ago, with rows of the dead and without those of the new."""
        before = self._rows.get(uuid)
        return before if self.lagging and before is not None and self.node.rng.random() < 0.5 else now

    def _gpu(self, card: Card, index: int, rows: tuple[NvmlRow, ...]) -> Gpu:
        gpu = Gpu(
            uuid=card.uuid,
            index=index,
            minor=card.minor,
            pci_address=_address(card),
            product="NVIDIA H100 80GB HBM3",
            mig_enabled=bool(card.slices),
            virtualization="none",
            coherent_memory=False,
            confidential=False,
        )
        if card.lost:
            return replace(gpu, lost="GPU_IS_LOST")
        used = memory_used(self.node, card, card.devices, card.base)
        instances = tuple(
            MigInstance(
                key.mig_uuid, cut.gi, key.ci or 0, "1g.20gb", 15, cut.gi - 1, 2,
                _memory(memory_used(self.node, card, cut.keys, cut.base), cut.total),
            )
            for cut in card.slices
            for key in cut.keys
        )  # fmt: skip
        busy = any(row.memory for row in rows) and not card.slices
        return replace(
            gpu,
            memory=_memory(used, card.total),
            instances=instances,
            rows=rows,
            usage=() if not card.slices else None,
            telemetry=Telemetry() if card.slices else Telemetry(utilization=0.6 if busy else 0.0),
        )

    # --- processes

    def _scan(self, nvml: Reading[Nvml]) -> Reading[ProcessTable]:
        """The host, told the numbers of the rows that were shown."""
        if self.scan_fault == "missed":
            return self._missed(Reason.TIMEOUT)
        node = self.node
        seen = nvml.value.gpus if isinstance(nvml, Seen) else ()
        numbers = {row.pid for gpu in seen for row in gpu.rows or ()}
        by_number = {proc.number or proc.pid: proc for proc in node.procs.values()}
        named = {number: by_number[number] for number in numbers if number in by_number}
        wanted = {p.pid for p in node.procs.values() if p.files or p.uvm} | {p.pid for p in named.values()}
        self.watched = {pid for pid in self.watched | wanted if pid in node.procs}
        for pid in list(self.watched):
            wanted |= {pid, *self._ancestors(pid)}
        hidden = self._hidden(wanted)
        for pid in wanted - hidden:
            proc = node.procs[pid]
            proc.shown = proc.shown or bool(proc.files or proc.memory)
        processes = tuple(
            self._process(node.procs[pid], numbers, hidden) for pid in sorted(wanted) if pid in node.procs
        )
        table = ProcessTable(
            processes=processes,
            containers=self._containers(),
            missing=tuple(sorted(number for number in numbers if number not in by_number)),
            unreadable=tuple(sorted(hidden)),
            scanned=200,
            truncated=0,
            capabilities=self._capabilities(),
            boot_id=f"boot-{node.boot_count}",
            boot_time=BOOT,
            ticks_per_second=TICKS,
            driver_loaded=True,
            agent=1500,
        )
        return self._seen(table, complete=not hidden)

    def _hidden(self, wanted: set[int]) -> set[int]:
        """Whose descriptors cannot be read in an incomplete scan."""
        if self.scan_fault != "incomplete":
            return set()
        mine = sorted(pid for pid in wanted if not self.node.procs[pid].infra)
        return {1800, *mine[:1]}

    def _ancestors(self, pid: int) -> list[int]:
        found: list[int] = []
        while (proc := self.node.procs.get(pid)) is not None and proc.parent in self.node.procs:
            pid = proc.parent
            if pid in found:
                break
            found.append(pid)
        return found

    def _process(self, proc: Proc, numbers: set[int], hidden: set[int]) -> Process:
        unread = ("fd", "maps") if proc.pid in hidden else ()
        number = proc.number or proc.pid
        return Process(
            id=ProcessId(proc.pid, ticks(proc)),
            parent=proc.parent,
            state=proc.state,
            comm=proc.comm,
            exe="" if proc.exiting or proc.state == "Z" else proc.exe,
            cgroup=Cgroup(
                proc.pod.cgroup_uid if proc.pod else "", proc.container_id, proc.unit, proc.group_gone
            ),
            threads=proc.threads,
            exiting=proc.exiting,
            kill_pending=proc.killed,
            dumping=proc.dumping,
            cpu_ticks=int(self.node.now),
            wchan=proc.blocked[0].wchan if proc.blocked else "",
            blocked=proc.blocked,
            holds=() if unread else holds(self.node, proc),
            numbers=(number,) if number in numbers else (),
            unread=unread,
        )

    def _containers(self) -> tuple[LiveContainer, ...]:
        found: dict[tuple[str, str], LiveContainer] = {}
        for proc in sorted(self.node.procs.values(), key=lambda proc: proc.pid):
            if proc.pod is not None and proc.container_id and not proc.group_gone:
                key = (proc.pod.cgroup_uid, proc.container_id)
                found.setdefault(key, LiveContainer(*key, ProcessId(proc.pid, ticks(proc))))
        return tuple(found.values())

    def _capabilities(self) -> tuple[CapabilityNode, ...]:
        return tuple(
            CapabilityNode(100 * card.minor + 10 * cut.gi + (key.ci or 0) + 1, card.minor, cut.gi, key.ci)
            for card in self.node.cards
            for cut in card.slices
            for key in cut.keys
        )

    # --- container_dev, kubelet, pods, node, pod_names

    def _views(self, table: Reading[ProcessTable]) -> Reading[ContainerDev]:
        if not isinstance(table, Seen):
            return self._missed(Reason.TIMEOUT)
        runs = {run.id: run for pod in self.node.pods for run in pod.runs}
        views = tuple(
            ContainerView(
                one.pod_uid, one.container_id, container_nodes(self.node, runs.get(one.container_id))
            )
            for one in table.value.containers
        )
        return self._seen(ContainerDev(views))

    def _kubelet(self) -> Reading[Kubelet]:
        if self.kubelet_state == "refused":
            self.kubelet_doubt = True
            return self._missed(Reason.UNAVAILABLE)
        if self.kubelet_state == "mute":
            return self._missed(Reason.TIMEOUT)
        answer = kubelet(self.node, self.kubelet_state)
        doubt, self.kubelet_doubt = self.kubelet_doubt, False
        if answer.allocatable:
            self.empty_since = None
        elif self.empty_since is None or doubt:
            self.empty_since = self.node.now
        empty = self.empty_since is not None and self.node.now - self.empty_since < 180.0
        return self._seen(answer, complete=not (doubt or empty))

    def _poll(self, listed: Reading[Kubelet]) -> None:
        """Ask the API server each minute, or sooner where it seems behind, at most every ten seconds."""
        now = self.node.now
        nudged = isinstance(self._api, Seen) and self._behind(self._api.value, listed)
        if now < self._due and not (nudged and now - self._asked >= 10.0):
            return
        self._asked, self._due = now, now + self.node.rng.uniform(48, 72)
        if not self.life.api_up:
            self._api = self._node = self._missed(Reason.UNAVAILABLE)
            return
        self._api = self._seen(Pods(pods(self.node)))
        counts = self._counts()
        self._node = self._seen(NodeObject("sim", *counts))

    def _behind(self, last: Pods, listed: Reading[Kubelet]) -> bool:
        known = {(pod.namespace, pod.name) for pod in last.pods}
        uids = {pod.cgroup_uid for pod in last.pods}
        if any(proc.pod and proc.pod.cgroup_uid not in uids for proc in self.node.procs.values()):
            return True
        if not isinstance(listed, Seen):
            return False
        shown = {(pod.namespace, pod.name) for pod in listed.value.pods}
        return bool(shown - known)

    def _counts(self) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]:
        """Capacity and allocatable as the device plugin registered them."""
        capacity: dict[str, int] = {}
        healthy: dict[str, int] = {}
        for card in self.node.cards:
            name = "nvidia.com/mig-1g.20gb" if card.slices else "nvidia.com/gpu"
            count = len(card.devices) * max(1, card.replicas)
            capacity[name] = capacity.get(name, 0) + count
            healthy[name] = healthy.get(name, 0) + (0 if card.unhealthy else count)
        if self.node.advertised is not None:
            first = next(iter(capacity))
            capacity[first] += self.node.advertised
            healthy[first] += self.node.advertised
        if not self.node.plugin_ready:
            healthy = dict.fromkeys(healthy, 0)
        return tuple(sorted(capacity.items())), tuple(sorted(healthy.items()))

    def _names(self) -> PodNames:
        """Log directories: they go a while after the pod."""
        return PodNames(
            tuple(
                PodName(pod.cgroup_uid, pod.namespace, pod.name, tuple({run.name: 0 for run in pod.runs}))
                for pod in self.node.pods
                if pod.runs and (pod.gone_at is None or self.node.now - pod.gone_at < LAST_SEEN)
            )
        )


# --- the driver's side --------------------------------------------------------------------------------------


def driver_rows(node: Node, card: Card) -> tuple[NvmlRow, ...]:
    """The process list of a card, as it is."""
    rows = []
    for proc in node.procs.values():
        for key, size in proc.memory.items():
            if key.uuid == card.uuid:
                shown = None if card.no_figures else size
                kinds = ("compute", "mps") if card.mps else ("compute",)
                rows.append(NvmlRow(proc.number or proc.pid, key.gi, key.ci, shown, kinds))
    rows.extend(
        NvmlRow(record.pid, record.device.gi, record.device.ci, record.size)
        for record in node.records
        if record.device.uuid == card.uuid
    )
    node.rng.shuffle(rows)
    return tuple(rows)


def memory_used(node: Node, card: Card, inside: tuple[object, ...], base: int) -> int:
    """What is used of a card or a GPU instance."""
    used = base + sum(cut.base for cut in card.slices) * (inside == card.devices)
    used += sum(size or 0 for p in node.procs.values() for key, size in p.memory.items() if key in inside)
    used += sum(record.size or 0 for record in node.records if record.device in inside)
    used += sum(leak.size for leak in node.leaks if leak.device in inside)
    return used + node.rng.randint(0, 4) * MIB


def _memory(used: int, total: int) -> Memory:
    return Memory(total, used, max(0, total - used - GIB // 2), GIB // 2, 2)


def _address(card: Card) -> str:
    return f"0000:{card.minor + 1:02x}:00.0"


def ticks(proc: Proc) -> int:
    """Start time as /proc/PID/stat has it."""
    return int((proc.start - BOOT) * TICKS)
