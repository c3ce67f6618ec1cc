"""What holds of every node: order means nothing, silence proves nothing, and nothing is two pods'."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from exporter.catalog import FAMILIES
from exporter.exposition import Format, expose
from exporter.model import (
    Allocation,
    CapabilityNode,
    DeviceRef,
    Gpu,
    GpuByUuid,
    Hold,
    Kubelet,
    KubeletPod,
    MigByUuid,
    Missed,
    NodeKind,
    NvmlRow,
    Pods,
    Policy,
    Process,
    ProcessUsage,
    Reason,
    Report,
    Seen,
    Snapshot,
    Unrecognised,
    value,
)
from exporter.report import advance
from tests import builders as b

T = TypeVar("T")
POLICY = Policy(version="0")
# Derandomized: what fails here fails everywhere.
QUICK = settings(max_examples=60, deadline=None, derandomize=True)
PODS = 3
PIDS = (100, 101, 102, 103)
CAPABILITIES = (CapabilityNode(31, 1, 1, 0), CapabilityNode(41, 1, 2, 0))
DEVICES: tuple[tuple[str, DeviceRef], ...] = (
    (b.gpu_uuid(0), GpuByUuid(b.gpu_uuid(0))),
    (b.gpu_uuid(1), GpuByUuid(b.gpu_uuid(1))),
    (b.mig_uuid(1, 1), MigByUuid(b.mig_uuid(1, 1))),
    ("odd", Unrecognised("odd")),
)
SOURCES = ("nvml", "processes", "kubelet", "pods", "pod_names", "pci")

# ---------------------------------------------------------------- small nodes


def _pod_name(number: int) -> str:
    return f"train-{number}"


@st.composite
def rows(draw: st.DrawFn, sliced: bool) -> tuple[NvmlRow, ...]:
    """Processes, their threads (pid + 1000) and numbers of nobody; on instances of a sliced GPU."""
    numbers = draw(
        st.lists(st.sampled_from((*PIDS, *(pid + 1000 for pid in PIDS), 9)), unique=True, max_size=4)
    )
    size = st.sampled_from((None, 0, b.MIB, b.GIB))
    gi = st.sampled_from((1, 2)) if sliced else st.none()
    made = []
    for number in numbers:
        instance = draw(gi)
        made.append(b.row(number, draw(size), gi=instance, ci=None if instance is None else 0))
    return tuple(made)


@st.composite
def gpus(draw: st.DrawFn) -> tuple[Gpu, ...]:
    usage = tuple(ProcessUsage(pid, 0.25, 0.5, None, 0.0) for pid in PIDS)
    plain = b.gpu(
        0, rows=draw(st.none() | rows(False)), used=4 * b.GIB, usage=draw(st.sampled_from((None, usage)))
    )
    instances = (b.mig_instance(1, index=1), b.mig_instance(2, index=1))
    sliced = b.gpu(1, mig_enabled=True, instances=instances, rows=draw(rows(True)), usage=None)
    return draw(st.sampled_from(((plain,), (plain, sliced))))


@st.composite
def processes(draw: st.DrawFn, listed: frozenset[int]) -> tuple[Process, ...]:
    made = []
    for pid in PIDS:
        if not draw(st.booleans()):
            continue
        pod = draw(st.integers(0, PODS))
        nodes = draw(
            st.lists(st.sampled_from((b.hold(), b.hold(minor=1), b.hold(NodeKind.UVM))), unique=True)
        )
        caps = [b.hold(NodeKind.CAPABILITY, minor) for minor in draw(st.sets(st.sampled_from((31, 41))))]
        holds: tuple[Hold, ...] = (*nodes, *caps)
        made.append(
            b.process(
                pid,
                state=draw(st.sampled_from("SDZ")),
                pod_uid=b.pod_uid(pod) if pod else "",
                container_id=b.container_id(pod) if pod else "",
                unit=draw(st.sampled_from(("", "nvidia-persistenced.service"))) if not pod else "",
                holds=holds,
                numbers=tuple(sorted(listed & {pid, pid + 1000})),
                parent=draw(st.sampled_from((1, *PIDS[:1]))),
            )
        )
    return tuple(made)


@st.composite
def kubelets(draw: st.DrawFn) -> Kubelet:
    pods: list[KubeletPod] = []
    given_: list[Allocation] = []
    for number in draw(st.sets(st.integers(1, PODS))):
        pods.append(KubeletPod("team-a", _pod_name(number), ("main",)))
        for identity, ref in draw(st.lists(st.sampled_from(DEVICES), unique=True, max_size=2)):
            replica = draw(st.sampled_from(("", "", "1")))
            given_.append(Allocation("team-a", _pod_name(number), "main", b.RESOURCE, identity, ref, replica))
    return Kubelet(tuple(pods), tuple(given_), ())


@st.composite
def looks(draw: st.DrawFn, cycle: int = 0) -> Snapshot:
    """A node with two GPUs at most, three pods and four processes."""
    found = draw(gpus())
    listed = frozenset(row.pid for gpu in found for row in gpu.rows or ())
    scanned = draw(processes(listed))
    known = {number for process in scanned for number in process.numbers}
    told = draw(st.sets(st.integers(1, PODS)))
    pods = tuple(
        b.pod(
            _pod_name(number),
            uid=b.pod_uid(number),
            phase=draw(st.sampled_from(("Running", "Running", "Succeeded"))),
            containers=(b.container_status(identity=b.container_id(number)),),
        )
        for number in sorted(told)
    )
    logs = tuple(
        b.pod_name(_pod_name(number), uid=b.pod_uid(number)) for number in draw(st.sets(st.integers(1, PODS)))
    )
    seconds = 15.0 * cycle
    whole = draw(st.booleans())
    table = b.process_table(*scanned, missing=tuple(sorted(listed - known)))
    return b.snapshot(
        nvml=b.nvml(*found),
        processes=replace(table, capabilities=CAPABILITIES),
        kubelet=b.seen(draw(kubelets()), complete=whole),
        pods=b.seen(Pods(pods), at=b.NOW + seconds),
        pod_names=logs,
        at=b.NOW + seconds,
        monotonic=b.MONOTONIC + seconds,
    )


@st.composite
def nights(draw: st.DrawFn) -> list[Snapshot]:
    """A few cycles, in which sources fall silent."""
    night = []
    for cycle in range(draw(st.integers(1, 4))):
        look = draw(looks(cycle))
        for source in draw(st.sets(st.sampled_from(SOURCES), max_size=2)):
            look = without(look, source)
        night.append(look)
    return night


def without(look: Snapshot, source: str) -> Snapshot:
    return replace(look, **{source: Missed(Reason.TIMEOUT, look.at, 5.0)})  # type: ignore[arg-type]


def fold(night: Sequence[Snapshot]) -> Report:
    report: Report | None = None
    for look in night:
        report = advance(POLICY, report, look)
    assert report is not None
    return report


# ---------------------------------------------------------------- order


def shuffled(look: Snapshot, dice: random.Random) -> Snapshot:
    """The same look, with everything that has no order in another one."""

    def mix(items: Sequence[T]) -> tuple[T, ...]:
        return tuple(dice.sample(items, len(items)))

    nvml, table, kubelet, pods = (value(getattr(look, n)) for n in ("nvml", "processes", "kubelet", "pods"))
    names, pci = value(look.pod_names), value(look.pci)
    changes: dict[str, object] = {}
    if nvml:
        mixed = [
            replace(
                gpu,
                rows=gpu.rows and mix(gpu.rows),
                usage=gpu.usage and mix(gpu.usage),
                instances=mix(gpu.instances),
            )
            for gpu in nvml.gpus
        ]
        changes["nvml"] = replace(nvml, gpus=mix(mixed))
    if table:
        turned = [replace(process, holds=mix(process.holds)) for process in table.processes]
        changes["processes"] = replace(
            table,
            processes=mix(turned),
            containers=mix(table.containers),
            capabilities=mix(table.capabilities),
        )
    if kubelet:
        changes["kubelet"] = replace(kubelet, pods=mix(kubelet.pods), allocations=mix(kubelet.allocations))
    if pods:
        changes["pods"] = Pods(mix(pods.pods))
    if names:
        changes["pod_names"] = replace(names, names=mix(names.names))
    if pci:
        changes["pci"] = replace(pci, gpus=mix(pci.gpus))
    readings = {name: replace(getattr(look, name), value=held) for name, held in changes.items()}
    return replace(look, **readings)


@QUICK
@given(nights(), st.integers(0, 2**16))
def test_order_means_nothing(night: list[Snapshot], seed: int) -> None:
    """NVML, /proc, the kubelet and the API list in any order, and the verdict is the same."""
    dice = random.Random(seed)
    one, other = fold(night), fold([shuffled(look, dice) for look in night])
    assert other.attribution == one.attribution
    assert other.history == one.history
    assert other.diagnosis == one.diagnosis


@QUICK
@given(nights())
def test_the_same_night_gives_the_same_report(night: list[Snapshot]) -> None:
    """All state is the previous report."""
    assert fold(night) == fold(night)


# ---------------------------------------------------------------- belonging


@QUICK
@given(nights())
def test_nothing_is_two_pods(night: list[Snapshot]) -> None:
    """A process is in one pod on all its devices; it has one row on each; a device has one row."""
    attribution = fold(night).attribution
    owners: dict[object, set[object]] = {}
    for use in attribution.uses:
        owners.setdefault(use.process or use.pid, set()).add((use.pod_uid, use.workload, use.owner))
    assert all(len(found) == 1 for found in owners.values())
    places = [(use.device, use.pid) for use in attribution.uses]
    assert len(places) == len(set(places))
    rows_ = [row.device for row in attribution.devices]
    assert len(rows_) == len(set(rows_))
    grants = [grant.allocation for grant in attribution.grants]
    assert len(grants) == len(set(grants))


@QUICK
@given(nights(), st.sampled_from(SOURCES))
def test_a_source_that_falls_silent_moves_nothing_to_another_pod(night: list[Snapshot], source: str) -> None:
    """What is attributed without it is attributed with it, to the same pod or to nobody."""
    *before, last = night
    full, less = fold(night), fold([*before, without(last, source)])
    with_it = {(use.device, use.pid): use for use in full.attribution.uses}
    for use in less.attribution.uses:
        twin = with_it.get((use.device, use.pid))
        if twin is not None and use.process is not None and use.process == twin.process and twin.workload.pod:
            assert use.pod_uid in ("", twin.pod_uid)
            assert use.workload.pod in ("", twin.workload.pod)


@QUICK
@given(nights(), st.sampled_from(SOURCES))
def test_silence_frees_no_device(night: list[Snapshot], source: str) -> None:
    """gpu_allocated is 0 only by the word of a whole list: never because somebody was not heard."""
    *before, last = night
    full, less = fold(night), fold([*before, without(last, source)])
    given_ = {row.device: row.allocated for row in full.attribution.devices}
    for row in less.attribution.devices:
        if row.allocated is False:
            assert given_.get(row.device) is not True


@QUICK
@given(nights())
def test_an_orphan_is_made_by_two_whole_lists(night: list[Snapshot]) -> None:
    """Whatever else is seen or not."""
    report = fold(night)
    look = report.snapshot
    if any(use.owner == "orphan" for use in report.attribution.uses):
        for reading in (look.pods, look.kubelet):
            assert isinstance(reading, Seen)
            assert reading.complete


# ---------------------------------------------------------------- exposition


@QUICK
@given(nights())
def test_no_two_samples_have_the_same_labels(night: list[Snapshot]) -> None:
    """One series has one value: with two of them which one is shown would be chance."""
    report = fold(night)
    for family in FAMILIES:
        labels = [labels for labels, _ in family.samples(report)]
        assert len(labels) == len(set(labels)), family.name
    assert list(text_string_to_metric_families(expose(report, Format.TEXT).decode()))
