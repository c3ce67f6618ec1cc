"""What a cycle thinks, without asking anybody: join, rules, memory and text of scripted readings."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from exporter.attribution import attribute
from exporter.catalog import FAMILIES
from exporter.diagnosis import diagnose
from exporter.exposition import Format, expose
from exporter.history import forget_other_world, remember
from exporter.model import Cgroup, History, NodeKind, NvmlRow, Policy, Report, Snapshot
from exporter.report import advance
from tests import builders as b
from tests.bench.document import Row, Section, median, ms

BUDGET = 0.025
GPUS, PODS = 16, 250
ROUNDS = 45
STORM, STORM_CYCLES = 2000, 40  # new processes in each cycle, cycles
MINUTE = 15.0

P = ParamSpec("P")
T = TypeVar("T")


def look(clients: int, cycle: int = 0, first: int = 5000, gpus: int = GPUS, pods: int = PODS) -> Snapshot:
    """A node whose clients live in its pods, each on one GPU, each below a shim of its container."""
    rows: list[list[NvmlRow]] = [[] for _ in range(gpus)]
    processes = [b.process(1, start=1, parent=0, comm="systemd")]
    for pid in range(first, first + clients):
        number = (pid - first) % pods
        rows[number % gpus].append(b.row(pid, b.MIB * 64))
        holds = (b.hold(minor=number % gpus), b.hold(NodeKind.CONTROL), b.hold(NodeKind.UVM))
        place = Cgroup(b.pod_uid(number), b.container_id(number))
        processes.append(b.process(pid, parent=pid + 100_000, numbers=(pid,), holds=holds, cgroup=place))
        processes.append(b.process(pid + 100_000, comm="containerd-shim"))
    given = [
        b.allocation(b.gpu_uuid(n % gpus), pod=f"work-{n}", replica=str(n)) for n in range(min(pods, clients))
    ]
    objects = tuple(
        b.pod(
            f"work-{n}",
            uid=b.pod_uid(n),
            containers=(b.container_status(identity=b.container_id(n)),),
        )
        for n in range(pods)
    )
    return b.snapshot(
        nvml=b.nvml(
            *(
                b.gpu(index, rows=tuple(listed), used=len(listed) * b.MIB * 64)
                for index, listed in enumerate(rows)
            )
        ),
        processes=b.process_table(*processes),
        kubelet=b.kubelet(*given),
        pods=objects,
        pod_names=tuple(b.pod_name(f"work-{n}", uid=b.pod_uid(n)) for n in range(pods)),
        at=b.NOW + cycle * MINUTE,
        monotonic=b.MONOTONIC + cycle * MINUTE,
    )


def measure(*, small: bool = False) -> Section:
    """The node of the budget, the worst that it can become, and a storm of forks."""
    rounds = 3 if small else ROUNDS
    usual, worst = _parts(160, rounds), _parts(1000, rounds)
    cycles = 5 if small else STORM_CYCLES
    largest, forgotten, bound, slowest = _storm(cycles)
    judged = usual["join and rules"]
    return Section(
        "Joining and judging",
        (
            Row(
                f"CPU of join and rules, {GPUS} GPUs, {PODS} pods, 160 GPU clients",
                f"< {BUDGET * 1000:.0f} ms",
                ms(judged),
                met=judged < BUDGET,
            ),
            Row("… with 1,000 GPU clients, the worst case", "-", ms(worst["join and rules"])),
            Row(
                f"History under a fork storm of {STORM:,} new processes a cycle",
                f"≤ {bound:,} entries a table",
                f"{largest:,} ({forgotten:,} forgotten)",
                met=largest <= bound,
            ),
        ),
        "`attribute` and `diagnose` on scripted readings in this process, the cycle before remembered; "
        f"CPU time of the thread, median of {rounds}. Each client is below a shim of its container. "
        "Processes that are no clients cost nothing here: the scan does not pass them on. In the storm "
        f"every process is new in each of {cycles} cycles.",
        (
            *(
                f"{count} clients: " + ", ".join(f"{name} {ms(spent)}" for name, spent in parts.items())
                for count, parts in (("160", usual), ("1,000", worst))
            ),
            f"a cycle of the storm takes {ms(slowest)} at most",
        ),
    )


def _parts(clients: int, rounds: int) -> dict[str, float]:
    """CPU seconds of each step of a cycle."""
    policy = Policy(version="0")
    report: Report | None = None
    for cycle in range(4):
        report = advance(policy, report, look(clients, cycle))
    assert report is not None
    found: dict[str, list[float]] = {"attribute": [], "diagnose": [], "remember": [], "render": []}
    for cycle in range(4, 4 + rounds):
        snapshot = look(clients, cycle)
        before = forget_other_world(report.history, snapshot)
        attribution = _timed(found["attribute"], attribute, policy, before, snapshot)
        previous = report.diagnosis.findings
        diagnosis = _timed(found["diagnose"], diagnose, policy, before, previous, snapshot, attribution)
        history = _timed(found["remember"], remember, policy, before, snapshot, attribution)
        report = Report(policy, snapshot, attribution, history, diagnosis, took=0.1)
        _timed(found["render"], expose, report, Format.TEXT, FAMILIES)
    found["join and rules"] = [sum(pair) for pair in zip(found["attribute"], found["diagnose"], strict=True)]
    return {name: median(spent) for name, spent in found.items()}


def _timed(spent: list[float], act: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    before = time.thread_time()
    result = act(*args, **more)
    spent.append(time.thread_time() - before)
    return result


def _storm(cycles: int) -> tuple[int, int, int, float]:
    """The largest table of the history, how much was forgotten, the bound, and the slowest cycle."""
    policy = Policy(version="0")
    report: Report | None = None
    largest, spent = 0, [0.0]
    for cycle in range(cycles):
        snapshot = look(STORM, cycle, first=200_000 + cycle * STORM)
        report = _timed(spent, advance, policy, report, snapshot)
        largest = max(largest, *_tables(report.history))
    assert report is not None
    return largest, report.history.forgotten, policy.remember, max(spent)


def _tables(history: History) -> list[int]:
    values = [getattr(history, one.name) for one in dataclasses.fields(history)]
    return [len(value) for value in values if isinstance(value, tuple)]
