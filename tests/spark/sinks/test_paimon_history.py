"""Each batch once, past the expiry of snapshots, on real tables and without Spark and Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakewarden.handlers.paimon.publish import PutRefused
from lakewarden.spark_jobs import OutcomeUnknown, PaimonSink
from lakewarden.spark_jobs.sinks.paimon.base import UNNUMBERED
from lakewarden.spark_jobs.sinks.paimon.commit import NothingPublished
from lakewarden.spark_jobs.sinks.paimon.history import ATTEMPTS
from lakewarden.spark_jobs.sinks.paimon.snapshot_store import LinkedSnapshots
from tests.spark.sinks.test_paimon_fence import Flights, new_flights

pytestmark = [pytest.mark.real]


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    return new_flights(str(tmp_path), {})


def committed(flights: Flights, writer: str, batch: int) -> str | None:
    return PaimonSink(flights.address.uri).committed(writer, batch)


def foreign_commit(flights: Flights) -> None:
    builder = flights.address.open().new_stream_write_builder()
    builder.commit_user = "foreign"
    builder.new_commit().commit(flights.stage("foreign", 0), 1)


def test_a_batch_is_found_after_its_snapshot_has_expired(flights: Flights) -> None:
    flights.commit("a", 1, identifier=7)
    for batch in range(3):
        flights.commit("b", batch, identifier=batch)
    flights.expire(1, 2, 3)

    assert committed(flights, "a", 7) == "1"
    assert committed(flights, "a", 6) == "1", "an earlier batch of the writer"
    assert committed(flights, "a", 8) is None
    assert committed(flights, "b", 2) == "4"
    assert committed(flights, "new", 0) is None


@pytest.mark.wide
def test_foreign_commits_and_batches_without_a_number_pass_it_on(flights: Flights) -> None:
    flights.commit("a", 1, identifier=7)
    foreign_commit(flights)
    flights.commit("by-hand", 2, identifier=UNNUMBERED)
    foreign_commit(flights)
    flights.expire(1, 2)

    assert committed(flights, "a", 7) == "1"
    assert committed(flights, "a", 8) is None
    assert committed(flights, "by-hand", 0) is None


@pytest.mark.wide
def test_where_only_foreign_snapshots_are_left_the_last_batch_is_unknown_and_later_ones_are_not(
    flights: Flights,
) -> None:
    """The driver died at its publish, and was restarted only when Paimon had expired every snapshot of the gate."""
    flights.commit("a/b", 1, identifier=7)
    for _ in range(2):
        foreign_commit(flights)
    flights.expire(1, 2)

    with pytest.raises(
        OutcomeUnknown, match=r"batch 7 was about to be published.* table=.* writer=a/b"
    ) as caught:
        committed(flights, "a/b", 7)

    assert not caught.value.retriable
    assert committed(flights, "a/b", 8) is None, "it was never about to be published"
    assert committed(flights, "new", 0) is None
    object_name = "_lakewarden/paimon/a%2Fb.json"
    assert f"remove {object_name} in the table's folder" in str(caught.value)
    (Path(flights.address.uri.removeprefix("file://")) / object_name).unlink()
    assert committed(flights, "a/b", 7) is None, "as the error says"


@pytest.mark.wide
def test_a_lookup_reads_one_listing_and_the_newest_snapshot(
    flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the history: each read is a request on an object store."""
    flights.commit("a", 1)
    for batch in range(5):
        flights.commit("b", batch, identifier=batch)
    calls: list[str] = []
    for step in ("read", "names"):
        original = getattr(LinkedSnapshots, step)

        def counted(self: Any, *args: Any, step: str = step, original: Any = original) -> Any:
            calls.append(step)
            return original(self, *args)

        monkeypatch.setattr(LinkedSnapshots, step, counted)

    assert committed(flights, "a", 1) == "1"
    assert committed(flights, "b", 5) is None
    assert calls == ["names", "read"] * 2


@pytest.mark.wide
def test_the_attempt_is_written_before_the_put(flights: Flights, monkeypatch: pytest.MonkeyPatch) -> None:
    put = LinkedSnapshots.put_if_absent
    found: list[str] = []

    def looking(self: Any, name: str, body: bytes) -> Any:
        folder = Path(flights.address.uri.removeprefix("file://")) / ATTEMPTS
        found.extend(path.read_text() for path in folder.glob("*.json"))
        return put(self, name, body)

    monkeypatch.setattr(LinkedSnapshots, "put_if_absent", looking)

    flights.commit("a", 1, identifier=7)

    assert found == ['{"batch": 7, "after": 0}']


@pytest.mark.wide
def test_a_first_publish_that_failed_is_known_not_to_be_committed(
    flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the retry of a new writer's first batch would stop the query."""
    flights.commit("b", 0)
    with monkeypatch.context() as patched:
        patched.setattr(LinkedSnapshots, "put_if_absent", lambda *_: PutRefused("403"))
        with pytest.raises(NothingPublished):
            flights.commit("a", 1, identifier=7)
    flights.commit("b", 1, identifier=2)

    assert committed(flights, "a", 7) is None
