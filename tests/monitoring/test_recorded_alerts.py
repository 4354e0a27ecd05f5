"""The alert rules on what real agents showed while something failed (`recorded/`, written by `make record-alerts`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.monitoring.expected_alerts import EXPECTED, TOO_LONG, UNCERTAIN, WITH_THE_MACHINE
from tests.monitoring.recording import FOLDER, OF_THE_MACHINE, promtool_test
from tests.monitoring.test_alerts import ALERTS, promtool, rules_without_annotations


def _certain(failure: str) -> list[dict[str, Any]]:
    return [each for each in alerts_on(failure) if each["alert"] not in UNCERTAIN.get(failure, ())]


def alerts_on(failure: str) -> list[dict[str, Any]]:
    """The alerts on what is recorded of a failure."""
    if failure in WITH_THE_MACHINE:
        return ALERTS
    return [each for each in ALERTS if not any(name in each["expr"] for name in OF_THE_MACHINE)]


def check_alerts(folder: Path, recordings: Mapping[str, tuple[Mapping[str, str], Mapping[str, int]]]) -> None:
    """`recordings`: by failure, the series in promtool's notation, and the marks."""
    (folder / "rules.yml").write_text(rules_without_annotations())
    tests = [
        promtool_test(failure, series, marks, _certain(failure), EXPECTED[failure])
        for failure, (series, marks) in recordings.items()
    ]
    cases = folder / "cases.yml"
    content = {"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": tests}
    cases.write_text(yaml.safe_dump(content, sort_keys=False, width=10_000))
    promtool("test", "rules", str(cases))


def test_each_recorded_failure_fires_its_alerts_and_no_others(tmp_path: Path) -> None:
    found = [yaml.safe_load(each.read_text()) for each in sorted(FOLDER.glob("*.yml"))]

    assert {each["failure"] for each in found} == EXPECTED.keys()
    check_alerts(tmp_path, {each["failure"]: (each["series"], each["marks"]) for each in found})


def test_each_alert_is_fired_by_a_recorded_failure() -> None:
    fired = {alert for marks in EXPECTED.values() for alerts in marks.values() for alert in alerts}

    assert fired | TOO_LONG == {each["alert"] for each in ALERTS}
