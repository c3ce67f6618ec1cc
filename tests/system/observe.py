"""How the system tests look at the exporter: from outside, until what they expect is so.

Nothing of the exporter is imported. What is expected comes from the rig and from the kernel.
"""

from __future__ import annotations

import os
import pprint
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.rig.agent import Agent, Samples
from tests.rig.holder import process_state
from tests.rig.rig import Rig

Row = tuple[str, ...]

PREFIX = "kubegpu_"
WORKLOAD = ("namespace", "pod", "container")
INSTANCE = ("uuid", "gi", "mig_uuid")
DEVICE_VALUES = ("gpu_memory_total_bytes", "gpu_memory_used_bytes", "gpu_memory_free_bytes")
NVML_CHILD = "exporter.sources.nvml"
HOST_CHILD = "exporter.sources.host"


# ---------------------------------------------------------------- samples


def series(samples: Samples, name: str, **wanted: str) -> list[dict[str, str]]:
    """The label sets of a family, by its name without the prefix, that carry these labels."""
    found = (dict(labels) for (family, labels) in samples if family == PREFIX + name)
    return [labels for labels in found if wanted.items() <= labels.items()]


def values(samples: Samples, name: str, *labels: str, **wanted: str) -> dict[Row, float]:
    """Values of a family by some of its labels, which must tell its series apart."""
    found: dict[Row, float] = {}
    for (family, keys), value in samples.items():
        row = dict(keys)
        if family == PREFIX + name and wanted.items() <= row.items():
            key = tuple(row[label] for label in labels)
            assert key not in found, f"{name}: two series with {labels} = {key}"
            found[key] = value
    return found


def one(samples: Samples, name: str, **wanted: str) -> float | None:
    """The value of the one series of a family with these labels; None where there is none."""
    found = values(samples, name, **wanted)
    return found.get(())


def rows(samples: Samples, name: str, *labels: str, **wanted: str) -> set[Row]:
    """A family as a set of label values; several series may have the same."""
    return {tuple(row[label] for label in labels) for row in series(samples, name, **wanted)}


def up(samples: Samples, source: str) -> float | None:
    """Whether a source answered; None where it is off."""
    return one(samples, "source_up", source=source)


def processes(samples: Samples, name: str = "process_info", **wanted: str) -> list[dict[str, str]]:
    """Rows of processes, without those that another rig on this machine has started.

    Its device nodes have the same numbers as ours, so they are rightly seen as holders.
    """
    return [row for row in series(samples, name, **wanted) if not another_rigs(int(row["pid"]))]


def another_rigs(pid: int) -> bool:
    """Whether a process is a holder of the rig's that this test run did not start."""
    try:
        name = Path(os.readlink(f"/proc/{pid}/exe")).name
        return name.startswith("holder-") and os.getpid() not in ancestors(pid)
    except OSError:
        return False


def ancestors(pid: int) -> Iterator[int]:
    """The parents of a process, nearest first."""
    while pid > 1:
        try:
            text = Path(f"/proc/{pid}/status").read_text(errors="replace")
        except OSError:
            return
        pid = int(text.split("PPid:")[1].split()[0])
        yield pid


# ---------------------------------------------------------------- waiting


def eventually(
    agent: Agent, look: Callable[[Samples], object], expected: object, timeout: float = 15.0
) -> Samples:
    """Scrape until a look at the metrics gives what is expected; returns the scrape that did."""
    deadline = time.monotonic() + timeout
    while True:
        samples = agent.samples()
        found = look(samples)
        if found == expected:
            return samples
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout} s {_difference(found, expected)}\n{agent.tail()}")
        time.sleep(0.05)


def settled(agent: Agent, *without: str, timeout: float = 20.0) -> Samples:
    """Wait until every source that is on answers, but for those named."""

    def missing(samples: Samples) -> set[str]:
        return {source for (source,), up in values(samples, "source_up", "source").items() if not up}

    return eventually(agent, missing, set(without), timeout)


def steady(agent: Agent, look: Callable[[Samples], object], expected: object, seconds: float) -> None:
    """What is expected holds in every scrape for so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = look(agent.samples())
        assert found == expected, f"{_difference(found, expected)}\n{agent.tail()}"
        time.sleep(0.1)


def _difference(found: object, expected: object) -> str:
    if isinstance(found, set) and isinstance(expected, set):
        return f"missing: {pprint.pformat(expected - found)}\nunexpected: {pprint.pformat(found - expected)}"
    return f"found {pprint.pformat(found)}\nexpected {pprint.pformat(expected)}"


# ---------------------------------------------------------------- processes


def children(agent: Agent) -> dict[str, int]:
    """The exporter's children that are alive: module to pid."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and agent.pid in list(ancestors(int(entry)))[:1]:
            words = command_line(int(entry))
            if "-m" in words and process_state(int(entry)) not in {"", "Z"}:
                found[words[words.index("-m") + 1]] = int(entry)
    return found


def child(agent: Agent, module: str, timeout: float = 10.0) -> int:
    """The pid of one child, once it runs."""
    agent.wait_for(lambda: module in children(agent), timeout, f"no child {module}")
    return children(agent)[module]


def command_line(pid: int) -> list[str]:
    """The words of a command line; none where the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def ended(pid: int, timeout: float) -> bool:
    """Whether a process, which may be nobody's child of ours, has ended within a time."""
    deadline = time.monotonic() + timeout
    while process_state(pid) not in {"", "Z"}:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def comm(pid: int) -> str:
    """What a process calls itself."""
    return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")


def aged(rig: Rig) -> None:
    """Let the kubelet look as if it had run for an hour: a young one is not believed about what is absent."""
    hour_ago = time.time() - 3600
    os.utime(rig.kubelet.socket, (hour_ago, hour_ago))
