"""The compaction service on real tables, by Java Paimon in a JVM of its own: alone, against writers, and when it loses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pypaimon.manifest.manifest_list_manager import ManifestListManager
from pyspark.sql import SparkSession

from lakewarden.agent.settings import Settings
from lakewarden.events import TABLE_SERVICE_PRIORITY, Marker
from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.handlers.paimon.history import decode
from lakewarden.handlers.paimon.publish import NotWritten, Written
from lakewarden.spark_jobs import BaseChanged, CommitAborted, CommitGate, GateEvent, LeaseLost, PaimonSink
from lakewarden.spark_jobs.sinks.paimon.commit import NothingPublished
from lakewarden.spark_jobs.sinks.paimon.compaction import CompactionCommit, PaimonCompactor
from lakewarden.spark_jobs.sinks.paimon.history import COMMITTED
from lakewarden.spark_jobs.sinks.paimon.java_table import JavaTable
from lakewarden.spark_jobs.sinks.paimon.snapshot_store import LinkedSnapshots
from lakewarden.spark_jobs.sinks.paimon.table import address
from tests.spark.conftest import MakeTable, commit_alone, data_files_of, index_files_of, rows_of, snapshots_of
from tests.spark.fake_agent import At, FakeAgent, aborted, grant_everything
from tests.spark.harness import Harness
from tests.spark.java_paimon import JavaPaimon
from tests.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.wide, pytest.mark.timeout(900)]

FLIGHTS = pa.schema([("month", pa.int32()), ("flight", pa.int64())])
SUMS = pa.schema([pa.field("flight", pa.int64(), nullable=False), pa.field("delay", pa.int64())])
SUM = {
    "bucket": "2",
    "write-only": "true",
    "merge-engine": "aggregation",
    "fields.delay.aggregate-function": "sum",
}

KEYED: dict[str, Any] = {"partition_keys": (), "schema": SUMS, "primary_keys": ("flight",)}
BY_MONTH: dict[str, Any] = {"partition_keys": ("month",), "schema": FLIGHTS}
WHOLE: dict[str, Any] = {"partition_keys": (), "schema": FLIGHTS}

Rows = list[tuple[Any, ...]]

SIX = [(1, number) for number in range(6)]

MAX_ROUNDS = 20


def commit_rows(table: str, schema: pa.Schema, rows: Rows) -> None:
    commit_alone(table, [dict(zip(schema.names, row, strict=True)) for row in rows])


def commit_one_by_one(table: str, *rows: tuple[int, int]) -> Rows:
    """Commit each row of `FLIGHTS` by itself. Return the rows."""
    for row in rows:
        commit_rows(table, FLIGHTS, [row])
    return list(rows)


def files_of(table: str) -> set[str]:
    """Return the names of the files of the newest snapshot."""
    splits = address(table).open().new_read_builder().new_scan().plan_for_write().splits()
    return {file.file_name for split in splits for file in split.files}


def manifests_of(table: str) -> int:
    opened = address(table).open()
    snapshot = opened.snapshot_manager().get_latest_snapshot()
    return len(ManifestListManager(opened).read_all(snapshot))


def values_of(table: str) -> Rows:
    return sorted((tuple(row.values()) for row in rows_of(table)), key=repr)


def assert_readers_see(java: JavaPaimon, table: str, expected: Rows) -> None:
    assert values_of(table) == java.rows(table) == sorted(expected, key=repr)


def compactor_of(java: JavaPaimon, gate: CommitGate, table: str, **options: Any) -> PaimonCompactor:
    return PaimonCompactor(java.gateway, gate, table, **options)


def test_an_append_table_of_sixty_commits(
    harness: Harness, make_table: MakeTable, java: JavaPaimon, agent: FakeAgent
) -> None:
    table = make_table(**BY_MONTH, **{"write-only": "true"})
    rows = commit_one_by_one(table, *((number % 2, number) for number in range(60)))
    before = files_of(table)
    assert (len(before), manifests_of(table)) == (60, 60)
    compactor = compactor_of(java, harness.gate(), table)

    assert list(compactor.run_round()) == [CompactionCommit(61, 60, 2)]

    assert (len(files_of(table)), files_of(table) & before, manifests_of(table) <= 2) == (2, set(), True)
    assert_readers_see(java, table, rows)
    (intent,) = agent.wait_for("commit-intent")
    assert (intent.priority, intent.conflict_rule) == (TABLE_SERVICE_PRIORITY, "deleted-file")
    assert intent.admission == "queued", "it is the compactor's first transaction"
    assert {marker.file_group for marker in intent.scope} == before
    assert {(marker.partition, marker.operation) for marker in intent.scope} == {
        (f"month={month}", "delete") for month in (0, 1)
    }
    newest = snapshots_of(table)[-1]
    assert (newest.commit_kind, newest.properties[TRANSACTION]) == ("COMPACT", intent.transaction)
    (completed,) = agent.wait_for("commit-completed")
    assert completed.version == "61"

    assert list(compactor.run_round()) == []
    assert len(agent.wait_for("commit-intent")) == 1


def test_manifests_are_merged_where_no_file_is_compacted(
    harness: Harness, make_table: MakeTable, java: JavaPaimon
) -> None:
    harness.agent(grant_everything)
    options = {"write-only": "true", "manifest.merge-min-count": "10"}
    table = make_table(**BY_MONTH, **options)
    rows = commit_one_by_one(table, *((number, number) for number in range(12)))
    before = files_of(table)

    assert list(compactor_of(java, harness.gate(), table).run_round()) == [CompactionCommit(13, 0, 0)]

    assert (manifests_of(table), files_of(table)) == (1, before)
    assert_readers_see(java, table, rows)


def test_a_lost_conflict_removes_its_files_and_the_next_transaction_is_queued_with_less(
    harness: Harness, make_table: MakeTable, java: JavaPaimon
) -> None:
    partition = Marker(partition="month=1", file_group="*", operation="merge")
    agent = harness.agent(At("commit-requested", lambda event: [aborted(event, partition)]))
    table = make_table(**BY_MONTH)
    rows = commit_one_by_one(table, *((number % 2, number) for number in range(12)))
    before = files_of(table)
    compactor = compactor_of(java, harness.gate(), table)

    assert list(compactor.run_round()) == []
    assert compactor.lost == 1
    assert data_files_of(table) == files_of(table) == before

    assert [commit.files_before for commit in compactor.run_round()] == [6, 6]
    assert compactor.lost == 0
    first, second, third = agent.wait_for("commit-intent")
    assert [each.admission for each in (first, second, third)] == ["queued", "queued", "optimistic"]
    assert (len(first.scope), len(second.scope)) == (12, 6)
    assert_readers_see(java, table, rows)


def test_a_lost_compaction_removes_no_file_that_it_only_moves_to_another_level(
    harness: Harness, make_table: MakeTable, java: JavaPaimon
) -> None:
    """Java's own `abort` removes it, and with it rows of the table."""
    harness.agent(At("commit-requested", lambda event: [aborted(event)]))
    table = make_table(**KEYED, **SUM)
    rows: Rows = [(number, 1) for number in range(8)]
    commit_rows(table, SUMS, rows)
    compactor = compactor_of(java, harness.gate(), table, full=True)

    assert list(compactor.run_round()) == []

    assert compactor.lost == 1
    assert_readers_see(java, table, rows)


def test_files_that_a_writer_without_the_gate_has_rewritten(
    harness: Harness, make_table: MakeTable, java: JavaPaimon
) -> None:
    """Java finds them under the grant."""
    table = make_table(**WHOLE)
    foreign: list[str] = []

    def overtaken(_event: object) -> None:
        commit_alone(table, [{"month": 1, "flight": 99}], overwrite={})
        foreign.extend(files_of(table))

    agent = harness.agent(At("commit-requested", overtaken))
    commit_one_by_one(table, *SIX)
    before = files_of(table)
    compactor = compactor_of(java, harness.gate(), table)

    assert list(compactor.run_round()) == []

    assert compactor.lost == 1
    assert files_of(table) == set(foreign)
    assert data_files_of(table) == before | set(foreign)
    assert_readers_see(java, table, [(1, 99)])
    (abandoned,) = agent.wait_for("transaction-abandoned")
    assert "another commit rewrote them" in abandoned.reason


def computed(java: JavaPaimon, table: str, spill: Path) -> tuple[JavaTable, list[Any]]:
    """Commit six rows, and compute their compaction. Return the table and the messages to commit."""
    commit_one_by_one(table, *SIX)
    return compacted(java, table, spill)


def compacted(java: JavaPaimon, table: str, spill: Path) -> tuple[JavaTable, list[Any]]:
    """Compute a compaction. Return the table and the messages to commit."""
    opened = JavaTable(java.gateway, address(table), user="compactor", spill=str(spill))
    messages: list[Any] = []
    opened.compute(opened.plan(full=False), messages, lambda: None, full=False)
    return opened, messages


def test_a_snapshot_id_that_is_taken_and_a_lease_that_is_lost(
    make_table: MakeTable, java: JavaPaimon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under one grant, the compaction takes the next id. With a lost lease it publishes nothing."""
    put, foreign = LinkedSnapshots.put_if_absent, [(1, 100)]

    def commit_first(self: LinkedSnapshots, name: str, body: bytes) -> Any:
        if foreign:
            commit_rows(table, FLIGHTS, [foreign.pop()])
        return put(self, name, body)

    def lease_lost() -> None:
        raise LeaseLost("the lease expired")

    table = make_table(**WHOLE)
    opened, messages = computed(java, table, tmp_path)

    with pytest.raises(NothingPublished) as refused:
        opened.commit(messages, transaction="t", token=1, check=lease_lost)
    assert isinstance(refused.value.error, LeaseLost)
    assert len(snapshots_of(table)) == 6

    monkeypatch.setattr(LinkedSnapshots, "put_if_absent", commit_first)
    published = opened.commit(messages, transaction="t", token=1, check=lambda: None)
    assert published is not None
    assert published.number == 8
    assert_readers_see(java, table, [*SIX, (1, 100)])
    assert len(files_of(table)) == 2


def test_a_put_without_an_answer_is_read_back(
    make_table: MakeTable, java: JavaPaimon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = LinkedSnapshots.put_if_absent

    def put_without_answer(self: LinkedSnapshots, name: str, body: bytes) -> Any:
        assert isinstance(put(self, name, body), Written)
        return NotWritten("no answer")

    table = make_table(**WHOLE)
    opened, messages = computed(java, table, tmp_path)
    monkeypatch.setattr(LinkedSnapshots, "put_if_absent", put_without_answer)

    published = opened.commit(messages, transaction="t", token=1, check=lambda: None)

    assert published is not None
    assert published.number == 7
    assert_readers_see(java, table, SIX)


def with_vectors(make_table: MakeTable, java: JavaPaimon) -> tuple[str, Rows]:
    """Create a table of eight files with two rows each, three of which Java deletes. Return the table and the other rows."""
    table = make_table(**WHOLE, **{"deletion-vectors.enabled": "true"})
    for number in range(8):
        commit_rows(table, FLIGHTS, [(1, number), (2, number)])
    first, second, *_ = sorted(files_of(table))
    java.delete_rows(table, {first: [0], second: [0, 1]})
    left = java.rows(table)
    assert len(left) == 13
    assert_readers_see(java, table, left)
    return table, left


def test_rows_that_deletion_vectors_delete_stay_deleted(
    make_table: MakeTable, java: JavaPaimon, tmp_path: Path
) -> None:
    table, left = with_vectors(make_table, java)
    opened, messages = compacted(java, table, tmp_path)

    assert opened.commit(messages, transaction="t", token=1, check=lambda: None) is not None

    assert_readers_see(java, table, left)
    assert len(files_of(table)) == 2, "Java groups files by the index file that has their vectors"


def test_a_row_that_is_deleted_while_a_compaction_computes_stays_deleted(
    make_table: MakeTable, java: JavaPaimon, tmp_path: Path
) -> None:
    """By a writer that bypasses the gate. The compaction has read the row, so it loses, and leaves no file."""
    table, left = with_vectors(make_table, java)
    opened, messages = compacted(java, table, tmp_path)
    replaced = {
        str(file.fileName()) for message in messages for file in message.compactIncrement().compactBefore()
    }
    untouched = min(replaced - set(sorted(files_of(table))[:2]))
    java.delete_rows(table, {untouched: [1]})
    before = index_files_of(table)
    now = java.rows(table)
    assert len(now) == len(left) - 1

    with pytest.raises(NothingPublished) as refused:
        opened.commit(messages, transaction="t", token=1, check=lambda: None)
    assert isinstance(refused.value.error, BaseChanged)
    opened.remove(messages)

    assert_readers_see(java, table, now)
    assert data_files_of(table) == files_of(table)
    assert index_files_of(table) <= before


def test_a_compaction_of_dynamic_buckets_leaves_each_key_in_its_bucket(
    harness: Harness, make_table: MakeTable, java: JavaPaimon
) -> None:
    harness.agent(grant_everything)
    options = SUM | {"bucket": "-1", "dynamic-bucket.target-row-num": "2"}
    table = make_table(**KEYED, **options)
    for _ in range(3):
        commit_rows(table, SUMS, [(key, 1) for key in range(6)])

    compactor = compactor_of(java, harness.gate(), table, full=True)
    assert list(compactor.run_round()) == [CompactionCommit(4, 9, 3)]

    commit_rows(table, SUMS, [(key, 1) for key in range(8)])
    assert_readers_see(java, table, [(key, 4 if key < 6 else 1) for key in range(8)])


def test_two_writers_sum_while_a_compactor_runs(
    gate: CommitGate,
    another_gate: Callable[..., CommitGate],
    make_table: MakeTable,
    java: JavaPaimon,
    spark: SparkSession,
) -> None:
    """No batch is tried twice, no row is lost, and the compactor has its commits while they write."""
    table = make_table(**KEYED, **{"num-sorted-run.compaction-trigger": "2"} | SUM)
    batches, keys = 3, 10

    def drive(writer: str) -> None:
        write = another_gate().foreach_batch(PaimonSink(table, mode="upsert"), writer=writer, max_attempts=1)
        rows = [(key, 1) for key in range(keys)]
        for batch in range(batches):
            write(spark.createDataFrame(rows, "flight long, delay long"), batch)

    commits: list[CompactionCommit] = []
    rounds = 0
    compactor = compactor_of(java, gate, table)
    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(drive, writer) for writer in ("a", "b")]
        while not all(writer.done() for writer in writers):
            commits.extend(compactor.run_round())
            rounds += 1
    for writer in writers:
        writer.result()
    commits.extend(compactor.run_round())

    print(f"{rounds} rounds, commits: {commits}")
    assert commits
    assert compactor.lost == 0
    assert_readers_see(java, table, [(key, 2 * batches) for key in range(keys)])
    assert len(files_of(table)) < 2 * 2 * batches
    for snapshot in snapshots_of(table)[-2:]:  # the compactor's carry it on, too
        assert sorted(decode(snapshot.properties[COMMITTED]) or {}) == ["a", "b"]


def test_writers_that_always_compute_on_its_files_delay_it_by_a_bounded_number_of_rounds(
    gate: CommitGate, another_gate: Callable[..., CommitGate], make_table: MakeTable, java: JavaPaimon
) -> None:
    """Two writers with optimistic admission take turns, so that one of them has always touched the whole partition.

    Three of them may overtake the compaction. Then it waits for those that compute, and stops the later ones.
    """
    table = make_table(**BY_MONTH, **{"write-only": "true"})
    rows = commit_one_by_one(table, *SIX)
    stop, touched = threading.Event(), [threading.Event(), threading.Event()]
    ended: list[int] = []
    aborts: list[int] = []
    lost: list[int] = []

    def write(me: int) -> None:
        while not stop.is_set():
            try:
                with gate.transaction(table=table, writer=f"w{me}", conflict_rule="deleted-file") as txn:
                    txn.touch("month=1", "*", "merge")
                    touched[me].set()
                    touched[1 - me].clear()
                    while not stop.is_set() and not touched[1 - me].wait(0.05):
                        txn.check()
                ended.append(me)
            except CommitAborted:
                aborts.append(len(ended))
                touched[me].set()

    commits: list[CompactionCommit] = []
    compactor = compactor_of(java, another_gate(queue_timeout_seconds=3.0), table)
    threads = [threading.Thread(target=write, args=(me,)) for me in (0, 1)]
    threads[0].start()
    assert touched[0].wait(120)
    threads[1].start()
    try:
        while not commits and len(lost) < MAX_ROUNDS:
            commits.extend(compactor.run_round())
            lost.append(compactor.lost)
    finally:
        stop.set()
        for thread in threads:
            thread.join()

    print(f"lost before each round's end: {lost}, writers ended before each abort: {aborts}")
    assert [commit.files_before for commit in commits] == [6]
    assert len(lost) <= 8
    assert all(each >= 3 for each in aborts)
    assert_readers_see(java, table, rows)


def test_a_protected_compaction_aborts_no_writer_that_computes(
    another_gate: Callable[..., CommitGate], make_table: MakeTable, java: JavaPaimon
) -> None:
    """It waits for the one that computes, and stops the one that begins meanwhile, at its markers. Even after a restart."""
    table = make_table(**BY_MONTH, **{"write-only": "true"})
    rows = commit_one_by_one(table, *SIX)
    admissions: list[str] = []

    def note(step: GateEvent) -> None:
        if (step.what, step.writer) == ("intent", "compactor"):
            admissions.append(step.detail["admission"])

    commits: list[CompactionCommit] = []
    gate = another_gate(observer=note)
    impatient = another_gate(observer=note, queue_timeout_seconds=0.1)
    loser, compactor = compactor_of(java, impatient, table), compactor_of(java, gate, table)
    with gate.transaction(table=table, writer="computes", conflict_rule="deleted-file") as computing:
        computing.touch("month=1", "*", "merge")
        for _ in range(Settings.max_losses):
            assert Context().run(lambda: list(loser.run_round())) == []  # as in another driver
        assert (loser.lost, admissions) == (
            2 * Settings.max_losses,
            ["queued", "optimistic"] * Settings.max_losses,
        )
        admissions.clear()
        protected = threading.Thread(target=lambda: commits.extend(compactor.run_round()))
        protected.start()
        wait_until(lambda: len(admissions) == 1)
        with (
            pytest.raises(CommitAborted),
            gate.transaction(table=table, writer="begins", conflict_rule="deleted-file") as beginning,
        ):
            beginning.touch("month=1", "*", "merge")
            wait_until(lambda: beginning.aborted)
        computing.check()
        assert commits == []
        with computing.commit() as grant:
            grant.version = "1"
    protected.join()

    assert admissions == ["queued"]
    assert [commit.files_before for commit in commits] == [6]
    assert_readers_see(java, table, rows)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"bucket": "-2"}, "rescale job"),
        ({"bucket": "1", "deletion-vectors.enabled": "true"}, "readers see no row before it is compacted"),
        ({"bucket": "1", "merge-engine": "first-row"}, "readers see no row before it is compacted"),
    ],
    ids=["postponed", "deletion vectors", "first-row"],
)
def test_tables_that_cannot_be_compacted(
    options: dict[str, str], why: str, harness: Harness, make_table: MakeTable, java: JavaPaimon
) -> None:
    gate = harness.gate()
    table = make_table(**KEYED, **options, **{"write-only": "true"})
    commit_rows(table, SUMS, [(1, 1)])

    with pytest.raises(ValueError, match=why):
        list(compactor_of(java, gate, table).run_round())
    with pytest.raises(ValueError, match="No schema found at path"):
        list(compactor_of(java, gate, f"{table}-missing").run_round())
