"""What the engine sees to for every rule: missing evidence, what does not apply, and what is clear."""

from exporter.diagnosis import RULES
from exporter.model import (
    OFF,
    DeviceKey,
    Diagnosis,
    FindingName,
    NodeKind,
    NotApplicable,
    Policy,
    Process,
    Reason,
    Report,
    Snapshot,
    Undetermined,
)
from exporter.report import advance
from tests import builders as build

PHANTOM, STUCK, ORPHAN, HIDDEN = (
    FindingName.PHANTOM_PROCESS,
    FindingName.STUCK_PROCESS,
    FindingName.ORPHAN_PROCESS,
    FindingName.HIDDEN_HOLDER,
)
KINDS = {rule.finding: {kind.name for kind in rule.kinds} for rule in RULES}
TWO = build.nvml(build.gpu(0), build.gpu(1))


def diagnosis(*looks: Snapshot) -> Diagnosis:
    report: Report | None = None
    for look in looks:
        report = advance(Policy(), report, look)
    assert report is not None
    return report.diagnosis


def undetermined(found: Diagnosis, finding: FindingName) -> dict[tuple[str, DeviceKey | None], str]:
    return {(one.kind, one.device): one.reason for one in found.undetermined if one.finding is finding}


def trainer(pid: int = 100, gpu: int = 0) -> Process:
    files = (build.hold(minor=gpu, mappings=1), build.hold(NodeKind.UVM))
    return build.process(pid, pod_uid=build.pod_uid(), container_id=build.container_id(), holds=files)


def test_a_quiet_node_is_clear_of_everything() -> None:
    found = diagnosis(build.snapshot(nvml=TWO))
    assert not found.findings
    assert not found.undetermined
    clear = {(finding, device) for finding, device in found.clear if device is not None}
    for finding in (PHANTOM, STUCK, ORPHAN, HIDDEN, FindingName.EXTERNAL_PROCESS):
        assert {(finding, build.key(0)), (finding, build.key(1))} <= clear


def test_one_silent_gpu_is_undetermined_and_no_other() -> None:
    lost = build.nvml(build.gpu(0), build.gpu(1, rows=None, lost="GPU_IS_LOST"))
    found = diagnosis(build.snapshot(nvml=lost))
    assert undetermined(found, PHANTOM) == dict.fromkeys(
        {(kind, build.key(1)) for kind in KINDS[PHANTOM]}, "rows:gpu_is_lost"
    )
    assert (PHANTOM, build.key(0)) in found.clear
    assert (PHANTOM, build.key(1)) not in found.clear
    assert (STUCK, build.key(1)) in found.clear  # /proc tells


def test_what_is_unknown_everywhere_is_one_row_for_the_node() -> None:
    found = diagnosis(build.snapshot(nvml=TWO), build.snapshot(nvml=build.missed(Reason.BUSY)))
    assert undetermined(found, PHANTOM) == {(kind, None): "rows:busy" for kind in KINDS[PHANTOM]}
    assert not [device for finding, device in found.clear if finding is PHANTOM]


def test_without_any_known_gpu_a_lack_is_still_told_and_nothing_is_clear() -> None:
    found = diagnosis(build.snapshot(nvml=build.missed(Reason.UNAVAILABLE)))
    assert undetermined(found, PHANTOM)["held", None] == "rows:unavailable"
    assert not [device for _, device in found.clear if device is not None]
    assert (STUCK, None) not in found.clear


def test_a_source_that_is_off_is_not_applicable_and_leaves_the_rest_clear() -> None:
    found = diagnosis(build.snapshot(pods=OFF))
    away = {one.kind: one for one in found.not_applicable if one.finding is ORPHAN}
    assert away.keys() == KINDS[ORPHAN] - {"cgroup_deleted"}
    assert away["pod_gone"] == NotApplicable(ORPHAN, "pod_gone", None, "pods:off")
    assert not undetermined(found, ORPHAN)
    assert (ORPHAN, build.key()) in found.clear  # of the kind that applies


def test_where_no_kind_applies_nothing_is_clear() -> None:
    found = diagnosis(build.snapshot(processes=OFF))
    assert {one.reason for one in found.not_applicable if one.finding is STUCK} == {"scan:off"}
    assert (STUCK, build.key()) not in found.clear


def test_a_missing_source_outranks_one_that_is_off() -> None:
    """Off says that nobody wants to know; with another source missing, somebody does."""
    found = diagnosis(build.snapshot(pods=OFF, processes=build.missed()))
    assert undetermined(found, ORPHAN)["cgroup_deleted", None] == "scan:timeout"
    assert not [device for finding, device in found.clear if finding is ORPHAN]


def test_a_finding_without_its_evidence_is_dropped() -> None:
    """Without the scan every row looks like a phantom's."""
    rows = build.nvml(build.gpu(rows=(build.row(4711),)))
    found = diagnosis(build.snapshot(nvml=rows, processes=build.missed()))
    assert not [one for one in found.findings if one.holds.subject.finding is PHANTOM]
    assert undetermined(found, PHANTOM)["unheld", None] == "scan:timeout"


def test_evidence_is_asked_for_on_a_gpu_that_nvml_dropped() -> None:
    """Its holder still has its files open; whether it is listed nobody knows."""
    table = build.process_table(trainer(gpu=1))
    both = build.snapshot(nvml=TWO, processes=table)
    one = build.snapshot(nvml=build.nvml(build.gpu(0)), processes=table, pci=OFF)
    found = diagnosis(both, one, one)
    hidden = [one for one in found.findings if one.holds.subject.finding is HIDDEN]
    assert {one.undetermined for one in hidden} == {"rows:gpu_not_read"}
    assert undetermined(found, HIDDEN)["unlisted", build.key(1)] == "rows:gpu_not_read"


def test_a_doubt_about_one_subject_takes_clear_from_its_device_alone() -> None:
    mapped = (build.hold(minor=1), build.hold(NodeKind.UVM, mappings=1))
    older = build.process(200, pod_uid=build.pod_uid(2), container_id=build.container_id(2), holds=mapped)
    rows = build.nvml(build.gpu(0), build.gpu(1, rows=(build.row(231),)))
    found = diagnosis(build.snapshot(nvml=rows, processes=build.process_table(older)))
    (one,) = [one for one in found.undetermined if one.finding is PHANTOM]
    assert one == Undetermined(PHANTOM, "held", build.key(1), "thread_id", "231")
    assert (PHANTOM, build.key(0)) in found.clear
    assert (PHANTOM, build.key(1)) not in found.clear


def test_what_holds_is_not_clear_before_it_counts() -> None:
    dead = build.process(100, state="Z", threads=2, holds=(build.hold(),))
    found = diagnosis(build.snapshot(nvml=TWO, processes=build.process_table(dead)))
    (one,) = [one for one in found.findings if one.holds.subject.finding is STUCK]
    assert not one.active
    assert (STUCK, build.key(0)) not in found.clear
    assert (STUCK, build.key(1)) in found.clear


def test_permuted_readings_give_the_same_diagnosis() -> None:
    processes = [trainer(pid, gpu=pid % 2) for pid in range(100, 110)]
    rows = tuple(build.row(pid) for pid in range(100, 120, 2))
    looks = []
    for order in (1, -1):
        gpus = (build.gpu(0, rows=rows[::order]), build.gpu(1))[::order]
        looks.append(
            build.snapshot(nvml=build.nvml(*gpus), processes=build.process_table(*processes[::order]))
        )
    assert diagnosis(looks[0]) == diagnosis(looks[1])
