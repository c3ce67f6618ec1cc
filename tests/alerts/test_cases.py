"""Cases that a table cannot hold: severities, handovers, what one incident looks like, what is unsupported.

Each case is a story with series by the minute and what is expected, by hand. promtool evaluates the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.alerts.promtool import TARGET, Check, Labels, Series, Trial, rules, run_apart
from tests.alerts.table import GIB, GPU, HARDWARE, MIG, ORPHANED, POD

Minutes = Sequence[float | None]
OTHER: Labels = {"namespace": "ml", "pod": "train-1", "container": "main"}
SHARED = {name: TARGET[name] for name in HARDWARE}


def _of(name: str, labels: Labels, minutes: Minutes, **target: str) -> Series:
    return Series(f"kubegpu_{name}", {**TARGET, **labels, **target}, minutes)


def _alert(severity: str, labels: Labels, target: Labels = TARGET) -> Labels:
    return {**target, **labels, "severity": severity}


def _whole(name: str, labels: Labels, value: float, minutes: int) -> Series:
    return _of(name, labels, [value] * minutes)


# ---------------------------------------------------------------- memory that nobody needs


def _orphaned(name: str, sizes: dict[str, float], total: Series | None, *expected: Labels) -> Trial:
    parts = [_whole(ORPHANED.removeprefix("kubegpu_"), {**GPU, "cause": c}, s, 15) for c, s in sizes.items()]
    series = parts if total is None else [*parts, total]
    return Trial(name, series, [Check(12, "GPUMemoryOrphaned", expected)])


_BIG = _whole("gpu_memory_total_bytes", {**GPU, **POD}, 80 * GIB, 15)
MEMORY = (
    _orphaned("just 1 GiB of 80 is a warning", {"phantom": GIB}, _BIG, _alert("warning", GPU)),
    _orphaned("3 GiB of 80 is a warning", {"phantom": 3 * GIB}, _BIG, _alert("warning", GPU)),
    _orphaned("5 GiB of 80 is the page", {"phantom": 5 * GIB}, _BIG, _alert("critical", GPU)),
    _orphaned(
        "2 parts of 2.5 GiB are the page, with the third unknown",
        {"phantom": 2.5 * GIB, "orphan": 2.5 * GIB},
        _BIG,
        _alert("critical", GPU),
    ),
    _orphaned(
        "where the size of the device is not known the bytes decide",
        {"unattributed": 3 * GIB},
        None,
        _alert("critical", GPU),
    ),
    _orphaned("nothing is nothing", {"phantom": 0, "orphan": 0, "unattributed": 0}, _BIG),
    Trial(
        "a GPU instance with several compute instances is judged by its own size",
        [
            _whole("gpu_memory_orphaned_bytes", {**GPU, "gi": "2", "cause": "orphan"}, 1.5 * GIB, 15),
            _whole("mig_memory_total_bytes", {**GPU, "gi": "2"}, 20 * GIB, 15),
            _whole("gpu_memory_total_bytes", GPU, 80 * GIB, 15),
        ],
        [Check(12, "GPUMemoryOrphaned", [_alert("critical", {**GPU, "gi": "2"})])],
    ),
    Trial(
        "a handover of the GPU does not restart the clock",
        [
            _whole("gpu_memory_orphaned_bytes", {**GPU, "cause": "orphan"}, 9 * GIB, 15),
            _of("gpu_memory_total_bytes", {**GPU, **POD}, [80 * GIB] * 5 + [None] * 10),
            _of("gpu_memory_total_bytes", {**GPU, **OTHER}, [None] * 5 + [80 * GIB] * 10),
        ],
        [
            Check(9, "GPUMemoryOrphaned"),
            Check(10, "GPUMemoryOrphaned", [_alert("critical", GPU)]),
        ],
    ),
)

# ---------------------------------------------------------------- findings

_EXTERNAL: Labels = {**GPU, "finding": "external_process"}


def _external(name: str, size: float | None, allocated: float | None, severity: str) -> Trial:
    detail = {**_EXTERNAL, "kind": "user_session", "pid": "77", "comm": "python"}
    series = [_whole("findings", {**_EXTERNAL, "kind": "user_session"}, 1, 9)]
    if size is not None:
        series.append(_whole("finding_memory_bytes", detail, size, 9))
    if allocated is not None:
        series.append(_whole("gpu_allocated", {**GPU, "gi": "3", "mig_uuid": "MIG-3"}, allocated, 9))
    return Trial(name, series, [Check(7, "GPUExternalProcess", [_alert(severity, _EXTERNAL)])])


EXTERNAL = (
    _external("little, on a free GPU", 0.5 * GIB, 0, "info"),
    _external("a GiB, on a free GPU", GIB, 0, "warning"),
    _external("little, on a GPU of which a part was given", 0.5 * GIB, 1, "warning"),
    _external("much, and whether it was given is not known", 2 * GIB, None, "warning"),
    _external("little, and whether it was given is not known", 0.5 * GIB, None, "info"),
    _external("nothing is known of it but that it is there", None, None, "info"),
    Trial(
        "two small ones that make a GiB together",
        [
            _whole("findings", {**_EXTERNAL, "kind": "unknown"}, 2, 9),
            *(
                _whole("finding_memory_bytes", {**_EXTERNAL, "kind": "unknown", "pid": pid}, 0.5 * GIB, 9)
                for pid in ("7", "8")
            ),
        ],
        [Check(7, "GPUExternalProcess", [_alert("warning", _EXTERNAL)])],
    ),
)
PHANTOM = (
    Trial(
        "the kind changes while it lasts: one alert, one clock",
        [
            _of("findings", {**GPU, "finding": "phantom_process", "kind": "held"}, [1] * 4 + [None] * 6),
            _of("findings", {**GPU, "finding": "phantom_process", "kind": "unheld"}, [None] * 4 + [1] * 6),
        ],
        [
            Check(4, "GPUPhantomProcess"),
            Check(5, "GPUPhantomProcess", [_alert("warning", {**GPU, "finding": "phantom_process"})]),
        ],
    ),
    Trial(
        "what another finding explains is told and not counted",
        [
            _whole(
                "finding_info", {**GPU, "finding": "phantom_process", "explained_by": "stuck_process"}, 1, 9
            ),
            _whole("findings", {**GPU, "finding": "phantom_process"}, 0, 9),
        ],
        [Check(8, "GPUPhantomProcess")],
    ),
    Trial(
        "not known is neither: no alert comes of it",
        [
            _whole(
                "finding_undetermined", {**GPU, "finding": "phantom_process", "reason": "rows:busy"}, 1, 9
            ),
            _of("findings", {**GPU, "finding": "phantom_process"}, [0, 0, *[None] * 7]),
        ],
        [Check(8, "GPUPhantomProcess")],
    ),
)
_STUCK: Labels = {**GPU, **POD, "finding": "stuck_process"}
STUCK = (
    Trial(
        "a zombie that turns out to be worse: the warning stays a while, the page comes",
        [
            _of("findings", {**_STUCK, "kind": "zombie"}, [1] * 4 + [None] * 10),
            _of("findings", {**_STUCK, "kind": "kill_pending"}, [None] * 4 + [1] * 10),
        ],
        [
            Check(3, "GPUStuckProcess", [_alert("warning", _STUCK)]),
            Check(5, "GPUStuckProcess", [_alert("warning", _STUCK), _alert("critical", _STUCK)]),
            Check(10, "GPUStuckProcess", [_alert("critical", _STUCK)]),
        ],
    ),
)

# ---------------------------------------------------------------- devices

_HOT = _alert("warning", {"uuid": "GPU-1"}, SHARED)
HEAT = (
    Trial(
        "a handover in the midst does not restart the clock",
        [
            _of("gpu_temperature_celsius", {**GPU, **POD}, [88] * 5 + [None] * 10),
            _of("gpu_temperature_celsius", {**GPU, **OTHER}, [None] * 5 + [88] * 10),
            _of(
                "gpu_temperature_threshold_celsius",
                {**GPU, **POD, "threshold": "slowdown"},
                [90] * 5 + [None],
            ),
            _of(
                "gpu_temperature_threshold_celsius",
                {**GPU, **OTHER, "threshold": "slowdown"},
                [None] * 5 + [90] * 10,
            ),
        ],
        [Check(9, "GPUTemperatureHigh"), Check(10, "GPUTemperatureHigh", [_HOT])],
    ),
    Trial(
        "no slowdown threshold, no alert",
        [
            _whole("gpu_temperature_celsius", GPU, 99, 15),
            _whole("gpu_temperature_threshold_celsius", {**GPU, "threshold": "shutdown"}, 95, 15),
        ],
        [Check(14, "GPUTemperatureHigh")],
    ),
    Trial(
        "exactly five degrees below is not above",
        [
            _whole("gpu_temperature_celsius", GPU, 85, 15),
            _whole("gpu_temperature_threshold_celsius", {**GPU, "threshold": "slowdown"}, 90, 15),
        ],
        [Check(14, "GPUTemperatureHigh")],
    ),
)
_COMPONENT: Labels = {"component": "device_plugin", "namespace": "gpu-operator"}
STACK = (
    Trial(
        "a pod that crashes under ever new names",
        [
            _of("stack_component_ready", {**_COMPONENT, "pod": "plugin-a"}, [0] * 8 + [None] * 12),
            _of("stack_component_ready", {**_COMPONENT, "pod": "plugin-b"}, [None] * 8 + [0] * 12),
        ],
        [
            Check(14, "GPUStackComponentNotReady"),
            Check(15, "GPUStackComponentNotReady", [_alert("warning", _COMPONENT)]),
        ],
    ),
    Trial(
        "a rollout: the old pod ends, the new one gets ready",
        [
            _of("stack_component_ready", {**_COMPONENT, "pod": "plugin-a"}, [1] * 5 + [None] * 20),
            _of("stack_component_ready", {**_COMPONENT, "pod": "plugin-b"}, [None] * 5 + [0] * 9 + [1] * 11),
        ],
        [Check(minute, "GPUStackComponentNotReady") for minute in range(5, 25)],
    ),
)
_GIVEN: Labels = {**GPU, **POD, "resource": "nvidia.com/gpu", "pod_uid": "u1"}
_LONG = 140


def _given(labels: Labels, minutes: Minutes) -> Series:
    return _of("allocation_info", labels, minutes)


IDLE = (
    Trial(
        "allocated and not active for an hour, for an hour",
        [
            _given(_GIVEN, [1] * _LONG),
            _whole("gpu_allocated", GPU, 1, _LONG),
            _whole("gpu_last_active_timestamp_seconds", GPU, 0, _LONG),  # at the start of the test
        ],
        [Check(120, "GPUIdleAllocation"), Check(121, "GPUIdleAllocation", [_alert("info", {**GPU, **POD})])],
    ),
    Trial(
        "both forms at once: one alert",
        [
            _given(_GIVEN, [1] * _LONG),
            _whole("gpu_allocated", GPU, 1, _LONG),
            _whole("gpu_last_active_timestamp_seconds", GPU, 0, _LONG),
            _whole(
                "findings",
                {
                    **GPU,
                    "namespace": "ml",
                    "pod": "train-0",
                    "finding": "idle_allocation",
                    "kind": "no_client",
                },
                1,
                _LONG,
            ),
        ],
        [
            Check(
                135,
                "GPUIdleAllocation",
                [_alert("info", {**GPU, "namespace": "ml", "pod": "train-0"})],
            )
        ],
    ),
    Trial(
        "MIG has no activity: nothing is said",
        [_given({**_GIVEN, **MIG}, [1] * _LONG), _whole("gpu_allocated", MIG, 1, _LONG)],
        [Check(_LONG - 1, "GPUIdleAllocation")],
    ),
    Trial(
        "idle, and given to nobody",
        [
            _whole("gpu_allocated", GPU, 0, _LONG),
            _whole("gpu_last_active_timestamp_seconds", GPU, 0, _LONG),
        ],
        [Check(_LONG - 1, "GPUIdleAllocation")],
    ),
    Trial(
        "a new pod on a GPU that idled for long has its own hour",
        [
            _given(_GIVEN, [1] * 70 + [None] * 70),
            _given({**_GIVEN, **OTHER, "pod_uid": "u2"}, [None] * 70 + [1] * 70),
            _whole("gpu_allocated", GPU, 1, _LONG),
            _whole("gpu_last_active_timestamp_seconds", GPU, 0, _LONG),
        ],
        [
            Check(129, "GPUIdleAllocation"),
            Check(130, "GPUIdleAllocation", [_alert("info", {**GPU, **OTHER})]),
        ],
    ),
    Trial(
        "active every half an hour",
        [
            _given(_GIVEN, [1] * _LONG),
            _whole("gpu_allocated", GPU, 1, _LONG),
            _of("gpu_last_active_timestamp_seconds", GPU, [minute // 30 * 1800 for minute in range(_LONG)]),
        ],
        [Check(_LONG - 1, "GPUIdleAllocation")],
    ),
)


def _growth(name: str, minutes: Minutes, labels: Labels = GPU, total: Labels = GPU) -> Trial:
    return Trial(
        name,
        [
            _of(
                "workload_memory_bytes",
                {**labels, **POD},
                [None if one is None else one * GIB for one in minutes],
            ),
            _whole(
                "mig_memory_total_bytes" if "gi" in total else "gpu_memory_total_bytes", total, 80 * GIB, 470
            ),
        ],
        [Check(minute, "GPUMemoryGrowing") for minute in (360, 420, 469)],
    )


GROWTH = (
    _growth(
        "a new pod loads its model: no past to compare with", [None] * 100 + [0.15 * m for m in range(370)]
    ),
    _growth("it grew, and has stopped", [min(60, 0.2 * m) for m in range(470)]),
    _growth("it grows by less than a tenth of the device in six hours", [10 + 0.02 * m for m in range(470)]),
    Trial(
        "on a part of a GPU that several compute instances share, the part's size counts",
        [
            _of("workload_memory_bytes", {**MIG, **POD}, [(1 + 0.01 * m) * GIB for m in range(470)]),
            _whole("mig_memory_total_bytes", {**GPU, "gi": "9"}, 10 * GIB, 470),
            _whole("gpu_memory_total_bytes", GPU, 80 * GIB, 470),
        ],
        [Check(419, "GPUMemoryGrowing"), Check(420, "GPUMemoryGrowing", [_alert("info", {**MIG, **POD})])],
    ),
)
_DAY = 1445
_COUNTED = {**GPU, "owner": "pod"}
_SURGE = _alert("info", {"uuid": "GPU-1"}, {"cluster": "blue", "node": "gpu-1"})
SURGE = (
    Trial(
        "a new pod of the exporter: the past of the GPU goes on",
        [
            _of("processes", _COUNTED, [2] * 900 + [None] * 580),
            _of(
                "processes", _COUNTED, [None] * 900 + [2] * (_DAY - 900) + [40] * 35, instance="10.0.0.2:9836"
            ),
        ],
        [Check(_DAY + 14, "GPUProcessSurge"), Check(_DAY + 15, "GPUProcessSurge", [_SURGE])],
    ),
    Trial(
        "a node without a past",
        [_of("processes", _COUNTED, [2] * 60 + [40] * 60)],
        [Check(110, "GPUProcessSurge")],
    ),
    Trial(
        "twice as many, but not sixteen more",
        [_of("processes", _COUNTED, [2] * _DAY + [12] * 35)],
        [Check(_DAY + 30, "GPUProcessSurge")],
    ),
)

# ---------------------------------------------------------------- the exporter

DOWN = (
    Trial(
        "it answers, and has stopped to look",
        [
            Series("up", TARGET, [1] * 20),
            _of("cycle_timestamp_seconds", {}, [0] * 20),  # at the start of the test
        ],
        [Check(15, "KubeGPUExporterDown"), Check(16, "KubeGPUExporterDown", [_alert("warning", {})])],
    ),
    Trial(
        "it looks every minute",
        [Series("up", TARGET, [1] * 20), _of("cycle_timestamp_seconds", {}, [60 * m for m in range(20)])],
        [Check(19, "KubeGPUExporterDown")],
    ),
)
_NVML: Labels = {"source": "nvml"}
SOURCES = (
    Trial(
        "the operator pauses NVML",
        [_whole("source_up", _NVML, 0, 20), _whole("source_paused", _NVML, 1, 20)],
        [Check(19, "KubeGPUExporterSourceDown")],
    ),
    Trial(
        "a pause that is over, and NVML does not come back",
        [_whole("source_up", _NVML, 0, 30), _of("source_paused", _NVML, [1] * 10 + [0] * 20)],
        [
            Check(19, "KubeGPUExporterSourceDown"),
            Check(20, "KubeGPUExporterSourceDown", [_alert("critical", _NVML)]),
        ],
    ),
    Trial(
        "a source that is off has no series",
        [_whole("source_up", {"source": "kubelet"}, 1, 20)],
        [Check(19, "KubeGPUExporterSourceDown")],
    ),
)
ABSENT = (
    Trial(
        "there never was one",
        [Series("up", {"job": "other"}, [1] * 20)],
        [Check(14, "KubeGPUExporterAbsent"), Check(15, "KubeGPUExporterAbsent", [{"severity": "critical"}])],
    ),
    Trial(
        "one of two nodes is gone: that is another alert's",
        [
            _of("exporter_build_info", {}, [1] * 5 + [None] * 15),
            _of("exporter_build_info", {}, [1] * 20, instance="10.0.0.2:9836"),
        ],
        [Check(19, "KubeGPUExporterAbsent")],
    ),
)
_REWRITTEN = {"cluster": "blue", "job": "kubegpu-exporter", "severity": "warning"}
LABELS = (
    Trial(
        "honor_labels with a label `pod` of the target: devices without an owner would get it",
        [_whole("exporter_build_info", {"pod": "kubegpu-exporter-x"}, 1, 20)],
        [
            Check(14, "KubeGPUExporterLabelsRewritten"),
            Check(15, "KubeGPUExporterLabelsRewritten", [_REWRITTEN]),
        ],
    ),
    Trial(
        "an enforced namespace",
        [_whole("findings", {"namespace": "gpu", "exported_namespace": "ml"}, 1, 20)],
        [Check(15, "KubeGPUExporterLabelsRewritten", [_REWRITTEN])],
    ),
    Trial(
        "labels as they should be",
        [_whole("allocation_info", _GIVEN, 1, 20), _whole("exporter_build_info", {}, 1, 20)],
        [Check(19, "KubeGPUExporterLabelsRewritten")],
    ),
)
CASES: dict[str, tuple[Trial, ...]] = {
    "GPUMemoryOrphaned": MEMORY,
    "GPUExternalProcess": EXTERNAL,
    "GPUPhantomProcess": PHANTOM,
    "GPUStuckProcess": STUCK,
    "GPUTemperatureHigh": HEAT,
    "GPUStackComponentNotReady": STACK,
    "GPUIdleAllocation": IDLE,
    "GPUMemoryGrowing": GROWTH,
    "GPUProcessSurge": SURGE,
    "KubeGPUExporterDown": DOWN,
    "KubeGPUExporterSourceDown": SOURCES,
    "KubeGPUExporterAbsent": ABSENT,
    "KubeGPUExporterLabelsRewritten": LABELS,
}


@pytest.mark.parametrize("alert", CASES)
def test_cases(alert: str, tmp_path: Path) -> None:
    """Each story comes out as written here: what must fire fires, with this severity and these labels, and
    what must be silent is.
    """
    run_apart({alert: list(CASES[alert])}, tmp_path)


def test_the_judge_can_say_no(tmp_path: Path) -> None:
    """A wrong expectation fails: promtool compares severity, labels and silence."""
    right = PHANTOM[0]
    for wrong in (Check(5, "GPUPhantomProcess"), Check(4, "GPUPhantomProcess", right.checks[1].expected)):
        folder = tmp_path / str(wrong.minute)
        folder.mkdir()
        with pytest.raises(AssertionError, match="FAILED"):
            run_apart({"GPUPhantomProcess": [Trial("wrong", right.series, [wrong])]}, folder)
    assert rules(tmp_path, only="GPUPhantomProcess")
