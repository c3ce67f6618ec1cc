"""What containers can see: each kind holds, is silent where it must be, and unknown without its evidence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from exporter.model import (
    OFF,
    Advisory,
    Allocation,
    CapabilityNode,
    ContainerDev,
    ContainerKind,
    ContainerView,
    DeviceKey,
    DeviceNode,
    Diagnosis,
    FindingName,
    GpuByUuid,
    Holds,
    KubeletPod,
    LiveContainer,
    MigByUuid,
    NodeKind,
    Passthrough,
    Policy,
    ProcessId,
    ProcessTable,
    Severity,
    Snapshot,
    Unrecognised,
)
from exporter.report import advance
from tests import builders as make

EXPOSED, UNSEEN = FindingName.VISIBLE_NOT_ALLOCATED, FindingName.ALLOCATED_NOT_VISIBLE
RESOURCE = make.RESOURCE
TWO_GPUS = make.nvml(make.gpu(0), make.gpu(1))
POD, MAIN = make.pod_uid(1), make.container_id(1)


# --- builders -----------------------------------------------------------------------------------------------


def files(*minors: int, caps: Iterable[int] = ()) -> tuple[DeviceNode, ...]:
    """A /dev as the toolkit makes it: these GPUs, control and uvm."""
    gpus = tuple(make.device_node(minor=minor) for minor in minors)
    rest = tuple(make.device_node(kind) for kind in (NodeKind.CONTROL, NodeKind.UVM))
    return gpus + rest + tuple(make.device_node(NodeKind.CAPABILITY, minor) for minor in caps)


def views(*nodes: DeviceNode, unseen: str = "", host: bool = False, exe: str = "") -> ContainerDev:
    """The first pod's container, and what its /dev shows."""
    return ContainerDev((ContainerView(POD, MAIN, nodes, unseen, host, exe),))


def table(
    *,
    used: bool = False,
    exe: str = "/usr/bin/python3",
    minor: int = 0,
    capabilities: tuple[CapabilityNode, ...] = (),
) -> ProcessTable:
    """The first pod's container lives; where it is `used` its process holds a GPU."""
    holds = (make.hold(minor=minor), make.hold(NodeKind.UVM)) if used else (make.hold(NodeKind.CONTROL),)
    process = make.process(
        pod_uid=POD, container_id=MAIN, exe=exe, holds=holds, numbers=(4000,) if used else ()
    )
    return replace(make.process_table(process), capabilities=capabilities)


def look(
    shown: ContainerDev,
    *given: Allocation,
    privileged: bool = False,
    namespace: str = "team-a",
    scan: ProcessTable | None = None,
    kind: ContainerKind = ContainerKind.APP,
    runtime_class: str = "",
    **more: object,
) -> Snapshot:
    """Two GPUs; the first pod runs, and the kubelet lists what it was given."""
    status = make.container_status(privileged=privileged, kind=kind)
    pods = (make.pod(namespace=namespace, containers=(status,), runtime_class=runtime_class),)
    listed = (KubeletPod(namespace, "train-0", ("main",)),)
    readings: dict[str, object] = {
        "nvml": TWO_GPUS,
        "processes": scan or table(),
        "container_dev": shown,
        "kubelet": make.kubelet(*given, pods=listed),
        "pods": pods,
        **more,
    }
    return make.snapshot(**readings)  # type: ignore[arg-type]


def judge(snapshot: Snapshot) -> Diagnosis:
    """The verdict of a first cycle: what holds is pending."""
    return advance(Policy(), None, snapshot).diagnosis


def held(diagnosis: Diagnosis, finding: FindingName) -> list[Holds]:
    return [one.holds for one in diagnosis.findings if one.holds.subject.finding is finding]


def where(diagnosis: Diagnosis, finding: FindingName = EXPOSED) -> dict[DeviceKey | None, str]:
    """Kind by device."""
    return {one.subject.device: one.kind for one in held(diagnosis, finding)}


def doubts(diagnosis: Diagnosis, finding: FindingName = EXPOSED) -> set[str]:
    return {one.reason for one in diagnosis.undetermined if one.finding is finding}


def waived(diagnosis: Diagnosis, finding: FindingName = EXPOSED) -> set[str]:
    return {one.reason for one in diagnosis.not_applicable if one.finding is finding}


def clear(diagnosis: Diagnosis, finding: FindingName = EXPOSED) -> set[DeviceKey | None]:
    return {device for name, device in diagnosis.clear if name is finding}


BOTH = {make.key(0), make.key(1)}
FIRST = make.allocation()


# --- visible, not allocated ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("snapshot", "kind"),
    [
        (look(views(*files(0, 1)), FIRST), "other"),
        (look(views(*files(0, 1)), FIRST, privileged=True), "privileged"),
        (look(views(*files(0, 1), host=True), FIRST), "host_device"),
        (look(views(*files(0, 1), host=True), FIRST, privileged=True), "privileged"),
    ],
    ids=["toolkit", "privileged", "host", "both"],
)
def test_a_container_sees_a_gpu_beyond_its_own(snapshot: Snapshot, kind: str) -> None:
    """The finding is on the GPU that is not its own, and its own is clear."""
    diagnosis = judge(snapshot)
    assert where(diagnosis) == {make.key(1): kind}
    assert clear(diagnosis) == {make.key(0)}
    (holds,) = held(diagnosis, EXPOSED)
    assert (holds.subject.who, holds.pod_uid, holds.workload, holds.severity) == (
        MAIN,
        POD,
        make.TRAINER,
        None,
    )
    assert make.gpu_uuid(1) in holds.evidence[0]
    assert make.gpu_uuid(0) in holds.evidence[1]


def test_what_it_was_given_is_all_that_it_sees() -> None:
    """Two GPUs given, two seen."""
    second = make.allocation(make.gpu_uuid(1))
    assert clear(judge(look(views(*files(0, 1)), FIRST, second))) == BOTH


@pytest.mark.parametrize(("privileged", "kinds"), [(False, {"other"}), (True, set())])
def test_without_an_allocation_only_privileges_excuse(privileged: bool, kinds: set[str]) -> None:
    """A CUDA image under a runtime that obeys its environment sees all; the privileged always do."""
    diagnosis = judge(look(views(*files(0, 1)), privileged=privileged))
    assert set(where(diagnosis).values()) == kinds
    assert set(where(diagnosis)) == (BOTH if kinds else set())


def test_privileges_do_not_excuse_a_client() -> None:
    """A privileged container without an allocation that has a GPU open: informational until it has memory."""
    diagnosis = judge(look(views(*files(0, 1)), privileged=True, scan=table(used=True)))
    assert where(diagnosis) == {make.key(0): "privileged", make.key(1): "privileged"}


@pytest.mark.parametrize(("used", "severity"), [(make.GIB, Severity.WARNING), (0, None), (None, None)])
def test_it_is_a_warning_where_it_also_uses_what_it_sees(used: int | None, severity: Severity | None) -> None:
    """Bytes of a client of that container on that GPU; a row of no bytes is nothing."""
    nvml = make.nvml(make.gpu(0), make.gpu(1, rows=(make.row(4000, used),)))
    diagnosis = judge(look(views(*files(0, 1)), FIRST, nvml=nvml, scan=table(used=True, minor=1)))
    assert [one.severity for one in held(diagnosis, EXPOSED)] == [severity]


def test_one_container_of_a_pod_sees_what_another_was_given() -> None:
    """An allocation is a container's, not its pod's."""
    other = make.container_id(2)
    pods = (make.pod(containers=(make.container_status(), make.container_status("helper", identity=other))),)
    shown = ContainerDev((ContainerView(POD, MAIN, files(0)), ContainerView(POD, other, files(0))))
    listed = (KubeletPod("team-a", "train-0", ("helper", "main")),)
    kubelet = make.kubelet(FIRST, pods=listed)
    (holds,) = held(judge(make.snapshot(container_dev=shown, pods=pods, kubelet=kubelet)), EXPOSED)
    assert (holds.subject.who, holds.workload.container) == (other, "helper")


INFRASTRUCTURE = "/usr/bin/nvidia-device-plugin"


@pytest.mark.parametrize(
    ("namespace", "by_view", "by_scan", "excused"),
    [
        ("gpu-operator", INFRASTRUCTURE, "/bin/sh", True),
        ("gpu-operator", "", INFRASTRUCTURE, True),
        ("team-a", INFRASTRUCTURE, INFRASTRUCTURE, False),
        ("gpu-operator", "/tmp/miner", "/tmp/miner", False),
    ],
)
def test_infrastructure_sees_all(namespace: str, by_view: str, by_scan: str, excused: bool) -> None:
    """By namespace and executable, also while the daemon holds no file; never by a name alone."""
    diagnosis = judge(look(views(*files(0, 1), exe=by_view), namespace=namespace, scan=table(exe=by_scan)))
    assert bool(where(diagnosis)) is not excused


def test_the_agent_excuses_itself() -> None:
    """Its own container sees every GPU and was given none."""
    scan = replace(table(), agent=4000)
    assert clear(judge(look(views(*files(0, 1)), scan=scan))) == BOTH


@pytest.mark.parametrize("runtime_class", ["kata-qemu-nvidia-gpu", "gvisor", "runsc"])
def test_a_sandboxed_runtime_shows_another_dev(runtime_class: str) -> None:
    """A monitor of virtual machines lives in the host's /dev, a gVisor sandbox in none to be entered."""
    for shown in (views(*files(0, 1), host=True), views(unseen="/dev is no mount of its own")):
        diagnosis = judge(look(shown, runtime_class=runtime_class))
        assert (where(diagnosis), doubts(diagnosis)) == ({}, set())


def test_a_file_of_no_gpu_opens_nothing() -> None:
    """A node of a minor that no GPU has, and the control nodes alone."""
    assert clear(judge(look(views(*files(7)), FIRST))) == BOTH
    assert clear(judge(look(views(*files())))) == BOTH


# --- MIG ----------------------------------------------------------------------------------------------------


PARTS = (make.mig_instance(1), make.mig_instance(2))
DIVIDED = make.nvml(make.gpu(0, mig_enabled=True, instances=PARTS), make.gpu(1))
CAPS = tuple(
    CapabilityNode(10 * gi + (ci is not None), 0, gi, ci) for gi in (1, 2) for ci in (None, 0)
)  # 10 and 11 of GPU instance 1, 20 and 21 of 2
PART = make.allocation(
    make.mig_uuid(0, 1), resource="nvidia.com/mig-1g.10gb", ref=MigByUuid(make.mig_uuid(0, 1))
)


def divided(*nodes: DeviceNode, given: Allocation = PART, privileged: bool = False) -> Diagnosis:
    scan = table(capabilities=CAPS)
    return judge(look(views(*nodes), given, nvml=DIVIDED, scan=scan, privileged=privileged))


def test_a_mig_device_needs_its_parents_file() -> None:
    """Parent and its own capabilities are all in order, for both findings."""
    diagnosis = divided(*files(0, caps=(10, 11)))
    assert (where(diagnosis), where(diagnosis, UNSEEN)) == ({}, {})
    assert make.key(0) in clear(diagnosis)
    assert make.key(0, 1, 0) in clear(diagnosis, UNSEEN)


@pytest.mark.parametrize(("privileged", "kind"), [(False, "mig_caps"), (True, "privileged")])
def test_capabilities_of_another_mig_device(privileged: bool, kind: str) -> None:
    """They open it; that of the GPU instance alone does not."""
    nodes = files(0, caps=(10, 11, 20, 21))
    assert where(divided(*nodes, privileged=privileged)) == {make.key(0, 2, 0): kind}
    assert where(divided(*files(0, caps=(10, 11, 20)))) == {}


def test_a_whole_gpu_beyond_is_told_once() -> None:
    """Of a GPU on which it has no part, the parts are not told one by one."""
    whole = make.allocation(make.gpu_uuid(1))
    assert where(divided(*files(0, 1, caps=(10, 11, 20, 21)), given=whole)) == {make.key(0): "other"}


def test_a_mig_parent_that_was_given_whole_has_all_its_parts() -> None:
    """A plugin that does not know MIG."""
    assert where(divided(*files(0, caps=(10, 11, 20, 21)), given=FIRST)) == {}


def test_a_mig_device_without_its_capabilities() -> None:
    """The parent's file alone does not open it."""
    diagnosis = divided(*files(0, caps=(10,)))
    assert where(diagnosis, UNSEEN) == {make.key(0, 1, 0): "no_device_file"}
    assert "nvidia-caps/nvidia-cap11" in held(diagnosis, UNSEEN)[0].evidence[0]


# --- visible: what is not known -----------------------------------------------------------------------------


def test_a_dev_that_was_not_seen_clears_nothing() -> None:
    """The container may see any GPU."""
    diagnosis = judge(look(views(unseen="/dev is overlay")))
    assert (where(diagnosis), clear(diagnosis), doubts(diagnosis)) == ({}, set(), {"dev_unseen"})


def test_what_is_not_known_of_privileges() -> None:
    """Seeing more than was given is a fact without the API server; seeing any GPU at all is none yet."""
    given = judge(look(views(*files(0, 1)), FIRST, pods=make.missed(), pod_names=(make.pod_name(),)))
    assert where(given) == {make.key(1): "other"}
    nothing = judge(look(views(*files(0, 1)), pods=make.missed(), pod_names=(make.pod_name(),)))
    assert (where(nothing), doubts(nothing)) == ({}, {"privilege_unknown"})
    off = judge(look(views(*files(0, 1)), pods=OFF, pod_names=(make.pod_name(),)))
    assert (where(off), doubts(off)) == ({}, set())


UNKNOWN = make.allocation("x1", ref=Unrecognised("x1"))


@pytest.mark.parametrize(
    ("snapshot", "reason"),
    [
        (look(views(*files(0, 1)), FIRST, UNKNOWN), "unresolved_id"),
        (look(views(*files(0, 1)), kubelet=make.kubelet()), "pod_not_listed"),
        (look(views(*files(0, 1)), kubelet=make.seen(make.kubelet(), complete=False)), "pod_not_listed"),
        (
            look(
                views(*files(0, 1)),
                kind=ContainerKind.SIDECAR,
                kubelet=make.kubelet(pods=(KubeletPod("team-a", "train-0", ()),)),
            ),
            "container_not_listed",
        ),
        (look(views(*files(0, 1)), kubelet=make.missed()), "list:timeout"),
        (look(views(*files(0, 1)), FIRST, container_dev=make.missed()), "views:timeout"),
    ],
    ids=["unknown id", "not listed", "kubelet starts", "old sidecar", "kubelet silent", "no views"],
)
def test_an_allocation_that_is_not_known_judges_nobody(snapshot: Snapshot, reason: str) -> None:
    """Nothing holds, and the GPU that it may see without right is not clear."""
    diagnosis = judge(snapshot)
    assert (where(diagnosis), doubts(diagnosis)) == ({}, {reason})
    assert make.key(1) not in clear(diagnosis)


def test_a_scheme_that_the_kubelet_does_not_know_of() -> None:
    """The GPU that a HAMi container gets is not the one that the kubelet lists."""
    hami = make.allocation("GPU-x-1", ref=Advisory("hami", "GPU-x-1"), replica="1")
    diagnosis = judge(look(views(*files(0)), hami))
    assert (where(diagnosis), waived(diagnosis)) == ({}, {"advisory_scheme"})
    assert make.key(0) not in clear(diagnosis)


def test_sources_that_are_off_make_it_not_applicable() -> None:
    """Neither clear nor undetermined."""
    diagnosis = judge(look(views(*files(0, 1)), FIRST, container_dev=OFF))
    assert (waived(diagnosis), clear(diagnosis)) == ({"views:off"}, set())


# --- allocated, not visible ---------------------------------------------------------------------------------


WHO = "team-a/train-0/main"


def test_a_container_without_the_file_of_its_gpu() -> None:
    """The wrong GPU's file is none."""
    for nodes in ((), files(1)):
        diagnosis = judge(look(views(*nodes), FIRST, runtime_class="runc-plain"))
        (holds,) = held(diagnosis, UNSEEN)
        assert (holds.subject.device, holds.subject.who, holds.workload) == (make.key(0), WHO, make.TRAINER)
        assert "nvidia0" in holds.evidence[0]
        assert "runc-plain" in holds.evidence[2]
        assert clear(diagnosis, UNSEEN) == {make.key(1)}


def test_it_counts_a_minute_later() -> None:
    """Two cycles and 60 s: until then the container may be starting."""
    report, active = None, []
    for seconds in (0, 15, 45, 60):
        snapshot = look(views(), FIRST, at=make.NOW + seconds, monotonic=make.MONOTONIC + seconds)
        report = advance(Policy(), report, snapshot)
        active.append([one.active for one in report.diagnosis.findings if one.holds.subject.who == WHO])
    assert active == [[False], [False], [False], [True]]


def test_the_index_is_not_the_minor() -> None:
    """The file that counts is that of the GPU's device minor."""
    nvml = make.nvml(make.gpu(0, minor=3), make.gpu(1, minor=0))
    assert where(judge(look(views(*files(3)), FIRST, nvml=nvml)), UNSEEN) == {}
    assert where(judge(look(views(*files(0)), FIRST, nvml=nvml)), UNSEEN) == {make.key(0): "no_device_file"}


STOPPED = make.pod(containers=(make.container_status(running=False),))
RESTARTED = make.pod(containers=(make.container_status(identity=make.container_id(9)),))
VIRTUAL = make.allocation("0000:81:00.0", resource="nvidia.com/GH100", ref=Passthrough("0000:81:00.0"))


@pytest.mark.parametrize(
    "snapshot",
    [
        look(views(*files(0)), FIRST),
        look(views(), FIRST, pods=(STOPPED,)),
        look(views(), FIRST, pods=(RESTARTED,)),
        look(views(), FIRST, pods=(make.pod(phase="Succeeded"),)),
        look(views(), FIRST, runtime_class="kata-qemu"),
        look(views(unseen="/dev is no mount of its own"), FIRST, runtime_class="gvisor"),
        look(views(), VIRTUAL),
    ],
    ids=["sees it", "not running", "id not live", "ended", "kata", "gvisor", "passthrough"],
)
def test_where_no_file_is_needed(snapshot: Snapshot) -> None:
    """Containers that do not run, that run elsewhere, and devices without a file."""
    diagnosis = judge(snapshot)
    assert (where(diagnosis, UNSEEN), doubts(diagnosis, UNSEEN)) == ({}, set())


def test_wsl_has_no_driver_files() -> None:
    """NVML works and the kernel has no NVIDIA driver: /dev/dxg is the GPU."""
    scan = replace(table(), driver_loaded=False)
    diagnosis = judge(look(views(), FIRST, scan=scan))
    assert (where(diagnosis, UNSEEN), waived(diagnosis, UNSEEN)) == ({}, {"no_driver_files"})
    silent = judge(look(views(), FIRST, scan=scan, nvml=make.missed()))
    assert doubts(silent, UNSEEN) == {"driver_not_loaded"}


NO_MINOR = make.nvml(make.gpu(0, minor=None), make.gpu(1))
UNNAMED = make.pod(containers=())


@pytest.mark.parametrize(
    ("snapshot", "reason"),
    [
        (look(views(unseen="denied"), FIRST), "dev_unseen"),
        (look(ContainerDev(()), FIRST), "dev_unseen"),
        (look(views(), FIRST, pods=(UNNAMED,)), "container_unknown"),
        (look(views(), FIRST, pods=make.missed()), "container_unknown"),
        (look(views(*files(0)), FIRST, nvml=NO_MINOR, pci=OFF), "minor_unknown"),
        (look(views(), UNKNOWN), "unresolved_id"),
    ],
    ids=["denied", "no view", "no status", "no names", "no minor", "no device"],
)
def test_a_device_whose_container_is_not_known_judges_nothing(snapshot: Snapshot, reason: str) -> None:
    """Nothing holds, and the device is not clear."""
    diagnosis = judge(snapshot)
    assert (where(diagnosis, UNSEEN), doubts(diagnosis, UNSEEN)) == ({}, {reason})
    assert make.key(0) not in clear(diagnosis, UNSEEN)


def sandbox_and(*nodes: DeviceNode) -> tuple[ContainerDev, ProcessTable]:
    """A pod of one container, and the sandbox that started before it."""
    sandbox = make.container_id(5)
    live = (LiveContainer(POD, sandbox, ProcessId(3000, 1)), LiveContainer(POD, MAIN, ProcessId(4000, 9)))
    scan = make.process_table(containers=live)
    return ContainerDev((ContainerView(POD, sandbox, ()), ContainerView(POD, MAIN, nodes))), scan


@pytest.mark.parametrize(("nodes", "kinds"), [((), ["no_device_file"]), (files(0), [])])
def test_without_the_api_server_a_pod_of_one_container_is_named_by_its_logs(
    nodes: tuple[DeviceNode, ...], kinds: list[str]
) -> None:
    """The sandbox, which sees nothing, is not taken for it."""
    shown, scan = sandbox_and(*nodes)
    for pods in (OFF, make.missed()):
        diagnosis = judge(look(shown, FIRST, scan=scan, pods=pods, pod_names=(make.pod_name(),)))
        assert list(where(diagnosis, UNSEEN).values()) == kinds
        assert doubts(diagnosis, UNSEEN) == set()


def test_a_finding_outlives_the_api_server() -> None:
    """Unknown does not resolve: the container cannot be named any more, so the finding stays, flagged."""
    first = advance(Policy(), None, look(views(), FIRST))
    later = look(views(), FIRST, pods=make.missed(), monotonic=make.MONOTONIC + 15)
    (finding,) = (
        one
        for one in advance(Policy(), first, later).diagnosis.findings
        if one.holds.subject.finding is UNSEEN
    )
    assert finding.undetermined == "container_unknown"


def test_exposure_outlives_a_silent_kubelet() -> None:
    """And the same for what it sees beyond its own."""
    first = advance(Policy(), None, look(views(*files(0, 1)), FIRST))
    later = look(views(*files(0, 1)), kubelet=make.missed(), monotonic=make.MONOTONIC + 90)
    found = advance(Policy(), first, later).diagnosis.findings
    assert [one.undetermined for one in found if one.holds.subject.finding is EXPOSED] == ["list:timeout"]


def test_a_replica_is_as_good_as_the_gpu() -> None:
    """Time-slicing: the file is that of the GPU."""
    shared = make.allocation(f"{make.gpu_uuid(0)}::3", ref=GpuByUuid(make.gpu_uuid(0)), replica="3")
    diagnosis = judge(look(views(*files(0)), shared))
    assert (where(diagnosis), where(diagnosis, UNSEEN)) == ({}, {})
