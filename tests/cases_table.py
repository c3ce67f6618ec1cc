"""Writes the table of cases into docs/findings.md: what each scenario expects of the findings, and what came.

`python -m tests.cases_table` rewrites the file. A scenario has a row if its story says which findings come
and go (expected/findings.yaml), or what they are at some moment (an expected exposition that names them).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from exporter import scenario
from exporter.model import Report
from exporter.reference import CASES
from tests import golden

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "findings.md"
SCENARIOS = ROOT / "tests" / "scenarios"
FAMILY = "kubegpu_findings"
HEAD = ("scenario", "expected", "got")

Times: TypeAlias = dict[str, set[float]]  # what is found, and in which cycles


def page(text: str) -> str:
    """The page with the table of now between its marks."""
    begin, end = CASES
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{PAGE}: {begin} and {end} are missing; write it with exporter.reference findings")
    return f"{before}{begin}\n\n{table()}\n{end}{after}"


def table() -> str:
    """The table, sorted by name."""
    found = [*rows()]
    if not found:
        return "No scenario expects findings.\n"
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (HEAD, ["---"] * len(HEAD), *found))


def rows() -> Iterator[tuple[str, ...]]:
    """A row for each scenario that expects something of the findings, be it nothing."""
    own = {path.parent.name: path.parent for path in SCENARIOS.glob("*/frames.yaml")}
    shipped = {name: SCENARIOS / "shipped" / name for name in scenario.shipped()}
    for name, folder in sorted((own | shipped).items()):
        given = name if name in shipped else str(folder)
        course = folder / "expected" / "findings.yaml"
        moments = {float(path.stem): golden.expected(path) for path in folder.glob("expected/*.metrics")}
        moments = {at: wanted for at, wanted in moments.items() if FAMILY in wanted}
        if not course.exists() and not moments:
            continue
        played = dict(golden.reports(scenario.load(given)))
        if course.exists():
            expected, got = _course(golden.course(course), played)
            cycles = sorted(played)
        else:
            expected, got = _moments(moments, played)
            cycles = sorted(moments)
        words, came = _words(expected, cycles), _words(got, cycles)
        yield f"`{name}`: {_title(given)}", words, "as expected" if came == words else came


def _course(wanted: golden.Course, played: Mapping[float, Report]) -> tuple[Times, Times]:
    expected: Times = defaultdict(set)
    got: Times = defaultdict(set)
    for at, report in played.items():
        for entry in wanted.found:
            if float(entry.get("from", 0)) <= at < float(entry.get("until", "inf")):
                expected[_name(entry["finding"], entry["kind"], entry.get("explained_by", ""))].add(at)
        for one in report.diagnosis.findings:
            name = one.holds.subject.finding
            if one.active and name not in wanted.silent_on:
                got[_name(name, one.holds.kind, one.explained_by or "")].add(at)
    return expected, got


def _moments(moments: Mapping[float, golden.Samples], played: Mapping[float, Report]) -> tuple[Times, Times]:
    expected: Times = defaultdict(set)
    got: Times = defaultdict(set)
    for at, wanted in moments.items():
        for times, samples in ((expected, wanted), (got, golden.samples(played[at]))):
            for labels, number in samples[FAMILY].items():
                of = dict(labels)
                if number:
                    times[_name(of["finding"], of["kind"], "")].add(at)
    return expected, got


def _name(finding: str, kind: str, explained_by: str) -> str:
    return f"`{finding}` {kind}" + (f" (explained by {explained_by})" if explained_by else "")


def _title(name: str) -> str:
    place = Path(scenario.__file__).parents[1] / "scenarios" / name if "/" not in name else Path(name)
    return (place / "story.md").read_text().splitlines()[0].removeprefix("# ")


def _words(found: Times, cycles: list[float]) -> str:
    """Each finding and when it was there: from its first cycle to the one in which it was gone."""
    words = []
    for name, times in sorted(found.items(), key=lambda item: (min(item[1]), item[0])):
        spans = "; ".join(_spans(times, cycles))
        words.append(f"{name} {spans}")
    return ", ".join(words) or "nothing"


def _spans(times: set[float], cycles: list[float]) -> Iterator[str]:
    begun: float | None = None
    for at in cycles:
        if at in times and begun is None:
            begun = at
        elif at not in times and begun is not None:
            yield f"{begun:g} to {at:g} s"
            begun = None
    if begun is not None:
        yield f"from {begun:g} s"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
