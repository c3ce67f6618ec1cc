"""What an expression names, and which labels its result can have: PromQL goes in, names come out.

Labels are inferred upwards: a result never has a label that the inference leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import promql_parser as promql

SETS = {"and", "or", "unless"}
COMPARISONS = {"==", "!=", ">", "<", ">=", "<="}
_FIELD = re.compile(r"\$labels\.(\w+)")
_QUERY = re.compile(r"printf `([^`]*)`([^|]*)\|")


def parts(node: Any) -> Iterator[Any]:
    """Every node of an expression."""
    yield node
    match node:
        case promql.AggregateExpr():
            inner = [node.expr, node.param]
        case promql.BinaryExpr():
            inner = [node.lhs, node.rhs]
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            inner = [node.expr]
        case promql.Call():
            inner = list(node.args)
        case promql.MatrixSelector():
            inner = [node.vector_selector]
        case _:
            inner = []
    for one in inner:
        if one is not None:
            yield from parts(one)


def selectors(expr: str) -> dict[str, set[str]]:
    """Metrics that an expression selects, each with the labels that it matches."""
    found: dict[str, set[str]] = {}
    for node in parts(promql.parse(expr)):
        if isinstance(node, promql.VectorSelector):
            matched = {one.name for one in node.matchers.matchers}
            found.setdefault(str(node.name), set()).update(matched - {"__name__"})
    return found


def grouped(expr: str) -> set[str]:
    """Labels that the expression aggregates or matches by."""
    found: set[str] = set()
    for node in parts(promql.parse(expr)):
        modifier = getattr(node, "modifier", None)
        if isinstance(node, promql.AggregateExpr) and modifier is not None:
            found |= set(modifier.labels)
        elif isinstance(node, promql.BinaryExpr) and modifier is not None:
            found |= set(modifier.matching.labels if modifier.matching else ())
            found |= set(modifier.group_labels or ())
    return found


def compares(expr: str) -> bool:
    """Whether the expression has a comparison that can be false."""
    return any(
        isinstance(node, promql.BinaryExpr)
        and str(node.op) in COMPARISONS
        and not (node.modifier and node.modifier.return_bool)
        for node in parts(promql.parse(expr))
    )


def result(expr: str, known: Mapping[str, set[str]]) -> set[str]:
    """Labels that the result can have. `known`: those of each metric."""
    return _labels(promql.parse(expr), known)


def _labels(node: Any, known: Mapping[str, set[str]]) -> set[str]:
    match node:
        case promql.VectorSelector():
            return set(known[str(node.name)])
        case promql.MatrixSelector():
            return _labels(node.vector_selector, known)
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            return _labels(node.expr, known)
        case promql.Call():
            return _called(node, known)
        case promql.AggregateExpr():
            return _aggregated(node, _labels(node.expr, known))
        case promql.BinaryExpr():
            return _joined(node, _labels(node.lhs, known), _labels(node.rhs, known))
        case _:
            return set()


def _called(node: Any, known: Mapping[str, set[str]]) -> set[str]:
    if node.func.name in ("absent", "time"):  # absent keeps what is matched by =, and no rule matches so
        return set()
    return set().union(*(_labels(one, known) for one in node.args))


def _aggregated(node: Any, inner: set[str]) -> set[str]:
    if node.modifier is None:
        return set()
    chosen = set(node.modifier.labels)
    return inner & chosen if "By" in str(node.modifier.type) else inner - chosen


def _joined(node: Any, left: set[str], right: set[str]) -> set[str]:
    op, modifier = str(node.op), node.modifier
    if op == "or":
        return left | right
    if op in SETS:
        return left
    if isinstance(node.lhs, promql.NumberLiteral) or not left:
        return right
    matching = modifier.matching if modifier else None
    if matching is None or "ManyToOne" in str(modifier.card):
        return left | set(modifier.group_labels or () if modifier else ())
    chosen = set(matching.labels)
    return left & chosen if "Include" in str(matching.type) else left - chosen


def template_labels(text: str) -> set[str]:
    """Labels of the alert that a template names."""
    return set(_FIELD.findall(text))


def template_queries(text: str) -> list[str]:
    """Expressions that a template asks Prometheus for, with the places of label values filled in."""
    found = []
    for written, arguments in _QUERY.findall(text):
        assert written.count("%q") == len(arguments.split()), written
        found.append(written.replace("%q", '"x"').replace("%%", "%"))
    return found
