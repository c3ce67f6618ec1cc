"""What a run found, as Markdown: one table of budgets, and beside it how each figure came about."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

LIBRARIES = (
    "grpcio",
    "kubernetes",
    "nvidia-ml-py",
    "prometheus-client",
    "protobuf",
    "pydantic",
    "pydantic-settings",
    "PyYAML",
    "uvicorn",
)


INTRODUCTION = """\
Written by `make bench`; do not edit. Every figure is from the machine below, and each peer ran in the same
run as what it is compared with.
"""
METHOD = """\
CPU time is what the kernel charged to the processes (user and system), so that it hardly depends on what else
the machine does: other work still makes caches colder. Wall time is measured where the budget is one. Memory
is in units of 10^6 bytes. The agent is the installed command in a process of its own, over the rig of
tests/rig: real processes, descriptors and control groups, an NVML library in C, a kubelet on a unix socket
and an API server on TCP.
"""
MISSED = """\
CPU: half of a cycle is the scan, and most of the scan is the kernel answering several thousand small
questions about other processes' files. What stayed the same since the last scan is asked again only in one
of four scans; to ask less often would find holders later.

Memory: most of it is libraries that are loaded once (gRPC, the Kubernetes client, pydantic, TLS) and two
more interpreters for the children, which may hang in the driver or in the kernel. What the agent knows of
the node is a few megabytes.

Scrapes during a cycle: one Python interpreter computes the cycle and answers requests. The bytes are ready
before a scrape comes, so that the middle one takes a few milliseconds; the slowest wait for their turn
beside the cycle, which is busy for a fraction of a second in each fifteen.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table. `met` is None where there is no budget."""

    what: str
    budget: str
    measured: str
    peer: str = "-"
    met: bool | None = None

    def __str__(self) -> str:
        verdict = {None: "-", True: "yes", False: "**no**"}[self.met]
        return f"| {self.what} | {self.budget} | {self.measured} | {self.peer} | {verdict} |"


@dataclass(frozen=True, slots=True)
class Section:
    """What one benchmark gives: rows of the table, how they were measured, and more figures."""

    title: str
    rows: tuple[Row, ...]
    method: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """The sections of one benchmark: the day, the load average before it, and how many seconds it took."""

    name: str
    sections: tuple[Section, ...]
    day: str
    load: float
    took: float


def as_json(run: Run) -> str:
    """A run as text, to be kept."""
    return json.dumps(asdict(run), indent=1)


def of_json(text: str) -> Run:
    """A run that was kept."""
    kept = json.loads(text)
    sections = tuple(
        Section(
            one["title"],
            tuple(Row(**row) for row in one["rows"]),
            one["method"],
            tuple(one["details"]),
        )
        for one in kept.pop("sections")
    )
    return Run(sections=sections, **kept)


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which this share of them lies: the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Iterable[float]) -> float:
    """The middle one."""
    return statistics.median(list(values))


def ms(seconds: float) -> str:
    """Milliseconds for people."""
    return f"{seconds * 1000:,.1f} ms"


def megabytes(size: float) -> str:
    """10^6 bytes for people."""
    return f"{size / 1e6:,.1f} MB"


def page(runs: Sequence[Run], *, small: bool) -> str:
    """The whole document."""
    sections = [section for run in runs for section in run.sections]
    rows = "\n".join(map(str, _rows(sections)))
    trial = "**A trial run with small sizes: its figures say nothing about the budgets.**\n"
    parts = [
        f"# Benchmarks\n\n{INTRODUCTION}",
        *([trial] if small else []),
        f"| what | budget | measured | peer | met |\n|---|---|---|---|---|\n{rows}\n",
        *(
            [f"## Why budgets are missed\n\n{MISSED}"]
            if any(row.met is False for row in _rows(sections))
            else []
        ),
        f"## Machine\n\n{_machine(runs)}",
        f"## Method\n\n{METHOD}",
        *(_told(section) for section in sections),
    ]
    return "\n".join(parts)


def _rows(sections: Sequence[Section]) -> list[Row]:
    return [row for section in sections for row in section.rows]


def _told(section: Section) -> str:
    details = "".join(f"- {line}\n" for line in section.details)
    return f"### {section.title}\n\n{section.method}\n" + (f"\n{details}" if details else "")


def _machine(runs: Iterable[Run]) -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES)
    told = "; ".join(
        f"{run.name} {run.day}, {run.took / 60:.1f} minutes, load average {run.load:.1f} before"
        for run in runs
    )
    return (
        f"- {os.cpu_count()} cores ({_processor()}), {memory / 1e9:.0f} GB of memory, "
        f"Linux {platform.release()}, control groups {_hierarchies()}\n"
        f"- Python {platform.python_version()} ({sys.implementation.name}); {versions}; psmisc {_fuser()}\n"
        f"- Runs: {told}\n"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _hierarchies() -> str:
    count = sum(" cgroup " in line for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return f"version 1 ({count} hierarchies)" if count else "version 2"


def _fuser() -> str:
    said = subprocess.run(["fuser", "-V"], capture_output=True, text=True, check=False)
    return (said.stderr + said.stdout).split("\n", 1)[0].rpartition(" ")[2]
