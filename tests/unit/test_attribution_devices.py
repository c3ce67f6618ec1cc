"""Whose memory is on a device, and where nothing may be said about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exporter.model import DeviceKey, DeviceUse, Gpu, Memory, Policy, Report
from exporter.report import advance
from tests import builders as b

POLICY = Policy()


def after(*gpus: Gpu, policy: Policy = POLICY) -> dict[DeviceKey, DeviceUse]:
    """The rows after one cycle for each GPU given, which is the same GPU at different times."""
    report: Report | None = None
    for number, gpu in enumerate(gpus):
        seconds = 15.0 * number
        look = b.snapshot(nvml=b.nvml(gpu), at=b.NOW + seconds, monotonic=b.MONOTONIC + seconds)
        report = advance(policy, report, look)
    assert report is not None
    return {row.device: row for row in report.attribution.devices}


def sums(row: DeviceUse) -> tuple[int | None, int | None, int | None]:
    """Attributed, unattributed, baseline; in MiB."""
    figures = (row.attributed, row.unattributed, row.baseline)
    first, second, third = (None if figure is None else figure // b.MIB for figure in figures)
    return first, second, third


def used(mib: int, *rows: int | None, **more: object) -> Gpu:
    listed = tuple(b.row(100 + i, None if one is None else one * b.MIB) for i, one in enumerate(rows))
    return b.gpu(used=mib * b.MIB, rows=listed, **more)  # type: ignore[arg-type]


# ---------------------------------------------------------------- whole GPUs


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ((used(0),), (0, 0, 0)),
        ((used(1024, 1024),), (1024, 0, 0)),
        ((used(1124, 1024),), (1024, 0, 100)),
        ((used(5000, 1000),), (1000, 3744, 256)),
        ((used(100), used(5000, 1000)), (1000, 3900, 100)),
        ((used(5000, 1000), used(40), used(5000, 1000)), (1000, 3960, 40)),
        ((used(100), used(5000, None)), (None, None, None)),
        ((used(1000, 1024),), (1024, 0, 0)),
        ((used(100), used(1000, 1024), used(1100, 1000)), (1000, 100, 0)),
    ],
    ids=[
        "idle",
        "all known",
        "a context's worth",
        "more than a baseline may be",
        "learned while idle",
        "learned later, as a minimum",
        "a row says N/A",
        "rows say more than is used",
        "and that is a baseline of nothing",
    ],
)
def test_what_nobody_accounts_for(gpus: tuple[Gpu, ...], expected: tuple[int | None, ...]) -> None:
    """Used less the rows less the least that was ever beyond them, floored at nothing."""
    assert sums(after(*gpus)[b.key()]) == expected


def test_the_baseline_is_bounded_by_policy() -> None:
    """An agent that starts on a node with orphaned memory must not learn it as normal."""
    row = after(used(5000), policy=Policy(baseline_limit=64 * b.MIB))[b.key()]
    assert sums(row) == (0, 4936, 64)


@pytest.mark.parametrize(
    "doubt",
    [
        {"coherent_memory": True},
        {"confidential": True},
        {"virtualization": "vgpu"},
        {"virtualization": "host_vgpu"},
        {"virtualization": "host_vsga"},
        {"frame_buffer": b.memory(5000 * b.MIB, version=1)},
        {"mig_enabled": True},
    ],
)
def test_where_the_difference_means_something_else_it_is_not_made(doubt: dict[str, object]) -> None:
    """Unified and NUMA memory, confidential computing, vGPU, version 1, and a parent in MIG mode."""
    row = after(used(5000, 1000, **doubt))[b.key()]
    assert sums(row) == (1000, None, None)


@pytest.mark.parametrize("virtualization", ["", "none", "passthrough"])
@pytest.mark.parametrize("unknown", [None, False])
def test_on_plain_gpus_it_is(virtualization: str, unknown: bool | None) -> None:
    """Also where an old driver cannot be asked about the rest."""
    gpu = used(5000, 1000, virtualization=virtualization, coherent_memory=unknown, confidential=unknown)
    assert sums(after(gpu)[b.key()])[0:2] == (1000, 3744)


def test_without_a_list_or_without_memory_nothing_is_said() -> None:
    """No zero comes of what was not read."""
    assert sums(after(b.gpu(used=b.GIB, rows=None))[b.key()]) == (None, None, None)
    assert sums(after(replace(used(5000, 1000), memory=None))[b.key()]) == (None, None, None)


def test_a_silent_nvml_says_nothing_and_forgets_no_baseline() -> None:
    """The GPU is still there, its memory is not known; what was learned holds when NVML is back."""
    report = advance(POLICY, None, b.snapshot(nvml=b.nvml(used(100))))
    dark = b.snapshot(nvml=b.missed(), at=b.NOW + 15, monotonic=b.MONOTONIC + 15)
    report = advance(POLICY, report, dark)
    assert [sums(row) for row in report.attribution.devices] == [(None, None, None)]
    back = b.snapshot(nvml=b.nvml(used(5000, 1000)), at=b.NOW + 30, monotonic=b.MONOTONIC + 30)
    assert sums(advance(POLICY, report, back).attribution.devices[0]) == (1000, 3900, 100)


def test_a_lost_gpu_keeps_its_row() -> None:
    """Its rows of devices do not vanish with the GPU; nothing is said of its memory."""
    report = advance(POLICY, None, b.snapshot(nvml=b.nvml(used(100))))
    lost = b.gpu(lost="NVML_ERROR_GPU_IS_LOST", rows=None)
    look = b.snapshot(nvml=b.nvml(replace(lost, memory=None)), monotonic=b.MONOTONIC + 15)
    assert [sums(row) for row in advance(POLICY, report, look).attribution.devices] == [(None, None, None)]


# ---------------------------------------------------------------- MIG


def _fb(mib: int) -> Memory:
    return b.memory(mib * b.MIB, total=10 * b.GIB, reserved=None)


def test_each_instance_is_judged_by_itself_and_the_parent_never() -> None:
    """Memory of one instance is no other's, and the parent's sum would count it twice."""
    instances = (b.mig_instance(1, frame_buffer=_fb(3000)), b.mig_instance(2, frame_buffer=_fb(20)))
    rows = (b.row(100, 1000 * b.MIB, gi=1, ci=0),)
    found = after(b.gpu(mig_enabled=True, instances=instances, rows=rows, used=3020 * b.MIB))
    assert sums(found[b.key(0, 1, 0)]) == (1000, 1744, 256)
    assert sums(found[b.key(0, 2, 0)]) == (0, 0, 20)
    assert sums(found[b.key()]) == (1000, None, None)


def test_compute_instances_share_the_memory_of_their_gpu_instance() -> None:
    """It is told once, for the GPU instance, and of none of them."""
    shared = _fb(3000)
    instances = (b.mig_instance(1, 0, frame_buffer=shared), b.mig_instance(1, 1, frame_buffer=shared))
    rows = (b.row(100, 1000 * b.MIB, gi=1, ci=0), b.row(101, 500 * b.MIB, gi=1, ci=1))
    found = after(b.gpu(mig_enabled=True, instances=instances, rows=rows))
    assert sums(found[b.key(0, 1)]) == (1500, 1244, 256)
    assert sums(found[b.key(0, 1, 0)]) == sums(found[b.key(0, 1, 1)]) == (None, None, None)


def test_a_row_without_an_instance_makes_every_instance_doubtful() -> None:
    """Its bytes are on one of them: none may be called unattributed."""
    instances = (b.mig_instance(1, frame_buffer=_fb(3000)), b.mig_instance(2, frame_buffer=_fb(20)))
    rows = (b.row(100, 2900 * b.MIB),)
    found = after(b.gpu(mig_enabled=True, instances=instances, rows=rows))
    assert sums(found[b.key(0, 1, 0)]) == sums(found[b.key(0, 2, 0)]) == (None, None, None)
