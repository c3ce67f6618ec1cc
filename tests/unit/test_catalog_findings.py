"""Findings as series: what counts, what is told, what was not judged, and the bytes that nobody needs."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from exporter.catalog.findings import DETAIL_LIMIT
from exporter.model import (
    NOBODY,
    Attribution,
    DeviceKey,
    DeviceUse,
    Diagnosis,
    Finding,
    FindingName,
    Gpu,
    NotApplicable,
    Owner,
    Report,
    Undetermined,
    Use,
    Visibility,
    Workload,
)
from tests import builders as b
from tests.builders import GIB, NOW
from tests.unit.reports import mig_report, names, one, rows

PHANTOM, STUCK, ORPHAN = FindingName.PHANTOM_PROCESS, FindingName.STUCK_PROCESS, FindingName.ORPHAN_PROCESS
MEMORY, NODE = FindingName.ORPHANED_MEMORY, FindingName.NODE_CAPACITY_MISMATCH
NOBODYS = {"namespace": "", "pod": "", "container": ""}
TRAINERS = {"namespace": "team-a", "pod": "train-0", "container": "main"}


def found(
    *findings: Finding,
    doubts: tuple[Undetermined, ...] = (),
    not_applicable: tuple[NotApplicable, ...] = (),
    clear: Iterable[tuple[FindingName, DeviceKey | None]] = (),
    uses: tuple[Use, ...] = (),
    devices: tuple[DeviceUse, ...] = (),
    gpus: tuple[Gpu, ...] = (),
) -> Report:
    """A node with these findings; its GPU is clear of nothing unless told."""
    attribution = Attribution(uses=uses, devices=devices or (b.device_use(),), holders=())
    diagnosis = Diagnosis(findings, doubts, not_applicable, tuple(clear))
    return b.report(b.snapshot(nvml=b.nvml(*gpus)), attribution, diagnosis=diagnosis)


# --- counted ------------------------------------------------------------------------------------------------


def test_active_findings_are_counted_by_device_kind_and_workload() -> None:
    """Two processes of one workload are one series; a process has no series of its own here."""
    other = Workload("team-b", "serve-0", "main")
    report = found(b.finding(), b.finding(pid=4001), b.finding(pid=4002, workload=other))
    labels = {"finding": "stuck_process", "kind": "kill_pending", "uuid": b.gpu_uuid(0), "gpu": "0"}
    assert one(report, "findings", **labels, **TRAINERS, gi="", mig_uuid="") == 2
    assert one(report, "findings", **labels, namespace="team-b") == 1
    assert len(rows(report, "findings")) == 2


def test_a_finding_that_is_pending_or_explained_is_not_counted() -> None:
    """One incident fires once, and not before its time."""
    report = found(b.finding(active=False), b.finding(ORPHAN, "pod_gone", explained_by=STUCK))
    assert not rows(report, "findings")


def test_zero_is_said_only_where_everything_was_judged() -> None:
    """Clear is 0 without kind and workload; a device that nobody judged has no series."""
    report = found(clear=((STUCK, b.key()), (NODE, None)), doubts=(_doubt(PHANTOM),))
    assert one(report, "findings", finding="stuck_process", uuid=b.gpu_uuid(0), kind="", **NOBODYS) == 0
    assert one(report, "findings", finding="node_capacity_mismatch", uuid="", gpu="", kind="") == 0
    assert len(rows(report, "findings")) == 2


def test_a_finding_that_is_held_through_the_unknown_is_still_counted() -> None:
    """A source that does not answer resolves nothing, and the doubt is told beside it."""
    report = found(
        b.finding(undetermined="scan:timeout"), doubts=(_doubt(STUCK, "kill_pending", "scan:timeout"),)
    )
    assert one(report, "findings", finding="stuck_process") == 1
    assert one(report, "finding_undetermined", finding="stuck_process", reason="scan:timeout") == 1


def test_a_finding_of_the_node_has_no_device() -> None:
    """Its series have the same labels, empty."""
    holds = b.finding(
        NODE, "nvml_lt_pci", of_node=True, pid=0, start=None, workload=NOBODY, used=None, comm=""
    )
    report = found(holds)
    assert one(report, "findings", uuid="", gpu="", gi="", mig_uuid="", kind="nvml_lt_pci", **NOBODYS) == 1
    assert one(report, "finding_info", uuid="", pid="", comm="", kind="nvml_lt_pci") == 1
    assert not rows(report, "finding_memory_bytes")


def test_a_finding_on_a_mig_device_names_it() -> None:
    """The parent is named by uuid, the device by gi and mig_uuid."""
    report = found(b.finding(device=b.key(0, 7, 0)))
    labels = {"uuid": b.gpu_uuid(0), "gi": "7", "mig_uuid": b.mig_uuid(0, 7)}
    assert one(report, "findings", **labels) == one(report, "finding_info", **labels) == 1


# --- one by one ---------------------------------------------------------------------------------------------


def test_every_active_finding_is_told_also_those_that_do_not_count() -> None:
    """The detail says who, since when, how much, and what explains it; a pending one is not told."""
    report = found(
        b.finding(since=NOW - 400),
        b.finding(ORPHAN, "pod_gone", used=None, explained_by=STUCK),
        b.finding(pid=4001, active=False),
    )
    labels = {"pid": "4000", "comm": "python", "pod_uid": b.pod_uid(), "uuid": b.gpu_uuid(0), **TRAINERS}
    stuck = {**labels, "finding": "stuck_process", "kind": "kill_pending", "explained_by": ""}
    orphan = {**labels, "finding": "orphan_process", "kind": "pod_gone", "explained_by": "stuck_process"}
    assert len(rows(report, "finding_info")) == 2
    assert one(report, "finding_info", **stuck) == one(report, "finding_info", **orphan) == 1
    assert one(report, "finding_since_timestamp_seconds", **stuck) == NOW - 400
    assert one(report, "finding_memory_bytes", **stuck) == GIB
    assert one(report, "finding_memory_bytes", **orphan) is None


def test_findings_that_no_label_tells_apart_are_one_series() -> None:
    """The oldest gives the time, and bytes are not added twice."""
    twins = (b.finding(since=NOW - 10), b.finding(start=6_000_000, since=NOW - 500, used=None))
    report = found(*twins)
    assert list(rows(report, "finding_info").values()) == [1]
    assert list(rows(report, "finding_since_timestamp_seconds").values()) == [NOW - 500]
    assert list(rows(report, "finding_memory_bytes").values()) == [GIB]
    assert list(rows(report, "findings").values()) == [2]


def test_a_flood_of_findings_is_counted_and_told_in_part() -> None:
    """What counts is told before what is explained."""
    flood = [b.finding(pid=10 + n, explained_by=ORPHAN) for n in range(DETAIL_LIMIT)]
    report = found(*flood, b.finding(pid=5, used=0), b.finding(pid=6, used=None))
    assert len(rows(report, "finding_info")) == DETAIL_LIMIT
    assert one(report, "finding_info", pid="5") == one(report, "finding_info", pid="6") == 1
    assert one(report, "findings", finding="stuck_process") == 2


# --- not judged ---------------------------------------------------------------------------------------------


def _doubt(
    name: FindingName,
    kind: str = "held",
    reason: str = "rows:timeout",
    device: DeviceKey | None = None,
    who: str | None = None,
) -> Undetermined:
    return Undetermined(name, kind, device, reason, who)


def test_what_could_not_be_judged_is_told_once_for_each_device_and_reason() -> None:
    """Doubts about several subjects of one device are one row; a doubt about the node has no device."""
    report = found(
        doubts=(
            _doubt(PHANTOM, device=b.key(0, 7, 0), reason="thread_id", who="1"),
            _doubt(PHANTOM, device=b.key(0, 7, 0), reason="thread_id", who="2"),
            _doubt(PHANTOM, device=b.key(1)),
            _doubt(STUCK, "exiting", "scan:denied"),
        ),
        not_applicable=(NotApplicable(ORPHAN, "pod_gone", None, "pods:off"),),
    )
    assert len(rows(report, "finding_undetermined")) == 3
    assert (
        one(report, "finding_undetermined", uuid=b.gpu_uuid(0), gi="7", reason="thread_id", kind="held") == 1
    )
    assert one(report, "finding_undetermined", uuid=b.gpu_uuid(1), gi="", reason="rows:timeout") == 1
    assert one(report, "finding_undetermined", uuid="", finding="stuck_process", reason="scan:denied") == 1
    labels = {"finding": "orphan_process", "kind": "pod_gone", "uuid": "", "gi": "", "reason": "pods:off"}
    assert list(rows(report, "finding_not_applicable_info")) == [frozenset(labels.items())]


# --- memory that nobody needs -------------------------------------------------------------------------------


def orphaned(report: Report, cause: str, **labels: str) -> float | None:
    return one(report, "gpu_memory_orphaned_bytes", cause=cause, **labels)


ALL_CLEAR = tuple((name, b.key()) for name in FindingName if name is not NODE)
CAUSES = ("phantom", "orphan", "unattributed")


def phantom(used: int | None = GIB, **more: bool | str) -> Finding:
    base = b.finding(PHANTOM, "unheld", pid=999, start=None, who="999", used=used)
    return replace(base, **more)  # type: ignore[arg-type]


def unowned(kind: str = "none", **more: bool | str) -> Finding:
    base = b.finding(MEMORY, kind, pid=0, start=None, who="", used=3 * GIB, workload=NOBODY, comm="")
    return replace(base, **more)  # type: ignore[arg-type]


def test_every_cause_is_zero_on_a_gpu_that_is_clear() -> None:
    """Somebody looked and found none."""
    report = found(clear=ALL_CLEAR)
    assert [orphaned(report, cause, uuid=b.gpu_uuid(0), gi="", mig_uuid="") for cause in CAUSES] == [0, 0, 0]
    assert len(rows(report, "gpu_memory_orphaned_bytes")) == 3


def test_nothing_is_said_of_a_gpu_that_nobody_judged() -> None:
    """No diagnosis, no driver, a lost GPU and a process list that is not to be believed: never 0."""
    assert not rows(found(), "gpu_memory_orphaned_bytes")
    for gpu in (b.gpu(lost="GPU is lost"), b.gpu(rows=None, rows_problem="foreign pid namespace")):
        assert not rows(found(clear=ALL_CLEAR, gpus=(gpu,)), "gpu_memory_orphaned_bytes")
    report = found(clear=ALL_CLEAR)
    silent = replace(report, snapshot=replace(report.snapshot, nvml=b.missed()))
    assert not rows(silent, "gpu_memory_orphaned_bytes")


def test_rows_of_phantoms_are_summed_while_the_finding_is_active() -> None:
    """A pending phantom was judged, and is not yet one; a size that is not known makes the sum unknown."""
    assert orphaned(found(phantom(), replace(phantom(2 * GIB), since=1.0)), "phantom") == 3 * GIB
    assert orphaned(found(phantom(active=False)), "phantom") == 0
    assert orphaned(found(phantom(), phantom(None)), "phantom") is None


@pytest.mark.parametrize(
    ("cause", "name"), [("phantom", PHANTOM), ("orphan", ORPHAN), ("orphan", STUCK), ("unattributed", MEMORY)]
)
@pytest.mark.parametrize("where", [None, b.key()])
@pytest.mark.parametrize("who", [None, "4000"])
def test_a_cause_in_doubt_is_absent_and_the_others_stay(
    cause: str, name: FindingName, where: DeviceKey | None, who: str | None
) -> None:
    """Unknown is not none, on the device, on the node or of one subject; another GPU's doubt is its own."""
    clear = tuple(one for one in ALL_CLEAR if one[0] is not name)
    report = found(clear=clear, doubts=(_doubt(name, device=where, who=who),))
    told = {one for one in CAUSES if orphaned(report, one) == 0}
    assert told == set(CAUSES) - {cause}
    elsewhere = found(clear=ALL_CLEAR, doubts=(_doubt(name, device=b.key(1), who=who),))
    assert orphaned(elsewhere, cause) == 0


def test_a_finding_that_is_held_through_the_unknown_says_no_bytes() -> None:
    """What it held in an earlier cycle is no figure of this one."""
    doubts = (_doubt(PHANTOM, "unheld"), _doubt(MEMORY, "none"), _doubt(ORPHAN, "pod_gone"))
    held = (
        phantom(undetermined="rows:timeout"),
        unowned(undetermined="rows:timeout"),
        b.finding(ORPHAN, "pod_gone", undetermined="pods:timeout"),
    )
    devices = (b.device_use(unattributed=3 * GIB),)
    assert not rows(
        found(*held, doubts=doubts, uses=(b.use(),), devices=devices), "gpu_memory_orphaned_bytes"
    )


def test_what_is_certain_is_said_although_more_may_be_in_doubt() -> None:
    """A doubt about one row does not hide another one's 60 GiB."""
    report = found(phantom(60 * GIB), doubts=(_doubt(PHANTOM, device=b.key(), reason="thread_id", who="7"),))
    assert orphaned(report, "phantom") == 60 * GIB


def test_rows_of_orphans_are_summed_also_where_a_stuck_process_explains_them() -> None:
    """The row counts, not what the finding remembers; who holds only files has none."""
    uses = (
        b.use(4000, used=2 * GIB),
        b.use(4001, used=GIB),
        b.use(4002, used=None, visibility=Visibility.HOLDER),
        b.use(4003, used=5 * GIB),
        b.use(4000, b.key(1), used=7 * GIB),
    )
    orphans = (
        b.finding(ORPHAN, "pod_gone", used=None),
        b.finding(ORPHAN, "pod_gone", pid=4001, explained_by=STUCK),
        b.finding(ORPHAN, "cgroup_deleted", pid=4002),
        b.finding(ORPHAN, "pod_gone", pid=4003, active=False),
    )
    assert orphaned(found(*orphans, uses=uses), "orphan") == 3 * GIB
    unknown = (*uses[1:], b.use(4000, used=None))
    assert orphaned(found(*orphans, uses=unknown), "orphan") is None


@pytest.mark.parametrize(
    ("owner", "phase", "expected"),
    [
        (Owner.ORPHAN, "Running", GIB),
        (Owner.POD, "Failed", GIB),
        (Owner.POD, "Running", 0),
        (Owner.HOST, "", 0),
    ],
)
def test_a_stuck_process_is_an_orphan_when_its_pod_is_over(owner: Owner, phase: str, expected: int) -> None:
    """A zombie is no orphan_process, and its row outlives its pod all the same."""
    clear = ((ORPHAN, b.key()),)
    report = found(b.finding(STUCK, "zombie"), clear=clear, uses=(b.use(owner=owner),))
    look = replace(report.snapshot, pods=b.snapshot(pods=(b.pod(phase=phase),) if phase else ()).pods)
    assert orphaned(replace(report, snapshot=look), "orphan") == expected


def test_a_row_is_a_phantoms_or_an_orphans_never_both() -> None:
    """The parts are disjoint: a sum of them counts no byte twice."""
    aliased = b.finding(PHANTOM, "aliased", who="4000", used=GIB, start=None)
    report = found(aliased, b.finding(ORPHAN, "pod_gone"), uses=(b.use(),))
    assert orphaned(report, "phantom") == GIB
    assert orphaned(report, "orphan") == 0


@pytest.mark.parametrize("explained_by", [None, STUCK])
def test_unattributed_memory_counts_while_its_finding_is_active(explained_by: FindingName | None) -> None:
    """Its size is this cycle's; below the threshold, or not yet active, it is 0; not known, absent."""
    devices = (b.device_use(unattributed=5 * GIB),)
    explained = replace(unowned(), explained_by=explained_by)
    assert orphaned(found(explained, devices=devices), "unattributed") == 5 * GIB
    assert orphaned(found(unowned(active=False), devices=devices), "unattributed") == 0
    assert orphaned(found(clear=ALL_CLEAR, devices=devices), "unattributed") == 0
    unknown = (b.device_use(unattributed=None),)
    assert orphaned(found(unowned(), clear=ALL_CLEAR, devices=unknown), "unattributed") is None


def test_what_has_no_meaning_on_a_device_has_no_series() -> None:
    """Unified memory: unattributed is not applicable, the other causes are judged."""
    clear = tuple(one for one in ALL_CLEAR if one[0] is not MEMORY)
    kinds = tuple(NotApplicable(MEMORY, kind, b.key(), "unified_memory") for kind in ("none", "fd_only"))
    report = found(clear=clear, not_applicable=kinds, devices=(b.device_use(unattributed=0),))
    assert [orphaned(report, cause) for cause in CAUSES] == [0, 0, None]


def test_mig_memory_is_told_per_gpu_instance_and_never_of_the_parent() -> None:
    """Compute instances that share a GPU instance share its bytes, under an empty mig_uuid."""
    places = ((1, 0), (1, 1), (2, 0))
    report = mig_report(*places)
    keys = (b.key(), *(b.key(0, *place) for place in places))
    whole = b.device_use(DeviceKey(b.gpu_uuid(0), 1), unattributed=3 * GIB)
    parts = tuple(b.device_use(b.key(0, *place), unattributed=None) for place in places[:2])
    alone = b.device_use(b.key(0, 2, 0), unattributed=0)
    findings = (
        replace(b.finding(MEMORY, "none", DeviceKey(b.gpu_uuid(0), 1), who="", start=None)),
        b.finding(PHANTOM, "unheld", b.key(0, 1, 0), pid=9, start=None, used=GIB),
        b.finding(PHANTOM, "unheld", b.key(0, 1, 1), pid=9, start=None, used=GIB),
    )
    diagnosis = replace(b.clear_of(*keys), findings=findings)
    attribution = replace(report.attribution, devices=(b.device_use(), whole, *parts, alone))
    report = replace(report, attribution=attribution, diagnosis=diagnosis)
    shared = {"gi": "1", "mig_uuid": ""}
    assert [orphaned(report, cause, **shared) for cause in CAUSES] == [2 * GIB, 0, 3 * GIB]
    single = {"gi": "2", "mig_uuid": b.mig_uuid(0, 2)}
    assert [orphaned(report, cause, **single) for cause in CAUSES] == [0, 0, 0]
    assert len(rows(report, "gpu_memory_orphaned_bytes")) == 6


def test_without_any_source_there_is_no_word_of_findings() -> None:
    """Nothing was looked for, so nothing is clear."""
    assert not {name for name in names(b.report()) if name.startswith("finding")}
