"""The dashboard of `deploy/grafana/`, and what Grafana does with its queries before it sends them to Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.monitoring.test_alerts import ROOT

DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "lakewarden.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
TARGETS: list[tuple[str, str, str]] = [
    (panel["title"], target["expr"], target["legendFormat"])
    for panel in PANELS
    for target in panel.get("targets", [])
]
"""Of each query: the panel's title, the expression, and the text of the legend."""
QUERIES: list[str] = [expression for _, expression, _ in TARGETS]
ADDED_BY_GRAFANA = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable whose values are those of a label."""

    name: str
    selector: str
    label: str


def variables() -> list[Variable]:
    """The variables that Prometheus answers."""
    found: list[Variable] = []
    for each in DASHBOARD["templating"]["list"]:
        if each["type"] == "query":
            parts = re.fullmatch(r"label_values\((.+), (\w+)\)", each["query"]["query"])
            assert parts is not None, each["name"]
            found.append(Variable(each["name"], parts[1], parts[2]))
    return found


def resolved(query: str, values: Mapping[str, Iterable[str]], rate_interval: str) -> str:
    """The query with the variables replaced: several values become a regular expression."""
    query = query.replace(ADDED_BY_GRAFANA, rate_interval)
    for name, each in values.items():
        expression = "|".join(re.escape(value) for value in each).replace("\\", "\\\\")
        query = query.replace(f"${name}", expression)
    return query
