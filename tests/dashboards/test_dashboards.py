"""The committed dashboards: built from their sources, free of problems, and the rules for it can fail."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exporter.diagnosis.table import RULES as FINDINGS
from tests.dashboards import lint, queries
from tests.dashboards.lint import Board

Change = Callable[[Board], None]


@pytest.mark.parametrize("name", queries.DASHBOARDS)
@pytest.mark.parametrize("rule", lint.RULES)
def test_rule(name: str, rule: str) -> None:
    """No dashboard breaks a rule; what each rule wants is in its docstring."""
    assert list(lint.RULES[rule](queries.load(name))) == []


def test_every_exclusion_has_a_reason() -> None:
    """An exclusion without words is a rule that somebody gave up."""
    assert all(len(reason.split()) > 2 for _, _, reason in lint.EXCLUSIONS)


# --- the files are what the sources build -------------------------------------------------------------------


def build(*flags: str | Path) -> tuple[int, str]:
    """One run of the builder, as whoever changes a dashboard runs it: exit status and what it says."""
    argv = [sys.executable, "-m", "dashboards.src", *map(str, flags)]
    done = subprocess.run(argv, cwd=queries.FOLDER.parent, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_committed_files_are_what_the_sources_build() -> None:
    """Nobody edited the JSON by hand, and nobody forgot to write it after a change of the sources."""
    assert build("--check") == (0, "")


def test_check_sees_a_changed_and_a_missing_file(tmp_path: Path) -> None:
    """The check fails for one changed byte and for a missing file, and names them."""
    assert build("--output", tmp_path) == (0, "")
    assert build("--output", tmp_path, "--check") == (0, "")
    changed, missing = tmp_path / "fleet.json", tmp_path / "node.json"
    changed.write_text(changed.read_text().replace("GPU fleet", "GPU sheet"))
    missing.unlink()
    status, said = build("--output", tmp_path, "--check")
    assert status == 1
    assert "fleet.json" in said
    assert "node.json" in said
    assert "exporter.json" not in said


def test_options_of_the_builder(tmp_path: Path) -> None:
    """Runbooks elsewhere, a cluster variable that shows, and the form for grafana.com are one flag each."""
    flags = ["--runbooks=https://runbooks.example/", "--several-clusters", "--portable"]
    assert build("--output", tmp_path, *flags) == (0, "")
    text = (tmp_path / "fleet.json").read_text()
    board = json.loads(text)
    assert "https://runbooks.example/${__data.fields" in text
    assert "alerts/runbooks" not in text
    assert lint.variables(board)["cluster"].get("hide", 0) == 0
    assert [one["pluginId"] for one in board["__inputs"]] == ["prometheus"]
    assert lint.variables(board)["datasource"]["current"]["value"] == "${DS_PROMETHEUS}"
    assert {one["id"] for one in board["__requires"]} == {"grafana", "prometheus"}


@pytest.mark.parametrize("name", ["fleet", "node", "namespace"])
def test_each_finding_leads_to_the_runbook_of_its_alert(name: str) -> None:
    """The tables of findings name the alert's runbook for every finding that has an alert."""
    found = [
        one for one in queries.panels(queries.load(name)) if re.match(r"Findings( about|$)", one["title"])
    ]
    assert len(found) == 1
    expr = found[0]["targets"][0]["expr"]
    for rule in FINDINGS:
        assert rule.alert, f"{rule.finding} has no alert"
        assert f'"runbook", "{rule.alert.lower()}", "finding", "{rule.finding.value}")' in expr


@pytest.mark.parametrize("name", ["fleet", "node", "namespace"])
def test_runbooks_that_are_linked_exist(name: str) -> None:
    """No link to a runbook leads nowhere, also not the one of an exporter that is silent."""
    named = set(re.findall(r'"runbook\\", \\"(\w+)\\"', json.dumps(queries.load(name))))
    assert {"kubegpuexporterdown", "kubegpuexporterabsent"} < named
    runbooks = {path.stem for path in (queries.FOLDER.parent / "alerts" / "runbooks").glob("*.md")}
    assert named <= runbooks


# --- the table of what fills what ---------------------------------------------------------------------------


def test_every_query_has_a_line_and_every_line_a_query() -> None:
    """No query goes unproven against Prometheus, and no line is about a panel that is no more."""
    found = {(one.dashboard, one.panel, one.ref) for one in queries.targets()}
    for dashboard, panel, refs, _, _ in queries.LINES:
        assert any(one[:2] == (dashboard, panel) for one in found), f"no panel {dashboard} / {panel}"
        for ref in refs:
            assert (dashboard, panel, ref) in found, f"no target {ref} in {dashboard} / {panel}"


# --- the rules can fail -------------------------------------------------------------------------------------


def _panel(board: Board, kind: str) -> Board:
    panel: Board = next(one for one in queries.panels(board) if one["type"] == kind)
    return panel


def _expr(old: str, new: str) -> Change:
    def change(board: Board) -> None:
        target = next(
            target for one in queries.panels(board) for target in one["targets"] if old in target["expr"]
        )
        target["expr"] = target["expr"].replace(old, new)

    return change


def _variable(name: str, key: str, value: Any) -> Change:
    return lambda board: lint.variables(board)[name].update({key: value})


def _set(key: str, value: Any) -> Change:
    return lambda board: board.update({key: value})


def _of_panel(kind: str, key: str, value: Any) -> Change:
    return lambda board: _panel(board, kind).update({key: value})


def _default(kind: str, key: str, value: Any) -> Change:
    return lambda board: _panel(board, kind)["fieldConfig"]["defaults"].update({key: value})


def _text(old: str, new: str) -> Change:
    def change(board: Board) -> None:
        text = json.dumps(board)
        assert old in text
        board.clear()
        board.update(json.loads(text.replace(old, new)))

    return change


def _zero_for_unknown(board: Board) -> None:
    mapping = next(one for one in _panel(board, "stat")["fieldConfig"]["defaults"]["mappings"])
    mapping["options"]["result"]["text"] = "0"


def _no_legend_label(board: Board) -> None:
    _panel(board, "timeseries")["targets"][0]["legendFormat"] = "{{nodes}}"


def _annotation(board: Board) -> None:
    board["annotations"]["list"][0]["expr"] = 'ALERTS{alertname=~"GPU.*"}'


MISTAKES: tuple[tuple[str, Change], ...] = (
    ("template-datasource-rule", _variable("datasource", "label", "Prometheus")),
    ("template-job-rule", _variable("job", "multi", False)),
    ("template-all-rule", _variable("node", "allValue", ".+")),
    ("template-all-rule", _variable("cluster", "hide", 0)),
    ("template-on-time-change-reload-rule", _variable("node", "refresh", 1)),
    (
        "template-label-promql-rule",
        _text("label_values(kubegpu_exporter_build_info, job)", "label_values(kubegpu_x, job)"),
    ),
    (
        "panel-datasource-rule",
        _of_panel("table", "datasource", {"type": "prometheus", "uid": "P1809F7CD0C75ACF3"}),
    ),
    ("panel-title-description-units-rule", _of_panel("stat", "description", "")),
    ("panel-title-description-units-rule", _default("timeseries", "unit", "")),
    ("panel-title-description-units-rule", _default("table", "noValue", "0")),
    ("target-required-rule", _of_panel("table", "targets", [])),
    ("unknown-is-not-calm-rule", _default("stat", "mappings", [])),
    ("unknown-is-not-calm-rule", _zero_for_unknown),
    ("places-rule", _of_panel("table", "gridPos", {"x": 0, "y": 1, "w": 6, "h": 4})),
    ("places-rule", _of_panel("table", "gridPos", {"x": 20, "y": 900, "w": 6, "h": 4})),
    ("target-promql-rule", _expr("sum(", "sum((")),
    ("catalog-rule", _expr("kubegpu_gpu_memory_used_bytes", "kubegpu_gpu_memory_used_mib")),
    ("catalog-rule", _expr('pod!=""', 'pods!=""')),
    ("target-job-rule", _expr('job=~"$job", cluster=~"$cluster", node=~"$node"', 'cluster=~"$cluster"')),
    (
        "target-rate-interval-and-counter-rule",
        _expr("kubegpu_gpu_allocated", "kubegpu_gpu_energy_joules_total"),
    ),
    ("legend-rule", _no_legend_label),
    ("legend-rule", _expr("sum by (cause)", "sum by (cause, job)")),
    ("uneditable-dashboard-rule", _set("editable", True)),
    ("uneditable-dashboard-rule", _set("id", 7)),
    ("uneditable-dashboard-rule", _set("uid", "x" * 41)),
    ("links-rule", _text("/d/kubegpu-node?", "/d/kubegpu-nodes?")),
    ("links-rule", _text("&var-node=", "&var-host=")),
    ("links-rule", _set("links", [])),
    ("annotations-rule", _annotation),
)


@pytest.mark.parametrize(
    ("rule", "change"), MISTAKES, ids=[f"{at}-{one[0]}" for at, one in enumerate(MISTAKES)]
)
def test_rule_sees_a_mistake(rule: str, change: Change) -> None:
    """Each rule finds the mistake that it is there for."""
    board = copy.deepcopy(queries.load("fleet"))
    change(board)
    assert list(lint.RULES[rule](board)) != []


def test_join_rule_sees_a_bare_series() -> None:
    """A join with series as they are scraped is found."""
    board = copy.deepcopy(queries.load("node"))
    _expr("group_left (gpu) topk by", "group_left (gpu) (kubegpu_gpu_info) or topk by")(board)
    assert list(lint.RULES["join-rule"](board)) != []


def test_a_line_for_a_query_that_is_not_there_is_seen() -> None:
    """A query that no line speaks for is an error, not a query that is left out."""
    with pytest.raises(LookupError, match="0 lines"):
        queries.line("fleet", "A panel that is new", "A")
