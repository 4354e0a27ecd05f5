"""What is committed with a partition's offset: enough for the next owner to begin where this one ended.

Kafka keeps one offset and a short text beside it. The offset is the oldest intent that a replay must see; the text, JSON,
names the position in `decisions` that belongs to it, the term in force there, and how many partitions the topic had: if that
number has changed, tables have moved between partitions, and what is in them is no longer one order a table.

Checkpoints never go back, and are committed only after all that was decided is in the log.
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
    """Where a replay begins, in `writers` and in `decisions`."""

    offset: int
    decided: Position

    def metadata(self, partitions: int) -> str:
        """The text beside the offset."""
        return json.dumps(
            {"decisions": self.decided.offset, "term": self.decided.term, "partitions": partitions}
        )


class Checkpoints:
    """What this session has committed of its partitions."""

    def __init__(self, consumer: AIOKafkaConsumer, topic: str, partitions: int) -> None:
        self._consumer = consumer
        self._topic = topic
        self._partitions = partitions
        self._committed: dict[int, Checkpoint] = {}

    def is_committed(self, number: int, point: Checkpoint) -> bool:
        """Whether this very point is committed already."""
        return self._committed.get(number) == point

    async def commit(self, points: Mapping[int, Checkpoint]) -> None:
        """Commit; all that was decided must be in the log."""
        forward = {
            number: point
            for number, point in points.items()
            if number not in self._committed or point.offset >= self._committed[number].offset
        }
        if not forward:
            return
        offsets = {
            TopicPartition(self._topic, number): OffsetAndMetadata(
                point.offset, point.metadata(self._partitions)
            )
            for number, point in forward.items()
        }
        try:
            await self._consumer.commit(offsets)
        except CommitFailedError:
            # The group has moved on without us; the next owner replays a little more.
            log.info("offsets.not-ours", partitions=sorted(forward))
            return
        self._committed.update(forward)

    def forget(self, numbers: Iterable[int]) -> None:
        """These partitions are no longer ours."""
        for number in numbers:
            self._committed.pop(number, None)


def decisions_position(metadata: str) -> Position:
    """The position in `decisions` that was committed; the beginning where there is none."""
    known = _parse(metadata)
    decisions, term = known.get("decisions"), known.get("term")
    return Position(decisions if isinstance(decisions, int) else 0, term if isinstance(term, str) else None)


def recorded_partitions(metadata: str) -> int | None:
    """How many partitions the topic had."""
    found = _parse(metadata).get("partitions")
    return found if isinstance(found, int) else None


def require_same_partitions(count: int | None, partitions: int, settings: Settings) -> None:
    """Raise `PartitionsChangedError` where the topic's partitions are, or were, another number; None: not known."""
    if count is not None and count != partitions:
        raise PartitionsChangedError(
            f"topic {settings.topics.writers} has {max(count, partitions)} partitions and had {min(count, partitions)}: tables "
            "have moved between them, and the order of their events is lost; stop agents and writers, and start both "
            f"with another topic prefix (now {settings.topic_prefix})"
        )


def _parse(metadata: str) -> dict[str, object]:
    try:
        known = json.loads(metadata)
    except ValueError:
        return {}
    return known if isinstance(known, dict) else {}
