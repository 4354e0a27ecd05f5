"""Options that the operators' jobs share, and the session that they ask for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs.jobs.spark_session import LOCAL_MASTER, spark_session
from lakewarden.spark_jobs.jobs.table_formats import FORMATS, Format, packages, session_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add_format(parser: argparse.ArgumentParser, name: str) -> None:
    """Add an option that names a table format."""
    parser.add_argument(name, choices=FORMATS, default="parquet", help="default: %(default)s")


def add_master(parser: argparse.ArgumentParser) -> None:
    """Add the options of the session."""
    parser.add_argument("--master", default=LOCAL_MASTER, help="Spark master; default: %(default)s")
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        type=setting,
        help="a Spark setting, for example of an Iceberg catalog; repeatable",
    )


def session_for(
    name: str, options: argparse.Namespace, *formats: Format, kafka: bool = False
) -> SparkSession:
    """A session that reads and writes these formats, with the settings of `--conf`."""
    import pyspark

    settings: dict[str, str] = {}
    jars: list[str] = []
    for form in dict.fromkeys(formats):
        jars += packages(form, pyspark.__version__)
        for key, value in session_settings(form).items():
            settings[key] = f"{settings[key]},{value}" if key in settings else value
    chosen: dict[str, Any] = settings | dict(options.conf)
    return spark_session(name, master=options.master, kafka=kafka, packages=jars, **chosen)


def setting(text: str) -> tuple[str, str]:
    """Return the name and the value of `NAME=VALUE`."""
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value
