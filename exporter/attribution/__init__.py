"""The join: process → container → pod → devices given to it, each row saying by which evidence. Pure.

In: policy, what is remembered, and the readings of one cycle. Out: an Attribution. It decides nothing about
right or wrong, and it never turns what was not seen into a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from exporter.attribution import grants as granted
from exporter.attribution.devices import devices
from exporter.attribution.inventory import Inventory
from exporter.attribution.names import Names
from exporter.attribution.owners import Owners
from exporter.attribution.uses import uses
from exporter.model import (
    Attribution,
    Basis,
    Cgroup,
    DeviceNode,
    FileHolders,
    History,
    Owner,
    Policy,
    Process,
    ProcessTable,
    Seen,
    Snapshot,
    value,
)

__all__ = ["attribute"]

STATUS_DELAY = 10.0  # seconds that a kubelet may take to tell the API server of a container


def attribute(policy: Policy, history: History, snapshot: Snapshot) -> Attribution:
    """Join all readings of a cycle. Permuted input gives the same result."""
    inventory = Inventory(snapshot, history)
    names = Names(snapshot, history)
    owners = Owners(snapshot, history, names)
    given = granted.grants(policy, snapshot, history, inventory, names)
    certain = granted.is_known(policy, snapshot, history, names)
    unnamed = tuple(sorted(set(_unnamed(snapshot, names))))
    return Attribution(
        uses=uses(policy, snapshot, inventory, owners),
        grants=given,
        devices=tuple(devices(policy, history, inventory, given, names, certain=certain)),
        holders=_holders(snapshot, owners),
        unnamed_pods=unnamed,
        api_behind=_api_behind(snapshot, names),
    )


def _holders(snapshot: Snapshot, owners: Owners) -> tuple[FileHolders, ...] | None:
    table = value(snapshot.processes)
    if table is None:
        return None
    counts: Counter[tuple[DeviceNode, Owner]] = Counter()
    for process in table.processes:
        owner = owners.place(process).owner
        for hold in process.holds:
            counts[hold.node, owner] += hold.descriptors + hold.mappings
    return tuple(FileHolders(node, owner, count) for (node, owner), count in sorted(counts.items()))


def _unnamed(snapshot: Snapshot, names: Names) -> Iterator[str]:
    table = value(snapshot.processes)
    for container in table.containers if table else ():
        name = names.pod(Cgroup(container.pod_uid))
        if name is None or name.basis is Basis.UID:
            yield container.pod_uid


def _api_behind(snapshot: Snapshot, names: Names) -> bool:
    """Whether asking the API server again, sooner than planned, would tell something new."""
    if not isinstance(snapshot.pods, Seen):
        return False
    table, kubelet = value(snapshot.processes), value(snapshot.kubelet)
    if any(container.pod_uid not in names.pods for container in (table.containers if table else ())):
        return True
    if table is not None and any(
        _is_new(process, table, snapshot.pods.at, names) for process in table.processes
    ):
        return True
    if kubelet is None:
        return False
    running = {(pod.namespace, pod.name) for pod in names.pods.values() if pod.phase == "Running"}
    return bool(names.listed - names.told or running - names.listed)


def _is_new(process: Process, table: ProcessTable, told: float, names: Names) -> bool:
    """Whether a process is in a container that the API server may not have told of when it was asked: the one
    after an init container, or after a crash. Of one that began long before, asking again tells nothing new.
    """
    pod = names.pods.get(process.cgroup.pod_uid)
    began = table.boot_time + process.id.start / table.ticks_per_second
    if pod is None or not process.cgroup.container_id or began < told - STATUS_DELAY:
        return False
    known = {identity for one in pod.containers for identity in (one.container_id, one.previous_id)}
    return process.cgroup.container_id not in known
