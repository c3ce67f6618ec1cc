"""The rows *process on device*: NVML's lists, descriptors and mappings, joined by process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exporter.attribution import attribute
from exporter.model import (
    CapabilityNode,
    FileHolders,
    Hold,
    NodeKind,
    Nvml,
    NvmlRow,
    Owner,
    Policy,
    Process,
    ProcessId,
    ProcessTable,
    ProcessUsage,
    Report,
    Snapshot,
    Use,
    Visibility,
    Workload,
)
from exporter.report import advance
from tests import builders as b

TRAIN = Workload("team-a", "train-0", "main")
CUDA = (b.hold(), b.hold(NodeKind.CONTROL), b.hold(NodeKind.UVM))
CAPABILITIES = (
    CapabilityNode(30, 0, 1, None),
    CapabilityNode(31, 0, 1, 0),
    CapabilityNode(40, 0, 2, None),
    CapabilityNode(41, 0, 2, 0),
)
SLICED = b.gpu(mig_enabled=True, instances=(b.mig_instance(1), b.mig_instance(2)))


def trainer(pid: int = 4000, *, holds: tuple[Hold, ...] = CUDA, numbers: tuple[int, ...] = ()) -> Process:
    return b.process(pid, pod_uid=b.pod_uid(), container_id=b.container_id(), holds=holds, numbers=numbers)


def look(nvml: Nvml | None, *processes: Process, seconds: float = 0.0, **table: object) -> Snapshot:
    scanned = b.process_table(*processes)
    return b.snapshot(
        nvml=b.missed() if nvml is None else nvml,
        processes=replace(scanned, capabilities=CAPABILITIES, **table),  # type: ignore[arg-type]
        pods=(b.pod(),),
        kubelet=b.kubelet(b.allocation()),
        at=b.NOW + seconds,
        monotonic=b.MONOTONIC + seconds,
    )


def uses(snapshot: Snapshot, before: Report | None = None) -> tuple[Use, ...]:
    return advance(Policy(), before, snapshot).attribution.uses


def listed(*rows: NvmlRow) -> Nvml:
    return b.nvml(b.gpu(rows=rows))


# ---------------------------------------------------------------- whole GPUs


@pytest.mark.parametrize(
    ("rows", "holds", "visibility", "client", "memory"),
    [
        ((b.row(4000),), CUDA, Visibility.BOTH, True, b.GIB),
        ((b.row(4000, None),), CUDA, Visibility.BOTH, True, None),
        ((b.row(4000),), (), Visibility.NVML, True, b.GIB),
        ((), CUDA, Visibility.HOLDER, True, None),
        ((), (b.hold(), b.hold(NodeKind.CONTROL)), Visibility.HOLDER, False, None),
        ((), (b.hold(descriptors=0, mappings=1),), Visibility.HOLDER, True, None),
    ],
    ids=["both", "memory N/A", "listed only", "CUDA, not listed", "looks only", "mapped only"],
)
def test_a_process_has_one_row_on_a_device(
    rows: tuple[NvmlRow, ...],
    holds: tuple[Hold, ...],
    visibility: Visibility,
    client: bool,
    memory: int | None,
) -> None:
    """By whichever evidence; one that only looks at a GPU is no client of it."""
    (use,) = uses(look(listed(*rows), trainer(holds=holds, numbers=(4000,) if rows else ())))
    assert (use.pid, use.process, use.device) == (4000, ProcessId(4000, 5_000_000), b.key())
    assert (use.visibility, use.client, use.memory) == (visibility, client, memory)
    assert (use.workload, use.owner, use.state) == (TRAIN, Owner.POD, "running")


def test_a_minor_is_no_index() -> None:
    """A holder is on the GPU whose minor it has open, whatever NVML counts."""
    swapped = b.nvml(b.gpu(0, minor=1), b.gpu(1, minor=0))
    (use,) = uses(look(swapped, trainer()))
    assert use.device == b.key(1)


def test_a_control_or_unknown_node_is_no_device() -> None:
    """Nor is a minor of a GPU that nobody has heard of."""
    other = trainer(4001, holds=(b.hold(NodeKind.CONTROL), b.hold(NodeKind.UVM), b.hold(minor=9)))
    assert uses(look(b.nvml(), other)) == ()


def test_an_idle_process_has_no_use_of_the_engines_and_an_unasked_one_no_figure() -> None:
    """NVML leaves idle processes out of its samples: that is 0. Without samples nothing is said."""
    busy = ProcessUsage(4000, 0.5, 0.25, None, None)
    idle = ProcessUsage(4001, 0.0, 0.0, 0.0, 0.0)
    rows = (b.row(4000), b.row(4001))
    both = (trainer(numbers=(4000,)), trainer(4001, numbers=(4001,)))
    found = uses(look(b.nvml(b.gpu(rows=rows, usage=(busy,))), *both))
    assert [use.usage for use in found] == [busy, idle]
    found = uses(look(b.nvml(b.gpu(rows=rows, usage=None)), *both))
    assert [use.usage for use in found] == [None, None]


# ---------------------------------------------------------------- threads


def test_two_thread_rows_are_one_process() -> None:
    """Their memory and their shares of the engines add up, in any order; one N/A makes the sum unknown."""
    usage = (ProcessUsage(4001, 0.5, 0.25, 0.0, None), ProcessUsage(4002, 0.75, 0.25, 0.0, 0.5))
    rows = (b.row(4001, 2 * b.GIB), b.row(4002, b.GIB))
    for order in (rows, rows[::-1]):
        gpu = b.gpu(rows=order, usage=usage)
        (use,) = uses(look(b.nvml(gpu), trainer(numbers=(4001, 4002))))
        assert (use.pid, use.memory) == (4000, 3 * b.GIB)
        assert use.usage is not None
        assert (use.usage.sm, use.usage.memory, use.usage.encoder, use.usage.decoder) == (1.0, 0.5, 0.0, None)
    (use,) = uses(look(listed(b.row(4001, None), b.row(4002)), trainer(numbers=(4001, 4002))))
    assert use.memory is None


def test_a_thread_that_has_ended_still_means_its_process() -> None:
    """The fold is remembered while the process lives."""
    rows = listed(b.row(4007))
    before = advance(Policy(), None, look(rows, trainer(numbers=(4007,))))
    (use,) = uses(look(rows, trainer(), seconds=15, missing=(4007,)), before)
    assert (use.pid, use.process, use.owner) == (4000, ProcessId(4000, 5_000_000), Owner.POD)


def test_a_number_that_was_given_again_means_who_has_it_now() -> None:
    """Not the process whose thread had it before."""
    rows = listed(b.row(4007))
    before = advance(Policy(), None, look(rows, trainer(numbers=(4007,))))
    heir = replace(trainer(4007, numbers=(4007,)), id=ProcessId(4007, 9_000_000))
    found = uses(look(rows, trainer(), heir, seconds=15), before)
    assert [(use.pid, use.visibility) for use in found] == [
        (4000, Visibility.HOLDER),
        (4007, Visibility.BOTH),
    ]


# ---------------------------------------------------------------- phantoms and silence


def test_a_phantom_keeps_its_last_workload_and_has_no_owner() -> None:
    """The on-call must hear whose memory that was, and not that the pod still has a process."""
    rows = listed(b.row(4000))
    before = advance(Policy(), None, look(rows, trainer(numbers=(4000,))))
    (use,) = uses(look(rows, seconds=15, missing=(4000,)), before)
    assert (use.process, use.pid, use.memory, use.client) == (None, 4000, b.GIB, True)
    assert (use.workload, use.pod_uid, use.owner) == (TRAIN, b.pod_uid(), Owner.UNKNOWN)
    assert (use.comm, use.state) == ("python", "")


def test_a_number_that_nobody_ever_knew_is_a_row_of_nobody() -> None:
    """It is on the device all the same."""
    (use,) = uses(look(listed(b.row(77)), missing=(77,)))
    assert (use.process, use.workload, use.owner, use.comm) == (None, Workload(), Owner.UNKNOWN, "")


def test_while_nvml_is_silent_holders_keep_their_device() -> None:
    """Identity does not change because a driver call hangs; memory is not known."""
    before = advance(Policy(), None, look(listed(b.row(4000)), trainer(numbers=(4000,))))
    (use,) = uses(look(None, trainer(), seconds=15), before)
    assert (use.device, use.visibility, use.memory) == (b.key(), Visibility.HOLDER, None)
    assert use.workload == TRAIN


def test_a_name_is_frozen_at_first_sighting() -> None:
    """A process that renames itself starts no new series."""
    before = advance(Policy(), None, look(b.nvml(), trainer()))
    (use,) = uses(look(b.nvml(), replace(trainer(), comm="nvidia-smi"), seconds=15), before)
    assert use.comm == "python"


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"state": "Z"}, "zombie"),
        ({"state": "D", "exiting": True}, "exiting"),
        ({"state": "T"}, "stopped"),
        ({"state": "t"}, "stopped"),
        ({"state": "D"}, "running"),
    ],
)
def test_states_are_told_in_words(change: dict[str, object], state: str) -> None:
    """A short D is no stuck process."""
    (use,) = uses(look(b.nvml(), replace(trainer(), **change)))  # type: ignore[arg-type]
    assert use.state == state


# ---------------------------------------------------------------- MIG


def _caps(*minors: int) -> tuple[Hold, ...]:
    return (*CUDA, *(b.hold(NodeKind.CAPABILITY, minor) for minor in minors))


def test_capability_descriptors_make_rows_of_instances() -> None:
    """The parent's file must be open too, and gets no row beside them; GI access alone opens nothing."""
    (use,) = uses(look(b.nvml(SLICED), trainer(holds=_caps(30, 31))))
    assert use.device == b.key(0, 1, 0)
    found = uses(look(b.nvml(SLICED), trainer(holds=_caps(31, 41))))
    assert [use.device for use in found] == [b.key(0, 1, 0), b.key(0, 2, 0)]
    (use,) = uses(look(b.nvml(SLICED), trainer(holds=_caps(30))))
    assert use.device == b.key()
    assert uses(look(b.nvml(SLICED), trainer(holds=_caps(31)[3:]))) == ()


@pytest.mark.parametrize("ci", [0, None])
def test_no_second_row_for_an_instance_that_nvml_shows(ci: int | None) -> None:
    """Nor for its parent; some drivers leave the compute instance out."""
    nvml = b.nvml(replace(SLICED, rows=(b.row(4000, gi=1, ci=ci),)))
    (use,) = uses(look(nvml, trainer(holds=_caps(31), numbers=(4000,))))
    assert (use.device, use.visibility) == (b.key(0, 1, 0), Visibility.BOTH)
    (use,) = uses(look(nvml, trainer(numbers=(4000,))))
    assert use.device == b.key(0, 1, 0)


def test_an_instance_that_only_a_descriptor_shows_has_its_own_row() -> None:
    """A client of one instance that has another one open is on both: that other one may not be its own."""
    nvml = b.nvml(replace(SLICED, rows=(b.row(4000, gi=1, ci=0),)))
    found = uses(look(nvml, trainer(holds=_caps(31, 41), numbers=(4000,))))
    assert [(use.device, use.visibility) for use in found] == [
        (b.key(0, 1, 0), Visibility.BOTH),
        (b.key(0, 2, 0), Visibility.HOLDER),
    ]


def test_a_row_without_an_instance_stays_on_the_parent() -> None:
    """And its descriptors add no rows that would double it."""
    nvml = b.nvml(replace(SLICED, rows=(b.row(4000),)))
    (use,) = uses(look(nvml, trainer(holds=_caps(31), numbers=(4000,))))
    assert use.device == b.key()


# ---------------------------------------------------------------- device files


def test_holders_are_counted_by_file_and_owner() -> None:
    """Descriptors and mappings of each device file; nothing at all where the host was not scanned."""
    table: ProcessTable = b.process_table(
        trainer(holds=(b.hold(descriptors=2, mappings=1),)),
        trainer(4001, holds=(b.hold(),)),
        b.process(50, holds=(b.hold(), b.hold(NodeKind.CONTROL))),
    )
    known = b.snapshot(processes=table, pods=(b.pod(),))
    assert attribute(Policy(), advance(Policy(), None, known).history, known).holders == (
        FileHolders(b.device_node(NodeKind.CONTROL), Owner.HOST, 1),
        FileHolders(b.device_node(), Owner.HOST, 1),
        FileHolders(b.device_node(), Owner.POD, 4),
    )
    dark = b.snapshot(processes=b.missed())
    assert advance(Policy(), None, dark).attribution.holders is None
