"""promtool's unit tests, from Python: series by the minute and expected alerts go in, promtool is the judge.

What fires is for the tables to say; nothing here computes an expectation from a rule. Rules are tested
without their texts, because promtool compares those too; the texts have a test of their own.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from alerts.src import files
from alerts.src.config import Config

Labels = dict[str, str]
TARGET: Labels = {
    "job": "kubegpu-exporter",
    "instance": "10.0.0.1:9836",
    "node": "gpu-1",
    "cluster": "blue",
    "region": "eu",  # a label of the target that no rule knows
}


@dataclass(frozen=True)
class Series:
    """One series and what it has at each minute; None: it is not there, and Prometheus knows that it went."""

    name: str
    labels: Labels
    minutes: Sequence[float | None]

    def written(self) -> dict[str, str]:
        """As promtool reads it."""
        labels = ",".join(f"{key}={_quoted(value)}" for key, value in self.labels.items() if value)
        return {"series": f"{self.name}{{{labels}}}", "values": _notation(self.minutes)}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _notation(minutes: Sequence[float | None]) -> str:
    words = []
    for index, value in enumerate(minutes):
        if value is not None:
            words.append(f"{value:.10g}")
        else:
            words.append("stale" if index and minutes[index - 1] is not None else "_")
    return " ".join(words)


@dataclass
class Check:
    """Alerts of one name at one minute. `texts` only where rules have theirs."""

    minute: int
    alert: str
    expected: Sequence[Labels] = ()
    texts: Mapping[str, str] = field(default_factory=dict)

    def written(self) -> dict[str, Any]:
        """As promtool reads it."""
        alerts = [
            {"exp_labels": {k: v for k, v in one.items() if v}, "exp_annotations": dict(self.texts)}
            for one in self.expected
        ]
        return {"eval_time": f"{self.minute}m", "alertname": self.alert, "exp_alerts": alerts}


@dataclass
class Trial:
    """Series, and what is expected of them."""

    name: str
    series: Sequence[Series]
    checks: Sequence[Check] = ()
    samples: Mapping[tuple[str, int], Sequence[tuple[str, float]]] = field(default_factory=dict)

    def written(self) -> dict[str, Any]:
        """As promtool reads it."""
        expressions = [
            {
                "expr": expr,
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in expected],
            }
            for (expr, minute), expected in self.samples.items()
        ]
        return {
            "name": self.name,
            "interval": "1m",
            "input_series": [series.written() for series in self.series],
            "alert_rule_test": [check.written() for check in self.checks],
            "promql_expr_test": expressions,
        }


def run(trials: Iterable[Trial], rules: Iterable[Path], folder: Path) -> None:
    """Let promtool judge; AssertionError with what it says otherwise."""
    judge([_file(trials, rules, folder / "trials.yaml")])


def run_apart(trials: Mapping[str, list[Trial]], folder: Path, config: Config | None = None) -> None:
    """The same by alert, each with its own rule only, which is far quicker."""
    paths = []
    for alert, some in trials.items():
        own = folder / alert
        own.mkdir()
        paths.append(_file(some, rules(own, config, only=alert), own / "trials.yaml"))
    judge(paths)


def _file(trials: Iterable[Trial], rules: Iterable[Path], path: Path) -> Path:
    written = [trial.written() for trial in trials]
    assert written, "nothing to try"
    paths = list(rules)
    data = {
        "rule_files": [str(rule) for rule in paths],
        "evaluation_interval": "1m",
        # Without an order promtool throws dice, and alerts may see what was recorded a minute late.
        "group_eval_order": [group["name"] for rule in paths for group in _read(rule.read_text())["groups"]],
        "tests": written,
    }
    path.write_text(_write(data))
    return path


def _read(text: str) -> Any:
    return yaml.load(text, Loader=yaml.CSafeLoader)


def _write(data: object) -> str:
    return yaml.dump(data, Dumper=yaml.CSafeDumper, sort_keys=False, width=10_000)


def judge(paths: Sequence[Path]) -> None:
    """Run promtool over files of trials."""
    said = subprocess.run(
        ["promtool", "test", "rules", *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
        timeout=55,
    )
    assert said.returncode == 0, f"{said.stdout}{said.stderr}"[-6000:]
    assert said.stdout.count("SUCCESS") == len(paths), said.stdout


def rules(folder: Path, config: Config | None = None, only: str = "", *, texts: bool = False) -> list[Path]:
    """Rule files of a configuration, without texts, and if so wanted with one alert and what it rests on."""
    paths = []
    for name, text in _generated(repr(config or Config()), config or Config()).items():
        data = _read(text)
        for group in data["groups"]:
            group["rules"] = [one for one in group["rules"] if not only or _needed(one, only)]
            for rule in group["rules"]:
                if not texts:
                    rule.pop("annotations", None)
        data["groups"] = [group for group in data["groups"] if group["rules"]]
        path = folder / name
        path.write_text(_write(data))
        paths.append(path)
    return paths


_cache: dict[str, dict[str, str]] = {}


def _generated(key: str, config: Config) -> dict[str, str]:
    if key not in _cache:
        _cache[key] = files.written(config, "a test")
    return _cache[key]


def _needed(rule: Mapping[str, Any], alert: str) -> bool:
    recorded = str(rule.get("record", ""))
    return rule.get("alert") == alert or (alert == "GPUProcessSurge" and recorded.startswith("device:"))


def steady(value: float) -> Callable[[int], float]:
    """The same at every minute."""
    return lambda _: value
