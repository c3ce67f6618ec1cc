"""The rules keep their contracts: with the exporter's catalog and findings, with the design, with the files
that are committed, and with PromQL as Prometheus 2.42 knows it.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.src import __main__ as command
from alerts.src import files
from alerts.src.config import DEFAULT, Config, Names, read
from alerts.src.rule import Alert, Record
from exporter.diagnosis import RULES
from exporter.model import Severity
from exporter.sources.nvml_fields import THRESHOLDS
from tests.alerts import expressions
from tests.alerts.rulebook import alerts, known, records

HOME = Path(__file__).parents[2] / "alerts"
MAPPED = Config(labels=Names("exported_namespace", "exported_pod", "exported_container"))
# Findings without an alert of their own, each with its reason. So far there is none.
WITHOUT_ALERT: dict[str, str] = {}
DESIGN = {
    "GPUStuckProcess": {"critical", "warning"},
    "GPUMemoryOrphaned": {"critical", "warning"},
    "GPUPhantomProcess": {"warning"},
    "GPUOrphanProcess": {"warning"},
    "GPUUsedByWrongPod": {"critical", "warning"},
    "GPUExclusiveShared": {"critical"},
    "GPUAllocatedNotVisible": {"warning"},
    "GPUVisibleNotAllocated": {"info"},
    "GPUHiddenHolder": {"info"},
    "GPUNodeCapacityMismatch": {"critical", "warning"},
    "GPUExternalProcess": {"warning", "info"},
    "GPUIdleAllocation": {"info"},
    "GPUTemperatureHigh": {"warning"},
    "GPUMemoryGrowing": {"info"},
    "GPUProcessSurge": {"info"},
    "GPUStackComponentNotReady": {"warning"},
    "KubeGPUExporterDown": {"warning"},
    "KubeGPUExporterAbsent": {"critical"},
    "KubeGPUExporterSourceDown": {"critical", "warning"},
    "KubeGPUExporterFindingUndetermined": {"warning"},
    "KubeGPUExporterLabelsRewritten": {"warning"},
    "KubeGPUExporterSeriesDropped": {"info"},
}
# Not in Prometheus 2.42, or experimental there.
NEWER = re.compile(
    r"\b(info|limitk|limit_ratio|sort_by_label|sort_by_label_desc|mad_over_time|double_exp\w*)\s*\("
)


def _id(rule: Alert | Record) -> str:
    return f"{rule.name}-{rule.severity}" if isinstance(rule, Alert) else rule.name


EVERY: list[Alert | Record] = [*alerts(), *records()]

# ---------------------------------------------------------------- the exporter's metrics and findings


@pytest.mark.parametrize("rule", EVERY, ids=_id)
def test_metrics_and_labels_are_in_the_catalog(rule: Alert | Record) -> None:
    """Every metric that a rule selects exists, with every label that it matches or aggregates by."""
    labels_of = known()
    foreign = {"exported_namespace", "exported_pod"} | {"namespace", "pod", "container"}
    for metric, labels in expressions.selectors(rule.expr).items():
        assert metric in labels_of, metric
        allowed = foreign if rule.name == "KubeGPUExporterLabelsRewritten" else set()
        assert labels <= labels_of[metric] | allowed, (metric, labels - labels_of[metric])
    everything = set().union(*labels_of.values())
    assert expressions.grouped(rule.expr) <= everything


@pytest.mark.parametrize("rule", alerts(), ids=_id)
def test_texts_name_labels_that_the_alert_has(rule: Alert) -> None:
    """A template names no label that the expression drops, and asks for metrics and labels that exist."""
    _texts(rule, None)


@pytest.mark.parametrize("rule", alerts(MAPPED), ids=_id)
def test_texts_of_the_label_mapping(rule: Alert) -> None:
    """The same where the workload labels have other names."""
    _texts(rule, MAPPED)


def _texts(rule: Alert, config: Config | None) -> None:
    labels_of = known(config)
    result = expressions.result(rule.expr, labels_of)
    named = expressions.template_labels(rule.description)
    assert named <= result, (named - result, result)
    assert not expressions.template_labels(rule.summary)
    for query in expressions.template_queries(rule.description):
        for metric, labels in expressions.selectors(query).items():
            assert labels <= labels_of[metric], (metric, labels - labels_of[metric])
    assert rule.description.count("| query") == len(expressions.template_queries(rule.description))


def test_every_finding_has_its_alert() -> None:
    """Each finding names an alert that exists, or stands among those without, with a reason."""
    names = {rule.name for rule in alerts()}
    for rule in RULES:
        assert rule.alert in names or WITHOUT_ALERT.get(rule.finding.value)
    assert set(WITHOUT_ALERT) <= {rule.finding.value for rule in RULES}


def test_severities_of_findings_are_the_exporters() -> None:
    """A kind of a finding has the severity that the exporter's own table says, and exactly one of the rules
    for it looks at that kind. Alerts that also weigh bytes are not held to it.
    """
    weighed = {"GPUMemoryOrphaned", "GPUExternalProcess", "GPUIdleAllocation"}
    for rule in RULES:
        if rule.alert in weighed:
            continue
        some = [alert for alert in alerts() if alert.name == rule.alert]
        for kind in rule.kinds:
            severity: Severity = kind.severity or rule.severity
            matching = [alert.severity for alert in some if _looks_at(alert.expr, kind.name)]
            assert matching == [severity.value], (rule.finding, kind.name)


def _looks_at(expr: str, kind: str) -> bool:
    found = re.search(r'kind=~"([^"]*)"', expr)
    return found is None or kind in found[1].split("|")


def test_labels_with_fixed_values_exist() -> None:
    """The names of sources, thresholds, causes and findings that rules match are the exporter's."""
    text = "\n".join(rule.expr for rule in EVERY)
    assert set(re.findall(r'threshold="(\w+)"', text)) <= {name for name, _ in THRESHOLDS}
    assert set(re.findall(r'finding="(\w+)"', text)) <= {rule.finding.value for rule in RULES}


# ---------------------------------------------------------------- shape


def test_alerts_are_the_designs() -> None:
    """Every alert of the design is there with its severities, and no other."""
    written: dict[str, set[str]] = {}
    for rule in alerts():
        written.setdefault(rule.name, set()).add(rule.severity)
    assert written == DESIGN


@pytest.mark.parametrize("rule", alerts(), ids=_id)
def test_shape_of_an_alert(rule: Alert) -> None:
    """An alert compares, waits, is kept, has one sentence for a summary and says what to do first."""
    assert expressions.compares(rule.expr)
    assert rule.hold >= 60
    assert rule.keep >= 300
    assert re.fullmatch(r"[A-Z][^\n{}]*\.", rule.summary)
    assert rule.description.split("\n")[-1].startswith("First: ")
    assert len({one.summary for one in alerts() if one.name == rule.name}) == 1
    if rule.name.startswith("GPU"):
        assert "absent" not in rule.expr


@pytest.mark.parametrize("rule", EVERY, ids=_id)
def test_promql_of_prometheus_2_42(rule: Alert | Record) -> None:
    """No function that Prometheus 2.42 lacks, no sampling, and every selector of ours names the job."""
    assert not NEWER.search(rule.expr)
    assert "topk" not in rule.expr
    for metric, labels in expressions.selectors(rule.expr).items():
        assert ":" in metric or "job" in labels, metric
    assert "pid" not in expressions.result(rule.expr, known())


@pytest.mark.parametrize("record", records(), ids=_id)
def test_names_of_records(record: Record) -> None:
    """A recorded series is level:metric:operation, and is kept apart by cluster."""
    level, metric, operation = record.name.split(":")
    assert level
    assert operation
    assert metric.startswith("kubegpu_")
    assert "cluster" in expressions.result(record.expr, known())


@pytest.mark.parametrize("rule", alerts(), ids=_id)
def test_cluster_survives(rule: Alert) -> None:
    """Every alert says which cluster it is about."""
    assert "cluster" in expressions.result(rule.expr, known())


# ---------------------------------------------------------------- files


def test_committed_files_are_what_the_generator_writes() -> None:
    """Rule files and tables are those of the configuration beside them."""
    assert command.main(["--check"]) == 0


def test_defaults_are_those_of_the_file() -> None:
    """What alerts/config.yaml says is also the default of what it might leave out."""
    assert read(DEFAULT, files.names()) == Config()


@pytest.mark.parametrize("config", [Config(), MAPPED, Config(cluster_label="", target_labels=("pool",))])
def test_promtool_accepts_the_files(config: Config, tmp_path: Path) -> None:
    """In no set-up does promtool find anything to complain of."""
    for name, text in files.written(config, "a test").items():
        (tmp_path / name).write_text(text)
        said = subprocess.run(
            ["promtool", "check", "rules", "--lint=all", "--lint-fatal", str(tmp_path / name)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert said.returncode == 0, said.stdout + said.stderr


def test_alerts_may_share_a_file_with_others() -> None:
    """No group of the two files has the name of another one."""
    groups: list[str] = []
    for name in (files.RECORDING, files.ALERTS):
        data: dict[str, Any] = yaml.safe_load((HOME / name).read_text())
        groups += [group["name"] for group in data["groups"]]
    assert len(set(groups)) == len(groups)
