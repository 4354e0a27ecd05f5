"""Recordings of `/metrics` during a failure, in promtool's notation, and the alerts that they must fire.

They show real agents, with writers, Kafka and an S3 server, scraped each second. One scrape stands for `STRETCH_SECONDS`: the
agents' times were shortened, and the windows of the alerts are minutes. Values are as the agent gave them. Kept are the series
that the alert rules name. The delays of the event loop are kept where they are the failure; elsewhere they say more about the
recording machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

STRETCH_SECONDS = 15
FOLDER = Path(__file__).with_name("recorded")
OF_THE_MACHINE = ("lakewarden_event_loop_delay_seconds_bucket",)

Alerts = Mapping[str, tuple[dict[str, str], ...]]
"""By name: the labels of each alert, beside those of its rule."""


def promtool_test(
    failure: str,
    series: Mapping[str, str],
    alerts: Iterable[Mapping[str, Any]],
    expected: Mapping[str, Alerts],
) -> dict[str, Any]:
    """A test for promtool. At each of these moments since the beginning, such as 10m, exactly the expected alerts fire."""
    return {
        "name": failure,
        "interval": f"{STRETCH_SECONDS}s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {
                "eval_time": moment,
                "alertname": alert["alert"],
                "exp_alerts": [
                    {"exp_labels": {**alert["labels"], **labels}} for labels in fired.get(alert["alert"], ())
                ],
            }
            for moment, fired in expected.items()
            for alert in alerts
        ],
    }
