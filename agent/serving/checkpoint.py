"""A partition's checkpoint: the committed offset with its metadata, from which the next owner replays.

- The offset is that of the oldest intent that a replay must read.
- The metadata, JSON, has the matching position in `decisions`, the term in force at that position, and the topic's number of
  partitions. If that number has changed, tables have moved between partitions, and their events have no single order any more.

Checkpoints never move backwards. The agent commits one only after all its decisions are in the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CommitFailedError
from aiokafka.structs import OffsetAndMetadata

from lakewarden.agent.errors import PartitionsChangedError
from lakewarden.agent.settings import Settings
from lakewarden.handlers.table.replay import Position

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a replay starts, in `writers` and in `decisions`."""

    offset: int
    decisions: Position

    def metadata(self, partitions: int) -> str:
        """The metadata of the committed offset."""
        return json.dumps(
            {"decisions": self.decisions.offset, "term": self.decisions.term, "partitions": partitions}
        )


class Checkpoints:
    """The checkpoints that this session has committed."""

    def __init__(self, consumer: AIOKafkaConsumer, topic: str, partitions: int) -> None:
        self._consumer = consumer
        self._topic = topic
        self._partitions = partitions
        self._committed: dict[int, Checkpoint] = {}

    def is_committed(self, number: int, checkpoint: Checkpoint) -> bool:
        """Whether this checkpoint is the one that was committed last."""
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
        try:
            await self._consumer.commit(offsets)
        except CommitFailedError:
            # The group has reassigned these partitions; the next owner replays a little more.
            log.info("checkpoint.rejected", partitions=sorted(forward))
            return
        self._committed.update(forward)

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget the checkpoints of partitions that this session does not own any more."""
        for number in numbers:
            self._committed.pop(number, None)


def decisions_position(metadata: str) -> Position:
    """The position in `decisions` that a checkpoint's metadata has, or the beginning if it has none."""
    fields = _parse(metadata)
    decisions, term = fields.get("decisions"), fields.get("term")
    return Position(decisions if isinstance(decisions, int) else 0, term if isinstance(term, str) else None)


def recorded_partitions(metadata: str) -> int | None:
    """The topic's number of partitions that a checkpoint's metadata has, or None."""
    found = _parse(metadata).get("partitions")
    return found if isinstance(found, int) else None


def require_same_partitions(count: int | None, partitions: int, settings: Settings) -> None:
    """Raise `PartitionsChangedError` if `count`, the topic's present or recorded number of partitions, is known and differs."""
    if count is not None and count != partitions:
        raise PartitionsChangedError(
            f"topic {settings.topics.writers} has {max(count, partitions)} partitions and had {min(count, partitions)}, so "
            "tables have moved between partitions and their events have lost their order; stop the agents and the writers, "
            f"and start both with another topic prefix (now {settings.topic_prefix})"
        )


def _parse(metadata: str) -> dict[str, object]:
    try:
        fields = json.loads(metadata)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
