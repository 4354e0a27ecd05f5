"""What a sink writes is what the format's own writer writes, or both refuse it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.spark.rows.comparison import compare
from tests.spark.rows.exploration import described, explore
from tests.spark.rows.planted import FOUND_BY, ONLY_WITH_ICEBERG, planted
from tests.spark.rows.situations import SITUATIONS
from tests.spark.rows.tables import FORMATS

pytestmark = [pytest.mark.real]

EXAMPLES = int(os.environ.get("LAKEWARDEN_TEST_ROWS", "0"))
"""Generated situations of each format and mode. 0: `FEW` of them, for `make test-all`."""

SEED = int(os.environ.get("LAKEWARDEN_TEST_ROWS_SEED", "1"))

SPARK_35 = pyspark.__version__ < "4"
"""`make test-spark35` compares less: most is as on the default PySpark."""

FEW = 1 if SPARK_35 else 3

TO_FIND_A_BUG = 300

EACH = 5 if SPARK_35 else 1
"""Of the written situations: each one, or each fifth."""


def written_situations() -> Iterator[Any]:
    """Yield format, mode and name. Each situation runs with one format and mode, the matrix has the others.

    `make test` runs each third situation, `make test-all` the rest.
    """
    for turn, (name, situation) in enumerate(SITUATIONS.items()):
        pairs = [
            (table_format, mode)
            for table_format, tables in FORMATS.items()
            for mode in tables.modes
            if (not situation.formats or table_format in situation.formats)
            and (not situation.modes or mode in situation.modes)
        ]
        for number, (table_format, mode) in enumerate(pairs):
            chosen = turn % EACH == 0 and number == turn // EACH % len(pairs)
            wide = [] if SPARK_35 or turn % 3 == 0 else [pytest.mark.wide]
            marks = [] if EXAMPLES else wide if chosen else [pytest.mark.matrix]
            yield pytest.param(table_format, mode, name, marks=marks, id=f"{table_format}-{mode}-{name}")


@pytest.mark.parametrize(("table_format", "mode", "name"), list(written_situations()))
def test_a_batch_is_written_as_natively(
    spark: SparkSession, tmp_path: Path, table_format: str, mode: str, name: str
) -> None:
    situation = SITUATIONS[name]
    found = compare(spark, tmp_path, situation, table_format, mode)
    assert found is None, described(table_format, mode, situation, found)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("table_format", "mode"),
    [
        pytest.param(table_format, mode, id=f"{table_format}-{mode}")
        for table_format, tables in FORMATS.items()
        for mode in tables.modes
    ],
)
def test_generated_batches_are_written_as_natively(
    spark: SparkSession, tmp_path: Path, table_format: str, mode: str
) -> None:
    explore(spark, tmp_path, table_format, mode, examples=EXAMPLES or FEW, seed=SEED, shrink=bool(EXAMPLES))


BUGS = [bug for bug in FOUND_BY if "iceberg" in FORMATS or bug not in ONLY_WITH_ICEBERG]


def where_found(bug: str) -> tuple[str, str, str]:
    """Return format, mode and name of a situation that shows the bug. Paimon's tables are on each PySpark."""
    table_format, mode, name = FOUND_BY[bug]
    return table_format if table_format in FORMATS else "paimon", mode, name


@(pytest.mark.matrix if SPARK_35 else pytest.mark.wide)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(spark: SparkSession, tmp_path: Path, bug: str) -> None:
    table_format, mode, name = where_found(bug)
    with planted(bug):
        assert compare(spark, tmp_path, SITUATIONS[name], table_format, mode) is not None


@pytest.mark.matrix
@pytest.mark.parametrize("bug", BUGS)
def test_generated_batches_find_a_planted_bug(spark: SparkSession, tmp_path: Path, bug: str) -> None:
    table_format, mode, _ = where_found(bug)
    with pytest.raises(AssertionError):
        explore(spark, tmp_path, table_format, mode, examples=TO_FIND_A_BUG, seed=SEED, bug=bug)
