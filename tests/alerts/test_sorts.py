"""Every rule of the table: it fires, waits, ends, stays through a gap, stays in its cluster, and is silent
where its metrics are missing. promtool evaluates the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from alerts.src import files
from alerts.src.config import Config, Names
from alerts.src.rule import Alert
from exporter.diagnosis import RULES
from tests.alerts.course import AWAY, OFF, ON, labels, phases, series
from tests.alerts.promtool import Check, Trial, rules, run, run_apart
from tests.alerts.table import ROWS, Row

MAPPED = Config(labels=Names("exported_namespace", "exported_pod", "exported_container"))
ABSENT = "KubeGPUExporterAbsent"


def _fires(row: Row, *, mapped: bool = False) -> Trial:
    minute = row.lead + row.starts + row.hold
    course = phases(row, (ON, row.starts + row.hold + 2))
    expected = [labels(row, mapped=mapped)]
    checks = [Check(minute - 1, row.alert), Check(minute, row.alert, expected)]
    if not row.sparse:
        checks += [
            Check(minute, other)
            for other in sorted(files.names() - {row.alert})
            if other != "GPUMemoryOrphaned" or not row.alert.startswith("GPUMemory")
        ]
    return Trial(f"{row.id} fires", series(row, course, mapped=mapped), checks)


def _waits(row: Row) -> Trial:
    off = row.starts + row.hold - row.ends
    course = phases(row, (ON, off), (OFF, row.ends + 5))
    minutes = range(row.lead + row.starts, len(course))
    return Trial(f"{row.id} waits", series(row, course), [Check(m, row.alert) for m in minutes])


def _ends(row: Row) -> Trial:
    on = row.starts + row.hold + 4
    course = phases(row, (ON, on), (OFF, row.ends + row.keep + 4))
    end = row.lead + on + row.ends + row.keep
    checks = [Check(end - 1, row.alert, [labels(row)]), Check(end, row.alert)]
    return Trial(f"{row.id} ends", series(row, course), checks)


def _gap(row: Row) -> Trial:
    """The exporter is away for a minute less than the alert is kept."""
    before = row.starts + row.hold + 2
    course = phases(row, (ON, before), (AWAY, row.keep - 1), (ON, 4))
    minutes = range(row.lead + before - 1, len(course))
    return Trial(f"{row.id} gap", series(row, course), [Check(m, row.alert, [labels(row)]) for m in minutes])


def _clusters(row: Row) -> Trial:
    """The other cluster has a node, a target and a device of the same names, and nothing is wrong there."""
    course = phases(row, (ON, row.starts + row.hold + 2))
    quiet = [OFF] * len(course)
    both = [*series(row, course), *series(row, quiet, cluster="green")]
    minute = row.lead + row.starts + row.hold
    return Trial(f"{row.id} clusters", both, [Check(minute, row.alert, [labels(row)])])


def _missing(row: Row) -> Iterator[Trial]:
    """Each series of the row alone is missing, and all of them: what then holds is not the alert, except
    where that series only decides on the severity.
    """
    minute = row.lead + row.starts + row.hold
    course = phases(row, (ON, row.starts + row.hold + 2))
    for name in {line.name for line in row.lines}:
        kept = [one for one in series(row, course) if one.name != name]
        if name not in ("kubegpu_gpu_allocated", "kubegpu_source_paused") and row.alert != ABSENT:
            if row.alert == "GPUMemoryOrphaned" and name.endswith("total_bytes"):
                continue
            yield Trial(f"{row.id} without {name}", kept, [Check(minute, row.alert)])


SORTS = {"waits": _waits, "ends": _ends, "gap": _gap, "clusters": _clusters}
DENSE = [row for row in ROWS if not row.sparse]


def _apart(rows: Iterable[Row], make: Callable[[Row], Iterable[Trial]]) -> dict[str, list[Trial]]:
    trials: dict[str, list[Trial]] = {}
    for row in rows:
        trials.setdefault(row.alert, []).extend(make(row))
    return {alert: some for alert, some in trials.items() if some}


def test_fires_and_nothing_else_does(tmp_path: Path) -> None:
    """Each alert fires after exactly its time, not a minute before, and while it does no other one fires."""
    run((_fires(row) for row in DENSE), rules(tmp_path), tmp_path)


def test_fires_after_hours(tmp_path: Path) -> None:
    """The same of alerts that look at hours or a day, but for the others."""
    run_apart(_apart((row for row in ROWS if row.sparse), lambda row: [_fires(row)]), tmp_path)


@pytest.mark.parametrize("sort", SORTS)
def test_sorts(sort: str, tmp_path: Path) -> None:
    """What ended sooner fires never; an alert ends exactly as late as it is kept; a gap shorter than that
    changes nothing; another cluster, where nothing is wrong, is not accused.
    """
    rows = [row for row in ROWS if row.alert != ABSENT or sort not in ("gap", "clusters")]
    run_apart(_apart(rows, lambda row: [SORTS[sort](row)]), tmp_path)


def test_missing_metrics_are_silent(tmp_path: Path) -> None:
    """No alert comes from metrics that are not there: unsupported, switched off, or of a source down."""
    run_apart(_apart(ROWS, _missing), tmp_path)


def test_label_mapping(tmp_path: Path) -> None:
    """With the label mapping the rules do the same where Prometheus renamed the workload's labels."""
    rows = [row for row in ROWS if row.alert != "KubeGPUExporterLabelsRewritten"]
    run_apart(_apart(rows, lambda row: [_fires(row, mapped=True)]), tmp_path, MAPPED)


def test_every_alert_and_severity_has_a_row() -> None:
    """The table leaves out no rule, no kind of a finding, and names none that does not exist."""
    written = {
        (rule.name, rule.severity)
        for group in files.alerting(Config())
        for rule in group.rules
        if isinstance(rule, Alert)
    }
    assert {(row.alert, row.severity) for row in ROWS} == written
    kinds = {
        (line.labels["finding"], line.labels["kind"])
        for row in ROWS
        for line in row.lines
        if line.name == "kubegpu_findings" and "kind" in line.labels
    }
    of_bytes = "orphaned_memory"  # its alert looks at bytes
    assert kinds == {
        (rule.finding.value, kind.name)
        for rule in RULES
        for kind in rule.kinds
        if rule.finding.value != of_bytes
    }
