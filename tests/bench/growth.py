"""Memory, descriptors and threads over many cycles: `python -m tests.bench.growth scripted|real CYCLES`.

Scripted: Cycle.once on scripted readings whose pods and processes come and go. Real: the same cycle on a rig,
with both children and a process that comes and goes. Each runs in a process of its own and prints JSON.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exporter.__main__ import sources
from exporter.cycle import Cycle
from exporter.exposition import Renderer
from exporter.gather import Gatherer
from exporter.model import Policy, Report, Snapshot
from exporter.settings import parse
from tests.bench import usage
from tests.bench.document import Row, Section

BUDGET = 1e6
POINTS = 20
WARM = 0.25  # of the cycles: tables fill to their bounds
SCRIPTED_BOUND = 256  # entries of a table: so that they are full when counting begins
INTERVAL = 1.0  # by which the gatherer waits; the cycles follow each other at once


@dataclass(frozen=True, slots=True)
class Point:
    """What the processes have at one moment."""

    cycle: int
    memory: int
    descriptors: int
    threads: int


def scripted(*, small: bool = False) -> Section:
    """Cycles on scripted readings, which need no time for looking."""
    points = _run("scripted", 400 if small else 20_000)
    return _section(
        "Growth",
        "scripted cycles",
        points,
        "`Cycle.once` again and again on scripted readings: 4 GPUs, a few of 40 pods and 64 processes "
        f"replaced in each cycle, tables bounded to {SCRIPTED_BOUND} entries so that they are full, a source "
        "that is missed now and then.",
    )


def real(*, small: bool = False) -> Section:
    """Cycles of the agent's own sources on a rig."""
    points = _run("real", 60 if small else 2_000)
    return _section(
        "Growth with both children",
        "real cycles with both children",
        points,
        "The same with the agent's own sources on a rig, the kubelet and the API server asked too; a process "
        "on a GPU is replaced every 10 cycles. The rig lives in the same process, and what it remembers of "
        "each process that it started is in the figure.",
    )


def _section(title: str, what: str, points: list[Point], method: str) -> Section:
    row = Row(
        f"Growth over {points[-1].cycle:,} {what}",
        "memory ≤ 1.0 MB; descriptors and threads flat",
        f"{_grown(points) / 1e6:+.2f} MB; descriptors {_range(points, 'descriptors')}, "
        f"threads {_range(points, 'threads')}",
        met=_grown(points) <= BUDGET and _flat(points),
    )
    how = (
        f" {POINTS} looks at memory (private pages: a share of the libraries would change with what else "
        "runs), descriptors and threads. Growth is the median of the last quarter less that of the quarter "
        f"after the first {WARM:.0%}, which is when caches and tables fill."
    )
    told = ", ".join(f"{point.memory / 1e6:.1f}" for point in points)
    return Section(title, (row,), method + how, (f"{told} MB",))


def _run(what: str, cycles: int) -> list[Point]:
    command = (sys.executable, "-m", "tests.bench.growth", what, str(cycles))
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [Point(**point) for point in json.loads(told)]


def _quarters(points: list[Point]) -> tuple[list[Point], list[Point]]:
    first = int(len(points) * WARM)
    length = len(points) // 4
    return points[first : first + length], points[-length:]


def _grown(points: list[Point]) -> float:
    early, late = (sorted(point.memory for point in quarter) for quarter in _quarters(points))
    return late[len(late) // 2] - early[len(early) // 2]


def _flat(points: list[Point]) -> bool:
    early, late = _quarters(points)
    return all(
        max(getattr(point, what) for point in late) <= max(getattr(point, what) for point in early)
        for what in ("descriptors", "threads")
    )


def _range(points: list[Point], what: str) -> str:
    values = [getattr(point, what) for quarter in _quarters(points) for point in quarter]
    return f"{min(values)}" if min(values) == max(values) else f"{min(values)} to {max(values)}"


# ---------------------------------------------------------------- the process that is looked at


def main() -> None:
    """Cycle, look, print."""
    logging.disable()  # sources that come and go are what it is about
    what, cycles = sys.argv[1], int(sys.argv[2])
    points = (_scripted if what == "scripted" else _real)(cycles)
    json.dump([{name: getattr(point, name) for name in Point.__slots__} for point in points], sys.stdout)


def _follow(
    cycle: Cycle, cycles: int, before_each: Callable[[int], object], children: Callable[[], list[int]]
) -> list[Point]:
    points = []
    for number in range(1, cycles + 1):
        before_each(number)
        cycle.once()
        if number % max(1, cycles // POINTS) == 0:
            gc.collect()
            pids = [os.getpid(), *children()]
            points.append(
                Point(
                    number,
                    sum(usage.private(pid) for pid in pids),
                    usage.descriptors(pids),
                    usage.threads(pids),
                )
            )
    return points


def _children() -> list[int]:
    """The agent's two children, and none of the rig's."""
    found = (pid for pid in usage.family(os.getpid())[1:])
    return [pid for pid in found if b"exporter.sources" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def _scripted(cycles: int) -> list[Point]:
    # Imported here: the rig's process must hold no more than the agent's own.
    from tests import builders as b  # noqa: PLC0415
    from tests.bench import judging  # noqa: PLC0415

    chance = random.Random(1)
    count = 0

    def gather(_previous: Report | None) -> Snapshot:
        nonlocal count
        count += 1
        snapshot = judging.look(64, count, first=5000 + count * 3, gpus=4, pods=40)
        source = chance.choice(("nvml", "kubelet", "pods", "processes", "pci", *["none"] * 40))
        away: dict[str, Any] = {} if source == "none" else {source: b.missed(at=snapshot.at)}
        return replace(snapshot, **away)

    policy = Policy(version="0", remember=SCRIPTED_BOUND)
    return _follow(Cycle(policy, gather, Renderer(clock=lambda: b.MONOTONIC)), cycles, lambda _: None, list)


def _real(cycles: int) -> list[Point]:
    from tests.rig.hardware import GIB  # noqa: PLC0415
    from tests.rig.rig import Rig  # noqa: PLC0415

    with Rig() as rig, ExitStack() as stack:
        gpus = [rig.add_gpu() for _ in range(2)]
        pods = [rig.add_pod("team-a", f"work-{gpu.index}", {"main": [gpu]}) for gpu in gpus]
        steady = rig.add_process(pods[0], "main", gpus[0], memory=GIB)
        coming: list[Any] = []

        def churn(number: int) -> None:
            if number % 10 == 0:
                if coming:
                    rig.end(coming.pop())
                coming.append(rig.add_process(pods[1], "main", gpus[1], memory=GIB))

        _, settings = parse(rig.agent_args(f"{INTERVAL:g}s"), {}, "rig")
        parts = sources(settings, stack.callback)
        gather = Gatherer(parts, INTERVAL, settings.node_name)
        cycle = Cycle(Policy(interval=INTERVAL, version="0"), gather, Renderer())
        points = _follow(cycle, cycles, churn, _children)
        published = cycle.published
        if published is None or steady.pid not in {use.pid for use in published.report.attribution.uses}:
            raise RuntimeError("the steady process was not seen")
        return points


if __name__ == "__main__":
    main()
