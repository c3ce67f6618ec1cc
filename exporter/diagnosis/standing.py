"""Where a pod stands, and what is known of what it was given: look-ups for the rules of allocation. Pure.

In: facts, and a use or a grant of the pod. Out: whether the pod is current, ending or over; the scheme that
chooses its devices past the kubelet; why its allocation is not known. Nothing here decides what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

from exporter import device_ids
from exporter.diagnosis.facts import Facts
from exporter.diagnosis.rule import Evidence
from exporter.model import (
    Advisory,
    DeviceKey,
    GpuByUuid,
    Grant,
    MigByUuid,
    Passthrough,
    Pod,
    Unrecognised,
    Use,
    Workload,
    value,
)

OVERDUE = 120.0  # seconds after deletionTimestamp, which already includes the grace period

# Schemes whose choice the kubelet does not know, by what a pod shows of them: annotations by how they start,
# the label of a group of sharers, the namespaces of the pods that reserve whole GPUs for them.
ANNOTATIONS = (
    ("hami.io/", "hami"),
    ("volcano.sh/", "volcano"),
    ("ALIYUN_COM_GPU_", "gpushare"),
    ("scheduler.framework.gpushare.", "gpushare"),
    ("gpu-fraction", "kai"),
    ("gpu-memory", "kai"),
    ("run.ai/", "kai"),
)
GROUP_LABEL = "runai-gpu-group"
RESERVATIONS = ("kai-resource-reservation", "runai-reservation")


class Standing(Enum):
    """How a pod stands. Ending: it is being deleted and has given its devices back, as it should."""

    CURRENT = auto()
    ENDING = auto()
    OVER = auto()
    UNKNOWN = auto()


def of_use(facts: Facts, use: Use) -> Standing:
    """The standing of a process' pod. The process lives, so only the API server can say that it is over."""
    pod = facts.pods.get(use.pod_uid)
    return Standing.CURRENT if pod is None else _by_api(facts, pod)


def of_grant(facts: Facts, grant: Grant) -> Standing:
    """The standing of a pod that the kubelet lists. Kubelets up to 1.33 list pods that have ended."""
    pod = facts.pod_named.get((grant.workload.namespace, grant.workload.pod))
    if pod is not None:
        return _by_api(facts, pod)
    table = value(facts.snapshot.processes)
    if grant.pod_uid and any(one.pod_uid == grant.pod_uid for one in (table.containers if table else ())):
        return Standing.CURRENT
    lack = facts.lack(Evidence.PODS, None)
    if lack is None:
        # It may live unseen, or under a UID that nothing names.
        unnamed = not grant.pod_uid and facts.attribution.unnamed_pods
        return Standing.UNKNOWN if unnamed or table is None else Standing.OVER
    return Standing.CURRENT if lack.off else Standing.UNKNOWN  # off: the kubelet's word is all there is


def _by_api(facts: Facts, pod: Pod) -> Standing:
    if pod.ended:
        return Standing.OVER
    due = pod.deletion_timestamp
    if due is None or any(grant.current for grant in facts.grants_of(pod.namespace, pod.name)):
        return Standing.CURRENT
    return Standing.OVER if facts.snapshot.at > due + OVERDUE else Standing.ENDING


def grants(facts: Facts, use: Use) -> tuple[Grant, ...]:
    """What the kubelet gave to a process' pod; not what it gave to another one of the same name."""
    named = facts.grants_of(use.workload.namespace, use.workload.pod)
    return tuple(grant for grant in named if grant.pod_uid in ("", use.pod_uid))


# --- what chooses its devices -------------------------------------------------------------------------------


def scheme(facts: Facts, workload: Workload, pod_uid: str) -> str:
    """The scheme that chooses this pod's devices without telling the kubelet, "" if none is known to."""
    for grant in facts.grants_of(workload.namespace, workload.pod):
        if isinstance(grant.allocation.ref, Advisory):
            return grant.allocation.ref.scheme
    if workload.namespace in RESERVATIONS:
        return "kai"
    pod = facts.pods.get(pod_uid) or facts.pod_named.get((workload.namespace, workload.pod))
    return _shown(pod) if pod else ""


def _shown(pod: Pod) -> str:
    if any(name == GROUP_LABEL for name, _ in pod.labels):
        return "kai"
    for key, _ in pod.annotations:
        for start, name in ANNOTATIONS:
            if key.startswith(start):
                return name
    return ""


def reserves(facts: Facts, grant: Grant) -> bool:
    """Whether a pod only holds the device for others, which it will never use itself."""
    return scheme(facts, grant.workload, grant.pod_uid) == "kai"


def offered_in_replicas(facts: Facts, device: DeviceKey) -> bool:
    """Whether the device plugin offers the device, or the GPU that it is part of, to several pods."""
    kubelet = value(facts.snapshot.kubelet)
    for one in (kubelet.allocatable or ()) if kubelet else ():
        match one.ref:
            case GpuByUuid(uuid) if uuid == device.uuid:
                pass
            case MigByUuid(mig_uuid) if mig_uuid == device.mig_uuid:
                pass
            case _:
                continue
        if device_ids.parse(one.resource, one.device_id)[1]:
            return True
    return False


# --- what is not known of it --------------------------------------------------------------------------------


def doubt(facts: Facts, use: Use) -> str:
    """Why it is not known what a process' pod was given, "" where it is."""
    return next(_doubts(facts, use), "")


def _doubts(facts: Facts, use: Use) -> Iterator[str]:
    name = (use.workload.namespace, use.workload.pod)
    mine = grants(facts, use)
    if any(isinstance(grant.allocation.ref, Unrecognised) for grant in mine):
        yield "unrecognised_id"
    if any(grant.device is None and not _elsewhere(grant) for grant in mine):
        yield "unresolved_id"
    if any(not grant.current for grant in mine):
        yield "allocation_carried"
    if mine:
        return
    if facts.grants_of(*name):
        yield "pod_replaced"  # the kubelet means another pod of that name
    if lack := facts.lack(Evidence.SETTLED_LIST, None):
        yield f"{lack.evidence}:{lack.reason}"
    if any(isinstance(grant.allocation.ref, Unrecognised) for grant in facts.attribution.grants):
        yield "unrecognised_id"  # of a scheme that this pod may belong to
    kubelet = value(facts.snapshot.kubelet)
    listed = kubelet is not None and name in {(pod.namespace, pod.name) for pod in kubelet.pods}
    if not listed and use.pod_uid not in facts.pods:
        yield "pod_not_listed"  # neither as current nor as gone


def _elsewhere(grant: Grant) -> bool:
    """Whether its id can stand for no device that NVML shows."""
    return isinstance(grant.allocation.ref, Passthrough | Advisory)
