"""The page docs/reliability.md: what is promised about each fault, and what was seen when it was last run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.faults.cases import CASES, Case

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
HEAD = """# Reliability: what happens when a source fails

`make faults` writes this page. Each row is a system test (tests/faults): the installed exporter watches
real processes, and stand-ins for the GPUs, the kubelet and the API server, at an interval of 1 s (API: 2 s)
and with every finding's age cut to that, so that a wrong one would show at once. Before, during and after
the fault there are two healthy pods, a process whose pod is gone, a program of the host, and a phantom. In
every row: scrapes are answered within a second, the findings that stood go on standing, and none appears
because of the fault, but for the loss of a GPU, which is one. Under hidepid and in a wrong pid namespace
the agent never sees a process, so none stands there. What cannot be judged is in
`kubegpu_finding_undetermined`, what does not answer in `kubegpu_source_up` and
`kubegpu_source_errors_total{reason}`. Times that were seen include the test's own waiting.
"""
COLUMNS = ("fault", "served meanwhile", "said to be unknown", "recovers", "seen")
NOT_RUN = "not run"


def page(seen: Mapping[str, str]) -> str:
    """The whole page; `seen` is by the name of the fault."""
    parts = [HEAD]
    for group in dict.fromkeys(case.group for case in CASES):
        cases = [case for case in CASES if case.group == group]
        parts.append(f"\n## {group}\n\n{_row(COLUMNS)}{_row(['---'] * len(COLUMNS))}")
        parts += [_row([*promised(case), seen.get(case.name, NOT_RUN)]) for case in cases]
    return "".join(parts)


def promised(case: Case) -> tuple[str, str, str, str]:
    """The cells of a row but for what was seen."""
    return case.name, case.served, case.unknown, case.recovers


def rows(text: str) -> list[list[str]]:
    """The cells of each row of a page."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [cells for cells in found if tuple(cells) != COLUMNS and cells[0] != "---"]


def _row(cells: object) -> str:
    assert isinstance(cells, list | tuple)
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |\n"
