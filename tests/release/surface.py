"""The public surface of a release, one name a line: `python -m tests.release.surface` records it for the version at hand.

The record of a version that was released is never changed again. docs/public.md says what the names promise.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import typer.main
from opentelemetry.sdk.metrics import MeterProvider

from lakewarden import events, spark_jobs
from lakewarden.agent.cli.app import app
from lakewarden.agent.metrics.agent_metrics import AgentMetrics
from lakewarden.agent.settings import Settings
from lakewarden.events import Topics
from lakewarden.spark_jobs.gate.metrics import GateMetrics
from tests.pages import asyncapi

FOLDER: Final = Path(__file__).parent / "surfaces"
LOG_EVENTS: Final = Path(__file__).parents[2] / "docs" / "log-events.md"


def surface() -> Iterator[str]:
    """Every public name, with its kind before it, and what belongs to it behind it."""
    for name in spark_jobs.__all__:
        yield f"lakewarden.spark_jobs {name}"
    for name in vars(events):
        if not (name.startswith("_") or inspect.ismodule(getattr(events, name))):
            yield f"lakewarden.events {name}"
    yield from of_command(typer.main.get_command(app), "lakewarden")
    for name in Settings.model_fields:
        yield f"setting {name}"
    for metric in AgentMetrics().descriptions:
        yield f"metric {metric.name}"
        for label in metric.labels:
            yield f"metric {metric.name} {label}"
    for instrument in vars(GateMetrics(MeterProvider())).values():
        if hasattr(instrument, "name"):
            yield f"metric {instrument.name}"
    # A unit test compares the page with the code.
    for row in re.findall(r"^\| (`.*?) \|", LOG_EVENTS.read_text(encoding="utf-8"), re.MULTILINE):
        for name in re.findall(r"`([a-z]+[.-][a-z_.-]+)`", row):
            yield f"log event {name}"
    yield from of_the_wire()


def of_the_wire() -> Iterator[str]:
    """Topics, events, and the fields of everything that stands in an event."""
    for topic in Topics().settings():
        yield f"topic {topic.name}"
    document = asyncapi.document()
    for name, schema in document["components"]["schemas"].items():
        for field in schema.get("properties", ()):
            yield f"schema {name} {field}"
    for tag in document["components"]["messages"]:
        yield f"event {tag}"


def of_command(command: Any, words: str) -> Iterator[str]:
    """One line for each command and each of its options; typer has no public class for a command."""
    for option in command.params:
        for name in option.opts:
            if name.startswith("--"):
                yield f"command {words} {name}"
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from of_command(inner, f"{words} {name}")
    else:
        yield f"command {words}"


def undocumented(version: str, recorded: str, current: set[str], changelog: str) -> list[str]:
    """The recorded names that are gone, and that no later version of the changelog has in backticks, whole as in the record."""
    later = changelog.partition(f"\n## {version}")[0]
    return [line for line in sorted(set(recorded.splitlines()) - current) if f"`{line}`" not in later]


if __name__ == "__main__":
    (FOLDER / f"{version('lakewarden')}.txt").write_text("\n".join(sorted(set(surface()))) + "\n")
