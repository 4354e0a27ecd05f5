"""Many writers in one process, each a job that speaks the protocol itself; nothing of the product's client is in here.

    python -m tests.real.storm_writers --bootstrap H:P --prefix P --partitions N --tables URI --names a,b --seed N --evidence FILE

Each job commits batch after batch to tables that it chooses at random, most often to a few hot ones, and keeps the rules:
intent → admitted → markers → requested → granted → publish → completed. What was aborted is tried again, with what it had
touched as its scope and `queued` admission. A publish runs under the deadline by this process's own clock, and looks at it once
more right before its one irreversible step, the append to the table (`storm_tables.py`). Before a batch is computed, the table
is asked for it: a former life of this writer may have committed it. If so, that commit is completed, and the batch skipped.

A process that is killed is started again on the same evidence, and each job goes on where it stood: with the batch that was not
acknowledged, as Spark does. Evidence, one JSON object a line, `t` on CLOCK_MONOTONIC:

- `try`: an attempt begins; its `admission`, and how many conflicts in a row this writer has lost on this table,
- `publishing`, and `published` or `stopped`: the publish began under this `token` and `grant`, and ended,
- `pausing`: nothing is done for a while `after` the batch was published, or completed,
- `aborted`: an abort was heard, with its `reason`, and what the batch has `touched` so far,
- `acknowledged`: the batch is committed; `how` says how that is known: `published`, `already-committed`, `found`.

`finish` on stdin ends the jobs after the batch in hand.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.real import storm_tables
from tests.real.storm_tables import Line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HEARTBEAT_SECONDS: Final = 2.0
BEAT_SECONDS: Final = 1.0
MARGIN_SECONDS: Final = 0.5
STEP_SECONDS: Final = 0.02
WRITERS: Final = 50
TABLES: Final = 200
"""Each is some writer's own."""
HOT: Final = 5
HOT_SHARE: Final = 0.5
"""Of all batches, these go to the hot tables."""
GROUPS: Final = 6
"""File groups of a table: few, so that writers do conflict."""
LONG_SHARE: Final = 0.05
"""Of all publishes, these take longer than a heartbeat."""
PAUSE_SHARE: Final = 0.05
PAUSE_SECONDS: Final = 1.0
"""Between the publish and its completion in this share of all commits, and between completion and acknowledgement in as many:
moments in which a death leaves something to be found."""
SCOPE_EXCEEDED_SHARE: Final = 0.3
"""Of retries, these touch more than they had named."""
MAX_LOSSES: Final = 3
"""As the agents' `max_losses`: after so many a retry touches only what it named, and wins."""


@dataclass(slots=True)
class Attempt:
    """One transaction, and what was heard of it."""

    writer: str
    table: str
    batch: int
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    seq: int = 0
    sent: dict[int, float] = field(default_factory=dict)
    """When each `seq` was sent, on our clock."""
    decisions: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def receive(self, offset: int, decision: dict[str, Any]) -> None:
        """Take a decision."""
        self.decisions.append((offset, decision))
        self.changed.set()

    def abort(self) -> dict[str, Any] | None:
        """The abort, if one was heard."""
        return next((told for _, told in self.decisions if told["type"] == "abort"), None)

    async def answer(self, *kinds: str) -> tuple[int, dict[str, Any]]:
        """The first decision of these kinds; `Aborted` if an abort was heard, before or instead."""
        while True:
            if (abort := self.abort()) is not None:
                raise AbortedError(abort)
            for offset, told in self.decisions:
                if told["type"] in kinds:
                    return offset, told
            self.changed.clear()
            await self.changed.wait()

    def deadline(self, grant: str) -> float:
        """Until when we may publish, on our clock."""
        leases: list[float] = [
            self.sent[told["seq"]] + told["lease_seconds"]
            for _, told in self.decisions
            if told["type"] in ("commit-granted", "grant-renewed") and told["grant"] == grant
        ]
        return max(leases) - MARGIN_SECONDS


class AbortedError(Exception):
    """The agent said stop."""

    def __init__(self, abort: dict[str, Any]) -> None:
        super().__init__(abort["reason"])
        self.abort = abort


class TooLateError(Exception):
    """The grant's lease ran out before the publish was through."""


class KafkaClient:
    """Kafka, for all jobs of this process."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._topic = f"{given.prefix}.writers"
        self._decisions = [
            TopicPartition(f"{given.prefix}.decisions", number) for number in range(given.partitions)
        ]
        self._producer = AIOKafkaProducer(
            bootstrap_servers=given.bootstrap, acks="all", enable_idempotence=True, request_timeout_ms=20_000
        )
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=given.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
        )
        self._open: dict[str, Attempt] = {}
        self._terms: dict[int, str] = {}

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """From the first to the last line, with the decisions heard; every `partition-taken` before counts too."""
        await self._producer.start()
        await self._consumer.start()
        self._consumer.assign(self._decisions)
        await self._consumer.seek_to_beginning(*self._decisions)
        ends = await self._consumer.end_offsets(self._decisions)
        while any([await self._consumer.position(each) < ends[each] for each in self._decisions]):
            await self._poll()
        listening = asyncio.create_task(self._poll_forever())
        try:
            yield
        finally:
            listening.cancel()
            # In tasks of their own: a consumer's `stop` may end as a cancellation of whoever waits for it.
            await asyncio.wait(
                [asyncio.ensure_future(each.stop()) for each in (self._consumer, self._producer)]
            )

    async def _poll_forever(self) -> None:
        while True:
            await self._poll()

    async def _poll(self) -> None:
        for where, records in (await self._consumer.getmany(timeout_ms=500)).items():
            for record in records:
                self._dispatch(where.partition, record.offset, json.loads(record.value))

    def _dispatch(self, partition: int, offset: int, told: dict[str, Any]) -> None:
        if told["type"] == "partition-taken":
            self._terms[partition] = told["term"]
        elif told["term"] == self._terms.get(partition, told["term"]):
            attempt = self._open.get(told["transaction"])
            if attempt is not None:
                attempt.receive(offset, told)

    async def publish(self, kind: str, about: Attempt, **more: Any) -> None:
        """Publish an event of a transaction, and wait until the log has it."""
        event = {
            "type": kind,
            "protocol": 1,
            "event_id": uuid.uuid4().hex,
            "table": about.table,
            "transaction": about.id,
            "writer": about.writer,
            "at": datetime.now(UTC).isoformat(),
            **more,
        }
        await self._producer.send_and_wait(self._topic, json.dumps(event).encode(), about.table.encode())

    async def publish_counted(self, kind: str, about: Attempt, **more: Any) -> None:
        """Publish an event that bears the writer's count; the lease is counted from now."""
        about.seq += 1
        about.sent[about.seq] = time.monotonic()
        await self.publish(kind, about, seq=about.seq, **more)

    @asynccontextmanager
    async def opened(self, attempt: Attempt, **intent: Any) -> AsyncIterator[None]:
        """Listen, then speak: the intent; heartbeats as long as the block runs."""
        self._open[attempt.id] = attempt
        await self.publish(
            "commit-intent", attempt, batch_id=attempt.batch, heartbeat_seconds=HEARTBEAT_SECONDS, **intent
        )
        beating = asyncio.create_task(self._beat(attempt))
        try:
            yield
        finally:
            beating.cancel()
            del self._open[attempt.id]

    async def _beat(self, attempt: Attempt) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            await self.publish_counted("writer-heartbeat", attempt)


class EvidenceLog:
    """The evidence, and where a former life of these writers stood."""

    def __init__(self, path: Path) -> None:
        self.next_batch: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.losses: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.in_hand: dict[str, tuple[str, int]] = {}
        """The batch that a writer had begun, and not acknowledged."""
        self.touched: defaultdict[str, set[str]] = defaultdict(set)
        """What the aborted attempts of that batch had touched."""
        self.lives = 0
        """Grows from life to life, so that no two draw the same lots."""
        if path.exists():
            for line in path.read_bytes().splitlines():
                self._note(json.loads(line))
                self.lives += 1
        self._file: IO[bytes] = path.open("ab", buffering=0)

    def write(self, what: str, attempt: Attempt, **more: Any) -> None:
        """Write a line, in one step: whole, or not at all if we are killed."""
        said = {
            "what": what,
            "t": time.monotonic(),
            "table": attempt.table,
            "writer": attempt.writer,
            "batch": attempt.batch,
            "transaction": attempt.id,
            **more,
        }
        self._file.write(json.dumps(said).encode() + b"\n")
        self._note(said)

    def _note(self, said: dict[str, Any]) -> None:
        where = (said["writer"], said["table"])
        match said["what"]:
            case "try":
                self.in_hand[said["writer"]] = (said["table"], said["batch"])
            case "aborted":
                self.losses[where] += said["reason"] == "conflict"
                self.touched[said["writer"]] |= set(said["touched"])
            case "acknowledged":
                self.touched.pop(said["writer"], None)
                self.next_batch[where] = said["batch"] + 1
                self.losses[where] = 0
                self.in_hand.pop(said["writer"], None)
            case _:
                pass


class Job:
    """One writer."""

    def __init__(self, name: str, kafka: KafkaClient, evidence: EvidenceLog, tables: str, seed: int) -> None:
        self._name = name
        self._kafka = kafka
        self._evidence = evidence
        self._tables = tables
        self._chance = random.Random(f"{seed}-{name}-{evidence.lives}")
        self._own = range(int(name.rpartition("-")[2]), TABLES, WRITERS)
        self._touched: set[str] = set()

    async def run(self, finish: threading.Event) -> None:
        """Commit batch after batch; the one in hand first. The end waits until each table of its own had its turn."""
        while not finish.is_set() or self._name in self._evidence.in_hand or self._untouched():
            table, batch = self._evidence.in_hand.get(self._name) or self._something()
            await self._commit(table, batch)
            await asyncio.sleep(self._chance.uniform(0.0, 0.2))

    def _something(self) -> tuple[str, int]:
        """A table, and this writer's next batch there."""
        hot = self._chance.random() < HOT_SHARE
        number = self._chance.choice(range(HOT) if hot else self._untouched() or range(TABLES))
        table = f"{self._tables}/t-{number}"
        return table, self._evidence.next_batch[self._name, table]

    def _untouched(self) -> list[int]:
        done = self._evidence.next_batch
        return [each for each in self._own if not done[self._name, f"{self._tables}/t-{each}"]]

    async def _commit(self, table: str, batch: int) -> None:
        """Until the batch is acknowledged. A retry names what it touched before, and waits for its turn."""
        self._touched = set(self._evidence.touched[self._name])
        while True:
            attempt = Attempt(self._name, table, batch)
            try:
                how = await self._attempt(attempt)
            except AbortedError as error:
                told = error.abort
                self._evidence.write("aborted", attempt, reason=told["reason"], touched=sorted(self._touched))
                if not told["retriable"] and told["reason"] != "superseded":
                    raise  # a bug of this test: it stops the process, and the test
            except TooLateError:
                pass
            else:
                self._evidence.write("acknowledged", attempt, how=how)
                return
            await asyncio.sleep(self._chance.uniform(0.0, 0.1))

    async def _attempt(self, attempt: Attempt) -> str:
        losses = self._evidence.losses[attempt.writer, attempt.table]
        scope = _markers(self._touched)
        admission = "queued" if scope else "optimistic"
        self._evidence.write("try", attempt, admission=admission, losses=losses)
        async with self._kafka.opened(attempt, admission=admission, scope=scope):
            _, first = await attempt.answer("admitted", "already-committed")
            if first["type"] == "already-committed":
                return "already-committed"
            if (line := storm_tables.commit_of(attempt.table, attempt.writer, attempt.batch)) is not None:
                await self._found(attempt, line)
                return "found"
            await self._compute(attempt, exact=bool(scope) and losses >= MAX_LOSSES)
            await self._kafka.publish_counted("commit-requested", attempt)
            token, granted = await attempt.answer("commit-granted")
            await self._publish(attempt, token, granted["grant"])
            await self._pause(attempt, "published")
            await self._kafka.publish(
                "commit-completed", attempt, grant=granted["grant"], batch_id=attempt.batch
            )
            await self._pause(attempt, "completed")
        return "published"

    async def _pause(self, attempt: Attempt, after: str) -> None:
        if self._chance.random() < PAUSE_SHARE:
            self._evidence.write("pausing", attempt, after=after)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _found(self, attempt: Attempt, line: Line) -> None:
        """A former life committed it, and nobody was told."""
        former = Attempt(attempt.writer, attempt.table, attempt.batch, line.transaction)
        await self._kafka.publish("commit-completed", former, grant=line.grant, batch_id=line.batch)
        await self._kafka.publish("transaction-abandoned", attempt, reason="its batch is in the table")

    async def _compute(self, attempt: Attempt, *, exact: bool) -> None:
        retry = bool(self._touched)
        if not retry or (not exact and self._chance.random() < SCOPE_EXCEEDED_SHARE):
            for _ in range(self._chance.randrange(1, 3)):
                group = str(self._chance.randrange(GROUPS))
                self._touched.add(group)
                await self._kafka.publish("marker-created", attempt, markers=_markers({group}))
                await self._wait(attempt, self._chance.uniform(0.02, 0.2))
        await self._wait(attempt, self._chance.uniform(0.02, 0.2))

    async def _wait(self, attempt: Attempt, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if (abort := attempt.abort()) is not None:
            raise AbortedError(abort)

    async def _publish(self, attempt: Attempt, token: int, grant: str) -> None:
        seconds = (
            HEARTBEAT_SECONDS * 2 if self._chance.random() < LONG_SHARE else self._chance.uniform(0, 0.1)
        )
        if time.monotonic() >= attempt.deadline(grant):
            await self._kafka.publish("transaction-abandoned", attempt, reason="the lease has run out")
            raise TooLateError
        self._evidence.write("publishing", attempt, token=token, grant=grant)
        until = time.monotonic() + seconds
        while (abort := attempt.abort()) is None and (now := time.monotonic()) < attempt.deadline(grant):
            if now >= until:
                line = Line(attempt.writer, attempt.batch, attempt.id, grant)
                storm_tables.append(attempt.table, line)
                self._evidence.write("published", attempt)
                return
            await asyncio.sleep(STEP_SECONDS)
        self._evidence.write("stopped", attempt)
        await self._kafka.publish("transaction-abandoned", attempt, reason="nothing was published")
        if abort is not None:
            raise AbortedError(abort)
        raise TooLateError


def _markers(groups: Iterable[str]) -> list[dict[str, str]]:
    return [{"partition": "p", "file_group": each, "operation": "merge"} for each in sorted(groups)]


async def _run(given: argparse.Namespace, finish: threading.Event) -> None:
    kafka, evidence = KafkaClient(given), EvidenceLog(given.evidence)
    async with kafka.connected(), asyncio.TaskGroup() as jobs:
        for name in given.names.split(","):
            jobs.create_task(Job(name, kafka, evidence, given.tables, given.seed).run(finish))


def _read_commands(finish: threading.Event) -> None:
    sys.stdin.readline()  # `finish`, or nothing: whoever started us has gone
    finish.set()


def main() -> None:
    """Write until told to finish."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "prefix", "tables", "names"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("partitions", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--evidence", type=Path, required=True)
    finish = threading.Event()
    threading.Thread(target=_read_commands, args=(finish,), daemon=True).start()
    asyncio.run(_run(parser.parse_args(), finish))


if __name__ == "__main__":
    main()
