"""The rules of a configuration, and the labels that their metrics have in Prometheus."""

from __future__ import annotations

from alerts.src import files, recording
from alerts.src.config import Config
from alerts.src.rule import Alert, Language, Record
from exporter.catalog import FAMILIES
from tests.alerts import expressions

TARGET = {"job", "instance", "node", "cluster"}


def alerts(config: Config | None = None) -> list[Alert]:
    """Every alerting rule."""
    groups = files.alerting(config or Config())
    return [rule for group in groups for rule in group.rules if isinstance(rule, Alert)]


def records(config: Config | None = None) -> list[Record]:
    """Every recording rule."""
    groups = recording.groups(Language(config or Config()))
    return [rule for group in groups for rule in group.rules if isinstance(rule, Record)]


def known(config: Config | None = None) -> dict[str, set[str]]:
    """Labels of each metric in Prometheus: the catalog's, the target's, and of what is recorded."""
    names = (config or Config()).labels
    renamed = {"namespace": names.namespace, "pod": names.pod, "container": names.container}
    found = {
        family.full_name: {renamed.get(label, label) for label in family.labels} | TARGET
        for family in FAMILIES
    }
    found["up"] = set(TARGET)
    for record in records(config):
        found[record.name] = expressions.result(record.expr, found)
    return found
