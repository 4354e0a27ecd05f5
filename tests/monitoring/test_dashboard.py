"""The dashboard: each query is PromQL, on metrics and labels that exist, and each panel has a place of its own."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from lakewarden.agent.metrics.agent_metrics import AgentMetrics
from tests.monitoring.dashboard import DASHBOARD, PANELS, QUERIES, TARGETS, resolved, variables
from tests.monitoring.test_alerts import names_of_series, promtool

ADDED_BY_PROMETHEUS = {"job", "instance", "le"}
OF_THE_PROCESS = {"process_resident_memory_bytes"}
NAMES = [each.name for each in variables()]


def test_each_query_is_valid(tmp_path: Path) -> None:
    """As a recording rule, because promtool checks no single query. `test_scrape.py` evaluates each."""
    rules = [
        {"record": f"query:{number}", "expr": resolved(query, dict.fromkeys(NAMES, ("a.b", "c")), "5m")}
        for number, query in enumerate(QUERIES)
    ]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))

    promtool("check", "rules", str(path))


def test_each_query_names_metrics_and_labels_that_exist() -> None:
    labels = {each.name: set(each.labels) for each in AgentMetrics().descriptions}
    for query in QUERIES:
        names = set(re.findall(r"\b(?:lakewarden_|process_)\w+|\bup\b", query))
        assert names, query
        assert names <= names_of_series() | OF_THE_PROCESS, query
        known = ADDED_BY_PROMETHEUS.union(
            *(labels.get(re.sub(r"_(bucket|count|sum)$", "", name), set()) for name in names),
            *(labels.get(name, set()) for name in names),
        )
        used = {
            label for group in re.findall(r"\bby \(([^)]*)\)", query) for label in re.split(r"\W+", group)
        }
        used |= set(re.findall(r"(\w+)=~?\"", query))
        assert used <= known, query


def test_the_dashboard_shows_every_metric_of_transactions_locks_and_stores() -> None:
    """Of the others it shows the important ones."""
    shown = {name for query in QUERIES for name in re.findall(r"lakewarden_\w+", query)}
    missing = {
        each.name
        for each in AgentMetrics().descriptions
        if not any(name.startswith(each.name) for name in shown)
    }

    assert missing == {
        "lakewarden_agent_info",
        "lakewarden_ready_condition",
        "lakewarden_incomplete_logs",
        "lakewarden_replay_seconds",
        "lakewarden_undecodable_records",
        "lakewarden_tables",
    }


def test_each_panel_has_an_id_a_place_and_the_chosen_data_source() -> None:
    places: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        covered = {
            (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not places & covered, panel["title"]
        places |= covered
        for target in panel.get("targets", []):
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}

        assert len({target["refId"] for target in panel.get("targets", [])}) == len(panel.get("targets", []))

    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    assert [each["name"] for each in DASHBOARD["templating"]["list"]] == ["datasource", "instance", "table"]


def test_each_variable_of_a_query_is_defined() -> None:
    used = {name for query in QUERIES for name in re.findall(r"\$(\w+)", query)}

    assert used == {*NAMES, "__rate_interval"}


def test_a_variable_with_several_values_becomes_a_regular_expression() -> None:
    """As Grafana does it, so that a dot in a name matches nothing else."""
    found = resolved('up{instance=~"$instance"}[$__rate_interval]', {"instance": ("a.b:1", "c")}, "5m")

    assert found == r'up{instance=~"a\\.b:1|c"}[5m]'


def test_the_legend_of_a_query_names_labels_by_which_it_sums() -> None:
    for title, query, legend in TARGETS:
        by = {label for group in re.findall(r"\bby \(([^)]*)\)", query) for label in group.split(", ")}
        assert set(re.findall(r"{{(\w+)}}", legend)) <= (by or {"instance"}), title
