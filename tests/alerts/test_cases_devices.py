"""Cases of devices that a table cannot hold: handovers, what is unsupported, and what only looks like it.

Each case is a story with series by the minute and what is expected, by hand. promtool evaluates the rules.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.alerts.promtool import Check, Labels, Series, Trial, run_apart
from tests.alerts.stories import GIVEN, OTHER, SHARED, Minutes, alert, of, whole
from tests.alerts.table import GIB, GPU, MIG, POD

# ---------------------------------------------------------------- devices

_HOT = alert("warning", {"uuid": "GPU-1"}, SHARED)
HEAT = (
    Trial(
        "a handover in the midst does not restart the clock",
        [
            of("gpu_temperature_celsius", {**GPU, **POD}, [88] * 5 + [None] * 10),
            of("gpu_temperature_celsius", {**GPU, **OTHER}, [None] * 5 + [88] * 10),
            of(
                "gpu_temperature_threshold_celsius",
                {**GPU, **POD, "threshold": "slowdown"},
                [90] * 5 + [None],
            ),
            of(
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
            whole("gpu_temperature_celsius", GPU, 99, 15),
            whole("gpu_temperature_threshold_celsius", {**GPU, "threshold": "shutdown"}, 95, 15),
        ],
        [Check(14, "GPUTemperatureHigh")],
    ),
    Trial(
        "exactly five degrees below is not above",
        [
            whole("gpu_temperature_celsius", GPU, 85, 15),
            whole("gpu_temperature_threshold_celsius", {**GPU, "threshold": "slowdown"}, 90, 15),
        ],
        [Check(14, "GPUTemperatureHigh")],
    ),
)
_COMPONENT: Labels = {"component": "device_plugin", "namespace": "gpu-operator"}
STACK = (
    Trial(
        "a pod that crashes under ever new names",
        [
            of("stack_component_ready", {**_COMPONENT, "pod": "plugin-a"}, [0] * 8 + [None] * 12),
            of("stack_component_ready", {**_COMPONENT, "pod": "plugin-b"}, [None] * 8 + [0] * 12),
        ],
        [
            Check(14, "GPUStackComponentNotReady"),
            Check(15, "GPUStackComponentNotReady", [alert("warning", _COMPONENT)]),
        ],
    ),
    Trial(
        "a rollout: the old pod ends, the new one gets ready",
        [
            of("stack_component_ready", {**_COMPONENT, "pod": "plugin-a"}, [1] * 5 + [None] * 20),
            of("stack_component_ready", {**_COMPONENT, "pod": "plugin-b"}, [None] * 5 + [0] * 9 + [1] * 11),
        ],
        [Check(minute, "GPUStackComponentNotReady") for minute in range(5, 25)],
    ),
)
_LONG = 140


def _given(labels: Labels, minutes: Minutes) -> Series:
    return of("allocation_info", labels, minutes)


IDLE = (
    Trial(
        "allocated and not active for an hour, for an hour",
        [
            _given(GIVEN, [1] * _LONG),
            whole("gpu_allocated", GPU, 1, _LONG),
            whole("gpu_last_active_timestamp_seconds", GPU, 0, _LONG),  # at the start of the test
        ],
        [Check(120, "GPUIdleAllocation"), Check(121, "GPUIdleAllocation", [alert("info", {**GPU, **POD})])],
    ),
    Trial(
        "both forms at once: one alert",
        [
            _given(GIVEN, [1] * _LONG),
            whole("gpu_allocated", GPU, 1, _LONG),
            whole("gpu_last_active_timestamp_seconds", GPU, 0, _LONG),
            whole(
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
                [alert("info", {**GPU, "namespace": "ml", "pod": "train-0"})],
            )
        ],
    ),
    Trial(
        "MIG has no activity: nothing is said",
        [_given({**GIVEN, **MIG}, [1] * _LONG), whole("gpu_allocated", MIG, 1, _LONG)],
        [Check(_LONG - 1, "GPUIdleAllocation")],
    ),
    Trial(
        "idle, and given to nobody",
        [
            whole("gpu_allocated", GPU, 0, _LONG),
            whole("gpu_last_active_timestamp_seconds", GPU, 0, _LONG),
        ],
        [Check(_LONG - 1, "GPUIdleAllocation")],
    ),
    Trial(
        "a new pod on a GPU that idled for long has its own hour",
        [
            _given(GIVEN, [1] * 70 + [None] * 70),
            _given({**GIVEN, **OTHER, "pod_uid": "u2"}, [None] * 70 + [1] * 70),
            whole("gpu_allocated", GPU, 1, _LONG),
            whole("gpu_last_active_timestamp_seconds", GPU, 0, _LONG),
        ],
        [
            Check(129, "GPUIdleAllocation"),
            Check(130, "GPUIdleAllocation", [alert("info", {**GPU, **OTHER})]),
        ],
    ),
    Trial(
        "active every half an hour",
        [
            _given(GIVEN, [1] * _LONG),
            whole("gpu_allocated", GPU, 1, _LONG),
            of("gpu_last_active_timestamp_seconds", GPU, [minute // 30 * 1800 for minute in range(_LONG)]),
        ],
        [Check(_LONG - 1, "GPUIdleAllocation")],
    ),
)


def _growth(name: str, minutes: Minutes, labels: Labels = GPU, total: Labels = GPU) -> Trial:
    return Trial(
        name,
        [
            of(
                "workload_memory_bytes",
                {**labels, **POD},
                [None if one is None else one * GIB for one in minutes],
            ),
            whole(
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
            of("workload_memory_bytes", {**MIG, **POD}, [(1 + 0.01 * m) * GIB for m in range(470)]),
            whole("mig_memory_total_bytes", {**GPU, "gi": "9"}, 10 * GIB, 470),
            whole("gpu_memory_total_bytes", GPU, 80 * GIB, 470),
        ],
        [Check(419, "GPUMemoryGrowing"), Check(420, "GPUMemoryGrowing", [alert("info", {**MIG, **POD})])],
    ),
)
_DAY = 1445
_COUNTED = {**GPU, "owner": "pod"}
_SURGE = alert("info", {"uuid": "GPU-1"}, {"cluster": "blue", "node": "gpu-1"})
SURGE = (
    Trial(
        "a new pod of the exporter: the past of the GPU goes on",
        [
            of("processes", _COUNTED, [2] * 900 + [None] * 580),
            of(
                "processes", _COUNTED, [None] * 900 + [2] * (_DAY - 900) + [40] * 35, instance="10.0.0.2:9836"
            ),
        ],
        [Check(_DAY + 14, "GPUProcessSurge"), Check(_DAY + 15, "GPUProcessSurge", [_SURGE])],
    ),
    Trial(
        "a node without a past",
        [of("processes", _COUNTED, [2] * 60 + [40] * 60)],
        [Check(110, "GPUProcessSurge")],
    ),
    Trial(
        "twice as many, but not sixteen more",
        [of("processes", _COUNTED, [2] * _DAY + [12] * 35)],
        [Check(_DAY + 30, "GPUProcessSurge")],
    ),
)

CASES: dict[str, tuple[Trial, ...]] = {
    "GPUTemperatureHigh": HEAT,
    "GPUStackComponentNotReady": STACK,
    "GPUIdleAllocation": IDLE,
    "GPUMemoryGrowing": GROWTH,
    "GPUProcessSurge": SURGE,
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str, tmp_path: Path) -> None:
    """Each story comes out as written here: what must fire fires, with this severity and these labels, and
    what must be silent is.
    """
    run_apart({name: list(CASES[name])}, tmp_path)
