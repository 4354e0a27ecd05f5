"""The systemd units: `systemd-analyze verify`, and their variables as the agent reads them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lakewarden.agent.settings import Settings
from lakewarden.agent.variables import ENV_PREFIX
from tests.deploy.kubernetes import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
INSTALLED = "/opt/lakewarden/bin/lakewarden"


def options(unit: Path, name: str) -> list[str]:
    """The values of an option of the unit, in its order."""
    lines = [line.partition("=") for line in unit.read_text().splitlines()]
    return [value for key, _, value in lines if key == name]


@pytest.mark.unit
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_of_lakewarden_with_settings_that_exist(unit: Path) -> None:
    [start] = options(unit, "ExecStart")
    program, command = start.split()
    given = {each.partition("=")[0] for each in options(unit, "Environment")} - {f"{ENV_PREFIX}CONFIG"}

    assert program == INSTALLED
    assert unit.stem == f"lakewarden-{command}"
    assert {each.removeprefix(ENV_PREFIX).lower() for each in given} <= set(Settings.model_fields)


@pytest.mark.unit
def test_the_end_of_a_watcher_for_want_of_memory_does_not_stop_the_agent() -> None:
    """systemd stops a unit of which the kernel ends any process, unless it has this policy."""
    [agent] = [each for each in UNITS if each.stem == "lakewarden-agent"]

    assert options(agent, "OOMPolicy") == ["continue"]


@pytest.mark.matrix
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_finds_nothing_wrong_with_a_unit(unit: Path, tmp_path: Path) -> None:
    """Needs systemd's own program, which Debian has in the package `systemd`. It demands that the program exists."""
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace(INSTALLED, str(Path(sys.executable).with_name("lakewarden"))))

    done = _verify(copy)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")

    copy.write_text(copy.read_text().replace("RestartSec=", "RestartSecs="))
    assert "Unknown key 'RestartSecs'" in _verify(copy).stderr


def _verify(unit: Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
