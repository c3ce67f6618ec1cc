"""Every query of the dashboards, with the scenario that is meant to fill it: a line for each panel.

The committed JSON and values for its variables come in, targets go out, to be run against a Prometheus that
scrapes the scenarios. `python -m tests.dashboards.queries` writes them out. Nothing here reads the
builder: it is what Grafana gets.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "dashboards"
DASHBOARDS = ("fleet", "node", "namespace", "exporter")
HEALTHY = "healthy-node"
# What "All" and Grafana's own variables stand for where nothing else is given.
VALUES = {
    "job": ".*",
    "cluster": ".*",
    "node": ".*",
    "gpu": ".*",
    "namespace": ".*",
    "pod": ".*",
    "__rate_interval": "15s",
    "__interval": "1s",
    "__range": "1m",
}


class Calm(Enum):
    """What a query says of a node on which all is well."""

    ANY = "any"  # a fact, not an alarm
    ZERO = "zero"  # known to be 0, on every series: neither above nor unknown
    EMPTY = "empty"  # no series


ANY, ZERO, EMPTY = Calm.ANY, Calm.ZERO, Calm.EMPTY

# Where the exporter is not the one who knows.
KSM = "kube-state-metrics"
CADVISOR = "cadvisor"

# Dashboard, panel, targets ("" for all that no other line of the panel names), by which scenario or other
# source it is filled, and what it says of the healthy node. A ZERO is above 0 where it is meant to be filled.
LINES: tuple[tuple[str, str, str, str, Calm], ...] = (
    ("fleet", "1. Who uses the GPUs?", "AB", "healthy-node", ANY),
    ("fleet", "1. Who uses the GPUs?", "C", "bad-night", ZERO),
    ("fleet", "1. Who uses the GPUs?", "D", "blind-night", ZERO),
    ("fleet", "2. Which pods are those?", "AB", "healthy-node", ANY),
    ("fleet", "2. Which pods are those?", "C", "blind-night", ZERO),
    ("fleet", "2. Which pods are those?", "D", "blind-night", ZERO),
    ("fleet", "3. Is it the pod that the GPU was given to?", "AB", "wrong-gpu", ZERO),
    ("fleet", "3. Is it the pod that the GPU was given to?", "C", "blind-night", ZERO),
    ("fleet", "4. What memory is held that nobody owns?", "AB", "bad-night", ZERO),
    ("fleet", "4. What memory is held that nobody owns?", "C", "blind-night", ZERO),
    ("fleet", "Findings", "", "bad-night", EMPTY),
    ("fleet", "Is anything unseen?", "A", "healthy-node", ANY),
    ("fleet", "Is anything unseen?", "B", "bad-night", ZERO),
    ("fleet", "Is anything unseen?", "CD", "blind-night", ZERO),
    ("fleet", "Not judged", "", "blind-night", EMPTY),
    ("fleet", "Alerts that fire", "", "wrong-gpu", EMPTY),
    ("fleet", "Nodes", "", "healthy-node", ANY),
    ("fleet", "Nodes", "EG", "bad-night", ZERO),
    ("fleet", "Nodes", "F", "blind-night", ZERO),
    ("fleet", "Findings over time", "", "bad-night", ZERO),
    ("fleet", "Devices: known, given, in use, computing", "", "healthy-node", ANY),
    ("fleet", "GPU memory", "", "healthy-node", ANY),
    ("fleet", "Orphaned memory by cause", "", "bad-night", ZERO),
    ("fleet", "Utilisation by node", "", "healthy-node", ANY),
    ("node", "1. Who uses the GPUs?", "AB", "mig-node", ANY),
    ("node", "1. Who uses the GPUs?", "C", "bad-night", ZERO),
    ("node", "1. Who uses the GPUs?", "D", "blind-night", ZERO),
    ("node", "2. Which pods are those?", "AB", "mig-node", ANY),
    ("node", "2. Which pods are those?", "C", "blind-night", ZERO),
    ("node", "2. Which pods are those?", "D", "blind-night", ZERO),
    ("node", "3. Is it the pod that the GPU was given to?", "AB", "wrong-gpu", ZERO),
    ("node", "3. Is it the pod that the GPU was given to?", "C", "blind-night", ZERO),
    ("node", "4. What memory is held that nobody owns?", "AB", "bad-night", ZERO),
    ("node", "4. What memory is held that nobody owns?", "C", "blind-night", ZERO),
    ("node", "Findings", "", "bad-night", EMPTY),
    ("node", "Findings over time", "", "bad-night", ZERO),
    ("node", "Not judged", "", "blind-night", EMPTY),
    ("node", "Alerts that fire", "", "wrong-gpu", EMPTY),
    ("node", "Who is on which GPU", "", "mig-node", ANY),
    ("node", "Processes", "", "healthy-node", ANY),
    ("node", "Holders of device files, and what NVML lists", "ACF", "healthy-node", ANY),
    ("node", "Holders of device files, and what NVML lists", "B", "bad-night", ZERO),
    ("node", "Holders of device files, and what NVML lists", "D", "bad-night", ZERO),
    ("node", "Holders of device files, and what NVML lists", "E", "blind-night", ZERO),
    ("node", "Processes by owner", "", "healthy-node", ANY),
    ("node", "Processes against their day", "", "mig-node", ANY),
    ("node", "Given and in use over time", "", "mig-node", ANY),
    ("node", "Memory by container", "", "healthy-node", ANY),
    ("node", "Memory growth by container", "", "bad-night", ANY),
    ("node", "Orphaned memory by cause", "", "bad-night", ZERO),
    ("node", "GPUs", "", "healthy-node", ANY),
    ("node", "MIG devices", "", "mig-node", EMPTY),
    ("node", "How many GPUs, by whose word", "", "healthy-node", ANY),
    ("node", "GPU stack", "", "bad-night", ANY),
    ("node", "Utilisation", "", "healthy-node", ANY),
    ("node", "Memory activity", "", "healthy-node", ANY),
    ("node", "Temperature", "", "healthy-node", ANY),
    ("node", "Power", "", "healthy-node", ANY),
    ("node", "Clocks", "", "healthy-node", ANY),
    ("namespace", "Given and used", "A", "healthy-node", ANY),
    ("namespace", "Given and used", "B", "bad-night", ZERO),
    ("namespace", "Given and used", "C", "wrong-gpu", ZERO),
    ("namespace", "Given and used", "D", "blind-night", ZERO),
    ("namespace", "What is wrong", "A", "wrong-gpu", ZERO),
    ("namespace", "What is wrong", "B", "blind-night", ZERO),
    ("namespace", "GPU memory", "", "healthy-node", ANY),
    ("namespace", "Findings about these pods", "", "wrong-gpu", EMPTY),
    ("namespace", "Alerts that fire", "", "wrong-gpu", EMPTY),
    ("namespace", "Who is on which GPU", "", "time-sliced", ANY),
    ("namespace", "Memory", "", "time-sliced", ANY),
    ("namespace", "Memory growth", "", "bad-night", ANY),
    ("namespace", "Utilisation of GPUs that a pod has to itself", "", "healthy-node", ANY),
    ("namespace", "GPU time by pod", "", "healthy-node", ANY),
    ("namespace", "Processes", "", "time-sliced", ANY),
    ("namespace", "Given, and idle for how long", "", "healthy-node", ANY),
    ("namespace", "Quota against use", "", KSM, ANY),
    ("namespace", "Requested, given, in use", "A", KSM, ANY),
    ("namespace", "Requested, given, in use", "BC", "healthy-node", ANY),
    ("exporter", "Targets", "A", "healthy-node", ANY),
    ("exporter", "Targets", "B", "bad-night", ZERO),
    ("exporter", "Targets", "C", "healthy-node", ANY),
    ("exporter", "What is missing", "AC", "blind-night", ZERO),
    ("exporter", "What is missing", "B", "blind-night", ZERO),
    ("exporter", "What is missing", "D", "bad-night", ZERO),
    ("exporter", "What is missing", "E", "blind-night", ZERO),
    ("exporter", "Labels rewritten", "", "rewritten", ZERO),
    ("exporter", "Sources", "", "healthy-node", ANY),
    ("exporter", "Errors by source and reason", "", "blind-night", EMPTY),
    ("exporter", "Age of the last answer", "", "healthy-node", ANY),
    ("exporter", "How long sources take", "", "healthy-node", ANY),
    ("exporter", "Cycle", "", "healthy-node", ANY),
    ("exporter", "Not judged", "", "blind-night", EMPTY),
    ("exporter", "Not applicable", "", "mig-node", EMPTY),
    ("exporter", "Alerts that fire", "", "wrong-gpu", EMPTY),
    ("exporter", "NVML calls that failed", "", "blind-night", EMPTY),
    ("exporter", "NVML calls that hang", "", "blind-night", EMPTY),
    ("exporter", "Series by target", "", "healthy-node", ANY),
    ("exporter", "Duration of scrapes", "", "healthy-node", ANY),
    ("exporter", "Processes scanned", "A", "healthy-node", ANY),
    ("exporter", "Processes scanned", "B", "blind-night", ZERO),
    ("exporter", "Processes scanned", "C", "healthy-node", ANY),
    ("exporter", "What was left out", "A", "bad-night", ZERO),
    ("exporter", "What was left out", "B", "healthy-node", ANY),
    ("exporter", "CPU of the agent", "", CADVISOR, ANY),
    ("exporter", "Memory of the agent", "", CADVISOR, ANY),
    ("exporter", "Versions", "", "healthy-node", ANY),
)


@dataclass(frozen=True, slots=True)
class Target:
    """One query of one panel, ready to run."""

    dashboard: str
    panel: str
    ref: str
    expr: str
    instant: bool
    table: bool
    filled_by: str
    calm: Calm

    def __str__(self) -> str:
        return f"{self.dashboard} / {self.panel} / {self.ref}"


def load(name: str) -> dict[str, Any]:
    """A committed dashboard."""
    board: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return board


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Panels that show something, those in collapsed rows too."""
    for panel in board["panels"]:
        if panel["type"] != "row":
            yield panel
        yield from panel.get("panels", ())


def substituted(expr: str, values: Mapping[str, str]) -> str:
    """The query with a value for each variable; one without a value is an error."""
    known = {**VALUES, **values}
    return re.sub(r"\$\{?([A-Za-z_]\w*)\}?", lambda found: known[found[1]], expr)


def line(dashboard: str, panel: str, ref: str) -> tuple[str, Calm]:
    """Which scenario fills a target, and what it says of the healthy node."""
    of_panel = [one for one in LINES if one[:2] == (dashboard, panel)]
    found = [one for one in of_panel if ref in one[2]] or [one for one in of_panel if not one[2]]
    if len(found) != 1:
        raise LookupError(f"{len(found)} lines of LINES are about {dashboard} / {panel} / {ref}")
    return found[0][3], found[0][4]


def targets(values: Mapping[str, str] | None = None) -> Iterator[Target]:
    """Every target of every dashboard, its variables replaced by these values, else by what "All" means."""
    for name in DASHBOARDS:
        for panel in panels(load(name)):
            for target in panel["targets"]:
                filled_by, calm = line(name, panel["title"], target["refId"])
                expr = substituted(target["expr"], values or {})
                instant = bool(target.get("instant"))
                table = panel["type"] == "table"
                yield Target(name, panel["title"], target["refId"], expr, instant, table, filled_by, calm)


if __name__ == "__main__":
    for one in targets(dict(pair.split("=", 1) for pair in sys.argv[1:])):
        kind = "instant" if one.instant else "range"
        row = (str(one), kind, one.filled_by, one.calm.value, one.expr)
        sys.stdout.write("\t".join(row) + "\n")
