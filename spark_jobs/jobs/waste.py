"""Adds up what conflicts have cost, by the hour, for each table, partition and pair of writers.

    python -m lakewarden.spark_jobs.waste_job --input /data/conflicts --output /data/waste --days 7

It reads the table that `conflicts_job` writes, computes the last `--days` days again, and replaces these days of its output. So
it may run at any time and as often as wanted, for example every hour.

| column | content |
| --- | --- |
| `day` | the day of the conflicts' rows, by which both tables are partitioned |
| `hour` | the hour, by the clock of the agent that decided |
| `table`, `partition` | where the two overlap; an empty partition: the table has none |
| `loser`, `winner` | the writers |
| `conflicts` | between these two writers |
| `seconds` | from their intents to the aborts: the compute wasted |

As in `lakewarden losses`, a conflict about several partitions counts in each of them, with an equal share of the seconds. So sums
of `seconds` are right, and sums of `conflicts` over partitions count such a conflict several times. Who loses to several writers
at once has a conflict with each, and its seconds count once, for the first of them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakewarden.spark_jobs.jobs.options import add_format, add_master, log_warnings_to_stderr, session_for
from lakewarden.spark_jobs.jobs.spark_session import reason
from lakewarden.spark_jobs.jobs.table_formats import Format, read, replace_days

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def waste(conflicts: DataFrame) -> DataFrame:
    """Rows of conflicts, as `conflicts_job` writes them, added up. Undecodable rows aren't counted."""
    from pyspark.sql import Window, functions as f

    of_victim = Window.partitionBy("table", "victim").orderBy("kafka_partition", "kafka_offset")
    seconds = f.when(f.row_number().over(of_victim) == 1, f.col("victim_age_seconds")).otherwise(0.0)
    partitions = f.array_distinct(f.transform("conflicts", lambda each: each["partition"]))
    each_partition = (
        conflicts.where(f.col("undecodable").isNull())
        .withColumn("seconds_lost", seconds)
        .withColumn("partitions", f.coalesce(partitions, f.array()))
        .withColumn("share", f.col("seconds_lost") / f.greatest(f.size("partitions"), f.lit(1)))
        .withColumn("partition", f.explode_outer("partitions"))
    )
    return (
        each_partition.groupBy(
            "day",
            f.date_trunc("hour", "at").alias("hour"),
            "table",
            f.coalesce("partition", f.lit("")).alias("partition"),
            f.col("victim_writer").alias("loser"),
            f.col("winner_writer").alias("winner"),
        )
        .agg(f.count("*").alias("conflicts"), f.sum("share").alias("seconds"))
        .select("hour", "table", "partition", "loser", "winner", "conflicts", "seconds", "day")
    )


def sum_up(
    spark: SparkSession, *, given: str, given_format: Format, output: str, output_format: Format, days: int
) -> None:
    """Compute the last `days` days, today included, and replace them in the output."""
    from pyspark.sql import functions as f

    rows = read(spark, given_format, given)
    recent = rows.where(f.col("day") > f.date_sub(f.current_date(), days))
    replace_days(waste(recent), output_format, output)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job once. Exit codes: 0 success, 1 failure, with one line on stderr."""
    options = _parser().parse_args(argv)
    log_warnings_to_stderr()
    try:
        spark = session_for("lakewarden-waste", options, options.input_format, options.format)
        sum_up(
            spark,
            given=options.input,
            given_format=options.input_format,
            output=options.output,
            output_format=options.format,
            days=options.days,
        )
    except Exception as error:  # noqa: BLE001 - of every error the operator gets one line and an exit code
        print(f"the waste job failed: {reason(error)}", file=sys.stderr)  # noqa: T201 - the program's output
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lakewarden.spark_jobs.waste_job", description=__doc__.split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--input", required=True, help="what conflicts_job writes: folder, URI or table")
    add_format(parser, "--input-format")
    parser.add_argument("--output", required=True, help="folder or URI, or the name of an Iceberg table")
    add_format(parser, "--format")
    parser.add_argument(
        "--days", type=int, default=2, help="days to compute again, today included; default: %(default)s"
    )
    add_master(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
