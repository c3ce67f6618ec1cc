"""Rule files: groups of rules go in, YAML that Prometheus reads comes out. Pure.

An expression of several lines is written as such, so that a person can read and diff it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from alerts.src import devices, exporter, findings, recording
from alerts.src.config import Config
from alerts.src.rule import Alert, Group, Language, Record
from alerts.src.values import duration

RECORDING, ALERTS = "recording.rules.yaml", "alerts.rules.yaml"
HEADER = """\
# Written by `python -m alerts.src` from {config}; do not edit.
# {what}
"""


class _Dumper(yaml.SafeDumper):
    """Lists indented, texts of several lines as blocks."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, indentless=False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def alerting(config: Config) -> tuple[Group, ...]:
    """The groups of alerts, without those that the operator does not want."""
    words = Language(config)
    own = config.interval
    every = (
        Group("kubegpu-alerts-findings", findings.alerts(words), own),
        Group(
            "kubegpu-alerts-devices",
            (*devices.memory(words), *devices.heat(words), *devices.stack(words)),
            own,
        ),
        Group("kubegpu-alerts-use", (*devices.idle(words), *devices.trends(words)), own or 120.0),
        Group("kubegpu-alerts-exporter", exporter.alerts(words), own),
    )
    return tuple(group for group in (_wanted(config, one) for one in every) if group.rules)


def _wanted(config: Config, group: Group) -> Group:
    wanted = (rule for rule in group.rules if isinstance(rule, Alert))
    return Group(
        group.name,
        tuple(rule for rule in wanted if rule.name not in config.alerts or config.alerts[rule.name].enabled),
        group.interval,
    )


def names() -> frozenset[str]:
    """Every alert that there is."""
    return frozenset(
        rule.name for group in alerting(Config()) for rule in group.rules if isinstance(rule, Alert)
    )


def written(config: Config, source: str) -> dict[str, str]:
    """The rule files by name."""
    return {
        RECORDING: _file(
            recording.groups(Language(config)), config, source, "Sums that dashboards and alerts share."
        ),
        ALERTS: _file(alerting(config), config, source, "Alerts; their runbooks are in alerts/runbooks."),
    }


def _file(groups: Iterable[Group], config: Config, source: str, what: str) -> str:
    data = {"groups": [_group(group, config) for group in groups]}
    body = yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=200, allow_unicode=True)
    return HEADER.format(config=source, what=what) + body


def _group(group: Group, config: Config) -> dict[str, Any]:
    data: dict[str, Any] = {"name": group.name}
    if group.interval is not None:
        data["interval"] = duration(group.interval)
    data["rules"] = [
        _alert(rule, config) if isinstance(rule, Alert) else _record(rule) for rule in group.rules
    ]
    return data


def _record(rule: Record) -> dict[str, Any]:
    return {"record": rule.name, "expr": rule.expr}


def _alert(rule: Alert, config: Config) -> dict[str, Any]:
    other = config.alerts.get(rule.name)
    hold = rule.hold if other is None or other.hold is None else other.hold
    keep = rule.keep if other is None or other.keep is None else other.keep
    data: dict[str, Any] = {
        "alert": rule.name,
        "expr": rule.expr,
        "for": duration(hold * config.for_scale),
    }
    if config.keep_firing_for:
        data["keep_firing_for"] = duration(keep * config.for_scale)
    data["labels"] = {"severity": rule.severity, **config.alert_labels}
    data["annotations"] = _annotations(rule, config)
    return data


def _annotations(rule: Alert, config: Config) -> Mapping[str, str]:
    texts = {
        "summary": rule.summary,
        "description": rule.description,
        "runbook_url": config.runbook_url.replace("{alert}", rule.name.lower()),
    }
    if config.dashboard_url:
        texts["dashboard_url"] = config.dashboard_url
    return texts
