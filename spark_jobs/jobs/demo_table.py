"""Creates the demo's tables with Spark, or reads them, for the formats that the demo itself can't write.

`lakewarden demo` starts it as a process and never imports it. `create` creates each table in its first state. `read` writes the
rows of each table, read by the format itself, as Parquet files to a folder below `--output`: `0`, `1`, in the order of the
tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lakewarden.spark_jobs.gate.errors import UnsupportedSpark
from lakewarden.spark_jobs.jobs.demo_formats import ON_SPARK, NewTable
from lakewarden.spark_jobs.jobs.program_logs import log_warnings_to_stderr
from lakewarden.spark_jobs.jobs.spark_session import LOCAL_MASTER


def main(argv: Sequence[str] | None = None) -> int:
    """Create or read the tables. The last line on stderr says why, if it fails."""
    options = _parser().parse_args(argv)
    log_warnings_to_stderr()
    form = ON_SPARK[options.format]
    try:
        read = options.action == "read"
        spark = form.session(
            "lakewarden-demo-table",
            options.table[0],
            options.master,
            catalog=options.catalog,
            downloaded=read,
        )
    except UnsupportedSpark as error:
        print(error, file=sys.stderr)  # noqa: T201 - this is the program's output
        return 1
    for number, table in enumerate(options.table):
        if options.action == "create":
            names = options.partition_by.split(","), options.keys.split(",")
            form.create(spark, table, NewTable(options.columns, *names, options.rows))
        else:
            form.read(spark, table).write.parquet(f"{options.output}/{number}")
    spark.stop()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lakewarden.spark_jobs.jobs.demo_table", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--format", required=True, choices=ON_SPARK, help="format of the tables")
    parser.add_argument("--table", required=True, action="append", help="URI of a table; repeatable")
    parser.add_argument("--catalog", help="URI of Iceberg's REST catalog")
    parser.add_argument("--master", default=LOCAL_MASTER, help="Spark master; default: %(default)s")
    actions = parser.add_subparsers(dest="action", required=True)
    create = actions.add_parser("create")
    create.add_argument("--columns", required=True, help="names and types, as SQL")
    create.add_argument("--partition-by", required=True, help="partition columns, separated by commas")
    create.add_argument("--keys", required=True, help="key columns, separated by commas")
    create.add_argument("--rows", required=True, help="folder of Parquet files with the keys of every row")
    read = actions.add_parser("read")
    read.add_argument("--output", required=True, help="folder of the Parquet files")
    return parser


if __name__ == "__main__":
    sys.exit(main())
