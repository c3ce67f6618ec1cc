"""The texts of every alert, as a person gets them: written by hand, compared by promtool to the letter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.src.config import Config
from tests.alerts.course import ON, labels, phases, series
from tests.alerts.promtool import TARGET, Check, Series, Trial, rules, run
from tests.alerts.table import ROWS, Row

RUNBOOK = "https://github.com/kubegpu/kubegpu-exporter/blob/main/alerts/runbooks/{}.md"


@dataclass(frozen=True)
class Text:
    """What is written when the first row of the alert and severity holds, beside these series."""

    alert: str
    severity: str
    summary: str
    description: str
    beside: Sequence[Mapping[str, Any]] = ()


TEXTS = [Text(**one) for one in yaml.safe_load((Path(__file__).parent / "texts.yaml").read_text())]


def _row(text: Text) -> Row:
    return next(row for row in ROWS if (row.alert, row.severity) == (text.alert, text.severity))


def _beside(labels: dict[str, Any], minutes: int) -> Series:
    """A series of the exporter, with the same value all the time or one that counts."""
    name, value = labels.pop("metric"), labels.pop("value")
    values = list(range(minutes)) if value == "each minute" else [value] * minutes
    return Series(f"kubegpu_{name}", {**TARGET, **labels}, values)


def _trial(text: Text) -> Trial:
    row = _row(text)
    course = phases(row, (ON, row.starts + row.hold + 2))
    beside = [_beside(dict(one), len(course)) for one in text.beside]
    annotations = {
        "summary": text.summary,
        "description": text.description,
        "runbook_url": RUNBOOK.format(text.alert.lower()),
    }
    check = Check(row.lead + row.starts + row.hold, text.alert, [labels(row)], annotations)
    return Trial(f"{text.alert} {text.severity}", [*series(row, course), *beside], [check])


@pytest.mark.parametrize("alert", sorted({text.alert for text in TEXTS}))
def test_texts(alert: str, tmp_path: Path) -> None:
    """An alert says what, where, whose, how it was found and what to do first, and nothing that a process
    calls itself.
    """
    some = [_trial(text) for text in TEXTS if text.alert == alert]
    run(some, rules(tmp_path, only=alert, texts=True), tmp_path)


def test_every_alert_has_its_text() -> None:
    """No alert and severity is left out."""
    assert sorted((text.alert, text.severity) for text in TEXTS) == sorted(
        {(row.alert, row.severity) for row in ROWS}
    )


def test_dashboard_link(tmp_path: Path) -> None:
    """Where the configuration has a dashboard the alert links to it, with what the template says."""
    text = next(one for one in TEXTS if one.alert == "KubeGPUExporterSeriesDropped")
    trial = _trial(text)
    (check,) = trial.checks
    linked = {**check.texts, "dashboard_url": "https://grafana.example.com/d/x?node=gpu-1"}
    config = Config(dashboard_url="https://grafana.example.com/d/x?node={{ $labels.node }}")
    paths = rules(tmp_path, config, only=text.alert, texts=True)
    run(
        [Trial("linked", trial.series, [Check(check.minute, check.alert, check.expected, linked)])],
        paths,
        tmp_path,
    )


def test_without_node_label_the_target_is_named(tmp_path: Path) -> None:
    """A set-up without a label for the node still says which target it is about."""
    text = next(one for one in TEXTS if one.alert == "KubeGPUExporterSeriesDropped")
    trial = _trial(text)
    (check,) = trial.checks
    bare = [
        Series(one.name, {k: v for k, v in one.labels.items() if k not in ("node", "cluster")}, one.minutes)
        for one in trial.series
    ]
    expected = [{k: v for k, v in one.items() if k not in ("node", "cluster")} for one in check.expected]
    said = check.texts["description"].replace("gpu-1 of cluster blue", "10.0.0.1:9836")
    wanted = Check(check.minute, check.alert, expected, {**check.texts, "description": said})
    run([Trial("bare", bare, [wanted])], rules(tmp_path, only=text.alert, texts=True), tmp_path)
