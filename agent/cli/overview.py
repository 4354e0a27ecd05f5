"""The commands `lakewarden status`, `losses`, `assess`, `refused` and `agents`: their options and output."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from lakewarden.agent.cli.options import (
    BootstrapServers,
    Config,
    OnlyTable,
    Output,
    OutputFormat,
    S3Endpoint,
    Verbose,
    run,
    watched_table,
)
from lakewarden.agent.cli.output import print_json, print_line, print_lines, print_tree
from lakewarden.agent.logs import configure_logging
from lakewarden.agent.operators.agents import agent_lines, agents
from lakewarden.agent.operators.assess import assessment_fields, assessment_lines, picture
from lakewarden.agent.operators.conditions import status
from lakewarden.agent.operators.losses import loss_lines, losses
from lakewarden.agent.operators.refused import refused, refused_lines
from lakewarden.agent.operators.status_text import status_summary, status_tree
from lakewarden.agent.settings import KafkaSettings, Settings
from lakewarden.agent.watching.past import past
from lakewarden.handlers.assessment import assess


def status_command(
    table: OnlyTable = None,
    *,
    verbose: Verbose = False,
    output: OutputFormat = Output.TEXT,
    bootstrap_servers: BootstrapServers = None,
    config: Config = None,
) -> None:
    """Print the condition of each table, the worst first: what is wrong, since when, who causes it, and what to do.

    Below it the table's lock, and its open transactions. The command reads the Kafka topics, so it also works while no agent
    runs.
    """
    settings = Settings.load(config, bootstrap_servers=bootstrap_servers)
    configure_logging("warning", stream=sys.stderr)
    views = run(lambda: status(settings, table))
    if output is Output.JSON:
        print_json([asdict(view) for view in views])
        return
    print_line(status_summary(views))
    for view in views:
        print_tree(*status_tree(view, settings, verbose=verbose or table is not None))


def losses_command(
    hours: Annotated[
        int, typer.Option("--hours", metavar="N", min=1, max=720, help="How far to look back.")
    ] = 6,
    table: OnlyTable = None,
    output: OutputFormat = Output.TEXT,
    bootstrap_servers: BootstrapServers = None,
    config: Config = None,
) -> None:
    """Print what conflicts have cost in the last hours: by table, partition and pair of writers, the largest first.

    The command reads the topic conflicts. The hours are full ones, and the current one.
    """
    settings = _settings(bootstrap_servers, config)
    report = run(lambda: losses(settings, hours, table))
    _print(output, report, loss_lines(report))


def assess_command(
    tables: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE...", help="URI of a table, or catalog:namespace.table.", parser=watched_table
        ),
    ],
    *,
    days: Annotated[
        float,
        typer.Option("--days", metavar="N", min=0.01, max=3650, help="History before the newest commit."),
    ] = 7.0,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE", dir_okay=False, help="Also write a picture, as SVG."),
    ] = None,
    output: OutputFormat = Output.TEXT,
    s3_endpoint: S3Endpoint = None,
    config: Config = None,
) -> None:
    """Print what a table's writers cost each other today, from the table's own history: overlaps, losses, and what would change.

    It needs no Kafka and no agent. It reads commits and lists data files, and writes nothing. See docs/assess.md.
    """
    settings = Settings.load(config, s3_endpoint=s3_endpoint)
    configure_logging("warning", stream=sys.stderr)
    histories = [run(partial(past, table, settings, days=days)) for table in tables]
    found = [assess(each) for each in histories]
    if output is Output.JSON:
        print_json([assessment_fields(each) for each in found])
    else:
        for number, each in enumerate(found):
            print_lines([*([""] if number else []), *assessment_lines(each)])
    if svg is not None:
        svg.write_text(picture(histories), encoding="utf-8")


def refused_command(
    output: OutputFormat = Output.TEXT, bootstrap_servers: BootstrapServers = None, config: Config = None
) -> None:
    """Print the events that agents refused, each with the reason: the last 500, the latest first.

    The command reads the topic dead-letters.
    """
    settings = _settings(bootstrap_servers, config)
    found = run(lambda: refused(settings))
    _print(output, [asdict(each) for each in found], refused_lines(found))


def agents_command(
    *,
    verbose: Verbose = False,
    output: OutputFormat = Output.TEXT,
    bootstrap_servers: BootstrapServers = None,
    config: Config = None,
) -> None:
    """Print the agents of the consumer group with the number of their Kafka partitions, and the partitions without one.

    With --verbose, also each partition: its agent, since when, and what is unread.

    The command reads Kafka, so it also works while no agent runs.
    """
    settings = _settings(bootstrap_servers, config)
    found = run(lambda: agents(settings))
    _print(output, asdict(found), agent_lines(found, verbose=verbose))


def _settings(bootstrap_servers: str | None, config: Any) -> KafkaSettings:
    settings = KafkaSettings.load(config, bootstrap_servers=bootstrap_servers)
    configure_logging("warning", stream=sys.stderr)
    return settings


def _print(output: Output, value: Any, lines: Iterable[str]) -> None:
    if output is Output.JSON:
        print_json(value)
    else:
        print_lines(lines)
