"""The demo as a user runs it, with Kafka, agent and Spark, on a few days of flights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.printed import as_shown
from tests.processes import processes_with

DAYS = 3
FLIGHTS = 2_699
"""On 1, 2 and 3 January 2013."""

FORMATS = ["hudi"] if pyspark.__version__.startswith("3.5.") else ["delta", "iceberg"]
"""Those that this PySpark can write; the others in `make test-spark35`'s environment."""

ROOT = Path(__file__).resolve().parents[2]
HANG_SECONDS = 2400
"""Only ends a hang."""

pytestmark = [pytest.mark.real, pytest.mark.wide, pytest.mark.timeout(2500)]


def demo(folder: Path, *options: str) -> str:
    """Run it to its end, and return what it has printed. It leaves no process behind."""
    command = [sys.executable, "docs/examples/demo/demo.py", "--days", str(DAYS)]
    places = ["--data", str(folder / "data"), "--picture", str(folder / "demo.svg")]
    done = subprocess.run(
        [*command, *places, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert processes_with(str(folder)) == []
    return done.stdout


def figures(printed: str) -> dict[str, list[str]]:
    """The figures of the report: by name, one for each contest."""
    _, _, report = printed.partition("\n admission ")
    return {line[1:19].strip(): line[19:43].split() for line in report.splitlines() if line.startswith(" ")}


def assert_every_row_is_right(printed: str) -> None:
    assert f"All {FLIGHTS:,} rows are present exactly once and correct in each table." in printed
    assert figures(printed)["restarts"] == ["0", "0"]


def test_two_queries_collide_under_the_agent_and_wait_with_auto_and_nothing_is_lost(tmp_path: Path) -> None:
    printed = demo(tmp_path)

    assert_every_row_is_right(printed)
    optimistic, auto = figures(printed)["conflicts"]
    assert (int(optimistic) >= 1, auto) == (True, "0")
    assert figures(printed)["compute wasted"][2:] == ["0.0", "s"]
    as_shown("README.md", "make demo FORMAT=iceberg ARGS=--days=2", printed)
    assert "of compute wasted" in (tmp_path / "demo.svg").read_text()


@pytest.mark.matrix
@pytest.mark.parametrize("form", FORMATS)
def test_the_same_on_a_table_of_another_format(form: str, tmp_path: Path) -> None:
    printed = demo(tmp_path, "--format", form)

    assert_every_row_is_right(printed)
    optimistic, auto = figures(printed)["conflicts"]
    assert (int(optimistic) >= 1, auto) == (True, "0")


@pytest.mark.matrix
def test_the_same_on_a_table_with_a_primary_key_beside_a_compactor(tmp_path: Path) -> None:
    printed = demo(tmp_path, "--primary-key")

    assert_every_row_is_right(printed)
    assert figures(printed)["conflicts"] == ["0", "0"], "upserts wait for their turn"
    assert all(int(each) >= 1 for each in figures(printed)["compactions"])


@pytest.mark.matrix
def test_the_same_queries_without_an_agent_lose_rows_without_an_error(tmp_path: Path) -> None:
    printed = demo(tmp_path, "--without-agent")

    assert figures(printed)["rows expected"][0] == f"{FLIGHTS:,}"
    assert "rows are lost or damaged. The jobs reported no error" in printed
