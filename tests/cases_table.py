"""Writes the table of cases into docs/findings.md: what each scenario expects of the findings, and what came.

`python -m tests.cases_table` rewrites the file. A scenario has a row for each moment at which one of its
expectations names findings.
"""

from collections.abc import Iterator
from pathlib import Path

from exporter import scenario
from exporter.reference import CASES
from tests import golden

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "findings.md"
SCENARIOS = ROOT / "tests" / "scenarios"
FAMILY = "kubegpu_findings"
UNDETERMINED = "kubegpu_finding_undetermined"
HEAD = ("scenario", "at", "expected", "got")


def page(text: str) -> str:
    """The page with the table of now between its marks."""
    begin, end = CASES
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(
            f"{PAGE}: {begin} and {end} are missing; write it anew with exporter.reference findings"
        )
    return f"{before}{begin}\n\n{table()}\n{end}{after}"


def table() -> str:
    """The table, sorted by scenario and time."""
    found = [*rows()]
    if not found:
        return "No scenario expects findings.\n"
    lines = [f"| {' | '.join(cells)} |\n" for cells in (HEAD, ["---"] * len(HEAD), *found)]
    return "".join(lines)


def rows() -> Iterator[tuple[str, ...]]:
    """A row for each expectation that names findings."""
    own = {path.parent.name: path.parent for path in SCENARIOS.glob("*/frames.yaml")}
    shipped = {name: SCENARIOS / "shipped" / name for name in scenario.shipped()}
    for name, folder in sorted((own | shipped).items()):
        told = {float(path.stem): golden.expected(path) for path in folder.glob("expected/*.metrics")}
        told = {at: wanted for at, wanted in told.items() if FAMILY in wanted}
        if not told:
            continue
        played = dict(golden.reports(scenario.load(name if name in shipped else str(folder))))
        title = _title(name if name in shipped else str(folder))
        for at, wanted in sorted(told.items()):
            got = golden.samples(played[at]) if at in played else {}
            yield (
                f"`{name}`: {title}",
                f"{at:g} s",
                _words(wanted),
                _words({key: got.get(key, {}) for key in wanted}),
            )


def _title(name: str) -> str:
    place = Path(scenario.__file__).parents[1] / "scenarios" / name if "/" not in name else Path(name)
    return (place / "story.md").read_text().splitlines()[0].removeprefix("# ")


def _words(found: golden.Samples) -> str:
    """What holds, each kind with its number where it is not one; then what could not be judged."""
    counts: dict[str, float] = {}
    for labels, number in found[FAMILY].items():
        of = dict(labels)
        if number:
            name = f"`{of['finding']}` {of['kind']}"
            counts[name] = counts.get(name, 0) + number
    words = [name if number == 1 else f"{name} x{number:g}" for name, number in sorted(counts.items())]
    doubts = sorted({f"`{dict(labels)['finding']}` undetermined" for labels in found.get(UNDETERMINED, {})})
    return ", ".join([*words, *doubts]) or "nothing"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
