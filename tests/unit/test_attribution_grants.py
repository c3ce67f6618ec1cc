"""What the kubelet gave to whom: given, not given and not known are three things."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exporter.attribution import attribute
from exporter.model import (
    NOBODY,
    Advisory,
    Allocation,
    DeviceKey,
    DeviceRef,
    DeviceUse,
    GpuByMinor,
    GpuByUuid,
    History,
    Kubelet,
    KubeletPod,
    MigByInstance,
    MigByPlacement,
    MigByUuid,
    Off,
    Passthrough,
    Pods,
    Policy,
    Report,
    Snapshot,
    Unrecognised,
    Workload,
)
from exporter.report import advance
from tests import builders as b

TRAIN = Workload("team-a", "train-0", "main")
POLICY = Policy()
EMPTY = Kubelet((), (), ())


def device(report: Report, key: DeviceKey | None = None) -> DeviceUse:
    return next(use for use in report.attribution.devices if use.device == (key or b.key()))


def first(look: Snapshot, key: DeviceKey | None = None) -> DeviceUse:
    return device(advance(POLICY, None, look), key)


def later(seconds: float, **more: object) -> Snapshot:
    return b.snapshot(at=b.NOW + seconds, monotonic=b.MONOTONIC + seconds, **more)  # type: ignore[arg-type]


# ---------------------------------------------------------------- ids

MIG = b.mig_instance(3, 0, profile_id=14, start=4)
SLICED = b.nvml(b.gpu(minor=7, mig_enabled=True, instances=(MIG,)), b.gpu(1))


@pytest.mark.parametrize(
    ("ref", "key"),
    [
        (GpuByUuid(b.gpu_uuid(1)), b.key(1)),
        (GpuByMinor(7), b.key(0)),
        (GpuByMinor(0), None),
        (MigByUuid(MIG.mig_uuid), b.key(0, 3, 0)),
        (MigByUuid("MIG-of-nobody"), None),
        (MigByInstance(b.gpu_uuid(0), None, 3, 0), b.key(0, 3, 0)),
        (MigByInstance(None, 7, 3, None), b.key(0, 3, 0)),
        (MigByPlacement(7, 14, 4), b.key(0, 3, 0)),
        (MigByPlacement(7, 14, 0), None),
        (Passthrough("0000:01:00.0"), None),
        (Advisory("hami", "x"), None),
        (Unrecognised("x"), None),
    ],
)
def test_every_spelling_resolves_to_one_device_or_to_none(ref: DeviceRef, key: DeviceKey | None) -> None:
    """Minors are not indices, and an id that means nothing here means nothing."""
    given = b.allocation("some-id", ref=ref)
    (grant,) = attribute(POLICY, History(), b.snapshot(nvml=SLICED, kubelet=b.kubelet(given))).grants
    assert grant.device == key


def test_a_minor_resolves_while_nvml_is_silent() -> None:
    """By the PCI bus at once, and by what NVML said before; what is read now outranks what is remembered."""
    given = b.kubelet(b.allocation("nvidia0", ref=GpuByMinor(0)))
    silent = b.snapshot(nvml=b.missed(), kubelet=given)
    assert attribute(POLICY, History(), silent).grants[0].device == b.key()
    remembered = advance(POLICY, None, b.snapshot())
    dark = later(15, nvml=b.missed(), pci=b.missed(), kubelet=given)
    assert advance(POLICY, remembered, dark).attribution.grants[0].device == b.key()
    swapped = b.pci(replace(b.pci_gpu(), uuid=b.gpu_uuid(5)))
    look = later(15, nvml=b.missed(), pci=swapped, kubelet=given)
    assert advance(POLICY, remembered, look).attribution.grants[0].device == b.key(5)


@pytest.mark.parametrize("ref", [Unrecognised("x"), Advisory("hami", "x"), MigByUuid("MIG-of-nobody")])
def test_an_id_that_names_no_device_makes_none_free(ref: DeviceRef) -> None:
    """It may mean any of them: gpu_allocated is absent and never 0."""
    given = b.allocation("x", ref=ref)
    assert first(b.snapshot(kubelet=b.kubelet(given))).allocated is None
    ended = b.pod(phase="Succeeded")
    assert first(b.snapshot(kubelet=b.kubelet(given), pods=(ended,))).allocated is False


def test_a_virtual_machines_device_makes_no_other_doubtful() -> None:
    """NVML does not see it, so it is none of those that NVML sees."""
    given = b.allocation("0000:01:00.0", ref=Passthrough("0000:01:00.0"))
    assert first(b.snapshot(kubelet=b.kubelet(given))).allocated is False


# ---------------------------------------------------------------- given, and to whom


def test_a_device_given_to_one_pod_is_its_own() -> None:
    """Workload and allocation; the others are free."""
    look = b.snapshot(nvml=b.nvml(b.gpu(), b.gpu(1)), kubelet=b.kubelet(b.allocation()))
    report = advance(POLICY, None, look)
    assert (device(report).allocated, device(report).owner) == (True, TRAIN)
    assert (device(report, b.key(1)).allocated, device(report, b.key(1)).owner) == (False, NOBODY)


def test_several_containers_of_a_pod_share_its_device_without_a_name() -> None:
    """The container is empty: naming one of them would be a guess."""
    look = b.snapshot(kubelet=b.kubelet(b.allocation(), b.allocation(container="sidecar")))
    assert first(look).owner == Workload("team-a", "train-0", "")


@pytest.mark.parametrize(
    "given",
    [
        (b.allocation(replica="2"),),
        (b.allocation(resource="nvidia.com/gpu.shared"),),
        (b.allocation(), b.allocation(pod="train-1")),
    ],
    ids=["replica", "renamed by default", "two pods"],
)
def test_a_shared_device_is_nobodys_own(given: tuple[Allocation, ...]) -> None:
    """It is allocated, and its series carry no workload."""
    use = first(b.snapshot(kubelet=b.kubelet(*given)))
    assert (use.allocated, use.owner) == (True, NOBODY)


def test_an_ended_pod_has_nothing() -> None:
    """Kubelets up to 1.33 list pods that have run to their end."""
    given = (b.allocation(), b.allocation(pod="train-1"))
    look = b.snapshot(kubelet=b.kubelet(*given), pods=(b.pod(phase="Failed"),))
    assert first(look).owner == Workload("team-a", "train-1", "main")
    alone = b.snapshot(kubelet=b.kubelet(b.allocation()), pods=(b.pod(phase="Succeeded"),))
    assert (first(alone).allocated, first(alone).owner) == (False, NOBODY)


def test_a_mig_device_is_given_with_its_whole_gpu() -> None:
    """A parent is given in parts only, unless the device plugin knows no MIG."""
    part = b.kubelet(b.allocation(MIG.mig_uuid, ref=MigByUuid(MIG.mig_uuid)))
    report = advance(POLICY, None, b.snapshot(nvml=SLICED, kubelet=part))
    assert device(report).allocated is None
    assert device(report, b.key(0, 3, 0)).allocated is True
    report = advance(POLICY, None, b.snapshot(nvml=SLICED, kubelet=b.kubelet(b.allocation())))
    assert device(report).allocated is True
    assert device(report, b.key(0, 3, 0)).allocated is True


@pytest.mark.parametrize("kubelet", [b.missed(), Off(), b.seen(EMPTY, complete=False)])
def test_without_a_whole_list_no_device_is_free(kubelet: object) -> None:
    """Unknown is not 0."""
    assert first(b.snapshot(kubelet=kubelet)).allocated is None  # type: ignore[arg-type]


# ---------------------------------------------------------------- a silent kubelet

GIVEN = b.kubelet(b.allocation())


@pytest.mark.parametrize(("seconds", "allocated"), [(15, True), (60, True), (61, None), (3600, None)])
def test_a_missed_list_keeps_the_last_one_for_a_minute(seconds: float, allocated: bool | None) -> None:
    """Then what it said is not known any more; never that the device is free."""
    before = advance(POLICY, None, b.snapshot(kubelet=GIVEN))
    use = device(advance(POLICY, before, later(seconds, kubelet=b.missed())))
    assert (use.allocated, use.owner) == (allocated, TRAIN if allocated else NOBODY)


def test_many_missed_lists_are_not_longer_than_one() -> None:
    """The minute counts from when the kubelet last listed it."""
    report = advance(POLICY, None, b.snapshot(kubelet=GIVEN))
    for seconds in range(15, 120, 15):
        report = advance(POLICY, report, later(seconds, kubelet=b.missed()))
        assert device(report).allocated is (True if seconds <= 60 else None)


def test_a_list_in_part_is_no_ground_for_free_when_the_next_is_missed() -> None:
    """An agent that starts beside a starting kubelet knows of nothing that is free."""
    before = advance(POLICY, None, b.snapshot(kubelet=b.seen(EMPTY, complete=False)))
    assert device(advance(POLICY, before, later(15, kubelet=b.missed()))).allocated is None


def test_a_missed_list_makes_nothing_certain_that_was_not() -> None:
    """What had become unknown after a restart does not come back because the kubelet is silent."""
    known: dict[str, object] = {"pods": (b.pod(),), "processes": LIVING}
    report = _restart(*(later(seconds, kubelet=PART, **known) for seconds in range(15, 105, 15)))
    assert device(report).allocated is None
    assert device(advance(POLICY, report, later(105, kubelet=b.missed(), **known))).allocated is None


# ---------------------------------------------------------------- a restarting kubelet

LIVING = b.process_table(b.process(pod_uid=b.pod_uid(), container_id=b.container_id()))
PART = b.seen(EMPTY, complete=False)


def _restart(*looks: Snapshot) -> Report:
    report = advance(POLICY, None, b.snapshot(kubelet=GIVEN, pods=(b.pod(),), processes=LIVING))
    for look in looks:
        report = advance(POLICY, report, look)
    return report


def test_a_pod_that_a_restarting_kubelet_does_not_list_is_not_unallocated() -> None:
    """It answers OK with pods missing, for half a minute and more while the API server is down."""
    known: dict[str, object] = {"pods": b.missed(), "processes": LIVING}
    report = _restart(later(15, kubelet=PART, **known))
    assert device(report).allocated is True
    report = advance(POLICY, report, later(30, kubelet=EMPTY, **known))
    assert device(report).allocated is True
    report = advance(POLICY, report, later(90, kubelet=EMPTY, **known))
    assert device(report).allocated is None
    report = advance(POLICY, report, later(196, kubelet=EMPTY, **known))
    assert device(report).allocated is False


def test_an_agent_that_starts_after_the_kubelet_calls_no_device_free() -> None:
    """It has never heard of the devices of a living pod that is not listed: until that is, all is unknown."""
    known: dict[str, object] = {"pods": b.missed(), "processes": LIVING, "pod_names": (b.pod_name(),)}
    report = advance(POLICY, None, b.snapshot(kubelet=PART, **known))  # type: ignore[arg-type]
    report = advance(POLICY, report, later(15, kubelet=EMPTY, **known))
    assert device(report).allocated is None
    plain = Kubelet((KubeletPod("team-a", "train-0", ("main",)),), (), ())
    assert device(advance(POLICY, report, later(30, kubelet=plain, **known))).allocated is False


def test_the_word_of_the_api_ends_the_doubt() -> None:
    """A pod that is gone there is gone."""
    look = later(30, kubelet=EMPTY, pods=b.seen(Pods(()), at=b.NOW + 29), processes=LIVING)
    assert device(_restart(later(15, kubelet=PART, pods=(b.pod(),)), look)).allocated is False


def test_an_api_list_from_before_the_pod_is_no_word_about_it() -> None:
    """The API is asked once a minute: a pod that the kubelet listed since was not there to be listed."""
    old = b.seen(Pods(()), at=b.NOW - 40)
    report = advance(POLICY, None, b.snapshot(kubelet=GIVEN, pods=old, processes=LIVING))
    report = advance(POLICY, report, later(15, kubelet=PART, pods=old, processes=LIVING))
    assert device(report).allocated is True
    report = advance(POLICY, report, later(30, kubelet=EMPTY, pods=old, processes=LIVING))
    assert device(report).allocated is True


def test_a_pod_without_a_living_cgroup_is_over() -> None:
    """Its containers have ended, whatever the kubelet will say."""
    log = (b.pod_name(),)
    look = later(15, kubelet=b.seen(EMPTY), pods=b.missed(), processes=b.process_table(), pod_names=log)
    report = _restart(later(10, kubelet=PART, pods=b.missed(), processes=LIVING, pod_names=log), look)
    assert device(report).allocated is False


def test_a_pod_that_is_listed_again_with_another_device_has_that_one() -> None:
    """The new list wins over what was carried; a pod that is listed without devices yet has kept its own."""
    both: dict[str, object] = {"nvml": b.nvml(b.gpu(), b.gpu(1)), "processes": LIVING, "pods": (b.pod(),)}
    moved = b.seen(b.kubelet(b.allocation(b.gpu_uuid(1))), complete=False)
    report = _restart(later(15, kubelet=moved, **both))
    assert device(report, b.key(1)).allocated is True
    assert device(report).owner == NOBODY
    bare = b.seen(Kubelet((KubeletPod("team-a", "train-0", ("main",)),), (), ()), complete=False)
    assert device(_restart(later(15, kubelet=bare, **both))).allocated is True
