"""What every dashboard has around its panels: variables, links, annotations, rows, and their places.

Rows of panels with their sizes come in, a dashboard in Grafana's classic model goes out as plain data. It
must never contain what only one Grafana knows: the data source is a variable and `id` is null.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from dashboards.src.panels import DATASOURCE, Panel, draw

TAG = "kubegpu-exporter"
SCHEMA = 42
COLUMNS = 24
PROJECT = "https://github.com/kubegpu/kubegpu-exporter"
RUNBOOKS = f"{PROJECT}/blob/main/alerts/runbooks/"
ALL = ".*"
FIRING = 'alertname=~"GPU.*|KubeGPU.*", alertstate="firing"'

_CHOSEN = 'job=~"$job", cluster=~"$cluster"'
_GPUS = f'kubegpu_gpu_info{{{_CHOSEN}, node=~"$node"}}'
_PODS = f'{{__name__=~"kubegpu_allocation_info|kubegpu_workload_processes", {_CHOSEN}'
_NAMED = f'label_join({_GPUS}, "display", " / ", "node", "gpu", "product")'
# Variables by name: label, and the query that lists their values.
VARIABLES = {
    "job": ("Job", "label_values(kubegpu_exporter_build_info, job)"),
    "cluster": ("Cluster", 'label_values(kubegpu_exporter_build_info{job=~"$job"}, cluster)'),
    "node": ("Node", f"label_values(kubegpu_exporter_build_info{{{_CHOSEN}}}, node)"),
    "gpu": (
        "GPU",
        f"query_result(max by (display, uuid) ({_NAMED}))",
    ),
    "namespace": ("Namespace", f"label_values({_PODS}}}, namespace)"),
    "pod": ("Pod", f'label_values({_PODS}, namespace=~"$namespace"}}, pod)'),
}
# A GPU is chosen by UUID and shown by node, index and product.
TEXTS = {"gpu": '/display="(?<text>[^"]+)".*uuid="(?<value>[^"]+)"/'}


@dataclass(frozen=True, slots=True)
class Options:
    """What whoever builds the dashboards may choose."""

    runbooks: str = RUNBOOKS
    several_clusters: bool = False
    portable: bool = False  # for grafana.com: the data source is asked for at import


@dataclass(frozen=True, slots=True)
class Placed:
    """A panel and its size, in units of Grafana's grid."""

    panel: Panel
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading; a collapsed row asks nothing until it is opened."""

    title: str
    panels: tuple[Placed, ...]
    collapsed: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard before it is drawn."""

    name: str  # of the file
    title: str
    about: str
    variables: tuple[str, ...]
    rows: tuple[Row, ...]
    span: str = "now-6h"

    @property
    def uid(self) -> str:
        """The identity that links, bookmarks and upgrades rely on."""
        return f"kubegpu-{self.name}"


def address(name: str, **variables: str) -> str:
    """The address of one of our dashboards, keeping time and the variables that both have."""
    kept = "".join(f"&${{{name}:queryparam}}" for name in ("datasource", "job", "cluster"))
    given = "".join(f"&var-{name}={value}" for name, value in variables.items())
    return f"/d/kubegpu-{name}?${{__url_time_range}}{kept}{given}"


def cell(column: str) -> str:
    """The value of another column of a table's row, in a link."""
    return f"${{__data.fields[{json.dumps(column)}]}}"


def render(board: Dashboard, options: Options) -> dict[str, Any]:
    """The dashboard as the data that is written to its file."""
    builder = (
        builders.Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags([TAG])
        .readonly()
        .timezone("browser")
        .time(board.span, "now")
        .refresh("1m")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .links(list(_links()))
        .variables(list(_variables(board, options)))
        .annotation(_annotation(board))
    )
    data: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True).encode(builder.build()))
    data |= {"id": None, "schemaVersion": SCHEMA, "version": 1, "panels": list(_panels(board.rows))}
    return _portable(data) if options.portable else data


# --- around the panels --------------------------------------------------------------------------------------


def _links() -> Iterator[builders.DashboardLink]:
    others = builders.DashboardLink("GPU dashboards").type(models.DashboardLinkType.DASHBOARDS)
    yield others.tags([TAG]).include_vars(True).keep_time(True)
    findings = builders.DashboardLink("What the findings mean").type(models.DashboardLinkType.LINK)
    yield findings.url(f"{PROJECT}/blob/main/docs/findings.md").icon("doc").target_blank(True)


def _variables(board: Dashboard, options: Options) -> Iterator[Any]:
    yield builders.DatasourceVariable("datasource").label("Data source").type("prometheus")
    for name in board.variables:
        label, query = VARIABLES[name]
        variable = (
            builders.QueryVariable(name)
            .label(label)
            .datasource(DATASOURCE)
            .query({"qryType": 5, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"})
            .definition(query)
            .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(models.VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(ALL)
            .regex(TEXTS.get(name, ""))
            .current(models.VariableOption(selected=True, text=["All"], value=["$__all"]))
        )
        hidden = name == "cluster" and not options.several_clusters
        yield variable.hide(models.VariableHide.HIDE_VARIABLE) if hidden else variable


def _annotation(board: Dashboard) -> builders.AnnotationQuery:
    node = ', node=~"$node|"' if "node" in board.variables else ""  # some alerts are about no node
    firing = f'ALERTS{{{FIRING}, cluster=~"$cluster"{node}}}'
    return (
        builders.AnnotationQuery()
        .name("Alerts")
        .datasource(DATASOURCE)
        .enable(True)
        .hide(False)
        .icon_color("red")
        .expr(firing)
        .title_format("{{alertname}}")
        .text_format("{{severity}} {{node}} {{uuid}} {{namespace}}/{{pod}}")
        .tag_keys("alertname,severity")
        .step("60s")
    )


# --- places -------------------------------------------------------------------------------------------------


def _panels(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Rows one below the other, in each the panels from left to right, in as many lines as they need."""
    number, top = 1, 0
    for row in rows:
        drawn = []
        head = {"id": number, "type": "row", "title": row.title, "collapsed": row.collapsed}
        head |= {"gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1}}
        number, top, left, tallest = number + 1, top + 1, 0, 0
        for placed in row.panels:
            if left + placed.width > COLUMNS:
                top, left, tallest = top + tallest, 0, 0
            place = models.GridPos(x=left, y=top, w=placed.width, h=placed.height)
            drawn.append(json.loads(JSONEncoder().encode(draw(placed.panel, number, place).build())))
            number, left, tallest = number + 1, left + placed.width, max(tallest, placed.height)
        top += tallest
        yield head | {"panels": drawn if row.collapsed else []}
        if not row.collapsed:
            yield from drawn


def _portable(data: dict[str, Any]) -> dict[str, Any]:
    """The form that grafana.com takes: it lists what it needs, and asks for the data source at import."""
    source = {"name": "DS_PROMETHEUS", "label": "Prometheus", "type": "datasource", "pluginId": "prometheus"}
    requires = [
        {"type": "grafana", "id": "grafana", "name": "Grafana", "version": "11.0.0"},
        {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
    ]
    for variable in data["templating"]["list"]:
        if variable["type"] == "datasource":
            variable["current"] = {"text": "${DS_PROMETHEUS}", "value": "${DS_PROMETHEUS}"}
    return {"__inputs": [source], "__requires": requires, **data}
