"""The commands `lakewarden lock …`: their options, output and exit codes."""

from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from lakewarden.agent.cli import options
from lakewarden.agent.locks import commands as lock_commands
from lakewarden.agent.locks.hold import GRACE_SECONDS, HoldOptions, hold
from lakewarden.agent.name_text import typed
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import LocationError
from lakewarden.events import canonical_location

lock_app = typer.Typer(
    help="Inspect a table's lock, hold it while a command runs, or release it by hand.",
    add_completion=False,
    rich_markup_mode=None,
)

Table = Annotated[
    str, typer.Argument(metavar="TABLE", help="URI or absolute path of the table.", parser=options.table_uri)
]
Lock = Annotated[
    str | None,
    typer.Option(
        "--lock",
        metavar="URI",
        help="URI of the lock object, if it is not at its default place.",
        parser=lambda text: options.parsed(lambda: canonical_location(typed(text))),
    ),
]
Hudi = Annotated[
    bool, typer.Option("--hudi", help="Use Hudi's lock of the table: .hoodie/.locks/table_lock.json")
]

_Value = TypeVar("_Value")


lock_app.callback(invoke_without_command=True)(options.show_help_without_command)


@lock_app.command(name="probe", short_help="Check that a store honours conditional writes.")
def probe_command(
    uri: Annotated[
        str, typer.Argument(metavar="URI", help="Bucket with or without a prefix, or local folder.")
    ],
    s3_endpoint: options.S3Endpoint = None,
    config: options.Config = None,
) -> None:
    """Check that a store honours conditional writes. Every lock depends on them.

    The command makes every request of a lock to a small object below URI, and deletes it: at most 10 requests.

    Exit codes: 0 the store can hold locks; 1 it can't, or it did not answer; 2 usage error.
    """
    settings = _settings(config, s3_endpoint=s3_endpoint)
    root = options.parsed(lambda: _lock_folder(typed(uri)))
    probed = _run(lambda: lock_commands.probe_location(settings, root))
    options.print_line(
        f"{root} honours both conditions (write if absent, write if unchanged), so it can hold locks; "
        f"{lock_commands.spent(probed.requests, probed.seconds)}"
    )
    if probed.keeps_versions:
        options.print_line(
            "The bucket keeps versions: each renewal of a lock adds one (docs/stores.md#versions)"
        )


@lock_app.command(name="show", short_help="Print the holder of a table's lock and the end of its lease.")
def show_command(
    *,
    table: Table,
    lock: Lock = None,
    hudi: Hudi = False,
    output: options.OutputFormat = "text",
    lock_root: options.LockRoot = None,
    s3_endpoint: options.S3Endpoint = None,
    config: options.Config = None,
) -> None:
    """Print the content of a table's lock object: its state, its holder and the end of the lease.

    The command only reads.

    Exit codes: 0 success, also if there is no lock object; 1 the lock object could not be read; 2 usage error.
    """
    settings = _settings(config, lock_root=lock_root, s3_endpoint=s3_endpoint)

    async def show() -> lock_commands.LockContents:
        return await lock_commands.show(
            settings, await lock_commands.locate(settings, table, lock, hudi=hudi)
        )

    options.show(output, "lock", _run(show))


@lock_app.command(name="hold", short_help="Acquire a table's lock and run a command while it is held.")
def hold_command(
    *,
    table: Table,
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="Program to run, with its arguments, after --.")
    ],
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            metavar="N",
            min=0.001,
            help="Hold the lock for at most N seconds. A command that still runs then gets SIGTERM, and SIGKILL "
            f"{GRACE_SECONDS:g} s later.",
        ),
    ],
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="S", min=0, help="Wait at most S seconds for the lock; 0: try once."),
    ] = 0,
    lock: Lock = None,
    hudi: Hudi = False,
    lock_root: options.LockRoot = None,
    s3_endpoint: options.S3Endpoint = None,
    config: options.Config = None,
) -> None:
    """Acquire a table's lock, run a command while the lock is renewed, then release the lock.

    Signals are passed on to the command. Its environment contains LAKEWARDEN_LOCK_OWNER, LAKEWARDEN_LOCK_URI and
    LAKEWARDEN_TABLE.

    Exit codes: the command's own (128 + signal number if a signal killed it); 75 the lock was not acquired; 76 the command was
    ended, because the lock was lost or N seconds were over; 1 failure; 2 usage error.
    """
    settings = _settings(config, lock_root=lock_root, s3_endpoint=s3_endpoint, table=table)
    locate = partial(lock_commands.locate, settings, table, lock, hudi=hudi)
    held = HoldOptions(locate, seconds, wait, command, options.print_message)
    raise typer.Exit(_run(lambda: hold(settings, held)))


@lock_app.command(name="release", short_help="Release a table's lock on behalf of its owner.")
def release_command(
    *,
    table: Table,
    owner: Annotated[
        str,
        typer.Option(
            "--if-owner",
            metavar="UUID",
            help="The owner that holds the lock, as printed by lakewarden lock show.",
        ),
    ],
    lock: Lock = None,
    hudi: Hudi = False,
    lock_root: options.LockRoot = None,
    s3_endpoint: options.S3Endpoint = None,
    config: options.Config = None,
) -> None:
    """Release a table's lock on behalf of an owner that can't do so. Never delete a lock object instead.

    A lease expires by itself, so this only saves waiting time. If the owner is alive after all, it may rely on its lease
    until its next renewal.

    Exit codes: 0 the owner no longer holds the lock; 1 nothing was written; 2 usage error.
    """
    settings = _settings(config, lock_root=lock_root, s3_endpoint=s3_endpoint, table=table)

    async def release() -> tuple[lock_commands.ReleaseResult, str]:
        found = await lock_commands.locate(settings, table, lock, hudi=hudi)
        return await lock_commands.release(settings, found, typed(owner)), found.location.uri

    result, uri = _run(release)
    options.print_view("released", result, lock=uri)


def _run(work: Callable[[], Coroutine[Any, Any, _Value]]) -> _Value:
    try:
        return options.run(work)
    except LocationError as error:
        raise typer.BadParameter(str(error)) from None


def _settings(config: Path | None, table: str | None = None, **flags: object) -> Settings:
    """Load the settings. A table on the command line is allowed without the setting `tables`."""
    settings = options.settings_of(Settings, config, logs="error", **flags)
    if table is None:
        return settings
    return settings.model_copy(update={"tables": (table,)})


def _lock_folder(uri: str) -> str:
    """The canonical URI of a bucket or folder. A bucket alone is valid here, although it is no table."""
    try:
        return canonical_location(f"{uri}/probed").removesuffix("/probed")
    except ValueError:
        raise ValueError(
            f"not a bucket or folder: {uri!r}; write s3://bucket[/prefix] or an absolute local path"
        ) from None
