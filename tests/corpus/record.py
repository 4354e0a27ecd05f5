"""Record the corpus: `python -m tests.corpus.record` plays the cases below and keeps the records that have no file yet.

The agent, the broker and the S3 server are real. The writers are played here, with the codec that the client uses, because a
client can't be made to lose its lease at will. It takes about two minutes, most of them waiting for leases to expire.
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import anyio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.embedded.kafka import EmbeddedKafka
from lakewarden.agent.kafka import ensure_topics, read_to_end
from lakewarden.agent.operators.migrate import migrate
from lakewarden.agent.serving.agent import Agent
from lakewarden.agent.settings import Settings
from lakewarden.events import (
    DECISION_RECORD,
    Abort,
    AbortRequested,
    Admitted,
    AlreadyCommitted,
    CommitCompleted,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    DecisionRecord,
    GrantRenewed,
    LedgerCorrected,
    Marker,
    MarkerCreated,
    Topics,
    TransactionAbandoned,
    Undecodable,
    WriterEvent,
    WriterHeartbeat,
    decode,
    encode,
    partition_name,
)
from tests.corpus import FOLDER, add, recorded
from tests.servers.s3 import S3Server, running_s3_server

TOPICS = Topics()
BUCKET = "lake"
ORDERS = f"s3://{BUCKET}/sales/orders"
PARTITION_OF_ORDERS = 6
RETURNS = f"s3://{BUCKET}/sales/returns"
PATIENCE_SECONDS = 90.0

DecisionT = TypeVar("DecisionT", bound=DecisionRecord)


def _aborted_for(reason: str) -> Callable[[dict[str, Any]], bool]:
    return lambda event: bool(event["reason"] == reason)


CASES: dict[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
    "commit-intent": ("writers", lambda event: event["admission"] == "optimistic"),
    "commit-intent.queued": ("writers", lambda event: event["admission"] == "queued"),
    "commit-intent.observed": ("writers", lambda event: event.get("observed") is True),
    "marker-created.instant": ("writers", lambda event: event.get("instant") is not None),
    "writer-heartbeat.instant": ("writers", lambda event: event.get("instant") is not None),
    "commit-completed.observed": ("writers", lambda event: event.get("grant") is None),
    "commit-intent.reason": ("writers", lambda event: event.get("admission_reason") is not None),
    "commit-intent.ordered": ("writers", lambda event: event["conflict_rule"] == "ordered"),
    "marker-created": ("writers", lambda event: len(event["markers"]) > 1),
    "marker-created.whole-table": (
        "writers",
        lambda event: any(each["partition"] == "*" for each in event["markers"]),
    ),
    "writer-heartbeat": ("writers", lambda event: event["seq"] > 0),
    "commit-requested": ("writers", lambda event: not event["markers"]),
    "commit-requested.markers": ("writers", lambda event: bool(event["markers"])),
    "commit-completed": ("writers", lambda event: event["version"] is not None),
    "transaction-abandoned": ("writers", lambda _: True),
    "abort-requested": ("writers", lambda _: True),
    "ledger-corrected": ("writers", lambda event: event["batch_id"] is not None),
    "admitted": ("decisions", lambda event: not event["reserved"]),
    "admitted.reserved": ("decisions", lambda event: bool(event["reserved"])),
    "admitted.turn": ("decisions", lambda event: event.get("turn") is not None),
    **{
        f"abort.{reason}": ("decisions", _aborted_for(reason))
        for reason in (
            "conflict",
            "writer-lost",
            "lease-lost",
            "superseded",
            "not-allowed",
            "unknown-transaction",
            "operator",
        )
    },
    "abort.outcome-unknown": (
        "decisions",
        lambda event: event["reason"] == "outcome-unknown" and not event["conflicts"],
    ),
    "abort.outcome-unknown-of-another": (
        "decisions",
        lambda event: event["reason"] == "outcome-unknown" and bool(event["conflicts"]),
    ),
    "commit-granted": ("decisions", lambda _: True),
    "grant-renewed": ("decisions", lambda _: True),
    "already-committed": ("decisions", lambda _: True),
    "partition-taken": ("decisions", lambda event: event["table"] == partition_name(PARTITION_OF_ORDERS)),
    "locks-handed-over": ("decisions", lambda _: True),
    "conflict-detected": ("conflicts", lambda event: event["kind"] == "marker"),
    "conflict-detected.commit": ("conflicts", lambda event: event["kind"] == "commit"),
    "lock-acquired": ("audit", lambda _: True),
    "lock-renewed": ("audit", lambda _: True),
    "lock-released": ("audit", lambda _: True),
    "lock-lost": ("audit", lambda _: True),
    "lock-refused": ("audit", lambda event: event["waiting"]),
    "batch-committed": ("ledger", lambda event: event.get("corrected_at") is None),
    "batch-committed.corrected": ("ledger", lambda event: event.get("corrected_at") is not None),
    "conflicts-lost": ("ledger", lambda event: event["losses"] > 0),
    "conflicts-lost.none": ("ledger", lambda event: event["losses"] == 0),
    "ledger-copied": ("ledger", lambda event: event["complete"]),
    "dead-letter": ("dead_letters", lambda _: True),
}
"""For each name: the topic, and which record of its type to keep."""


@dataclass(slots=True)
class Scene:
    """Clients of the broker, and the decisions read so far."""

    producer: AIOKafkaProducer
    consumer: AIOKafkaConsumer
    decisions: list[DecisionRecord] = field(default_factory=list)

    async def send(self, event: WriterEvent) -> None:
        """Publish a writer's event."""
        await self.producer.send_and_wait(TOPICS.writers, encode(event), key=event.table.encode())

    async def decision(self, kind: type[DecisionT], transaction: str) -> DecisionT:
        """Wait for a decision on the transaction."""
        with anyio.fail_after(PATIENCE_SECONDS):
            while True:
                for each in self.decisions:
                    if isinstance(each, kind) and each.transaction == transaction:
                        return each
                for records in (await self.consumer.getmany(timeout_ms=200)).values():
                    for record in records:
                        read = decode(DECISION_RECORD, record.value)
                        assert not isinstance(read, Undecodable), read
                        self.decisions.append(read)


@dataclass(slots=True)
class Writer:
    """One transaction of a writing job."""

    scene: Scene
    name: str
    table: str = ORDERS
    batch_id: int | None = None
    transaction: str = field(default_factory=lambda: uuid.uuid4().hex)
    seq: int = -1

    def event(self, kind: Callable[..., WriterEvent], **fields: Any) -> WriterEvent:
        """An event of this transaction."""
        return kind(
            event_id=uuid.uuid4().hex,
            table=self.table,
            transaction=self.transaction,
            writer=self.name,
            at=datetime.now(UTC),
            **fields,
        )

    async def begin(self, **fields: Any) -> Admitted:
        """Open the transaction and wait until it is admitted."""
        await self.scene.send(self.event(CommitIntent, batch_id=self.batch_id, **fields))
        return await self.scene.decision(Admitted, self.transaction)

    async def touch(self, *file_groups: str, partition: str) -> None:
        """Publish markers."""
        await self.scene.send(self.event(MarkerCreated, markers=markers(*file_groups, partition=partition)))

    async def heartbeat(self) -> None:
        """Publish a heartbeat."""
        self.seq += 1
        await self.scene.send(self.event(WriterHeartbeat, seq=self.seq))

    async def granted(self, *last: Marker) -> CommitGranted:
        """Request the grant and wait for it."""
        self.seq += 1
        await self.scene.send(self.event(CommitRequested, seq=self.seq, markers=last))
        return await self.scene.decision(CommitGranted, self.transaction)

    async def complete(self, grant: CommitGranted, version: str) -> None:
        """Publish that the commit is durable."""
        fields = {"grant": grant.grant, "version": version, "batch_id": self.batch_id}
        await self.scene.send(self.event(CommitCompleted, **fields))

    async def abandon(self) -> None:
        """End the transaction without a commit."""
        await self.scene.send(self.event(TransactionAbandoned, reason="left without commit()"))

    async def aborted(self) -> Abort:
        """Wait for the abort."""
        return await self.scene.decision(Abort, self.transaction)


def markers(*file_groups: str, partition: str) -> tuple[Marker, ...]:
    """Merges into file groups of a partition."""
    return tuple(Marker(partition=partition, file_group=each, operation="merge") for each in file_groups)


async def commit_and_repeat(scene: Scene) -> None:
    """A queued transaction commits, with a renewal of its grant. Its batch is repeated and skipped."""
    first = Writer(scene, "orders-ingest", batch_id=41)
    scope = markers("*", partition="dt=2026-11-21")
    await first.begin(admission="queued", scope=scope, admission_reason="its scope is known")
    await first.touch("fg-0017", "fg-0018", partition="dt=2026-11-21")
    await first.heartbeat()
    grant = await first.granted()
    with anyio.fail_after(PATIENCE_SECONDS):
        while not any(isinstance(each, GrantRenewed) for each in scene.decisions):
            await anyio.sleep(5)  # a heartbeat extends the lease as far as the renewed lock reaches
            await first.heartbeat()
            with anyio.move_on_after(1):
                await scene.decision(GrantRenewed, first.transaction)
    await first.complete(grant, "7712")
    repeated = Writer(scene, "orders-ingest", batch_id=41)
    await scene.send(repeated.event(CommitIntent, batch_id=41))
    await scene.decision(AlreadyCommitted, repeated.transaction)


async def conflict(scene: Scene) -> None:
    """Two writers touch the same file group. The one that lost gets what it lost on reserved, and ends without a commit."""
    first = Writer(scene, "orders-ingest", batch_id=42)
    second = Writer(scene, "orders-corrections", batch_id=7)
    await first.begin()
    await second.begin()
    await first.touch("fg-0017", partition="dt=2026-11-21")
    await second.touch("fg-0017", "fg-0020", partition="dt=2026-11-21")
    await second.aborted()
    grant = await first.granted(*markers("fg-0021", partition="dt=2026-11-22"))
    await first.complete(grant, "7713")
    retry = Writer(scene, "orders-corrections", batch_id=7)
    assert (await retry.begin()).reserved
    await retry.abandon()
    late = Writer(scene, "orders-corrections", batch_id=7)
    await late.begin(scope=markers("*", partition="dt=2026-11-21"))
    await late.complete(await late.granted(), "7714")


async def conflict_with_a_commit(scene: Scene) -> None:
    """A writer touches what another one committed since it was admitted."""
    slow = Writer(scene, "orders-backfill")
    await slow.begin(heartbeat_seconds=100)
    quick = Writer(scene, "orders-ingest", batch_id=43)
    await quick.begin()
    await quick.touch("fg-0030", partition="dt=2026-11-23")
    await quick.complete(await quick.granted(), "7715")
    await slow.touch("fg-0030", partition="dt=2026-11-23")
    await slow.aborted()


async def lapse(scene: Scene) -> None:
    """A grant lease expires. Another transaction that touches the same later can't know the outcome either."""
    other = Writer(scene, "orders-restatement")
    await other.begin(heartbeat_seconds=100)
    silent = Writer(scene, "orders-ingest", batch_id=44)
    await silent.begin()
    await silent.touch("fg-0040", partition="dt=2026-11-24")
    grant = await silent.granted()
    assert (await silent.aborted()).reason == "outcome-unknown"
    await other.touch("fg-0040", partition="dt=2026-11-24")
    assert (await other.aborted()).reason == "outcome-unknown"
    await silent.complete(grant, "7716")


async def turns(scene: Scene) -> None:
    """A transaction that would wait for those before it that touch the same file group. It touches the whole table."""
    upsert = Writer(scene, "orders-ingest", batch_id=45)
    assert (await upsert.begin(conflict_rule="ordered")).turn == 0
    await upsert.touch("*", partition="*")
    await upsert.abandon()


async def restart(scene: Scene) -> None:
    """A writer restarts while its transaction is open."""
    before = Writer(scene, "orders-ingest", batch_id=45)
    await before.begin()
    after = Writer(scene, "orders-ingest", batch_id=45)
    await after.begin()
    await before.aborted()
    await after.abandon()


async def lost_writer(scene: Scene) -> None:
    """A writer sends no heartbeats."""
    lost = Writer(scene, "orders-ingest", batch_id=45)
    await lost.begin(heartbeat_seconds=1)
    await lost.aborted()


async def refusals(scene: Scene) -> None:
    """An intent for a table that the agent does not serve, and a heartbeat without an intent."""
    elsewhere = Writer(scene, "orders-ingest", table="s3://elsewhere/sales/orders")
    await scene.send(elsewhere.event(CommitIntent))
    await elsewhere.aborted()
    unknown = Writer(scene, "orders-ingest")
    await unknown.heartbeat()
    await unknown.aborted()


async def requests_of_an_operator(scene: Scene) -> None:
    """An operator ends a transaction that hangs, and corrects the ledger."""
    hung = Writer(scene, "orders-backfill", batch_id=3)
    await hung.begin(heartbeat_seconds=100)
    who = {"operator": "ann@operations", "reason": "hangs since noon"}
    await scene.send(hung.event(AbortRequested, **who))
    assert (await hung.aborted()).reason == "operator"
    corrected = Writer(scene, "orders-corrections", transaction=f"ledger-corrected-{uuid.uuid4().hex}")
    who["reason"] = "batch 7 was rolled back by hand"
    await scene.send(corrected.event(LedgerCorrected, batch_id=6, **who))


async def observed_by_a_watcher(scene: Scene) -> None:
    """A watcher reports a writer of Hudi that doesn't use the gate. A writer of the gate announces its own instant."""
    instant = "20261122135446024"
    observed = Writer(scene, f"hudi:{instant}", transaction=f"hudi:{instant}")
    await scene.send(observed.event(CommitIntent, observed=True, heartbeat_seconds=60))
    found = markers("a1079540-5309-48af-8815-49d4dc51cc56-0", partition="dt=2026-11-25")
    await scene.send(observed.event(MarkerCreated, markers=found))
    victim = Writer(scene, "orders-ingest", batch_id=46)
    await victim.begin()
    own = "20261122135643314"
    victim.seq += 1
    await scene.send(victim.event(WriterHeartbeat, seq=victim.seq, instant=own))
    await scene.send(victim.event(MarkerCreated, markers=found, instant=own))
    await victim.aborted()
    await scene.send(observed.event(CommitCompleted, version=instant, markers=found))


async def lost_lock(scene: Scene, server: S3Server) -> None:
    """Another process overwrites the lock object, and holds it when the next transaction needs it."""
    writer = Writer(scene, "returns-ingest", RETURNS)
    await writer.begin()
    await writer.granted()
    client = server.new_client()
    try:
        [found] = client.list_objects_v2(Bucket=BUCKET, Prefix="locks/sales-returns")["Contents"]
        end = round(datetime.now(UTC).timestamp() * 1000) + 30_000
        body = f'{{"expired":false,"validUntil":{end},"owner":"0f8fad5b-d9cb-469f-a165-70867728950e"}}'
        client.put_object(Bucket=BUCKET, Key=found["Key"], Body=body.encode())
    finally:
        client.close()
    assert (await writer.aborted()).reason == "lease-lost"
    await writer.abandon()
    following = Writer(scene, "returns-ingest", RETURNS)
    await following.begin(heartbeat_seconds=100)  # it waits for the other lease to expire
    await following.granted()
    await following.abandon()


async def running_grant(scene: Scene) -> None:
    """The agent is stopped in order while a grant runs."""
    writer = Writer(scene, "orders-ingest", batch_id=46)
    await writer.begin(heartbeat_seconds=100)
    await writer.granted()


async def migrate_to(settings: Settings) -> None:
    """Before the agent starts, the topics are those of a migration."""
    earlier = settings.model_copy(update={"topic_prefix": f"{settings.topic_prefix}-earlier"})
    await ensure_topics(earlier, earlier.topics, 1, settings.replication)
    await migrate(earlier, settings, settings.partitions, dry_run=False, report=print)


async def play(bootstrap_servers: str, server: S3Server) -> list[ConsumerRecord]:
    """Play every case. Returns all records of all topics, topic by topic."""
    settings = Settings.load(
        bootstrap_servers=bootstrap_servers,
        replication=1,
        allow=(f"s3://{BUCKET}/*",),
        s3_endpoint=server.endpoint,
        agent_id="agent-1",
        max_losses=1,
    )
    await migrate_to(settings)
    agent = Agent(settings)
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        tasks.start_soon(agent.run)
        with anyio.fail_after(PATIENCE_SECONDS):
            await agent.ready.wait()
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, acks="all")
        consumer = AIOKafkaConsumer(
            TOPICS.decisions,
            bootstrap_servers=bootstrap_servers,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        for client in (producer, consumer):
            await client.start()
            stack.push_async_callback(client.stop)
        scene = Scene(producer, consumer)
        await commit_and_repeat(scene)
        await conflict(scene)
        await conflict_with_a_commit(scene)
        await lapse(scene)
        await turns(scene)
        await restart(scene)
        await lost_writer(scene)
        await refusals(scene)
        await requests_of_an_operator(scene)
        await observed_by_a_watcher(scene)
        await lost_lock(scene, server)
        await running_grant(scene)
        agent.stop()
    spans = {
        TopicPartition(topic.name, number): None
        for topic in TOPICS.settings(settings.partitions)
        for number in range(topic.partitions)
    }
    found = await read_to_end(settings, dict(spans))
    return [record for _, records in sorted(found.items()) for record in records]


def keep(records: list[ConsumerRecord]) -> None:
    """Add the first record of each case that has no file yet, of the table `ORDERS` where it has one."""
    records.sort(key=lambda record: not record.key.startswith(ORDERS.encode()))
    known = {each.name for each in recorded()}
    for name, (topic, fits) in CASES.items():
        if name in known:
            continue
        kind = name.partition(".")[0]
        for record in records:
            event = json.loads(record.value) if record.topic == getattr(TOPICS, topic) else {}
            if event.get("type") == kind and fits(event):
                add(name, record)
                print(f"recorded {FOLDER.name}/{name}.json")
                break
        else:
            raise AssertionError(f"no record for {name}")


def main() -> None:
    """Start the servers, play, and keep what is new."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_s3_server() as server,
        EmbeddedKafka(Path(folder)) as kafka,
    ):
        os.environ.update(server.environment)
        client = server.new_client()
        client.create_bucket(Bucket=BUCKET)
        client.close()
        keep(anyio.run(play, kafka.bootstrap_servers, server))


if __name__ == "__main__":
    main()
