"""The course of one fault: what is so before, what must be so while it lasts, and when it is over.

Every look at the metrics checks what is promised of all faults: the scrape is answered, and no finding has
appeared or resolved. Nothing of the exporter is imported.
"""

from __future__ import annotations

import os
import pprint
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.faults.cases import BY_NAME, Case
from tests.rig.agent import Agent, Samples
from tests.rig.rig import Rig
from tests.rig.workloads import Process
from tests.system import observe
from tests.system.observe import Row, rows, up, values

SLOWEST = 1.0  # seconds that a scrape may take on a busy machine
_FINDING = re.compile(r"(\w+):((?:,? \w+ \d+[smh])+)")
_KIND = re.compile(r"(\w+) \d+[smh]")


def ages(command: Sequence[str], age: str) -> list[str]:
    """Flags that let every kind of finding count as soon as may be, by the program's own list of kinds."""
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    text = " ".join(shown.split("The defaults are:")[1].split("--version")[0].split())
    flags = [
        f"--rules.{finding}.{kind}.age={age}"
        for finding, kinds in _FINDING.findall(text)
        for kind in _KIND.findall(kinds)
    ]
    assert len(flags) > 30, text
    return flags


@dataclass(slots=True)
class World:
    """A rig with two healthy pods (GPUs 0, 1), an orphan (2), and a program of the host and a phantom (3)."""

    rig: Rig
    healthy: tuple[Process, Process]
    orphan: Process
    external: Process
    phantom: int

    @property
    def pids(self) -> set[str]:
        """Every number that findings may rightly name."""
        found = {self.phantom}
        for process in self.rig.processes:
            found |= {process.pid, *process.holder.children}
        return {str(pid) for pid in found}


def make_world(rig: Rig) -> World:
    """Fill a rig."""
    for _ in range(4):
        rig.add_gpu()
    gpus = rig.gpus
    healthy = (_train(rig, 0), _train(rig, 1))
    left = rig.add_pod("team-a", "left-0", {"main": [gpus[2]]})
    orphan = rig.add_process(left, "main", gpus[2])
    rig.delete_pod(left)
    external = rig.add_host_process("rogue.service", gpus[3])
    dead = rig.add_host_process("done.service", gpus[3])
    rig.end(dead, listed=True)
    observe.aged(rig)
    return World(rig, healthy, orphan, external, dead.pid)


def _train(rig: Rig, number: int) -> Process:
    gpu = rig.gpus[number]
    pod = rig.add_pod("team-a", f"train-{number}", {"main": [gpu]})
    visible = [rig.devices.gpu(gpu.minor), rig.devices.ctl()]
    return rig.add_process(pod, "main", gpu, visible=visible)


def told(world: World, samples: Samples) -> set[Row]:
    """Active findings on this rig, those that another one explains among them.

    Kinds are left out: they are no part of what a finding is, and a process of another rig on this machine
    may hold a device of the same number.
    """

    def here(pid: str) -> bool:
        return not pid or pid in world.pids or os.getpid() in observe.ancestors(int(pid))

    found = rows(samples, "finding_info", "finding", "uuid", "pid")
    return {row for row in found if here(row[2])}


def standing(world: World) -> set[Row]:
    """The findings that are true of this world, by its making."""
    gpus = world.rig.gpus
    return {
        ("orphan_process", gpus[2].uuid, str(world.orphan.pid)),
        ("external_process", gpus[3].uuid, str(world.external.pid)),
        ("phantom_process", gpus[3].uuid, str(world.phantom)),
    }


def unjudged(samples: Samples) -> set[str]:
    """Findings of which some kind could not be judged."""
    return {row[0] for row in rows(samples, "finding_undetermined", "finding")}


@dataclass(frozen=True, slots=True)
class Facts:
    """What is served besides findings."""

    gpus: frozenset[Row]  # with values
    processes: frozenset[Row]  # pid and pod of those that hold something
    allocations: frozenset[Row]
    owners: frozenset[Row]  # GPU and pod in whose name its values stand


def facts(world: World, samples: Samples) -> Facts:
    """What is served now of this rig."""
    seen = [
        row
        for row in observe.series(samples, "process_info")
        if row["pid"] in world.pids - {str(world.phantom)}
    ]
    held = {(row["pid"], row["pod"]) for row in seen if row["visibility"] in {"holder", "both"}}
    return Facts(
        gpus=frozenset(rows(samples, "gpu_memory_used_bytes", "uuid")),
        processes=frozenset(held),
        allocations=frozenset(rows(samples, "allocation_info", "uuid", "pod")),
        owners=frozenset(rows(samples, "gpu_memory_used_bytes", "uuid", "pod")),
    )


def well(world: World) -> Facts:
    """What is true of this world, by its making."""
    uuids = [gpu.uuid for gpu in world.rig.gpus]
    given = {(uuids[0], "train-0"), (uuids[1], "train-1")}
    pods = {(str(process.pid), process.pod.name if process.pod else "") for process in world.rig.processes}
    return Facts(
        gpus=frozenset((uuid,) for uuid in uuids),
        processes=frozenset(pods),
        allocations=frozenset(given),
        owners=frozenset(given | {(uuids[2], ""), (uuids[3], "")}),
    )


class Course:
    """One fault from before it to after it. `note` collects what was seen, for the table."""

    def __init__(self, name: str, world: World, agent: Agent, *, settle: bool = True) -> None:
        self.case: Case = BY_NAME[name]
        self.world = world
        self.agent = agent
        self.notes: list[str] = []
        self.findings = standing(world) if settle else set()
        self.consequences: set[Row] = set()  # findings that the fault itself is, if it lasts
        self._looks = 0
        self._slowest = 0.0
        if settle:
            reach(world, agent)
        self._since = time.monotonic()

    @property
    def seen(self) -> str:
        """What was seen, in words."""
        words = [*self.notes, f"{len(self.findings)} findings as before in {self._looks} scrapes"]
        return "; ".join(words)

    def strike(self) -> None:
        """The fault begins now."""
        self._since = time.monotonic()

    def samples(self) -> Samples:
        """One look; fails where a finding has come or gone, or the answer took long."""
        begin = time.monotonic()
        samples = self.agent.samples()
        self._slowest = max(self._slowest, time.monotonic() - begin)
        self._looks += 1
        found = told(self.world, samples)
        assert found - self.consequences == self.findings, (
            f"{self.case.name}: appeared {found - self.findings}, resolved {self.findings - found}\n"
            f"{self.agent.tail()}"
        )
        assert self._slowest < SLOWEST, f"a scrape took {self._slowest:.2f} s"
        return samples

    def until(self, what: str, look: Callable[[Samples], Any], expected: object, timeout: float = 10) -> None:
        """Look until something is so, and note how long it took."""
        deadline = time.monotonic() + timeout
        while (found := look(self.samples())) != expected:
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{self.case.name}: not {what} in {timeout} s:\nfound {pprint.pformat(found)}\n"
                    f"expected {pprint.pformat(expected)}\n{self.agent.tail()}"
                )
            time.sleep(0.1)
        self.notes.append(f"{what} after {time.monotonic() - self._since:.0f} s")

    def missed(self, source: str, reason: str, timeout: float = 10) -> None:
        """Until a source is down, for this reason."""
        before = values(self.agent.samples(), "source_errors_total", "reason", source=source)
        already = up(self.agent.samples(), source) == 0

        def look(samples: Samples) -> bool:
            now = values(samples, "source_errors_total", "reason", source=source)
            more = now[reason,] > before[reason,] or (already and now[reason,] > 0)
            return up(samples, source) == 0 and more

        self.until(f"{source} is missing ({reason})", look, True, timeout)

    def lasts(self, seconds: float, expected: Facts, unknown: set[str], *down: str) -> None:
        """For so long this is served, and these findings are unknown in part, while these sources are down.

        A look in which a busy machine kept another source from answering says nothing of this fault, but for
        the findings: they must outlast that too.
        """
        deadline = time.monotonic() + seconds
        judged = 0
        while time.monotonic() < deadline or (judged < 3 and time.monotonic() < deadline + 5 * seconds):
            samples = self.samples()
            missing = {
                source for (source,), is_up in values(samples, "source_up", "source").items() if not is_up
            }
            if missing <= set(down):
                found = facts(self.world, samples)
                assert found == expected, f"{self.case.name}: {pprint.pformat(found)}\n{self.agent.tail()}"
                doubts = rows(samples, "finding_undetermined", "finding", "kind", "uuid", "reason")
                assert unjudged(samples) == unknown, f"{self.case.name}: {pprint.pformat(doubts)}"
                judged += 1
            time.sleep(0.2)
        assert judged, f"{self.case.name}: other sources did not answer\n{self.agent.tail()}"
        if unknown and (words := f"unknown: {', '.join(sorted(unknown))}") not in self.notes:
            self.notes.append(words)

    def pause_until(self, moment: float) -> None:
        """Go on looking until a moment of the monotonic clock."""
        while time.monotonic() < moment:
            self.samples()
            time.sleep(0.5)

    def over(self, source: str, timeout: float = 15) -> None:
        """The fault is over: until the source answers again and all is as it was."""
        self.strike()

        def look(samples: Samples) -> tuple[float | None, Facts]:
            return up(samples, source), facts(self.world, samples)

        self.until("back", look, (1.0, well(self.world)), timeout)


def reach(world: World, agent: Agent, timeout: float = 30) -> None:
    """Wait until every source answers and the findings of this world are told, and nothing else is."""
    observe.settled(agent, timeout=timeout)
    observe.eventually(
        agent,
        lambda samples: (facts(world, samples), told(world, samples)),
        (well(world), standing(world)),
        timeout,
    )


def without_gpu_values(whole: Facts) -> Facts:
    """What is left without NVML."""
    return replace(whole, gpus=frozenset(), owners=frozenset())
