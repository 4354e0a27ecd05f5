"""The commands `lakewarden abort` and `lakewarden ledger …`: their options, output and exit codes."""

import getpass
import os
import socket
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import typer

from lakewarden.agent.cli import options
from lakewarden.agent.name_text import typed
from lakewarden.agent.operators.ledger import ledger
from lakewarden.agent.operators.requests import Correction, Requester, abort, correct, read_backup, restore
from lakewarden.agent.settings import KafkaSettings
from lakewarden.events import canonical_table

DEFAULT_TIMEOUT_SECONDS = 60.0
"""A granted transaction ends with its grant lease, 20 s by default, and a check of the agent."""
MAX_REASON = 500
"""Characters: the agent repeats the reason in an abort."""
MAX_OPERATOR_BYTES = 512
NO_BATCH = "none"

ledger_app = typer.Typer(
    help="Print, correct or restore the ledger: the last committed batch of each writer.",
    add_completion=False,
    rich_markup_mode=None,
)

Operator = Annotated[
    str | None,
    typer.Option("--operator", metavar="NAME", help="Who requests it; default: your user and host name."),
]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the log.")]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=1, help="How long to wait for the outcome.")
]


def abort_command(
    transaction: options.TransactionId,
    *,
    table: options.OnlyTable = None,
    reason: Reason = "no reason given",
    operator: Operator = None,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    output: options.OutputFormat = "text",
    bootstrap_servers: options.BootstrapServers = None,
    config: options.Config = None,
) -> None:
    """End an open transaction, for example one whose work hangs, and print the outcome.

    A transaction that is not granted is aborted at once. A granted one may be publishing: its grant is withdrawn, and no
    other transaction of the table is granted before its lease is over. The job may begin a new transaction, which queues
    behind the others. To stop the job, stop its driver.

    Exit codes: 0 the transaction has ended; 1 no such open transaction, no outcome in time, or another failure; 2 usage
    error.
    """
    settings = options.settings_of(KafkaSettings, config, bootstrap_servers=bootstrap_servers)
    requester = _requester(operator, reason, timeout)

    def report(line: str) -> None:
        if output == "text":
            options.print_line(line)

    outcome = options.run(lambda: abort(settings, transaction, table, requester, report))
    options.show(output, "aborted", outcome)


ledger_app.callback(invoke_without_command=True)(options.show_help_without_command)


@ledger_app.command(name="show", short_help="Print the last committed batch of each writer.")
def show_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE|WRITER]...",
            help="Only these tables and writers; a streaming query's writer with or without its query id.",
        ),
    ] = None,
    *,
    output: options.OutputFormat = "text",
    bootstrap_servers: options.BootstrapServers = None,
    config: options.Config = None,
) -> None:
    """Print what the ledger has for each writer of each table: its last committed batch, and the conflicts lost in a row.

    The agent skips a batch whose id is not larger than the one printed here. The command reads the Kafka topics, so it also
    works while no agent runs.

    Exit codes: 0 printed; 1 failure; 2 usage error.
    """
    settings = options.settings_of(KafkaSettings, config, bootstrap_servers=bootstrap_servers)
    wanted = [_canonical_if_table(typed(each)) for each in names or ()]
    lines = options.run(lambda: ledger(settings, wanted))
    options.show(output, "ledger", lines, names=wanted)


@ledger_app.command(name="correct", short_help="State which batch of a writer is its last committed one.")
def correct_command(
    *,
    writer: options.Writer,
    batch_id: Annotated[
        str,
        typer.Option(
            "--batch-id",
            metavar="N|none",
            help="Its last committed batch: smaller ids are also skipped. none: the next batch is written with any id.",
        ),
    ],
    reason: Reason,
    table: options.OnlyTable = None,
    operator: Operator = None,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    output: options.OutputFormat = "text",
    bootstrap_servers: options.BootstrapServers = None,
    config: options.Config = None,
) -> None:
    """State which batch of a writer is its last committed one, from now on.

    Check the table first. With a batch id below the ledger's, the batches after it are written again, also if the table contains
    them; with one that is too large, batches are skipped and their data is missing.

    Exit codes: 0 the ledger has the correction; 1 no agent recorded it in time, or another failure; 2 usage error.
    """
    settings = options.settings_of(KafkaSettings, config, bootstrap_servers=bootstrap_servers)
    number = _batch_id(batch_id)
    requester = _requester(operator, reason, timeout)
    options.show(
        output, "corrected", options.run(lambda: correct(settings, table, writer, number, requester))
    )


@ledger_app.command(name="restore", short_help="State the last committed batches of a backup again.")
def restore_command(
    backup: Annotated[
        Path, typer.Argument(metavar="FILE", help="What lakewarden ledger show --output json printed.")
    ],
    *,
    reason: Reason,
    table: options.OnlyTable = None,
    lower: Annotated[
        bool,
        typer.Option("--lower", help="Also where the ledger has a later batch, which is written again then."),
    ] = False,
    operator: Operator = None,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    output: options.OutputFormat = "text",
    bootstrap_servers: options.BootstrapServers = None,
    config: options.Config = None,
) -> None:
    """State the last committed batch of each writer in a backup of the ledger, as lakewarden ledger correct does for one.

    Stop the writers first; an agent must run. A writer that isn't recorded in time ends the command, which can be run
    again; --timeout holds for each further one. A writer that isn't in the backup keeps what the ledger has. If the ledger has a
    later batch of a writer, nothing is restored without --lower.

    Exit codes: 0 the ledger has all of them; 1 no agent recorded one in time, or another failure; 2 usage error.
    """
    settings = options.settings_of(KafkaSettings, config, bootstrap_servers=bootstrap_servers)
    requester = _requester(operator, reason, timeout)
    lines = read_backup(backup, table)
    done: list[Correction] = []

    async def restore_all() -> None:
        async with aclosing(restore(settings, lines, requester, lower=lower)) as restored:
            async for each in restored:
                done.append(each)
                if output != "json":
                    options.print_view("corrected", each)

    options.run(restore_all)
    options.show(output, "restored", done, backup=backup)


def _canonical_if_table(name: str) -> str:
    try:
        return canonical_table(name)
    except ValueError:
        return name


def _requester(operator: str | None, reason: str, timeout: float) -> Requester:
    who = operator if operator is not None else f"{_user()}@{socket.gethostname()}"
    if not who or len(who.encode(errors="replace")) > MAX_OPERATOR_BYTES or not who.isprintable():
        raise typer.BadParameter(f"1 to {MAX_OPERATOR_BYTES} bytes on one line", param_hint="--operator")
    if len(reason) > MAX_REASON:
        raise typer.BadParameter(f"at most {MAX_REASON} characters", param_hint="--reason")
    return Requester(who, reason, timeout)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())


def _batch_id(text: str) -> int | None:
    if text == NO_BATCH:
        return None
    try:
        number = int(text)
    except ValueError:
        number = None
    if number is None or not -(2**63) <= number < 2**63:
        raise typer.BadParameter(
            f"{text!r} is neither an integer of 64 bits nor none", param_hint="--batch-id"
        )
    return number
