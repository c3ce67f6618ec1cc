"""Alerts on findings: one for each finding that the exporter tells. Pure.

The exporter counts what no other finding explains, holds it through what it cannot see, and says 0 only where
it looked. So these rules ask for a count above 0 and for nothing else. They drop the label `kind`, which may
change while one incident lasts; the description looks it up, with the pids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from alerts.src.rule import Alert, Language

MINUTE = 60.0
CRITICAL, WARNING, INFO = "critical", "warning", "info"


@dataclass(frozen=True, slots=True)
class Row:
    """An alert on one finding. `kinds` empty: all; otherwise these have the severity."""

    alert: str
    finding: str
    severity: str
    hold: float
    keep: float
    summary: str
    what: str  # a sentence about the device and the pod
    first: str  # what to do first
    kinds: tuple[str, ...] = ()
    of_node: bool = False


ROWS: tuple[Row, ...] = (
    Row(
        "GPUStuckProcess",
        "stuck_process",
        CRITICAL,
        1 * MINUTE,
        5 * MINUTE,
        "A process on a GPU can neither go on nor end.",
        "A process of {owner} on {gpu} can neither go on nor end, and keeps its memory.",
        "cordon the node. Kill nothing again: it is in the kernel, and more signals change nothing.",
        kinds=("kill_pending", "exiting", "zombie_leader", "uninterruptible_driver"),
    ),
    Row(
        "GPUStuckProcess",
        "stuck_process",
        WARNING,
        1 * MINUTE,
        5 * MINUTE,
        "A process on a GPU can neither go on nor end.",
        "A process of {owner} on {gpu} does not move: it is a zombie with GPU memory, or sleeps in the "
        "kernel outside the GPU driver.",
        "see what it waits for: mostly a network file system, or a parent that does not collect it.",
        kinds=("zombie", "uninterruptible_other"),
    ),
    Row(
        "GPUPhantomProcess",
        "phantom_process",
        WARNING,
        5 * MINUTE,
        5 * MINUTE,
        "NVML charges GPU memory to a process that does not exist.",
        "On {gpu} the driver charges memory to a process that is gone. It was of {owner}.",
        "held: end the processes that inherited its files. unheld, aliased: drain the node, reset the GPU.",
    ),
    Row(
        "GPUOrphanProcess",
        "orphan_process",
        WARNING,
        5 * MINUTE,
        5 * MINUTE,
        "A live process uses a GPU for a pod or container that is no longer there.",
        "A live process on {gpu} belongs to {owner}, which has ended, is overdue or is gone.",
        "end the process on the node: nothing else will.",
    ),
    Row(
        "GPUUsedByWrongPod",
        "used_not_allocated",
        CRITICAL,
        2 * MINUTE,
        5 * MINUTE,
        "A pod has memory on a GPU that it was not given.",
        "Memory of {gpu} is used by {owner}, and the device was given to another pod. Given to: {given}.",
        "find out how it can see the GPU: runtime class, privileged, hostPath, or mixed-up device files.",
        kinds=("of_other_pod",),
    ),
    Row(
        "GPUUsedByWrongPod",
        "used_not_allocated",
        WARNING,
        2 * MINUTE,
        5 * MINUTE,
        "A pod has memory on a GPU that it was not given.",
        "Memory of {gpu} is used by {owner}, and the device was given to nobody, or is "
        "shared by others. Given to: {given}.",
        "find out how it can see the GPU, before the scheduler gives it to somebody.",
        kinds=("of_nobody",),
    ),
    Row(
        "GPUExclusiveShared",
        "exclusive_gpu_shared",
        CRITICAL,
        2 * MINUTE,
        5 * MINUTE,
        "Two pods are on a GPU that is meant for one.",
        "Two pods are on {gpu}, which is meant for one. Given to: {given}.",
        "find out which of them was given another device, and why it uses this one.",
    ),
    Row(
        "GPUAllocatedNotVisible",
        "allocated_not_visible",
        WARNING,
        2 * MINUTE,
        5 * MINUTE,
        "A container was given a GPU and cannot see it.",
        "The kubelet gave {gpu} to {owner}, and the container has no file for it in its /dev.",
        "check the pod's runtime class and the runtime's NVIDIA handler, then restart the pod.",
    ),
    Row(
        "GPUVisibleNotAllocated",
        "visible_not_allocated",
        INFO,
        30 * MINUTE,
        10 * MINUTE,
        "A container can open GPUs that it was not given.",
        "A container of {owner} can open {gpu}, which it was not given.",
        "set a runtime class and drop privileges, so that the device plugin alone decides what it sees.",
    ),
    Row(
        "GPUHiddenHolder",
        "hidden_holder",
        INFO,
        30 * MINUTE,
        10 * MINUTE,
        "A process can own GPU memory and NVML does not list it.",
        "A process of {owner} has what it needs to own memory of {gpu}, and nvidia-smi does not show it.",
        "see whether its parent died and left it behind.",
    ),
    Row(
        "GPUNodeCapacityMismatch",
        "node_capacity_mismatch",
        CRITICAL,
        5 * MINUTE,
        10 * MINUTE,
        "The counts of GPUs of a node do not agree.",
        "A GPU is missing on {where}. Counts: {counts}.",
        "cordon the node and read the kernel's log for Xid 79 and for GPUs that fell off the bus.",
        kinds=("nvml_lt_pci", "allocated_device_missing"),
        of_node=True,
    ),
    Row(
        "GPUNodeCapacityMismatch",
        "node_capacity_mismatch",
        WARNING,
        5 * MINUTE,
        10 * MINUTE,
        "The counts of GPUs of a node do not agree.",
        "What {where} offers is not what it has. Counts: {counts}.",
        "compare nvidia-smi with the node object, then restart the device plugin.",
        kinds=(
            "capacity_gt_real",
            "capacity_lt_real",
            "allocatable_lt_capacity",
            "mig_double_advertised",
            "allocation_stale",
        ),
        of_node=True,
    ),
)


def alerts(words: Language) -> tuple[Alert, ...]:
    """All of them."""
    return (*(_alert(words, row) for row in ROWS), *_external(words))


def _alert(words: Language, row: Row) -> Alert:
    on = (*words.cluster, "instance") if row.of_node else words.device
    what = row.what.format(
        owner=words.owner,
        gpu=words.gpu,
        where=words.where,
        given=words.given_to(words.device),
        counts=words.told(
            "node_gpus",
            (*words.cluster, "instance"),
            "{{ $one.Labels.state }} {{ $one.Value }}",
        )
        .replace("count by", "max by")
        .replace("topk(5", "topk(6"),
    )
    place = "" if row.of_node else f"Node: {words.where.removeprefix('node ')}.\n"
    return Alert(
        row.alert,
        row.severity,
        row.hold,
        row.keep,
        f"{words.findings(row.finding, row.kinds)} > 0",
        row.summary,
        f"{what}\n{place}Found: {words.processes(row.finding, on=on)}.\nFirst: {row.first}",
    )


def _external(words: Language) -> Iterator[Alert]:
    """A large one, or one on a GPU that a pod was given, disturbs; the others are told. What is not known
    does not make it worse.
    """
    found = f"{words.findings('external_process')} > 0"
    detail = ("kind", "pid", "comm", "pod_uid", "explained_by")
    memory = words.metric("finding_memory_bytes", 'finding="external_process"', 'explained_by=""')
    large = f"sum without ({', '.join(detail)}) (\n  {memory}\n) >= {words.config.thresholds.external_bytes}"
    beside = ("finding", "gi", "mig_uuid", *words.workload)
    given = (
        f"ignoring ({', '.join(beside)}) (\n"
        f"  max without (gi, mig_uuid) (\n    {words.metric('gpu_allocated')}\n  ) == 1\n)"
    )
    disturbing = f"(\n{found}\nand\n{large}\n)\nor\n(\n{found}\nand {given}\n)"
    harmless = f"{found}\nunless\n{large}\nunless {given}"
    for severity, expr, what in (
        (WARNING, disturbing, "much, or on a GPU that a pod was given"),
        (INFO, harmless, "little, and on a GPU that no pod was given, as far as is known"),
    ):
        yield Alert(
            "GPUExternalProcess",
            severity,
            5 * MINUTE,
            5 * MINUTE,
            expr,
            "A process outside Kubernetes uses a GPU of this node.",
            f"A process outside Kubernetes uses {words.gpu}: {what}.\n"
            f"Node: {words.where.removeprefix('node ')}.\n"
            f"Found: {words.processes('external_process', on=words.device)}.\n"
            "First: ask its owner to end it, or take the GPU away from the device plugin.",
        )
