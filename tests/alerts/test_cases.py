"""Cases that a table cannot hold: severities, handovers, what one incident looks like, what is unsupported.

Each case is a story with series by the minute and what is expected, by hand. promtool evaluates the rules.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.alerts.promtool import TARGET, Check, Labels, Series, Trial, rules, run_apart
from tests.alerts.stories import GIVEN, OTHER, alert, of, whole
from tests.alerts.table import GIB, GPU, ORPHANED, POD

# ---------------------------------------------------------------- memory that nobody needs


def _orphaned(name: str, sizes: dict[str, float], total: Series | None, *expected: Labels) -> Trial:
    parts = [whole(ORPHANED.removeprefix("kubegpu_"), {**GPU, "cause": c}, s, 15) for c, s in sizes.items()]
    series = parts if total is None else [*parts, total]
    return Trial(name, series, [Check(12, "GPUMemoryOrphaned", expected)])


_BIG = whole("gpu_memory_total_bytes", {**GPU, **POD}, 80 * GIB, 15)
MEMORY = (
    _orphaned("just 1 GiB of 80 is a warning", {"phantom": GIB}, _BIG, alert("warning", GPU)),
    _orphaned("3 GiB of 80 is a warning", {"phantom": 3 * GIB}, _BIG, alert("warning", GPU)),
    _orphaned("5 GiB of 80 is the page", {"phantom": 5 * GIB}, _BIG, alert("critical", GPU)),
    _orphaned(
        "2 parts of 2.5 GiB are the page, with the third unknown",
        {"phantom": 2.5 * GIB, "orphan": 2.5 * GIB},
        _BIG,
        alert("critical", GPU),
    ),
    _orphaned(
        "where the size of the device is not known the bytes decide",
        {"unattributed": 3 * GIB},
        None,
        alert("critical", GPU),
    ),
    _orphaned("nothing is nothing", {"phantom": 0, "orphan": 0, "unattributed": 0}, _BIG),
    Trial(
        "a GPU instance with several compute instances is judged by its own size",
        [
            whole("gpu_memory_orphaned_bytes", {**GPU, "gi": "2", "cause": "orphan"}, 1.5 * GIB, 15),
            whole("mig_memory_total_bytes", {**GPU, "gi": "2"}, 20 * GIB, 15),
            whole("gpu_memory_total_bytes", GPU, 80 * GIB, 15),
        ],
        [Check(12, "GPUMemoryOrphaned", [alert("critical", {**GPU, "gi": "2"})])],
    ),
    Trial(
        "a handover of the GPU does not restart the clock",
        [
            whole("gpu_memory_orphaned_bytes", {**GPU, "cause": "orphan"}, 9 * GIB, 15),
            of("gpu_memory_total_bytes", {**GPU, **POD}, [80 * GIB] * 5 + [None] * 10),
            of("gpu_memory_total_bytes", {**GPU, **OTHER}, [None] * 5 + [80 * GIB] * 10),
        ],
        [
            Check(9, "GPUMemoryOrphaned"),
            Check(10, "GPUMemoryOrphaned", [alert("critical", GPU)]),
        ],
    ),
)

# ---------------------------------------------------------------- findings

_EXTERNAL: Labels = {**GPU, "finding": "external_process"}


def _external(name: str, size: float | None, allocated: float | None, severity: str) -> Trial:
    detail = {**_EXTERNAL, "kind": "user_session", "pid": "77", "comm": "python"}
    series = [whole("findings", {**_EXTERNAL, "kind": "user_session"}, 1, 9)]
    if size is not None:
        series.append(whole("finding_memory_bytes", detail, size, 9))
    if allocated is not None:
        series.append(whole("gpu_allocated", {**GPU, "gi": "3", "mig_uuid": "MIG-3"}, allocated, 9))
    return Trial(name, series, [Check(7, "GPUExternalProcess", [alert(severity, _EXTERNAL)])])


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
            whole("findings", {**_EXTERNAL, "kind": "unknown"}, 2, 9),
            *(
                whole("finding_memory_bytes", {**_EXTERNAL, "kind": "unknown", "pid": pid}, 0.5 * GIB, 9)
                for pid in ("7", "8")
            ),
        ],
        [Check(7, "GPUExternalProcess", [alert("warning", _EXTERNAL)])],
    ),
)
PHANTOM = (
    Trial(
        "the kind changes while it lasts: one alert, one clock",
        [
            of("findings", {**GPU, "finding": "phantom_process", "kind": "held"}, [1] * 4 + [None] * 6),
            of("findings", {**GPU, "finding": "phantom_process", "kind": "unheld"}, [None] * 4 + [1] * 6),
        ],
        [
            Check(4, "GPUPhantomProcess"),
            Check(5, "GPUPhantomProcess", [alert("warning", {**GPU, "finding": "phantom_process"})]),
        ],
    ),
    Trial(
        "what another finding explains is told and not counted",
        [
            whole(
                "finding_info", {**GPU, "finding": "phantom_process", "explained_by": "stuck_process"}, 1, 9
            ),
            whole("findings", {**GPU, "finding": "phantom_process"}, 0, 9),
        ],
        [Check(8, "GPUPhantomProcess")],
    ),
    Trial(
        "not known is neither: no alert comes of it",
        [
            whole("finding_undetermined", {**GPU, "finding": "phantom_process", "reason": "rows:busy"}, 1, 9),
            of("findings", {**GPU, "finding": "phantom_process"}, [0, 0, *[None] * 7]),
        ],
        [Check(8, "GPUPhantomProcess")],
    ),
)
_STUCK: Labels = {**GPU, **POD, "finding": "stuck_process"}
STUCK = (
    Trial(
        "a zombie that turns out to be worse: the warning stays a while, the page comes",
        [
            of("findings", {**_STUCK, "kind": "zombie"}, [1] * 4 + [None] * 10),
            of("findings", {**_STUCK, "kind": "kill_pending"}, [None] * 4 + [1] * 10),
        ],
        [
            Check(3, "GPUStuckProcess", [alert("warning", _STUCK)]),
            Check(5, "GPUStuckProcess", [alert("warning", _STUCK), alert("critical", _STUCK)]),
            Check(10, "GPUStuckProcess", [alert("critical", _STUCK)]),
        ],
    ),
)

# ---------------------------------------------------------------- the exporter

DOWN = (
    Trial(
        "it answers, and has stopped to look",
        [
            Series("up", TARGET, [1] * 20),
            of("cycle_timestamp_seconds", {}, [0] * 20),  # at the start of the test
        ],
        [Check(15, "KubeGPUExporterDown"), Check(16, "KubeGPUExporterDown", [alert("warning", {})])],
    ),
    Trial(
        "it looks every minute",
        [Series("up", TARGET, [1] * 20), of("cycle_timestamp_seconds", {}, [60 * m for m in range(20)])],
        [Check(19, "KubeGPUExporterDown")],
    ),
)
_NVML: Labels = {"source": "nvml"}
SOURCES = (
    Trial(
        "the operator pauses NVML",
        [whole("source_up", _NVML, 0, 20), whole("source_paused", _NVML, 1, 20)],
        [Check(19, "KubeGPUExporterSourceDown")],
    ),
    Trial(
        "a pause that is over, and NVML does not come back",
        [whole("source_up", _NVML, 0, 30), of("source_paused", _NVML, [1] * 10 + [0] * 20)],
        [
            Check(19, "KubeGPUExporterSourceDown"),
            Check(20, "KubeGPUExporterSourceDown", [alert("critical", _NVML)]),
        ],
    ),
    Trial(
        "a source that is off has no series",
        [whole("source_up", {"source": "kubelet"}, 1, 20)],
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
            of("exporter_build_info", {}, [1] * 5 + [None] * 15),
            of("exporter_build_info", {}, [1] * 20, instance="10.0.0.2:9836"),
        ],
        [Check(19, "KubeGPUExporterAbsent")],
    ),
)
_REWRITTEN = {"cluster": "blue", "job": "kubegpu-exporter", "severity": "warning"}
LABELS = (
    Trial(
        "honor_labels with a label `pod` of the target: devices without an owner would get it",
        [whole("exporter_build_info", {"pod": "kubegpu-exporter-x"}, 1, 20)],
        [
            Check(14, "KubeGPUExporterLabelsRewritten"),
            Check(15, "KubeGPUExporterLabelsRewritten", [_REWRITTEN]),
        ],
    ),
    Trial(
        "an enforced namespace",
        [whole("findings", {"namespace": "gpu", "exported_namespace": "ml"}, 1, 20)],
        [Check(15, "KubeGPUExporterLabelsRewritten", [_REWRITTEN])],
    ),
    Trial(
        "labels as they should be",
        [whole("allocation_info", GIVEN, 1, 20), whole("exporter_build_info", {}, 1, 20)],
        [Check(19, "KubeGPUExporterLabelsRewritten")],
    ),
)
CASES: dict[str, tuple[Trial, ...]] = {
    "GPUMemoryOrphaned": MEMORY,
    "GPUExternalProcess": EXTERNAL,
    "GPUPhantomProcess": PHANTOM,
    "GPUStuckProcess": STUCK,
    "KubeGPUExporterDown": DOWN,
    "KubeGPUExporterSourceDown": SOURCES,
    "KubeGPUExporterAbsent": ABSENT,
    "KubeGPUExporterLabelsRewritten": LABELS,
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str, tmp_path: Path) -> None:
    """Each story comes out as written here: what must fire fires, with this severity and these labels, and
    what must be silent is.
    """
    run_apart({name: list(CASES[name])}, tmp_path)


def test_the_judge_can_say_no(tmp_path: Path) -> None:
    """A wrong expectation fails: promtool compares severity, labels and silence."""
    right = PHANTOM[0]
    for wrong in (Check(5, "GPUPhantomProcess"), Check(4, "GPUPhantomProcess", right.checks[1].expected)):
        folder = tmp_path / str(wrong.minute)
        folder.mkdir()
        with pytest.raises(AssertionError, match="FAILED"):
            run_apart({"GPUPhantomProcess": [Trial("wrong", right.series, [wrong])]}, folder)
    assert rules(tmp_path, only="GPUPhantomProcess")
