"""Which metrics and labels a query names."""

from __future__ import annotations

from collections.abc import Mapping

import promql_parser as parser


def unknown(query: str, exported: Mapping[str, frozenset[str]]) -> list[str]:
    """What the query names that is not among these metrics, or not among the labels that they have. Raises ValueError: it
    is none."""
    found: list[str] = []

    def visit(node: parser.Expr) -> bool:
        match node:
            case parser.VectorSelector():
                found.extend(_of_selector(node, exported))
            case parser.AggregateExpr():
                labels = node.modifier.labels if node.modifier else ()
                found.extend(_missing(labels, _labels(node.expr, exported), node))
            case parser.BinaryExpr():
                labels = node.modifier.matching.labels if node.modifier and node.modifier.matching else ()
                for side in (node.lhs, node.rhs):
                    found.extend(_missing(labels, _labels(side, exported), node))
        return True

    parser.walk(parser.parse(query), visit)
    return found


def selectors(query: str) -> list[parser.VectorSelector]:
    """All of it, those in ranges, too."""
    found: list[parser.VectorSelector] = []

    def visit(node: parser.Expr) -> bool:
        if isinstance(node, parser.VectorSelector):
            found.append(node)
        return True

    parser.walk(parser.parse(query), visit)
    return found


def _of_selector(node: parser.VectorSelector, exported: Mapping[str, frozenset[str]]) -> list[str]:
    if node.name not in exported:
        return [f"no metric {node.name}"]
    return _missing([matcher.name for matcher in node.matchers.matchers], exported[node.name], node)


def _labels(node: parser.Expr, exported: Mapping[str, frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*(exported.get(found.name or "", ()) for found in selectors(node.prettify())))


def _missing(labels: object, known: frozenset[str], node: parser.Expr) -> list[str]:
    assert isinstance(labels, list | tuple)
    return [f"no label {label} in {node.prettify()}" for label in labels if label not in known]
