"""Logging: each line is an event name with fields, as text on a terminal and as one JSON object per line elsewhere."""

import logging
import os
import sys
from typing import Any, NoReturn

import structlog


def configure_logging(level: str, *, stream: Any = None) -> None:
    """Configure structlog, and route the libraries' own log records to the same output."""
    out = stream if stream is not None else sys.stdout
    text = out.isatty()
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=True) if text else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, renderer]
        if not text
        else [*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.ERROR)
    # They log each failed connection while a server is down; the agent logs that itself, with the address and the retry.
    for each in ("aiokafka", "thrift"):
        logging.getLogger(each).setLevel(logging.CRITICAL)


def leave(status: int) -> NoReturn:
    """Flush the output and end this process, without Python's finalisation if obstore was used.

    A thread of obstore's runtime may meet the finalisation, and then aborts the process (SIGABRT): a known issue of
    pyo3-async-runtimes.
    """
    if "obstore" not in sys.modules:
        sys.exit(status)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            status = status or 1  # the reader has exited, or the stream is closed, so no message can reach it
    os._exit(status)
