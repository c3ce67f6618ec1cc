"""What the kubelet gave to whom, and which devices that makes allocated or somebody's own. Pure.

In: the kubelet's reading, what is remembered of its last words, and the inventory. Three answers are kept
apart: given, not given, and not known. A kubelet that has just started lists too little, and one that is
silent lists nothing: what it said before holds for a while, then is unknown, never *not given*.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from exporter.attribution.inventory import Inventory
from exporter.attribution.names import Names
from exporter.model import (
    NOBODY,
    Allocation,
    Carried,
    Cgroup,
    DeviceKey,
    Grant,
    History,
    Passthrough,
    Policy,
    Seen,
    Snapshot,
    Workload,
)

_SHARED = ".shared"  # k8s-device-plugin's renameByDefault


def grants(
    policy: Policy, snapshot: Snapshot, history: History, inventory: Inventory, names: Names
) -> tuple[Grant, ...]:
    """All allocations that are known or carried, in a fixed order."""
    allocations = dict(_current(policy, snapshot, history, names))
    found = []
    for allocation, current in allocations.items():
        found.append(
            Grant(
                allocation=allocation,
                device=inventory.resolve(allocation.ref),
                workload=Workload(allocation.namespace, allocation.pod, allocation.container),
                pod_uid=names.uid(allocation.namespace, allocation.pod),
                shared=bool(allocation.replica) or allocation.resource.endswith(_SHARED),
                current=current,
            )
        )
    return tuple(sorted(found, key=_order))


def is_known(policy: Policy, snapshot: Snapshot, history: History, names: Names) -> bool:
    """Whether a device that no grant names can be said to be free."""
    if isinstance(snapshot.kubelet, Seen):
        if is_settled(snapshot, history):
            return True
        return snapshot.kubelet.complete and not _lacks_pods(policy, snapshot, history, names)
    heard, settled = history.kubelet_heard, history.kubelet_settled
    recent = heard is not None and snapshot.monotonic - heard <= policy.kubelet_grace
    return recent and (settled is None or snapshot.monotonic >= settled)


def _lacks_pods(policy: Policy, snapshot: Snapshot, history: History, names: Names) -> bool:
    """Whether a pod lives that a kubelet which has just started does not list, so that nobody knows what it
    was given. It is so for as long as the API server is away. What was listed before is remembered.
    """
    if names.living is None or history.kubelet_settled is None:
        return True
    told = names.listed | {(one.allocation.namespace, one.allocation.pod) for one in history.carried}
    restarted = history.kubelet_settled - policy.kubelet_restart_grace
    since = snapshot.at - (snapshot.monotonic - restarted)
    found = [names.pod(Cgroup(uid)) for uid in names.living]
    return any(
        (one.namespace, one.name) not in told and names.may_live(one.namespace, one.name, since)
        for one in found
        if one is not None
    )


def allocated(device: DeviceKey, given: Collection[Grant], names: Names, is_known: bool) -> bool | None:
    """Whether the device, or the whole GPU that it is part of, is given to a pod that has not ended. None:
    unknown.
    """
    whole = DeviceKey(device.uuid)
    mine = [g for g in given if g.device in (device, whole) and not _over(g, names)]
    if any(grant.current for grant in mine):
        return True
    # An id that resolves to no device may mean this one; that of a virtual machine does not.
    vague = any(
        g.device is None and not isinstance(g.allocation.ref, Passthrough) and not _over(g, names)
        for g in given
    )
    return None if mine or vague or not is_known else False


def owner(device: DeviceKey, given: Collection[Grant], names: Names) -> Workload:
    """The workload that has the device for itself: one active pod, given it exclusively. Else nobody."""
    mine = [g for g in given if g.device == device and not _over(g, names)]
    if not mine or any(g.shared or not g.current for g in mine):
        return NOBODY
    pods = {(g.workload.namespace, g.workload.pod) for g in mine}
    if len(pods) != 1:
        return NOBODY
    containers = {g.workload.container for g in mine}
    namespace, pod = pods.pop()
    return Workload(namespace, pod, containers.pop() if len(containers) == 1 else "")


def _over(grant: Grant, names: Names) -> bool:
    """Kubelets up to 1.33 list pods that have run to their end."""
    return names.ended(grant.workload.namespace, grant.workload.pod)


def _current(
    policy: Policy, snapshot: Snapshot, history: History, names: Names
) -> Iterator[tuple[Allocation, bool]]:
    """Allocations and whether they are to be believed now; the history's before the kubelet's, which then
    wins.
    """
    recent = snapshot.monotonic - policy.kubelet_grace
    if not isinstance(snapshot.kubelet, Seen):
        yield from ((carried.allocation, carried.listed_monotonic >= recent) for carried in history.carried)
        return
    for carried in history.carried:
        if is_carried(carried, snapshot, history, names):
            yield carried.allocation, carried.listed_monotonic >= recent
    yield from ((allocation, True) for allocation in snapshot.kubelet.value.allocations)


def is_settled(snapshot: Snapshot, history: History) -> bool:
    """Whether a pod that the kubelet does not list counts as not there: it has been up for long enough."""
    if not (isinstance(snapshot.kubelet, Seen) and snapshot.kubelet.complete):
        return False
    return history.kubelet_settled is None or snapshot.monotonic >= history.kubelet_settled


def is_carried(carried: Carried, snapshot: Snapshot, history: History, names: Names) -> bool:
    """Whether an allocation that the kubelet no longer lists is unknown rather than over (DESIGN, the restart
    rule).

    It is while the kubelet has not settled, unless the pod is listed with devices again, has no living
    cgroup, or is gone by the word of the API server. A restarting kubelet lists a pod before its devices.
    """
    if is_settled(snapshot, history) or not isinstance(snapshot.kubelet, Seen):
        return not isinstance(snapshot.kubelet, Seen)
    name = (carried.allocation.namespace, carried.allocation.pod)
    since = snapshot.at - (snapshot.monotonic - carried.listed_monotonic)
    listed = any((a.namespace, a.pod) == name for a in snapshot.kubelet.value.allocations)
    return not listed and names.may_live(*name, since)


def _order(grant: Grant) -> tuple[str, ...]:
    a = grant.allocation
    return (a.namespace, a.pod, a.container, a.resource, a.device_id)
