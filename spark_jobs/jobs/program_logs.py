"""Logging of the project's own Spark programs. A library leaves it to the program; these are programs."""

from __future__ import annotations

import logging


def log_warnings_to_stderr() -> None:
    """Configure the standard `logging`: warnings and errors of all loggers, one line each, to stderr.

    The programs' steps go to files and Kafka; the log has what an operator should look at.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
