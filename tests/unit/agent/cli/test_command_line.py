"""The command line as a user calls it: help, usage errors, and its two spellings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lakewarden.agent.cli import app

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
def test_help_begins_with_the_usage_and_the_purpose(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["any-name", *command, "--help"])

    with pytest.raises(SystemExit) as ended:
        app.main()

    usage, blank, purpose, *rest = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0
    assert usage.startswith(" ".join(("Usage: lakewarden", *command)))
    assert blank == ""
    assert len(purpose.split()) > 3
    assert any(line.strip() == "Options:" for line in rest)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--format", "orc"), "'orc' is not one of 'paimon', 'delta', 'hudi', 'iceberg'"),
        (("--format", "delta", "--without-agent"), "only with --format paimon, not delta"),
        (("--format", "hudi", "--s3-endpoint", "http://s3"), "only with --format paimon, not hudi"),
        (("--primary-key", "--format", "iceberg"), "--primary-key: not with --format iceberg"),
        (("--primary-key", "--without-agent"), "--primary-key: not with --without-agent"),
    ],
    ids=" ".join,
)
def test_the_demo_refuses_what_its_format_has_not(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lakewarden", "demo", *words])

    with pytest.raises(SystemExit) as ended:
        app.main()

    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_the_demo_without_an_agent_refuses_an_admission(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would have no effect."""
    monkeypatch.setattr(sys, "argv", ["lakewarden", "demo", "--without-agent", "--admission", "auto"])

    with pytest.raises(SystemExit) as ended:
        app.main()

    assert ended.value.code == 2
    assert "without an agent there is no admission" in capsys.readouterr().err
