"""The events of an observation."""

from datetime import UTC, datetime
from typing import Any

import pytest

from lakewarden.agent.watching.watcher import reports
from lakewarden.events import (
    MAX_EVENT_BYTES,
    WRITER_EVENT,
    CommitCompleted,
    CommitIntent,
    Marker,
    MarkerCreated,
    WriterHeartbeat,
    decode,
    encode,
)
from lakewarden.events.base import MAX_ORIGIN
from lakewarden.handlers.delta.log import PartitionLayout, foreign_commit
from lakewarden.handlers.explain.life import made_by
from lakewarden.handlers.hudi.watching import Alive, Completed, Observation, Opened, Touched
from lakewarden.handlers.maker import of_hudi, of_iceberg
from lakewarden.handlers.observations import ObservedCommit

TABLE, INSTANT = "s3://lake/trips", "20261122135643314"
EARLY, LATE = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC)


def many(count: int, length: int) -> tuple[Marker, ...]:
    return tuple(
        Marker(partition="p" * length, file_group=f"{n:06}" + "g" * length, operation="merge")
        for n in range(count)
    )


@pytest.mark.parametrize(
    "seen",
    [
        Opened(INSTANT, "file-group"),
        Touched(INSTANT, many(3, 4)),
        Alive(INSTANT, 1_795_000_000.25),
        Completed(INSTANT, many(3, 4)),
    ],
    ids=lambda seen: type(seen).__name__,
)
def test_the_ids_of_a_report_follow_from_what_it_says(seen: Observation) -> None:
    """Another watcher that sees the same later publishes the same ids, and the agent takes them for repeated deliveries."""
    first, second = (list(reports(TABLE, "hudi", seen, at)) for at in (EARLY, LATE))
    (elsewhere,) = reports("s3://lake/orders", "hudi", seen, EARLY)

    assert [each.event_id for each in first] == [each.event_id for each in second]
    assert elsewhere.event_id != first[0].event_id


def test_an_intent_is_observed_and_names_the_instant() -> None:
    (intent,) = reports(TABLE, "hudi", Opened(INSTANT, "deleted-file"), EARLY)

    assert isinstance(intent, CommitIntent)
    assert intent.observed
    assert (intent.transaction, intent.writer) == (f"hudi:{INSTANT}", f"hudi:{INSTANT}")
    assert intent.conflict_rule == "deleted-file"


def test_a_heartbeat_counts_by_the_stores_clock() -> None:
    (earlier,), (later,) = (list(reports(TABLE, "hudi", Alive(INSTANT, sign), EARLY)) for sign in (5.0, 5.25))

    assert isinstance(earlier, WriterHeartbeat)
    assert isinstance(later, WriterHeartbeat)
    assert earlier.seq < later.seq
    assert earlier.event_id != later.event_id


DELTA = PartitionLayout(())
ADDED = [("add", {"path": "f.parquet", "partitionValues": {}})]


def delta_commit(*actions: tuple[str, Any], **info: Any) -> ObservedCommit | None:
    return foreign_commit(7, [("commitInfo", info), *ADDED, *actions], DELTA)


def iceberg_commit(**summary: str) -> ObservedCommit:
    return ObservedCommit(
        "5", many(1, 4), of_iceberg({key.replace("_", "-"): each for key, each in summary.items()})
    )


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (Completed(INSTANT, ()), None),
        (delta_commit(), None),
        (delta_commit(engineInfo="Delta-Lake/4.0.0"), "Delta-Lake/4.0.0"),
        (
            delta_commit(engineInfo="DBR/17", userName="ann@x", job={"jobId": "5", "jobName": "nightly"}),
            "DBR/17, job nightly, user ann@x",
        ),
        (delta_commit(("txn", {"appId": "query-1", "version": 3}), clientVersion="delta-rs.1"), "delta-rs.1, job query-1"),
        (delta_commit(engineInfo=["x"], userName={"a": 1}, job="no object"), "['x'], user {'a': 1}"),
        (delta_commit(engineInfo="\ud800"), "?"),
        (delta_commit(engineInfo="e" * 999), "e" * MAX_ORIGIN),
        (
            iceberg_commit(engine_name="spark", engine_version="4.0.5", app_id="local-17"),
            "spark 4.0.5, Spark application local-17",
        ),
        (
            Completed(INSTANT, (), of_hudi({"_hudi_streaming_sink_checkpoint": '{"trips":"7"}'})),
            "job trips",
        ),
        (Completed(INSTANT, (), of_hudi({"deltastreamer.checkpoint.key": "x"})), "Hudi Streamer"),
        (Completed(INSTANT, (), of_hudi({"_hudi_streaming_sink_checkpoint": "[1]"})), None),
    ],
)  # fmt: skip
def test_a_commit_says_who_made_it_as_far_as_the_table_does(seen: Any, text: str | None) -> None:
    *_, completed = reports(TABLE, "any", seen, EARLY)

    read_again = decode(WRITER_EVENT, encode(completed))
    assert isinstance(read_again, CommitCompleted)
    assert made_by(read_again) == text


@pytest.mark.parametrize(("count", "length"), [(25_000, 4), (3_000, 1_000)])
def test_a_long_footprint_is_split_into_events_that_fit(count: int, length: int) -> None:
    """A commit may have 100,000 file groups. The last part is in the completion itself."""
    found = list(reports(TABLE, "hudi", Completed(INSTANT, many(count, length)), EARLY))

    *before, completed = found
    assert isinstance(completed, CommitCompleted)
    parts = [each.markers for each in before if isinstance(each, MarkerCreated)]
    assert sum((*parts, completed.markers), ()) == many(count, length)
    assert all(len(encode(each)) < MAX_EVENT_BYTES for each in found)
    assert len({each.event_id for each in found}) == len(found)
