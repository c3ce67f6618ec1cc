"""`python -m tests.bench`: measure against the budgets, and write docs/benchmarks.md.

    --small       trial sizes, in a few minutes; prints the page and keeps nothing
    --only NAMES  of judging, scan, agent, mig, rules, growth, growth-real: measure these anew; the page takes
                  the rest from build/bench, where each one's last figures are kept

Needs what the rig needs, psmisc, and the network once, for the peer. All of it takes about half an hour.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.bench import agent, document, growth, judging, mig, rules, scan
from tests.bench.document import Run, Section

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
KEPT = ROOT / "build" / "bench"
BENCHMARKS: dict[str, Callable[[bool], Iterable[Section]]] = {
    "judging": lambda small: [judging.measure(small=small)],
    "scan": lambda small: [scan.measure(small=small)],
    "agent": lambda small: agent.measure(small=small),
    "mig": lambda small: [mig.measure(small=small)],
    "rules": lambda small: [rules.measure(small=small)],
    "growth": lambda small: [growth.scripted(small=small)],
    "growth-real": lambda small: [growth.real(small=small)],
}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--small", action="store_true", help="trial sizes; keeps nothing")
    parser.add_argument("--only", default=",".join(BENCHMARKS), help="comma-separated names")
    options = parser.parse_args()
    runs = {name: _measured(name, small=options.small) for name in options.only.split(",")}
    if not options.small:
        KEPT.mkdir(parents=True, exist_ok=True)
        for name, run in runs.items():
            (KEPT / f"{name}.json").write_text(document.as_json(run))
        kept = [KEPT / f"{name}.json" for name in BENCHMARKS]
        runs = {path.stem: document.of_json(path.read_text()) for path in kept if path.exists()}
    text = document.page(list(runs.values()), small=options.small)
    sys.stdout.write(text)
    if not options.small and set(runs) == set(BENCHMARKS):
        PAGE.write_text(text)


def _measured(name: str, *, small: bool) -> Run:
    sys.stderr.write(f"{name} ...\n")
    load, began = os.getloadavg()[0], time.monotonic()
    sections = []
    for section in BENCHMARKS[name](small):
        sys.stderr.write("".join(f"{row}\n" for row in section.rows))
        sections.append(section)
    return Run(
        name, tuple(sections), time.strftime("%Y-%m-%d", time.gmtime()), load, time.monotonic() - began
    )


if __name__ == "__main__":
    main()
