"""The command line as a user calls it: help, usage errors, and its two spellings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from lakewarden.agent.cli import app
from lakewarden.agent.variables import ENV_PREFIX

SCRIPT = (str(Path(sys.executable).with_name("lakewarden")),)
MODULE = (sys.executable, "-m", "lakewarden.agent")
COMMANDS = [
    (),
    ("abort",),
    ("agent",),
    ("conflicts",),
    ("demo",),
    ("dev",),
    ("doctor",),
    ("explain",),
    ("migrate",),
    ("status",),
    ("ledger",),
    *(("ledger", name) for name in ("correct", "restore", "show")),
    ("lock",),
    *(("lock", name) for name in ("audit", "hold", "probe", "release", "show")),
]


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit code."""

    code: int | str | None
    out: str
    err: str


Call = Callable[..., Done]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `lakewarden` with these words and settings, in this process: the parser answers before anything connects."""
    for name in list(os.environ):
        if name.startswith(ENV_PREFIX):
            monkeypatch.delenv(name)

    def call_here(*words: str, **settings: Any) -> Done:
        with monkeypatch.context() as patch:
            for name, value in settings.items():
                patch.setenv(f"{ENV_PREFIX}{name.upper()}", str(value))
            patch.setattr(sys, "argv", ["any-name", *words])
            with pytest.raises(SystemExit) as ended:
                app.main()
        return Done(ended.value.code, *capsys.readouterr())

    return call_here


def test_the_version_is_the_installed_one(call: Call) -> None:
    """Bug reports begin with it."""
    assert call("--version") == Done(0, f"lakewarden {metadata.version('lakewarden')}\n", "")


def test_the_command_starts_without_the_clients_of_stores_and_engines() -> None:
    """Their imports take as long as the rest of a start. A command imports the client that it uses."""
    clients = ["aiobotocore", "aiohttp", "pyarrow", "pypaimon", "pyspark"]
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


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words) or "lakewarden")
def test_help_begins_with_the_usage_and_the_purpose(command: tuple[str, ...], call: Call) -> None:
    done = call(*command, "--help")

    usage, blank, purpose, *rest = done.out.splitlines()
    assert done.code == 0
    assert usage.startswith(" ".join(("Usage: lakewarden", *command)))
    assert blank == ""
    assert len(purpose.split()) > 3
    assert any(line.strip() == "Options:" for line in rest)
    if command[:1] == ("lock",) and command[1:]:
        assert "Exit codes" in " ".join(done.out.split())


def test_help_lists_the_variable_of_every_flag(call: Call) -> None:
    done = call("agent", "--help")

    for name in ("BOOTSTRAP_SERVERS", "ALLOW", "LOCK_ROOT", "S3_ENDPOINT", "CONFIG"):
        assert f"LAKEWARDEN_{name}" in done.out


def test_a_group_without_a_command_lists_its_commands(call: Call) -> None:
    done = call("lock")

    assert done.code == 2
    for name in ("probe", "show", "hold", "release", "audit"):
        assert f"\n  {name} " in done.err


CORRECT = ("ledger", "correct", "--writer", "w", "--batch-id")


@pytest.mark.parametrize(
    ("words", "settings", "problem"),
    [
        (("agent", "--nope"), {}, "No such option: --nope"),
        (("conflcts",), {}, "No such command 'conflcts'. Did you mean 'conflicts'? See lakewarden --help"),
        (("explain",), {}, "Missing argument 'TRANSACTION'; see lakewarden explain --help"),
        (("explain", ""), {}, "Invalid value for 'TRANSACTION': '' is no name: 1 to 512 bytes"),
        (("agent",), {}, "--allow"),
        (("agent", "--allow", "/w/*", "--s3-endpoint", "s3:9000"), {}, "'s3:9000' is not a URL"),
        (("agent", "--allow", "warehouse"), {}, "allow ($LAKEWARDEN_ALLOW): 'warehouse' is not a table URI"),
        (("agent", "--allow", "/w/*"), {"validity_seconds": "soon"}, "$LAKEWARDEN_VALIDITY_SECONDS"),
        (("agent", "--allow", "/w/*"), {"grant_seconds": 30}, "a grant would outlive its lock"),
        (("agent", "--config", "/nowhere.toml"), {}, "/nowhere.toml: cannot be read"),
        (("status", "--table", "t"), {}, "'--table': not a table URI: 't'"),
        (("status", "--output", "xml"), {}, "xml"),
        (("status", "--bootstrap-servers", ""), {}, "bootstrap_servers ($LAKEWARDEN_BOOTSTRAP_SERVERS)"),
        (
            ("status",),
            {"kafka_security_protocol": "SSL", "kafka_ssl_cafile": "/nowhere.pem"},
            "kafka_ssl_cafile=/nowhere.pem can't be read",
        ),
        (("status",), {"kafka_security_protocol": "SASL_SSL"}, "kafka_sasl_username and kafka_sasl_password"),
        (("dev",), {}, "--data"),
        (("dev", "--data", "/w"), {"allow": "warehouse"}, "allow ($LAKEWARDEN_ALLOW): 'warehouse'"),
        (("dev", "--data", "/w"), {"lock_root": "locks"}, "lock_root ($LAKEWARDEN_LOCK_ROOT): 'locks'"),
        (("demo", "--s3-bucket", "b"), {}, "--s3-bucket needs --s3-endpoint"),
        (("abort", ""), {}, "'' is no name"),
        (("abort", "t", "--table", "x"), {}, "'--table': not a table URI"),
        ((*CORRECT, "many", "--reason", "r"), {}, "'many' is neither an integer of 64 bits nor none"),
        ((*CORRECT, "1"), {}, "--reason"),
        (("lock", "hold", "/t"), {}, "Missing option '--seconds'"),
        (("lock", "hold", "/t", "--seconds", "0"), {}, "--seconds"),
        (("lock", "hold", "/t", "--seconds", "1", "--exec", "ls", "--", "ls"), {}, "not both"),
        (("lock", "hold", "t", "--seconds", "1"), {}, "not a table URI: 't'"),
        (("lock", "release", "/t"), {}, "Missing option '--if-owner'"),
        (("lock", "probe", "foo"), {}, "not a bucket or folder: 'foo'"),
        (("lock", "audit", "--table", "t"), {}, "not a table URI: 't'"),
        (("lock", "show", "orders"), {}, "not a table URI: 'orders'"),
        (("lock", "show", "/t", "--lock", "nope"), {}, "not a table URI: 'nope'"),
        (("lock", "show", "ftp://a/b"), {}, "no store for ftp://"),
        (("lock", "shwo"), {}, "No such command 'shwo'"),
    ],
)
def test_a_usage_error_has_exit_code_2_and_one_line_with_the_problem(
    words: tuple[str, ...], settings: dict[str, Any], problem: str, call: Call
) -> None:
    done = call(*words, **settings)

    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1, done.err
    assert problem in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--format", "orc"), "'orc' is not one of 'paimon', 'delta', 'hudi', 'iceberg'"),
        (("--format", "delta", "--without-agent"), "only with --format paimon, not delta"),
        (("--format", "hudi", "--s3-endpoint", "http://s3"), "only with --format paimon, not hudi"),
        (("--primary-key", "--format", "iceberg"), "--primary-key: not with --format iceberg"),
        (("--primary-key", "--without-agent"), "--primary-key: not with --without-agent"),
        (("--without-agent", "--admission", "auto"), "without an agent there is no admission"),
    ],
    ids=" ".join,
)
def test_the_demo_refuses_what_would_have_no_effect(words: tuple[str, ...], said: str, call: Call) -> None:
    done = call("demo", *words)

    assert done.code == 2
    assert said in " ".join(done.err.split())
