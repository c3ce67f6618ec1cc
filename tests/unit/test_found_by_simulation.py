"""Stories that tests/simulation came upon, in as few frames as each needs."""

from dataclasses import replace
from typing import Any

from exporter.model import (
    Cgroup,
    ContainerDev,
    ContainerView,
    Diagnosis,
    FindingName,
    NodeKind,
    Pods,
    Policy,
    Process,
    ProcessId,
    Reason,
    Report,
    Snapshot,
)
from exporter.report import advance
from tests import builders as build

ORPHAN, HIDDEN, PHANTOM, IDLE, EXPOSED = (
    FindingName.ORPHAN_PROCESS,
    FindingName.HIDDEN_HOLDER,
    FindingName.PHANTOM_PROCESS,
    FindingName.IDLE_ALLOCATION,
    FindingName.VISIBLE_NOT_ALLOCATED,
)
CUDA = (build.hold(descriptors=2, mappings=2), build.hold(NodeKind.UVM, mappings=1))
OLD = 100  # the pid of whatever the story is about


def look(second: float, *processes: Process, row: bool = True, **sources: Any) -> Snapshot:
    """One GPU, given to the first pod, `second` seconds on; `row`: NVML lists the old process."""
    rows = (build.row(OLD),) if row else ()
    quiet: dict[str, Any] = {
        "nvml": build.seen(build.nvml(build.gpu(rows=rows)), at=build.NOW + second),
        "processes": build.process_table(*processes),
        "kubelet": build.kubelet(build.allocation()),
        "pods": build.seen(Pods((build.pod(),)), at=build.NOW + second),
    }
    return build.snapshot(at=build.NOW + second, monotonic=build.MONOTONIC + second, **(quiet | sources))


def fold(*looks: Snapshot) -> list[Diagnosis]:
    report: Report | None = None
    found = []
    for one in looks:
        report = advance(Policy(), report, one)
        found.append(report.diagnosis)
    return found


def told(diagnosis: Diagnosis, name: FindingName) -> list[tuple[str, bool, str]]:
    """Kind, whether it counts, and why it could not be judged."""
    return [
        (f.holds.kind, f.active, f.undetermined)
        for f in diagnosis.findings
        if f.holds.subject.finding is name
    ]


def process(*, container: int = 1, deleted: bool = False, numbers: tuple[int, ...] = (OLD,)) -> Process:
    place = Cgroup(build.pod_uid(), build.container_id(container), deleted=deleted)
    # It is older than the first pod's container, which has run for an hour.
    return replace(build.process(OLD, cgroup=place, holds=CUDA, numbers=numbers), cpu_ticks=7)


def test_a_kind_that_waits_for_longer_does_not_hold_up_another() -> None:
    """The control group of a process is gone for a minute and its pod is gone too: the first counts now."""
    looks = [
        look(
            second,
            process(deleted=True),
            pods=build.seen(Pods(()), at=build.NOW + second),
            kubelet=build.kubelet(),
        )
        for second in (0, 15, 30, 45, 60, 75)
    ]
    assert told(fold(*looks)[-1], ORPHAN) == [("cgroup_deleted", True, "")]


def test_a_client_whose_files_cannot_be_read_is_not_cleared() -> None:
    """A process without a row counts for the files that it holds; then they cannot be read for a while."""
    held = process(numbers=())
    hidden = replace(held, holds=(), unread=("fd", "maps"))
    looks = [look(second, held, row=False) for second in (0, 15, 30, 45, 60)]
    partial = build.seen(build.process_table(hidden, unreadable=(OLD,)), complete=False)
    *_, before, after = fold(*looks, look(75, row=False, processes=partial))
    assert told(before, HIDDEN) == [("unlisted", True, "")]
    assert [(kind, active) for kind, active, why in told(after, HIDDEN) if why] == [("unlisted", True)]


def test_a_crash_loop_does_not_clear_what_an_earlier_container_left() -> None:
    """A process of the last container lives, and the one in its place crashes for want of its memory."""
    logs = (build.pod_name(),)  # names the old container, which the API no longer does
    running = build.container_status(identity=build.container_id(2), started_at=build.NOW - 60)
    waiting = replace(running, running=False, started_at=None)
    up, down = (Pods((build.pod(containers=(one,)),)) for one in (running, waiting))
    old = replace(process(), id=ProcessId(OLD, int((build.MONOTONIC - 3600) * build.TICKS)))
    looks = [
        look(second, old, pods=build.seen(up, at=build.NOW + second), pod_names=logs)
        for second in (0, 15, 30, 45, 60)
    ]
    looks.append(look(75, old, pods=build.seen(down, at=build.NOW + 75), pod_names=logs))
    *_, before, after = fold(*looks)
    assert told(before, ORPHAN) == [("stale_container", True, "")]
    assert told(after, ORPHAN) == [("stale_container", True, "container_not_running")]


def test_a_row_of_the_dead_outlives_who_held_it() -> None:
    """The last worker that inherited a dead process' files ends in a cycle without NVML."""
    heir = replace(
        build.process(101, pod_uid=build.pod_uid(), container_id=build.container_id(), holds=(build.hold(),)),
        parent=1,
    )
    looks = [
        look(second, heir, processes=build.process_table(heir, missing=(OLD,)))
        for second in range(0, 150, 15)
    ]
    silent = look(150, nvml=build.missed(Reason.TIMEOUT))
    *_, before, after = fold(*looks, silent)
    assert told(before, PHANTOM) == [("held", True, "")]
    assert told(after, PHANTOM) == [("held", True, "rows:timeout")]


def test_a_kubelet_that_restarts_does_not_end_an_idle_allocation() -> None:
    """Its empty first list says nothing of a pod that lives: what it had said before is unknown, not over."""
    idler = build.process(OLD, pod_uid=build.pod_uid(), container_id=build.container_id())
    looks = [look(second, idler, row=False) for second in range(0, 3630, 15)]
    silent = [
        look(second, idler, row=False, kubelet=build.seen(build.kubelet(), complete=False))
        for second in range(3630, 3630 + 75, 15)  # beyond the minute for which the last word holds
    ]
    *_, last = fold(*looks, *silent)
    assert [(kind, active) for kind, active, _ in told(last, IDLE)] == [("no_client", True)]


def test_what_a_pod_left_behind_is_not_judged_by_what_its_successor_was_given() -> None:
    """A stuck process keeps a container of a replaced pod alive; it sees the GPU that was its own."""
    old = build.process(OLD, pod_uid=build.pod_uid(2), container_id=build.container_id(2), holds=CUDA)
    view = ContainerView(build.pod_uid(2), build.container_id(2), (build.device_node(),))
    logs = (build.pod_name(uid=build.pod_uid(2)),)
    looks = [
        look(
            second,
            old,
            row=False,
            container_dev=ContainerDev((view,)),
            kubelet=build.kubelet(),
            pod_names=logs,
        )
        for second in range(0, 120, 15)
    ]
    assert told(fold(*looks)[-1], EXPOSED) == []
