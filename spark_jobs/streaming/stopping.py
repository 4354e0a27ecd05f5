"""How the project's own programs run a streaming query: to its end or until a signal, with one line on stderr if it fails."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

MAX_LINE = 600
"""Characters of the error that is printed. Spark wraps the cause in a text of its own and Java's stack."""

QUERY_STATE = "=== Streaming Query ==="
"""What follows it in an error of a query is not the error: its id, offsets and plan."""


def run_until_stopped(
    start: Callable[[], StreamingQuery],
    *,
    name: str,
    explain: Callable[[BaseException], str | None] = lambda _: None,
) -> int:
    """Start a query and wait for its end. Return the exit code: 0, or 1 with one line on stderr.

    `explain` may know an error better than `reason` does. It returns None if it doesn't.

    SIGTERM and SIGINT end the process at once, without a clean shutdown. That is safe: the query resumes from its
    checkpoint, and the agent aborts the transaction of a writer whose heartbeats end. The JVM ends with its driver.
    """
    signal.signal(signal.SIGTERM, _exit_at_once)
    signal.signal(signal.SIGINT, _exit_at_once)
    try:
        query = start()
        query.awaitTermination()
    except Exception as error:  # noqa: BLE001 - of every error the operator gets one line and an exit code
        print(f"{name} failed: {explain(error) or reason(error)}", file=sys.stderr)  # noqa: T201 - this is the program's output
        return 1
    return 0


def reason(error: BaseException) -> str:
    """Return the line of a Spark error that says what happened."""
    text = str(error).partition(QUERY_STATE)[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
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
