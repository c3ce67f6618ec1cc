"""What is really wrong on a node, read off its true state. It is told everything, so it has nothing to infer.

The definitions are those of DESIGN section 4 in terms of the world, not of what sources show of it. `must` is
an incident that has to be told once it is as old as `age`; without `must` telling it is allowed and keeping
still is too: another incident explains it, or the design leaves it open.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from exporter.model import DeviceKey, FindingName
from tests.simulation.node_state import MIB, Card, Node, Pod, Proc

OVERDUE = 120.0
SLACK = 270 * MIB  # what the driver's own share and its noise may hide of a leak
STUCK_AGE = {
    "driver": 120.0, "other": 120.0, "kill_pending": 120.0, "exiting": 120.0,
    "zombie_leader": 60.0, "zombie": 60.0,
}  # fmt: skip


@dataclass(frozen=True)
class Truth:
    """One thing that is wrong now. `pod` is the UID of its cgroup; uuid "" is the node."""

    finding: FindingName
    uuid: str
    gi: int | None
    pid: int
    pod: str
    must: bool
    age: float
    why: str
    alias: int = 0  # the process of which pid is a thread
    by_row: bool = False  # it shows in the driver's list alone

    @property
    def key(self) -> tuple[str, str, int | None, int, str]:
        """What it is about, over time."""
        return (self.finding.value, self.uuid, self.gi, self.pid, self.pod)


def truths(node: Node) -> tuple[Truth, ...]:
    """All that is wrong at this instant, each thing once; what must be told outranks what may be."""
    found: dict[tuple[object, ...], Truth] = {}
    for truth in _all(node):
        if truth.key not in found or truth.must:
            found[truth.key] = truth
    return tuple(found.values())


def _all(node: Node) -> Iterator[Truth]:
    for proc in node.procs.values():
        if not proc.infra:
            yield from _stuck(proc)
            yield from _orphan(node, proc)
            yield from _external(proc)
            yield from _hidden(node, proc)
            yield from _misplaced(node, proc)
    yield from _phantoms(node)
    for card in node.cards:
        yield from _memory(node, card)
        yield from _shared(node, card)
    for pod in node.pods:
        if pod.owner != "infra":
            yield from _views(node, pod)
            yield from _idle(node, pod)
    yield from _counts(node)


def _of(finding: FindingName, key: DeviceKey, proc: Proc, must: bool, age: float, why: str) -> Truth:
    pod = proc.pod.cgroup_uid if proc.pod else ""
    return Truth(finding, key.uuid, key.gi, proc.pid, pod, must, age, f"pid {proc.pid} {why}")


# --- processes ----------------------------------------------------------------------------------------------


def _stuck(proc: Proc) -> Iterator[Truth]:
    if proc.troubled is not None:
        for key in proc.devices:
            age = STUCK_AGE[proc.trouble]
            must = proc.shown or bool(proc.memory)  # else nothing has ever tied it to the device
            truth = _of(FindingName.STUCK_PROCESS, key, proc, must, age, f"is stuck: {proc.trouble}")
            yield replace(truth, by_row=proc.trouble == "zombie")


def _orphan(node: Node, proc: Proc) -> Iterator[Truth]:
    pod = proc.pod
    if pod is None or not proc.client or proc.state == "Z":
        return
    must, age, why = _why_orphan(node, pod, proc)
    if why:
        for key in (*proc.memory, *proc.files):
            certain = must and proc.troubled is None
            yield _of(FindingName.ORPHAN_PROCESS, key, proc, certain, age, why)


def _why_orphan(node: Node, pod: Pod, proc: Proc) -> tuple[bool, float, str]:
    if pod.api and pod.deletion is not None and node.now > pod.deletion + OVERDUE:
        return True, 0.0, f"{pod.name} is overdue"
    if proc.group_gone:
        return True, 60.0, "its control group is gone"
    newer = (
        any(r.name == proc.run.name and r.started > proc.run.started for r in pod.runs) if proc.run else False
    )
    if pod.active and newer and pod.api:
        return pod.run is not None, 60.0, f"{pod.name}: its container was replaced"
    if pod.api and pod.ended_at is not None:
        return True, 60.0, f"{pod.name} has ended"
    if pod.gone_at is not None:
        return True, 180.0, f"{pod.name} is gone"
    return False, 60.0, f"{pod.name}: its container ended" if proc.run and proc.run.ended else ""


def _external(proc: Proc) -> Iterator[Truth]:
    if proc.pod is None and proc.client:
        for key in (*proc.memory, *proc.files):
            must = proc.troubled is None and proc.state != "Z"
            yield _of(FindingName.EXTERNAL_PROCESS, key, proc, must, 120.0, f"is in no pod: {proc.unit}")


def _hidden(node: Node, proc: Proc) -> Iterator[Truth]:
    if not (proc.uvm or proc.maps):
        return
    for key in proc.files:
        if any(one.uuid == key.uuid for one in proc.memory) or _has_listed_parent(node, proc, key):
            continue
        must = proc.troubled is None
        yield _of(FindingName.HIDDEN_HOLDER, key, proc, must, 60.0, "has the device open and no row")


def _has_listed_parent(node: Node, proc: Proc, key: DeviceKey) -> bool:
    parent = node.procs.get(proc.parent)
    while parent is not None:
        if parent.pod is proc.pod and any(one.uuid == key.uuid for one in parent.memory):
            return True
        parent = node.procs.get(parent.parent)
    return False


def _misplaced(node: Node, proc: Proc) -> Iterator[Truth]:
    pod = proc.pod
    for key, size in proc.memory.items():
        if pod is None or key in pod.held or size == 0:
            continue
        card = node.card(key)
        must = pod.active and pod.deletion is None and proc.troubled is None and not proc.group_gone
        must = must and not (card.mps or card.no_figures) and proc.state != "Z"
        yield _of(FindingName.USED_NOT_ALLOCATED, key, proc, must, 60.0, f"{pod.name} was not given it")


def _phantoms(node: Node) -> Iterator[Truth]:
    """Rows of the dead. A process that holds the card unlisted, with a mapping, may be what is listed."""
    for record in node.records:
        key = record.device
        living = [p for p in node.procs.values() if any(one.uuid == key.uuid for one in p.files)]
        doubtful = any(p.maps and not any(one.uuid == key.uuid for one in p.memory) for p in living)
        taken = node.procs.get(record.pid)
        must = record.size != 0 and not doubtful and (taken is None or not (taken.files or taken.memory))
        why = f"pid {record.pid} is dead and listed"
        yield Truth(
            FindingName.PHANTOM_PROCESS, key.uuid, key.gi, record.pid, "", must, 120.0, why, record.process
        )


# --- devices ------------------------------------------------------------------------------------------------


def _memory(node: Node, card: Card) -> Iterator[Truth]:
    parts = [(cut.keys, cut.total) for cut in card.slices] or [((card.key,), card.total)]
    for keys, total in parts:
        lost = sum(leak.size for leak in node.leaks if leak.device in keys)
        limit = max(256 * MIB, total // 20) if card.slices else max(512 * MIB, total // 50)
        if lost <= limit - SLACK:
            continue
        must = lost > limit + SLACK and not card.no_figures
        must = must and not any(p.troubled for leak in node.leaks for p in leak.holders)
        why = f"{lost // MIB} MiB that nobody accounts for"
        yield Truth(FindingName.ORPHANED_MEMORY, card.uuid, keys[0].gi, 0, "", must, 300.0, why)


def _shared(node: Node, card: Card) -> Iterator[Truth]:
    if card.replicas or card.mps:
        return
    for key in card.devices:
        users = [p for p in node.procs.values() if p.pod and not p.infra and p.memory.get(key, 0) != 0]
        pods = {p.pod: None for p in users if p.pod}
        given = node.given(key)
        fit = all(p.active and p.deletion is None for p in pods) and bool(given)
        fit = fit and not any(p.troubled or p.group_gone for p in users) and not card.no_figures
        fit = fit and all(p.run is None or p.run.ended is None for p in users)
        if len(pods) > 1:
            why = "used by " + " and ".join(sorted(pod.name for pod in pods))
            yield Truth(FindingName.EXCLUSIVE_GPU_SHARED, key.uuid, key.gi, 0, "", fit, 60.0, why)
        elif len(given) > 1:
            must = all(pod.listed and pod.api and pod.deletion is None for pod in given)
            why = "given to " + " and ".join(sorted(pod.name for pod in given))
            yield Truth(FindingName.EXCLUSIVE_GPU_SHARED, key.uuid, key.gi, 0, "", must, 60.0, why)


def _views(node: Node, pod: Pod) -> Iterator[Truth]:
    for run in pod.runs:
        living = [p for p in node.procs.values() if p.run is run and not p.group_gone]
        if not living:
            continue
        certain = pod.active and pod.deletion is None and run.ended is None
        given = {g.device for g in pod.given if g.container == run.name}
        sees = set(run.sees)
        if run.privileged:
            sees |= {*node.devices()}
        judged = bool(given) or any(p.client for p in living) or not run.privileged
        for key in sees - given if judged else ():
            same = any(one.uuid == key.uuid for one in given)
            why = f"{pod.name}/{run.name} sees it and was not given it"
            must = certain and node.has(key) and not node.card(key).dark and not same
            yield Truth(FindingName.VISIBLE_NOT_ALLOCATED, key.uuid, None, 0, pod.cgroup_uid, must, 60.0, why)
        for key in given - sees:
            why = f"{pod.name}/{run.name} was given it and cannot see it"
            must = certain and not node.card(key).dark
            yield Truth(
                FindingName.ALLOCATED_NOT_VISIBLE, key.uuid, key.gi, 0, pod.cgroup_uid, must, 60.0, why
            )


def _idle(node: Node, pod: Pod) -> Iterator[Truth]:
    if not pod.active:
        return
    for key in {g.device for g in pod.given}:
        mine = [p for p in node.of_pod(pod) if p.client and key in (*p.memory, *p.files)]
        if mine:
            continue
        must = pod.phase == "Running" and pod.deletion is None and not node.card(key).replicas
        must = must and node.has(key) and not node.card(key).dark and pod.listed
        why = f"{pod.name} has it and does not use it"
        yield Truth(FindingName.IDLE_ALLOCATION, key.uuid, key.gi, 0, pod.cgroup_uid, must, 3600.0, why)


# --- counts -------------------------------------------------------------------------------------------------


def _counts(node: Node) -> Iterator[Truth]:
    def told(why: str, *, must: bool = True, age: float = 300.0) -> Truth:
        return Truth(FindingName.NODE_CAPACITY_MISMATCH, "", None, 0, why, must, age, why)

    if any(card.fallen for card in node.cards):
        yield told("nvml_lt_pci")
        yield told("capacity_gt_real", must=False)
    if any(card.lost for card in node.cards):
        yield told("nvml_lt_pci (lost)")
    if any(card.fallen and node.given(key) for card in node.cards for key in card.devices):
        yield told("allocated_device_missing", must=False)
    # One missing GPU accounts for one that is counted wrong: counts do not tell whether they are the same.
    whole = not any(card.dark for card in node.cards)
    if any(card.unhealthy for card in node.cards):
        yield told("allocatable_lt_capacity", must=whole)
    if node.advertised is not None:
        yield told("capacity_gt_real" if node.advertised > 0 else "capacity_lt_real", must=whole)
    if not node.plugin_ready:
        yield told("plugin", must=False)
    stale = [p for p in node.pods if p.sticks and p.listed and p.given and not (p.api and p.ended_at is None)]
    if stale:
        # While something of a pod that is gone lives, it may be the one, and the orphan is what is told.
        left = any(proc.pod and proc.pod.gone_at is not None for proc in node.procs.values())
        busy = any(node.of_pod(pod) for pod in stale)
        yield told("allocation_stale", must=not (left or busy))
