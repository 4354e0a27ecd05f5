"""The alert rules: each fires on the failure that it is for, says what to do, and names metrics that exist."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakewarden.agent.metrics.agent_metrics import AgentMetrics
from tests.monitoring.expected_alerts import EXPECTED, TOO_LONG, UNCERTAIN, WITH_THE_MACHINE
from tests.monitoring.failures import FAILURES
from tests.monitoring.prometheus import programs
from tests.monitoring.recording import FOLDER, OF_THE_MACHINE, STRETCH_SECONDS, promtool_test
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


def rules_without_annotations() -> str:
    """promtool would compare their texts, too."""
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]
    return yaml.safe_dump(rules)


def run_by_promtool(folder: Path, interval: str, tests: Iterable[Mapping[str, Any]]) -> None:
    (folder / "rules.yml").write_text(rules_without_annotations())
    cases = folder / "cases.yml"
    content = {"rule_files": ["rules.yml"], "evaluation_interval": interval, "tests": list(tests)}
    cases.write_text(yaml.safe_dump(content, sort_keys=False, width=10_000))
    promtool("test", "rules", str(cases))


def alerts_on(failure: str) -> list[dict[str, Any]]:
    """The alerts on what is recorded of a failure."""
    if failure in WITH_THE_MACHINE:
        return ALERTS
    return [each for each in ALERTS if not any(name in each["expr"] for name in OF_THE_MACHINE)]


def test_each_written_failure_fires_its_alerts_and_no_others(tmp_path: Path) -> None:
    written = (promtool_test(each.name, each.series(), ALERTS, each.alerts) for each in FAILURES)

    run_by_promtool(tmp_path, "1m", written)


def test_each_recorded_failure_fires_its_alerts_and_no_others(tmp_path: Path) -> None:
    """What real agents showed while something failed (`recorded/`)."""
    found = [yaml.safe_load(each.read_text()) for each in sorted(FOLDER.glob("*.yml"))]
    tests = []
    for recording in found:
        failure, marks = recording["failure"], recording["marks"]
        certain = [each for each in alerts_on(failure) if each["alert"] not in UNCERTAIN.get(failure, ())]
        expected = {f"{marks[mark] * STRETCH_SECONDS}s": fired for mark, fired in EXPECTED[failure].items()}
        tests.append(promtool_test(failure, recording["series"], certain, expected))

    assert {each["failure"] for each in found} == EXPECTED.keys()
    run_by_promtool(tmp_path, f"{STRETCH_SECONDS}s", tests)


def test_the_rules_and_the_example_of_a_configuration_are_valid() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    promtool("check", "config", str(DEPLOY / "prometheus.yml"))
    promtool("check", "config", str(DEPLOY / "compose.yml"))


def test_each_alert_fires_in_a_recorded_failure_or_in_a_written_one_that_lasts() -> None:
    recorded = {alert for marks in EXPECTED.values() for alerts in marks.values() for alert in alerts}
    written = {alert for failure in FAILURES for found in failure.alerts.values() for alert in found}

    assert recorded | TOO_LONG == {each["alert"] for each in ALERTS}
    assert written >= TOO_LONG


def test_the_series_of_the_failures_are_metrics_of_the_agent() -> None:
    used = {name.partition("{")[0] for failure in FAILURES for name in failure.series()}

    assert used <= names_of_series()


@pytest.mark.parametrize("alert", ALERTS, ids=[each["alert"] for each in ALERTS])
def test_an_alert_has_a_run_book_and_names_metrics_that_exist(alert: dict[str, Any]) -> None:
    page, anchor = alert["annotations"]["runbook"].split("#")

    assert anchor in anchors_of(ROOT / page)
    assert alert["labels"]["severity"] in ("page", "ticket")
    assert set(re.findall(r"\b(?:lakewarden_\w+|up)\b", alert["expr"])) <= names_of_series()
