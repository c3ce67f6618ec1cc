"""An agent under measurement: its processes, its cycles and what it says of itself."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence

from tests.bench import usage
from tests.rig.agent import Agent, Samples
from tests.rig.rig import Rig
from tests.system import observe

PREFIX = "kubegpu_"


class Watch:
    """A running agent and the CPU time of its whole cycles."""

    def __init__(self, agent: Agent, interval: float) -> None:
        self._agent = agent
        self._interval = interval
        observe.settled(agent, timeout=60)

    @property
    def pids(self) -> list[int]:
        """The agent and its children."""
        return usage.family(self._agent.pid)

    def samples(self) -> Samples:
        """What it serves now."""
        return self._agent.samples()

    def cycles(self, count: int) -> tuple[float, int]:
        """CPU seconds of the agent and its children for each of so many cycles, and how many those were.

        A source that was late is told of on standard error: a cycle without it costs less.
        """
        first, errors = self._next_cycle()
        pids = self.pids
        before = usage.cpu_seconds(pids)
        time.sleep((count - 0.7) * self._interval)
        last, late = self._next_cycle()
        spent = usage.cpu_seconds(pids) - before
        done = round((last - first) / self._interval)
        if late > errors:
            sys.stderr.write(f"sources were late {late - errors:.0f} times in {done} cycles\n")
        return spent / done, done

    def parts(self) -> str:
        """What the agent and its children have spent so far, in words."""
        modules = {pid: module.rpartition(".")[2] for module, pid in observe.children(self._agent).items()}
        spent = {modules.get(pid, "agent"): usage.cpu_seconds([pid]) for pid in self.pids}
        whole = sum(spent.values())
        return ", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in spent.items())

    def _next_cycle(self) -> tuple[float, float]:
        """Wait until a cycle has just ended; when it began, and how often a source was missed so far."""
        before = self._told()[0]
        while True:
            time.sleep(self._interval / 8)
            at, errors = self._told()
            if at > before:
                time.sleep(self._interval / 4)  # let it render, and go to sleep
                return at, errors

    def _told(self) -> tuple[float, float]:
        text = self._agent.scrape()
        errors = 0.0
        at = 0.0
        for line in text.splitlines():
            if line.startswith(f"{PREFIX}source_errors_total"):
                errors += float(line.rpartition(" ")[2])
            elif line.startswith(f"{PREFIX}cycle_timestamp_seconds"):
                at = float(line.rpartition(" ")[2])
        return at, errors


def start(rig: Rig, *args: str) -> tuple[float, float]:
    """Wall seconds from starting the agent to its readiness, and the CPU seconds spent until then."""
    began = time.perf_counter()
    with rig.agent(*args, ready=None) as agent:
        while True:
            try:
                if agent.get("/-/ready", timeout=2.0).status == 200:
                    break
            except OSError:
                if agent.process.poll() is not None:
                    raise
            time.sleep(0.01)
        return time.perf_counter() - began, usage.cpu_seconds(usage.family(agent.pid))


def load(port: int, clients: int, bursts: int, interval: float, *more: str) -> tuple[list[float], int]:
    """What tests.bench.load measured: seconds of each scrape, and bytes of one."""
    command: Sequence[str] = (
        *(sys.executable, "-m", "tests.bench.load"),
        *(str(port), str(clients), str(bursts), str(interval), *more),
    )
    told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return told["seconds"], told["bytes"]
