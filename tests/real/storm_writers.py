"""A process with many writers. Each is a job that implements the protocol (`writers.py`), without the product's client.

    python -m tests.real.storm_writers --bootstrap H:P --prefix P --partitions N --tables URI --names a,b --seed N --evidence FILE

Each job commits batch after batch to random tables, mostly to a few hot ones: intent → admitted → markers → requested → granted →
publish → completed. It retries an aborted batch with `queued` admission; the scope is what the batch has touched so far. During a
publish the job checks its deadline on its own clock, the last time right before the irreversible step, the append to the table
(`storm_tables.py`). Before it computes a batch, the job searches the table for it, because it may have committed the batch before
it was killed. Then it reports the completion of that commit and skips the batch.

A killed process is started again with the same evidence file. Each job continues with the batch that was not acknowledged, as
Spark does. Evidence lines are JSON objects with times `t` on CLOCK_MONOTONIC:

| `what` | meaning |
| --- | --- |
| `try` | an attempt begins, with its `admission` and the conflicts that this writer has lost in a row on this table |
| `publishing` | the publish has begun, under this `token` and `grant` |
| `published`, `stopped` | the publish has ended |
| `pausing` | the job pauses `after` it published the batch, or `after` it reported the completion |
| `aborted` | the job received an abort, with its `reason`, and what the batch has `touched` so far |
| `acknowledged` | the batch is committed; `how` the job knows it: `published`, `already-committed` or `found` |

Commands on stdin, one per line: `pause published` or `pause completed` lets the next job that comes to this moment pause there
until its process is killed. `finish` ends the jobs after their current batches.
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
from collections import defaultdict, deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from lakewarden.events import (
    Abort,
    Admitted,
    AlreadyCommitted,
    CommitCompleted,
    CommitGranted,
    DecisionEvent,
    GrantRenewed,
)
from lakewarden.events.access import stop_client
from tests.real import storm_tables
from tests.real.storm_tables import Line
from tests.real.writers import Received, World, Writer, markers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HEARTBEAT_SECONDS: Final = 2.0
BEAT_SECONDS: Final = 1.0
MARGIN_SECONDS: Final = 0.5
STEP_SECONDS: Final = 0.02
WRITERS: Final = 50
TABLES: Final = 200
"""Each table is assigned to one writer, which commits to it at least once."""
HOT: Final = 5
HOT_SHARE: Final = 0.5
"""The share of batches that go to the hot tables."""
GROUPS: Final = 6
"""File groups of a table. There are few, so that conflicts occur."""
LONG_SHARE: Final = 0.05
"""The share of publishes that take longer than a heartbeat interval."""
PAUSE_SHARE: Final = 0.05
PAUSE_SECONDS: Final = 1.0
"""`PAUSE_SHARE` of the commits pause between publish and completion, and as many between completion and acknowledgement."""
REQUESTED_PAUSE_SECONDS: Final = 60.0
"""A pause on request. It is long, because it ends with a kill, however late a busy machine notices the pause."""
SCOPE_EXCEEDED_SHARE: Final = 0.3
"""The share of retries that touch more than their scope."""
MAX_LOSSES: Final = 3
"""As the agents' setting. After so many losses a retry touches only its scope, and wins."""


@dataclass(slots=True)
class Attempt(Writer):
    """One transaction of a batch."""

    batch: int = 0
    sent: dict[int, float] = field(default_factory=dict)
    """When each `seq` was sent, on this process's clock. A grant lease that answers it started then."""
    heartbeats: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def opened(self, **intent: Any) -> AsyncIterator[None]:
        """Publish the intent, and heartbeats while the block runs."""
        await self.send_intent(batch_id=self.batch, heartbeat_seconds=HEARTBEAT_SECONDS, **intent)
        self.heartbeats = asyncio.create_task(self._publish_heartbeats())
        try:
            yield
        finally:
            self.stop_heartbeats()
            self.world.decisions.pop(self.transaction, None)

    async def _publish_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self.sent[self.seq + 1] = time.monotonic()
            await self.heartbeat()

    def stop_heartbeats(self) -> None:
        """Publish no heartbeat after the end: an agent that has forgotten the transaction answers `unknown-transaction`."""
        assert self.heartbeats is not None
        self.heartbeats.cancel()

    def abort(self) -> Abort | None:
        """The abort, or None."""
        return next((each.event for each in self.decisions() if isinstance(each.event, Abort)), None)

    async def decided(self, *kinds: type[DecisionEvent]) -> Received:
        """Wait for the first decision of these kinds. Raises `AbortedError` if there is an abort, before or instead."""
        received = await self.answer(*kinds)
        if isinstance(received.event, Abort):
            raise AbortedError(received.event)
        return received

    async def granted(self) -> tuple[int, CommitGranted]:
        """Request the grant, and wait for it. Return its offset, too, which is the fencing token."""
        self.sent[self.seq + 1] = time.monotonic()
        await self.request_commit()
        received = await self.decided(CommitGranted)
        assert isinstance(received.event, CommitGranted)
        return received.offset, received.event

    async def completed(self, grant: str) -> None:
        await self.world.send(self.event(CommitCompleted, grant=grant, batch_id=self.batch))

    def deadline(self, grant: str) -> float:
        """The end of the grant lease minus the margin, on this process's clock."""
        leases = [
            self.sent[each.event.seq] + each.event.lease_seconds
            for each in self.decisions()
            if isinstance(each.event, CommitGranted | GrantRenewed) and each.event.grant == grant
        ]
        return max(leases) - MARGIN_SECONDS


class AbortedError(Exception):
    """The agent has aborted the transaction."""

    def __init__(self, abort: Abort) -> None:
        super().__init__(abort.reason)
        self.abort = abort


class TooLateError(Exception):
    """The grant lease ended before the publish was complete."""


@asynccontextmanager
async def connected(options: argparse.Namespace) -> AsyncIterator[World]:
    """The world of all jobs of this process. It reads `decisions` from the beginning, for the terms in force."""
    topic = f"{options.prefix}.decisions"
    decisions = [TopicPartition(topic, number) for number in range(options.partitions)]
    servers = {"bootstrap_servers": options.bootstrap}
    producer = AIOKafkaProducer(**servers, acks="all", enable_idempotence=True, request_timeout_ms=20_000)
    consumer = AIOKafkaConsumer(**servers, auto_offset_reset="earliest", enable_auto_commit=False)
    values = {"partitions": options.partitions}
    world = World(options.bootstrap, options.prefix, Path(), producer, consumer, overrides=values)
    await producer.start()
    await consumer.start()
    consumer.assign(decisions)
    await consumer.seek_to_beginning(*decisions)
    consuming = asyncio.create_task(world.consume())
    try:
        yield world
    finally:
        consuming.cancel()
        await stop_client(consumer)
        await stop_client(producer)


class EvidenceLog:
    """The evidence file, and the state of these writers that it records."""

    def __init__(self, path: Path) -> None:
        self.next_batch: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.losses: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.unfinished: dict[str, tuple[str, int]] = {}
        """The batch that a writer had begun and not acknowledged."""
        self.touched: defaultdict[str, set[str]] = defaultdict(set)
        """What the aborted attempts of that batch have touched."""
        self.line_count = 0
        """The number of lines, which makes the random choices of each restart different."""
        if path.exists():
            for line in path.read_bytes().splitlines():
                self._apply(json.loads(line))
                self.line_count += 1
        self._file: IO[bytes] = path.open("ab", buffering=0)

    def write(self, what: str, attempt: Attempt, **more: Any) -> None:
        """Append a line with one write, so that a kill leaves no partial line."""
        line = {
            "what": what,
            "t": time.monotonic(),
            "table": attempt.table,
            "writer": attempt.name,
            "batch": attempt.batch,
            "transaction": attempt.transaction,
            **more,
        }
        self._file.write(json.dumps(line).encode() + b"\n")
        self._apply(line)

    def _apply(self, line: dict[str, Any]) -> None:
        where = (line["writer"], line["table"])
        match line["what"]:
            case "try":
                self.unfinished[line["writer"]] = (line["table"], line["batch"])
            case "aborted":
                self.losses[where] += line["reason"] == "conflict"
                self.touched[line["writer"]] |= set(line["touched"])
            case "acknowledged":
                self.touched.pop(line["writer"], None)
                self.next_batch[where] = line["batch"] + 1
                self.losses[where] = 0
                self.unfinished.pop(line["writer"], None)
            case _:
                pass


class Commands:
    """The commands from stdin, which a thread reads."""

    def __init__(self) -> None:
        self.finish = threading.Event()
        self._pauses: deque[str] = deque()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            match line.split():
                case ["pause", after]:
                    self._pauses.append(after)
                case ["finish"]:
                    self.finish.set()
                case unknown:
                    raise AssertionError(unknown)
        self.finish.set()  # stdin is closed: the parent process has ended

    def pop_pause(self, after: str) -> bool:
        """Whether a pause at this moment was requested. Only one job gets it."""
        if after not in self._pauses:
            return False
        self._pauses.remove(after)
        return True


class Job:
    """One writer."""

    def __init__(
        self, name: str, world: World, evidence: EvidenceLog, commands: Commands, options: argparse.Namespace
    ) -> None:
        self._name = name
        self._world = world
        self._evidence = evidence
        self._commands = commands
        self._tables: str = options.tables
        self._chance = random.Random(f"{options.seed}-{name}-{evidence.line_count}")
        self._own = range(int(name.rpartition("-")[2]), TABLES, WRITERS)
        self._touched: set[str] = set()

    async def run(self) -> None:
        """Commit batch after batch, first the unfinished one. Don't end before each own table has a commit."""
        while (
            not self._commands.finish.is_set() or self._name in self._evidence.unfinished or self._untouched()
        ):
            table, batch = self._evidence.unfinished.get(self._name) or self._next_batch()
            await self._commit(table, batch)
            await asyncio.sleep(self._chance.uniform(0.0, 0.2))

    def _next_batch(self) -> tuple[str, int]:
        """A random table and this writer's next batch there."""
        hot = self._chance.random() < HOT_SHARE
        number = self._chance.choice(range(HOT) if hot else self._untouched() or range(TABLES))
        table = f"{self._tables}/t-{number}"
        return table, self._evidence.next_batch[self._name, table]

    def _untouched(self) -> list[int]:
        done = self._evidence.next_batch
        return [each for each in self._own if not done[self._name, f"{self._tables}/t-{each}"]]

    async def _commit(self, table: str, batch: int) -> None:
        """Try until the batch is acknowledged. A retry declares what the batch has touched, and is queued."""
        self._touched = set(self._evidence.touched[self._name])
        while True:
            attempt = self._new(table, batch, uuid.uuid4().hex)
            try:
                how = await self._attempt(attempt)
            except AbortedError as error:
                abort = error.abort
                self._evidence.write("aborted", attempt, reason=abort.reason, touched=sorted(self._touched))
                if not abort.retriable and abort.reason != "superseded":
                    raise  # an error in this file: it ends the process and the test
            except TooLateError:
                pass
            else:
                self._evidence.write("acknowledged", attempt, how=how)
                return
            await asyncio.sleep(self._chance.uniform(0.0, 0.1))

    async def _attempt(self, attempt: Attempt) -> str:
        losses = self._evidence.losses[attempt.name, attempt.table]
        scope = markers(*sorted(self._touched))
        admission = "queued" if scope else "optimistic"
        self._evidence.write("try", attempt, admission=admission, losses=losses)
        async with attempt.opened(admission=admission, scope=scope):
            first = await attempt.decided(Admitted, AlreadyCommitted)
            if isinstance(first.event, AlreadyCommitted):
                return "already-committed"
            if (line := storm_tables.commit_of(attempt.table, attempt.name, attempt.batch)) is not None:
                await self._found(attempt, line)
                return "found"
            await self._compute(attempt, exact=bool(scope) and losses >= MAX_LOSSES)
            token, granted = await attempt.granted()
            await self._publish(attempt, token, granted.grant)
            await self._pause(attempt, "published")
            attempt.stop_heartbeats()
            await attempt.completed(granted.grant)
            await self._pause(attempt, "completed")
        return "published"

    async def _pause(self, attempt: Attempt, after: str) -> None:
        requested = self._commands.pop_pause(after)
        if requested or self._chance.random() < PAUSE_SHARE:
            self._evidence.write("pausing", attempt, after=after, requested=requested)
            await asyncio.sleep(REQUESTED_PAUSE_SECONDS if requested else PAUSE_SECONDS)

    async def _found(self, attempt: Attempt, line: Line) -> None:
        """Report the completion of a commit that this writer made before it was killed."""
        await self._new(attempt.table, line.batch, line.transaction).completed(line.grant)
        await self._abandon(attempt, "its batch is in the table")

    async def _abandon(self, attempt: Attempt, reason: str) -> None:
        attempt.stop_heartbeats()
        await attempt.abandon(reason)

    def _new(self, table: str, batch: int, transaction: str) -> Attempt:
        return Attempt(self._world, self._name, table, transaction, batch=batch)

    async def _compute(self, attempt: Attempt, *, exact: bool) -> None:
        retry = bool(self._touched)
        if not retry or (not exact and self._chance.random() < SCOPE_EXCEEDED_SHARE):
            for _ in range(self._chance.randrange(1, 3)):
                group = str(self._chance.randrange(GROUPS))
                self._touched.add(group)
                await attempt.touch(group)
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
            await self._abandon(attempt, "the lease has ended")
            raise TooLateError
        self._evidence.write("publishing", attempt, token=token, grant=grant)
        until = time.monotonic() + seconds
        while (abort := attempt.abort()) is None and (now := time.monotonic()) < attempt.deadline(grant):
            if now >= until:
                line = Line(attempt.name, attempt.batch, attempt.transaction, grant)
                storm_tables.append(attempt.table, line)
                self._evidence.write("published", attempt)
                return
            await asyncio.sleep(STEP_SECONDS)
        self._evidence.write("stopped", attempt)
        await self._abandon(attempt, "nothing was published")
        if abort is not None:
            raise AbortedError(abort)
        raise TooLateError


async def _run(options: argparse.Namespace) -> None:
    evidence, commands = EvidenceLog(options.evidence), Commands()
    async with connected(options) as world, asyncio.TaskGroup() as jobs:
        for name in options.names.split(","):
            job = Job(name, world, evidence, commands, options)
            jobs.create_task(job.run())


def main() -> None:
    """Run the jobs."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "prefix", "tables", "names"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("partitions", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--evidence", type=Path, required=True)
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
