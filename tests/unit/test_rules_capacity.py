"""Counts of GPUs that do not agree: each kind holds, is silent where it must be, and is never guessed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from exporter.model import (
    OFF,
    Advisory,
    AllocatableDevice,
    Allocation,
    Diagnosis,
    FindingName,
    GpuByMinor,
    GpuByUuid,
    GpuFault,
    Holds,
    Kubelet,
    KubeletPod,
    MigByUuid,
    Node,
    Nvml,
    Passthrough,
    Pci,
    PciGpu,
    Pods,
    Policy,
    Snapshot,
    Unrecognised,
)
from exporter.report import advance
from tests import builders as make

NAME = FindingName.NODE_CAPACITY_MISMATCH
GPU, PARTS = make.RESOURCE, "nvidia.com/mig-1g.10gb"
LABEL = "nvidia.com/mig.strategy"


# --- builders -----------------------------------------------------------------------------------------------


def gpus(count: int, *, lost: Iterable[int] = (), absent: Iterable[int] = ()) -> Nvml:
    """So many GPUs; lost ones NVML still names, absent ones it does not."""
    return make.nvml(
        *(
            make.gpu(index, lost="GPU_IS_LOST" if index in lost else "")
            for index in range(count)
            if index not in absent
        )
    )


def bus(count: int, driver: Mapping[int, str] | None = None) -> Pci:
    return Pci(
        tuple(make.pci_gpu(index, driver=(driver or {}).get(index, "nvidia")) for index in range(count))
    )


def ids(count: int, replicas: int = 0, *, skip: Iterable[int] = ()) -> tuple[AllocatableDevice, ...]:
    """The kubelet's healthy ids of so many GPUs, each in replicas if there are any."""
    found = []
    for index in range(count):
        if index not in skip:
            uuid = make.gpu_uuid(index)
            names = [f"{uuid}::{n}" for n in range(replicas)] or [uuid]
            found += [AllocatableDevice(GPU, name, GpuByUuid(uuid)) for name in names]
    return tuple(found)


def parts(index: int, *gis: int, resource: str = PARTS) -> tuple[AllocatableDevice, ...]:
    names = [make.mig_uuid(index, gi) for gi in gis]
    return tuple(AllocatableDevice(resource, name, MigByUuid(name)) for name in names)


def kubelet(offered: tuple[AllocatableDevice, ...] | None, *given: Allocation) -> Kubelet:
    return replace(make.kubelet(*given), allocatable=offered)


def node(
    capacity: int = 0, allocatable: int | None = None, labels: Mapping[str, str] | None = None, **mig: int
) -> Node:
    """Counts of whole GPUs, and with `parts` and `free_parts` of MIG devices."""
    cut = mig.get("parts")
    total = {GPU: capacity} | ({} if cut is None else {PARTS: cut})
    free = {GPU: capacity if allocatable is None else allocatable}
    free |= {} if cut is None else {PARTS: mig.get("free_parts", cut)}
    return Node("node-1", tuple(total.items()), tuple(free.items()), tuple((labels or {}).items()))


def judge(snapshot: Snapshot, policy: Policy | None = None) -> Diagnosis:
    """The verdict of a first cycle: what holds is pending."""
    return advance(policy or Policy(), None, snapshot).diagnosis


def held(diagnosis: Diagnosis) -> list[Holds]:
    return [one.holds for one in diagnosis.findings if one.holds.subject.finding is NAME]


def kinds(diagnosis: Diagnosis) -> dict[str, str]:
    """Kind by who it is about."""
    return {one.subject.who: one.kind for one in held(diagnosis)}


def doubts(diagnosis: Diagnosis) -> set[tuple[str, str]]:
    return {(one.kind, one.reason) for one in diagnosis.undetermined if one.finding is NAME}


def waived(diagnosis: Diagnosis) -> set[tuple[str, str]]:
    return {(one.kind, one.reason) for one in diagnosis.not_applicable if one.finding is NAME}


def is_clear(diagnosis: Diagnosis) -> bool:
    return (NAME, None) in diagnosis.clear


# --- what agrees --------------------------------------------------------------------------------------------

DIVIDED = make.nvml(
    make.gpu(0, mig_enabled=True, instances=(make.mig_instance(1), make.mig_instance(2))), make.gpu(1)
)
MIXED = {LABEL: "mixed"}
VFIO = bus(3, {2: "vfio-pci"})
PASSED = AllocatableDevice("nvidia.com/GH100", "0000:03:00.0", Passthrough("0000:03:00.0"))
GKE = tuple(
    AllocatableDevice(GPU, f"nvidia{minor}/vgpu{n}", GpuByMinor(minor)) for minor in (0, 1) for n in (0, 1)
)


@pytest.mark.parametrize(
    "snapshot",
    [
        make.snapshot(nvml=gpus(2), kubelet=kubelet(ids(2))),
        make.snapshot(nvml=gpus(2), kubelet=kubelet(ids(2, 4)), node=node(8)),
        make.snapshot(nvml=gpus(2), kubelet=kubelet(GKE), node=node(4)),
        make.snapshot(nvml=gpus(2), kubelet=kubelet(None), node=node(2)),
        make.snapshot(
            nvml=gpus(2), kubelet=kubelet(None), node=node(8, labels={"nvidia.com/gpu.replicas": "4"})
        ),
        make.snapshot(
            nvml=DIVIDED, kubelet=kubelet((*ids(2, skip=[0]), *parts(0, 1, 2))), node=node(1, parts=2)
        ),
        make.snapshot(nvml=DIVIDED, kubelet=kubelet(None), node=node(1, parts=2, labels=MIXED)),
        make.snapshot(nvml=DIVIDED, kubelet=kubelet(ids(2)), node=node(2)),
        make.snapshot(nvml=gpus(2), kubelet=kubelet((*ids(2), PASSED)), pci=VFIO, node=node(2)),
        make.snapshot(
            nvml=gpus(2),
            kubelet=kubelet(ids(2)),
            node=Node("node-1", ((GPU, 2), (PARTS, 0)), ((GPU, 2), (PARTS, 0))),
        ),
    ],
    ids=[
        "whole",
        "time-slicing",
        "GKE sharing",
        "old kubelet",
        "old kubelet, replicas by label",
        "MIG mixed",
        "MIG mixed, old kubelet",
        "MIG unknown to the plugin",
        "one GPU is a virtual machine's",
        "a stale key",
    ],
)
def test_counts_that_agree(snapshot: Snapshot) -> None:
    """All seven kinds are judged, and none holds."""
    diagnosis = judge(snapshot)
    assert (kinds(diagnosis), doubts(diagnosis)) == ({}, set())
    assert is_clear(diagnosis)


def test_the_single_strategy_offers_mig_devices_as_gpus() -> None:
    """By their ids; and by the label where a kubelet lists no ids."""
    cut = make.nvml(make.gpu(0, mig_enabled=True, instances=(make.mig_instance(1), make.mig_instance(2))))
    listed = kubelet(parts(0, 1, 2, resource=GPU))
    assert is_clear(judge(make.snapshot(nvml=cut, kubelet=listed, node=node(2))))
    by_label = node(2, labels={LABEL: "single"})
    assert is_clear(judge(make.snapshot(nvml=cut, kubelet=kubelet(None), node=by_label)))
    assert kinds(judge(make.snapshot(nvml=cut, kubelet=listed, node=node(1)))) == {
        "capacity of mig": "capacity_lt_real"
    }


def test_a_renamed_resource_is_known_by_its_ids() -> None:
    """The old key stays with a count of 0."""
    renamed = tuple(replace(one, resource="nvidia.com/a100") for one in ids(2))
    counts = ((GPU, 0), ("nvidia.com/a100", 2))
    agree = make.snapshot(nvml=gpus(2), kubelet=kubelet(renamed), node=Node("node-1", counts, counts))
    assert is_clear(judge(agree))
    counts = ((GPU, 0), ("nvidia.com/a100", 3))
    more = make.snapshot(nvml=gpus(2), kubelet=kubelet(renamed), node=Node("node-1", counts, counts))
    assert kinds(judge(more)) == {"capacity": "capacity_gt_real"}


# --- capacity against what there is -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("look", "kind"),
    [
        (make.snapshot(nvml=gpus(2), kubelet=kubelet(ids(3)), node=node(3)), "capacity_gt_real"),
        (make.snapshot(nvml=gpus(2), kubelet=kubelet(ids(3, skip=[2])), node=node(3, 2)), "capacity_gt_real"),
        (make.snapshot(nvml=gpus(2), kubelet=kubelet(ids(2, 4)), node=node(12)), "capacity_gt_real"),
        (make.snapshot(nvml=gpus(2), kubelet=kubelet(ids(1)), node=node(1)), "capacity_lt_real"),
        (make.snapshot(nvml=gpus(2), kubelet=kubelet(ids(1, 4)), node=node(4)), "capacity_lt_real"),
        (make.snapshot(nvml=gpus(2), kubelet=kubelet(None), node=node(1)), "capacity_lt_real"),
    ],
    ids=["more ids", "a dead one", "more replicas", "fewer ids", "fewer replicas", "without ids"],
)
def test_capacity_is_not_what_there_is(look: Snapshot, kind: str) -> None:
    """One incident, though the unhealthy device shows in two counts."""
    diagnosis = judge(look)
    assert kinds(diagnosis) == {"capacity": kind}
    assert held(diagnosis)[0].subject.device is None
    assert "node object: capacity" in held(diagnosis)[0].evidence[0]


def test_it_counts_after_five_minutes() -> None:
    """A plugin and the node object need their time."""
    report, active = None, []
    for seconds in (0, 150, 285, 300):
        look = make.snapshot(
            nvml=gpus(2),
            kubelet=kubelet(ids(1)),
            node=node(1),
            at=make.NOW + seconds,
            monotonic=make.MONOTONIC + seconds,
        )
        report = advance(Policy(), report, look)
        active.append([one.active for one in report.diagnosis.findings])
    assert active == [[False], [False], [False], [True]]


@pytest.mark.parametrize(("expected", "found"), [(1, {}), (None, {"capacity": "capacity_lt_real"})])
def test_the_operator_may_choose_fewer(expected: int | None, found: dict[str, str]) -> None:
    """--expected-gpus: some GPUs are kept from the plugin on purpose."""
    look = make.snapshot(nvml=gpus(2), kubelet=kubelet(ids(1)), node=node(1))
    assert kinds(judge(look, Policy(expected_gpus=expected))) == found


def test_more_mig_devices_than_there_are() -> None:
    """A GPU was cut anew and the plugin has not noticed."""
    listed = kubelet((*ids(2, skip=[0]), *parts(0, 1, 2, 3)))
    look = make.snapshot(nvml=DIVIDED, kubelet=listed, node=node(1, parts=3))
    assert kinds(judge(look)) == {"capacity of mig": "capacity_gt_real"}


def test_a_gpu_in_mig_mode_is_no_gpu_to_offer_whole() -> None:
    """With every GPU divided a capacity of no whole GPU is right."""
    cut = make.nvml(make.gpu(0, mig_enabled=True, instances=(make.mig_instance(1),)))
    look = make.snapshot(nvml=cut, kubelet=kubelet(parts(0, 1)), node=node(0, parts=1))
    assert is_clear(judge(look))


CLAIM = replace(make.allocation("gpu-1", resource="gpu.nvidia.com", ref=GpuByMinor(1)), claim="team-a/one")
PLUGIN = make.pod(
    "plugin-x",
    uid=make.pod_uid(2),
    namespace="gpu-operator",
    labels=(("app", "nvidia-device-plugin-daemonset"),),
)
COUNTS = ("capacity_gt_real", "capacity_lt_real")


def test_without_a_device_plugin_there_is_no_capacity_to_judge() -> None:
    """A node of a DRA driver, or one whose plugin was removed: its keys stay with 0."""
    look = make.snapshot(nvml=gpus(2), kubelet=kubelet((), CLAIM), node=node(0), pods=(make.pod(),))
    diagnosis = judge(look)
    assert (kinds(diagnosis), waived(diagnosis)) == ({}, {(kind, "no_device_plugin") for kind in COUNTS})


@pytest.mark.parametrize("sign", ["pod", "allocation", "expected"])
def test_a_dead_plugin_offers_nothing(sign: str) -> None:
    """It is meant to be here by its pod, by what it gave, or by the operator's word."""
    given = (make.allocation(),) if sign == "allocation" else ()
    look = make.snapshot(
        nvml=gpus(2),
        kubelet=kubelet((), *given),
        node=node(0),
        pods=(PLUGIN, make.pod()) if sign == "pod" else (make.pod(),),
    )
    policy = Policy(expected_gpus=2 if sign == "expected" else None)
    assert kinds(judge(look, policy)) == {"capacity": "capacity_lt_real"}


def test_claims_take_gpus_that_no_resource_counts() -> None:
    """Beside a plugin, a capacity below what there is proves nothing; one above it does."""
    look = make.snapshot(nvml=gpus(2), kubelet=kubelet(ids(1), CLAIM), node=node(1), pods=(make.pod(),))
    diagnosis = judge(look)
    assert (kinds(diagnosis), waived(diagnosis)) == ({}, {("capacity_lt_real", "claims")})
    more = make.snapshot(nvml=gpus(2), kubelet=kubelet(ids(3), CLAIM), node=node(3), pods=(make.pod(),))
    assert kinds(judge(more)) == {"capacity": "capacity_gt_real"}


HAMI = tuple(AllocatableDevice(GPU, f"GPU-x-{n}", Advisory("hami", f"GPU-x-{n}")) for n in range(10))
STRANGE = (AllocatableDevice("nvidia.com/odd", "odd-1", Unrecognised("odd-1")),)


def test_shares_of_another_scheme_are_not_judged() -> None:
    """HAMi's capacity is a number of slots."""
    look = make.snapshot(nvml=gpus(1), kubelet=kubelet(HAMI), node=node(10))
    assert (kinds(judge(look)), waived(judge(look))) == ({}, {(kind, "advisory_scheme") for kind in COUNTS})


@pytest.mark.parametrize(
    ("look", "reason"),
    [
        (make.snapshot(nvml=gpus(2), kubelet=make.missed()), "list:timeout"),
        (make.snapshot(nvml=gpus(2), kubelet=make.seen(kubelet(()), complete=False)), "list:incomplete"),
        (make.snapshot(nvml=make.missed()), "inventory:timeout"),
        (make.snapshot(nvml=gpus(2), node=make.missed()), "node:timeout"),
        (
            make.snapshot(
                nvml=gpus(2),
                kubelet=kubelet((*ids(2), *STRANGE)),
                node=Node("node-1", ((GPU, 2), ("nvidia.com/odd", 1)), ((GPU, 2), ("nvidia.com/odd", 1))),
            ),
            "unknown_resource",
        ),
    ],
    ids=["kubelet silent", "plugin restarts", "no NVML", "no node", "strange ids"],
)
def test_counts_that_cannot_be_had_are_not_compared(look: Snapshot, reason: str) -> None:
    """Whatever the numbers say."""
    diagnosis = judge(look)
    assert set(kinds(diagnosis).values()) & set(COUNTS) == set()
    assert {(kind, reason) for kind in COUNTS} <= doubts(diagnosis)
    assert not is_clear(diagnosis)


def test_replicas_that_nobody_knows_of() -> None:
    """Without ids a multiple may be replicas; less than there is cannot be."""
    look = make.snapshot(nvml=gpus(2), kubelet=kubelet(None), node=node(8))
    assert (kinds(judge(look)), doubts(judge(look))) == ({}, {("capacity_gt_real", "replicas_unknown")})


# --- unhealthy ----------------------------------------------------------------------------------------------


def test_an_unhealthy_device_stays_in_the_capacity() -> None:
    """NVML has it, the plugin gave up on it."""
    look = make.snapshot(nvml=gpus(8), kubelet=kubelet(ids(8, skip=[3])), node=node(8, 7))
    assert kinds(judge(look)) == {"capacity": "allocatable_lt_capacity"}
    without = replace(look, nvml=make.missed(), kubelet=make.missed())
    assert kinds(judge(without)) == {"capacity": "allocatable_lt_capacity"}


def test_while_a_plugin_restarts_everything_is_unhealthy() -> None:
    """For its first three minutes that is no finding."""
    restarting = make.seen(kubelet(()), complete=False)
    diagnosis = judge(make.snapshot(nvml=gpus(8), kubelet=restarting, node=node(8, 0)))
    assert kinds(diagnosis) == {}
    assert ("allocatable_lt_capacity", "list:incomplete") in doubts(diagnosis)


# --- bus and driver -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "nvml",
    [
        gpus(4, absent=[1]),
        gpus(4, lost=[1]),
        make.nvml(
            *gpus(4, absent=[1]).gpus,
            count=4,
            faults=(GpuFault(1, "", "nvmlDeviceGetHandleByIndex", "GPU_IS_LOST"),),
        ),
    ],
    ids=["dropped", "lost", "without a name"],
)
def test_a_gpu_that_the_driver_lost_is_told_once(nvml: Nvml) -> None:
    """By its UUID or address, critical; the capacity that still counts it is the same incident."""
    whole = len(nvml.gpus) == nvml.count
    reading = make.seen(nvml, complete=whole)
    look = make.snapshot(nvml=reading, pci=bus(4), kubelet=kubelet(ids(4, skip=[1])), node=node(4, 3))
    diagnosis = judge(look)
    assert kinds(diagnosis) == {make.gpu_uuid(1): "nvml_lt_pci"}
    assert "0000:02:00.0" in held(diagnosis)[0].evidence[0]


def test_a_lost_gpu_names_the_pod_that_has_it() -> None:
    """NVML still names it: it is lost, not unheard of."""
    given = make.allocation(make.gpu_uuid(1))
    look = make.snapshot(nvml=gpus(2, lost=[1]), kubelet=kubelet(ids(2, skip=[1]), given), pods=(make.pod(),))
    (holds,) = held(judge(replace(look, node=make.seen(node(2, 1)), pci=make.seen(bus(2)))))
    assert (holds.kind, holds.workload, holds.pod_uid) == ("nvml_lt_pci", make.TRAINER, make.pod_uid())
    assert "GPU_IS_LOST" in holds.evidence[0]


@pytest.mark.parametrize(
    ("driver", "expected", "found"),
    [
        ("vfio-pci", None, {}),
        ("nouveau", None, {}),
        ("", None, {make.gpu_uuid(1): "nvml_lt_pci"}),
        ("", 1, {}),
        ("nvidia", 1, {make.gpu_uuid(1): "nvml_lt_pci"}),
    ],
)
def test_a_gpu_of_another_driver_is_not_missing(
    driver: str, expected: int | None, found: dict[str, str]
) -> None:
    """A virtual machine's or somebody else's; one without a driver failed, unless it was not counted on."""
    look = make.snapshot(nvml=gpus(1), pci=bus(2, {1: driver}), kubelet=kubelet(ids(1)), node=node(1))
    assert kinds(judge(look, Policy(expected_gpus=expected))) == found


def test_fewer_than_the_operator_expects() -> None:
    """A GPU that is on no bus any more: only the operator knows of it."""
    look = make.snapshot(nvml=gpus(7), pci=bus(7), kubelet=kubelet(ids(7)), node=node(7))
    assert kinds(judge(look, Policy(expected_gpus=8))) == {"expected": "nvml_lt_pci"}


@pytest.mark.parametrize(
    ("look", "reason"),
    [
        (make.snapshot(nvml=make.missed()), "inventory:timeout"),
        (
            make.snapshot(nvml=make.seen(make.nvml(make.gpu(), count=2), complete=False)),
            "inventory:incomplete",
        ),
        (make.snapshot(nvml=gpus(1), pci=make.missed()), "pci:timeout"),
        (
            make.snapshot(
                nvml=make.nvml(replace(make.gpu(0), pci_address="")),
                pci=Pci((PciGpu("0000:01:00.0", "nvidia"),)),
            ),
            "address_unknown",
        ),
    ],
    ids=["no NVML", "NVML hangs", "no bus", "no address"],
)
def test_a_driver_that_was_not_asked_to_the_end_has_lost_nothing(look: Snapshot, reason: str) -> None:
    """GPUs that were not reached are not missing."""
    diagnosis = judge(look)
    assert "nvml_lt_pci" not in kinds(diagnosis).values()
    assert ("nvml_lt_pci", reason) in doubts(diagnosis)


# --- what pods were given -----------------------------------------------------------------------------------


def test_a_pod_holds_a_gpu_that_is_gone() -> None:
    """From NVML and from the bus; the capacity that still counts it is the same incident."""
    given = make.allocation(make.gpu_uuid(7))
    look = make.snapshot(nvml=gpus(7), kubelet=kubelet(ids(7), given), node=node(8, 7), pods=(make.pod(),))
    (holds,) = held(judge(look))
    assert (holds.kind, holds.subject.who) == ("allocated_device_missing", make.gpu_uuid(7))
    assert (holds.workload, holds.pod_uid) == (make.TRAINER, make.pod_uid())


def test_a_pod_holds_a_mig_device_that_was_destroyed() -> None:
    """And an instance list that could not be read proves nothing."""
    gone = make.mig_uuid(0, 9)
    listed = kubelet(
        (*ids(2, skip=[0]), *parts(0, 1, 2)), make.allocation(gone, resource=PARTS, ref=MigByUuid(gone))
    )
    look = make.snapshot(nvml=DIVIDED, kubelet=listed, node=node(1, parts=2), pods=(make.pod(),))
    assert kinds(judge(look)) == {gone: "allocated_device_missing"}
    fault = GpuFault(0, make.gpu_uuid(0), "nvmlDeviceGetMigDeviceHandleByIndex", "UNKNOWN")
    unsure = judge(replace(look, nvml=make.seen(replace(DIVIDED, faults=(fault,)))))
    assert (kinds(unsure), doubts(unsure)) == ({}, {("allocated_device_missing", "instances_not_read")})


@pytest.mark.parametrize(
    "given",
    [
        make.allocation(make.gpu_uuid(0)),
        make.allocation("0000:81:00.0", resource="nvidia.com/GH100", ref=Passthrough("0000:81:00.0")),
        make.allocation("odd", resource="nvidia.com/odd", ref=Unrecognised("odd")),
    ],
    ids=["there", "passthrough", "strange"],
)
def test_only_ids_of_nvml_can_be_missing(given: Allocation) -> None:
    """What is a virtual machine's, or nobody's language, is not NVML's to have."""
    look = make.snapshot(nvml=gpus(1), kubelet=kubelet(ids(1), given), pods=(make.pod(),))
    assert "allocated_device_missing" not in kinds(judge(look)).values()


def test_an_incomplete_inventory_misses_nothing() -> None:
    """The GPU may be one that was not reached."""
    reading = make.seen(make.nvml(make.gpu(), count=2), complete=False)
    given = make.allocation(make.gpu_uuid(1))
    diagnosis = judge(make.snapshot(nvml=reading, kubelet=kubelet(ids(2), given), pods=(make.pod(),)))
    assert "allocated_device_missing" not in kinds(diagnosis).values()
    assert ("allocated_device_missing", "inventory:incomplete") in doubts(diagnosis)


# --- stale allocations --------------------------------------------------------------------------------------

ENDED = make.pod(phase="Succeeded", containers=(make.container_status(running=False),))
ALIVE = make.process_table(make.process(pod_uid=make.pod_uid(), container_id=make.container_id()))


@pytest.mark.parametrize("pods", [(ENDED,), ()], ids=["ended", "gone"])
def test_the_kubelet_keeps_a_device_for_a_pod_that_is_over(pods: tuple[object, ...]) -> None:
    """Nothing of the pod lives, and the device is not free."""
    look = make.snapshot(kubelet=kubelet(ids(1), make.allocation()), pods=pods)  # type: ignore[arg-type]
    (holds,) = held(judge(look))
    assert (holds.kind, holds.subject.who) == ("allocation_stale", "team-a/train-0")


def test_finished_pods_are_listed_without_devices() -> None:
    """By kubelets up to 1.33."""
    listed = make.kubelet(pods=(KubeletPod("team-a", "train-0", ("main",)),))
    look = make.snapshot(kubelet=replace(listed, allocatable=ids(1)), pods=(ENDED,))
    assert is_clear(judge(look))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"processes": ALIVE, "pods": (ENDED,)}, ""),
        ({"processes": ALIVE, "pods": (), "pod_names": (make.pod_name(),)}, ""),
        ({"processes": make.missed(), "pods": (ENDED,)}, "scan:missed"),
        ({"pods": make.missed()}, "pods:timeout"),
        ({"pods": make.seen(Pods(()), complete=False)}, "pods:incomplete"),
        (
            {"kubelet": make.seen(kubelet(ids(1), make.allocation()), complete=False)},
            "settled_list:incomplete",
        ),
    ],
    ids=["alive", "static without mirror", "no scan", "no API", "API in part", "kubelet starts"],
)
def test_a_pod_that_may_live_is_not_stale(more: dict[str, object], reason: str) -> None:
    """What lives in a pod that is over is the orphan rule's; what was not seen is not told."""
    readings: dict[str, object] = {"kubelet": kubelet(ids(1), make.allocation()), **more}
    diagnosis = judge(make.snapshot(**readings))  # type: ignore[arg-type]
    assert kinds(diagnosis) == {}
    told = {why for kind, why in doubts(diagnosis) if kind == "allocation_stale"}
    assert told == ({reason} if reason else set())


# --- MIG offered twice --------------------------------------------------------------------------------------


def test_a_gpu_is_offered_whole_and_in_parts() -> None:
    """Two plugins, or one that was set up anew beside the old."""
    listed = kubelet((*ids(2), *parts(0, 1, 2)))
    diagnosis = judge(make.snapshot(nvml=DIVIDED, kubelet=listed, node=node(2, parts=2)))
    assert kinds(diagnosis) == {"offered twice": "mig_double_advertised"}
    assert make.gpu_uuid(0) in held(diagnosis)[0].evidence[0]


def test_without_ids_nobody_can_tell_what_is_offered_twice() -> None:
    """The counts alone do not say which GPU is meant: unknown while silent, moot where there are none."""
    look = make.snapshot(nvml=DIVIDED, kubelet=make.missed(), node=node(2, parts=2))
    assert ("mig_double_advertised", "list:timeout") in doubts(judge(look))
    look = replace(look, kubelet=make.seen(kubelet(None)))
    assert ("mig_double_advertised", "no_ids") in waived(judge(look))


def test_sources_that_are_off_make_it_not_applicable() -> None:
    """Without the API server nothing is known of capacities."""
    diagnosis = judge(make.snapshot(nvml=gpus(1), node=OFF, pods=OFF, pci=OFF))
    off = {"capacity_gt_real", "capacity_lt_real", "allocatable_lt_capacity", "mig_double_advertised"}
    assert waived(diagnosis) == {
        *((kind, "node:off") for kind in off),
        ("allocation_stale", "pods:off"),
        ("nvml_lt_pci", "pci:off"),
    }
    assert is_clear(diagnosis)  # what is left was judged
