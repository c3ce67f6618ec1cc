"""The rules by hand: how each comes about, how long it waits and stays, and which labels it has.

One row for each alert and severity. `hold` and `keep` are minutes, written down from the design; the tests
derive from a row when the alert must fire, wait, end, stay through a gap, and stay in its cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.alerts.promtool import Labels, steady

GIB = 2.0**30
GPU: Labels = {"uuid": "GPU-1", "gpu": "0"}
MIG: Labels = {**GPU, "gi": "9", "mig_uuid": "MIG-9"}
POD: Labels = {"namespace": "ml", "pod": "train-0", "container": "main"}
NONE: tuple[str, ...] = ()
WHOLE = ("job", "instance", "node", "cluster", "region")  # labels of the target that survive `without`
HARDWARE = ("cluster", "node", "instance")
Value = Callable[[int], float] | None


@dataclass(frozen=True)
class Line:
    """A series of a row: what it has while the thing holds, by the minutes since then, and otherwise."""

    name: str
    labels: Labels
    on: Value
    off: Value
    stays: bool = False  # afterwards it keeps its last value


@dataclass(frozen=True)
class Row:
    """How one rule comes about. `starts` and `ends`: minutes until what holds, or no longer does, shows."""

    alert: str
    severity: str
    hold: int
    keep: int
    lines: tuple[Line, ...]
    labels: Labels = field(default_factory=dict)
    target: tuple[str, ...] = WHOLE
    lead: int = 5
    starts: int = 0
    ends: int = 0
    sparse: bool = False  # needs a long past: promtool is given this rule only

    @property
    def id(self) -> str:
        """For people."""
        return f"{self.alert}-{self.severity}"


def found(finding: str, kind: str, where: Labels, whose: Labels) -> tuple[Line, ...]:
    """A finding: its row appears, and the row that says clear goes."""
    return (
        Line("kubegpu_findings", {**where, **whose, "finding": finding, "kind": kind}, steady(1), None),
        Line("kubegpu_findings", {**where, "finding": finding}, None, steady(0)),
    )


def _found(
    alert: str, severity: str, times: tuple[int, int], finding: str, kind: str, whose: Labels = POD
) -> Row:
    labels = {**MIG, **whose, "finding": finding}
    return Row(alert, severity, *times, found(finding, kind, MIG, whose), labels)


def always(name: str, labels: Labels, value: float) -> Line:
    """What is there whether the thing holds or not."""
    return Line(name, labels, steady(value), steady(value))


def changes(name: str, labels: Labels, on: float, off: float) -> Line:
    """What is there with another value."""
    return Line(name, labels, steady(on), steady(off))


ORPHANED = "kubegpu_gpu_memory_orphaned_bytes"
NODE: Labels = {"finding": "node_capacity_mismatch"}
ROWS: tuple[Row, ...] = (
    _found("GPUStuckProcess", "critical", (1, 5), "stuck_process", "kill_pending"),
    _found("GPUStuckProcess", "critical", (1, 5), "stuck_process", "exiting"),
    _found("GPUStuckProcess", "critical", (1, 5), "stuck_process", "zombie_leader"),
    _found("GPUStuckProcess", "critical", (1, 5), "stuck_process", "uninterruptible_driver"),
    _found("GPUStuckProcess", "warning", (1, 5), "stuck_process", "zombie"),
    _found("GPUStuckProcess", "warning", (1, 5), "stuck_process", "uninterruptible_other"),
    _found("GPUPhantomProcess", "warning", (5, 5), "phantom_process", "held"),
    _found("GPUPhantomProcess", "warning", (5, 5), "phantom_process", "unheld", {}),
    _found("GPUPhantomProcess", "warning", (5, 5), "phantom_process", "aliased"),
    _found("GPUOrphanProcess", "warning", (5, 5), "orphan_process", "pod_gone"),
    _found("GPUOrphanProcess", "warning", (5, 5), "orphan_process", "terminating_overdue"),
    _found("GPUOrphanProcess", "warning", (5, 5), "orphan_process", "pod_terminal"),
    _found("GPUOrphanProcess", "warning", (5, 5), "orphan_process", "stale_container"),
    _found("GPUOrphanProcess", "warning", (5, 5), "orphan_process", "cgroup_deleted"),
    _found("GPUUsedByWrongPod", "critical", (2, 5), "used_not_allocated", "of_other_pod"),
    _found("GPUUsedByWrongPod", "warning", (2, 5), "used_not_allocated", "of_nobody"),
    _found("GPUExclusiveShared", "critical", (2, 5), "exclusive_gpu_shared", "double_use", {}),
    _found("GPUExclusiveShared", "critical", (2, 5), "exclusive_gpu_shared", "double_allocation", {}),
    _found("GPUAllocatedNotVisible", "warning", (2, 5), "allocated_not_visible", "no_device_file"),
    _found("GPUVisibleNotAllocated", "info", (30, 10), "visible_not_allocated", "privileged"),
    _found("GPUVisibleNotAllocated", "info", (30, 10), "visible_not_allocated", "host_device"),
    _found("GPUVisibleNotAllocated", "info", (30, 10), "visible_not_allocated", "mig_caps"),
    _found("GPUVisibleNotAllocated", "info", (30, 10), "visible_not_allocated", "other"),
    _found("GPUHiddenHolder", "info", (30, 10), "hidden_holder", "unlisted"),
    *(
        Row(
            "GPUNodeCapacityMismatch",
            severity,
            5,
            10,
            found("node_capacity_mismatch", kind, {}, {}),
            NODE,
        )
        for severity, kind in (
            ("critical", "nvml_lt_pci"),
            ("critical", "allocated_device_missing"),
            ("warning", "capacity_gt_real"),
            ("warning", "capacity_lt_real"),
            ("warning", "allocatable_lt_capacity"),
            ("warning", "mig_double_advertised"),
            ("warning", "allocation_stale"),
        )
    ),
    *(
        Row(
            "GPUExternalProcess",
            "warning",
            5,
            5,
            (
                *found("external_process", kind, GPU, {}),
                always("kubegpu_gpu_allocated", GPU, 1),
            ),
            {**GPU, "finding": "external_process"},
        )
        for kind in ("user_session", "system_service", "other_container", "unknown")
    ),
    Row(
        "GPUExternalProcess",
        "info",
        5,
        5,
        (*found("external_process", "user_session", GPU, {}), always("kubegpu_gpu_allocated", GPU, 0)),
        {**GPU, "finding": "external_process"},
    ),
    Row(
        "GPUMemoryOrphaned",
        "critical",
        10,
        10,
        (
            changes(ORPHANED, {**MIG, "cause": "phantom"}, 0.6 * GIB, 0),
            changes(ORPHANED, {**MIG, "cause": "unattributed"}, 0.6 * GIB, 0),
            always("kubegpu_gpu_memory_total_bytes", GPU, 80 * GIB),
            always("kubegpu_mig_memory_total_bytes", {**MIG, **POD}, 10 * GIB),
        ),
        {**GPU, "gi": "9"},
    ),
    Row(
        "GPUMemoryOrphaned",
        "warning",
        10,
        10,
        (
            changes(ORPHANED, {**GPU, "cause": "orphan"}, 3 * GIB, 0),
            always("kubegpu_gpu_memory_total_bytes", {**GPU, **POD}, 80 * GIB),
        ),
        GPU,
    ),
    Row(
        "GPUTemperatureHigh",
        "warning",
        10,
        5,
        (
            changes("kubegpu_gpu_temperature_celsius", {**GPU, **POD}, 86, 60),
            always("kubegpu_gpu_temperature_threshold_celsius", {**GPU, **POD, "threshold": "slowdown"}, 90),
            always("kubegpu_gpu_temperature_threshold_celsius", {**GPU, **POD, "threshold": "shutdown"}, 95),
        ),
        {"uuid": "GPU-1"},
        HARDWARE,
    ),
    Row(
        "GPUStackComponentNotReady",
        "warning",
        15,
        5,
        (
            changes(
                "kubegpu_stack_component_ready",
                {"component": "device_plugin", "namespace": "gpu-operator", "pod": "plugin-x"},
                0,
                1,
            ),
        ),
        {"component": "device_plugin", "namespace": "gpu-operator"},
    ),
    Row(
        "GPUIdleAllocation",
        "info",
        60,
        15,
        found("idle_allocation", "no_client", MIG, POD),
        {**MIG, **POD},
        sparse=True,
    ),
    Row(
        "GPUMemoryGrowing",
        "info",
        60,
        15,
        (
            Line(
                "kubegpu_workload_memory_bytes",
                {**GPU, **POD},
                lambda minute: (10 + 0.05 * minute) * GIB,  # three GiB in an hour
                None,
                stays=True,
            ),
            always("kubegpu_gpu_memory_total_bytes", {**GPU, **POD}, 80 * GIB),
        ),
        {**GPU, **POD},
        lead=0,
        starts=360,
        ends=59,
        sparse=True,
    ),
    Row(
        "GPUProcessSurge",
        "info",
        15,
        10,
        (changes("kubegpu_processes", {**MIG, "owner": "pod"}, 40, 2),),
        {"uuid": "GPU-1", "gi": "9", "mig_uuid": "MIG-9"},
        ("cluster", "node"),
        lead=1445,
        sparse=True,
    ),
    Row("KubeGPUExporterDown", "warning", 10, 5, (changes("up", {}, 0, 1),)),
    Row(
        "KubeGPUExporterSourceDown",
        "critical",
        10,
        5,
        (changes("kubegpu_source_up", {"source": "nvml"}, 0, 1),),
        {"source": "nvml"},
    ),
    Row(
        "KubeGPUExporterSourceDown",
        "warning",
        10,
        5,
        (
            changes("kubegpu_source_up", {"source": "kubelet"}, 0, 1),
            always("kubegpu_source_paused", {"source": "kubelet"}, 0),
        ),
        {"source": "kubelet"},
    ),
    Row(
        "KubeGPUExporterFindingUndetermined",
        "warning",
        30,
        10,
        (
            Line(
                "kubegpu_finding_undetermined",
                {"finding": "phantom_process", "kind": "held", "reason": "rows:busy"},
                steady(1),
                None,
            ),
        ),
        {"finding": "phantom_process"},
    ),
    Row(
        "KubeGPUExporterSeriesDropped",
        "info",
        30,
        10,
        (changes("kubegpu_process_series_dropped", {}, 7, 0),),
    ),
    Row(
        "KubeGPUExporterLabelsRewritten",
        "warning",
        15,
        5,
        (
            Line(
                "kubegpu_allocation_info",
                {**GPU, "exported_namespace": "ml", "exported_pod": "train-0"},
                steady(1),
                None,
            ),
        ),
        {},
        ("cluster", "job"),
    ),
    Row(
        "KubeGPUExporterAbsent",
        "critical",
        15,
        5,
        (
            Line("kubegpu_exporter_build_info", {"version": "1"}, None, steady(1)),
            always("kubegpu_exporter_build_info", {"version": "1", "cluster": "red"}, 1),
        ),
        {},
        ("cluster",),
    ),
)
