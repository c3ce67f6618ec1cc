"""`python -m exporter.recording FILE`: whether a file is a recording, and what is in it."""

import sys
from collections import Counter
from pathlib import Path

from exporter.model import SOURCES
from exporter.recording.files import RecordingError, load


def main(arguments: list[str]) -> int:
    """Print a line for each source; 2 where there is no such recording."""
    if len(arguments) != 1:
        sys.stderr.write("python -m exporter.recording: give one FILE.json.gz\n")
        return 2
    try:
        looks = load(Path(arguments[0]))
    except RecordingError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for source in SOURCES:
        found = Counter(type(getattr(look.snapshot, source)).__name__.lower() for look in looks)
        sys.stdout.write(f"{source}: {', '.join(f'{count} {what}' for what, count in found.items())}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
