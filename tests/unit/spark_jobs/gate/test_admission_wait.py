"""What a transaction logs while its intent is not answered."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from lakewarden.events import Admitted, CommitIntent, Topics
from lakewarden.spark_jobs import AgentUnreachable, GrantTimeout
from lakewarden.spark_jobs.gate.channel import Channel
from lakewarden.spark_jobs.gate.event_publisher import Intent, Timing
from lakewarden.spark_jobs.gate.grant_deadline import monotonic_seconds
from lakewarden.spark_jobs.gate.transaction import Transaction

TABLE = "s3://lake/t"


class SilentChannel:
    """A channel whose broker accepts everything. No agent runs, unless `answers` is set."""

    topics = Topics("air")
    bootstrap_servers = "kafka:9092"
    reading_error = None
    timeout = 1.0

    def __init__(self, *, answers: bool = False) -> None:
        self._answers = answers
        self._on_decision: Callable[..., None] = lambda *_: None

    def subscribe(self, _table: str, _id: str, on_decision: Callable[..., None], **_facts: str) -> None:
        """Keep the receiver of decisions."""
        self._on_decision = on_decision

    def send(self, event: Any) -> int:
        """Accept an event, and admit its transaction if an agent answers."""
        if self._answers and isinstance(event, CommitIntent):
            admitted = Admitted(
                event_id="a",
                table=event.table,
                transaction=event.transaction,
                writer=event.writer,
                at=datetime.now(UTC),
                agent="agent-1",
                cause_offset=0,
            )
            self._on_decision(admitted, 0)
        return 0

    def spawn(self, *_: Any, **__: Any) -> None:
        """Start no heartbeats."""


def opened(channel: SilentChannel, timing: Timing, *, may_queue: bool) -> None:
    """Open a transaction."""
    intent = Intent(table=TABLE, writer="w", batch_id=7)
    txn = Transaction(cast("Channel", channel), intent, timing, monotonic_seconds, None, may_queue=may_queue)
    txn.open()


@pytest.fixture
def warnings_of(caplog: pytest.LogCaptureFixture) -> Callable[[], list[Any]]:
    """A function that returns the warnings so far."""
    caplog.set_level(logging.WARNING, "lakewarden")
    return lambda: list(caplog.records)


def test_a_queued_transaction_that_is_not_answered_says_so_long_before_it_fails(
    warnings_of: Callable[[], list[Any]],
) -> None:
    """No agent runs. The job would wait for `queue_timeout_seconds`, ten minutes, without a word."""
    timing = Timing(admission_timeout_seconds=0.01, queue_timeout_seconds=0.05)

    with pytest.raises(GrantTimeout):
        opened(SilentChannel(), timing, may_queue=True)

    (warning,) = warnings_of()
    assert warning.event == "gate.not-admitted-yet"
    fields = warning.fields
    assert (fields["table"], fields["writer"], fields["batch_id"]) == (TABLE, "w", 7)
    assert (fields["topic_prefix"], fields["brokers"]) == ("air", "kafka:9092")
    assert (fields["waited_seconds"], fields["timeout_seconds"]) == (0.01, 0.05)
    assert "no agent that allows this table runs" in fields["detail"]
    assert "lakewarden status" in fields["detail"]


def test_a_transaction_that_fails_at_that_moment_says_it_only_once(
    warnings_of: Callable[[], list[Any]],
) -> None:
    """The error has the same advice."""
    with pytest.raises(AgentUnreachable, match="start an agent"):
        opened(SilentChannel(), Timing(admission_timeout_seconds=0.01), may_queue=False)

    assert warnings_of() == []


def test_a_transaction_that_is_admitted_at_once_logs_nothing(
    warnings_of: Callable[[], list[Any]],
) -> None:
    """The usual case."""
    opened(SilentChannel(answers=True), Timing(), may_queue=True)

    assert warnings_of() == []
