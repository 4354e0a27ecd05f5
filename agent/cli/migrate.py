"""The command `lakewarden migrate`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from lakewarden.agent.cli.options import BootstrapServers, Config, Output, OutputFormat, run
from lakewarden.agent.cli.output import print_json, print_line, print_table
from lakewarden.agent.errors import AgentError
from lakewarden.agent.logs import configure_logging
from lakewarden.agent.operators.migrate import Migration, migrate
from lakewarden.agent.settings import Settings

MAX_PARTITIONS = 10_000


def migrate_command(
    *,
    to_prefix: Annotated[
        str,
        typer.Option("--to-prefix", metavar="PREFIX", help="The new topic prefix; its topics are created."),
    ],
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", metavar="N", min=1, max=MAX_PARTITIONS, help="Kafka partitions of the new topics."
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be copied, and why not; write nothing.")
    ] = False,
    output: OutputFormat = Output.TEXT,
    bootstrap_servers: BootstrapServers = None,
    config: Config = None,
) -> None:
    """Copy the ledger to topics with another prefix and another number of Kafka partitions.

    Stop the writers, wait until lakewarden status shows no open transaction, then stop the agents. The command refuses while
    anything is open, in doubt or running. Run it with the agents' settings: topic_prefix and group name what is copied. If it
    is interrupted, run it again; agents don't serve an incomplete copy.

    Only the ledger is copied: which batches are committed, and the conflicts lost. The other topics of the new prefix begin
    empty.

    Exit codes: 0 the new prefix can be served, or, with --dry-run, the ledger may be copied; 1 it is not copied; 2 usage error.
    """
    source = Settings.load(config, bootstrap_servers=bootstrap_servers)
    target = Settings.load(config, bootstrap_servers=bootstrap_servers, topic_prefix=to_prefix)
    configure_logging("auto", "warning", stream=sys.stderr)

    def report(line: str) -> None:
        if output is Output.TEXT:
            print_line(line)

    done = run(lambda: migrate(source, target, partitions, dry_run=dry_run, report=report))
    if output is Output.JSON:
        print_json(asdict(done))
    else:
        _print(done, dry_run=dry_run)
    if done.refusals:
        raise AgentError(
            f"the ledger of prefix {done.from_prefix} can't be copied now: {'; '.join(done.refusals)}"
        )


def _print(done: Migration, *, dry_run: bool) -> None:
    counts = (str(done.tables), str(done.batches), str(done.losses))
    print_table(
        [
            ("prefix", "partitions", "tables", "committed batches", "writers with losses"),
            (done.from_prefix, str(done.from_partitions), *counts),
            (done.to_prefix, str(done.to_partitions), *(counts if done.complete else ("", "", ""))),
        ]
    )
    if done.already_there and not done.complete:
        print_line(f"an interrupted run has copied {done.already_there} entries already")
    print_line(
        f"not copied: {done.from_prefix}.writers, .decisions, .conflicts, .audit and .dead-letters; explain and conflicts find "
        "earlier transactions under the old prefix only, and fencing tokens begin at 0 again"
    )
    if done.left_behind:
        print_line(
            f"left behind: {done.left_behind} events of {done.from_prefix}.writers, published since partitions were added; none "
            "of their transactions was granted, so their writers repeat the batches"
        )
    if done.complete:
        print_line(
            f"complete: start agents and writers with topic prefix {done.to_prefix}, and none with {done.from_prefix} any more"
        )
    elif dry_run and not done.refusals:
        print_line("dry run: nothing was written")
