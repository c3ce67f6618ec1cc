"""Alerts on devices and on the GPU stack of a node: memory, idling, heat, trends, components. Pure.

A device's series carry its owner, so that a handover starts new ones. What is about the hardware aggregates
the owner away and keeps its clock; what is about a pod keeps the pod.
"""

from __future__ import annotations

from collections.abc import Iterator

from alerts.src.findings import CRITICAL, INFO, MINUTE, WARNING
from alerts.src.rule import Alert, Language, indented, joined
from alerts.src.values import duration

HOUR = 60 * MINUTE
PROCESSES = "device:kubegpu_processes:sum"
PROCESSES_DAY = "device:kubegpu_processes:quantile95_1d"


def memory(words: Language) -> Iterator[Alert]:
    """The page: memory that nobody needs any more. Where the size of the device was not known for an hour,
    only the bytes decide. What is not known of the parts is not in the sum, which is then a lower bound.
    """
    limits = words.config.thresholds
    wasted = f"sum without (cause, mig_uuid) (\n  {words.metric('gpu_memory_orphaned_bytes')}\n)"
    share = f"{limits.memory_share:g} * {words.total(last='1h')}"
    large = f"{wasted} > {limits.memory_bytes}\nunless\n{wasted} <= {share}"
    causes = words.told(
        "gpu_memory_orphaned_bytes",
        words.device,
        "{{ $one.Labels.cause }} {{ $one.Value | humanize1024 }}B",
        of="{} > 0",
    ).replace("count by", "sum by")
    for severity, expr in (
        (CRITICAL, large),
        (WARNING, f"{wasted} > 0\nunless\n(\n{indented(large, 2)}\n)"),
    ):
        yield Alert(
            "GPUMemoryOrphaned",
            severity,
            10 * MINUTE,
            10 * MINUTE,
            expr,
            "GPU memory is in use that nobody needs any more.",
            "{{ $value | humanize1024 }}B of "
            f"{words.memory} are in use and nobody needs them: {causes}.\n"
            f"Node: {words.where.removeprefix('node ')}. "
            f"Given to: {words.given_to(words.device)}.\n"
            "Found: "
            + words.processes(
                "orphaned_memory", "phantom_process", "orphan_process", "stuck_process", on=words.device
            )
            + ".\nFirst: end the processes that are named. Where none is, drain the node and reset the GPU.",
        )


def idle(words: Language) -> Iterator[Alert]:
    """A pod without a process on its GPU, or with one and without any activity. The second form is silent
    where the first one speaks, and where there is no utilisation (MIG).
    """
    found = f"{words.findings('idle_allocation', drop=('finding', 'kind'))} > 0"
    owner = f"ignoring ({joined(words.workload)})"
    since = words.metric("gpu_last_active_timestamp_seconds")
    unused = (
        f"{found}\nor\n(\n"
        f"  max without (resource, pod_uid) (\n    {words.metric('allocation_info')}\n  )\n"
        f"  and {owner} (\n    {words.metric('gpu_allocated')} == 1\n  )\n"
        f"  and {owner} (\n    time() - {since} > {words.config.thresholds.idle:g}\n  )\n"
        f"  unless ignoring ({words.container}) (\n{indented(found)}\n  )\n)"
    )
    yield Alert(
        "GPUIdleAllocation",
        INFO,
        1 * HOUR,
        15 * MINUTE,
        unused,
        "A pod was given a GPU and does not use it.",
        f"The kubelet gave {words.gpu} to {words.owner}. For more than an hour it has had no process "
        "there, or the device no activity.\n"
        f"Node: {words.where.removeprefix('node ')}.\n"
        "First: ask the pod's owner whether the GPU is still needed.",
    )


def heat(words: Language) -> Iterator[Alert]:
    """By UUID, so that a handover keeps the clock."""
    by = f"max by ({joined((*words.target, 'uuid'))})"
    limit = words.metric("gpu_temperature_threshold_celsius", 'threshold="slowdown"')
    yield Alert(
        "GPUTemperatureHigh",
        WARNING,
        10 * MINUTE,
        5 * MINUTE,
        f"{by} (\n  {words.metric('gpu_temperature_celsius')}\n)\n> {by} (\n  {limit}\n) "
        f"- {words.config.thresholds.temperature_margin:g}",
        "A GPU is about to slow down because it is hot.",
        f"{words.uuid} has {{{{ $value }}}} degrees Celsius, close to or above the temperature at which it "
        f"slows down.\nNode: {words.where.removeprefix('node ')}. "
        f"Given to: {words.given_to((*words.cluster, 'instance', 'uuid'))}.\n"
        "First: compare with the other GPUs of the node: one hot GPU is a card, all of them are the air.",
    )


def trends(words: Language) -> Iterator[Alert]:
    """What grows. Each needs the past that it compares with: a new pod, or a new node, is not judged."""
    limits = words.config.thresholds
    used = words.metric("workload_memory_bytes")
    of_device = f"ignoring (mig_uuid, {joined(words.workload)}) group_left ()"
    long, short = duration(limits.growth_window), duration(limits.growth_window / 6)
    yield Alert(
        "GPUMemoryGrowing",
        INFO,
        1 * HOUR,
        15 * MINUTE,
        f"{used} - {used} offset {long}\n  > {of_device} {limits.growth_share:g} * {words.total()}\n"
        f"and\n{used} > {used} offset {short}\n"
        f"and\npredict_linear({used}[{long}], {limits.growth_horizon:.0f})\n  > {of_device} {words.total()}",
        "The GPU memory of a workload grows and grows.",
        f"{{{{ $value | humanize1024 }}}}B more than {long} ago are used on {words.gpu} by {words.owner}. "
        f"If it goes on, the device is full within {duration(limits.growth_horizon)}.\n"
        f"Node: {words.where.removeprefix('node ')}.\n"
        "First: tell the pod's owner; a leak ends in an out-of-memory error of the pod, not of the node.",
    )
    yield Alert(
        "GPUProcessSurge",
        INFO,
        15 * MINUTE,
        10 * MINUTE,
        f"{PROCESSES} > {limits.surge_factor:g} * {PROCESSES_DAY}\n"
        f"and\n{PROCESSES} - {PROCESSES_DAY} >= {limits.surge_processes:g}\n"
        f"and\n{PROCESSES} offset 1d",
        "Far more processes than in the last day are on a GPU.",
        f"{{{{ $value }}}} processes are on {words.uuid}{words.part}, far more than in the day before.\n"
        f"Node: {{{{ $labels.{words.config.node_label} }}}}{words.of_cluster}. "
        f"Given to: {words.given_to((*words.cluster, 'uuid', 'gi'))}.\n"
        "First: see whether a pod starts workers without end, or old ones do not leave.",
    )


def stack(words: Language) -> Iterator[Alert]:
    """By component: its pods are replaced, under other names."""
    on = (*words.cluster, "instance", "component", words.namespace)
    pods = words.told("stack_component_ready", on, f"{{{{ $one.Labels.{words.pod} }}}}", of="{} == 0")
    yield Alert(
        "GPUStackComponentNotReady",
        WARNING,
        15 * MINUTE,
        5 * MINUTE,
        f"min without ({words.pod}, {words.container}) (\n  {words.metric('stack_component_ready')}\n) == 0",
        "A part of the node's GPU stack is not ready.",
        "The {{ $labels.component }} of "
        f"{words.where} (namespace {{{{ $labels.{words.namespace} }}}}) is not ready. Pods: {pods}.\n"
        "First: describe the pod and read its log; without a device plugin no new pod gets a GPU.",
    )
