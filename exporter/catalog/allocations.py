"""Rows about what the kubelet gave to whom, and about what the node has to give."""

from collections.abc import Iterator

from exporter.catalog.family import (
    INSTANCE,
    WORKLOAD,
    Family,
    Samples,
    answering,
    devices_of,
    flag,
    workload,
)
from exporter.model import DeviceKey, Report, Seen

GPU_RESOURCE = "nvidia.com/gpu"


def _allocated(report: Report) -> Samples:
    """0 or 1 for each device that can be given; not for a GPU instance beside its compute instances."""
    devices = devices_of(report)
    uses = report.attribution.devices
    divided = {(use.device.uuid, use.device.gi) for use in uses if use.device.ci is not None}
    facts: dict[tuple[str, ...], bool] = {}
    for use in uses:
        key = use.device
        if use.allocated is None or (key.ci is None and (key.uuid, key.gi) in divided):
            continue
        labels = devices.instance(key)
        facts[labels] = facts.get(labels, False) or use.allocated
    for labels, given in facts.items():
        yield labels, flag(given)


def _last_active(report: Report) -> Samples:
    devices = devices_of(report)
    last = dict(report.history.last_active)
    for gpu in answering(report):
        if gpu.mig_enabled or gpu.telemetry.utilization is None or gpu.uuid not in last:
            continue
        yield (*devices.gpu(gpu.uuid, gpu.index), "", ""), last[gpu.uuid]


def _allocations(report: Report) -> Samples:
    devices = devices_of(report)
    rows = {
        (
            *devices.instance(grant.device),
            grant.allocation.resource,
            grant.pod_uid,
            *workload(grant.workload),
        )
        for grant in report.attribution.grants
        if grant.current and grant.device is not None
    }
    for labels in rows:
        yield labels, 1


def _granted(report: Report) -> int:
    """Distinct devices given, also those that NVML does not show: replicas of one device are one."""
    given: set[DeviceKey | tuple[str, str]] = set()
    for grant in report.attribution.grants:
        if grant.current:
            allocation = grant.allocation
            unresolved = (allocation.resource, allocation.device_id)
            given.add(unresolved if grant.device is None else grant.device)
    return len(given)


def _counts(report: Report) -> Iterator[tuple[str, int]]:
    snapshot = report.snapshot
    if isinstance(snapshot.pci, Seen) and snapshot.pci.complete:
        yield "pci", sum(gpu.driver != "vfio-pci" for gpu in snapshot.pci.value.gpus)
    if isinstance(snapshot.nvml, Seen) and snapshot.nvml.complete:
        yield "nvml", snapshot.nvml.value.count
    if isinstance(snapshot.node, Seen):
        for state, resources in (
            ("capacity", snapshot.node.value.capacity),
            ("allocatable", snapshot.node.value.allocatable),
        ):
            yield state, sum(count for resource, count in resources if resource == GPU_RESOURCE)
    if isinstance(snapshot.kubelet, Seen) and snapshot.kubelet.complete:
        yield "allocated", _granted(report)
    if isinstance(snapshot.pods, Seen) and snapshot.pods.complete:
        requests = (pod.gpu_requests for pod in snapshot.pods.value.pods if not pod.ended)
        yield (
            "requested",
            sum(count for pod in requests for resource, count in pod if resource == GPU_RESOURCE),
        )


def _node_gpus(report: Report) -> Samples:
    for state, count in _counts(report):
        yield (state,), count


FAMILIES = (
    Family(
        "gpu_allocated",
        "gauge",
        "1 if the kubelet gave this GPU or MIG device to a container, else 0; absent while that is not "
        "known.",
        INSTANCE,
        "stable",
        _allocated,
    ),
    Family(
        "gpu_last_active_timestamp_seconds",
        "gauge",
        "When the GPU was last seen with a utilisation above 0; absent on MIG and where there is no "
        "utilisation.",
        INSTANCE,
        "stable",
        _last_active,
    ),
    Family(
        "allocation_info",
        "gauge",
        "A GPU or MIG device that the kubelet gave to a container, always 1. A shared device has several "
        "rows.",
        (*INSTANCE, "resource", "pod_uid", *WORKLOAD),
        "stable",
        _allocations,
    ),
    Family(
        "node_gpus",
        "gauge",
        "GPUs of the node by who says so: pci (on the bus and not passed to a virtual machine), nvml "
        "(listed by the driver), capacity and allocatable (nvidia.com/gpu of the node object), allocated "
        "(distinct GPUs and MIG devices that the kubelet gave), requested (nvidia.com/gpu of pods that have "
        "not ended). A state is absent while its source does not answer, or only in part.",
        ("state",),
        "stable",
        _node_gpus,
    ),
)
