"""Which labels the result of a query can have, from the metric table and the query's own words.

A parsed query comes in, a set of labels goes out: those that every series of one of its arms may carry. A
metric or label that nobody exports is an error here. Nothing here may ask a Prometheus.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import promql_parser as promql

from exporter.catalog import FAMILIES

# Labels of the target, which the scrape adds.
TARGET = frozenset({"job", "instance", "cluster", "node"})
# Metrics that are not ours, and their labels.
_CONTAINER = TARGET | {"namespace", "pod", "container"}
FOREIGN: Mapping[str, frozenset[str]] = {
    "up": TARGET,
    "scrape_samples_scraped": TARGET,
    "scrape_samples_post_metric_relabeling": TARGET,
    "scrape_duration_seconds": TARGET,
    "ALERTS": TARGET | {"alertname", "alertstate", "severity", "uuid", "gpu", "namespace", "pod"},
    "kube_resourcequota": TARGET | {"namespace", "resourcequota", "resource", "type"},
    "kube_pod_container_resource_requests": _CONTAINER | {"resource", "unit"},
    "container_cpu_usage_seconds_total": _CONTAINER,
    "container_memory_working_set_bytes": _CONTAINER,
}
OWN: Mapping[str, frozenset[str]] = {one.full_name: frozenset(one.labels) | TARGET for one in FAMILIES}
COUNTERS = frozenset(one.full_name for one in FAMILIES if one.kind == "counter") | {
    "container_cpu_usage_seconds_total"
}
# What a scrape without honor_labels makes of ours: asked for only to say that it did.
REWRITTEN = frozenset({"exported_pod", "exported_namespace"})


def selectors(expr: Any) -> Iterator[Any]:
    """Every vector selector of a parsed query."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql.VectorSelector):
            found.append(node)
        elif isinstance(node, promql.MatrixSelector):
            found.append(node.vector_selector)

    promql.walk(expr, visit)
    return iter({str(one): one for one in found}.values())


def names(selector: Any) -> list[str]:
    """The metrics that a selector means: its name, or those that a matcher of __name__ lists."""
    if selector.name:
        return [str(selector.name)]
    for matcher in selector.matchers.matchers:
        if matcher.name == "__name__":
            return str(matcher.value).split("|")
    return []


def of_metric(name: str) -> frozenset[str]:
    """The labels of a metric; a KeyError if nobody exports it."""
    return OWN[name] if name in OWN else FOREIGN[name]


def of_result(expr: Any, *, some: bool = False) -> frozenset[str]:
    """Labels that the result can have: for `or` those of both sides, or with `some` those of either."""
    match expr:
        case promql.VectorSelector():
            return frozenset.intersection(*map(of_metric, names(expr)))
        case promql.MatrixSelector():
            return of_result(expr.vector_selector, some=some)
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            return of_result(expr.expr, some=some)
        case promql.AggregateExpr():
            return _aggregate(expr, some=some)
        case promql.Call():
            return _call(expr, some=some)
        case promql.BinaryExpr():
            return _binary(expr, some=some)
        case _:
            return frozenset()


def _aggregate(expr: Any, *, some: bool) -> frozenset[str]:
    inner = of_result(expr.expr, some=some)
    picks = str(expr.op) in ("topk", "bottomk")
    if expr.modifier is None:
        return inner if picks else frozenset()
    given = frozenset(expr.modifier.labels)
    if expr.modifier.type == promql.AggModifierType.Without:
        return inner - given
    return inner if picks else inner & given


def _call(expr: Any, *, some: bool) -> frozenset[str]:
    inner = [of_result(arg, some=some) for arg in expr.args if isinstance(arg, promql.Expr)]
    labels = frozenset.union(frozenset(), *inner)
    name = str(expr.func.name)
    if name in ("label_replace", "label_join"):
        return labels | {str(expr.args[1].val)}
    return frozenset() if name in ("absent", "vector", "time", "scalar") else labels


def _binary(expr: Any, *, some: bool) -> frozenset[str]:
    left, right = of_result(expr.lhs, some=some), of_result(expr.rhs, some=some)
    operator = str(expr.op)
    if _is_number(expr.lhs):
        return right
    if _is_number(expr.rhs) or operator in ("and", "unless"):
        return left
    if operator == "or":
        # An arm that stands for what is unknown may have fewer labels: its words say so.
        return left | right if some else left if _is_unknown(expr.rhs) else left & right
    return _matched(left, right, expr.modifier)


def _matched(left: frozenset[str], right: frozenset[str], modifier: Any) -> frozenset[str]:
    matching = modifier.matching if modifier else None
    if matching is None:
        return left & right
    if modifier.card == promql.VectorMatchCardinality.ManyToOne:
        return left | (frozenset(modifier.group_labels or ()) & right)
    on = frozenset(matching.labels)
    return left & on if matching.type == promql.LabelModifierType.Include else left - on


def _is_number(expr: Any) -> bool:
    match expr:
        case promql.NumberLiteral():
            return True
        case promql.ParenExpr() | promql.UnaryExpr():
            return _is_number(expr.expr)
        case promql.Call():
            return str(expr.func.name) in ("time", "scalar")
        case _:
            return False


def _is_unknown(expr: Any) -> bool:
    """Whether an arm yields nothing but NaN."""
    return bool(re.search(r"\bnan\b", str(expr.prettify()), re.IGNORECASE))
