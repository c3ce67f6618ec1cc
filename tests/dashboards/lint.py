"""What a dashboard must be: rules, each with a name, and the few exclusions with their reasons.

A dashboard's JSON comes in, problems in words go out. The names are those of Grafana's dashboard-linter where
it has the same rule; the others are ours. A rule never asks the builder: it judges what Grafana gets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import promql_parser as promql

from tests.dashboards import labels, queries
from tests.dashboards.queries import panels, substituted

Board: TypeAlias = dict[str, Any]
Problem: TypeAlias = tuple[str, str]  # where, what

UIDS = {name: f"kubegpu-{name}" for name in queries.DASHBOARDS}
TAG = "kubegpu-exporter"
PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
CALM_COLOURS = {"green", "blue", "text"}

# Rule, where it does not apply, and why.
EXCLUSIONS: tuple[tuple[str, str, str], ...] = (
    (
        "template-instance-rule",
        "dashboard",
        "an exporter's address changes with its pod; what stays is the node, which every target carries",
    ),
    (
        "target-instance-rule",
        "dashboard",
        "as above: node, uuid, namespace and pod choose what is shown",
    ),
    ("target-job-rule", "ALERTS", "an alert that aggregates has no job"),
    ("target-job-rule", "kube_resourcequota", "another exporter's job"),
    ("target-job-rule", "kube_pod_container_resource_requests", "another exporter's job"),
    ("target-job-rule", "container_cpu_usage_seconds_total", "another exporter's job"),
    ("target-job-rule", "container_memory_working_set_bytes", "another exporter's job"),
    ("target-logql-rule", "dashboard", "nothing here asks Loki"),
    ("target-logql-auto-rule", "dashboard", "nothing here asks Loki"),
)


def excluded(rule: str, where: str) -> bool:
    """Whether an exclusion speaks for this."""
    return any((name, place) == (rule, where) for name, place, _ in EXCLUSIONS)


def variables(board: Board) -> dict[str, Board]:
    """The variables by name."""
    return {one["name"]: one for one in board["templating"]["list"]}


def targets(board: Board) -> Iterator[tuple[str, Board, Any]]:
    """Panel and target, its title, and the parsed query, None where it does not parse."""
    for panel in panels(board):
        for target in panel.get("targets", ()):
            try:
                parsed: Any = promql.parse(substituted(target["expr"], {}))
            except (ValueError, KeyError):
                parsed = None
            yield f"{panel['title']} / {target['refId']}", target, parsed


# --- variables ----------------------------------------------------------------------------------------------


def template_datasource(board: Board) -> Iterator[Problem]:
    """One variable for the data source, by its usual name."""
    found = [one for one in board["templating"]["list"] if one["type"] == "datasource"]
    if [(one["name"], one["label"], one["query"]) for one in found] != [
        ("datasource", "Data source", "prometheus")
    ]:
        yield "datasource", f"{len(found)} data source variables, or one of another name, label or type"


def template_job(board: Board) -> Iterator[Problem]:
    """A variable for the scrape job."""
    job = variables(board).get("job")
    if not job or job["label"] != "Job" or not job["multi"]:
        yield "job", "no variable job with the label Job that takes several values"


def template_all(board: Board) -> Iterator[Problem]:
    """All stands for everything, also for what no list shows, and the cluster hides while there is one."""
    for name, one in variables(board).items():
        if one["type"] == "datasource":
            continue
        if not one["includeAll"] or one["allValue"] != ".*":
            yield name, "All is not the regular expression .*"
        if one["current"]["value"] != ["$__all"]:
            yield name, "All is not what it starts with"
        if (one.get("hide", 0) != 0) != (name == "cluster"):
            yield name, "hidden, or not hidden though most have one cluster"


def template_reload(board: Board) -> Iterator[Problem]:
    """Lists of values are those of the time range."""
    for name, one in variables(board).items():
        if one["type"] == "query" and one["refresh"] != 2:
            yield name, "does not reload when the time range changes"


def template_queries(board: Board) -> Iterator[Problem]:
    """The queries of variables parse and name what exists."""
    for name, one in variables(board).items():
        if one["type"] != "query":
            continue
        query = substituted(one["query"]["query"], {})
        inner = re.fullmatch(r"(?:label_values|query_result)\((.+?)(?:, (\w+))?\)", query)
        if not inner:
            yield name, f"neither label_values nor query_result: {query}"
            continue
        try:
            parsed = promql.parse(inner[1])
            known = [
                labels.of_metric(metric) for one in labels.selectors(parsed) for metric in labels.names(one)
            ]
        except (ValueError, KeyError) as error:
            yield name, f"{error} in {query}"
            continue
        if inner[2] and not all(inner[2] in of for of in known):
            yield name, f"no label {inner[2]} in {query}"


# --- panels -------------------------------------------------------------------------------------------------


def panel_datasource(board: Board) -> Iterator[Problem]:
    """Nothing names a data source but the variable."""
    for source in _sources(board):
        if source.get("uid") not in ("${datasource}", "-- Grafana --"):
            yield "datasource", f"{source}"
    for panel in panels(board):
        if panel.get("datasource", {}).get("uid") != "${datasource}":
            yield panel["title"], "does not ask the data source that was chosen"


def _sources(part: Any) -> Iterator[Board]:
    if isinstance(part, dict):
        if isinstance(part.get("datasource"), dict):
            yield part["datasource"]
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from _sources(one)


def panel_words(board: Board) -> Iterator[Problem]:
    """Each panel has a title, says what it shows, in what unit, and what it means when it is empty."""
    for panel in panels(board):
        defaults = panel["fieldConfig"]["defaults"]
        for what, text in (
            ("title", panel.get("title")),
            ("description", panel.get("description")),
            ("unit", defaults.get("unit")),
            ("noValue", defaults.get("noValue")),
        ):
            if not text:
                yield panel.get("title", "?"), f"no {what}"
        if re.fullmatch(r"[\d.\s-]*", defaults.get("noValue", "")):
            yield panel["title"], "an empty panel looks like a number"


def panel_targets(board: Board) -> Iterator[Problem]:
    """Each panel asks something, by different letters."""
    for panel in panels(board):
        letters = [target["refId"] for target in panel.get("targets", ())]
        if not letters or len(set(letters)) != len(letters):
            yield panel["title"], f"targets {letters}"


def panel_unknown(board: Board) -> Iterator[Problem]:
    """What is not known has a word of its own in tiles and tables, and never a calm colour or a 0."""
    for panel in panels(board):
        configs = [panel["fieldConfig"]["defaults"]]
        if panel["type"] == "table":
            configs = [
                {one["id"]: one["value"] for one in override["properties"]}
                for override in panel["fieldConfig"]["overrides"]
                if any(one["id"] == "mappings" for one in override["properties"])
            ]
        for mapping in (one for config in configs for one in config.get("mappings", ())):
            if mapping["type"] == "special":
                result = mapping["options"]["result"]
                if re.fullmatch(r"[\d.\s]*", result["text"]) or result["color"] == "green":
                    yield panel["title"], f"a missing value reads {result}"
        if panel["type"] == "stat" and not _names_unknown(configs[0]):
            yield panel["title"], "a tile without a word for what is not known"
        if panel["type"] == "table" and any(not _names_unknown(config) for config in configs):
            yield panel["title"], "a column without a word for what is not known"
        over_time = panel["type"] in ("timeseries", "state-timeline")
        if over_time and configs[0]["custom"].get("spanNulls") is not False:
            yield panel["title"], "a gap is drawn over"


def _names_unknown(config: Board) -> bool:
    matches = {one["options"]["match"] for one in config.get("mappings", ()) if one["type"] == "special"}
    return bool(matches & {"nan", "null+nan"})


def panel_places(board: Board) -> Iterator[Problem]:
    """No panel covers another or leaves the grid."""
    taken: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        place = panel["gridPos"]
        if place["x"] + place["w"] > 24 or min(place["w"], place["h"]) < 1:
            yield panel["title"], f"outside the grid: {place}"
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                if (x, y) in taken:
                    yield panel["title"], f"covers {taken[x, y]}"
                taken[x, y] = panel["title"]
    numbers = [panel["id"] for panel in board["panels"]]
    if len(set(numbers)) != len(numbers):
        yield "dashboard", "two panels have one id"
    titles = [panel["title"] for panel in panels(board)]
    for title in {one for one in titles if titles.count(one) > 1}:
        yield title, "two panels have one title"


# --- queries ------------------------------------------------------------------------------------------------


def target_promql(board: Board) -> Iterator[Problem]:
    """Every query parses."""
    for where, target, parsed in targets(board):
        if parsed is None:
            yield where, target["expr"]


def target_names(board: Board) -> Iterator[Problem]:
    """Queries name metrics and labels that somebody exports."""
    for where, _, parsed in targets(board):
        for one in labels.selectors(parsed):
            for metric in labels.names(one):
                if metric not in labels.OWN and metric not in labels.FOREIGN:
                    yield where, f"nobody exports {metric}"
                    continue
                known = labels.of_metric(metric) | {"__name__"} | labels.REWRITTEN
                for matcher in one.matchers.matchers:
                    if matcher.name not in known:
                        yield where, f"{metric} has no label {matcher.name}"


def target_job(board: Board) -> Iterator[Problem]:
    """Our series are those of the chosen jobs."""
    for panel in panels(board):
        for target in panel["targets"]:
            marked = promql.parse(substituted(target["expr"], {"job": "CHOSEN"}))
            for one in labels.selectors(marked):
                matched = any(m.name == "job" and m.value == "CHOSEN" for m in one.matchers.matchers)
                if not matched and not excluded("target-job-rule", labels.names(one)[0]):
                    yield panel["title"], f"{one} of any job"


def target_rates(board: Board) -> Iterator[Problem]:
    """Counters stand under a rate over Grafana's interval, and nothing else does."""
    for where, target, parsed in targets(board):
        for metric in {name for one in labels.selectors(parsed) for name in labels.names(one)}:
            rated = re.findall(rf"(rate|increase)\({metric}\{{[^}}]*\}}\[(.+?)\]", target["expr"])
            uses = len(re.findall(rf"\b{metric}\{{", target["expr"]))
            if metric in labels.COUNTERS and len(rated) != uses:
                yield where, f"{metric} is a counter, and not under rate or increase"
            if metric not in labels.COUNTERS and rated:
                yield where, f"{metric} is no counter"
            if any(span != "$__rate_interval" for _, span in rated):
                yield where, "a rate over another time than $__rate_interval"


def target_labels(board: Board) -> Iterator[Problem]:
    """Legends and columns name labels of the result, and no series is told apart by who scraped it."""
    for panel in panels(board):
        found: frozenset[str] = frozenset()
        for where, target, parsed in targets({"panels": [panel]}):
            result = labels.of_result(parsed)
            found |= labels.of_result(parsed, some=True)
            for label in set(PLACEHOLDER.findall(target.get("legendFormat", ""))) - result:
                yield where, f"the legend names {label}; there are {sorted(result)}"
            if extra := result & {"job", "instance"}:
                yield where, f"told apart by {sorted(extra)}"
        for step in panel.get("transformations", ()):
            shown = {name for name in step["options"].get("renameByName", {}) if not name.startswith("Value")}
            for label in shown - found:
                yield panel["title"], f"a column for {label}; there are {sorted(found)}"


def target_joins(board: Board) -> Iterator[Problem]:
    """The one side of a join is aggregated: two series of one key would be an error at night."""
    for where, _, parsed in targets(board):
        problems: list[str] = []

        def visit(node: Any, problems: list[str] = problems) -> None:
            many = isinstance(node, promql.BinaryExpr) and node.modifier is not None
            if many and node.modifier.card == promql.VectorMatchCardinality.ManyToOne:
                one = node.rhs
                while isinstance(one, promql.ParenExpr):
                    one = one.expr
                text = " ".join(str(one.prettify()).split())
                if not re.match(r"(\( ?|time\(\) - )*(max|min|sum|count|topk) by", text):
                    problems.append(text[:80])

        promql.walk(parsed, visit)
        yield from ((where, f"joins with {problem}") for problem in problems)


# --- the dashboard ------------------------------------------------------------------------------------------


def identity(board: Board) -> Iterator[Problem]:
    """It can be imported anywhere, again and again, and is not edited in place."""
    for key, wanted in (("id", None), ("editable", False), ("schemaVersion", 42), ("tags", [TAG])):
        if board.get(key, "missing") != wanted:
            yield key, f"is {board.get(key, 'missing')}, not {wanted}"
    if board["uid"] not in UIDS.values() or len(board["uid"]) > 40:
        yield "uid", board["uid"]
    if "__inputs" in board:
        yield "__inputs", "asks for input at import"
    if board.get("timezone") != "browser":
        yield "timezone", "is not that of the browser"


def links(board: Board) -> Iterator[Problem]:
    """Links keep time and variables, and lead to dashboards and variables that exist."""
    ours = [one for one in board["links"] if one["type"] == "dashboards"]
    if not any(one["tags"] == [TAG] and one["keepTime"] and one["includeVars"] for one in ours):
        yield "links", "no list of our dashboards that keeps time and variables"
    text = json.dumps(board)
    for uid, query in re.findall(r'/d/([\w-]+)\?((?:[^"\\]|\\.)*)"', text):
        name = uid.removeprefix("kubegpu-")
        if uid not in UIDS.values():
            yield uid, "no such dashboard"
            continue
        given = set(re.findall(r"var-(\w+)=", query)) | set(re.findall(r"\$\{(\w+):queryparam\}", query))
        for variable in given - variables(queries.load(name)).keys():
            yield uid, f"has no variable {variable}"
        if "${__url_time_range}" not in query:
            yield uid, "the link loses the time range"


def alerts(board: Board) -> Iterator[Problem]:
    """The alerts of this project are marked in every graph."""
    found = [one for one in board["annotations"]["list"] if "ALERTS" in one.get("expr", "")]
    if len(found) != 1 or 'alertname=~"GPU.*|KubeGPU.*"' not in found[0]["expr"]:
        yield "annotations", "not the alerts of this project"
        return
    parsed = promql.parse(substituted(found[0]["expr"], {}))
    wanted = set(PLACEHOLDER.findall(found[0]["titleFormat"] + found[0]["textFormat"]))
    for label in wanted - labels.of_result(parsed):
        yield "annotations", f"names {label}"


RULES: dict[str, Callable[[Board], Iterator[Problem]]] = {
    "template-datasource-rule": template_datasource,
    "template-job-rule": template_job,
    "template-all-rule": template_all,
    "template-on-time-change-reload-rule": template_reload,
    "template-label-promql-rule": template_queries,
    "panel-datasource-rule": panel_datasource,
    "panel-title-description-units-rule": panel_words,
    "target-required-rule": panel_targets,
    "unknown-is-not-calm-rule": panel_unknown,
    "places-rule": panel_places,
    "target-promql-rule": target_promql,
    "catalog-rule": target_names,
    "target-job-rule": target_job,
    "target-rate-interval-and-counter-rule": target_rates,
    "legend-rule": target_labels,
    "join-rule": target_joins,
    "uneditable-dashboard-rule": identity,
    "links-rule": links,
    "annotations-rule": alerts,
}
