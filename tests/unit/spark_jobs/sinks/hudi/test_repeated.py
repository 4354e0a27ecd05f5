"""What a sink does again and again while Hudi computes: publishing markers, reporting the lease."""

from __future__ import annotations

import logging
import threading

import pytest

from lakewarden.events import Abort
from lakewarden.spark_jobs.gate.errors import CommitAborted
from lakewarden.spark_jobs.sinks.hudi.write import _Repeated
from tests.unit.events.building import made

PATIENCE_SECONDS = 60.0


def test_a_store_that_fails_for_a_moment_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise a conflict would be found only after the whole batch is computed. Errors in a row are one line."""
    calls, goes_on = 0, threading.Event()

    def publish() -> None:
        nonlocal calls
        calls += 1
        if calls in {2, 3}:
            raise OSError("503")
        if calls == 5:
            goes_on.set()

    repeated = _Repeated("markers", publish, 0.001)
    with caplog.at_level(logging.WARNING):
        repeated.start()
        assert goes_on.wait(PATIENCE_SECONDS)
        repeated.stop()

    assert [record.message.partition(" ")[0] for record in caplog.records] == ["hudi.not-read"]


def test_an_abort_ends_it() -> None:
    calls = 0

    def publish() -> None:
        nonlocal calls
        calls += 1
        raise CommitAborted(made(Abort, table="s3://lake/t", transaction="t", reason="conflict"))

    repeated = _Repeated("markers", publish, 0.001)
    repeated.start()
    repeated._thread.join(PATIENCE_SECONDS)

    assert not repeated._thread.is_alive()
    assert calls == 1
