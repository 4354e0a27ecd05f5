"""A partition's checkpoint: the committed offset with its metadata, from which the next owner replays.

- The offset is that of the oldest intent that a replay must read.
- The metadata, JSON, has the matching position in `decisions`, the term in force at that position, and the topic's number of
  partitions. If that number has changed, tables have moved between partitions, and their events have no single order any more.
- It also has what shows the next owner that the log is complete (`handlers/table/log_gaps.py`): the last event that the owner had
  read, the last decision and the last ledger entry that it had published, where the ledger began, and gaps found before.

Checkpoints never move backwards, whichever agent commits them. The agent commits one only after all its decisions are in the log,
and only as the member of the group that it was when it computed it:

- While a group has no members, Kafka accepts a commit of any client. So an agent that was suspended, and knows that it is no
  member any more, commits nothing.
- aiokafka repeats a commit that failed, perhaps under the membership that the agent has got since. So a revocation ends the
  commits that run (`Checkpoints.interrupt`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from typing import cast, get_args

import anyio
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CommitFailedError
from aiokafka.structs import OffsetAndMetadata

from lakewarden.agent.errors import PartitionsChangedError
from lakewarden.agent.kafka import is_member
from lakewarden.agent.settings import KafkaSettings
from lakewarden.events.codec import json_object
from lakewarden.handlers.table.log_gaps import Gap, LastRecord, Problem
from lakewarden.handlers.table.replay import Position

log = structlog.get_logger()

GAPS_KEPT = timedelta(days=7)
"""How long the checkpoints carry a gap that was found: as long as Kafka keeps the aborts that followed from it."""
MAX_GAPS = 5
"""Gaps that a checkpoint carries, the latest ones. Kafka accepts 4,096 bytes of metadata; a gap has about 150."""


@dataclass(frozen=True, slots=True)
class FoundGap:
    """A gap that a take-over has found, and when, in UTC."""

    gap: Gap
    at: datetime
    decisions_end: int = 0
    """Offset after the decisions that came before the take-over. 0: unknown."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a replay starts, in `writers` and in `decisions`, and what the log had then."""

    offset: int
    decisions: Position
    read: LastRecord | None = None
    """The last event that the owner had read."""
    published: LastRecord | None = None
    """The last decision that Kafka had acknowledged."""
    ledger_end: int = 0
    """Offset after the last ledger entry that Kafka had acknowledged."""
    gaps: tuple[FoundGap, ...] = ()
    entry: LastRecord | None = None
    """That ledger entry."""
    ledger_beginning: int = 0
    """Offset of the ledger's first record."""

    def metadata(self, partitions: int) -> str:
        return json.dumps(
            {
                "decisions": self.decisions.offset,
                "term": self.decisions.term,
                "partitions": partitions,
                "read": self.read and astuple(self.read),
                "published": self.published and astuple(self.published),
                "ledger": self.ledger_end,
                "entry": self.entry and astuple(self.entry),
                "ledger_beginning": self.ledger_beginning,
                "gaps": [
                    [each.at.isoformat(), *astuple(each.gap), each.decisions_end]
                    for each in self.gaps[-MAX_GAPS:]
                ],
            }
        )

    @classmethod
    def parse(cls, offset: int, metadata: str) -> Checkpoint:
        """The checkpoint of a committed offset. What its metadata doesn't have, or has in another form, is left out."""
        fields = json_object(metadata)
        decisions, term = fields.get("decisions"), fields.get("term")
        ledger_end, beginning, gaps = fields.get("ledger"), fields.get("ledger_beginning"), fields.get("gaps")
        return cls(
            offset,
            Position(decisions if isinstance(decisions, int) else 0, term if isinstance(term, str) else None),
            _record(fields.get("read")),
            _record(fields.get("published")),
            ledger_end if isinstance(ledger_end, int) else 0,
            tuple(found for each in gaps if (found := _gap(each)) is not None)
            if isinstance(gaps, list)
            else (),
            _record(fields.get("entry")),
            beginning if isinstance(beginning, int) else 0,
        )


def digest(value: bytes | None) -> str:
    """Identifies a record."""
    return hashlib.blake2b(value or b"", digest_size=8).hexdigest()


def recent_gaps(gaps: Iterable[FoundGap], now: datetime) -> tuple[FoundGap, ...]:
    """Those that the next checkpoints still carry."""
    return tuple(each for each in gaps if now - each.at < GAPS_KEPT)


def _record(found: object) -> LastRecord | None:
    match found:
        case [int(offset), str(known)]:
            return LastRecord(offset, known)
        case _:
            return None


def _gap(found: object) -> FoundGap | None:
    match found:
        case [str(at), str(topic), str(problem), int(expected), int(there), *rest] if problem in get_args(
            Problem
        ):
            try:
                moment = datetime.fromisoformat(at)
            except ValueError:
                return None
            end = rest[0] if rest and isinstance(rest[0], int) else 0
            return FoundGap(Gap(topic, cast("Problem", problem), expected, there), moment, end)
        case _:
            return None


class Checkpoints:
    """The checkpoints that this session has committed."""

    def __init__(self, consumer: AIOKafkaConsumer, topic: str, partitions: int) -> None:
        self._consumer = consumer
        self._topic = topic
        self._partitions = partitions
        self._committed: dict[int, Checkpoint] = {}
        self._running: set[anyio.CancelScope] = set()

    def is_committed(self, number: int, checkpoint: Checkpoint) -> bool:
        return self._committed.get(number) == checkpoint

    async def commit(self, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Commit the checkpoints that don't move backwards. All decisions must be in the log already."""
        forward = {
            number: checkpoint
            for number, checkpoint in checkpoints.items()
            if number not in self._committed or checkpoint.offset >= self._committed[number].offset
        }
        if not forward:
            return
        offsets = {
            TopicPartition(self._topic, number): OffsetAndMetadata(
                checkpoint.offset, checkpoint.metadata(self._partitions)
            )
            for number, checkpoint in forward.items()
        }
        if not await self._commit(offsets):
            # The group has reassigned these partitions; the next owner replays a little more.
            log.info("checkpoint.rejected", partitions=sorted(forward))
            return
        self._committed.update(forward)

    async def _commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        if not is_member(self._consumer):
            return False
        with anyio.CancelScope() as running:
            self._running.add(running)
            try:
                await self._consumer.commit(offsets)
            except CommitFailedError:
                return False
            finally:
                self._running.discard(running)
            return True
        return False

    def interrupt(self) -> None:
        """End the commits that run: the group is about to reassign the partitions."""
        for running in self._running:
            running.cancel()

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget the checkpoints of partitions that this session does not own any more."""
        for number in numbers:
            self._committed.pop(number, None)


def recorded_partitions(metadata: str) -> int | None:
    """The topic's number of partitions that a checkpoint's metadata has, or None."""
    found = json_object(metadata).get("partitions")
    return found if isinstance(found, int) else None


def require_same_partitions(count: int | None, partitions: int, settings: KafkaSettings) -> None:
    """Raise `PartitionsChangedError` if `count`, the topic's present or recorded number of partitions, is known and differs."""
    if count is not None and count != partitions:
        raise PartitionsChangedError(
            f"topic {settings.topics.writers} has {max(count, partitions)} partitions and had {min(count, partitions)}, so "
            "tables have moved between partitions and their events have lost their order; stop the agents and the writers, "
            f"take the ledger to another topic prefix (now {settings.topic_prefix}) as docs/kafka.md says, More partitions"
        )
