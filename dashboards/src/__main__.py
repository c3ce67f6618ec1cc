"""Writes the dashboards, or says which of the written ones are not what the sources build.

    python -m dashboards.src [--output DIR] [--check] [--runbooks URL] [--several-clusters] [--portable]

A folder comes in, one JSON file for each dashboard goes out. It must never write what depends on the machine
or the day: the same sources give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from dashboards.src import exporter, fleet, namespace, node
from dashboards.src.frame import RUNBOOKS, Options, render

OUTPUT = Path(__file__).parents[1]
BUILDERS = (fleet.build, node.build, namespace.build, exporter.build)


def texts(options: Options) -> dict[str, str]:
    """The dashboards by file name."""
    boards = [build(options) for build in BUILDERS]
    return {
        f"{board.name}.json": json.dumps(render(board, options), indent=2, sort_keys=True) + "\n"
        for board in boards
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Build, then write or compare; the exit code is 1 if a file is not what the sources build."""
    parser = argparse.ArgumentParser(prog="python -m dashboards.src", description="Build the dashboards.")
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="DIR", help="folder of the JSON files")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file differs")
    parser.add_argument("--runbooks", default=RUNBOOKS, metavar="URL", help="address before ALERT.md")
    parser.add_argument("--several-clusters", action="store_true", help="show the variable for the cluster")
    parser.add_argument("--portable", action="store_true", help="the form for grafana.com, with __inputs")
    given = parser.parse_args(argv)
    options = Options(given.runbooks, given.several_clusters, given.portable)
    different = []
    for name, text in texts(options).items():
        path = given.output / name
        if given.check:
            if not path.exists() or path.read_text() != text:
                different.append(name)
        else:
            given.output.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for name in different:
        sys.stderr.write(f"{name} is not what the sources build: run python -m dashboards.src\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
