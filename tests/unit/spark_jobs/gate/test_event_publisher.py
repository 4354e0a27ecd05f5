"""What the events of one transaction say."""

from __future__ import annotations

import os
import socket
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakewarden.events import CommitIntent, MarkerCreated, encode
from lakewarden.spark_jobs.gate.channel import Channel
from lakewarden.spark_jobs.gate.event_publisher import MAX_REASON, EventPublisher, Intent, Timing, origin


class SentEvents:
    """A channel that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, event: Any) -> int:
        """Keep the event."""
        self.sent.append(event)
        return len(self.sent) - 1


@pytest.mark.parametrize(
    "reason, published",
    [
        ("its scope is known", "its scope is known"),
        ("", None),
        ("two\nlines ", "two lines"),
        ("x" * (MAX_REASON + 1), "x" * MAX_REASON),
    ],
)
def test_an_intent_has_the_reason_of_its_admission_bounded_and_on_one_line(
    reason: str, published: str | None
) -> None:
    """`CommitGate.transaction(reason=…)` accepts any text. A text beyond the wire's limit must not make the agent refuse it."""
    channel = SentEvents()
    intent = Intent(table="s3://lake/t", writer="w", reason=reason)
    publisher = EventPublisher(cast("Channel", channel), intent, Timing(), lambda: 0)

    publisher.publish_intent()

    (sent,) = channel.sent
    assert isinstance(sent, CommitIntent)
    assert sent.admission_reason == published
    assert encode(sent)


def test_an_instant_is_announced_without_markers() -> None:
    """A watcher may see the instant in the table before the first marker is published."""
    channel = SentEvents()
    intent = Intent(table="s3://lake/trips", writer="ingest")
    publisher = EventPublisher(cast("Channel", channel), intent, Timing(), lambda: 0)

    publisher.publish_instant("20261122135446024")

    (event,) = channel.sent
    assert isinstance(event, MarkerCreated)
    assert (event.instant, event.markers) == ("20261122135446024", ())


def test_an_intent_says_where_its_writer_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Spark only what the program has imported itself is asked. A context that is being stopped says nothing."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    plain = origin()
    here = {"host": socket.gethostname(), "pid": os.getpid()}

    running = SimpleNamespace(applicationId="app-1", uiWebUrl=f"http://{'x' * 2000}:4040")
    found = []
    for context in (running, SimpleNamespace()):
        spark = SimpleNamespace(SparkContext=SimpleNamespace(_active_spark_context=context))
        monkeypatch.setitem(sys.modules, "pyspark", spark)
        found.append(origin())

    assert plain == found[1] == here
    assert found[0].items() > here.items()
    assert (found[0]["application_id"], len(found[0]["application_ui"])) == ("app-1", 1024)
