"""Errors of Python functions that the JVM calls.

A table format that publishes in a callback calls Python through py4j. If the function raises, the JVM gets the error's text
in a Java exception, and the Python caller of the JVM gets the text of that. So the function's own error is kept here, and
raised in its place, without py4j's own report of it, which has a traceback:

    with CallbackErrors() as errors:
        hook = Hook(before_commit=errors.keep(before), after_commit=errors.keep(after))
        spark.sql("MERGE INTO …")  # raises what `before` or `after` raised
"""

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class _NotTwice(logging.Filter):
    """Drops py4j's report of an error that is kept: it is raised, and an abort is no fault."""

    def filter(self, record: logging.LogRecord) -> bool:
        trace = record.exc_info[2] if record.exc_info else None
        while trace is not None and trace.tb_frame.f_code.co_filename != __file__:
            trace = trace.tb_next
        return trace is None


_NOT_TWICE = _NotTwice()
for _name in ("py4j.clientserver", "py4j.java_gateway"):
    logging.getLogger(_name).addFilter(_NOT_TWICE)


class CallbackErrors:
    """Keeps the first error of the functions in a block, and raises it at the end of the block.

    It is also raised if the block returns: the JVM may have swallowed it, and a refused commit must not look like a
    success. The block's own error becomes its `__cause__`. The functions may run in any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.first: BaseException | None = None

    def keep(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return `function`, with its errors kept. They are raised to the JVM as well."""

        def kept(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                with self._lock:
                    self.first = self.first or error
                raise

        return kept

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.first is not None and self.first is not error:
            raise self.first from error
