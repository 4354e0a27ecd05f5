"""The command line runs in the tests' own process here."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(scope="module", autouse=True)
def _logging_kept() -> Iterator[None]:
    """A command configures the logging of its process, which here is that of all tests."""
    ours, root = structlog.get_config(), logging.getLogger()
    handlers, level, of_clients = list(root.handlers), root.level, logging.getLogger("aiokafka").level
    yield
    structlog.configure(**ours)
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("aiokafka").setLevel(of_clients)
