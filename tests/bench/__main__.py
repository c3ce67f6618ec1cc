"""`python -m tests.bench`: measure against the budgets, and write docs/benchmarks.md.

    --small       trial sizes, in a minute or two; prints the page and writes nothing
    --only NAMES  of judging, scan, agent, mig, rules, growth; prints the page and writes nothing

Needs what the rig needs, psmisc, and the network once, for the peer. It takes about half an hour.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.bench import agent, document, growth, judging, mig, rules, scan
from tests.bench.document import Section

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
BENCHMARKS: dict[str, Callable[[bool], Iterable[Section]]] = {
    "judging": lambda small: [judging.measure(small=small)],
    "scan": lambda small: [scan.measure(small=small)],
    "agent": lambda small: agent.measure(small=small),
    "mig": lambda small: [mig.measure(small=small)],
    "rules": lambda small: [rules.measure(small=small)],
    "growth": lambda small: [growth.measure(small=small)],
}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--small", action="store_true", help="trial sizes; writes nothing")
    parser.add_argument("--only", default=",".join(BENCHMARKS), help="comma-separated names; writes nothing")
    options = parser.parse_args()
    names = options.only.split(",")
    load, began = os.getloadavg()[0], time.monotonic()
    sections: list[Section] = []
    for name in names:
        sys.stderr.write(f"{name} ...\n")
        for section in BENCHMARKS[name](options.small):
            sys.stderr.write("".join(f"{row}\n" for row in section.rows))
            sections.append(section)
    took = time.monotonic() - began
    text = document.page(sections, (load, os.getloadavg()[0]), took, options.small)
    sys.stdout.write(text)
    if names == list(BENCHMARKS) and not options.small:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
