"""orphaned_memory: GPU memory in use that no process accounts for, through whole cycles."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.model import (
    OFF,
    DeviceKey,
    Finding,
    FindingName,
    Gpu,
    GpuFault,
    NodeKind,
    Policy,
    Process,
    Report,
)
from exporter.report import advance
from tests.builders import (
    GIB,
    MIB,
    MONOTONIC,
    NOW,
    allocation,
    container_id,
    gpu,
    hold,
    key,
    kubelet,
    memory,
    mig_instance,
    missed,
    nvml,
    pod,
    pod_uid,
    process,
    process_table,
    row,
    seen,
    snapshot,
)

NAME = FindingName.ORPHANED_MEMORY
KINDS = ("none", "fd_only", "live_peer")
OPEN = (hold(NodeKind.GPU, 0), hold(NodeKind.UVM), hold(NodeKind.CONTROL))
DRIVERS = 256 * MIB  # of what is in use, the most that is taken for the driver's own


def cycles(
    seconds: int, before: Report | None = None, *, policy: Policy | None = None, **looks: Any
) -> Report:
    """The report after the same look every 15 s, the last one that many seconds after the first."""
    report = before
    start = 0.0 if before is None else before.snapshot.at + 15 - NOW
    for step in range(0, seconds + 15, 15):
        now = start + step
        report = advance(
            policy or Policy(), report, snapshot(at=NOW + now, monotonic=MONOTONIC + now, **looks)
        )
    assert report is not None
    return report


def findings(report: Report, name: FindingName = NAME) -> dict[DeviceKey | None, Finding]:
    return {
        one.holds.subject.device: one
        for one in report.diagnosis.findings
        if one.holds.subject.finding is name
    }


def undetermined(report: Report) -> set[tuple[str, DeviceKey | None, str]]:
    return {
        (one.kind, one.device, one.reason) for one in report.diagnosis.undetermined if one.finding is NAME
    }


def not_applicable(report: Report) -> set[tuple[str, DeviceKey | None, str]]:
    return {
        (one.kind, one.device, one.reason) for one in report.diagnosis.not_applicable if one.finding is NAME
    }


def clear(report: Report) -> set[DeviceKey | None]:
    return {device for finding, device in report.diagnosis.clear if finding is NAME}


def trainer(pid: int = 4000, *, number: int = 1, parent: int = 1, **more: Any) -> Process:
    """A process of a pod with the first GPU open; NVML lists it if `numbers` says so."""
    return process(
        pid,
        parent=parent,
        pod_uid=pod_uid(number),
        container_id=container_id(number),
        **{"holds": OPEN, **more},
    )


# --- which kind ---------------------------------------------------------------------------------------------


def test_memory_that_nobody_holds_counts_after_five_minutes() -> None:
    """Every cycle for 5 min, not sooner; then with its bytes and how they come about."""
    leak = nvml(gpu(used=3 * GIB))
    assert not findings(cycles(285, nvml=leak))[key()].active
    found = findings(cycles(300, nvml=leak))[key()]
    assert found.active
    assert found.holds.kind == "none"
    assert found.holds.memory == 3 * GIB - DRIVERS
    assert found.holds.evidence[0].startswith(f"{key().uuid}: 2816 MiB in use beyond the 0 MiB")
    assert found.holds.processes == ()


def test_a_gap_of_one_cycle_starts_the_count_anew() -> None:
    """Memory that comes and goes is work, not a leak."""
    leak, free = nvml(gpu(used=3 * GIB)), nvml(gpu())
    report = cycles(300, cycles(0, cycles(285, nvml=leak), nvml=free), nvml=leak)
    assert findings(report)[key()].since > NOW + 285


def test_unlisted_holders_are_named() -> None:
    """Workers whose parent was killed hold its files, and NVML lists nobody: they are of one pod."""
    left = (trainer(4001), trainer(4002))
    report = cycles(300, nvml=nvml(gpu(used=3 * GIB)), processes=process_table(*left), pods=(pod(),))
    holds = findings(report)[key()].holds
    assert (holds.kind, holds.pid, holds.pod_uid) == ("fd_only", 4001, pod_uid())
    assert (holds.workload.namespace, holds.workload.pod) == ("team-a", "train-0")
    assert holds.processes == (left[0].id, left[1].id)
    assert "pid 4002 (python) has its files open and no row" in holds.evidence


def test_holders_of_two_pods_are_nobody_s_in_particular() -> None:
    """The labels name a pod only where it is one."""
    held = process_table(trainer(4001), trainer(4002, number=2))
    holds = findings(cycles(0, nvml=nvml(gpu(used=3 * GIB)), processes=held))[key()].holds
    assert (holds.kind, holds.workload.pod, holds.pod_uid) == ("fd_only", "", "")
    assert len(holds.processes) == 2


def test_a_living_job_whose_row_is_too_small_is_a_peer() -> None:
    """Managed memory is in no row, and the workers of a listed process are part of its job."""
    job = process_table(trainer(4000, numbers=(4000,)), trainer(4001, parent=4000))
    report = cycles(300, nvml=nvml(gpu(used=60 * GIB, rows=(row(4000, 5 * GIB),))), processes=job)
    holds = findings(report)[key()].holds
    assert (holds.kind, holds.pid, holds.memory) == ("live_peer", 4000, 55 * GIB - DRIVERS)


def test_when_the_last_peer_ends_and_the_memory_stays_nobody_holds_it() -> None:
    """One incident: it stays active and keeps its beginning while its kind changes."""
    job = process_table(trainer(4000, numbers=(4000,)))
    working = cycles(300, nvml=nvml(gpu(used=60 * GIB, rows=(row(4000, 5 * GIB),))), processes=job)
    found = findings(cycles(0, working, nvml=nvml(gpu(used=55 * GIB))))[key()]
    assert (found.holds.kind, found.active, found.since) == ("none", True, NOW)


def test_a_phantom_s_row_accounts_for_its_memory() -> None:
    """That is another finding, and its bytes are not told twice."""
    report = cycles(300, nvml=nvml(gpu(used=9 * GIB, rows=(row(666, 9 * GIB),))))
    assert findings(report) == {}
    assert key() in findings(report, FindingName.PHANTOM_PROCESS)


def test_infrastructure_is_no_holder() -> None:
    """The persistence daemon has every GPU open and owns nothing."""
    daemon = process(1820, unit="nvidia-persistenced.service", holds=(hold(NodeKind.GPU, 0),))
    report = cycles(0, nvml=nvml(gpu(used=3 * GIB)), processes=process_table(daemon))
    assert findings(report)[key()].holds.kind == "none"


def test_unlisted_clients_of_an_mps_server_are_peers() -> None:
    """They have no row by design; the server has the memory, or some of it."""
    server = process(
        2000, exe="/usr/bin/nvidia-cuda-mps-server", unit="nvidia-mps.service", holds=OPEN, numbers=(2000,)
    )
    served = process_table(server, trainer(4000))
    report = cycles(0, nvml=nvml(gpu(used=6 * GIB, rows=(row(2000, GIB),))), processes=served)
    assert findings(report)[key()].holds.kind == "live_peer"


def test_a_process_that_does_not_get_to_its_end_explains_the_memory() -> None:
    """Its files are closed and its row is gone; it was on the GPU: told by the stuck process."""
    alive = trainer(4000, numbers=(4000,))
    listed = cycles(
        0, nvml=nvml(gpu(used=9 * GIB, rows=(row(4000, 9 * GIB),))), processes=process_table(alive)
    )
    dying = replace(alive, state="D", exiting=True, holds=(), numbers=())
    report = cycles(315, listed, nvml=nvml(gpu(used=9 * GIB)), processes=process_table(dying))
    found = findings(report)[key()]
    assert (found.holds.kind, found.holds.processes) == ("none", (dying.id,))
    assert found.explained_by is FindingName.STUCK_PROCESS


def test_an_orphan_that_holds_it_is_its_cause() -> None:
    """The pod is gone, a worker keeps its files open: told as an orphan, and not counted twice."""
    left = process_table(trainer(4001))
    report = cycles(315, nvml=nvml(gpu(used=3 * GIB)), processes=left, pods=(pod("other", uid=pod_uid(9)),))
    found = findings(report)[key()]
    assert (found.holds.kind, found.explained_by) == ("fd_only", FindingName.ORPHAN_PROCESS)


# --- how much -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "total", "leaked"),
    [
        pytest.param(DRIVERS + 512 * MIB, 16 * GIB, False, id="512 MiB is not more than 512 MiB"),
        pytest.param(DRIVERS + 513 * MIB, 16 * GIB, True, id="513 MiB is"),
        pytest.param(DRIVERS + 1600 * MIB, 80 * GIB, False, id="2 % of a large GPU is more"),
        pytest.param(DRIVERS + 1700 * MIB, 80 * GIB, True, id="and counts when exceeded"),
    ],
)
def test_the_threshold_is_the_larger_of_bytes_and_share(used: int, total: int, leaked: bool) -> None:
    """On a GPU max(512 MiB, 2 %), beyond the driver's own share."""
    report = cycles(0, nvml=nvml(gpu(frame_buffer=memory(used, total=total))))
    assert (key() in findings(report)) == leaked
    assert (key() in clear(report)) == (not leaked)


def test_the_operator_sets_the_threshold() -> None:
    """A node with a display needs more room."""
    policy = Policy(orphaned_bytes=4 * GIB)
    assert findings(cycles(0, policy=policy, nvml=nvml(gpu(used=3 * GIB)))) == {}


def test_a_base_load_that_moves_with_the_first_client_is_the_driver_s() -> None:
    """Without persistence an idle GPU uses 3 MiB, with the first client 300: none of that is a leak."""
    idle = cycles(300, nvml=nvml(gpu(used=3 * MIB)))
    busy = trainer(4000, numbers=(4000,))
    report = cycles(
        300, idle, nvml=nvml(gpu(used=1324 * MIB, rows=(row(4000, GIB),))), processes=process_table(busy)
    )
    assert findings(report) == {}
    assert key() in clear(report)


def test_a_smaller_total_is_no_use() -> None:
    """ECC takes a part of the total; what is used does not change."""
    whole = cycles(300, nvml=nvml(gpu(frame_buffer=memory(4 * MIB, total=80 * GIB))))
    assert findings(cycles(300, whole, nvml=nvml(gpu(frame_buffer=memory(4 * MIB, total=75 * GIB))))) == {}


# --- MIG ----------------------------------------------------------------------------------------------------


def divided(*, first: int = 0, shared: int = 0, rows: tuple[Any, ...] = ()) -> Gpu:
    """A GPU with instance 1 of its own memory, and instance 2 that two MIG devices share."""
    return gpu(
        used=40 * GIB,
        mig_enabled=True,
        instances=(
            mig_instance(1, 0, used=first),
            mig_instance(2, 0, used=shared, profile="1c.2g.20gb"),
            mig_instance(2, 1, used=shared, profile="1c.2g.20gb"),
        ),
        rows=rows,
    )


def test_each_gpu_instance_is_judged_once_and_the_parent_never() -> None:
    """Two MIG devices of one instance share its memory: the instance is the subject, and neither of them."""
    report = cycles(0, nvml=nvml(divided()))
    assert clear(report) == {key(0, 1, 0), key(0, 2)}
    assert not_applicable(report) == {(kind, key(), "mig_parent") for kind in KINDS}


def test_a_leak_on_an_instance_is_that_instance_s() -> None:
    """The threshold is max(256 MiB, 5 %) there: 512 MiB of 10 GiB."""
    report = cycles(300, nvml=nvml(divided(first=DRIVERS + 513 * MIB, shared=DRIVERS + 512 * MIB)))
    assert {device: one.active for device, one in findings(report).items()} == {key(0, 1, 0): True}
    report = cycles(300, nvml=nvml(divided(shared=3 * GIB)))
    assert {device: one.holds.kind for device, one in findings(report).items()} == {key(0, 2): "none"}


def test_a_peer_on_another_instance_holds_nothing_here() -> None:
    """Whoever works on instance 1 has nothing to do with what is lost on instance 2."""
    busy = process_table(trainer(4000, numbers=(4000,)))
    rows = (row(4000, 4 * GIB, gi=1, ci=0),)
    report = cycles(0, nvml=nvml(divided(first=4 * GIB, shared=3 * GIB, rows=rows)), processes=busy)
    assert findings(report)[key(0, 2)].holds.kind == "none"


def test_a_client_whose_instance_is_not_known_may_be_the_holder() -> None:
    """It has the GPU and nvidia-uvm open, and which part is in no capability file."""
    report = cycles(0, nvml=nvml(divided(first=3 * GIB)), processes=process_table(trainer(4001)))
    assert findings(report)[key(0, 1, 0)].holds.kind == "fd_only"


# --- not judged ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (gpu(used=9 * GIB, coherent_memory=True), "coherent_memory"),
        (gpu(used=9 * GIB, confidential=True), "confidential"),
        (gpu(used=9 * GIB, virtualization="host_vgpu"), "vgpu_host"),
        (gpu(used=9 * GIB, virtualization="vgpu"), "vgpu_guest"),
        (gpu(frame_buffer=memory(9 * GIB, version=1)), "memory_v1"),
        (replace(gpu(), memory=None), "memory_unsupported"),
        (gpu(used=9 * GIB, rows=(row(4000, None), row(4001, GIB))), "na_rows"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_where_the_figures_mean_something_else_it_does_not_apply(device: Gpu, reason: str) -> None:
    """Neither a leak nor clear, on that GPU only."""
    report = cycles(300, nvml=nvml(device, gpu(1, used=3 * GIB)))
    assert set(findings(report)) == {key(1)}
    assert not_applicable(report) == {(kind, key(), reason) for kind in KINDS}
    assert key() not in clear(report)


def test_a_memory_call_that_failed_is_no_hardware_without_memory() -> None:
    """NOT_SUPPORTED is the hardware's word; any other error is a failure, and unknown."""
    fault = GpuFault(0, key().uuid, "nvmlDeviceGetMemoryInfo", "UNKNOWN")
    report = cycles(0, nvml=nvml(replace(gpu(), memory=None), faults=(fault,)))
    assert undetermined(report) == {(kind, None, "memory:unknown") for kind in KINDS}


@pytest.mark.parametrize(
    ("looks", "reason"),
    [
        ({"nvml": missed()}, "memory:timeout"),
        ({"nvml": nvml(gpu(used=3 * GIB, lost="GPU_IS_LOST", rows=None))}, "memory:gpu_is_lost"),
        ({"nvml": nvml(gpu(used=3 * GIB, rows=None, rows_problem="garbage"))}, "memory:garbage"),
        ({"nvml": nvml(gpu(used=3 * GIB)), "processes": missed()}, "scan:timeout"),
    ],
    ids=["NVML silent", "GPU lost", "no process list", "no scan"],
)
def test_a_leak_that_cannot_be_judged_stays(looks: dict[str, Any], reason: str) -> None:
    """Unknown resolves nothing: it stays active, flagged, and nothing is clear."""
    leaked = cycles(300, nvml=nvml(gpu(used=3 * GIB)))
    report = cycles(15, leaked, **looks)
    found = findings(report)[key()]
    assert (found.active, found.undetermined) == (True, reason)
    assert {(kind, why) for kind, _, why in undetermined(report)} == {(kind, reason) for kind in KINDS}
    assert clear(report) == set()


def test_without_a_scan_by_choice_it_does_not_apply() -> None:
    """The operator does not want the host looked at."""
    report = cycles(0, nvml=nvml(gpu(used=3 * GIB)), processes=OFF)
    assert not_applicable(report) == {(kind, None, "scan:off") for kind in KINDS}
    assert clear(report) == set()


def test_a_process_that_cannot_be_read_may_be_the_holder() -> None:
    """A leak without a visible holder is then of no known kind; a GPU without a leak is clear."""
    partial = seen(process_table(unreadable=(777,)), complete=False)
    report = cycles(300, nvml=nvml(gpu(used=3 * GIB), gpu(1)), processes=partial)
    assert findings(report) == {}
    assert undetermined(report) == {(kind, key(), "whole_scan:incomplete") for kind in KINDS}
    assert clear(report) == {key(1)}


def test_what_is_seen_holds_however_much_is_not() -> None:
    """A visible holder is named though somebody else could not be read; a peer leaves room for one."""
    partial = seen(process_table(trainer(4001), unreadable=(777,)), complete=False)
    held = cycles(0, nvml=nvml(gpu(used=3 * GIB)), processes=partial)
    assert findings(held)[key()].holds.kind == "fd_only"
    assert undetermined(held) == set()

    partial = seen(process_table(trainer(4000, numbers=(4000,)), unreadable=(777,)), complete=False)
    peer = cycles(0, nvml=nvml(gpu(used=30 * GIB, rows=(row(4000, GIB),))), processes=partial)
    assert findings(peer)[key()].holds.kind == "live_peer"
    assert undetermined(peer) == {("fd_only", None, "whole_scan:incomplete")}


def test_forked_workers_of_a_job_that_accounts_for_all_are_silent() -> None:
    """32 compile workers hold the files and use nothing."""
    workers = [trainer(5000 + number, parent=4000) for number in range(32)]
    job = process_table(trainer(4000, numbers=(4000,)), *workers)
    report = cycles(
        300,
        nvml=nvml(gpu(used=20 * GIB + 4 * MIB, rows=(row(4000, 20 * GIB),))),
        processes=job,
        kubelet=kubelet(allocation()),
        pods=(pod(gpus=1),),
    )
    assert report.diagnosis.findings == ()
    assert key() in clear(report)
