"""Shared, misplaced and idle devices, through whole cycles."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.model import (
    OFF,
    Advisory,
    AllocatableDevice,
    Allocation,
    Carried,
    ContainerKind,
    DeviceKey,
    DeviceRef,
    Finding,
    FindingName,
    GpuByMinor,
    GpuByUuid,
    Kubelet,
    KubeletPod,
    MigByUuid,
    NodeKind,
    NvmlRow,
    Policy,
    Process,
    Report,
    Severity,
    Unrecognised,
)
from exporter.report import advance
from tests.builders import (
    GIB,
    MIB,
    MONOTONIC,
    NOW,
    allocation,
    container_id,
    container_status,
    gpu,
    gpu_uuid,
    hold,
    key,
    kubelet,
    mig_instance,
    mig_uuid,
    missed,
    nvml,
    pod,
    pod_name,
    pod_uid,
    process,
    process_table,
    row,
    seen,
    snapshot,
)

SHARED = FindingName.EXCLUSIVE_GPU_SHARED
MISPLACED = FindingName.USED_NOT_ALLOCATED
IDLE = FindingName.IDLE_ALLOCATION
ORPHAN = FindingName.ORPHAN_PROCESS
OPEN = (hold(NodeKind.GPU, 0), hold(NodeKind.UVM))


def cycles(seconds: int, before: Report | None = None, **looks: Any) -> Report:
    """The report after the same look every 15 s, the last one that many seconds after the first."""
    report = before
    start = 0.0 if before is None else before.snapshot.at + 15 - NOW
    for step in range(0, seconds + 15, 15):
        now = start + step
        report = advance(Policy(), report, snapshot(at=NOW + now, monotonic=MONOTONIC + now, **looks))
    assert report is not None
    return report


def found(report: Report, name: FindingName) -> dict[tuple[DeviceKey | None, str], Finding]:
    return {
        (one.holds.subject.device, one.holds.subject.who): one
        for one in report.diagnosis.findings
        if one.holds.subject.finding is name
    }


def doubts(report: Report, name: FindingName) -> set[tuple[str, DeviceKey | None, str]]:
    return {
        (one.kind, one.device, one.reason) for one in report.diagnosis.undetermined if one.finding is name
    }


def waived(report: Report, name: FindingName) -> set[tuple[str, DeviceKey | None, str]]:
    return {
        (one.kind, one.device, one.reason) for one in report.diagnosis.not_applicable if one.finding is name
    }


def clear(report: Report, name: FindingName) -> set[DeviceKey | None]:
    return {device for finding, device in report.diagnosis.clear if finding is name}


# Pod n is team-a/train-<n-1> with the one container main; its process is 4000 + n.


def member(number: int, **more: Any) -> Process:
    pid = 4000 + number
    given = {
        "holds": OPEN,
        "numbers": (pid,),
        "pod_uid": pod_uid(number),
        "container_id": container_id(number),
    }
    return process(pid, **{**given, **more})


def api(number: int, **more: Any) -> Any:
    status = container_status(identity=container_id(number))
    return pod(f"train-{number - 1}", **{"uid": pod_uid(number), "containers": (status,), **more})


def given(number: int, index: int = 0, **more: Any) -> Allocation:
    return allocation(gpu_uuid(index), pod=f"train-{number - 1}", **more)


def node(*devices: tuple[NvmlRow, ...], members: tuple[Process, ...] = (), **more: Any) -> dict[str, Any]:
    """GPUs with these rows, each of them accounting for all memory, and the processes of pods 1 and 2."""
    gpus = [
        gpu(index, used=sum(one.memory or 0 for one in rows), rows=rows) for index, rows in enumerate(devices)
    ]
    return {
        "nvml": nvml(*gpus),
        "processes": process_table(*(members or (member(1), member(2)))),
        "pods": (api(1), api(2)),
        **more,
    }


BOTH = (row(4001, 8 * GIB), row(4002, 2 * GIB))
EACH_ITS_OWN = kubelet(given(1, 0), given(2, 1))


# --- shared -------------------------------------------------------------------------------------------------


def test_two_pods_with_memory_on_one_gpu() -> None:
    """Holds at once, counts after a minute, and names both processes with what they have."""
    looks = node(BOTH, (), kubelet=EACH_ITS_OWN)
    assert not found(cycles(45, **looks), SHARED)[key(), ""].active
    one = found(cycles(60, **looks), SHARED)[key(), ""]
    assert (one.active, one.holds.kind, one.holds.memory) == (True, "double_use", 10 * GIB)
    assert one.holds.processes == (member(1).id, member(2).id)
    assert one.holds.evidence == (
        f"pid 4001 (python) of team-a/train-0 has 8192 MiB on {gpu_uuid(0)}",
        f"pid 4002 (python) of team-a/train-1 has 2048 MiB on {gpu_uuid(0)}",
    )
    assert one.explained_by is None


def test_two_pods_on_one_mig_device() -> None:
    """Exclusive means each MIG device; two pods on two parts of one GPU are as it should be."""
    parts = (mig_instance(1, used=GIB), mig_instance(2, used=GIB))
    ids = [mig_uuid(0, 1), mig_uuid(0, 2)]
    listed = kubelet(
        allocation(ids[0], ref=MigByUuid(ids[0])), allocation(ids[1], ref=MigByUuid(ids[1]), pod="train-1")
    )
    apart = (row(4001, GIB, gi=1, ci=0), row(4002, GIB, gi=2, ci=0))
    looks = node((), kubelet=listed)
    looks["nvml"] = nvml(gpu(mig_enabled=True, instances=parts, rows=apart))
    assert found(cycles(60, **looks), SHARED) == {}
    together = (row(4001, GIB, gi=1, ci=0), row(4002, GIB, gi=1, ci=0))
    looks["nvml"] = nvml(gpu(mig_enabled=True, instances=parts, rows=together))
    report = cycles(60, **looks)
    assert set(found(report, SHARED)) == {(key(0, 1, 0), "")}
    assert set(found(report, MISPLACED)) == {(key(0, 1, 0), pod_uid(2))}


def shares(spelling: str, ref: DeviceRef, replica: str) -> Kubelet:
    """One share for each of the two pods."""
    return kubelet(
        *(
            allocation(spelling.format(n), ref=ref, pod=f"train-{n}", replica=replica.format(n))
            for n in (0, 1)
        )
    )


SILENT_SHARING = {
    "replicas": shares(f"{gpu_uuid(0)}::{{}}", GpuByUuid(gpu_uuid(0)), "{}"),
    "renamed resource": kubelet(
        *(given(n, resource="nvidia.com/gpu.shared", replica="shared") for n in (1, 2))
    ),
    "GKE time-sharing": shares("nvidia0/vgpu{}", GpuByMinor(0), "vgpu{}"),
}


@pytest.mark.parametrize("listed", SILENT_SHARING.values(), ids=SILENT_SHARING.keys())
def test_sharing_by_design_is_silent(listed: Kubelet) -> None:
    """Two pods with a share each: double use does not apply, and nothing is wrong."""
    report = cycles(60, **node(BOTH, kubelet=listed))
    assert found(report, SHARED) == found(report, MISPLACED) == {}
    assert waived(report, SHARED) == {("double_use", None, "replicas")}
    assert clear(report, SHARED) == clear(report, MISPLACED) == {key()}


def test_what_the_plugin_offers_in_replicas_is_shared_by_design() -> None:
    """Also while nobody has been given one."""
    offer = AllocatableDevice("nvidia.com/gpu", f"{gpu_uuid(0)}::0", GpuByUuid(gpu_uuid(0)))
    report = cycles(60, **node(BOTH, kubelet=Kubelet((), (), (offer,))))
    assert waived(report, SHARED) == {("double_use", None, "replicas")}


def test_mps_is_sharing_by_design() -> None:
    """Rows of the MPS list, or the server itself with a row of its own."""
    listed = kubelet(given(1), given(2, 1))
    rows = (row(4001, GIB, kinds=("compute", "mps")), row(4002, GIB, kinds=("mps",)))
    report = cycles(60, **node(rows, (), kubelet=listed))
    assert found(report, SHARED) == found(report, MISPLACED) == {}
    assert waived(report, SHARED) == {("double_use", key(), "mps")}
    assert waived(report, MISPLACED) == {(kind, key(), "mps") for kind in ("of_other_pod", "of_nobody")}

    server = process(900, exe="/usr/bin/nvidia-cuda-mps-server", unit="nvidia-mps.service", numbers=(900,))
    served = node((row(900, GIB), *BOTH), members=(server, member(1), member(2)), kubelet=listed)
    assert waived(cycles(60, **served), SHARED) == {("double_use", None, "mps")}


def test_pods_of_one_claim_share_it() -> None:
    """A DRA claim may be several pods'; two claims for one device are judged by use alone."""
    claimed = [replace(given(n, resource="gpu.nvidia.com"), claim="team-a/pair") for n in (1, 2)]
    report = cycles(60, **node(BOTH, kubelet=kubelet(*claimed)))
    assert found(report, SHARED) == {}
    assert clear(report, SHARED) == {key()}

    apart = (claimed[0], replace(claimed[1], claim="team-a/other"))
    assert set(found(cycles(60, **node(BOTH, kubelet=kubelet(*apart))), SHARED)) == {(key(), "")}
    # An admin-access claim of a monitor: given what is another's, and it has no memory there.
    watched = node((row(4001, GIB), row(4002, 0)), kubelet=kubelet(*apart))
    assert found(cycles(60, **watched), SHARED) == {}


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param((row(4001, GIB), row(4002, 0)), id="0 bytes"),
        pytest.param((row(4001, GIB), row(4002, None)), id="N/A beside a figure"),
        pytest.param((row(4001, GIB),), id="open files without a row"),
    ],
)
def test_what_is_no_use_is_silent(rows: tuple[NvmlRow, ...]) -> None:
    """A pod without memory there uses nothing of it."""
    report = cycles(60, **node(rows, (), kubelet=EACH_ITS_OWN))
    assert found(report, SHARED) == found(report, MISPLACED) == {}
    assert key() in clear(report, SHARED)


def test_where_no_row_has_a_figure_a_row_is_a_use_and_a_warning() -> None:
    """A driver that gives none at all would hide every wrong use; unsure, so never critical."""
    report = cycles(60, **node((row(4001, None), row(4002, None)), (), kubelet=EACH_ITS_OWN))
    for name, who in ((SHARED, ""), (MISPLACED, pod_uid(2))):
        one = found(report, name)[key(), who]
        assert (one.active, one.holds.severity, one.holds.memory) == (True, Severity.WARNING, None)


def test_infrastructure_and_the_host_are_no_party() -> None:
    """DCGM in its pod, and a process of nobody's pod, which is a finding of its own."""
    dcgm = member(2, exe="/usr/bin/nv-hostengine")
    told = api(2, namespace="gpu-operator")
    report = cycles(
        60, **node(BOTH, members=(member(1), dcgm), pods=(api(1), told), kubelet=kubelet(given(1)))
    )
    assert found(report, SHARED) == found(report, MISPLACED) == {}
    host = process(4002, unit="session-3.scope", holds=OPEN, numbers=(4002,))
    report = cycles(60, **node(BOTH, members=(member(1), host), kubelet=kubelet(given(1))))
    assert found(report, SHARED) == found(report, MISPLACED) == {}


def test_init_and_app_of_one_pod_are_one_party() -> None:
    """The kubelet lists the device for both containers."""
    listed = kubelet(given(1), given(1, container="init"))
    one = (row(4001, GIB), row(4003, GIB))
    second = process(4003, pod_uid=pod_uid(1), container_id=container_id(7), holds=OPEN, numbers=(4003,))
    report = cycles(60, **node(one, members=(member(1), second), kubelet=listed))
    assert found(report, SHARED) == {}
    assert clear(report, SHARED) == {key()}


def test_what_a_pod_left_behind_is_told_by_the_orphan() -> None:
    """The pod is gone, its process has memory, the device is the next pod's: one incident, counted once."""
    left = node(BOTH, pods=(api(1),), kubelet=kubelet(given(1)))
    report = cycles(195, **left)
    one = found(report, SHARED)[key(), ""]
    assert (one.active, one.explained_by) == (True, ORPHAN)
    assert one.holds.processes == (member(1).id, member(2).id)
    assert found(report, MISPLACED) == {}


def test_two_current_pods_are_not_excused_by_a_third_one_s_remains() -> None:
    """Only those that share it now are named, so that the orphan does not explain it away."""
    three = (*BOTH, row(4003, GIB))
    looks = node(three, (), members=(member(1), member(2), member(3)), kubelet=EACH_ITS_OWN)
    one = found(cycles(195, **looks), SHARED)[key(), ""]
    assert one.holds.processes == (member(1).id, member(2).id)
    assert one.explained_by is None


def test_two_current_pods_are_not_excused_by_a_process_that_is_ending() -> None:
    """One of their processes does not get to its end; the others are there to stay."""
    stays = process(4003, pod_uid=pod_uid(2), container_id=container_id(2), holds=OPEN, numbers=(4003,))
    hangs = replace(member(2), exiting=True)
    looks = node((*BOTH, row(4003, GIB)), (), members=(member(1), hangs, stays), kubelet=EACH_ITS_OWN)
    one = found(cycles(120, **looks), SHARED)[key(), ""]
    assert one.holds.processes == (member(1).id, stays.id)
    assert one.explained_by is None


def test_rows_of_two_pods_that_name_no_part_may_be_on_two() -> None:
    """Each pod was given a part, and the driver does not say which part a row is on."""
    ids = [mig_uuid(0, 1), mig_uuid(0, 2)]
    listed = kubelet(
        allocation(ids[0], ref=MigByUuid(ids[0])), allocation(ids[1], ref=MigByUuid(ids[1]), pod="train-1")
    )
    looks = {**mig_node(listed, row(4001, GIB), row(4002, GIB))}
    looks["processes"] = process_table(member(1), member(2))
    report = cycles(60, **{**looks, "pods": (api(1), api(2))})
    assert found(report, SHARED) == {}
    assert doubts(report, SHARED) == {("double_use", key(), "no_instance")}


def test_a_handover_is_silent_while_it_is_in_time() -> None:
    """The old pod is being deleted and has given the device back; its process is about to end."""
    ending = (api(1), api(2, deletion_timestamp=NOW + 30))
    report = cycles(60, **node(BOTH, pods=ending, kubelet=kubelet(given(1))))
    assert found(report, SHARED) == found(report, MISPLACED) == {}
    late = (api(1), api(2, deletion_timestamp=NOW - 121))
    one = found(cycles(60, **node(BOTH, pods=late, kubelet=kubelet(given(1)))), SHARED)[key(), ""]
    assert one.explained_by is ORPHAN


def test_a_pod_that_has_ended_is_told_by_the_orphan() -> None:
    """Succeeded, and its process lives on."""
    over = (api(1), api(2, phase="Succeeded"))
    report = cycles(60, **node(BOTH, pods=over, kubelet=kubelet(given(1))))
    assert found(report, SHARED)[key(), ""].explained_by is ORPHAN
    assert found(report, MISPLACED) == {}


@pytest.mark.parametrize(
    ("looks", "reason"),
    [
        ({"nvml": missed()}, "rows:timeout"),
        ({"processes": missed()}, "scan:timeout"),
        ({"kubelet": missed()}, "list:timeout"),
    ],
    ids=["rows", "scan", "list"],
)
def test_without_its_evidence_sharing_is_unknown(looks: dict[str, Any], reason: str) -> None:
    """It stays, flagged; and where it never held, nothing is clear."""
    both = node(BOTH, (), kubelet=EACH_ITS_OWN)
    held = cycles(60, **both)
    report = cycles(90, held, **{**both, **looks})
    for name, who in ((SHARED, ""), (MISPLACED, pod_uid(2))):
        one = found(report, name)[key(), who]
        assert (one.active, one.undetermined) == (True, reason)
        assert key() not in clear(report, name)
    fresh = cycles(0, **{**node((), kubelet=kubelet()), **looks})
    assert clear(fresh, SHARED) == clear(fresh, MISPLACED) == set()


def test_without_a_kubelet_by_choice_nothing_of_it_applies() -> None:
    """What was given is not to be known, so it cannot be used wrongly."""
    report = cycles(60, **node(BOTH, kubelet=OFF))
    for name in (SHARED, MISPLACED, IDLE):
        assert found(report, name) == {}
        assert {reason for _, _, reason in waived(report, name)} == {"list:off"}
        assert clear(report, name) == set()


def test_a_process_of_an_unknown_pod_may_be_another_party() -> None:
    """Its cgroup could not be read."""
    hidden = member(2, pod_uid="", container_id="", unread=("cgroup",))
    report = cycles(60, **node(BOTH, members=(member(1), hidden), kubelet=kubelet(given(1))))
    assert found(report, SHARED) == found(report, MISPLACED) == {}
    assert doubts(report, SHARED) == {("double_use", None, "owner_unknown")}
    assert {reason for *_, reason in doubts(report, MISPLACED)} == {"owner_unknown"}


def test_ids_that_nobody_understands_may_be_shares() -> None:
    """Neither pod has an id that we know: whether they share by design is not known."""
    odd = [given(n, ref=Unrecognised("slice-7"), resource="nvidia.com/slice") for n in (1, 2)]
    report = cycles(60, **node(BOTH, kubelet=kubelet(*odd)))
    assert found(report, SHARED) == {}
    assert doubts(report, SHARED) == {("double_use", None, "unrecognised_id")}


def test_one_id_given_to_two_pods() -> None:
    """Critical without a single process on it."""
    report = cycles(60, **node((), members=(process(),), kubelet=kubelet(given(1), given(2))))
    one = found(report, SHARED)[key(), ""]
    assert (one.active, one.holds.kind) == (True, "double_allocation")
    assert one.holds.evidence == tuple(
        f"the kubelet lists {gpu_uuid(0)} for team-a/train-{n}" for n in (0, 1)
    )


@pytest.mark.parametrize(
    "more",
    [
        {"pods": (api(1), api(2, phase="Failed"))},
        {"pods": (api(1),)},
        {"kubelet": kubelet(given(1), given(2, 1))},
        {"kubelet": kubelet(given(1), replace(given(2), claim="team-a/admin"))},
    ],
    ids=["one has ended", "one is gone", "two ids", "a claim with admin access"],
)
def test_one_id_of_one_active_pod_is_silent(more: dict[str, Any]) -> None:
    """A finished pod may still be listed, and who watches a device is given it too."""
    looks = node((), (), members=(process(),), kubelet=kubelet(given(1), given(2)))
    report = cycles(60, **{**looks, **more})
    assert found(report, SHARED) == {}
    assert key() in clear(report, SHARED)


def test_whether_a_listed_pod_is_active_may_be_unknown() -> None:
    """No word of the API server and no container of it: it may have ended."""
    looks = node((), members=(process(),), kubelet=kubelet(given(1), given(2)), pods=missed())
    report = cycles(60, **looks)
    assert found(report, SHARED) == {}
    assert doubts(report, SHARED) == {("double_allocation", None, "pod_unknown")}
    assert clear(report, SHARED) == set()
    held = cycles(60, **{**looks, "pods": (api(1), api(2))})
    assert found(cycles(0, held, **looks), SHARED)[key(), ""].undetermined == "pod_unknown"


# --- misplaced ----------------------------------------------------------------------------------------------


def test_a_pod_on_another_pod_s_gpu() -> None:
    """One finding for the pod and the device, with all its processes there."""
    second = process(4003, parent=4002, pod_uid=pod_uid(2), container_id=container_id(2), numbers=(4003,))
    rows = (*BOTH, row(4003, GIB))
    looks = node(rows, (), members=(member(1), member(2), second), kubelet=EACH_ITS_OWN)
    assert not found(cycles(45, **looks), MISPLACED)[key(), pod_uid(2)].active
    report = cycles(60, **looks)
    assert set(found(report, MISPLACED)) == {(key(), pod_uid(2))}
    holds = found(report, MISPLACED)[key(), pod_uid(2)].holds
    assert (holds.kind, holds.memory, holds.pod_uid) == ("of_other_pod", 3 * GIB, pod_uid(2))
    assert (holds.workload.pod, holds.pid, len(holds.processes)) == ("train-1", 4002, 2)
    assert holds.evidence[-2:] == (
        f"the kubelet gave team-a/train-1 {gpu_uuid(1)}",
        f"the kubelet gave {gpu_uuid(0)} to team-a/train-0",
    )


@pytest.mark.parametrize(
    ("listed", "kind"),
    [
        pytest.param(kubelet(given(2, 1)), "of_nobody", id="free"),
        pytest.param(
            kubelet(allocation(f"{gpu_uuid(0)}::0", ref=GpuByUuid(gpu_uuid(0)), replica="0"), given(2, 1)),
            "of_nobody",
            id="shared by others",
        ),
        pytest.param(kubelet(given(1), given(2, 1)), "of_other_pod", id="another pod's"),
        pytest.param(Kubelet((), (given(1),), ()), "of_other_pod", id="without any of its own"),
    ],
)
def test_whose_device_it_is(listed: Kubelet, kind: str) -> None:
    """Critical only where somebody has it for himself."""
    report = cycles(60, **node((row(4002, 500 * MIB),), (), kubelet=listed))
    assert found(report, MISPLACED)[key(), pod_uid(2)].holds.kind == kind


def test_a_context_on_a_gpu_of_one_s_own_is_no_trespass() -> None:
    """A library touches the default device: harmless where the pod has that one too."""
    own = kubelet(given(2, 0), given(2, 1))
    rows = (row(4002, 870 * MIB),)
    report = cycles(60, **node(rows, (row(4002, 8 * GIB),), kubelet=own))
    assert found(report, MISPLACED) == {}
    report = cycles(60, **node(rows, (row(4002, 8 * GIB),), kubelet=kubelet(given(2, 1))))
    assert set(found(report, MISPLACED)) == {(key(), pod_uid(2))}


def mig_node(listed: Kubelet, *rows: NvmlRow) -> dict[str, Any]:
    parts = (mig_instance(1, used=GIB), mig_instance(2, used=GIB))
    return {
        **node((), members=(member(1),), kubelet=listed),
        "nvml": nvml(gpu(mig_enabled=True, instances=parts, rows=rows)),
    }


def test_a_whole_gpu_has_its_parts_in_it() -> None:
    """A device plugin without MIG strategy gives the GPU, and work is on its parts."""
    report = cycles(60, **mig_node(kubelet(given(1)), row(4001, GIB, gi=2, ci=0)))
    assert found(report, MISPLACED) == found(report, IDLE) == {}


def test_a_part_covers_neither_its_sibling_nor_the_gpu() -> None:
    """Given instance 1, at work on instance 2."""
    part = kubelet(allocation(mig_uuid(0, 1), ref=MigByUuid(mig_uuid(0, 1))))
    report = cycles(60, **mig_node(part, row(4001, GIB, gi=2, ci=0)))
    assert set(found(report, MISPLACED)) == {(key(0, 2, 0), pod_uid(1))}


def test_a_row_that_names_no_part_may_be_on_the_right_one() -> None:
    """Some drivers leave the instance out."""
    part = kubelet(allocation(mig_uuid(0, 1), ref=MigByUuid(mig_uuid(0, 1))))
    report = cycles(60, **mig_node(part, row(4001, GIB)))
    assert found(report, MISPLACED) == {}
    assert {(device, reason) for _, device, reason in doubts(report, MISPLACED)} == {(key(), "no_instance")}


def test_a_part_that_is_not_found_may_be_any() -> None:
    """The kubelet lists a MIG device that NVML does not show."""
    lost = kubelet(allocation(mig_uuid(0, 9), ref=MigByUuid(mig_uuid(0, 9))))
    report = cycles(60, **mig_node(lost, row(4001, GIB, gi=2, ci=0)))
    assert found(report, MISPLACED) == {}
    assert {reason for *_, reason in doubts(report, MISPLACED)} == {"unresolved_id"}


ADVISORY: dict[str, tuple[dict[str, Any], str]] = {
    "HAMi by id": ({"kubelet": kubelet(given(1), given(2, 1, ref=Advisory("hami", "x")))}, "hami"),
    "gpushare by annotation": (
        {"pods": (api(1), api(2, annotations=(("ALIYUN_COM_GPU_MEM_IDX", "0"),)))},
        "gpushare",
    ),
    "KAI by label": ({"pods": (api(1), api(2, labels=(("runai-gpu-group", "g1"),)))}, "kai"),
    "KAI reservation": (
        {"kubelet": kubelet(allocation(namespace="kai-resource-reservation", pod="r", container="c"))},
        "",
    ),
}


@pytest.mark.parametrize(("more", "scheme"), ADVISORY.values(), ids=ADVISORY.keys())
def test_schemes_that_choose_past_the_kubelet_are_not_judged(more: dict[str, Any], scheme: str) -> None:
    """Their pods are on devices that the kubelet gave to nobody, or to a placeholder."""
    looks = {**node(BOTH, (), kubelet=kubelet(given(1))), **more}
    if not scheme:
        labelled = (("runai-gpu-group", "g1"),)
        looks["pods"] = (api(1, labels=labelled), api(2, labels=labelled))
    report = cycles(60, **looks)
    assert found(report, SHARED) == found(report, MISPLACED) == {}
    name = scheme or "kai"
    assert ("double_use", key(), name) in waived(report, SHARED)
    assert ("of_other_pod", key(), name) in waived(report, MISPLACED)
    assert key() not in clear(report, MISPLACED)


def test_ids_of_a_pod_that_nobody_understands_may_be_the_device() -> None:
    """Unparsed is no proof that it was given something else."""
    odd = kubelet(given(1), given(2, ref=Unrecognised("slice-7")))
    report = cycles(60, **node(BOTH, kubelet=odd))
    assert found(report, MISPLACED) == {}
    assert {reason for *_, reason in doubts(report, MISPLACED)} == {"unrecognised_id"}


def test_an_unknown_scheme_on_the_node_may_be_that_of_a_pod_without_ids() -> None:
    """As KAI's: a placeholder has the id, the pod has none. A pod with ids of its own is judged."""
    odd = given(9, ref=Unrecognised("slice-7"))
    assert found(cycles(60, **node((row(4002, GIB),), kubelet=kubelet(odd))), MISPLACED) == {}
    report = cycles(60, **node((row(4002, GIB),), (), kubelet=kubelet(odd, given(2, 1))))
    assert set(found(report, MISPLACED)) == {(key(), pod_uid(2))}


def test_a_pod_without_a_name_cannot_be_looked_up() -> None:
    """Nobody has said what the pod of that UID is called."""
    report = cycles(60, **node(BOTH, kubelet=kubelet(given(1)), pods=missed()))
    assert found(report, MISPLACED) == {}
    assert {reason for *_, reason in doubts(report, MISPLACED)} == {"pod_unnamed"}


def test_another_pod_of_the_same_name_is_not_its_heir() -> None:
    """The set makes train-0 anew; the old one's process is told as an orphan, and was given the GPU once."""
    anew = (replace(api(2), name="train-0"),)
    logs = {"pods": anew, "kubelet": kubelet(given(1))}
    known = cycles(0, **node(BOTH, pods=(api(1),), kubelet=kubelet(given(1))))
    report = cycles(195, known, **{**node(BOTH), **logs})
    assert found(report, MISPLACED) == {}
    assert set(found(report, ORPHAN)) == {(key(), f"4001/{member(1).id.start}")}


def test_what_the_heir_was_given_is_not_the_old_pod_s() -> None:
    """While the kubelet settles nobody is called gone; the new pod's device is still not the old one's."""
    known = cycles(0, **node(BOTH, pods=(api(1),), kubelet=kubelet(given(1))))
    anew = (replace(api(2), name="train-0"),)
    starting = seen(kubelet(given(1)), complete=False)
    report = cycles(60, known, **node((row(4001, GIB),), pods=anew, kubelet=starting))
    assert found(report, MISPLACED) == {}
    assert {reason for *_, reason in doubts(report, MISPLACED)} == {"pod_replaced"}


def test_a_kubelet_that_has_just_started_proves_nothing() -> None:
    """It lists pods that it has not taken up again without devices, or not at all."""
    own = kubelet(given(1))
    known = cycles(60, **node((row(4001, GIB),), members=(member(1),), kubelet=own))
    starting = seen(Kubelet((), (), ()), complete=False)
    report = cycles(90, known, **node((row(4001, GIB),), members=(member(1),), kubelet=starting))
    assert found(report, MISPLACED) == found(report, IDLE) == {}
    assert {reason for *_, reason in doubts(report, MISPLACED)} == {"allocation_carried"}
    fresh = cycles(60, **node((row(4001, GIB),), members=(member(1),), kubelet=starting))
    assert {reason for *_, reason in doubts(fresh, MISPLACED)} == {"settled_list:incomplete"}


def test_a_pod_that_nobody_lists_may_be_gone() -> None:
    """Known by its logs alone: neither the kubelet nor the API server has a word about it."""
    names = (pod_name("train-1", uid=pod_uid(2)),)
    looks = node((row(4002, GIB),), kubelet=kubelet(), pods=OFF, pod_names=names)
    report = cycles(60, **looks)
    assert found(report, MISPLACED) == {}
    assert {reason for *_, reason in doubts(report, MISPLACED)} == {"pod_not_listed"}
    listed = Kubelet((KubeletPod("team-a", "train-1", ("main",)),), (), ())
    assert set(found(cycles(60, **{**looks, "kubelet": listed}), MISPLACED)) == {(key(), pod_uid(2))}


def test_an_allocation_that_has_just_ended_is_no_trespass() -> None:
    """In the cycle in which the kubelet takes it back, the process is still on its way out."""
    carried = Carried(given(2), MONOTONIC)
    held = cycles(60, **node((row(4002, GIB),), kubelet=kubelet(given(2))))
    assert carried.allocation in {one.allocation for one in held.history.carried}
    report = cycles(0, held, **node((row(4002, GIB),), kubelet=kubelet()))
    assert found(report, MISPLACED) == {}
    assert {reason for *_, reason in doubts(report, MISPLACED)} == {"allocation_ended"}


def test_an_init_container_may_have_more_than_the_pod_keeps() -> None:
    """The kubelet lists what the pod keeps; what an init container had beyond it is listed nowhere."""
    starting = container_status("init", kind=ContainerKind.INIT, identity=container_id(2))
    looks = node((row(4002, GIB),), (), kubelet=kubelet(given(2, 1)), pods=(api(2, containers=(starting,)),))
    report = cycles(60, **looks)
    assert found(report, MISPLACED) == {}
    assert {reason for *_, reason in doubts(report, MISPLACED)} == {"init_container"}


def test_an_ending_pod_that_still_has_its_devices_is_judged() -> None:
    """A long grace period is no licence."""
    ending = (api(1), api(2, deletion_timestamp=NOW + 3600))
    report = cycles(60, **node(BOTH, (), pods=ending, kubelet=EACH_ITS_OWN))
    assert set(found(report, MISPLACED)) == {(key(), pod_uid(2))}


def test_an_index_is_no_minor() -> None:
    """The plugin says device minor 1, which is the GPU with index 0: its own."""
    swapped = nvml(gpu(0, minor=1, used=GIB, rows=(row(4001, GIB),)), gpu(1, minor=0))
    own = kubelet(allocation("nvidia1", ref=GpuByMinor(1)))
    report = cycles(60, **node((), members=(member(1),), kubelet=own, nvml=swapped))
    assert found(report, MISPLACED) == {}


# --- idle ---------------------------------------------------------------------------------------------------


def unused(**more: Any) -> dict[str, Any]:
    """A GPU given to the first pod, which has a process that uses none."""
    idler = member(1, holds=(), numbers=())
    return node((), members=(idler,), **{"pods": (api(1),), "kubelet": kubelet(given(1)), **more})


def test_a_gpu_that_nobody_uses_counts_after_an_hour() -> None:
    """Of each pod that was given it."""
    assert not found(cycles(3585, **unused()), IDLE)[key(), "team-a/train-0"].active
    one = found(cycles(3600, **unused()), IDLE)[key(), "team-a/train-0"]
    assert (one.active, one.holds.kind, one.holds.pod_uid) == (True, "no_client", pod_uid())
    assert one.holds.workload.pod == "train-0"
    assert one.holds.evidence[0] == f"the kubelet lists {gpu_uuid(0)} for team-a/train-0"


def test_open_device_files_without_uvm_are_no_client() -> None:
    """Whoever only looks at the GPU does not use it."""
    looker = process_table(member(1, holds=(hold(NodeKind.GPU, 0),), numbers=()))
    assert set(found(cycles(0, **unused(processes=looker)), IDLE)) == {(key(), "team-a/train-0")}


@pytest.mark.parametrize(
    "more",
    [
        {"nvml": nvml(gpu(used=GIB, rows=(row(4001, GIB),))), "processes": process_table(member(1))},
        {"processes": process_table(member(1, numbers=()))},
        {"pods": (api(1, phase="Succeeded"),)},
        {"kubelet": kubelet(given(1, 7))},
        {
            "kubelet": kubelet(given(1, namespace="kai-resource-reservation")),
            "pods": (api(1, namespace="kai-resource-reservation"),),
        },
        {"kubelet": kubelet()},
    ],
    ids=["works", "has it open", "has ended", "a GPU that NVML lacks", "a placeholder", "given to nobody"],
)
def test_what_is_not_idle_is_silent(more: dict[str, Any]) -> None:
    """Usage without utilisation is usage: utilisation is another rule."""
    report = cycles(30, **unused(**more))
    assert found(report, IDLE) == {}
    assert key() in clear(report, IDLE)


def test_each_sharer_of_a_device_is_judged() -> None:
    """Two replicas are given, one is used."""
    replicas = SILENT_SHARING["replicas"]
    report = cycles(0, **node((row(4001, GIB),), members=(member(1),), kubelet=replicas))
    assert set(found(report, IDLE)) == {(key(), "team-a/train-1")}


def test_a_client_on_an_unnamed_part_is_no_idler() -> None:
    """It has the GPU and nvidia-uvm open, on which of its parts is not known."""
    part = kubelet(allocation(mig_uuid(0, 1), ref=MigByUuid(mig_uuid(0, 1))))
    looks = mig_node(part)
    looks["processes"] = process_table(member(1, numbers=()))
    assert found(cycles(0, **looks), IDLE) == {}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"kubelet": missed()}, "list:timeout"),
        ({"nvml": nvml(gpu(lost="GPU_IS_LOST", rows=None))}, "rows:gpu_is_lost"),
        ({"processes": missed()}, "scan:timeout"),
        ({"processes": seen(process_table(unreadable=(9,)), complete=False)}, "whole_scan:incomplete"),
        ({"pods": missed()}, "pod_unknown"),
    ],
    ids=["list", "rows", "scan", "part of the scan", "pod"],
)
def test_without_its_evidence_idleness_is_unknown(more: dict[str, Any], reason: str) -> None:
    """It stays what it was, and is not clear."""
    idle = cycles(3600, **unused(processes=process_table()))
    report = cycles(75, idle, **unused(**{"processes": process_table(), **more}))
    one = found(report, IDLE)[key(), "team-a/train-0"]
    assert (one.active, one.undetermined) == (True, reason)
    assert key() not in clear(report, IDLE)


def test_a_process_that_cannot_be_read_does_not_matter_where_a_client_is_seen() -> None:
    """Only verdicts that it could change are unknown."""
    partial = seen(process_table(member(1, numbers=()), unreadable=(9,)), complete=False)
    report = cycles(0, **unused(processes=partial))
    assert doubts(report, IDLE) == set()
    assert key() in clear(report, IDLE)
