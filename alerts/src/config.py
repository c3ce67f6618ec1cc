"""The configuration: a YAML file goes in, one frozen record comes out.

A key that does not exist and a value that cannot be used are errors which name the field and the remedy. What
is not written keeps its default; the defaults are those of alerts/config.yaml.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from alerts.src import values

DEFAULT = Path(__file__).parents[1] / "config.yaml"


class ConfigError(Exception):
    """A field of the configuration cannot be used."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Numbers that decide. Bytes, seconds, degrees Celsius, shares from 0 to 1."""

    memory_bytes: int = 2**30
    memory_share: float = 0.05
    external_bytes: int = 2**30
    idle: float = 3600
    temperature_margin: float = 5
    growth_share: float = 0.1
    growth_window: float = 6 * 3600
    growth_horizon: float = 86400
    surge_factor: float = 2
    surge_processes: float = 16
    stale_cycle: float = 300
    absent_window: float = 86400


@dataclass(frozen=True, slots=True)
class Names:
    """What the workload labels are called."""

    namespace: str = "namespace"
    pod: str = "pod"
    container: str = "container"


@dataclass(frozen=True, slots=True)
class Override:
    """What is different about one alert. None: as it is."""

    enabled: bool = True
    hold: float | None = None  # `for`
    keep: float | None = None  # `keep_firing_for`


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that the rules depend on."""

    job: str = "(.+/)?kubegpu-exporter"
    cluster_label: str = "cluster"
    node_label: str = "node"
    target_labels: tuple[str, ...] = ()
    labels: Names = field(default_factory=Names)
    runbook_url: str = "https://github.com/kubegpu/kubegpu-exporter/blob/main/alerts/runbooks/{alert}.md"
    dashboard_url: str = ""
    alert_labels: Mapping[str, str] = field(default_factory=dict)
    for_scale: float = 1
    keep_firing_for: bool = True
    interval: float | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)
    alerts: Mapping[str, Override] = field(default_factory=dict)

    @property
    def renames(self) -> bool:
        """Whether workload labels have other names than the exporter gives them."""
        return self.labels != Names()


Reader = Callable[[object], Any]

_PLAIN: dict[str, Reader] = {
    "job": values.pattern,
    "cluster_label": values.optional_label,
    "node_label": values.label,
    "target_labels": values.labels,
    "runbook_url": values.runbook,
    "dashboard_url": values.text,
    "for_scale": values.number(0, 100),
    "keep_firing_for": values.flag,
    "interval": values.optional_seconds,
}
_THRESHOLDS: dict[str, Reader] = {
    "memory_bytes": values.size,
    "memory_share": values.number(0, 1),
    "external_bytes": values.size,
    "idle": values.seconds,
    "temperature_margin": values.number(0, 100),
    "growth_share": values.number(0, 1),
    "growth_window": values.seconds,
    "growth_horizon": values.seconds,
    "surge_factor": values.number(1, 1000),
    "surge_processes": values.number(1, 100_000),
    "stale_cycle": values.seconds,
    "absent_window": values.seconds,
}
_NAMES: dict[str, Reader] = dict.fromkeys(("namespace", "pod", "container"), values.label)
_OVERRIDE: dict[str, Reader] = {
    "enabled": values.flag,
    "for": values.seconds,
    "keep_firing_for": values.seconds,
}
_ATTRIBUTES = {"for": "hold", "keep_firing_for": "keep"}


def read(path: Path, known: frozenset[str]) -> Config:
    """The configuration in a file. `known`: the names of the alerts that there are."""
    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}): name a file with --config") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is no YAML: {error}") from error
    return parse({} if data is None else data, known)


def parse(data: object, known: frozenset[str]) -> Config:
    """The configuration in plain data."""
    written = _mapping("the file", data)
    names = [one.name for one in fields(Config)]
    _only("", written, names)
    found: dict[str, Any] = {key: _value(key, written[key], _PLAIN[key]) for key in written if key in _PLAIN}
    if "labels" in written:
        found["labels"] = Names(**_section("labels", written["labels"], _NAMES))
    if "thresholds" in written:
        found["thresholds"] = Thresholds(**_section("thresholds", written["thresholds"], _THRESHOLDS))
    if "alert_labels" in written:
        found["alert_labels"] = _alert_labels(written["alert_labels"])
    if "alerts" in written:
        found["alerts"] = _alerts(written["alerts"], known)
    return Config(**found)


def _mapping(where: str, data: object) -> dict[str, object]:
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError(f"{where}: write keys and values, such as alerts/config.yaml has them")
    return data


def _only(prefix: str, written: Mapping[str, object], names: list[str]) -> None:
    for key in written:
        if key not in names:
            raise ConfigError(f"{prefix}{key}: there is no such key: write one of {', '.join(sorted(names))}")


def _value(name: str, value: object, reader: Reader) -> object:
    try:
        return reader(value)
    except ValueError as error:
        raise ConfigError(f"{name}: {value!r} cannot be used: {error}") from error


def _section(name: str, data: object, readers: Mapping[str, Reader]) -> dict[str, Any]:
    written = _mapping(name, data)
    _only(f"{name}.", written, list(readers))
    return {key: _value(f"{name}.{key}", value, readers[key]) for key, value in written.items()}


def _alert_labels(data: object) -> dict[str, str]:
    written = _mapping("alert_labels", data)
    for key in written:
        _value(f"alert_labels.{key}", key, values.label)
        if key in ("severity", "alertname"):
            raise ConfigError(f"alert_labels.{key}: is the rules' own: choose another name")
    return {key: str(_value(f"alert_labels.{key}", one, values.text)) for key, one in written.items()}


def _alerts(data: object, known: frozenset[str]) -> dict[str, Override]:
    written = _mapping("alerts", data)
    _only("alerts.", written, list(known))
    found = {}
    for name, wanted in written.items():
        section = _section(f"alerts.{name}", wanted, _OVERRIDE)
        found[name] = Override(**{_ATTRIBUTES.get(key, key): value for key, value in section.items()})
    return found
