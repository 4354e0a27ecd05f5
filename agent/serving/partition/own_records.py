"""The records that the owner of one partition publishes, and what follows when Kafka acknowledges or refuses them.

| record | topic | acknowledged |
| --- | --- | --- |
| `partition-taken` | `ledger` and `decisions` | its offsets order the take-overs (`handlers/group/ownership.py`) |
| a decision | `decisions` | noted for the checkpoints (`log_seen.py`) |
| a ledger entry | `ledger` | likewise |
| a conflict | `conflicts` | |
| a dead letter | `dead_letters` | |

`of_effect` builds, encodes and measures a record without queueing it, so that a step publishes all of its records or none. A
record that is too large for Kafka stops its table: at once if the agent measures it, in the next session if a broker refuses it.
"""

import base64
from collections.abc import Callable
from functools import partial

import structlog
from aiokafka.structs import ConsumerRecord

from lakewarden import events
from lakewarden.agent import wire_events
from lakewarden.agent.errors import RecordTooLargeError
from lakewarden.agent.locks.table_locks import Ownership
from lakewarden.agent.publisher import Outgoing
from lakewarden.agent.serving.partition.log_seen import LogSeen
from lakewarden.handlers.group.ownership import TakeOvers
from lakewarden.handlers.table.effects import Effect, Warn

log = structlog.get_logger()

DEAD_LETTER_BYTES = 1024
MAX_REASON = 1_000
"""Characters of a reason, which may quote the event: it must fit into a record."""
MAX_KEY_BYTES = 4_096
"""Limit of a refused record's key, which is the key of the answer, too: longer than the URI of any table."""


class OwnRecords:
    """What one owner publishes."""

    def __init__(self, ownership: Ownership, seen: LogSeen, unpublishable: dict[str, str]) -> None:
        settings = ownership.shared.settings
        self.number, self.term = ownership.number, ownership.term
        self.agent = settings.agent_id
        self.takeovers = TakeOvers()
        """This owner's own, once Kafka has acknowledged them, and those of others."""
        self.unpublishable = unpublishable
        """Tables whose record a broker refused for its size, with the reason."""
        self._instance = settings.group_instance_id
        self._topics = settings.topics
        self._publisher = ownership.shared.publisher
        self._seen = seen

    def put(self, record: Outgoing) -> None:
        self._publisher.put(record)

    def decision(self, key: bytes, decision: events.DecisionEventUnion) -> None:
        value = events.encode(wire_events.stamped(decision, self.agent, self.term))
        self._put_decision(key, value, partial(self._seen.on_decision, value))

    def takeover(self, *, first: bool) -> None:
        key, value = self.take_ledger_over(first=first)
        self._put_decision(key, value, partial(self._first_taken if first else self._taken_again, value))

    def take_ledger_over(self, *, first: bool = False) -> tuple[bytes, bytes]:
        """Publish `partition-taken` in the ledger. Return its key and value."""
        table = events.partition_name(self.number)
        taken = events.PartitionTaken.model_construct(
            **events.UNSTAMPED, table=table, agent="", term="", instance=self._instance
        )
        key, value = table.encode(), events.encode(wire_events.stamped(taken, self.agent, self.term))
        in_ledger = partial(self._first_in_ledger if first else self._seen.on_ledger_entry, value)
        self._publisher.put(Outgoing(self._topics.ledger, key, value, self.number, on_offset=in_ledger))
        return key, value

    def _first_in_ledger(self, value: bytes, offset: int) -> None:
        self.takeovers.own_in_ledger = offset
        self._seen.on_ledger_entry(value, offset)

    def _first_taken(self, value: bytes, offset: int) -> None:
        self.takeovers.own = offset
        self._seen.on_decision(value, offset)

    def _taken_again(self, value: bytes, offset: int) -> None:
        self.takeovers.again = max(self.takeovers.again, offset)
        self._seen.on_decision(value, offset)

    def refusal(self, record: ConsumerRecord, bad: events.Undecodable, why: str) -> events.Abort:
        """Publish the `abort(not-allowed)` of a transaction of which the owner refuses a record, and return it."""
        assert bad.table is not None
        assert bad.transaction is not None
        abort = events.Abort.model_construct(
            **events.UNSTAMPED,
            table=bad.table,
            transaction=bad.transaction,
            writer=bad.writer or "",
            agent="",
            cause=bad.event_id,
            cause_offset=record.offset,
            reason="not-allowed",
            retriable=False,
            detail=why,
        )
        # The answer goes to this partition: its writer consumes the partition that it sent the record to.
        self.decision((record.key or b"")[:MAX_KEY_BYTES] or bad.table.encode(), abort)
        return abort

    def of_effect(self, uri: str, effect: Effect, read: ConsumerRecord | None) -> Outgoing | None:
        """The record of an effect, or None if it has none. `read`: that of the event that is being decided.

        Raises `RecordTooLargeError`.
        """
        if isinstance(effect, Warn):
            return None if read is None else self.dead_letter(read, f"{effect.event}: {effect.detail}")
        if not isinstance(
            effect,
            events.DecisionEvent | events.ConflictDetected | events.BatchCommitted | events.ConflictsLost,
        ):
            return None
        value = events.encode(wire_events.stamped(effect, self.agent, self.term))
        key, too_large = uri.encode(), partial(self._refused_by_broker, uri)
        if isinstance(effect, events.ConflictDetected):
            record = Outgoing(self._topics.conflicts, key, value, on_too_large=too_large)
        elif isinstance(effect, events.DecisionEvent):
            acknowledged = partial(self._seen.on_decision, value)
            record = Outgoing(self._topics.decisions, key, value, self.number, acknowledged, too_large)
        else:
            record = self._ledger_entry(effect, value, too_large)
        size = len(record.key) + len(record.value)
        if size > wire_events.MAX_RECORD_BYTES:
            raise RecordTooLargeError(
                f"a record for {record.topic} would have {size} bytes, at most {wire_events.MAX_RECORD_BYTES} are sent"
            )
        return record

    def _put_decision(self, key: bytes, value: bytes, acknowledged: Callable[[int], None]) -> None:
        self._publisher.put(Outgoing(self._topics.decisions, key, value, self.number, on_offset=acknowledged))

    def _ledger_entry(
        self, entry: events.LedgerEventUnion, value: bytes, too_large: Callable[[Exception], None]
    ) -> Outgoing:
        key = events.ledger_key(
            entry.table, entry.writer, "losses" if isinstance(entry, events.ConflictsLost) else None
        )
        acknowledged = partial(self._seen.on_ledger_entry, value)
        return Outgoing(self._topics.ledger, key, value, self.number, acknowledged, too_large)

    def dead_letter(self, record: ConsumerRecord, reason: str) -> Outgoing:
        letter = events.DeadLetter(
            reason=reason[:MAX_REASON],
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            value=base64.b64encode((record.value or b"")[:DEAD_LETTER_BYTES]).decode(),
        )
        return Outgoing(self._topics.dead_letters, (record.key or b"")[:MAX_KEY_BYTES], events.encode(letter))

    def _refused_by_broker(self, uri: str, error: Exception) -> None:
        self.unpublishable[uri] = (
            f"a broker refuses a record for its size: {error!r}; raise max.message.bytes"
        )
