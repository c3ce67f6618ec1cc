"""From a row of the table to series by the minute: a course of what holds goes in, series come out."""

from __future__ import annotations

from tests.alerts.promtool import TARGET, Labels, Series
from tests.alerts.table import Line, Row

SCRAPED: Labels = {"namespace": "monitoring", "pod": "kubegpu-exporter-x", "container": "exporter"}
ON, OFF, AWAY = "on", "off", "away"
RENAMED = {name: f"exported_{name}" for name in SCRAPED}


def phases(row: Row, *lengths: tuple[str, int]) -> list[str]:
    """What holds at each minute: ON, OFF or AWAY, after the row's lead."""
    course = [OFF] * row.lead
    for phase, length in lengths:
        course += [phase] * length
    return course


def _values(line: Line, course: list[str]) -> list[float | None]:
    values: list[float | None] = []
    since, last = 0, None if line.on is None else line.on(0)
    for phase in course:
        if phase == AWAY:
            values.append(None)
        elif phase == ON or (line.stays and since == 0):
            last = None if line.on is None else line.on(since)
            values.append(last)
        else:
            values.append(last if line.stays else None if line.off is None else line.off(since))
        since += phase != OFF
    return values


def series(row: Row, course: list[str], *, mapped: bool = False, **target: str) -> list[Series]:
    """The series of a row, and a healthy exporter around them; `mapped` as a scrape that renames."""
    made = []
    for line in row.lines:
        own = {RENAMED[k] if mapped and k in RENAMED else k: v for k, v in line.labels.items()}
        whole = {**TARGET, **(SCRAPED if mapped else {}), **own, **target}
        made.append(Series(line.name, whole, _values(line, course)))
    here = {**TARGET, **(SCRAPED if mapped else {}), **target}
    healthy = {"up": {}, "kubegpu_exporter_build_info": {"version": "1"}}
    for name, more in healthy.items():
        if name not in {line.name for line in row.lines}:
            made.append(Series(name, {**here, **more}, [1] * len(course)))
    return made


def labels(row: Row, *, mapped: bool = False) -> Labels:
    """Labels of the row's alert."""
    target = {name: TARGET[name] for name in row.target}
    if mapped and row.target[0] == "job":
        target |= SCRAPED
    own = {RENAMED[k] if mapped and k in RENAMED else k: v for k, v in row.labels.items()}
    return {**target, **own, "severity": row.severity}
