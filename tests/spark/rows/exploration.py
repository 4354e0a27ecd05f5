"""Runs generated situations of one format and mode, from a seed, and reports the smallest that fails."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, assume, given, seed as seeded, settings
from pyspark.sql import SparkSession
from pyspark.sql.types import _parse_datatype_string

from tests.spark.formats import session_settings
from tests.spark.rows.comparison import Finding, Unusable, compare
from tests.spark.rows.generator import situations
from tests.spark.rows.planted import may_show, planted
from tests.spark.rows.tables import Situation


def explore(
    spark: SparkSession,
    folder: Path,
    table_format: str,
    mode: str,
    *,
    examples: int,
    seed: int,
    shrink: bool = False,
    bug: str | None = None,
) -> None:
    """Compare so many generated situations. Raise `AssertionError` with the smallest that differs.

    `bug`: planted into the sink. A situation that also differs without it doesn't count.
    """

    def can_show(situation: Situation) -> bool:
        table: Any = _parse_datatype_string(situation.columns)
        with session_settings(spark, dict(situation.settings)):
            return bug is None or any(may_show(bug, spark.sql(sql), table) for sql in situation.batches)

    phases = [Phase.generate, *([Phase.shrink] if shrink else [])]

    @seeded(seed)
    @settings(
        max_examples=examples,
        phases=phases,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    @given(situation=situations(table_format, mode))
    def check(situation: Situation) -> None:
        assume(can_show(situation))
        try:
            with planted(bug) if bug else nullcontext():
                found = compare(spark, folder, situation, table_format, mode)
            if bug and found and compare(spark, folder, situation, table_format, mode):
                found = None
        except Unusable:
            assume(False)  # noqa: FBT003 - of Hypothesis
            return
        assert found is None, described(table_format, mode, situation, found)

    try:
        check()
    except AssertionError as error:
        error.add_note(
            f"make rows SEED={seed} EXAMPLES={examples} ARGS='-k {table_format}-{mode}' finds it again"
        )
        raise


def described(table_format: str, mode: str, situation: Situation, found: Finding) -> str:
    """Return a situation and what was found in it, as text."""
    return f"{table_format} {mode}: {found}\n{situation}"
