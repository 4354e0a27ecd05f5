"""The command `lakewarden doctor`: its options, output and exit codes."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from lakewarden.agent.cli.options import (
    BootstrapServers,
    Config,
    LockRoot,
    Output,
    OutputFormat,
    S3Endpoint,
    run,
    table_uri,
)
from lakewarden.agent.cli.output import print_json, print_lines
from lakewarden.agent.logs import configure_logging
from lakewarden.agent.operators.doctor import diagnose
from lakewarden.agent.settings import Settings
from lakewarden.handlers.setup.findings import Finding, has_problem

EXIT_FAILED = 1


def doctor_command(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]...",
            help="Tables to check: whether they are allowed, and where their locks are.",
            parser=table_uri,
        ),
    ] = None,
    *,
    output: OutputFormat = Output.TEXT,
    bootstrap_servers: BootstrapServers = None,
    lock_root: LockRoot = None,
    s3_endpoint: S3Endpoint = None,
    config: Config = None,
) -> None:
    """Check from here what an agent needs: Kafka, rights, topics, clocks, stores and tables.

    Run it where an agent will run, with the agent's settings and credentials. It writes and deletes one small object in each
    store of locks, as the agent does when it starts, and changes nothing else. One line is printed per finding: ok, warning,
    problem, or unchecked.

    Exit codes: 0 no problem; 1 at least one problem; 2 usage error.
    """
    configure_logging("error", stream=sys.stderr)
    settings = Settings.load(
        config, bootstrap_servers=bootstrap_servers, lock_root=lock_root, s3_endpoint=s3_endpoint
    )
    findings = run(lambda: diagnose(settings, tables or []))
    if output is Output.JSON:
        print_json([asdict(each) for each in findings])
    else:
        print_lines(map(line_of, findings))
    raise typer.Exit(EXIT_FAILED if has_problem(findings) else 0)


def line_of(finding: Finding) -> str:
    """The finding as one line."""
    advice = "" if finding.next is None else f"; {finding.next}"
    text = f"{finding.result:<9}  {finding.check:<11}  {finding.about}: {finding.found}{advice}"
    return " ".join(text.splitlines())
