"""How our own programs run a streaming query: to its end, or until they are told to stop, and with one line of why."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import structlog

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

MAX_LINE = 600
"""Characters of the error that is printed: Spark wraps the cause in its own and Java's stack."""


def run_until_stopped(start: Callable[[], StreamingQuery], *, name: str) -> int:
    """Start a query and wait for its end: 0, or 1 with one line on stderr. SIGTERM and SIGINT end the process at once.

    At once, and not in order: a query that is killed goes on from its checkpoint, and a writer that falls silent is
    ended by the agent; both are built for worse than this. The JVM ends with its driver.
    """
    _log_warnings_to_stderr()
    signal.signal(signal.SIGTERM, _exit_at_once)
    signal.signal(signal.SIGINT, _exit_at_once)
    try:
        query = start()
        query.awaitTermination()
    except Exception as error:  # noqa: BLE001 - whatever it is, the operator gets one line and an exit code
        print(f"{name} failed: {reason(error)}", file=sys.stderr)  # noqa: T201 - this is the program's output
        return 1
    return 0


def _log_warnings_to_stderr() -> None:
    # Our steps go to an observer; what is left for a log are the things that somebody should look at.
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def reason(error: BaseException) -> str:
    """The part of a Spark error that says what happened, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [
        line for line in lines if line.startswith("lakewarden.") and "Error" not in line.partition(":")[0]
    ]
    errors = ours or [line for line in lines if _names_an_error(line)] or lines or [type(error).__name__]
    return errors[-1][:MAX_LINE]


def _names_an_error(line: str) -> bool:
    name = line.partition(":")[0]
    return name.isidentifier() or (name.replace(".", "").isidentifier() and not line.startswith("at "))


def _exit_at_once(number: int, _frame: FrameType | None) -> NoReturn:
    sys.stderr.flush()
    os._exit(128 + number)
