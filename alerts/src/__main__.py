"""`python -m alerts.src`: write the rule files from alerts/config.yaml.

    --config FILE   another configuration
    --output DIR    where to write; without it alerts/, with the tables of alerts/README.md
    --check         write nothing; exit 1 if a file is not what would be written

A configuration that cannot be used: exit 2, and the last line names field, value and remedy.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from alerts.src import files, index
from alerts.src.config import DEFAULT, Config, ConfigError, read

HOME = Path(__file__).parents[1]


def main(argv: list[str] | None = None) -> int:
    """Write or compare."""
    parser = argparse.ArgumentParser(prog="python -m alerts.src", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--config", type=Path, default=DEFAULT, metavar="FILE")
    parser.add_argument("--output", type=Path, default=HOME, metavar="DIR")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(argv)
    try:
        config = read(options.config, files.names())
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    wanted = _wanted(config, options.config, options.output)
    if options.check:
        return _check(wanted)
    options.output.mkdir(parents=True, exist_ok=True)
    for path, text in wanted.items():
        path.write_text(text)
    return 0


def _wanted(config: Config, source: Path, folder: Path) -> dict[Path, str]:
    name = "alerts/config.yaml" if source.resolve() == DEFAULT.resolve() else source.name
    wanted = {folder / file: text for file, text in files.written(config, name).items()}
    page = folder / "README.md"
    if page.exists():
        wanted[page] = index.page(page.read_text(), config)
    return wanted


def _check(wanted: dict[Path, str]) -> int:
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        sys.stderr.write(f"{path} is not what python -m alerts.src writes: run it\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
