"""What the commands share: their options, how they run, and how they print."""

import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import anyio
import typer
from pydantic import TypeAdapter, ValidationError

from lakewarden.agent.clock import monotonic
from lakewarden.agent.errors import AgentError
from lakewarden.agent.logs import configure_logging
from lakewarden.agent.name_text import typed, visible
from lakewarden.agent.operators.as_json import as_json
from lakewarden.agent.settings import KafkaSettings, catalog_entry
from lakewarden.events import canonical_table, is_glob
from lakewarden.events.base import MAX_NAME, Name

_Result = TypeVar("_Result")
_Settings = TypeVar("_Settings", bound=KafkaSettings)
_NAME: TypeAdapter[str] = TypeAdapter(Name)


EXIT_FAILED = 1
_SHOWN_A_SECOND = 5
Output: TypeAlias = Literal["text", "json"]
BootstrapServers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        metavar="SERVERS",
        help="Kafka brokers as host:port, comma-separated.  [env: LAKEWARDEN_BOOTSTRAP_SERVERS; default: localhost:9092]",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="TOML file with settings.  [env: LAKEWARDEN_CONFIG]"),
]
Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--tables",
        metavar="TABLE_GLOB",
        help="URI or glob of tables to serve; repeatable. The agent touches no other table.  [env: LAKEWARDEN_TABLES]",
    ),
]
LockRoot = Annotated[
    str | None,
    typer.Option(
        "--lock-root",
        metavar="URI",
        help="Folder or bucket for lock objects; default: the table's own bucket.  [env: LAKEWARDEN_LOCK_ROOT]",
    ),
]
S3Endpoint = Annotated[
    str | None,
    typer.Option(
        "--s3-endpoint", metavar="URL", help="S3 endpoint; default: AWS.  [env: LAKEWARDEN_S3_ENDPOINT]"
    ),
]


def _id(text: str) -> str:
    return _name(text.rstrip("…"))


def _name(text: str) -> str:
    name = typed(text)
    try:
        return _NAME.validate_python(name)
    except ValidationError:
        raise typer.BadParameter(
            f"{visible(text)!r} is not a valid name: 1 to {MAX_NAME} bytes of UTF-8 on one line"
        ) from None


def table_uri(text: str) -> str:
    """The table that a word of the command line names."""
    return parsed(lambda: canonical_table(typed(text)))


def parsed(parse: Callable[[], _Result]) -> _Result:
    """What a word of the command line means. Its `ValueError` is a usage error."""
    try:
        return parse()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def watched_table(text: str) -> str:
    """The table that a word names by its URI, or by its catalog."""
    name = typed(text)
    if is_glob(name):
        raise typer.BadParameter(f"{visible(text)!r} is a pattern; name one table, or several")
    return name if catalog_entry(name) is not None else table_uri(text)


OnlyTable = Annotated[
    str | None, typer.Option("--table", metavar="T", help="Only this table, by its URI.", parser=table_uri)
]
Writer = Annotated[
    str,
    typer.Option(
        "--writer", metavar="W", help="The writer, as lakewarden ledger show prints it.", parser=_name
    ),
]
TransactionId = Annotated[
    str, typer.Argument(metavar="TRANSACTION", help="Transaction id, or a unique prefix of it.", parser=_id)
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Print all of it: ids, exact times, counts.")]
OutputFormat = Annotated[Output, typer.Option("--output", help="Output format.")]


def settings_of(
    kind: type[_Settings], config: Path | None, *, logs: str = "warning", **flags: object
) -> _Settings:
    """The settings of a command that prints, whose logs from this level on go to stderr."""
    settings = kind.load(config, **flags)
    configure_logging(logs, stream=sys.stderr)
    return settings


def show(output: Output, template: str, found: Any, **more: Any) -> None:
    """Print the result of a command: as JSON, or by the template of this name."""
    if output == "json":
        print_json(found)
    else:
        print_view(template, found, **more)


def run(work: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
    """Run a command's work. Of several simultaneous errors, raise the one that says what to do."""
    try:
        return anyio.run(work)
    except KeyboardInterrupt:
        raise typer.Abort from None
    except BaseExceptionGroup as problems:
        raise _most_useful_error(problems) from problems


def _most_useful_error(problems: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first `AgentError`, else the first error."""
    known, _ = problems.split(AgentError)
    leaf: BaseException = known or problems
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    return leaf


def show_help_without_command(context: typer.Context) -> None:
    """Print help and exit with 2 if no command was given. For the callback of a group (`invoke_without_command`)."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


# -- output: every line comes through here, so that no name acts on a terminal --------------------------------------------


def print_line(line: str, *, err: bool = False) -> None:
    """Print one line of text. A line break in it is escaped, as everything else that isn't visible."""
    typer.echo(visible(line), err=err)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of text."""
    for line in lines:
        print_line(line)


def print_message(message: str) -> None:
    """Print an error or a progress message on stderr, on one line."""
    print_line(f"lakewarden: {' '.join(message.split())}", err=True)


@contextmanager
def progress_on_terminal() -> Iterator[Callable[[str], None]]:
    """A function that shows how far the work is, in one line on stderr, if that is a terminal."""
    shown = monotonic()

    def show(text: str) -> None:
        nonlocal shown
        if sys.stderr.isatty() and monotonic() - shown >= 1 / _SHOWN_A_SECOND:
            shown = monotonic()
            typer.echo(f"\r\x1b[K{visible(text)}", nl=False, err=True)

    try:
        yield show
    finally:
        if sys.stderr.isatty():
            typer.echo("\r\x1b[K", nl=False, err=True)


def print_json(value: Any) -> None:
    """Print JSON on one line. It is ASCII."""
    typer.echo(as_json(value))


def print_view(template: str, found: Any, **more: Any) -> None:
    """Print a view as text."""
    # Imported here: of the commands, only those that print text need Jinja2.
    from lakewarden.agent.operators.text import lines

    for line in lines(template, found, **more):
        typer.echo(line)
