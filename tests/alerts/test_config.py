"""The configuration: what it changes, and how it complains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.src import __main__ as command
from alerts.src import files, values
from alerts.src.config import Config, ConfigError, parse

ROOT = Path(__file__).parents[2]
BAD: tuple[tuple[str, str, str], ...] = (
    ("colour: red", "colour", "write one of alert_labels, alerts, cluster_label"),
    ("thresholds: {memory: 1GiB}", "thresholds.memory", "write one of absent_window"),
    ("thresholds: {memory_bytes: big}", "thresholds.memory_bytes", "write a size such as 512MiB"),
    ("thresholds: {memory_share: 5}", "thresholds.memory_share", "write a number from 0 to 1"),
    ("thresholds: {idle: 1}", "thresholds.idle", "write a duration with its unit"),
    ("thresholds: {surge_factor: true}", "thresholds.surge_factor", "write a number from 1"),
    ("thresholds: 5", "thresholds", "write keys and values"),
    ("labels: {pod: 1pod}", "labels.pod", "write the name of a label"),
    ("labels: {uuid: x}", "labels.uuid", "write one of container, namespace, pod"),
    ("target_labels: region", "target_labels", "write a list of names of labels"),
    ("job: '('", "job", "write a regular expression"),
    ("job: ''", "job", "write a regular expression that matches the job"),
    ("job: 'a`b'", "job", "without backticks"),
    ("runbook_url: https://x/", "runbook_url", "contains {alert} once"),
    ("runbook_url: runbooks/{alert}.md", "runbook_url", "write a URL"),
    ("for_scale: -1", "for_scale", "write a number from 0 to 100"),
    ("keep_firing_for: yes please", "keep_firing_for", "write true or false"),
    ("dashboard_url: 5", "dashboard_url", "write a text"),
    ("alerts: {GPUHot: {for: 1m}}", "alerts.GPUHot", "write one of GPUAllocatedNotVisible"),
    ("alerts: {GPUStuckProcess: {wait: 1m}}", "alerts.GPUStuckProcess.wait", "enabled, for, keep_firing_for"),
    ("alerts: {GPUStuckProcess: {for: soon}}", "alerts.GPUStuckProcess.for", "write a duration"),
    ("alert_labels: {severity: page}", "alert_labels.severity", "choose another name"),
    ("alert_labels: {'a b': c}", "alert_labels.a b", "write the name of a label"),
    ("- a list", "the file", "write keys and values"),
)


def _rules(config: Config) -> dict[tuple[str, str], dict[str, Any]]:
    data = yaml.safe_load(files.written(config, "a test")[files.ALERTS])
    rules = [rule for group in data["groups"] for rule in group["rules"]]
    return {(rule["alert"], rule["labels"]["severity"]): rule for rule in rules}


def _parsed(text: str) -> Config:
    return parse(yaml.safe_load(text), files.names())


@pytest.mark.parametrize(("text", "field", "remedy"), BAD)
def test_bad_configuration(text: str, field: str, remedy: str) -> None:
    """What cannot be used is named, with what to write instead."""
    with pytest.raises(ConfigError) as caught:
        _parsed(text)
    said = str(caught.value)
    assert said.startswith(f"{field}: ")
    assert remedy in said


def test_command_complains_and_writes_nothing(tmp_path: Path) -> None:
    """The command exits with 2, its last line names field and remedy, and no file is touched."""
    config, out = tmp_path / "config.yaml", tmp_path / "out"
    config.write_text("thresholds: {idle: 5}\n")
    said = subprocess.run(
        [sys.executable, "-m", "alerts.src", f"--config={config}", f"--output={out}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 2
    assert said.stderr.splitlines()[-1].startswith("thresholds.idle: 5 cannot be used: write a duration")
    assert not out.exists()


@pytest.mark.parametrize("text", [None, "a: [b"])
def test_unreadable_file(text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is missing, or no YAML, is named."""
    config = tmp_path / "config.yaml"
    if text is not None:
        config.write_text(text)
    assert command.main([f"--config={config}", f"--output={tmp_path}"]) == 2
    assert str(config) in capsys.readouterr().err


def test_check_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--check passes on what was written, and names a file that is missing or was changed."""
    out = f"--output={tmp_path}"
    assert command.main([out, "--check"]) == 1
    assert command.main([out]) == 0
    assert command.main([out, "--check"]) == 0
    capsys.readouterr()
    path = tmp_path / files.ALERTS
    path.write_text(path.read_text().replace("for: 1m", "for: 9m"))
    assert command.main([out, "--check"]) == 1
    assert files.ALERTS in capsys.readouterr().err


def test_generator_does_not_import_the_exporter() -> None:
    """Rules can be made where the exporter is not installed."""
    code = (
        "import sys, alerts.src.__main__; sys.exit(any(m.split('.')[0] == 'exporter' for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_scale_shortens_every_wait() -> None:
    """for_scale multiplies every `for` and `keep_firing_for`, which a rehearsal needs."""
    rule = _rules(_parsed("for_scale: 0.05"))["GPUMemoryOrphaned", "critical"]
    assert (rule["for"], rule["keep_firing_for"]) == ("30s", "30s")
    assert {rule["for"] for rule in _rules(_parsed("for_scale: 0")).values()} == {"0s"}


def test_single_alerts() -> None:
    """One alert waits longer, another one is left out, the others stay as they are."""
    rules = _rules(_parsed("alerts: {GPUStuckProcess: {for: 2m30s}, GPUHiddenHolder: {enabled: false}}"))
    assert rules["GPUStuckProcess", "critical"]["for"] == "2m30s"
    assert rules["GPUStuckProcess", "warning"]["for"] == "2m30s"
    assert rules["GPUOrphanProcess", "warning"]["for"] == "5m"
    assert ("GPUHiddenHolder", "info") not in rules
    assert len(rules) == len(_rules(Config())) - 1


def test_old_rulers() -> None:
    """Without keep_firing_for no rule has it."""
    assert not any("keep_firing_for" in rule for rule in _rules(_parsed("keep_firing_for: false")).values())


def test_labels_and_links() -> None:
    """Labels of the operator are on every alert, and links follow the pattern."""
    text = (
        "alert_labels: {team: gpu}\nrunbook_url: 'https://wiki.example.com/{alert}'\ndashboard_url: https://d"
    )
    for (name, severity), rule in _rules(_parsed(text)).items():
        assert rule["labels"] == {"severity": severity, "team": "gpu"}
        assert rule["annotations"]["runbook_url"] == f"https://wiki.example.com/{name.lower()}"
        assert rule["annotations"]["dashboard_url"] == "https://d"


def test_job_is_escaped() -> None:
    """A job with dots and percent signs stands in expressions and in templates as it is meant."""
    rule = _rules(_parsed(r"job: 'gpu\.exporter|100%'"))["GPUStuckProcess", "critical"]
    assert r'job=~"gpu\\.exporter|100%"' in rule["expr"]
    assert r'job=~"gpu\\.exporter|100%%"' in rule["annotations"]["description"]


def test_rewritten_labels_are_expected_with_a_mapping() -> None:
    """Where the operator maps the labels, nobody complains that they have other names."""
    assert not any(
        name == "KubeGPUExporterLabelsRewritten" for name, _ in _rules(_parsed("labels: {pod: exported_pod}"))
    )


def test_thresholds_reach_the_rules() -> None:
    """A threshold is what the rule compares with."""
    rules = _rules(_parsed("thresholds: {memory_bytes: 2GiB, memory_share: 0.1, idle: 30m}"))
    assert "> 2147483648" in rules["GPUMemoryOrphaned", "critical"]["expr"]
    assert "<= 0.1 *" in rules["GPUMemoryOrphaned", "critical"]["expr"]
    assert "> 1800" in rules["GPUIdleAllocation", "info"]["expr"]


@pytest.mark.parametrize(
    ("text", "seconds", "written"),
    [
        ("90s", 90, "1m30s"),
        ("1h30m", 5400, "1h30m"),
        ("1.5h", 5400, "1h30m"),
        ("2d", 172800, "2d"),
        ("0s", 0, "0s"),
        ("0.25s", 0.25, "250ms"),
    ],
)
def test_durations(text: str, seconds: float, written: str) -> None:
    """Durations are read and written as Prometheus does."""
    assert values.seconds(text) == seconds
    assert values.duration(seconds) == written
