"""The alert rules: each fires on the failure that it is for, says what to do, and names metrics that exist."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakewarden.agent.metrics.agent_metrics import AgentMetrics
from tests.monitoring.failures import FAILURES, INTERVAL_SECONDS
from tests.monitoring.prometheus import programs
from tests.unit.test_documents import anchors_of

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "prometheus"
RULES = DEPLOY / "lakewarden.rules.yml"
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
]


def promtool(*arguments: str) -> str:
    done = subprocess.run([programs()[1], *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def names_of_series() -> set[str]:
    """The names of all samples of the agent, and those that Prometheus adds."""
    names = {"up"}
    for each in AgentMetrics().descriptions:
        suffixes = ("_bucket", "_sum", "_count") if each.kind == "histogram" else ("",)
        names |= {each.name + suffix for suffix in suffixes}
    return names


def promtool_cases(alerts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The failures as a file for promtool. Of each moment it names every alert, also those that must not fire."""
    alerts = list(alerts)
    return {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "name": failure.name,
                "interval": f"{INTERVAL_SECONDS}s",
                "input_series": [
                    {"series": name, "values": values} for name, values in failure.series().items()
                ],
                "alert_rule_test": [
                    {
                        "eval_time": moment,
                        "alertname": alert["alert"],
                        "exp_alerts": [
                            {"exp_labels": {**alert["labels"], **labels}}
                            for labels in fired.get(alert["alert"], ())
                        ],
                    }
                    for moment, fired in failure.alerts.items()
                    for alert in alerts
                ],
            }
            for failure in FAILURES
        ],
    }


def rules_without_annotations() -> str:
    """promtool would compare their texts, too."""
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]
    return yaml.safe_dump(rules)


def test_each_failure_fires_its_alerts_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(rules_without_annotations())
    cases = tmp_path / "cases.yml"
    cases.write_text(yaml.safe_dump(promtool_cases(ALERTS), sort_keys=False))

    promtool("test", "rules", str(cases))


def test_the_rules_and_the_example_of_a_configuration_are_valid() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    promtool("check", "config", str(DEPLOY / "prometheus.yml"))
    promtool("check", "config", str(DEPLOY / "compose.yml"))


def test_each_alert_fires_in_a_failure() -> None:
    fired = {alert for failure in FAILURES for found in failure.alerts.values() for alert in found}

    assert fired == {each["alert"] for each in ALERTS}


def test_the_series_of_the_failures_are_metrics_of_the_agent() -> None:
    used = {name.partition("{")[0] for failure in FAILURES for name in failure.series()}

    assert used <= names_of_series()


@pytest.mark.parametrize("alert", ALERTS, ids=[each["alert"] for each in ALERTS])
def test_an_alert_has_a_run_book_and_names_metrics_that_exist(alert: dict[str, Any]) -> None:
    page, anchor = alert["annotations"]["runbook"].split("#")

    assert anchor in anchors_of(ROOT / page)
    assert alert["labels"]["severity"] in ("page", "ticket")
    assert set(re.findall(r"\b(?:lakewarden_\w+|up)\b", alert["expr"])) <= names_of_series()
