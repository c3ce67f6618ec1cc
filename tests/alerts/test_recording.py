"""The recording rules, on a small fleet whose sums were worked out by hand. promtool evaluates them."""

from __future__ import annotations

from pathlib import Path

from tests.alerts.promtool import TARGET, Labels, Series, Trial, rules, run
from tests.alerts.rulebook import records
from tests.alerts.table import GIB, GPU, ORPHANED, POD

MINUTES = 130
B: Labels = {"uuid": "GPU-2", "gpu": "1"}
M: Labels = {"uuid": "GPU-3", "gpu": "2"}


def _of(name: str, labels: Labels, value: float, **target: str) -> Series:
    return Series(f"kubegpu_{name}", {**TARGET, **labels, **target}, [value] * MINUTES)


def _given(device: Labels, namespace: str, pod: str, container: str = "main", **target: str) -> Series:
    row = {**device, "namespace": namespace, "pod": pod, "container": container}
    return _of("allocation_info", {**row, "resource": "nvidia.com/gpu", "pod_uid": pod}, 1, **target)


# Cluster blue: GPU-1 is train's alone; GPU-2 is shared by three containers, two of namespace web; GPU-3 is in
# MIG mode with an instance of an eighth and one of a half with two compute instances. Cluster green: one GPU.
FLEET = [
    *(_of("gpu_info", {**one, "product": "H100"}, 1) for one in (GPU, B, M)),
    _of("gpu_info", GPU, 1, cluster="green"),
    *(_of("gpu_memory_total_bytes", one, 80 * GIB) for one in (B, M)),
    _of("gpu_memory_total_bytes", {**GPU, **POD}, 80 * GIB),
    _of("gpu_utilization_ratio", {**GPU, **POD}, 0.75),
    _of("gpu_utilization_ratio", B, 0.3),
    _of("mig_memory_total_bytes", {**M, "gi": "1", "mig_uuid": "MIG-1"}, 10 * GIB),
    _of("mig_memory_total_bytes", {**M, "gi": "2"}, 40 * GIB),
    _given(GPU, "ml", "train-0"),
    _given(B, "web", "srv-0"),
    _given(B, "web", "srv-1"),
    _given(B, "ml", "eval-0"),
    _given({**M, "gi": "1", "mig_uuid": "MIG-1"}, "web", "srv-2"),
    _given({**M, "gi": "2", "mig_uuid": "MIG-2"}, "web", "srv-3"),
    _given({**M, "gi": "2", "mig_uuid": "MIG-3"}, "lab", "note-0"),
    _given(GPU, "ml", "train-0", cluster="green"),
    _of("gpu_utilization_ratio", GPU, 0, cluster="green"),
    _of("workload_memory_bytes", {**GPU, **POD}, 5 * GIB),
    _of("workload_memory_bytes", {**B, "namespace": "ml", "pod": "eval-0"}, GIB),
    _of("workload_memory_bytes", {**B, "namespace": "web", "pod": "srv-0"}, 2 * GIB),
    *(
        Series(ORPHANED, {**TARGET, **one, "cause": cause}, [value] * MINUTES)
        for one, cause, value in (
            (GPU, "phantom", 1.0 * GIB),
            (GPU, "orphan", 0.5 * GIB),
            (B, "phantom", 0.25 * GIB),
        )
    ),
    Series(ORPHANED, {**TARGET, **GPU, "cluster": "green", "cause": "phantom"}, [0] * MINUTES),
    _of("findings", {**GPU, **POD, "finding": "stuck_process", "kind": "exiting"}, 2),
    _of("findings", {**GPU, "finding": "stuck_process", "kind": "zombie"}, 1),
    _of("findings", {**B, "finding": "stuck_process"}, 0),
    _of("findings", {**GPU, "finding": "stuck_process"}, 0, cluster="green"),
    _of("processes", {**B, "owner": "pod"}, 3),
    _of("processes", {**B, "owner": "system"}, 1),
]
BLUE, GREEN = 'cluster="blue"', 'cluster="green"'
TARGET_BLUE = 'cluster="blue",instance="10.0.0.1:9836",node="gpu-1"'

# A third of GPU-2 for each of three containers. GPU-3: 1/8 for srv-2, and 1/2 between srv-3 and note-0.
EXPECTED: dict[str, list[tuple[str, float]]] = {
    "cluster:kubegpu_gpus:count": [(BLUE, 3), (GREEN, 1)],
    "cluster:kubegpu_gpu_memory_orphaned_bytes:sum": [(BLUE, 1.75 * GIB), (GREEN, 0)],
    "cluster:kubegpu_stuck_gpus:count": [(BLUE, 1), (GREEN, 0)],
    "cluster:kubegpu_findings:sum": [
        (f'{BLUE},finding="stuck_process"', 3),
        (f'{GREEN},finding="stuck_process"', 0),
    ],
    'node:kubegpu_findings:sum{cluster="blue"}': [(f'{TARGET_BLUE},finding="stuck_process"', 3)],
    "namespace:kubegpu_allocated_gpus:sum": [
        (f'{BLUE},namespace="ml"', 1 + 1 / 3),
        (f'{BLUE},namespace="web"', 2 / 3 + 1 / 8 + 1 / 4),
        (f'{BLUE},namespace="lab"', 1 / 4),
        (f'{GREEN},namespace="ml"', 1),
    ],
    "namespace:kubegpu_measured_gpus:sum": [
        (f'{BLUE},namespace="ml"', 1 + 1 / 3),
        (f'{BLUE},namespace="web"', 2 / 3),
        (f'{GREEN},namespace="ml"', 1),
    ],
    "namespace:kubegpu_busy_gpus:sum": [
        (f'{BLUE},namespace="ml"', 0.75 + 0.1),
        (f'{BLUE},namespace="web"', 0.2),
        (f'{GREEN},namespace="ml"', 0),
    ],
    # An hour after the start and later: 3600 s of each.
    "namespace:kubegpu_allocated_gpu_seconds:sum1h": [
        (f'{BLUE},namespace="ml"', 3600 * (1 + 1 / 3)),
        (f'{BLUE},namespace="web"', 3600 * (2 / 3 + 3 / 8)),
        (f'{BLUE},namespace="lab"', 900),
        (f'{GREEN},namespace="ml"', 3600),
    ],
    "namespace:kubegpu_busy_gpu_seconds:sum1h": [
        (f'{BLUE},namespace="ml"', 3060),
        (f'{BLUE},namespace="web"', 720),
        (f'{GREEN},namespace="ml"', 0),
    ],
    # ml: 0.85 of 4/3; web: 0.2 of 2/3, of what has a utilisation; lab has none; green is idle.
    "namespace:kubegpu_gpu_waste:ratio1h": [
        (f'{BLUE},namespace="ml"', 0.3625),
        (f'{BLUE},namespace="web"', 0.7),
        (f'{GREEN},namespace="ml"', 1),
    ],
    "namespace:kubegpu_workload_memory_bytes:sum": [
        (f'{BLUE},namespace="ml"', 6 * GIB),
        (f'{BLUE},namespace="web"', 2 * GIB),
    ],
    "cluster:kubegpu_allocated_gpus:sum": [(BLUE, 1 + 1 / 3 + 2 / 3 + 3 / 8 + 1 / 4), (GREEN, 1)],
    "device:kubegpu_processes:sum": [(f'{BLUE},node="gpu-1",uuid="GPU-2"', 4)],
    "device:kubegpu_processes:quantile95_1d": [(f'{BLUE},node="gpu-1",uuid="GPU-2"', 4)],
}


def test_sums(tmp_path: Path) -> None:
    """Every recorded series is what it says, each cluster for itself, shared devices and MIG by part."""
    samples = {
        # promtool compares floats to the letter
        (f"round({name}, 1e-6)", MINUTES - 1): [(f"{{{labels}}}", round(value, 6)) for labels, value in rows]
        for name, rows in EXPECTED.items()
    }
    run([Trial("fleet", FLEET, samples=samples)], rules(tmp_path), tmp_path)


def test_every_record_is_tried() -> None:
    """No recording rule is left out, but the one of the single shares, which the sums are made of."""
    tried = {name.partition("{")[0] for name in EXPECTED}
    assert {record.name for record in records()} - tried == {"allocation:kubegpu_gpus:share"}


def test_what_is_not_known_is_not_summed(tmp_path: Path) -> None:
    """Without NVML a whole GPU is still given, since the kubelet says so; a part of unknown size is not
    counted, and no utilisation is no waste.
    """
    known = [one for one in FLEET if "allocation_info" in one.name]
    samples: dict[tuple[str, int], list[tuple[str, float]]] = {
        ("namespace:kubegpu_busy_gpus:sum", 60): [],
        ("namespace:kubegpu_measured_gpus:sum", 60): [],
        ("namespace:kubegpu_gpu_waste:ratio1h", 60): [],
        ("round(namespace:kubegpu_allocated_gpus:sum, 1e-6)", 60): [
            (f'{{{BLUE},namespace="ml"}}', 1.333333),
            (f'{{{BLUE},namespace="web"}}', 0.666667),
            (f'{{{GREEN},namespace="ml"}}', 1),
        ],
    }
    run([Trial("blind", known, samples=samples)], rules(tmp_path), tmp_path)


def test_an_hour_with_a_gap_counts_less(tmp_path: Path) -> None:
    """Minutes in which nothing was known add nothing to the GPU-seconds."""
    series = _given(GPU, "ml", "train-0")
    minutes: list[float | None] = [*[1.0] * 80, *[None] * 20, *[1.0] * 30]
    gap = Series(series.name, series.labels, minutes)
    samples = {
        ("namespace:kubegpu_allocated_gpu_seconds:sum1h + 0", 129): [
            (f'{{{BLUE},namespace="ml"}}', 40 * 60.0)
        ]
    }
    run([Trial("gap", [gap], samples=samples)], rules(tmp_path), tmp_path)
