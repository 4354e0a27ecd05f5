"""`lakewarden refused`: the events that agents refused, from the dead letters, each with the reason."""

import base64
from dataclasses import dataclass

from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.log import Log
from lakewarden.agent.settings import KafkaSettings
from lakewarden.agent.time_text import timestamp
from lakewarden.events import DeadLetter
from lakewarden.events.codec import json_object

MAX_REFUSED = 500
"""Refused events that are listed, the last ones."""
MAX_VALUE = 300
"""Characters of a refused record that are shown."""


@dataclass(frozen=True, slots=True)
class RefusedEvent:
    """A refused record. The field names are the JSON of `lakewarden refused`."""

    at: str
    """When the agent refused it, by Kafka's record."""
    reason: str
    topic: str
    partition: int
    offset: int
    """Offset of the refused record."""
    table: str | None
    """What could be read of it, as it stands there."""
    transaction: str | None
    writer: str | None
    type: str | None
    value: str
    """Its beginning."""


def refused_event(record: ConsumerRecord) -> RefusedEvent | None:
    """The event of a record of `dead-letters`. None: the record is no dead letter."""
    try:
        letter = DeadLetter.model_validate_json(record.value or b"", extra="ignore")
        value = base64.b64decode(letter.value)
    except ValueError:  # no JSON, other fields, or no base64
        return None
    names = _names(value)
    return RefusedEvent(
        timestamp(record.timestamp),
        letter.reason,
        letter.topic,
        letter.partition,
        letter.offset,
        names.get("table"),
        names.get("transaction"),
        names.get("writer"),
        names.get("type"),
        value.decode(errors="replace")[:MAX_VALUE],
    )


def _names(value: bytes) -> dict[str, str]:
    """The names in a record, as far as it can be read: a long one is cut, and no JSON any more."""
    return {name: each for name, each in json_object(value).items() if isinstance(each, str)}


async def refused(settings: KafkaSettings) -> list[RefusedEvent]:
    """The last `MAX_REFUSED` refused events, the latest first."""
    async with Log(settings) as log:
        records = [each for found in (await log.read(await last_spans(log))).values() for each in found]
    records.sort(key=lambda each: each.timestamp)
    found = (refused_event(each) for each in records[-MAX_REFUSED:])
    return [each for each in found if each is not None][::-1]


async def last_spans(log: Log) -> dict[TopicPartition, int]:
    """Where the last `MAX_REFUSED` records of each partition of `dead-letters` begin."""
    ends = await log.ends(await log.partitions(log.topics.dead_letters))
    return {each: max(0, end - MAX_REFUSED) for each, end in ends.items()}
