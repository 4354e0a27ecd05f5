"""Recordings of `/metrics` during a failure, in promtool's notation, and the alerts that they must fire.

One scrape stands for `STRETCH_SECONDS`: the agents' times are shortened, and the windows of the alerts are minutes. Values are as
the agent gave them. Kept are the series that the alert rules name. The delays of the event loop are kept where they are the
failure; elsewhere they say more about the recording machine.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

STRETCH_SECONDS = 15
FOLDER = Path(__file__).with_name("recorded")
JOB = "lakewarden"
OF_THE_MACHINE = ("lakewarden_event_loop_delay_seconds_bucket",)

Alerts = Mapping[str, tuple[dict[str, str], ...]]
"""By name: the labels of each alert, beside those of its rule."""


Selectors = Mapping[str, list[dict[str, str]]]
"""By metric: the labels that a rule names with one value. A sample is kept if it has all labels of one of them."""


def selectors_of(rules: Iterable[Mapping[str, Any]]) -> Selectors:
    """The series that the rules need from an agent."""
    found: dict[str, list[dict[str, str]]] = {}
    for rule in rules:
        for name, labels in re.findall(r"\b(lakewarden_\w+)(\{[^}]*\})?", rule["expr"]):
            found.setdefault(name, []).append(dict(re.findall(r'(\w+)="([^"]*)"', labels)))
    return found


@dataclass(slots=True)
class Recording:
    """The samples of each series, one for each scrape, and the scrapes at which something was noted."""

    failure: str
    scrapes: int = 0
    marks: dict[str, int] = field(default_factory=dict)
    series: dict[str, list[float | None]] = field(default_factory=dict)

    def add(self, answers: Mapping[str, str | None], wanted: Selectors, rename: Mapping[str, str]) -> None:
        """Add a scrape. `answers`: the text of `/metrics` by instance, None without an answer. `rename`: parts of labels."""
        found: dict[str, float] = {}
        for instance, text in answers.items():
            found[_series("up", {"instance": instance})] = float(text is not None)
            for family in text_string_to_metric_families(text or ""):
                for sample in family.samples:
                    if any(each.items() <= sample.labels.items() for each in wanted.get(sample.name, ())):
                        labels = {name: _renamed(value, rename) for name, value in sample.labels.items()}
                        key = _series(sample.name, {**labels, "instance": instance})
                        found[key] = found.get(key, 0.0) + sample.value
        for key in found.keys() - self.series.keys():
            self.series[key] = [None] * self.scrapes
        for key, values in self.series.items():
            values.append(found.get(key))
        self.scrapes += 1

    def last(self, metric: str, scrapes: int) -> list[float | None]:
        """The last samples of all series of a metric."""
        mine = [values for name, values in self.series.items() if name.partition("{")[0] == metric]
        return [sample for values in mine for sample in values[-scrapes:]]

    def mark(self, name: str) -> None:
        """Note the last scrape under a name."""
        self.marks[name] = self.scrapes - 1

    def notation(self) -> dict[str, str]:
        """The series for promtool."""
        return {name: _notation(values) for name, values in sorted(self.series.items())}

    def save(self) -> None:
        FOLDER.mkdir(exist_ok=True)
        content = {"failure": self.failure, "marks": self.marks, "series": self.notation()}
        path = FOLDER / f"{self.failure.replace(' ', '-')}.yml"
        path.write_text(
            f"# Written by make record-alerts. One value for each scrape, which stands for {STRETCH_SECONDS} s.\n"
            + yaml.safe_dump(content, sort_keys=False, width=10_000)
        )


def _series(name: str, labels: Mapping[str, str]) -> str:
    text = ",".join(f'{label}="{value}"' for label, value in sorted({**labels, "job": JOB}.items()))
    return f"{name}{{{text}}}"


def _renamed(value: str, rename: Mapping[str, str]) -> str:
    for old, new in rename.items():
        value = value.replace(old, new)
    return value


def _notation(values: Iterable[float | None]) -> str:
    """Equal values that follow each other are one term. A series that ends gets a marker, as Prometheus writes it."""
    terms: list[str] = []
    for value, run in itertools.groupby(round(each, 1) if each is not None else None for each in values):
        length = len(list(run))
        if value is not None:
            terms.append(f"{value:.12g}" + (f"x{length - 1}" if length > 1 else ""))
            continue
        if terms:
            terms.append("stale")
            length -= 1
        if length:
            terms.append(f"_x{length}")
    return " ".join(terms)


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
