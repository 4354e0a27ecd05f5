"""`lakewarden lock`: the options of each command, and its exit status."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from lakewarden.agent.cli import lock_text
from lakewarden.agent.cli.options import (
    BootstrapServers,
    Config,
    LockRoot,
    Output,
    OutputFormat,
    S3Endpoint,
    run,
    show_help_without_command,
)
from lakewarden.agent.locks import commands as lock_commands
from lakewarden.agent.locks.hold import GRACE_SECONDS, HoldOptions, hold
from lakewarden.agent.logs import configure_logging
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import LocationError
from lakewarden.events import canonical_table
from lakewarden.handlers.explain.lock_audit import Drifts

EXIT_FAILED = 1

lock_app = typer.Typer(
    help="Look at a table's lock, hold it round a command, give it back by hand, audit what was done.",
    add_completion=False,
    rich_markup_mode=None,
)

Table = Annotated[str, typer.Argument(metavar="TABLE", help="URI or absolute path of the table.")]
Lock = Annotated[
    str | None,
    typer.Option("--lock", metavar="URI", help="The lock object itself, wherever it is."),
]
Hudi = Annotated[
    bool,
    typer.Option("--hudi", help="Hudi's own lock of the table: .hoodie/.locks/table_lock.json"),
]

_Value = TypeVar("_Value")


@lock_app.callback(invoke_without_command=True)
def _help(context: typer.Context) -> None:
    show_help_without_command(context)


@lock_app.command(name="probe", short_help="Ask a store whether locks may be kept in it.")
def probe_command(
    uri: Annotated[str, typer.Argument(metavar="URI", help="Bucket or folder, with or without a prefix.")],
    s3_endpoint: S3Endpoint = None,
    config: Config = None,
) -> None:
    """Ask a store whether it honours conditional writes, on which every lock rests.

    Writes one small object below URI and removes it; at most 4 requests. Exit status: 0 locks may be kept there, 1 they must not.
    """
    settings = _settings(config, s3_endpoint=s3_endpoint)
    root = _usage_checked(lambda: _lock_folder(uri))
    probed = _run(lambda: lock_commands.probe_place(settings, root))
    typer.echo(
        f"{root} honours both conditions (write if absent, write if unchanged): locks may be kept there; "
        f"{lock_commands.spent(probed.requests, probed.seconds)}"
    )


@lock_app.command(name="show", short_help="Print who holds a table's lock and until when.")
def show_command(
    *,
    table: Table,
    lock: Lock = None,
    hudi: Hudi = False,
    output: OutputFormat = Output.TEXT,
    lock_root: LockRoot = None,
    s3_endpoint: S3Endpoint = None,
    config: Config = None,
) -> None:
    """Print who holds a table's lock and until when, as the lock object says.

    Only reads. Exit status: 0 whatever it says, or if it is absent; 1 if it could not be read.
    """
    settings = _settings(config, lock_root=lock_root, s3_endpoint=s3_endpoint)
    _check_uris(table, lock)

    async def show() -> lock_commands.LockView:
        found = await lock_commands.locate(settings, table, lock, hudi=hudi)
        return await lock_commands.show(settings, found)

    view = _run(show)
    if output is Output.JSON:
        typer.echo(json.dumps(lock_text.view_fields(view)))
    else:
        _print(lock_text.view_lines(view))


@lock_app.command(name="hold", short_help="Take a table's lock, and run a command under it.")
def hold_command(
    *,
    table: Table,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="Program to run under the lock, and its arguments: after --."),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            metavar="N",
            min=0.001,
            help=f"How long to hold it at most. A command is then sent SIGTERM, {GRACE_SECONDS:g} s later SIGKILL.",
        ),
    ],
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="S", min=0, help="How long to wait for it; 0: one try."),
    ] = 0,
    shell: Annotated[
        str | None,
        typer.Option("--exec", metavar="CMD", help="Run this by /bin/sh -c; instead of -- COMMAND."),
    ] = None,
    lock: Lock = None,
    hudi: Hudi = False,
    lock_root: LockRoot = None,
    s3_endpoint: S3Endpoint = None,
    config: Config = None,
) -> None:
    """Take a table's lock, renew it, run a command under it, give it back.

    Without a command it is held for N seconds, or until SIGINT or SIGTERM; with one, until that has ended, and the signals are
    passed on. The command finds LAKEWARDEN_LOCK_OWNER, LAKEWARDEN_LOCK_URI and LAKEWARDEN_TABLE in its environment.

    Exit status: the command's (128 + signal if it was killed); 75 the lock could not be had; 76 it was lost, and the command
    ended for that; 124 the command's time was up; 1 failed; 2 asked for wrongly.
    """
    if shell is not None and command:
        raise typer.BadParameter("give --exec or a command after --, not both")
    settings = _settings(config, lock_root=lock_root, s3_endpoint=s3_endpoint, table=table)
    _check_uris(table, lock)
    argv = ["/bin/sh", "-c", shell] if shell is not None else command or []
    locate = partial(lock_commands.locate, settings, table, lock, hudi=hudi)
    order = HoldOptions(
        locate, seconds, wait, argv, _print_message, _print_if_verbose if argv else _print_line
    )
    raise typer.Exit(_run(lambda: hold(settings, order)))


@lock_app.command(name="release", short_help="Give a table's lock back for its owner.")
def release_command(
    *,
    table: Table,
    owner: Annotated[
        str,
        typer.Option(
            "--if-owner", metavar="UUID", help="Only if this owner holds it: see lakewarden lock show."
        ),
    ],
    lock: Lock = None,
    hudi: Hudi = False,
    lock_root: LockRoot = None,
    s3_endpoint: S3Endpoint = None,
    config: Config = None,
) -> None:
    """Give a table's lock back for an owner that can't: the only way to free it by hand. Never delete a lock object.

    A lease ends by itself, so this only saves waiting. If its owner is alive after all, it may believe in its lease for a while.
    Exit status: 0 that owner holds it no more; 1 nothing was written.
    """
    settings = _settings(config, lock_root=lock_root, s3_endpoint=s3_endpoint, table=table)
    _check_uris(table, lock)

    async def release() -> tuple[lock_commands.ReleaseResult, str]:
        found = await lock_commands.locate(settings, table, lock, hudi=hudi)
        return await lock_commands.release(settings, found, owner), found.place.uri

    result, uri = _run(release)
    _print(lock_text.release_lines(result, uri))


@lock_app.command(name="audit", short_help="Prove that no two owners held a lock at once.")
def audit_command(
    *,
    table: Annotated[str | None, typer.Option("--table", metavar="T", help="Only this table's lock.")] = None,
    drift: Annotated[
        float | None,
        typer.Option(
            "--drift",
            metavar="S",
            min=0,
            help="How much two agents' clocks may differ; default: the settings' drift_seconds, hudi_drift_seconds.",
        ),
    ] = None,
    output: OutputFormat = Output.TEXT,
    bootstrap_servers: BootstrapServers = None,
    config: Config = None,
) -> None:
    """Prove from the audit log that no two owners held one lock at once, or show where they did.

    Exit status: 0 proven; 1 not: two owners at once, or records that can't be read.
    """
    settings = _settings(config, bootstrap_servers=bootstrap_servers)
    wanted = None if table is None else _usage_checked(lambda: canonical_table(table))
    ours = settings.drift_seconds if drift is None else drift
    hudi = settings.hudi_drift_seconds if drift is None else drift
    audited = _run(lambda: lock_commands.audit(settings, wanted, Drifts(ours * 1000, hudi * 1000)))
    if output is Output.JSON:
        typer.echo(json.dumps(lock_text.audit_fields(audited)))
    else:
        _print(lock_text.audit_lines(audited))
    raise typer.Exit(0 if lock_text.proven(audited) else EXIT_FAILED)


def _run(work: Callable[[], Coroutine[Any, Any, _Value]]) -> _Value:
    try:
        return run(work)
    except LocationError as error:
        raise typer.BadParameter(str(error)) from None


def _settings(config: Path | None, table: str | None = None, **flags: object) -> Settings:
    """The settings, and the table that is named allowed by that."""
    configure_logging("text", "error", stream=sys.stderr)
    settings = Settings.load(config, **flags)
    if table is None:
        return settings
    return settings.model_copy(update={"allow": (_usage_checked(lambda: canonical_table(table)),)})


def _check_uris(table: str, lock: str | None) -> None:
    _usage_checked(lambda: canonical_table(table))
    if lock is not None:
        _usage_checked(lambda: canonical_table(lock))


def _usage_checked(read: Callable[[], _Value]) -> _Value:
    try:
        return read()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _lock_folder(uri: str) -> str:
    """A bucket or folder, spelled as locations are; a bucket alone is a place, though no table."""
    try:
        return canonical_table(f"{uri}/probed").removesuffix("/probed")
    except ValueError:
        raise ValueError(
            f"no place for locks: {uri!r}; write s3://bucket[/prefix] or an absolute local path"
        ) from None


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)


def _print_message(line: str) -> None:
    typer.echo(f"lakewarden: {line}", err=True)


def _print_line(line: str) -> None:
    typer.echo(line)
    sys.stdout.flush()


def _print_if_verbose(line: str) -> None:
    """What went well round a command: it has the word."""
    if os.environ.get("LAKEWARDEN_VERBOSE"):
        _print_message(line)
