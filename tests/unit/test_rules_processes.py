"""What each kind of finding about processes holds on, what it must not hold on, and what nobody can know."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.model import (
    Cgroup,
    ContainerKind,
    DeviceKey,
    Finding,
    FindingName,
    Hold,
    NodeKind,
    Policy,
    Process,
    Reason,
    Report,
    Snapshot,
    Task,
    Visibility,
)
from exporter.report import advance
from tests import builders as build

PHANTOM, STUCK, ORPHAN, EXTERNAL, HIDDEN = (
    FindingName.PHANTOM_PROCESS,
    FindingName.STUCK_PROCESS,
    FindingName.ORPHAN_PROCESS,
    FindingName.EXTERNAL_PROCESS,
    FindingName.HIDDEN_HOLDER,
)
OURS = (PHANTOM, STUCK, ORPHAN, EXTERNAL, HIDDEN)
CUDA = (build.hold(descriptors=2, mappings=2), build.hold(NodeKind.UVM, mappings=1))
INHERITED = (build.hold(), build.hold(NodeKind.UVM))
GIVEN = build.kubelet(build.allocation())


def trainer(pid: int = 100, *, holds: tuple[Hold, ...] = CUDA, pod: int = 1, **changes: Any) -> Process:
    base = build.process(
        pid, pod_uid=build.pod_uid(pod), container_id=build.container_id(pod), holds=holds, parent=90
    )
    return replace(base, **changes)


def worker(pid: int, parent: int, **changes: Any) -> Process:
    return trainer(pid, holds=INHERITED, parent=parent, **changes)


def session(pid: int = 700, **changes: Any) -> Process:
    return replace(build.process(pid, unit="session-4.scope", holds=CUDA), **changes)


def look(second: float, *processes: Process, rows: tuple[int, ...] | None = (), **sources: Any) -> Snapshot:
    """The node `second` seconds on: one GPU, given to the first pod, and NVML's rows for `rows`."""
    listed = None if rows is None else tuple(build.row(pid) for pid in rows)
    numbered = [replace(one, numbers=one.numbers or _own(one, rows)) for one in processes]
    quiet: dict[str, Any] = {
        "nvml": build.nvml(build.gpu(rows=listed)),
        "processes": build.process_table(*numbered),
        "kubelet": GIVEN,
        "pods": (build.pod(),),
        "at": build.NOW + second,
        "monotonic": build.MONOTONIC + second,
    }
    return build.snapshot(**(quiet | sources))


def _own(process: Process, rows: tuple[int, ...] | None) -> tuple[int, ...]:
    return (process.id.pid,) if process.id.pid in (rows or ()) else ()


def play(*looks: Snapshot) -> Report:
    report: Report | None = None
    for one in looks:
        report = advance(Policy(), report, one)
    assert report is not None
    return report


def findings(*looks: Snapshot) -> list[Finding]:
    """Those of ours after the last look, whether they count yet or not."""
    return [one for one in play(*looks).diagnosis.findings if one.holds.subject.finding in OURS]


def found(*looks: Snapshot) -> set[tuple[FindingName, str, int]]:
    return {(one.holds.subject.finding, one.holds.kind, one.holds.pid) for one in findings(*looks)}


def doubts(*looks: Snapshot) -> set[tuple[FindingName, str, str]]:
    return {
        (one.finding, one.kind, one.reason)
        for one in play(*looks).diagnosis.undetermined
        if one.finding in OURS
    }


def evidence(*looks: Snapshot) -> str:
    return "\n".join(line for one in findings(*looks) for line in one.holds.evidence)


# --- phantom ------------------------------------------------------------------------------------------------


def test_a_row_without_a_process_is_an_unheld_phantom() -> None:
    assert found(look(0, rows=(4711,))) == {(PHANTOM, "unheld", 4711)}


def test_a_row_of_no_bytes_is_no_phantom_and_one_without_a_figure_is() -> None:
    rows = (build.row(4711, 0), build.row(4712, None))
    (one,) = findings(look(0, nvml=build.nvml(build.gpu(rows=rows))))
    assert (one.holds.pid, one.holds.memory) == (4712, None)


def test_a_phantom_has_the_name_of_whom_it_was_seen_alive() -> None:
    (one,) = findings(look(0, trainer(), rows=(100,)), look(15, rows=(100,)))
    assert (one.holds.workload, one.holds.pod_uid, one.holds.comm) == (
        build.TRAINER,
        build.pod_uid(),
        "python",
    )


def test_a_phantom_is_held_by_those_that_inherited_its_files() -> None:
    before = look(0, trainer(), worker(101, 100), rows=(100,))
    after = look(15, worker(101, 90), rows=(100,))
    assert found(before, after) == {(PHANTOM, "held", 100), (HIDDEN, "unlisted", 101)}
    assert "pid 101 (python) still has its files open" in evidence(before, after)


def test_workers_of_a_living_job_hold_no_phantom() -> None:
    """Else the remedy would end them."""
    living = (trainer(200), worker(201, 200))
    assert found(look(0, *living, rows=(200, 4711))) == {(PHANTOM, "unheld", 4711)}


def test_an_unlisted_process_with_a_mapping_of_its_own_may_be_the_row() -> None:
    """nvidia-uvm's mapping is not copied by fork; older drivers list a thread that may have ended."""
    looks = (look(0, trainer(), rows=(4711,)),)
    assert found(*looks) == set()
    assert doubts(*looks) == {(PHANTOM, "held", "thread_id"), (HIDDEN, "unlisted", "thread_id")}


def test_a_listed_process_with_a_mapping_is_not_the_row_of_another() -> None:
    assert found(look(0, trainer(), rows=(100, 4711))) == {(PHANTOM, "unheld", 4711)}


def test_a_thread_that_nvml_lists_is_its_process_also_when_it_has_ended() -> None:
    listed = trainer(numbers=(131,))
    assert found(look(0, listed, rows=(131,)), look(15, trainer(), rows=(131,))) == set()


def _born(second: float, **changes: Any) -> Process:
    """A shell that began `second` seconds after the first look, with the number of an older row."""
    start = int((build.MONOTONIC + second) * build.TICKS)
    return replace(build.process(4711, start=start, comm="bash", unit="session-3.scope"), **changes)


def test_a_row_that_is_older_than_its_process_is_an_alias() -> None:
    looks = (look(0, rows=(4711,)), look(15, rows=(4711,)), look(30, _born(20), rows=(4711,)))
    assert found(*looks) == {(PHANTOM, "aliased", 4711)}


@pytest.mark.parametrize("changes", [{"holds": CUDA}, {"exiting": True}, {"state": "Z"}])
def test_a_process_that_holds_or_held_something_is_no_alias(changes: dict[str, Any]) -> None:
    looks = (look(0, rows=(4711,)), look(30, _born(20, **changes), rows=(4711,)))
    assert PHANTOM not in {name for name, _, _ in found(*looks)}


def test_an_alias_whose_files_cannot_be_read_is_undetermined() -> None:
    looks = (look(0, rows=(4711,)), look(30, _born(20, unread=("fd",)), rows=(4711,)))
    assert (PHANTOM, "aliased", "process_unread") in doubts(*looks)


def test_a_row_as_old_as_its_process_is_no_alias() -> None:
    assert (PHANTOM, "aliased", 4711) not in found(look(30, _born(29), rows=(4711,)))


# --- stuck --------------------------------------------------------------------------------------------------


def asleep(ticks: int = 5, wchan: str = "rm_ioctl", tid: int = 100) -> tuple[Task, ...]:
    return (Task(tid, ticks, wchan),)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"state": "D", "kill_pending": True}, "kill_pending"),
        ({"state": "S", "kill_pending": True, "wchan": "do_freezer_trap"}, "kill_pending"),
        ({"state": "T", "kill_pending": True}, "kill_pending"),
        ({"state": "D", "exiting": True, "kill_pending": True}, "exiting"),  # it has taken the signal
        ({"state": "Z", "threads": 2}, "zombie_leader"),
        ({"state": "Z"}, "zombie"),
    ],
)
def test_what_one_look_at_a_listed_process_shows(changes: dict[str, Any], kind: str) -> None:
    assert found(look(0, trainer(**changes), rows=(100,))) == {(STUCK, kind, 100)}


@pytest.mark.parametrize(
    ("wchan", "kind"),
    [
        ("rm_ioctl", "uninterruptible_driver"),
        ("os_acquire_rwlock_write", "uninterruptible_driver"),
        ("nvidia_ioctl", "uninterruptible_driver"),
        ("uvm_va_space_destroy", "uninterruptible_driver"),
        ("io_schedule", "uninterruptible_other"),
        ("nfs_wait_bit_killable", "uninterruptible_other"),
        ("nvme_wait_freeze", "uninterruptible_other"),
        ("", "uninterruptible_other"),
    ],
)
def test_a_sleep_that_does_not_move_is_told_by_where_it_sleeps(wchan: str, kind: str) -> None:
    """Wait channels of the driver can be rebuilt only from recorded /proc."""
    sleeping = trainer(state="D", blocked=asleep(wchan=wchan))
    assert found(look(0, sleeping)) == {(HIDDEN, "unlisted", 100)}
    assert (STUCK, kind, 100) in found(look(0, sleeping), look(15, sleeping))


def test_any_thread_counts() -> None:
    sleeping = trainer(blocked=(*asleep(tid=140), *asleep(7, tid=141)))
    moved = trainer(blocked=(*asleep(6, tid=140), *asleep(7, tid=141)))
    looks = (look(0, sleeping, rows=(100,)), look(15, moved, rows=(100,)))
    assert found(*looks) == {(STUCK, "uninterruptible_driver", 100)}
    assert "thread 141" in evidence(*looks)


@pytest.mark.parametrize(
    "after",
    [
        {"blocked": asleep(6)},  # its CPU time went on
        {"blocked": asleep(wchan="futex_wait")},
        {"blocked": asleep(tid=101)},
        {"blocked": ()},
        {"blocked": asleep(), "dumping": True},
        {"blocked": asleep(), "state": "t"},
        {"blocked": asleep(), "state": "T"},
        {"blocked": asleep(), "wchan": "__refrigerator"},
    ],
)
def test_sleeps_that_move_and_those_that_should_not_are_none(after: dict[str, Any]) -> None:
    before = trainer(state="D", blocked=asleep())
    assert found(look(0, before, rows=(100,)), look(15, replace(before, **after), rows=(100,))) == set()


def test_a_frozen_thread_is_not_stuck() -> None:
    frozen = trainer(state="D", blocked=asleep(wchan="__refrigerator"))
    assert found(look(0, frozen, rows=(100,)), look(15, frozen, rows=(100,))) == set()


def test_a_sleep_counts_at_the_fifth_look_and_after_two_minutes() -> None:
    sleeping = trainer(state="D", blocked=asleep())

    def active(seconds: list[int]) -> bool:
        return any(one.active for one in findings(*(look(s, sleeping, rows=(100,)) for s in seconds)))

    assert not active([0, 60, 120, 180])
    assert active([0, 60, 120, 180, 240])
    assert not active(list(range(0, 135, 15)))
    assert active(list(range(0, 150, 15)))


@pytest.mark.parametrize("changes", [{"state": "Z"}, {"state": "Z", "threads": 1, "parent": 1}])
def test_a_plain_zombie_is_nothing(changes: dict[str, Any]) -> None:
    assert found(look(0, trainer(holds=(), **changes))) == set()


def test_a_process_that_was_never_on_a_gpu_is_not_ours() -> None:
    shim = build.process(90, state="D", comm="containerd-shim", unit="containerd.service")
    assert (
        found(look(0, replace(shim, kill_pending=True)), look(15, replace(shim, kill_pending=True))) == set()
    )


def test_an_ending_process_without_files_is_known_by_what_it_held() -> None:
    gone = trainer(holds=(), state="D", exiting=True)
    hung: dict[str, Any] = {"nvml": build.missed(Reason.BUSY)}
    (one,) = findings(look(0, trainer(), rows=(100,)), look(15, gone, **hung))
    assert (one.holds.kind, one.holds.subject.device, one.holds.workload) == (
        "exiting",
        build.key(),
        build.TRAINER,
    )


def test_an_ending_process_is_known_for_hours() -> None:
    gone = trainer(holds=(), state="D", exiting=True)
    hung: dict[str, Any] = {"nvml": build.missed(Reason.BUSY)}
    looks = [look(600 * i, gone, **hung) for i in range(1, 12)]
    assert found(look(0, trainer(), rows=(100,)), *looks) == {(STUCK, "exiting", 100)}


def test_a_process_that_left_the_gpu_is_stuck_elsewhere() -> None:
    """It can be looked at, and it holds nothing of the driver's any more."""
    sleeping = trainer(holds=(), state="D", blocked=asleep(wchan="io_schedule"))
    looks = (look(0, trainer(), rows=(100,)), look(15, sleeping), look(30, sleeping))
    assert found(*looks) == set()


def test_a_stuck_process_is_found_with_nvml_hung() -> None:
    hung: dict[str, Any] = {"nvml": build.missed(Reason.BUSY)}
    dying = trainer(state="D", kill_pending=True)
    assert found(look(0, trainer(), rows=(100,)), look(15, dying, **hung)) == {(STUCK, "kill_pending", 100)}


def test_whether_a_zombie_is_listed_is_not_known_with_nvml_hung() -> None:
    dead = trainer(holds=(), state="Z")
    hung: dict[str, Any] = {"nvml": build.missed(Reason.BUSY)}
    looks = (look(0, trainer(), rows=(100,)), look(15, dead, rows=(100,)), look(30, dead, **hung))
    (one,) = findings(*looks)
    assert (one.holds.kind, one.undetermined) == ("zombie", "rows:busy")
    assert found(*looks, look(45, dead)) == set()


def test_our_own_children_are_not_stuck() -> None:
    child = build.process(51, state="D", parent=50, holds=(build.hold(),))
    table = replace(build.process_table(replace(child, kill_pending=True)), agent=50)
    assert found(look(0, processes=table)) == set()


def test_a_child_of_pid_0_is_not_taken_for_ours() -> None:
    dying = trainer(parent=0, kill_pending=True)
    assert found(look(0, dying, rows=(100,))) == {(STUCK, "kill_pending", 100)}


# --- orphan -------------------------------------------------------------------------------------------------


def orphans(*looks: Snapshot) -> set[tuple[str, int]]:
    return {(kind, pid) for name, kind, pid in found(*looks) if name is ORPHAN}


ALIVE = look(0, trainer(), rows=(100,))
GONE: dict[str, Any] = {"rows": (100,), "kubelet": build.kubelet(), "pods": ()}


def test_a_pod_that_both_deny_is_gone() -> None:
    (one,) = findings(ALIVE, look(15, trainer(), **GONE))
    assert (one.holds.kind, one.holds.workload, one.holds.pod_uid) == (
        "pod_gone",
        build.TRAINER,
        build.pod_uid(),
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({"kubelet": build.missed(Reason.UNAVAILABLE)}, "settled_list:unavailable"),
        ({"kubelet": build.seen(build.kubelet(), complete=False)}, "settled_list:incomplete"),
        ({"pods": build.missed(Reason.TIMEOUT)}, "pods:timeout"),
        ({"processes": build.missed(Reason.BUSY)}, "scan:busy"),
    ],
)
def test_a_pod_is_not_gone_by_the_word_of_one(source: dict[str, Any], reason: str) -> None:
    looks = (ALIVE, look(15, trainer(), **(GONE | source)))
    assert orphans(*looks) == set()
    assert (ORPHAN, "pod_gone", reason) in doubts(*looks)


def test_after_a_restart_of_the_kubelet_nobody_is_gone_for_three_minutes() -> None:
    partial = {"kubelet": build.seen(build.kubelet(), complete=False)}
    looks = [ALIVE, look(15, trainer(), **(GONE | partial))]
    looks += [look(s, trainer(), **GONE) for s in range(30, 195, 15)]
    assert orphans(*looks) == set()
    assert orphans(*looks, look(195, trainer(), **GONE)) == {("pod_gone", 100)}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended(phase: str) -> None:
    assert orphans(look(0, trainer(), rows=(100,), pods=(build.pod(phase=phase),))) == {("pod_terminal", 100)}


@pytest.mark.parametrize(("second", "held"), [(0, False), (30, False), (150, False), (151, True)])
def test_a_pod_is_overdue_two_minutes_after_its_deletion_time(second: float, held: bool) -> None:
    ending = (build.pod(deletion_timestamp=build.NOW + 30),)
    wanted = {("terminating_overdue", 100)} if held else set()
    assert orphans(look(second, trainer(), rows=(100,), pods=ending)) == wanted


def _restarted(process: Process, *, started: float, previous: bool = True) -> Snapshot:
    status = replace(
        build.container_status(identity=build.container_id(8), started_at=build.NOW + started),
        previous_id=build.container_id() if previous else "",
    )
    return look(15, process, rows=(100,), pods=(build.pod(containers=(status,)),))


def test_a_container_that_was_replaced() -> None:
    assert orphans(ALIVE, _restarted(trainer(), started=5)) == {("stale_container", 100)}
    assert orphans(ALIVE, _restarted(trainer(), started=5, previous=False)) == {("stale_container", 100)}


def test_a_container_that_the_api_does_not_know_yet_is_current() -> None:
    young = trainer(id=replace(trainer().id, start=int((build.MONOTONIC + 10) * build.TICKS)))
    newer = replace(young, cgroup=replace(young.cgroup, container_id=build.container_id(9)))
    assert orphans(ALIVE, _restarted(newer, started=5, previous=False)) == set()


@pytest.mark.parametrize("kind", list(ContainerKind))
def test_containers_of_every_kind_are_current(kind: ContainerKind) -> None:
    statuses = (
        build.container_status("other", identity=build.container_id(7)),
        build.container_status("mine", kind=kind, identity=build.container_id(1)),
    )
    assert orphans(look(0, trainer(), rows=(100,), pods=(build.pod(containers=statuses),))) == set()


def test_a_removed_group_is_told_without_the_api() -> None:
    removed = trainer(cgroup=replace(trainer().cgroup, deleted=True))
    looks = (look(0, removed, rows=(100,), pods=build.missed()),)
    assert orphans(*looks) == {("cgroup_deleted", 100)}


@pytest.mark.parametrize(
    "process",
    [
        trainer(parent=1),  # adopted by the container's init, or the host's
        trainer(holds=(build.hold(),)),  # open, but it cannot own memory
        trainer(state="Z", threads=3, cgroup=replace(trainer().cgroup, deleted=True)),
    ],
)
def test_no_orphans(process: Process) -> None:
    assert orphans(look(0, process)) == set()


def test_static_pods_go_by_the_hash_of_their_manifest() -> None:
    mirror = replace(build.pod(), uid=build.pod_uid(5), cgroup_uid=build.pod_uid(1))
    assert orphans(look(0, trainer(), rows=(100,), pods=(mirror,))) == set()


# --- external -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cgroup", "kind"),
    [
        (Cgroup(unit="session-4.scope"), "user_session"),
        (Cgroup(unit="user@1000.service"), "user_session"),
        (Cgroup(unit="ollama.service"), "system_service"),
        (Cgroup(container_id=build.container_id(9)), "other_container"),
        (Cgroup(unit="run-r1.scope"), "unknown"),
        (Cgroup(), "unknown"),
    ],
)
def test_who_works_outside_kubernetes(cgroup: Cgroup, kind: str) -> None:
    assert found(look(0, session(cgroup=cgroup), rows=(700,))) == {(EXTERNAL, kind, 700)}


def test_a_client_outside_is_found_by_its_files_with_nvml_hung() -> None:
    looks = (look(0, session(), rows=(700,)), look(15, session(), nvml=build.missed()))
    assert found(*looks) == {(EXTERNAL, "user_session", 700)}


def daemon(pid: int = 10, *, used: int = 30 * build.MIB, **changes: Any) -> Snapshot:
    base = build.process(
        pid, unit="nvidia-persistenced.service", exe="/usr/bin/nvidia-persistenced", holds=CUDA
    )
    rows = build.nvml(build.gpu(rows=(build.row(pid, used),)))
    return look(0, replace(base, numbers=(pid,), **changes), nvml=rows)


def test_infrastructure_is_excused_up_to_what_it_needs() -> None:
    assert found(daemon()) == set()
    assert found(daemon(used=10 * build.GIB)) == {(EXTERNAL, "system_service", 10)}


def test_infrastructure_is_not_known_by_a_name() -> None:
    forged = daemon(comm="nvidia-persiste", cgroup=Cgroup(unit="session-7.scope"))
    assert found(forged) == {(EXTERNAL, "user_session", 10)}


@pytest.mark.parametrize(
    "process", [session(holds=(build.hold(), build.hold(NodeKind.CONTROL))), session(holds=()), trainer()]
)
def test_watchers_and_pods_are_not_outside(process: Process) -> None:
    assert EXTERNAL not in {name for name, _, _ in found(look(0, process))}


def test_where_a_process_lives_may_not_be_known() -> None:
    looks = (look(0, session(cgroup=Cgroup(), unread=("cgroup",)), rows=(700,)),)
    assert found(*looks) == set()
    assert (EXTERNAL, "unknown", "owner_unknown") in doubts(*looks)


def test_a_dying_process_of_cgroup_v1_has_not_moved_outside() -> None:
    looks = (look(0, trainer(), rows=(100,)), look(15, trainer(state="Z", cgroup=Cgroup()), rows=(100,)))
    assert found(*looks) == {(STUCK, "zombie", 100)}


def test_a_process_with_the_number_of_a_dead_one_is_no_client() -> None:
    looks = (look(0, rows=(4711,)), look(15, rows=(4711,)), look(30, _born(20), rows=(4711,)))
    assert EXTERNAL not in {name for name, _, _ in found(*looks)}


# --- hidden -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("holds", [CUDA, INHERITED, (build.hold(mappings=1, descriptors=0),)])
def test_a_client_that_nvml_does_not_list(holds: tuple[Hold, ...]) -> None:
    assert found(look(0, trainer(holds=holds))) == {(HIDDEN, "unlisted", 100)}


def test_a_monitor_hides_nothing() -> None:
    assert found(look(0, trainer(holds=(build.hold(), build.hold(NodeKind.CONTROL))))) == set()


def test_workers_of_a_listed_process_are_its_own_at_any_depth() -> None:
    looks = look(0, trainer(), worker(101, 100), worker(102, 101), rows=(100,))
    assert found(looks) == set()


def test_a_worker_of_another_pods_process_is_not() -> None:
    other = build.pod("other-0", uid=build.pod_uid(2))
    pods = (build.pod(), replace(other, containers=(build.container_status(identity=build.container_id(2)),)))
    looks = look(0, trainer(), worker(101, 100, cgroup=trainer(pod=2).cgroup), rows=(100,), pods=pods)
    assert found(looks) == {(HIDDEN, "unlisted", 101)}


def test_a_process_that_is_listed_on_another_gpu_does_not_hide_here() -> None:
    """CUDA opens the files of all GPUs that it sees; forked workers inherit them all."""
    both = (*CUDA, build.hold(minor=1))
    gpus = build.nvml(build.gpu(0, rows=(build.row(100),)), build.gpu(1))
    processes = (trainer(holds=both, numbers=(100,)), worker(101, 100))
    (use,) = [
        one
        for one in play(look(0, *processes, nvml=gpus)).attribution.uses
        if one.pid == 100 and one.device == build.key(1)
    ]
    assert use.visibility is Visibility.HOLDER
    assert found(look(0, *processes, nvml=gpus)) == set()


def test_it_may_be_listed_on_a_gpu_that_is_silent() -> None:
    both = (*CUDA, build.hold(minor=1))
    silent = build.nvml(build.gpu(0), build.gpu(1, rows=None, rows_problem="UNKNOWN"))
    looks = (look(0, trainer(holds=both), nvml=silent),)
    assert found(*looks) == set()
    assert (HIDDEN, "unlisted", "rows:unknown") in doubts(*looks)


def test_who_could_not_be_looked_at_may_hide() -> None:
    partial = build.seen(build.process_table(trainer(), unreadable=(666,)), complete=False)
    looks = (look(0, processes=partial),)
    assert found(*looks) == {(HIDDEN, "unlisted", 100)}
    assert (HIDDEN, "unlisted", "whole_scan:incomplete") in doubts(*looks)


def test_findings_are_about_the_device_that_is_held() -> None:
    mig = build.mig_instance(9)
    gpu = build.gpu(mig_enabled=True, instances=(mig,), rows=(build.row(4711, gi=9, ci=0),))
    (one,) = findings(look(0, nvml=build.nvml(gpu)))
    assert one.holds.subject.device == DeviceKey(build.gpu_uuid(0), 9, 0, mig.mig_uuid)
