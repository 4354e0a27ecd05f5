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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.embedded.kafka import EmbeddedKafka
from lakewarden.agent.settings import Settings
from lakewarden.events import (
    DEFAULT_PREFIX,
    Abort,
    AbortRequested,
    Admitted,
    AlreadyCommitted,
    CommitCompleted,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    GrantRenewed,
    LedgerCorrected,
    Marker,
    MarkerCreated,
    Topics,
    WriterHeartbeat,
    partition_name,
)
from tests.corpus import CURRENT, add, recorded
from tests.kafka_fixture import read_to_end
from tests.real import writers
from tests.real.writers import World, markers, world
from tests.servers.s3 import S3Server, running_s3_server
from tests.waiting import PATIENCE_SECONDS

TOPICS = Topics()
BUCKET = "lake"
ORDERS = f"s3://{BUCKET}/sales/orders"
PARTITION_OF_ORDERS = 6
RETURNS = f"s3://{BUCKET}/sales/returns"


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
    "transaction-abandoned.cause": ("writers", lambda event: event.get("cause") is not None),
    "abort-requested": ("writers", lambda _: True),
    "ledger-corrected": ("writers", lambda event: event["batch_id"] is not None),
    "admitted": ("decisions", lambda event: not event["reserved"]),
    "admitted.reserved": ("decisions", lambda event: bool(event["reserved"])),
    "admitted.freed": ("decisions", lambda event: event.get("freed_by") is not None),
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
    "commit-granted.freed": ("decisions", lambda event: event.get("freed_by") is not None),
    "abort.conflict-rule": (
        "decisions",
        lambda event: any(each.get("rule") is not None for each in event["conflicts"]),
    ),
    "abort.conflict-touches": (
        "decisions",
        lambda event: any(each.get("other_touched_at") is not None for each in event["conflicts"]),
    ),
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
    "dead-letter": ("dead_letters", lambda _: True),
}
"""For each name: the topic, and which record of its type to keep."""


@dataclass(slots=True)
class Writer(writers.Writer):
    """One transaction of a writing job, with the client's defaults."""

    batch_id: int | None = None

    async def begin(self, **more: Any) -> None:
        """Open the transaction and wait until it is admitted."""
        await self.world.send(self.event(CommitIntent, batch_id=self.batch_id, **more))
        await self.wait_for(Admitted)

    async def granted(self, *last: Marker) -> CommitGranted:
        """Request the grant with these markers, and wait for it."""
        self.seq += 1
        await self.world.send(self.event(CommitRequested, seq=self.seq, markers=last))
        return await self.wait_for(CommitGranted)

    async def commit(self, version: str, *last: Marker) -> None:
        """Obtain the grant, and report that the commit is durable."""
        await self.report(await self.granted(*last), version)

    async def report(self, grant: CommitGranted, version: str) -> None:
        fields = {"grant": grant.grant, "version": version, "batch_id": self.batch_id}
        await self.world.send(self.event(CommitCompleted, **fields))

    async def aborted(self) -> Abort:
        return await self.wait_for(Abort)


def writer_of(
    scene: World, name: str, batch_id: int | None = None, table: str = ORDERS, transaction: str | None = None
) -> Writer:
    return Writer(scene, name, table, transaction or uuid.uuid4().hex, batch_id=batch_id)


async def commit_and_repeat(scene: World) -> None:
    """A queued transaction commits, with a renewal of its grant. Its batch is repeated and skipped."""
    first = writer_of(scene, "orders-ingest", 41)
    scope = markers("*", partition="dt=2026-11-21")
    await first.begin(admission="queued", scope=scope, admission_reason="its scope is known")
    await first.touch("fg-0017", "fg-0018", partition="dt=2026-11-21")
    await first.heartbeat()
    grant = await first.granted()
    with anyio.fail_after(PATIENCE_SECONDS):
        while not scene.events(GrantRenewed):
            await anyio.sleep(5)  # a heartbeat extends the lease as far as the renewed lock reaches
            await first.heartbeat()
            await scene.poll(timeout_ms=1_000)
    await first.report(grant, "7712")
    repeated = writer_of(scene, "orders-ingest", 41)
    await scene.send(repeated.event(CommitIntent, batch_id=41))
    await repeated.wait_for(AlreadyCommitted)


async def conflict(scene: World) -> None:
    """Two writers touch the same file group. The one that lost gets what it lost on reserved, and ends without a commit."""
    first = writer_of(scene, "orders-ingest", 42)
    second = writer_of(scene, "orders-corrections", 7)
    await first.begin()
    await second.begin()
    await first.touch("fg-0017", partition="dt=2026-11-21")
    await second.touch("fg-0017", "fg-0020", partition="dt=2026-11-21")
    await second.aborted()
    await first.commit("7713", *markers("fg-0021", partition="dt=2026-11-22"))
    retry = writer_of(scene, "orders-corrections", 7)
    await retry.begin()
    assert scene.events(Admitted, retry.mine)[0].reserved
    await retry.abandon()
    late = writer_of(scene, "orders-corrections", 7)
    await late.begin(scope=markers("*", partition="dt=2026-11-21"))
    await late.commit("7714")


async def conflict_with_a_commit(scene: World) -> None:
    """A writer touches what another one committed since it was admitted."""
    slow = writer_of(scene, "orders-backfill")
    await slow.begin(heartbeat_seconds=100)
    quick = writer_of(scene, "orders-ingest", 43)
    await quick.begin()
    await quick.touch("fg-0030", partition="dt=2026-11-23")
    await quick.commit("7715")
    await slow.touch("fg-0030", partition="dt=2026-11-23")
    await slow.aborted()


async def lapse(scene: World) -> None:
    """A grant lease expires. Another transaction that touches the same later can't know the outcome either."""
    other = writer_of(scene, "orders-restatement")
    await other.begin(heartbeat_seconds=100)
    silent = writer_of(scene, "orders-ingest", 44)
    await silent.begin()
    await silent.touch("fg-0040", partition="dt=2026-11-24")
    grant = await silent.granted()
    assert (await silent.aborted()).reason == "outcome-unknown"
    await other.touch("fg-0040", partition="dt=2026-11-24")
    assert (await other.aborted()).reason == "outcome-unknown"
    await silent.report(grant, "7716")


async def turns(scene: World) -> None:
    """A transaction that would wait for those before it that touch the same file group. It touches the whole table."""
    upsert = writer_of(scene, "orders-ingest", 45)
    await upsert.begin(conflict_rule="ordered")
    assert scene.events(Admitted, upsert.mine)[0].turn == 0
    await upsert.touch("*", partition="*")
    await upsert.abandon()


async def waits(scene: World) -> None:
    """A transaction waits for its admission, and another one for its grant, until the one before has ended."""
    where = markers("*", partition="dt=2026-11-26")
    first = writer_of(scene, "orders-ingest", 45)
    await first.begin(scope=where)
    second = writer_of(scene, "orders-corrections", 8)
    await scene.send(second.event(CommitIntent, batch_id=8, admission="queued", scope=where))
    await first.granted()
    third = writer_of(scene, "orders-backfill")
    await third.begin(heartbeat_seconds=100)
    third.seq += 1
    await scene.send(third.event(CommitRequested, seq=third.seq))
    await first.abandon("another commit changed the table; nothing was published", "base-changed")
    await second.wait_for(Admitted)
    await third.report(await third.wait_for(CommitGranted), "7717")
    await second.abandon("empty: nothing to write", "empty")


async def restart(scene: World) -> None:
    """A writer restarts while its transaction is open."""
    before = writer_of(scene, "orders-ingest", 45)
    await before.begin()
    after = writer_of(scene, "orders-ingest", 45)
    await after.begin()
    await before.aborted()
    await after.abandon()


async def lost_writer(scene: World) -> None:
    """A writer sends no heartbeats."""
    lost = writer_of(scene, "orders-ingest", 45)
    await lost.begin(heartbeat_seconds=1)
    await lost.aborted()


async def refusals(scene: World) -> None:
    """An intent for a table that the agent does not serve, and a heartbeat without an intent."""
    elsewhere = writer_of(scene, "orders-ingest", table="s3://elsewhere/sales/orders")
    await scene.send(elsewhere.event(CommitIntent))
    await elsewhere.aborted()
    unknown = writer_of(scene, "orders-ingest")
    await unknown.heartbeat()
    await unknown.aborted()


async def requests_of_an_operator(scene: World) -> None:
    """An operator ends a transaction that hangs, and corrects the ledger."""
    hung = writer_of(scene, "orders-backfill", 3)
    await hung.begin(heartbeat_seconds=100)
    who = {"operator": "ann@operations", "reason": "hangs since noon"}
    await scene.send(hung.event(AbortRequested, **who))
    assert (await hung.aborted()).reason == "operator"
    corrected = writer_of(scene, "orders-corrections", transaction=f"ledger-corrected-{uuid.uuid4().hex}")
    who["reason"] = "batch 7 was rolled back by hand"
    await scene.send(corrected.event(LedgerCorrected, batch_id=6, **who))


async def observed_by_a_watcher(scene: World) -> None:
    """A watcher reports a writer of Hudi that doesn't use the gate. A writer of the gate announces its own instant."""
    instant = "20261122135446024"
    observed = writer_of(scene, f"hudi:{instant}", transaction=f"hudi:{instant}")
    await scene.send(observed.event(CommitIntent, observed=True, heartbeat_seconds=60))
    found = markers("a1079540-5309-48af-8815-49d4dc51cc56-0", partition="dt=2026-11-25")
    await scene.send(observed.event(MarkerCreated, markers=found))
    victim = writer_of(scene, "orders-ingest", 46)
    await victim.begin()
    own = "20261122135643314"
    victim.seq += 1
    await scene.send(victim.event(WriterHeartbeat, seq=victim.seq, instant=own))
    await scene.send(victim.event(MarkerCreated, markers=found, instant=own))
    await victim.aborted()
    await scene.send(observed.event(CommitCompleted, version=instant, markers=found))


async def lost_lock(scene: World, server: S3Server) -> None:
    """Another process overwrites the lock object, and holds it when the next transaction needs it."""
    writer = writer_of(scene, "returns-ingest", table=RETURNS)
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
    following = writer_of(scene, "returns-ingest", table=RETURNS)
    await following.begin(heartbeat_seconds=100)  # it waits for the other lease to expire
    await following.granted()
    await following.abandon()


async def running_grant(scene: World) -> None:
    """The agent is stopped in order while a grant runs."""
    writer = writer_of(scene, "orders-ingest", 46)
    await writer.begin(heartbeat_seconds=100)
    await writer.granted()


async def play(bootstrap_servers: str, folder: Path, server: S3Server) -> list[ConsumerRecord]:
    """Play every case. Returns all records of all topics, topic by topic."""
    defaults = {name: Settings.model_fields[name].default for name in writers.QUICK}
    given = {"replication": 1, "tables": (f"s3://{BUCKET}/*",), "lock_root": None, "max_losses": 1}
    own = {"s3_endpoint": server.endpoint, "agent_id": "agent-1"}
    async with world(bootstrap_servers, DEFAULT_PREFIX, folder, **(defaults | given | own)) as scene:
        settings = scene.settings()
        async with scene.agent():
            await commit_and_repeat(scene)
            await conflict(scene)
            await conflict_with_a_commit(scene)
            await lapse(scene)
            await turns(scene)
            await waits(scene)
            await restart(scene)
            await lost_writer(scene)
            await refusals(scene)
            await requests_of_an_operator(scene)
            await observed_by_a_watcher(scene)
            await lost_lock(scene, server)
            await running_grant(scene)
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
                print(f"recorded {CURRENT.name}/{name}.json")
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
        keep(anyio.run(play, kafka.bootstrap_servers, Path(folder) / "root", server))


if __name__ == "__main__":
    main()
