"""The public surface of a release, one line for each name: `python -m tests.release.surface` records it for the version at hand.

A line has what a user builds on: the name, its type and its default. So a line vanishes, too, if one of these changes.
The record of a version that was released is never changed again. docs/public.md says what the lines promise.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal, get_origin

import typer.main
from opentelemetry.sdk.metrics import MeterProvider
from pydantic import BaseModel

from lakewarden import events, spark_jobs
from lakewarden.agent.cli.app import app
from lakewarden.agent.metrics.agent_metrics import AgentMetrics
from lakewarden.agent.settings import Settings
from lakewarden.events import Topics
from lakewarden.spark_jobs.gate.metrics import GateMetrics
from tests.pages import asyncapi

FOLDER: Final = Path(__file__).parent / "surfaces"
DOCS: Final = Path(__file__).parents[2] / "docs"
LOG_EVENTS: Final = DOCS / "log-events.md"
MANUAL: Final = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))


def surface() -> Iterator[str]:
    """Every public name, with its kind before it, and what belongs to it behind it."""
    for name in spark_jobs.__all__:
        yield f"lakewarden.spark_jobs {name}"
        for line in of_object(name, getattr(spark_jobs, name)):
            yield f"lakewarden.spark_jobs {line}"
    for name in vars(events):
        if not (name.startswith("_") or inspect.ismodule(getattr(events, name))):
            value = getattr(events, name)
            yield f"lakewarden.events {name}"
            if isinstance(value, str | int | float) or get_origin(value) is Literal:
                yield f"lakewarden.events {name} = {value}"
    yield from of_command(typer.main.get_command(app), "lakewarden")
    for name, field in Settings.model_fields.items():
        default = of_default(field.default_factory or field.default)
        yield f"setting {name}: {inspect.formatannotation(field.annotation)} = {default}"
    for metric in AgentMetrics().descriptions:
        yield f"metric {metric.name}: {metric.kind}"
        for label in metric.labels:
            yield f"metric {metric.name} {label}"
    for instrument in vars(GateMetrics(MeterProvider())).values():
        if hasattr(instrument, "name"):
            yield f"metric {instrument.name}: {type(instrument).__name__.lstrip('_').lower()}"
    # A unit test compares the page with the code.
    for row in re.findall(r"^\| (`.*?) \|", LOG_EVENTS.read_text(encoding="utf-8"), re.MULTILINE):
        for name in re.findall(r"`([a-z]+[.-][a-z_.-]+)`", row):
            yield f"log event {name}"
    yield from of_the_wire()


def of_object(name: str, value: object) -> Iterator[str]:
    """The parameters of what the manual calls; of a class also the methods and properties that the manual uses.

    What stands in events is among the schemas.
    """
    if inspect.isclass(value) and issubclass(value, BaseModel):
        return
    abstract = getattr(value, "_is_protocol", False)
    if callable(value) and not abstract and f"{name}(" in MANUAL:
        yield from of_call(name, value)
    if not inspect.isclass(value):
        return
    for member, inner in inspect.getmembers_static(value):
        # Words of prose have no dot before them.
        if member.startswith("_") or not re.search(rf"\.{member}\b", MANUAL):
            continue
        if isinstance(inner, property) and inner.fget is not None:
            yield f"{name}.{member}: {inspect.signature(inner.fget).return_annotation}"
        elif inspect.isfunction(inner):
            yield from of_call(f"{name}.{member}", inner)
        else:
            yield f"{name}.{member}"


def of_call(name: str, function: Callable[..., object]) -> Iterator[str]:
    """One line for each parameter, by its place if it can be passed by place, and one for the result of a method."""
    signature = inspect.signature(function)
    for place, parameter in enumerate(signature.parameters.values()):
        if parameter.name == "self":
            continue
        shown = f"{parameter.name}: {of_type(parameter.annotation, function)}"
        if parameter.default is not parameter.empty:
            shown += f" = {of_default(parameter.default)}"
        if parameter.kind is not parameter.KEYWORD_ONLY:
            shown = f"{place}, {shown}"
        yield f"{name}({shown})"
    if "." in name:
        yield f"{name}() -> {of_type(signature.return_annotation, function)}"


def of_type(annotation: Any, function: Callable[..., object]) -> str:
    """The type as it stands in the code, so that each Python writes the same line; the values of a `Literal`."""
    if not isinstance(annotation, str):
        return inspect.formatannotation(annotation)
    code = inspect.unwrap(function.__init__ if inspect.isclass(function) else function)
    known = getattr(code, "__globals__", {}).get(annotation)
    return str(known) if get_origin(known) is Literal else annotation


def of_default(value: object) -> str:
    """Its text; of a function the name."""
    return getattr(value, "__name__", repr(value))


def of_the_wire() -> Iterator[str]:
    """Topics, events, and the fields of everything that stands in an event."""
    for topic in Topics().settings():
        yield f"topic {topic.name}"
    document = asyncapi.document()
    for name, schema in document["components"]["schemas"].items():
        for field, value in schema.get("properties", {}).items():
            type_of_field = {key: value[key] for key in sorted(value.keys() - {"title", "description"})}
            yield f"schema {name} {field}: {json.dumps(type_of_field)}"
    for tag in document["components"]["messages"]:
        yield f"event {tag}"


def of_command(command: Any, words: str) -> Iterator[str]:
    """One line for each command and each of its options; typer has no public class for a command."""
    for option in command.params:
        for name in option.opts:
            if name.startswith("--"):
                yield f"command {words} {name} = {option.default!r}"
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
