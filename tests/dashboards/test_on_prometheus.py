"""Every query of every dashboard against a real Prometheus that scrapes a real exporter in each scenario."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TypeAlias

import pytest

from tests.dashboards import queries, site
from tests.dashboards.queries import Calm, Target

# Long enough for the scenarios to get where they go, plus what the findings need.
LONG = 22.0
Keys: TypeAlias = dict[str, list[dict[str, str]]]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module", name="prometheus")
def _prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[site.Site]:
    with site.running(tmp_path_factory.mktemp("site")) as running:
        time.sleep(LONG)
        yield running


def values(scenario: str, *, clustered: bool) -> dict[str, str]:
    """What the variables are set to for one scenario."""
    known = scenario if scenario in (*site.NODES, site.REWRITTEN) else queries.HEALTHY
    chosen = {"job": site.jobs(clustered, known)}
    if clustered:
        chosen["cluster"] = known
    if known in site.NODES and known != "bad-night":  # that one also has a node that does not answer
        chosen["node"] = site.NODES[known]
    return chosen


def known(series: list[tuple[dict[str, str], list[float]]]) -> list[float]:
    return [value for _, numbers in series for value in numbers if not math.isnan(value)]


def asked(scenario: str, *, clustered: bool) -> Iterator[Target]:
    return queries.targets(values(scenario, clustered=clustered))


@pytest.mark.parametrize("clustered", [True, False], ids=["several-clusters", "one-cluster"])
@pytest.mark.parametrize("scenario", [*site.NODES, site.REWRITTEN, queries.KSM, queries.CADVISOR])
def test_every_query_is_filled_by_its_scenario(
    prometheus: site.Site, scenario: str, *, clustered: bool
) -> None:
    """Each query has numbers, not only unknowns, in the scenario meant to fill it; an alarm is above 0."""
    wanting = []
    for one in asked(scenario, clustered=clustered):
        if one.filled_by != scenario or (scenario == site.REWRITTEN and not clustered):
            continue
        numbers = known(prometheus.samples(one.expr, prometheus.start, time.time()))
        if not numbers or (one.calm is Calm.ZERO and max(numbers) <= 0):
            wanting.append(f"{one}: {sorted(set(numbers))[:5]}\n{one.expr}")
    assert not wanting, "\n".join(wanting)


@pytest.mark.parametrize("clustered", [True, False], ids=["several-clusters", "one-cluster"])
def test_nothing_alarms_on_a_healthy_node(prometheus: site.Site, *, clustered: bool) -> None:
    """Where all is well each alarm is a 0 that is known, and each list of alarms is empty."""
    start = prometheus.start + 3  # two looks after the start everything has been judged
    wanting = []
    for one in asked(queries.HEALTHY, clustered=clustered):
        series = prometheus.samples(one.expr, start, time.time())
        numbers = [value for _, found in series for value in found]
        if not clustered and one.panel == "Alerts that fire" and one.dashboard == "namespace":
            continue  # without a cluster or a node to choose by, the alerts of the other scenarios are there
        if one.calm is Calm.EMPTY and series:
            wanting.append(f"{one}: {series[0]}\n{one.expr}")
        if one.calm is Calm.ZERO and (not numbers or any(value != 0 for value in numbers)):
            wanting.append(f"{one}: {sorted(set(numbers))[:5]}\n{one.expr}")
    assert not wanting, "\n".join(wanting)


# Columns that speak of some rows only, and why.
PARTIAL = {
    ("node", "Holders of device files, and what NVML lists", "F"): "NVML knows GPUs, not their files",
    ("node", "Who is on which GPU", "C"): "a device without a container has no container's memory",
    ("exporter", "Versions", "B"): "a target that is down tells no version",
}


@pytest.mark.parametrize("scenario", site.NODES)
def test_columns_of_a_table_have_the_rows_of_its_first(prometheus: site.Site, scenario: str) -> None:
    """A column has a value or the unknown for each row, and no row of its own: else rows split."""
    wanting = []
    first: Keys = {}
    now = time.time()
    for one in asked(scenario, clustered=True):
        if not one.instant or not one.table:
            continue
        rows = [series for series, _ in prometheus.samples(one.expr, now, now)]
        if one.ref == "A":  # the row of a target that says nothing has words, and no values
            spoken = [row for row in rows if not any(text.startswith("unknown:") for text in row.values())]
            first = {one.panel: spoken}
            continue
        names = sorted(
            {name for row in rows for name in row} & {name for row in first[one.panel] for name in row}
        )
        have, want = _keys(rows, names), _keys(first[one.panel], names)
        partial = (one.dashboard, one.panel, one.ref) in PARTIAL
        if (have - want) or (want - have and not partial):
            wanting.append(f"{one}: too many {list(have - want)[:2]}, missing {list(want - have)[:2]}")
    assert not wanting, "\n".join(wanting)


def _keys(rows: list[dict[str, str]], names: list[str]) -> set[tuple[str, ...]]:
    return {tuple(row.get(name, "") for name in names) for row in rows}
