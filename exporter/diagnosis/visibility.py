"""Findings about what containers can see: GPUs beyond their own, and their own missing. Pure.

Visibility is a fact of its own: a device file in a container's /dev. It says nothing of whether a cgroup lets
the container open that file (cgroup v2 does not tell), and environment variables are never asked. What a
container may see is what the kubelet gave it; where that, or its /dev, is not known, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from exporter.diagnosis.containers import Container, Containers
from exporter.diagnosis.facts import Facts
from exporter.diagnosis.standing import scheme
from exporter.model import (
    ContainerKind,
    ContainerView,
    DeviceKey,
    DeviceNode,
    FindingName,
    Grant,
    Holds,
    Missed,
    NodeKind,
    NotApplicable,
    Off,
    Owner,
    Passthrough,
    Ruling,
    Seen,
    Severity,
    Subject,
    Undetermined,
    value,
)

EXPOSED, UNSEEN = FindingName.VISIBLE_NOT_ALLOCATED, FindingName.ALLOCATED_NOT_VISIBLE
KINDS = ("privileged", "host_device", "mig_caps", "other")
UNSEEN_KIND = "no_device_file"
# Runtimes that run a container's processes behind another kernel: /dev on the host is not what those see, and
# a virtual machine monitor in the pod's cgroup lives in the host's.
SANDBOXES = ("kata", "gvisor", "runsc", "firecracker")


# --- what a /dev shows --------------------------------------------------------------------------------------


class _Files:
    """Which device a file stands for, and which files a device needs."""

    def __init__(self, facts: Facts) -> None:
        bus, table = value(facts.snapshot.pci), value(facts.snapshot.processes)
        # What the driver says now outranks what is remembered, and that what the bus says: the last one wins.
        told = [(gpu.uuid, gpu.minor) for gpu in (bus.gpus if bus else ()) if gpu.uuid]
        told += [(known.uuid, known.minor) for known in facts.before.inventory]
        told += [(gpu.uuid, gpu.minor) for gpu in facts.gpus.values()]
        self._minors = {uuid: minor for uuid, minor in told if minor is not None}
        self._uuids = {minor: uuid for uuid, minor in told if minor is not None}
        self._capabilities = table.capabilities if table else ()
        self._parts = [device for device in facts.devices if device.gi is not None]

    def gpus(self, nodes: Iterable[DeviceNode]) -> dict[str, DeviceNode]:
        """The GPUs whose files are among these. A file of no known GPU opens nothing."""
        return {
            self._uuids[node.minor]: node
            for node in nodes
            if node.kind is NodeKind.GPU and node.minor in self._uuids
        }

    def parts(self, nodes: Iterable[DeviceNode]) -> tuple[DeviceKey, ...]:
        """The MIG devices whose capability files are among these. That of a GPU instance alone opens none."""
        minors = {node.minor for node in nodes if node.kind is NodeKind.CAPABILITY}
        opened = {
            (self._uuids.get(one.gpu_minor), one.gi, one.ci)
            for one in self._capabilities
            if one.minor in minors and one.ci is not None
        }
        return tuple(key for key in self._parts if (key.uuid, key.gi, key.ci) in opened)

    def lacking(self, device: DeviceKey, nodes: Iterable[DeviceNode]) -> tuple[str, ...] | None:
        """Files that a device needs and that are not there; None where its device minor is not known."""
        minor = self._minors.get(device.uuid)
        if minor is None:
            return None
        there = {(node.kind, node.minor) for node in nodes}
        needed = [(NodeKind.GPU, minor, f"nvidia{minor}")]
        needed += [
            (NodeKind.CAPABILITY, one.minor, f"nvidia-caps/nvidia-cap{one.minor}")
            for one in self._capabilities
            if (one.gpu_minor, one.gi) == (minor, device.gi) and one.ci in (None, device.ci)
        ]
        return tuple(name for kind, number, name in needed if (kind, number) not in there)


# --- beyond its own -----------------------------------------------------------------------------------------


def exposed(facts: Facts) -> Iterator[Ruling]:
    """Containers that can see GPUs beyond what they were given."""
    views, files, containers = value(facts.snapshot.container_dev), _Files(facts), Containers(facts)
    for view in views.views if views else ():
        if not (view.unseen or files.gpus(view.nodes)):
            continue  # it sees none at all, as most do
        container = containers.of(view)
        if container.infrastructure or container.left_behind or _is_sandboxed(container.runtime_class):
            continue  # what a pod left behind is the orphan rule's: what its successor was given says nothing
        if view.unseen:
            yield from _doubts((None,), container, "dev_unseen")
            continue
        if beyond := _beyond(files, container):
            yield from _judged(facts, container, beyond)


def _is_sandboxed(runtime_class: str) -> bool:
    return any(name in runtime_class.lower() for name in SANDBOXES)


def _beyond(files: _Files, container: Container) -> dict[DeviceKey, DeviceNode]:
    """Devices that it sees and was not given, each with the file of its GPU.

    A part of a GPU needs the GPU's file too. A foreign part counts beside a part of its own; where the whole
    GPU is beyond, that is said once.
    """
    view = container.view
    seen = files.gpus(view.nodes)
    given = {grant.device for grant in container.given if grant.device is not None}
    own = {key.uuid for key in given}
    found = {DeviceKey(uuid): node for uuid, node in seen.items() if uuid not in own}
    for part in files.parts(view.nodes):
        ways = {part, DeviceKey(part.uuid), DeviceKey(part.uuid, part.gi)}
        if part.uuid in own and part.uuid in seen and not ways & given:
            found[part] = seen[part.uuid]
    return dict(sorted(found.items(), key=lambda item: item[0].order))


def _judged(facts: Facts, container: Container, beyond: dict[DeviceKey, DeviceNode]) -> Iterator[Ruling]:
    """What to say of a container that sees more than is known to be its own."""
    if scheme(facts, container.workload, container.view.pod_uid):
        # What the kubelet lists, if anything, is not what the container gets.
        for device in beyond:
            yield from (NotApplicable(EXPOSED, kind, device, "advisory_scheme") for kind in KINDS)
    elif reason := _vague(facts, container):
        yield from _doubts(beyond, container, reason)
    elif not (container.client or any(_counts(grant) for grant in container.given)):
        # It neither has nor uses a GPU: privileges explain what it sees, and without them something is amiss.
        if container.privileged is None and not isinstance(facts.snapshot.pods, Off):
            yield from _doubts(beyond, container, "privilege_unknown")
        elif container.privileged is False:
            yield from (_shown(facts, container, device, node) for device, node in beyond.items())
    else:
        yield from (_shown(facts, container, device, node) for device, node in beyond.items())


def _counts(grant: Grant) -> bool:
    return not isinstance(grant.allocation.ref, Passthrough)


def _vague(facts: Facts, container: Container) -> str:
    """Why what the container was given is not known, or ""."""
    if any(grant.device is None and _counts(grant) for grant in container.given):
        return "unresolved_id"
    kubelet = facts.snapshot.kubelet
    if not isinstance(kubelet, Seen):  # its last answer still holds, for who is in it
        return "" if container.given else "kubelet_silent"
    if container.listed is None:
        return "pod_not_listed"
    kind = container.status.kind if container.status else None
    unlisted = container.workload.container not in container.listed
    # Of init containers, and of sidecars before Kubernetes 1.30, the kubelet lists no devices.
    return "container_not_listed" if unlisted and kind in (ContainerKind.INIT, ContainerKind.SIDECAR) else ""


def _doubts(devices: Iterable[DeviceKey | None], container: Container, reason: str) -> Iterator[Undetermined]:
    for device in devices:
        for kind in KINDS:  # which of them it would be may be just what is not known
            yield Undetermined(EXPOSED, kind, device, reason, container.view.container_id)


def _shown(facts: Facts, container: Container, device: DeviceKey, node: DeviceNode) -> Holds:
    view = container.view
    used = any(
        use.container_id == view.container_id and use.client and use.memory and use.owner is Owner.POD
        for use in (facts.uses_on(device) if device.gi is not None else facts.uses_of_gpu(device.uuid))
    )
    given = sorted({grant.allocation.device_id for grant in container.given})
    privileges = {
        True: "it is privileged",
        False: "it is not privileged",
        None: "its privileges are not known",
    }
    return Holds(
        subject=Subject(EXPOSED, device, view.container_id),
        kind=_kind(container, device),
        evidence=(
            f"/dev of container {view.container_id[:12]} has {node.major}:{node.minor}, {device.uuid}",
            f"the kubelet gave it {', '.join(given) or 'no GPU'}; {privileges[container.privileged]}",
        ),
        workload=container.workload,
        pod_uid=view.pod_uid,
        severity=Severity.WARNING if used else None,
    )


def _kind(container: Container, device: DeviceKey) -> str:
    """By what it sees the device.

    What it sees is a fact, whether or not the API server can say that it is privileged: then it is called by
    what else is known. One mounted file of the host looks like one that the toolkit made, and is `other`.
    """
    if container.privileged:
        return "privileged"
    if container.view.host:
        return "host_device"
    return "other" if device.gi is None else "mig_caps"


# --- its own missing ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Look:
    """The /dev of the container that a device was given to; or, without one, why there is nothing to judge.

    Where `reason` is "" too, the container is not running, or known to see it.
    """

    view: ContainerView | None = None
    reason: str = ""


def unseen(facts: Facts) -> Iterator[Ruling]:
    """Devices that were given and have no file in the container."""
    table = value(facts.snapshot.processes)
    if table is not None and not table.driver_loaded:
        # NVML without a driver of this kernel is WSL: there the GPU is /dev/dxg.
        if isinstance(facts.snapshot.nvml, Seen):
            for device in facts.devices:
                yield NotApplicable(UNSEEN, UNSEEN_KIND, device, "no_driver_files")
        else:
            yield Undetermined(UNSEEN, UNSEEN_KIND, None, "driver_not_loaded")
        return
    files, containers = _Files(facts), Containers(facts)
    for grant in facts.attribution.grants:
        if isinstance(grant.allocation.ref, Passthrough) or scheme(facts, grant.workload, grant.pod_uid):
            continue  # no device of this node's driver, or not the one that the container gets
        yield from _unseen(facts, files, containers, grant)


def _unseen(facts: Facts, files: _Files, containers: Containers, grant: Grant) -> Iterator[Ruling]:
    workload = grant.workload
    who = f"{workload.namespace}/{workload.pod}/{workload.container}"
    pod = containers.pod(workload)
    if pod is not None and (pod.ended or _is_sandboxed(pod.runtime_class)):
        return
    if grant.device is None or not grant.current:
        reason = "unresolved_id" if grant.device is None else "kubelet_restarted"
        yield Undetermined(UNSEEN, UNSEEN_KIND, grant.device, reason, who)
        return
    look = _look(facts, files, containers, grant, grant.device)
    lacking = files.lacking(grant.device, look.view.nodes) if look.view else ()
    if look.reason or lacking is None:
        yield Undetermined(UNSEEN, UNSEEN_KIND, grant.device, look.reason or "minor_unknown", who)
    elif look.view and lacking:
        yield Holds(
            subject=Subject(UNSEEN, grant.device, who),
            kind=UNSEEN_KIND,
            evidence=(
                f"/dev of container {look.view.container_id[:12]} has no {', '.join(lacking)}",
                f"the kubelet gave it {grant.allocation.device_id}",
                f"runtime class: {(pod.runtime_class or 'the default') if pod else 'unknown'}",
            ),
            workload=workload,
            pod_uid=grant.pod_uid,
        )


def _look(facts: Facts, files: _Files, containers: Containers, grant: Grant, device: DeviceKey) -> _Look:
    """The view to judge by: of the container that the API server names, else of the only one that fits."""
    pod, workload = containers.pod(grant.workload), grant.workload
    if pod is not None:
        status = next((one for one in pod.containers if one.name == workload.container), None)
        if status is None:
            return _Look(reason="container_unknown")
        if not status.running or containers.is_dead(status.container_id):
            return _Look()
        view = containers.view(status.container_id)
        return _Look(view) if view and not view.unseen else _Look(reason="dev_unseen")
    views = containers.views(grant.pod_uid)
    named = [view for view in views if containers.name(view).container == workload.container]
    if len(named) == 1:
        return _Look(reason="dev_unseen") if named[0].unseen else _Look(named[0])
    seen = any(not view.unseen and files.lacking(device, view.nodes) == () for view in views)
    if seen and not isinstance(facts.snapshot.pods, Missed):
        return _Look()  # one of the pod's containers sees it, and only the one that was given it should
    return _Look(reason="container_unknown")
