"""To whom a process belongs: a pod, the host, the GPU infrastructure, a pod that is gone, or nobody knows.
Pure.

A pod is gone only where the API server and the kubelet both say so, each in an answer that is complete and
younger than the process: a list from before the pod was born, a kubelet that is starting, or a missing source
prove nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter import infrastructure
from exporter.attribution.grants import is_settled
from exporter.attribution.names import Name, Names
from exporter.model import (
    NOBODY,
    Basis,
    Cgroup,
    History,
    Known,
    Missed,
    Owner,
    Process,
    ProcessId,
    Seen,
    Snapshot,
    Workload,
    value,
)


@dataclass(frozen=True, slots=True)
class Place:
    """A process' owner and the workload that it counts for."""

    workload: Workload = NOBODY
    pod_uid: str = ""
    container_id: str = ""
    owner: Owner = Owner.UNKNOWN
    basis: Basis = Basis.NONE


class Owners:
    """Places processes, and numbers of NVML that have none."""

    def __init__(self, snapshot: Snapshot, history: History, names: Names) -> None:
        self._names = names
        self._table = value(snapshot.processes)
        self._snapshot = snapshot
        self._settled = is_settled(snapshot, history)
        self._places: dict[ProcessId, Place] = {}
        self.known: dict[ProcessId, Known] = {known.id: known for known in history.known}
        # Newest last: a number that was used twice means the process that had it last.
        by_age = sorted(history.known, key=lambda known: (known.last_monotonic, known.id))
        self.by_number: dict[int, Known] = {number: known for known in by_age for number in known.numbers}

    def place(self, process: Process) -> Place:
        """The owner of a living (or not quite dead) process."""
        place = self._places.get(process.id)
        if place is None:
            place = self._places[process.id] = self._find(process)
        return place

    def _find(self, process: Process) -> Place:
        if self._is_agent(process):
            return self._of_pod(process, self._cgroup(process), Owner.SYSTEM) or Place(owner=Owner.SYSTEM)
        if "cgroup" in process.unread:
            return Place()
        cgroup = self._cgroup(process)
        if place := self._of_pod(process, cgroup, None):
            return place
        if process.dying and _is_empty(cgroup):
            return Place()  # on cgroup v1 every dead task reads so, whoever's it was
        if cgroup.container_id and not self._told_of_containers():
            return Place(container_id=cgroup.container_id)  # some runtimes' groups name no pod
        system = infrastructure.component(cgroup, "", process.exe) is not None
        return Place(container_id=cgroup.container_id, owner=Owner.SYSTEM if system else Owner.HOST)

    def last_place(self, number: int) -> Place:
        """Whom a number of NVML belonged to when it was last seen alive; its owner now is not known."""
        known = self.by_number.get(number)
        if known is None:
            return Place()
        return Place(known.workload, known.pod_uid, known.cgroup.container_id, Owner.UNKNOWN, Basis.MEMORY)

    def _cgroup(self, process: Process) -> Cgroup:
        """A dead or dying task of cgroup v1 shows the root group: what it lived in is remembered."""
        known = self.known.get(process.id)
        return known.cgroup if known and process.dying and _is_empty(process.cgroup) else process.cgroup

    def _is_agent(self, process: Process) -> bool:
        agent = self._table.agent if self._table else 0
        return agent != 0 and agent in (process.id.pid, process.parent)

    def _of_pod(self, process: Process, cgroup: Cgroup, owner: Owner | None) -> Place | None:
        name = self._names.pod(cgroup)
        if name is None:
            return None
        workload = Workload(name.namespace, name.name, self._names.container(cgroup, name))
        if owner is None:
            owner = Owner.ORPHAN if self._gone(process, name) else Owner.POD
            if infrastructure.component(cgroup, name.namespace, process.exe):
                owner = Owner.SYSTEM
        return Place(workload, name.uid, cgroup.container_id, owner, name.basis)

    def _gone(self, process: Process, name: Name) -> bool:
        pods = self._snapshot.pods
        if not (isinstance(pods, Seen) and pods.complete and self._settled):
            return False
        if name.uid in self._names.pods or pods.at < self._started(process):
            return False
        if not name.name:  # the kubelet denies it only where each of its pods is known to be another one
            return self._names.listed <= self._names.told
        current = self._names.uid(name.namespace, name.name)
        listed = (name.namespace, name.name) in self._names.listed
        return not listed or (current not in ("", name.uid))

    def _told_of_containers(self) -> bool:
        """Whether a container that no pod of the API server has is no pod's; off, nobody ever says more."""
        pods = self._snapshot.pods
        return pods.complete if isinstance(pods, Seen) else not isinstance(pods, Missed)

    def _started(self, process: Process) -> float:
        table = self._table
        return table.boot_time + process.id.start / table.ticks_per_second if table else float("inf")


def _is_empty(cgroup: Cgroup) -> bool:
    return not (cgroup.pod_uid or cgroup.container_id or cgroup.unit)
