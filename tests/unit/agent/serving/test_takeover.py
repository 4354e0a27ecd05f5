"""One partition of an agent in memory: Kafka, which tests cut, truncate and create again, and the agents that take it over."""

import uuid
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
import pytest
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord, OffsetAndMetadata
from structlog.testing import capture_logs

from lakewarden.agent import clock
from lakewarden.agent.publisher import Outgoing
from lakewarden.agent.serving import takeover
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.serving.takeover import find_ledger_gaps, find_starts
from lakewarden.events import (
    DECISION_RECORD,
    LEDGER_EVENT,
    Abort,
    Admitted,
    AlreadyCommitted,
    BatchCommitted,
    CommitCompleted,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    DecisionEvent,
    LedgerCorrected,
    Marker,
    MarkerCreated,
    WriterEvent,
    WriterHeartbeat,
    decode,
    encode,
)
from lakewarden.handlers.table.machine import LockConfirmed
from lakewarden.handlers.table.state import LockView
from tests.unit.agent.serving.owner_in_memory import (
    SETTINGS,
    TABLE,
    TOPICS,
    SetClock,
    consumed,
    offline_owner,
)


@dataclass
class Topic:
    """One partition of a topic."""

    name: str
    beginning: int = 0
    records: list[ConsumerRecord] = field(default_factory=list)
    compacted: int = 0
    """Records that compaction has removed."""

    @property
    def end(self) -> int:
        return self.beginning + len(self.records) + self.compacted

    def append(self, key: bytes, value: bytes) -> int:
        self.records.append(consumed(value, self.end, topic=self.name, key=key))
        return int(self.records[-1].offset)

    def cut(self, beginning: int) -> None:
        """Retention removes what is older."""
        del self.records[: beginning - self.beginning]
        self.beginning = beginning

    def truncate(self, end: int) -> None:
        """A broker that lacked the newest records became the leader."""
        del self.records[end - self.beginning :]

    def create_again(self) -> None:
        self.beginning = 0
        self.records.clear()

    def write_over(self) -> None:
        """The end was lost, and other records have reached the same offsets."""
        self.truncate(self.end - 1)
        self.append(b"k", b"{}")

    def outgrow(self) -> None:
        """Created again, with more records than before."""
        end = self.end
        self.create_again()
        for _ in range(end + 3):
            self.append(b"k", b"{}")


class Kafka:
    """The topics of one partition and the group's checkpoint. It takes the place of publisher, consumer and reader."""

    def __init__(self) -> None:
        self.topics = {each.name: Topic(each.name) for each in TOPICS.settings(1)}
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.moved_to: list[int] = []

    def put(self, record: Outgoing) -> None:
        offset = self.topics[record.topic].append(record.key, record.value)
        if record.on_offset is not None:
            record.on_offset(offset)

    async def flush(self) -> None:
        """All is acknowledged."""

    def partitions_for_topic(self, _: str) -> set[int]:
        return {0}

    def seek(self, _: TopicPartition, offset: int) -> None:
        self.moved_to.append(offset)


@dataclass
class KafkaLog:
    """In place of `Log`."""

    kafka: Kafka
    settings = SETTINGS
    topics = TOPICS

    async def beginnings(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: self.kafka.topics[each.topic].beginning for each in partitions}

    async def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: self.kafka.topics[each.topic].end for each in partitions}

    async def committed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return self.kafka.committed

    async def read(
        self, starts: dict[TopicPartition, int | None], stops: dict[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        return {
            each: [
                record
                for record in self.kafka.topics[each.topic].records
                if (start or 0) <= record.offset < (stops or {}).get(each, 1_000_000)
            ]
            for each, start in starts.items()
        }

    async def batches(
        self, starts: dict[TopicPartition, int | None], *, max_records: int, complete: bool
    ) -> AsyncGenerator[tuple[TopicPartition, list[ConsumerRecord]]]:
        assert complete
        for partition, records in (await self.read(starts)).items():
            for start in range(0, len(records), max_records):
                yield partition, records[start : start + max_records]


@dataclass
class Scene:
    """Writers and the agents that take the partition over, one after the other."""

    kafka: Kafka
    clock: list[float]

    def send(self, kind: Callable[..., WriterEvent | LedgerCorrected], transaction: str, **more: Any) -> None:
        event = kind(
            event_id=uuid.uuid4().hex,
            table=TABLE,
            transaction=transaction,
            at=datetime.now(UTC),
            **{"writer": f"w-{transaction}", **more},
        )
        self.kafka.topics[TOPICS.writers].append(TABLE.encode(), encode(event))

    async def take_over(self) -> PartitionOwner:
        """A new agent takes the partition over, and consumes to the end."""
        kafka: Any = self.kafka
        owner = offline_owner(kafka)
        log: Any = KafkaLog(kafka)
        await takeover.load([owner], log, kafka, kafka, 1)
        self.consume(owner)
        assert owner.phase == "live"
        return owner

    def consume(self, owner: PartitionOwner) -> None:
        records = [
            each for each in self.kafka.topics[TOPICS.writers].records if each.offset >= owner.position
        ]
        owner.consume(records, self.clock[0])
        owner.finish_replay(owner.position)

    def lock(self, owner: PartitionOwner) -> None:
        now = self.clock[0]
        owner.tables.step(TABLE, LockConfirmed(now, owner.position - 1, LockView("owner", now + 29.0, 0.0)))

    def commit(self, owner: PartitionOwner) -> None:
        checkpoint = owner.checkpoint()
        assert checkpoint is not None
        self.kafka.committed[TopicPartition(TOPICS.writers, 0)] = OffsetAndMetadata(
            checkpoint.offset, checkpoint.metadata(1)
        )

    def decisions(self, kind: type, after: int = 0) -> list[str]:
        """The transactions of which a decision of this kind is in the log, from an offset on."""
        return [
            found.transaction
            for each in self.kafka.topics[TOPICS.decisions].records
            if each.offset >= after
            and isinstance(found := decode(DECISION_RECORD, each.value), kind)
            and isinstance(found, DecisionEvent)
        ]


async def noticed(scene: Scene) -> tuple[PartitionOwner, list[dict[str, Any]]]:
    """A new agent takes the partition over. Returns its owner and what it logs of an incomplete log; it logs no other error."""
    with capture_logs() as lines:
        owner = await scene.take_over()
    found = [dict(each) for each in lines if each["log_level"] == "error"]
    assert {each["event"] for each in found} <= {"log.incomplete"}
    return owner, found


def problems(lines: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each["topic"], each["problem"]) for each in lines]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene(Kafka(), [1_000.0])
    monkeypatch.setattr(clock, "time", SetClock(lambda: made.clock[0]))
    return made


def marker() -> tuple[Marker, ...]:
    return (Marker(partition="p", file_group="f", operation="merge"),)


def grants(scene: Scene) -> list[CommitGranted]:
    """All in the log, of whatever term."""
    return [
        each
        for record in scene.kafka.topics[TOPICS.decisions].records
        if isinstance(each := decode(DECISION_RECORD, record.value), CommitGranted)
    ]


def only_grant(scene: Scene) -> str:
    """The grant in the log, which has one."""
    [granted] = grants(scene)
    return granted.grant


async def with_history(scene: Scene) -> PartitionOwner:
    """T1 and T3 are open, T2 has committed beside them. The checkpoint is at T1's intent."""
    owner = await scene.take_over()
    scene.send(CommitIntent, "T1")
    scene.send(CommitIntent, "T2", batch_id=1)
    scene.send(MarkerCreated, "T2", markers=marker())
    scene.send(CommitRequested, "T2", seq=1)
    scene.consume(owner)
    scene.lock(owner)
    scene.send(CommitIntent, "T3")
    scene.send(CommitCompleted, "T2", grant=only_grant(scene), version="1")
    scene.consume(owner)
    assert scene.decisions(Admitted) == ["T1", "T2", "T3"]
    scene.commit(owner)
    return owner


# A take-over of a partition whose log in Kafka was cut, truncated or created again. Kafka is in memory.


async def test_a_complete_log_is_replayed_without_an_error(scene: Scene) -> None:
    await with_history(scene)
    end = scene.kafka.topics[TOPICS.decisions].end

    owner, lines = await noticed(scene)

    assert lines == []
    assert scene.decisions(Abort, end) == []
    assert sorted(each.id for each in owner.tables.states[TABLE].open()) == ["T1", "T3"]
    assert scene.kafka.moved_to == []


def lose_beginning(scene: Scene) -> None:
    decisions = scene.kafka.topics[TOPICS.decisions]
    decisions.cut(decisions.end)


Lose: TypeAlias = Callable[[Topic], None]
LOSSES: list[tuple[Lose, str, str]] = [
    (lambda topic: topic.cut(topic.end), TOPICS.decisions, "beginning-lost"),
    (lambda topic: topic.cut(4), TOPICS.writers, "beginning-lost"),
    (lambda topic: topic.truncate(3), TOPICS.writers, "end-lost"),
    (lambda topic: topic.truncate(2), TOPICS.decisions, "end-lost"),
    *((Topic.create_again, each, "end-lost") for each in (TOPICS.writers, TOPICS.decisions)),
    *((Topic.write_over, each, "replaced") for each in (TOPICS.writers, TOPICS.decisions)),
]


@pytest.mark.parametrize(("lose", "topic", "problem"), LOSSES)
async def test_a_loss_is_logged_and_no_transaction_of_before_is_granted_after_it(
    scene: Scene, lose: Lose, topic: str, problem: str
) -> None:
    """Before, T1 and T3 were granted without a look at what T2 had committed, or the agent read nothing any more."""
    await with_history(scene)
    lose(scene.kafka.topics[topic])
    end = scene.kafka.topics[TOPICS.decisions].end

    owner, lines = await noticed(scene)
    for transaction in ("T1", "T3"):
        scene.send(MarkerCreated, transaction, markers=marker())
        scene.send(CommitRequested, transaction, seq=1)
    scene.send(CommitIntent, "N")
    scene.consume(owner)
    before_the_lock = scene.decisions(Admitted, end)
    scene.lock(owner)

    [line] = lines
    assert (line["topic"], line["problem"], line["partition"]) == (topic, problem, 0)
    assert scene.decisions(CommitGranted, end) == []
    assert {"T1", "T3"} <= set(scene.decisions(Abort, end)) <= {"T1", "T2", "T3"}
    assert before_the_lock == []
    assert scene.decisions(Admitted, end) == ["N"]


async def test_an_owner_that_is_replaced_at_once_leaves_the_gap_to_the_next(scene: Scene) -> None:
    """The first checkpoint after a loss would hide it, and a grant that the log lost may still run."""
    await with_history(scene)
    lose_beginning(scene)

    first = await scene.take_over()
    assert first.checkpoint() is None
    _, lines = await noticed(scene)

    assert [each["problem"] for each in lines] == ["beginning-lost"]


async def test_after_a_lock_lease_the_loss_is_over_and_the_checkpoints_still_name_it(scene: Scene) -> None:
    await with_history(scene)
    lose_beginning(scene)
    owner = await scene.take_over()
    scene.clock[0] += SETTINGS.validity_seconds
    scene.commit(owner)
    end = scene.kafka.topics[TOPICS.decisions].end

    again, lines = await noticed(scene)

    assert lines == []
    assert scene.decisions(Abort, end) == []
    checkpoint = again.checkpoint()
    assert checkpoint is not None
    assert [each.gap.problem for each in checkpoint.gaps] == ["beginning-lost"]


async def test_a_grant_whose_cause_is_lost_stays_before_the_completion_that_took_its_offset(
    scene: Scene,
) -> None:
    """T1's outcome is unknown, so checkpoints stay at its intent. Seed 2019639 of the whole."""
    owner = await scene.take_over()
    for each in ("T1", "T2"):
        scene.send(CommitIntent, each, batch_id=1)
    scene.send(CommitRequested, "T1", seq=1)
    scene.consume(owner)
    scene.lock(owner)
    scene.send(CommitCompleted, "T1", grant=only_grant(scene), version="1")
    for seq in range(5):
        scene.send(WriterHeartbeat, "T2", seq=seq)
    scene.send(CommitRequested, "T2", seq=5)
    scene.consume(owner)
    scene.lock(owner)
    scene.commit(owner)
    *_, granted = grants(scene)
    assert granted.transaction == "T2"
    scene.kafka.topics[TOPICS.writers].truncate(3)
    owner = await scene.take_over()
    scene.send(CommitCompleted, "T2", grant=granted.grant, version="2")
    scene.clock[0] += SETTINGS.validity_seconds
    scene.consume(owner)
    scene.commit(owner)
    end = scene.kafka.topics[TOPICS.decisions].end

    again = await scene.take_over()

    assert scene.kafka.committed[TopicPartition(TOPICS.writers, 0)].offset == 0
    assert again.tables.states[TABLE].open() == []
    assert scene.decisions(Abort, end) == []


async def test_an_event_that_only_a_decision_remembers_is_missed(scene: Scene) -> None:
    """The last events before a crash are in no checkpoint yet, and an unclean leader election removes them."""
    owner = await with_history(scene)
    scene.send(MarkerCreated, "T1", markers=())
    scene.send(CommitRequested, "T3", seq=1)
    scene.consume(owner)
    assert scene.decisions(CommitGranted) == ["T2", "T3"]
    scene.kafka.topics[TOPICS.writers].truncate(6)

    _, [line] = await noticed(scene)

    assert (line["problem"], line["expected"], line["found"]) == ("end-lost", 8, 6)


async def test_decisions_that_are_truncated_while_the_owner_runs_end_its_session(scene: Scene) -> None:
    """Kafka acknowledges the next decision at an offset that an earlier decision had."""
    owner = await with_history(scene)
    scene.kafka.topics[TOPICS.decisions].truncate(1)

    scene.send(CommitIntent, "N")
    scene.consume(owner)

    assert owner.seen.cut is not None
    assert TOPICS.decisions in owner.seen.cut


async def test_decisions_that_were_lost_before_the_last_checkpoint_are_missed_by_the_next_owner(
    scene: Scene,
) -> None:
    """Seed 39 of the simulation: the session that noticed it ended with a checkpoint that named the decision written since."""
    owner = await with_history(scene)
    scene.kafka.topics[TOPICS.decisions].truncate(1)
    for transaction in ("A", "B", "C", "D", "E", "F"):
        scene.send(CommitIntent, transaction)
    scene.consume(owner)
    scene.commit(owner)
    end = scene.kafka.topics[TOPICS.decisions].end

    _, lines = await noticed(scene)

    assert [each["problem"] for each in lines] == ["replaced"]
    assert {"T1", "T3"} <= set(scene.decisions(Abort, end))


async def test_a_long_ledger_leaves_the_event_loop_to_other_tasks(scene: Scene) -> None:
    """Meanwhile the locks of other partitions are renewed, and heartbeats to the group are sent."""
    await scene.take_over()
    ledger = scene.kafka.topics[TOPICS.ledger]
    entry = BatchCommitted(
        event_id="e", table=TABLE, transaction="T", writer="w", at=datetime.now(UTC), batch_id=1
    )
    for _ in range(10 * takeover.RECORDS_AT_ONCE):
        ledger.append(b"k", encode(entry))
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take_turns)
        owner = await scene.take_over()
        tasks.cancel_scope.cancel()

    assert turns >= 10
    assert owner.tables.ledger.tables[TABLE].batches["w"].batch_id == 1


# The ledger has lost entries: what a take-over notices, and what a process that knew them records again. Kafka is in memory.

LEDGER = TOPICS.ledger


async def after_a_commit(scene: Scene) -> PartitionOwner:
    """Batch 7 of a writer is committed, in the ledger, and before the checkpoint. Nothing is open."""
    owner = await scene.take_over()
    scene.send(CommitIntent, "T", batch_id=7)
    scene.send(CommitRequested, "T", seq=1)
    scene.consume(owner)
    scene.lock(owner)
    scene.send(CommitCompleted, "T", grant=only_grant(scene), version="1")
    scene.consume(owner)
    scene.commit(owner)
    assert in_ledger(scene) == {"w-T": 7}
    return owner


def in_ledger(scene: Scene) -> dict[str, int | None]:
    """The last batches that the topic has, by writer."""
    return {
        found.writer: found.batch_id
        for each in scene.kafka.topics[LEDGER].records
        if isinstance(found := decode(LEDGER_EVENT, each.value), BatchCommitted)
    }


LEDGER_LOSSES: list[tuple[Lose, str]] = [
    (Topic.create_again, "end-lost"),
    (Topic.outgrow, "replaced"),
    (lambda topic: topic.truncate(1), "end-lost"),
    (lambda topic: topic.cut(topic.end), "beginning-lost"),
]


@pytest.mark.parametrize(("lose", "problem"), LEDGER_LOSSES)
async def test_a_loss_is_logged_once_and_the_checkpoints_name_it(
    scene: Scene, lose: Lose, problem: str
) -> None:
    await after_a_commit(scene)
    lose(scene.kafka.topics[LEDGER])

    first, lines = await noticed(scene)
    scene.commit(first)
    owner, later = await noticed(scene)

    assert problems(lines + later) == [(LEDGER, problem)]
    checkpoint = owner.checkpoint()
    assert checkpoint is not None
    assert [(each.gap.topic, each.gap.problem) for each in checkpoint.gaps] == [(LEDGER, problem)]


@pytest.mark.parametrize(("lose", "problem"), LEDGER_LOSSES)
async def test_the_owner_that_knew_the_entries_records_them_again(
    scene: Scene, lose: Lose, problem: str
) -> None:
    """At the end of its session. Before, the batch was admitted again and written twice."""
    owner = await after_a_commit(scene)
    lose(scene.kafka.topics[LEDGER])

    for record in owner.tables.ledger_records():
        scene.kafka.put(record)
    again, lines = await noticed(scene)
    scene.send(CommitIntent, "again", batch_id=7, writer="w-T")
    scene.consume(again)

    assert [each["topic"] for each in lines] == [LEDGER], problem
    assert scene.decisions(AlreadyCommitted) == ["again"]


async def test_an_entry_recorded_again_replaces_no_later_correction(scene: Scene) -> None:
    """An operator has set the writer back. A replaced agent that was suspended before that records what it knew."""
    owner = await after_a_commit(scene)
    scene.send(LedgerCorrected, "C", writer="w-T", batch_id=3, operator="me", reason="restored")
    scene.consume(await scene.take_over())

    for record in owner.tables.ledger_records():
        scene.kafka.put(record)
    again = await scene.take_over()

    assert again.tables.states[TABLE].ledger["w-T"].batch_id == 3


async def test_another_process_keeps_what_is_left_and_aborts_nothing(scene: Scene) -> None:
    """T2 committed after the checkpoint's offset, so its completion is replayed and recorded again."""
    await with_history(scene)
    scene.kafka.topics[LEDGER].create_again()
    end = scene.kafka.topics[TOPICS.decisions].end

    owner, [line] = await noticed(scene)

    assert "written twice" in line["detail"]
    assert scene.decisions(Abort, end) == []
    assert sorted(each.id for each in owner.tables.states[TABLE].open()) == ["T1", "T3"]
    assert in_ledger(scene) == {"w-T2": 1}


@pytest.mark.parametrize("compacted", [False, True])
async def test_a_complete_ledger_is_no_error_even_if_compaction_removed_the_last_entry(
    scene: Scene, compacted: bool
) -> None:
    """A later entry of the same writer was published after the last checkpoint."""
    await after_a_commit(scene)
    if compacted:
        [last] = [
            each for each in scene.kafka.topics[LEDGER].records if b"batch-committed" in (each.value or b"")
        ]
        scene.kafka.topics[LEDGER].records.remove(last)
        scene.kafka.topics[LEDGER].compacted = 1

    assert (await noticed(scene))[1] == []


async def test_a_checkpoint_of_an_earlier_release_is_compared_by_the_end_alone(scene: Scene) -> None:
    await after_a_commit(scene)
    where = TopicPartition(TOPICS.writers, 0)
    known = scene.kafka.committed[where]
    older = known.metadata.replace('"entry"', '"-"').replace('"ledger_beginning"', '"--"')
    scene.kafka.committed[where] = OffsetAndMetadata(known.offset, older)

    assert (await noticed(scene))[1] == []
    scene.kafka.topics[LEDGER].create_again()
    assert problems((await noticed(scene))[1]) == [(LEDGER, "end-lost")]


async def test_a_loss_is_shown_before_an_agent_takes_over(scene: Scene) -> None:
    await after_a_commit(scene)
    scene.kafka.topics[LEDGER].create_again()
    log: Any = KafkaLog(scene.kafka)

    found = await find_ledger_gaps(log, await find_starts(log, [0]))

    gap = found[0].gap
    assert gap is not None
    assert gap.description == f"{LEDGER} ends at offset 0 and had reached 2"


async def test_an_entry_that_is_acknowledged_below_an_earlier_one_ends_the_session(scene: Scene) -> None:
    owner = await after_a_commit(scene)
    scene.kafka.topics[LEDGER].create_again()

    scene.send(LedgerCorrected, "C", writer="w-T", batch_id=3, operator="me", reason="restored")
    scene.consume(owner)

    assert owner.seen.cut is not None
    assert LEDGER in owner.seen.cut
    assert owner.seen.ledger_lost
