"""The command line as a user calls it: help, usage errors, and its two spellings."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from importlib import metadata
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
import typer
from hypothesis import example, given, settings, strategies as st
from typer.main import get_command

from lakewarden.agent.cli import app, dev, overview
from lakewarden.agent.cli.options import print_line, print_view
from lakewarden.agent.cli.requests import _batch_id, _requester
from lakewarden.agent.errors import AgentError
from lakewarden.agent.name_text import typed, visible, visible_blanks
from lakewarden.agent.operators.ledger import LedgerLine
from lakewarden.agent.operators.requests import read_backup
from lakewarden.agent.operators.status import LockHolder, TableView, TransactionView
from lakewarden.agent.settings import Settings
from lakewarden.agent.time_text import timestamp
from lakewarden.agent.variables import ENV_PREFIX
from lakewarden.events import LedgerCorrected
from lakewarden.handlers.explain.condition import Condition
from tests.printed import as_shown
from tests.unit.agent.watching.written_tables import FORMATS, History, Written, write
from tests.unit.events.building import made

SCRIPT = (str(Path(sys.executable).with_name("lakewarden")),)
MODULE = (sys.executable, "-m", "lakewarden.agent")


def _commands(command: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, each in getattr(command, "commands", {}).items():
        yield from _commands(each, *words, name)


COMMANDS = dict(_commands(get_command(app.app)))
"""Every command and group of the parser, by its words."""


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit code."""

    code: int | str | None
    out: str
    err: str


def call(*words: str, out: Any = None, **settings: Any) -> Done:
    """Run `lakewarden` with these words and settings, in this process: the parser answers before anything connects."""
    out, err = out or io.StringIO(), io.StringIO()
    variables = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    variables |= {f"{ENV_PREFIX}{name.upper()}": str(value) for name, value in settings.items()}
    with (
        mock.patch.object(sys, "argv", ["any-name", *words]),
        mock.patch.dict("os.environ", variables, clear=True),
        mock.patch.object(overview, "limit_memory"),  # it would be that of the tests
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        app.main()
    return Done(ended.value.code, getattr(out, "getvalue", str)(), err.getvalue())


def test_the_version_is_the_installed_one() -> None:
    """Bug reports begin with it."""
    assert call("--version") == Done(0, f"lakewarden {metadata.version('lakewarden')}\n", "")


def test_the_command_starts_without_the_clients_of_stores_and_engines() -> None:
    """Their imports take as long as the rest of a start. A command imports the client that it uses."""
    clients = ["aiobotocore", "aiohttp", "jinja2", "pyarrow", "pypaimon", "pyspark"]
    code = f"import sys, lakewarden.agent.cli.app; print([each for each in {clients} if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("arguments", [("lock", "show", "--help"), ("agnet",)], ids=" ".join)
def test_python_m_lakewarden_agent_is_the_same_command(arguments: tuple[str, ...]) -> None:
    """Its help and its errors name the program `lakewarden`, too."""
    script, module = (
        subprocess.run([*program, *arguments], capture_output=True, text=True, check=False)
        for program in (SCRIPT, MODULE)
    )

    assert "lakewarden" in module.stdout + module.stderr
    assert "__main__" not in module.stdout + module.stderr
    assert (module.returncode, module.stdout, module.stderr) == (
        script.returncode,
        script.stdout,
        script.stderr,
    )


@pytest.mark.parametrize("command", sorted(COMMANDS), ids=lambda words: " ".join(words) or "lakewarden")
def test_help_begins_with_the_usage_and_the_purpose(command: tuple[str, ...]) -> None:
    done = call(*command, "--help")

    usage, blank, purpose, *rest = done.out.splitlines()
    assert done.code == 0
    assert usage.startswith(" ".join(("Usage: lakewarden", *command)))
    assert blank == ""
    assert len(purpose.split()) > 3
    assert any(line.strip() == "Options:" for line in rest)
    if command[:1] == ("lock",) and command[1:]:
        assert "Exit codes" in " ".join(done.out.split())


def test_help_lists_the_variable_of_every_flag() -> None:
    done = call("agent", "--help")

    for name in ("BOOTSTRAP_SERVERS", "TABLES", "LOCK_ROOT", "S3_ENDPOINT", "CONFIG"):
        assert f"LAKEWARDEN_{name}" in done.out


def test_a_group_without_a_command_lists_its_commands() -> None:
    done = call("lock")

    assert done.code == 2
    for name in ("probe", "show", "hold", "release"):
        assert f"\n  {name} " in done.err


CORRECT = ("ledger", "correct", "--writer", "w", "--batch-id")


@pytest.mark.parametrize(
    ("words", "settings", "problem"),
    [
        (("agent", "--nope"), {}, "No such option: --nope"),
        (("conflcts",), {}, "No such command 'conflcts'. Did you mean 'conflicts'? See lakewarden --help"),
        (("explain",), {}, "Missing argument 'TRANSACTION'; see lakewarden explain --help"),
        (("explain", ""), {}, "Invalid value for 'TRANSACTION': '' is not a valid name: 1 to 512 bytes"),
        (("agent",), {}, "--tables"),
        (
            ("agent", "--tables", "warehouse"),
            {},
            "tables ($LAKEWARDEN_TABLES): 'warehouse' is not a table URI",
        ),
        (("agent", "--tables", "/w/*"), {"validity_seconds": "soon"}, "$LAKEWARDEN_VALIDITY_SECONDS"),
        (("agent", "--config", "/nowhere.toml"), {}, "/nowhere.toml: cannot be read"),
        (("status", "--table", "t"), {}, "'--table': not a table URI: 't'"),
        (("status", "--output", "xml"), {}, "xml"),
        (("status", "--bootstrap-servers", ""), {}, "bootstrap_servers ($LAKEWARDEN_BOOTSTRAP_SERVERS)"),
        (("dev",), {}, "--data"),
        (("dev", "--data", "/w"), {"tables": "warehouse"}, "tables ($LAKEWARDEN_TABLES): 'warehouse'"),
        (("dev", "--data", "/w"), {"lock_root": "locks"}, "lock_root ($LAKEWARDEN_LOCK_ROOT): 'locks'"),
        (("abort", ""), {}, "'' is not a valid name"),
        (("abort", "t", "--table", "x"), {}, "'--table': not a table URI"),
        ((*CORRECT, "many", "--reason", "r"), {}, "'many' is neither an integer of 64 bits nor none"),
        ((*CORRECT, "1"), {}, "--reason"),
        (("lock", "hold", "/t", "--", "ls"), {}, "Missing option '--seconds'"),
        (("lock", "hold", "/t", "--seconds", "0", "--", "ls"), {}, "--seconds"),
        (("lock", "hold", "/t", "--seconds", "1"), {}, "Missing argument 'COMMAND'"),
        (("lock", "hold", "t", "--seconds", "1", "--", "ls"), {}, "not a table URI: 't'"),
        (("lock", "release", "/t"), {}, "Missing option '--if-owner'"),
        (("lock", "probe", "foo"), {}, "not a bucket or folder: 'foo'"),
        (("lock", "show", "orders"), {}, "not a table URI: 'orders'"),
        (("lock", "show", "/t", "--lock", "nope"), {}, "not a table URI: 'nope'"),
        (("lock", "show", "ftp://a/b"), {}, "no store for ftp://"),
        (("lock", "shwo"), {}, "No such command 'shwo'"),
    ],
)
def test_a_usage_error_has_exit_code_2_and_one_line_with_the_problem(
    words: tuple[str, ...], settings: dict[str, Any], problem: str
) -> None:
    done = call(*words, **settings)

    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1, done.err
    assert problem in done.err


# Names, arguments and files that act on a terminal, or that no command expects: printed escaped, or refused in one line.
#
# `tests/real/operators/test_cli.py` lets every command print such names from a log.

CLI = Path(app.__file__).parent

NAMES = st.text(
    st.sampled_from("a [/]\\u0041b\n\r\t\x1b\x9b\x85\u2028\u202e\u2066\u200b\u00a0\U000e0041é中")
    | st.characters(exclude_categories=["Cs"]),
    min_size=1,
    max_size=20,
)
"""Of writers and the like."""

WORDS = NAMES | st.sampled_from(
    [
        *("0", "-1", "nan", "inf", "1e999", "none", "text", "json"),
        *("*", "~", ".", "..", "-", "--", "/", "//", "/lake/t"),
        *["s3a://lake/t", "s3://lake", "s3://lake/a#b", "file:///a%20b", "abfs://c@H:443/t"],
        *("", "9" * 25, "/" + "b" * 1100, "a" * 600, "\udcff"),
    ]
)
START_KAFKA = {("dev",)}
NOT_FUZZED = {"--bootstrap-servers"}
"""Options that would reach a server."""


def hostile_arguments(words: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    """A command with some of its options, and words at any place."""
    options = {name for each in COMMANDS[words].params for name in each.opts if name.startswith("-")}
    option = st.sampled_from(["--help", *sorted(options - NOT_FUZZED)])
    parts = st.lists(st.tuples(WORDS) | st.tuples(option) | st.tuples(option, WORDS), max_size=5)
    return parts.map(lambda found: [*words, *chain.from_iterable(found)])


@given(NAMES)
@example("\\u001b")
@example("\x1b[2J")
@example("\\\\u0041")
@example("\ud800")
def test_a_visible_name_can_be_given_back(name: str) -> None:
    """It has no character that a terminal obeys, and no two names look the same."""
    assert visible(name).isprintable()
    assert typed(visible(name)) == name
    assert typed(visible_blanks(visible(name))) == name
    assert not re.search("^ | $|  ", visible_blanks(visible(name)))
    assert name == visible(name) or not name.isprintable() or "\\" in name


@given(st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=4))
@example([("\ud800", "\x1b[2J")])
def test_what_is_printed_has_the_lines_that_it_should_have(rows: list[tuple[str, str]]) -> None:
    """In a line, a cell or a branch of a tree. All templates are made of these."""
    lock = LockHolder(
        held=True,
        lock="",
        agent=rows[0][0],
        owner="",
        valid_until=rows[0][1],
        last_step="lock-renewed",
        detail=None,
    )
    waits = [TransactionView(name, other, 0, "active", "", None, 1, 1) for name, other in rows]
    view = TableView(
        "\r- \n$ & ", lock, tuple(waits), condition=Condition("ok", rows[0][0], cause=rows[0][1], remedy="")
    )
    ledger = [LedgerLine(name, other, None, None, None, None, None, 0) for name, other in rows]
    out = io.StringIO()
    with redirect_stdout(out):
        print_line(rows[0][0])
        print_view("ledger", ledger, names=())
        print_view("status", [view], verbose=True, table=None, command=None)

    lines = out.getvalue().split("\n")
    assert len(lines) == 1 + (1 + len(rows)) + (1 + 5 + 1 + len(rows)) + 1
    assert all(line.isprintable() for line in lines)
    table = [re.split(" {2,}", line)[:2] for line in lines[2 : 2 + len(rows)]]
    assert [tuple(map(typed, cells)) for cells in table] == rows


def test_every_line_of_the_commands_is_printed_by_one_module() -> None:
    """Another way to print wouldn't escape names."""
    prints = re.compile(r"typer\.(echo|secho)\(|\bprint\(|sys\.stdout\.write|\brich\b")
    found = {path.name for path in CLI.glob("*.py") if prints.search(path.read_text())}
    assert found == {"options.py"}


NOWHERE = {"bootstrap_servers": "", "lock_root": "/nowhere/locks"}


def assert_explained(ended: Done) -> None:
    assert "lakewarden: internal error" not in ended.err
    if ended.code != 0 and "Usage:" not in ended.out + ended.err:
        assert ended.err.startswith("lakewarden: ")
        assert ended.err.count("\n") == 1
    assert all(line.isprintable() for line in f"{ended.out}{ended.err}".split("\n"))


@settings(max_examples=120)
@given(st.sampled_from(sorted(COMMANDS.keys() - START_KAFKA)).flatmap(hostile_arguments))
def test_no_arguments_end_a_command_with_an_internal_error(arguments: list[str]) -> None:
    """Neither Kafka nor S3 is reached. `-- COMMAND` of `lock hold` would run."""
    reaches_a_store = arguments[:1] in (["assess"], ["lock"])
    if not reaches_a_store or not any("://" in word or word == "--" for word in arguments):
        assert_explained(call(*arguments, **NOWHERE))


@given(WORDS, WORDS, st.floats())
def test_who_asks_for_what_is_checked_before_anything_is_published(
    operator: str, batch: str, timeout: float
) -> None:
    for check in (lambda: _requester(operator, batch, timeout), lambda: _batch_id(batch)):
        with suppress(typer.BadParameter):
            check()


def test_a_user_without_a_name_is_named_by_a_number() -> None:
    """As in a container with a user id of its own."""
    with mock.patch("getpass.getuser", side_effect=KeyError("getpwuid(): uid not found: 12345")):
        assert re.match(r"\d+@", _requester(None, "", 1).operator)


FILES = st.binary(max_size=60) | st.one_of(
    st.builds(
        lambda *values: json.dumps(
            [dict(zip(("table", "writer", "batch_id"), values, strict=True))]
        ).encode(),
        WORDS,
        WORDS,
        st.none() | st.integers() | st.text(max_size=3),
    ),
    st.sampled_from(
        [b"tables = 1", b"topic_prefix = [", b"\xff = 1", b"tables = ['/a%20b/*']", b'{"owner": 1}']
    ),
    st.builds(
        lambda until, owner: json.dumps({"expired": False, "validUntil": until, "owner": owner}).encode(),
        st.integers() | st.floats(),
        WORDS,
    ),
)


@settings(max_examples=30)
@given(FILES)
@example(json.dumps([{"table": "s3a://lake/t", "writer": "w", "batch_id": 1}]).encode())
@example(json.dumps([{"table": "s3://lake/t", "writer": "", "batch_id": 1}]).encode())
@example(json.dumps([{"table": "s3://lake/t", "writer": "w", "batch_id": 2**64}]).encode())
@example(json.dumps({"expired": False, "validUntil": 2**63 - 1, "owner": "\x1b[2J"}).encode())
def test_no_file_ends_a_command_with_an_internal_error(content: bytes) -> None:
    """A backup of the ledger, a file of settings, and a lock object that another program has written."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "lock.json"
        file.write_bytes(content)
        try:
            lines = read_backup(file, None)
        except AgentError:
            pass
        else:
            for line in lines:
                made(LedgerCorrected, operator="o", reason="", **line.model_dump())
        for command in (
            ["status", "--config", str(file)],
            ["lock", "show", "/lake/t", "--lock", str(file)],
            ["lock", "show", "/lake/t", "--lock", str(file), "--output", "json"],
            ["lock", "release", "/lake/t", "--lock", str(file), "--if-owner", "x"],
        ):
            assert_explained(call(*command, **NOWHERE))


def test_output_that_can_not_be_written_is_one_line() -> None:
    out = Path("/dev/full").open("w")  # noqa: SIM115 - closing it fails
    ended = call("--version", out=out)
    with suppress(OSError):
        out.close()

    assert (ended.code, ended.err) == (1, "lakewarden: No space left on device\n")


@pytest.mark.parametrize("epoch_ms", [-(2**63), -62_135_596_800_001, 253_402_300_800_000, 2**63 - 1])
def test_a_time_that_no_calendar_has_is_shown_as_the_closest_one(epoch_ms: int) -> None:
    """Of a lock object or a record that another program has written."""
    assert timestamp(epoch_ms) in {"0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.000Z"}


def test_the_first_page_shows_what_dev_prints() -> None:
    settings = Settings(bootstrap_servers="127.0.0.1:19092", lock_root="file:///tmp/first/.lakewarden")
    printed = dev._introduction(Path("/tmp/first"), settings, "http://127.0.0.1:18438/", ())

    command = "lakewarden dev --data /tmp/first --kafka-port 19092 --web-port 18438"
    as_shown("docs/first-jobs.md", command, "\n".join(printed))


INTERRUPTED = """
import builtins, os, signal
from lakewarden.agent.cli import entry

def interrupted(name, *rest):
    if name == "lakewarden.agent.cli":
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("no model")  # as pydantic does
    return original(name, *rest)

original, builtins.__import__ = builtins.__import__, interrupted
signal.signal(signal.SIGINT, signal.default_int_handler)
entry.main()
"""


def test_ctrl_c_during_the_imports_ends_the_command_without_a_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


LEFT = "import atexit, obstore, runpy, sys; atexit.register(print, 'finalised'); from lakewarden.agent.cli import app, entry; "
INTERRUPT = "from unittest import mock; app.main = mock.Mock(side_effect=KeyboardInterrupt); print('before'); entry.main()"
ENDS = {
    "success": ("sys.argv = ['lakewarden', 'assess', TABLE]; entry.main()", 0, "delta, 4 commits"),
    "failure": ("sys.argv = ['lakewarden', 'assess', TABLE + '/none']; entry.main()", 1, "no table of a known format"),
    "usage error": ("sys.argv = ['lakewarden', 'assess']; entry.main()", 2, "TABLE"),
    "interrupted": (INTERRUPT, 130, "before"),
    "watcher's child": ("runpy.run_module('lakewarden.agent.watching.child', run_name='__main__')", 0, ""),
}  # fmt: skip


@pytest.mark.parametrize(("code", "status", "said"), ENDS.values(), ids=ENDS)
def test_a_process_that_used_obstore_ends_without_pythons_finalisation(
    tmp_path: Path, code: str, status: int, said: str
) -> None:
    """A thread of obstore's runtime may meet it, and then ends the process by SIGABRT after its output."""
    write(FORMATS["delta"](History(tuple(Written(number, 0) for number in range(4)), ())), tmp_path)
    program = LEFT + code.replace("TABLE", repr(tmp_path.as_uri()))

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, input=""
    )

    assert done.returncode == status, done
    assert said in done.stdout + done.stderr
    assert "finalised" not in done.stdout
