"""Options that the operators' jobs share, and the session that they ask for."""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakewarden.events import DEFAULT_PREFIX
from lakewarden.spark_jobs.jobs.spark_session import LOCAL_MASTER, spark_session
from lakewarden.spark_jobs.jobs.table_formats import FORMATS, Format, session_settings
from lakewarden.spark_jobs.sinks import releases

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def log_warnings_to_stderr() -> None:
    """Configure the standard `logging`: warnings and errors of all loggers, one line each, to stderr.

    The programs' steps go to files and Kafka; the log has what an operator should look at.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")


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
    wanted = dict.fromkeys(formats)
    # None for a PySpark whose jars must come from the configuration.
    jars = [
        jar
        for form in wanted
        if form != "parquet" and (jar := releases.FORMATS[form].jar(pyspark.__version__))
    ]
    for form in wanted:
        for key, value in session_settings(form).items():
            settings[key] = f"{settings[key]},{value}" if key in settings else value
    chosen: dict[str, Any] = settings | dict(options.conf)
    return spark_session(name, master=options.master, kafka=kafka, packages=jars, **chosen)


def setting(text: str) -> tuple[str, str]:
    """Return the name and the value of `NAME=VALUE`. The error doesn't show the value, which may be a secret."""
    name, separator, value = text.partition("=")
    if not separator:
        named, colon, _ = text.partition(":")
        raise argparse.ArgumentTypeError(
            f"{named + ':…' if colon else 'the value'} is not of the form NAME=VALUE"
        )
    return name, value


def add_kafka(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options of the connection to Kafka. `what`: whose names the client's settings have."""
    parser.add_argument("--bootstrap-servers", required=True, help="Kafka, host:port[,host:port…]")
    parser.add_argument("--topic-prefix", default=DEFAULT_PREFIX, help="default: %(default)s")
    parser.add_argument(
        "--kafka-options",
        type=json_object,
        default={},
        metavar="JSON",
        help=f"JSON object of {what}, for TLS and SASL; @FILE reads it from a file, so that no process list shows it",
    )


def json_object(text: str) -> dict[str, Any]:
    """Return a JSON object, or that in `@FILE`. The errors don't show it, because it may contain secrets."""
    where = "the value"
    if text.startswith("@"):
        where = text[1:]
        try:
            text = Path(where).read_text()
        except OSError as error:
            raise argparse.ArgumentTypeError(f"{where} can't be read: {error.strerror}") from None
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(
            f"{where} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{where} is not a JSON object")
    return found
