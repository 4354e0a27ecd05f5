"""`lakewarden assess` as a process: it ends with its exit code and its whole output, whatever reads that.

obstore's runtime thread may meet Python's finalisation, which ends some of a hundred processes with SIGABRT.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.unit.agent.watching.written_tables import FORMATS, History, Written, write

RUNS = 40
HISTORY = History(tuple(Written(number, number % 2) for number in range(8)), (3,))
COMMAND = (sys.executable, "-m", "lakewarden.agent", "assess", "--days", "3650")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A table of each format, and a folder that is none."""
    for form, files in FORMATS.items():
        write(files(HISTORY), tmp_path / form)
    (tmp_path / "none").mkdir()
    return tmp_path


def assess(*tables: Path, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    words = [each.as_uri() for each in tables]
    return subprocess.run([*COMMAND, *words], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


def test_one_table_that_cannot_be_read_costs_no_other(lake: Path) -> None:
    done = assess(lake / "delta", lake / "none", lake / "hudi")

    assert done.returncode == 1
    assert [line.split(": ")[1] for line in done.stdout.splitlines() if line.startswith("file:")] == [
        "delta, 8 commits",
        "hudi, 8 commits",
    ]
    assert f"{(lake / 'none').as_uri()} can't be assessed" in done.stderr


def test_json_of_no_table_is_an_empty_list(lake: Path) -> None:
    done = subprocess.run(
        [*COMMAND, (lake / "none").as_uri(), "--output", "json"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (1, "[]\n")


def test_a_piece_that_was_not_read_is_an_exit_code_of_its_own(lake: Path) -> None:
    (lake / "delta/_delta_log/00000000000000000003.json").unlink()

    done = assess(lake / "delta")

    assert (done.returncode, done.stderr) == (3, "")
    assert "delta, at least 7 commits" in done.stdout
    assert "not read: commit 3: older ones are there, so the table's log is damaged" in done.stdout


def test_a_checkpoint_of_terabytes_costs_itself(lake: Path) -> None:
    """Two million times one text of a megabyte, in 5 kB."""
    texts = pa.DictionaryArray.from_arrays(
        pa.repeat(pa.scalar(0, pa.int32()), 2_000_000), pa.array(["x" * 1_000_000])
    )
    metadata = pa.StructArray.from_arrays([texts], names=["schemaString"])
    log = lake / "delta/_delta_log"
    parquet.write_table(pa.table({"metaData": metadata}), log / "00000000000000000001.checkpoint.parquet")
    for version in (0, 1):
        (log / f"{version:020d}.json").unlink()

    done = assess(lake / "delta")

    assert (done.returncode, done.stderr) == (3, "")
    assert "delta, at least 6 commits" in done.stdout
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 1_000_000  # kB


def test_a_reader_that_has_exited_ends_it_without_a_word(lake: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)

    done = assess(lake / "delta", stdout=writer)

    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.wide
def test_every_run_ends_with_its_exit_code_and_its_whole_output(lake: Path) -> None:
    tables = [lake / form for form in FORMATS]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: assess(*tables), range(RUNS)))

    assert [(each.returncode, each.stderr) for each in found] == [(0, "")] * RUNS
    assert len({each.stdout for each in found}) == 1
    assert found[0].stdout.count("the gate would change") == len(FORMATS)
