import subprocess
from functools import cache
from pathlib import Path

import pytest

from exporter import scenario
from exporter.model import Report
from tests import golden

HERE = Path(__file__).parent
SHIPPED = HERE / "shipped"
OWN = sorted(path.parent for path in HERE.glob("*/frames.yaml"))
EXPECTED = [
    pytest.param(folder, path, id=f"{folder.name}-{path.stem}")
    for folder in (*OWN, *(SHIPPED / name for name in scenario.shipped()))
    for path in sorted(folder.glob("expected/*.metrics"), key=lambda path: float(path.stem))
]
COURSES = sorted(path.parents[1] for path in HERE.glob("**/expected/findings.yaml"))


@cache
def play(folder: Path) -> dict[float, Report]:
    name = folder.name if folder.parent == SHIPPED else str(folder)
    return dict(golden.reports(scenario.load(name)))


@pytest.mark.parametrize(("folder", "path"), EXPECTED)
def test_the_exposition_is_what_the_story_says(folder: Path, path: Path) -> None:
    """Each family that the expectation names has exactly the series that it lists, and their values."""
    reports = play(folder)
    assert float(path.stem) in reports, f"no cycle at {path.stem} s; there are {list(reports)}"
    wanted = golden.expected(path)
    got = golden.samples(reports[float(path.stem)])
    assert wanted, "an expectation that names no family"
    assert not [str(difference) for difference in golden.differences(wanted, got)]


@pytest.mark.parametrize("folder", COURSES, ids=lambda folder: folder.name)
def test_findings_come_and_go_as_the_story_says(folder: Path) -> None:
    """In every cycle exactly the findings that the expectation tells are active; all others are silent."""
    wanted = golden.course(folder / "expected" / "findings.yaml")
    departures = [
        line for at, report in play(folder).items() for line in golden.departures(wanted, at, report)
    ]
    assert not departures


@pytest.mark.parametrize(
    "folder", [*OWN, *(SHIPPED / name for name in scenario.shipped())], ids=lambda p: p.name
)
def test_every_scenario_has_a_story_and_an_expectation(folder: Path) -> None:
    """Without its story nobody can tell a right expectation from a wrong one."""
    data = (
        Path(scenario.__file__).parents[1] / "scenarios" / folder.name if folder.parent == SHIPPED else folder
    )
    assert (data / "story.md").read_text().startswith("# ")
    assert list(folder.glob("expected/*"))


@pytest.mark.parametrize(
    "folder", [*OWN, *(SHIPPED / name for name in scenario.shipped())], ids=lambda p: p.name
)
def test_the_exposition_passes_promtool(folder: Path) -> None:
    """The whole text of a scenario's last cycle is clean by Prometheus' own linter."""
    *_, last = play(folder).values()
    text = golden.text(last).encode()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
