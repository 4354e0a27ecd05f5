"""The fenced publish of Paimon's snapshots, on the disk and on a real S3 server, without Spark and Kafka.

Another writer commits while one is between two of its steps, as if that one were suspended there.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
import pytest
from pypaimon.write.file_store_commit import FileStoreCommit

from lakewarden.handlers.paimon.publish import CommitName, NotWritten, PutRefused, Written
from lakewarden.spark_jobs import BaseChanged, GateError, LeaseLost
from lakewarden.spark_jobs.sinks.paimon.commit import (
    FencedCommit,
    NothingPublished,
    PublishedSnapshot,
    is_lost,
    publish,
)
from lakewarden.spark_jobs.sinks.paimon.history import numbers_of
from lakewarden.spark_jobs.sinks.paimon.snapshot_store import HINT, FolderStore, folder_store, snapshot_store
from lakewarden.spark_jobs.sinks.paimon.table import TableAddress, address
from tests.servers.gcs import GcsServer
from tests.servers.proxy import Proxy
from tests.servers.s3 import S3Server
from tests.spark.conftest import create_table, paimon_options, rows_of

pytestmark = [pytest.mark.real]

SCHEMA = pa.schema([("flight", pa.int64()), ("writer", pa.string())])


@dataclass(frozen=True)
class Flights:
    """A table of flights, and commits to it."""

    address: TableAddress

    def stage(self, writer: str, flight: int, identifier: int = 1, table: Any = None) -> list[Any]:
        builder = (table or self.address.open()).new_stream_write_builder()
        builder.commit_user = writer
        write = builder.new_write()
        write.write_arrow(pa.Table.from_pylist([{"flight": flight, "writer": writer}], schema=SCHEMA))
        messages: list[Any] = write.prepare_commit(identifier)
        write.close()
        return messages

    def commit(
        self, writer: str, flight: int, identifier: int = 1, check: Callable[[], None] = lambda: None
    ) -> PublishedSnapshot:
        return self.publish(writer, self.stage(writer, flight, identifier), identifier, check)

    def publish(
        self, writer: str, messages: list[Any], identifier: int = 1, check: Callable[[], None] = lambda: None
    ) -> PublishedSnapshot:
        name = CommitName(writer, identifier, f"{writer}-{identifier}")
        found = publish(self.address.open(), messages, name=name, token=1, check=check)
        assert isinstance(found, PublishedSnapshot)
        return found

    def rows(self) -> list[tuple[int, str]]:
        rows = rows_of(self.address.uri, dict(self.address.options))
        return sorted((row["flight"], row["writer"]) for row in rows)

    @property
    def store(self) -> FolderStore:
        return snapshot_store(self.address.open())

    def expire(self, *numbers: int) -> None:
        for number in numbers:
            self.store.remove(f"snapshot-{number}")

    def hint(self) -> int:
        found = self.store.read(HINT)
        assert found is not None
        return int(found.body)


def new_flights(warehouse: str, options: dict[str, str]) -> Flights:
    return Flights(address(create_table(warehouse, "flights", SCHEMA, store=options), options))


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.matrix)])
def flights(request: pytest.FixtureRequest, tmp_path: Path) -> Flights:
    if request.param == "disk":
        return new_flights(str(tmp_path), {})
    return on_s3(request.getfixturevalue("s3_server"))


def on_s3(server: S3Server) -> Flights:
    return new_flights(f"s3://{server.bucket()}/lake", paimon_options(server))


def once(action: Callable[[], object]) -> Callable[[], None]:
    """Return a function that runs `action` at its first call."""
    left = [action]

    def run() -> None:
        while left:
            left.pop()()

    return run


def around(
    monkeypatch: pytest.MonkeyPatch,
    flights: Flights,
    step: str,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> None:
    """Run actions once around a step of the next publish. Their own publishes run undisturbed."""
    kind = type(flights.store)
    original = getattr(kind, step)

    def acting(*args: Any) -> Any:
        monkeypatch.setattr(kind, step, original)
        before()
        result = original(*args)
        after()
        return result

    monkeypatch.setattr(kind, step, acting)


def test_a_writer_that_was_suspended_before_its_put_is_refused_and_takes_the_next_id(
    flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last check succeeded. pypaimon's own publish would replace the other writer's snapshot here."""
    flights.commit("first", 0)
    around(monkeypatch, flights, "put_if_absent", before=lambda: flights.commit("b", 2))

    published = flights.commit("a", 1)

    assert published.number == 3
    assert flights.rows() == [(0, "first"), (1, "a"), (2, "b")]
    assert flights.hint() == 3


@pytest.mark.wide
def test_a_real_s3_server_refuses_the_put_of_a_suspended_writer(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make test-matrix` runs all the other tests of this module there, too."""
    flights = on_s3(s3_server)
    around(monkeypatch, flights, "put_if_absent", before=lambda: flights.commit("b", 2))

    assert flights.commit("a", 1).number == 2
    assert flights.rows() == [(1, "a"), (2, "b")]


def test_a_put_whose_answer_is_lost_is_read_back(flights: Flights, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(flights.store)
    put, calls = kind.put_if_absent, []

    def unanswered(store: Any, name: str, body: bytes) -> Written | NotWritten | PutRefused:
        calls.append(name)
        put(store, name, body)
        return NotWritten("connection reset")

    monkeypatch.setattr(kind, "put_if_absent", unanswered)

    assert flights.commit("a", 1).number == 1
    assert calls == ["snapshot-1"]
    assert flights.rows() == [(1, "a")]


@pytest.mark.wide
def test_a_put_that_never_arrived_is_repeated(flights: Flights, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(flights.store)
    put, lost = kind.put_if_absent, [True]

    def first_lost(store: Any, name: str, body: bytes) -> Written | NotWritten | PutRefused:
        return NotWritten("connection reset") if lost and lost.pop() else put(store, name, body)

    monkeypatch.setattr(kind, "put_if_absent", first_lost)

    assert flights.commit("a", 1).number == 1
    assert flights.rows() == [(1, "a")]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("refusal", "raised"), [(LeaseLost("expired"), LeaseLost), (BaseChanged("changed"), OSError)]
)
def test_a_refusal_after_a_put_without_an_answer_leaves_the_outcome_unknown(
    flights: Flights, monkeypatch: pytest.MonkeyPatch, refusal: GateError, raised: type[Exception]
) -> None:
    """The put may still arrive. So the error is not one of those that prove that nothing was published."""
    checks: list[int] = []

    def check() -> None:
        checks.append(1)
        if len(checks) > 1:
            raise refusal

    monkeypatch.setattr(type(flights.store), "put_if_absent", lambda *_: NotWritten("timeout"))

    with pytest.raises(raised):
        flights.commit("a", 1, check=check)


@pytest.mark.parametrize("late", ["at once", "before pypaimon tries again"])
def test_a_put_without_an_answer_that_takes_effect_is_never_called_unpublished(
    flights: Flights, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """The next check fails to read the table, so pypaimon tries again, and finds its own snapshot, or builds on it."""
    checks: list[int] = []
    put = type(flights.store).put_if_absent
    held: list[Callable[[], object]] = []

    def check() -> None:
        checks.append(1)
        if len(checks) == 2:
            held[0]()
            raise OSError("the table can't be read")

    def hold(store: FolderStore, *arguments: Any) -> NotWritten:
        held.append(lambda: put(store, *arguments))
        monkeypatch.setattr(type(flights.store), "put_if_absent", put)
        return NotWritten("timeout")

    monkeypatch.setattr(type(flights.store), "put_if_absent", hold)
    if late == "before pypaimon tries again":
        monkeypatch.setattr(FileStoreCommit, "_is_duplicate_commit", lambda *_, **__: False)

    with pytest.raises(OSError, match="a put of the snapshot has no answer"):
        flights.commit("a", 1, check=check)

    assert flights.rows() == [(1, "a")]


@pytest.mark.wide
def test_a_lost_lease_before_the_put_publishes_nothing(flights: Flights) -> None:
    def check() -> None:
        raise LeaseLost("the lease expired")

    with pytest.raises(NothingPublished) as caught:
        flights.commit("a", 1, check=check)

    assert isinstance(caught.value.error, LeaseLost)
    assert numbers_of(flights.store) == set()


@pytest.mark.wide
def test_a_refused_put_publishes_nothing(flights: Flights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(flights.store), "put_if_absent", lambda *_: PutRefused("403 AccessDenied"))

    with pytest.raises(NothingPublished, match=r"nothing was published: 403 AccessDenied; table=.* writer=a"):
        flights.commit("a", 1)


@pytest.mark.wide
@pytest.mark.parametrize("retained", [1, 2], ids=["later snapshots gone", "the next snapshot there"])
def test_a_snapshot_with_an_id_that_expiry_reopened_is_withdrawn(
    flights: Flights, monkeypatch: pytest.MonkeyPatch, retained: int
) -> None:
    """The writer was suspended for longer than the table retains snapshots. Its put succeeds, in a history without readers."""
    flights.commit("first", 0)

    def others() -> None:
        numbers = [flights.commit("b", flight, flight).number for flight in range(1, 4)]
        flights.expire(1, *numbers[: 3 - retained])

    around(monkeypatch, flights, "put_if_absent", before=others)

    with pytest.raises(NothingPublished) as caught:
        flights.commit("a", 9)

    assert isinstance(caught.value.error, BaseChanged)
    assert "expired while the writer was suspended" in str(caught.value.error)
    assert flights.rows() == [(0, "first"), (1, "b"), (2, "b"), (3, "b")]
    assert flights.hint() == 4
    assert 2 not in numbers_of(flights.store)


@pytest.mark.wide
def test_a_first_snapshot_on_a_table_that_others_filled_and_expired_is_withdrawn(
    flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def others() -> None:
        for flight in range(1, 4):
            flights.commit("b", flight, flight)
        flights.expire(1)

    around(monkeypatch, flights, "put_if_absent", before=others)

    with pytest.raises(NothingPublished):
        flights.commit("a", 9)

    assert flights.rows() == [(1, "b"), (2, "b"), (3, "b")]


@pytest.mark.wide
def test_a_commit_that_others_built_on_stays_published_when_its_base_expires(
    flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer was suspended after its put. To withdraw the snapshot would make the batch appear twice."""
    flights.commit("first", 0)

    def others() -> None:
        flights.commit("b", 2)
        flights.expire(1)

    around(monkeypatch, flights, "put_if_absent", after=others)

    assert flights.commit("a", 1).number == 2
    assert flights.rows() == [(0, "first"), (1, "a"), (2, "b")]
    assert flights.hint() == 3, "it never names an older snapshot than before"


class CopyingCommit:
    """The publish of Java Paimon on S3 without a catalog lock: it looks, and later copies without a condition."""

    def __init__(self, inner: Any, between: Callable[[], object]) -> None:
        self._inner, self._between = inner, between

    def commit(self, _base: Any, snapshot: Any, _statistics: Any) -> bool:
        from pypaimon.common.json_util import JSON

        manager = self._inner.snapshot_manager
        self._between()
        manager.file_io.write_file(
            manager.get_snapshot_path(snapshot.id), JSON.to_json(snapshot), overwrite=True
        )
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...


def copy_over(flights: Flights, flight: int, between: Callable[[], object]) -> None:
    """Commit as a foreign writer, which replaces whatever is committed `between` its look and its copy."""
    messages = flights.stage("java", flight)
    builder = flights.address.open().new_stream_write_builder()
    builder.commit_user = "java"
    committer = builder.new_commit()
    inner = committer.file_store_commit.snapshot_commit
    committer.file_store_commit.snapshot_commit = CopyingCommit(inner, between)
    committer.commit(messages, 1, snapshot_properties={})


@pytest.mark.wide
def test_a_snapshot_that_a_foreign_writer_replaced_is_noticed_and_committed_again(
    flights: Flights, caplog: pytest.LogCaptureFixture
) -> None:
    messages = flights.stage("a", 1)
    published: list[PublishedSnapshot] = []
    copy_over(flights, 7, between=lambda: published.append(flights.publish("a", messages)))
    assert flights.rows() == [(7, "java")], "the acknowledged commit is lost"

    with caplog.at_level(logging.ERROR):
        assert is_lost(flights.address.open(), published[0])
    again = flights.publish("a", messages)

    assert "paimon.snapshot-replaced" in caplog.text
    assert "by=java" in caplog.text
    assert flights.rows() == [(1, "a"), (7, "java")]
    assert again.number == 2
    assert not is_lost(flights.address.open(), again)


@pytest.mark.parametrize("by", ["gate", "foreign"])
@pytest.mark.parametrize("recreated", [False, True], ids=["rolled back", "created again"])
def test_a_commit_that_was_rolled_back_is_not_committed_again(
    flights: Flights, caplog: pytest.LogCaptureFixture, *, by: str, recreated: bool
) -> None:
    """Later commits reach its snapshot id again. No writer has replaced it."""
    flights.commit("b", 1)
    rolled_back = flights.commit("a", 2)
    later, until = 2, time.monotonic() + rolled_back.seconds + 2  # object stores count whole seconds
    while time.monotonic() < until:  # what is written sooner may have been a commit that replaces
        flights.commit("c", 9, identifier=later)
        later += 1
    if recreated:
        table = flights.address.open()
        for folder in ("snapshot", "manifest"):
            table.file_io.delete(f"{table.table_path}/{folder}", recursive=True)
        flights.commit("b", 1)
    else:
        flights.address.open().rollback_to(1)
    if by == "gate":
        flights.commit("b", 3, identifier=2)
    else:
        copy_over(flights, 3, between=lambda: None)

    with caplog.at_level(logging.WARNING):
        assert not is_lost(flights.address.open(), rolled_back)

    assert "paimon.rolled-back" in caplog.text
    assert "paimon.snapshot-replaced" not in caplog.text
    assert [flight for flight, _ in flights.rows()] == [1, 3]
    assert snapshot_store(flights.address.open()).version("snapshot-2") != rolled_back.version


@pytest.mark.wide
def test_a_replaced_snapshot_is_not_lost_if_the_next_commit_was_built_on_it(flights: Flights) -> None:
    """To commit it again would make its rows appear twice."""
    published: list[PublishedSnapshot] = []

    def two_commits() -> None:
        published.append(flights.commit("a", 1))
        flights.commit("b", 2)

    copy_over(flights, 7, between=two_commits)

    assert flights.rows() == [(1, "a"), (2, "b")]
    assert not is_lost(flights.address.open(), published[0])


@pytest.mark.wide
def test_a_snapshot_that_is_replaced_during_the_publish_is_committed_again_at_once(
    flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    flights.commit("first", 0)
    kind = type(flights.store)
    hint = kind.replace

    def java_copies(store: Any, name: str, body: bytes, seen: Any) -> None:
        if name == HINT:
            monkeypatch.setattr(kind, "replace", hint)
            foreign = flights.store.read("snapshot-2")
            assert foreign is not None
            replaced = json.loads(foreign.body) | {"commitUser": "java", "properties": None}
            flights.store.remove("snapshot-2")
            flights.store.put_if_absent("snapshot-2", json.dumps(replaced).encode())
        hint(store, name, body, seen)

    monkeypatch.setattr(kind, "replace", java_copies)

    assert flights.commit("a", 1).number == 3


@pytest.mark.wide
def test_a_commit_on_s3_takes_few_requests(s3_server: S3Server) -> None:
    """One file is staged, and published as the sink does: 37 requests. The same by pypaimon alone takes 74."""
    options = paimon_options(s3_server)
    with Proxy(s3_server.endpoint) as proxy:
        through = options | {"s3.endpoint": proxy.endpoint}
        flights = new_flights(f"s3://{s3_server.bucket()}/lake", through)
        table = flights.address.open()
        flights.commit("a", 0, identifier=0)
        counts = []
        for batch in (1, 2):
            before = proxy.requests.total()
            messages = flights.stage("a", batch, identifier=batch, table=table)
            name = CommitName("a", batch, f"a-{batch}")
            publish(table, messages, name=name, token=1, check=lambda: None)
            counts.append(proxy.requests.total() - before)
        assert flights.hint() == 3

    assert max(counts) <= 40, counts


@pytest.mark.wide
def test_pypaimons_own_publish_is_never_asked(flights: Flights, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the one in Python nor a native one, which pypaimon prefers for commits without properties."""
    from pypaimon.snapshot.renaming_snapshot_commit import RenamingSnapshotCommit
    from pypaimon.write.table_commit import TableCommit

    def forbidden(*_: Any) -> None:
        raise AssertionError("pypaimon published by itself")

    monkeypatch.setattr(RenamingSnapshotCommit, "commit", forbidden)
    monkeypatch.setattr(TableCommit, "_prepare_native_commit", forbidden)

    assert flights.commit("a", 1).number == 1


@pytest.mark.wide
def test_an_unexpected_error_of_the_publish_leaves_the_outcome_unknown(
    flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pypaimon.common.options.core_options import CoreOptions

    monkeypatch.setattr(CoreOptions, "commit_max_retries", lambda _self: 0)
    monkeypatch.setattr(FencedCommit, "_answer", lambda *_: 1 / 0)

    with pytest.raises(RuntimeError, match="Commit failed 1 after"):
        flights.commit("a", 1)


@pytest.mark.parametrize(
    "step", ["commit.snapshot_store", "commit.snapshot_manager", "commit.FencedCommit", "history.property_of"]
)
def test_whatever_fails_before_the_first_put_is_known(
    flights: Flights, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """For example, the file of the credentials was half written when the store was opened under the grant."""
    messages = flights.stage("a", 1)
    failure = ValueError("half a file")

    def fails(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setattr(f"lakewarden.spark_jobs.sinks.paimon.{step}", fails)

    with pytest.raises(NothingPublished) as raised:
        flights.publish("a", messages)
    error: BaseException | None = raised.value
    while error is not None and error is not failure:
        error = error.__cause__
    assert error is failure
    monkeypatch.undo()
    assert flights.rows() == []


def test_a_half_written_credentials_file_of_google_is_an_error_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink handles errors of the store; obstore's own have no class in common with them."""
    half = tmp_path / "key.json"
    half.write_text('{"type": "service_acc')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(half))
    table: Any = SimpleNamespace(file_io=SimpleNamespace(properties=SimpleNamespace(to_map=dict)))

    with pytest.raises(OSError, match="Unable to decode service account file"):
        folder_store(table, "gs://bucket/t/snapshot")


@pytest.fixture(params=["disk", "s3", "gcs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FolderStore:
    from obstore.store import GCSStore

    from lakewarden.spark_jobs.sinks.paimon.snapshot_store import ObjectSnapshots

    if request.param == "gcs":
        gcs: GcsServer = request.getfixturevalue("gcs_credentials")
        client = GCSStore(
            gcs.bucket(),
            config={"base_url": gcs.endpoint},
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        return ObjectSnapshots(client, "t/snapshot", compares_etags=False)
    if request.param == "disk":
        return new_flights(str(tmp_path), {}).store
    return on_s3(request.getfixturevalue("s3_server")).store


@pytest.mark.wide
def test_every_store_refuses_a_second_put_and_names_versions(store: FolderStore) -> None:
    assert store.fenced
    assert store.version("snapshot-1") is None
    assert store.read("snapshot-1") is None

    first = store.put_if_absent("snapshot-1", b"a")
    second = store.put_if_absent("snapshot-1", b"b")

    assert isinstance(first, Written)
    assert isinstance(second, NotWritten)
    found = store.read("snapshot-1")
    assert found is not None
    assert (found.body, found.version) == (b"a", first.version)
    assert store.version("snapshot-1") == first.version
    store.remove("snapshot-1")
    store.remove("snapshot-1")
    assert store.read("snapshot-1") is None
    for number in (b"1", b"2"):
        store.replace(HINT, number, store.read(HINT))
        hint = store.read(HINT)
        assert hint is not None
        assert hint.body == number


STOPPING_WRITER = """
import json, os, signal, sys
from tests.spark.sinks.test_paimon_fence import Flights, address
flights = Flights(address(sys.argv[1], json.loads(sys.argv[2])))
kind = type(flights.store)
put, stops = kind.put_if_absent, [1]
def stopping(store, name, body):
    if stops:
        stops.pop()
        os.kill(os.getpid(), signal.SIGSTOP)
    return put(store, name, body)
kind.put_if_absent = stopping
print(flights.commit("a", 1).number)
"""


@pytest.mark.wide
@pytest.mark.matrix
def test_a_process_that_is_stopped_before_its_put_is_refused(flights: Flights) -> None:
    """As the first test of this module, with a real process and SIGSTOP."""
    flights.commit("first", 0)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    arguments = [flights.address.uri, json.dumps(dict(flights.address.options))]
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPING_WRITER, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        flights.commit("b", 2)
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate()
    finally:
        process.kill()

    assert output.split() == ["3"]
    assert flights.rows() == [(0, "first"), (1, "a"), (2, "b")]
