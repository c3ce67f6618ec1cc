"""What is remembered from cycle to cycle, and what must be forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exporter import history as module
from exporter.attribution import attribute
from exporter.model import (
    SOURCES,
    Cgroup,
    History,
    Known,
    NodeKind,
    Nvml,
    Off,
    Policy,
    Process,
    Reading,
    Reason,
    Report,
    Snapshot,
    SourceRecord,
    Task,
    Telemetry,
)
from exporter.report import advance
from tests import builders as b

POLICY = Policy()
CUDA = (b.hold(), b.hold(NodeKind.UVM))
STUCK = Task(4000, 10, "nv_close")


def look(cycle: int = 0, **more: object) -> Snapshot:
    """The same quiet node, so many cycles later."""
    seconds = 15.0 * cycle
    return b.snapshot(at=b.NOW + seconds, monotonic=b.MONOTONIC + seconds, **more)  # type: ignore[arg-type]


def fold(*looks: Snapshot, policy: Policy = POLICY) -> History:
    report: Report | None = None
    for one in looks:
        report = advance(policy, report, one)
    assert report is not None
    return report.history


def trainer(**more: object) -> Process:
    made = b.process(pod_uid=b.pod_uid(), container_id=b.container_id(), holds=CUDA)
    return replace(made, **more)  # type: ignore[arg-type]


def known(history: History, pid: int = 4000) -> Known:
    return next(one for one in history.known if one.id.pid == pid)


def listing(*pids: int) -> Nvml:
    return b.nvml(b.gpu(rows=tuple(b.row(pid) for pid in pids)))


# ---------------------------------------------------------------- first sightings


def test_a_number_keeps_its_first_sighting_while_it_is_listed_and_a_while_after() -> None:
    """A process that started later is not the one that NVML lists."""
    gap = int(module.FORGET_ROW // 15)
    (row,) = fold(look(0, nvml=listing(77)), look(gap), look(gap, nvml=listing(77))).rows
    assert (row.first, row.first_monotonic, row.last_monotonic) == (
        b.NOW,
        b.MONOTONIC,
        b.MONOTONIC + 15 * gap,
    )
    (row,) = fold(look(0, nvml=listing(77)), look(gap + 1), look(gap + 2, nvml=listing(77))).rows
    assert row.first_monotonic == b.MONOTONIC + 15 * (gap + 2)


def test_a_silent_nvml_ages_nothing_that_it_would_have_told() -> None:
    """A missed source changes nothing, or a hang of minutes would make a phantom young again."""
    looks = [look(0, nvml=listing(77)), *(look(c, nvml=b.missed()) for c in range(1, 100))]
    (row,) = fold(*looks, look(100, nvml=listing(77))).rows
    assert row.first_monotonic == b.MONOTONIC


def test_a_process_keeps_its_first_name_and_forgets_none_of_its_numbers() -> None:
    """What it calls itself later does not matter; a thread that NVML names may end before it."""
    first = look(0, processes=b.process_table(trainer(numbers=(4000, 4003))))
    second = look(1, processes=b.process_table(trainer(comm="nvidia-smi", numbers=(4000,))))
    one = known(fold(first, second))
    assert (one.comm, one.numbers, one.first) == ("python", (4000, 4003), b.NOW)
    assert one.client


def test_a_process_that_is_gone_is_remembered_for_a_while() -> None:
    """So that a phantom can be called by its last owner."""
    there = look(0, processes=b.process_table(trainer()), pods=(b.pod(),))
    last = int(module.FORGET_PROCESS // 15)
    assert known(fold(there, look(last))).workload.pod == "train-0"
    assert fold(there, look(last + 1)).known == ()


def test_a_half_dead_process_is_remembered_while_it_hangs() -> None:
    """Exiting in the driver it holds nothing: only memory says that it was a client."""
    alive = look(0, processes=b.process_table(trainer()), pods=(b.pod(),))
    dying = trainer(holds=(), state="D", exiting=True, blocked=(STUCK,), cgroup=Cgroup())
    hung = [look(c, processes=b.process_table(dying), pods=(b.pod(),)) for c in range(1, 100)]
    one = known(fold(alive, *hung))
    assert (one.workload.pod, one.client, one.devices) == ("train-0", True, (b.key(),))
    assert one.cgroup.pod_uid == b.pod_uid()
    assert one.still == 99


def test_a_process_that_has_let_go_is_no_longer_watched() -> None:
    """It lives on and uses no GPU: it is forgotten like one that ended."""
    alive = look(0, processes=b.process_table(trainer()))
    idle = [look(c, processes=b.process_table(trainer(holds=()))) for c in range(1, 100)]
    assert fold(alive, *idle).known == ()


# ---------------------------------------------------------------- progress


def _still(*blocked: tuple[Task, ...]) -> int:
    looks = [look(c, processes=b.process_table(trainer(blocked=one))) for c, one in enumerate(blocked)]
    return known(fold(*looks)).still


def test_scans_without_progress_are_counted() -> None:
    """The same thread, ticks and wait channel; any other thing begins again."""
    moved = replace(STUCK, cpu_ticks=11)
    elsewhere = replace(STUCK, wchan="io_schedule")
    assert _still((STUCK,)) == 1
    assert _still(*[(STUCK,)] * 5) == 5
    assert _still((STUCK,), (STUCK,), (moved,)) == 1
    assert _still((STUCK,), (STUCK,), (elsewhere,)) == 1
    assert _still((STUCK,), (), (STUCK,)) == 1
    assert _still((STUCK, replace(STUCK, tid=4001)), (replace(STUCK, tid=4001),)) == 2


def test_a_missed_scan_counts_neither_way() -> None:
    """It is no read without progress and no progress."""
    hung = b.process_table(trainer(blocked=(STUCK,)))
    looks = (look(0, processes=hung), look(1, processes=b.missed()), look(2, processes=hung))
    assert known(fold(*looks)).still == 2


# ---------------------------------------------------------------- other worlds


@pytest.mark.parametrize("change", ["boot", "driver"])
def test_another_boot_or_driver_empties_what_it_makes_meaningless(change: str) -> None:
    """A pid of another boot is another process, a baseline of another driver none. Counters stay."""
    table = b.process_table(trainer())
    nvml = b.nvml(b.gpu(rows=(b.row(4000),), used=2 * b.GIB, telemetry=Telemetry(utilization=0.5)))
    before = fold(look(0, nvml=nvml, processes=table, pods=(b.pod(),), kubelet=b.missed()))
    assert before.rows
    assert before.known
    assert before.baselines
    assert before.last_active
    other: dict[str, object] = {"nvml": b.nvml(b.gpu(7)), "processes": b.process_table(boot_id="another")}
    if change == "driver":
        other = {"nvml": replace(b.nvml(b.gpu(7)), driver_version="580.1"), "processes": b.process_table()}
    after = fold(look(0, nvml=nvml, processes=table, pods=(b.pod(),), kubelet=b.missed()), look(1, **other))
    assert (after.rows, after.known, after.last_active) == ((), (), ())
    assert [key.uuid for key, _ in after.baselines] == [b.gpu_uuid(7)]
    assert [gpu.uuid for gpu in after.inventory] == [b.gpu_uuid(7)]
    assert bool(after.pods) == (change == "driver")
    assert after.cycles == 2
    errors = {record.source: dict(record.errors) for record in after.sources}
    assert errors["kubelet"][Reason.TIMEOUT] == 1


@pytest.mark.parametrize("source", ["nvml", "processes"])
def test_a_missed_source_is_no_other_boot_or_driver(source: str) -> None:
    """Silence forgets nothing."""
    first = look(0, nvml=listing(4000), processes=b.process_table(trainer()))
    after = fold(first, look(1, **{source: b.missed()}))
    assert after.rows
    assert after.known
    assert (after.boot_id, after.driver_version) == (b.process_table().boot_id, b.nvml().driver_version)


def test_an_index_is_kept_for_the_boot() -> None:
    """NVML renumbers when a GPU drops off the bus: series must not change hands."""
    second = b.nvml(replace(b.gpu(1), index=0))
    after = fold(look(0, nvml=b.nvml(b.gpu(0), b.gpu(1))), look(1, nvml=second))
    assert dict(after.indices) == {b.gpu_uuid(0): 0, b.gpu_uuid(1): 1}


def test_a_lost_gpu_keeps_what_it_was_cut_into() -> None:
    """NVML says nothing of its instances any more, and holders are still on them."""
    cut = b.gpu(mig_enabled=True, instances=(b.mig_instance(1),))
    lost = b.gpu(lost="NVML_ERROR_GPU_IS_LOST", rows=None)
    (gpu,) = fold(look(0, nvml=b.nvml(cut)), look(1, nvml=b.nvml(lost))).inventory
    assert gpu.instances == (b.key(0, 1, 0),)


def test_gpus_that_were_not_reached_are_kept_and_those_that_are_gone_are_not() -> None:
    """NVML in part is not NVML in whole."""
    both = look(0, nvml=b.nvml(b.gpu(0), b.gpu(1)))
    part = look(1, nvml=b.seen(b.nvml(b.gpu(0)), complete=False))
    assert [gpu.index for gpu in fold(both, part).inventory] == [0, 1]
    assert [gpu.index for gpu in fold(both, look(1, nvml=b.nvml(b.gpu(0)))).inventory] == [0]


def test_last_activity_is_the_last_utilisation_above_nothing() -> None:
    """Idle, unsupported and silence leave it where it was."""
    busy = b.nvml(b.gpu(telemetry=Telemetry(utilization=0.01)))
    mute = b.nvml(b.gpu(telemetry=Telemetry()))
    after = fold(look(0, nvml=busy), look(1), look(2, nvml=mute), look(3, nvml=b.missed()))
    assert after.last_active == ((b.gpu_uuid(0), b.NOW),)
    assert fold(look(0), look(1, nvml=mute)).last_active == ()


# ---------------------------------------------------------------- bounds


def test_a_storm_of_processes_is_bounded_and_counted() -> None:
    """20,000 rows cost what the bound says, and what is dropped is told."""
    storm = look(1, nvml=listing(*range(10_000, 30_000)))
    policy = Policy(remember=1_000)
    after = module.remember(policy, History(), storm, attribute(policy, History(), storm))
    assert len(after.rows) == 1_000
    assert after.forgotten == 19_000


def test_a_storm_does_not_drive_out_those_who_were_there_before() -> None:
    """The trainer that hangs is older than the storm, and its age is what a finding is made of."""
    holders = tuple(b.process(pid, holds=CUDA, numbers=(pid,)) for pid in range(10_000, 10_200))
    calm = look(0, nvml=listing(4000), processes=b.process_table(trainer(numbers=(4000,))))
    storm = look(
        1,
        nvml=listing(4000, *range(10_000, 10_200)),
        processes=b.process_table(trainer(numbers=(4000,)), *holders),
    )
    after = fold(calm, storm, policy=Policy(remember=50))
    assert (len(after.rows), len(after.known)) == (50, 50)
    assert next(row for row in after.rows if row.pid == 4000).first == b.NOW
    assert known(after).first == b.NOW


# ---------------------------------------------------------------- sources


def _record(history: History, source: str) -> SourceRecord:
    return next(one for one in history.sources if one.source == source)


def test_counters_exist_from_the_first_cycle_and_only_grow() -> None:
    """Every reason at 0, for every source that is on."""
    first = fold(look(0, node=Off()))
    assert {record.source for record in first.sources} == set(SOURCES)
    assert dict(_record(first, "nvml").errors) == dict.fromkeys(Reason, 0)
    assert (_record(first, "node").up, _record(first, "node").errors) == (None, ())
    silent: Reading[Nvml] = b.missed(Reason.DENIED, detail="no")
    after = fold(look(0), look(1, nvml=silent), look(2, nvml=silent), look(3, nvml=b.missed()))
    record = _record(after, "nvml")
    assert dict(record.errors) == dict.fromkeys(Reason, 0) | {Reason.DENIED: 2, Reason.TIMEOUT: 1}
    assert (record.up, record.last_success) == (False, b.NOW)
    back = _record(fold(look(0), look(1, nvml=silent), look(2)), "nvml")
    assert (back.up, back.detail, dict(back.errors)[Reason.DENIED]) == (True, "", 1)


def test_the_kubelet_settles_a_while_after_its_last_partial_list() -> None:
    """Its word that a pod is not there counts from then on."""
    part = b.seen(b.kubelet(), complete=False)
    after = fold(look(0), look(1, kubelet=part), look(2, kubelet=part), look(3))
    assert after.kubelet_settled == b.MONOTONIC + 30 + POLICY.kubelet_restart_grace
    assert after.kubelet_heard == b.MONOTONIC + 45
    assert fold(look(0)).kubelet_settled is None
    assert fold(look(0), look(1, kubelet=b.missed())).kubelet_heard == b.MONOTONIC
