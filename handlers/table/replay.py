"""Merges the published decisions of a partition into the replay of its events, and selects those that count.

Order
1. A decision is applied right after the event at its `cause_offset`, even if the record at that offset can't be decoded.
2. Decisions are applied in the order of their own topic.
   If Kafka has lost the end of `writers`, the offsets from there on belong to other events by now. The owner that noticed had
   applied all decisions at the end that was left. So a later replay applies those that came before that take-over there at the
   latest (`lost_ends`).

Terms
3. An agent that takes a partition over publishes `partition-taken` with a new term, and only then reads `decisions`. From that
   record on, only decisions of that term count: for this agent, for later owners, and for writers that read the record. An
   agent that was suspended or cut off, and doesn't know that it lost the partition, publishes decisions that don't count.
4. The last `partition-taken` in the log counts, whichever agent Kafka's group names as owner: a record may reach the log late.
   So an owner reads `decisions` for later `partition-taken` records, and restarts its session when it finds one.

5. An owner takes over the locks of all owners before its own `partition-taken` at once: it has read each of their grants that
   counts (docs/decisions/0058-a-former-owners-lock.md). It knows them by their terms (`terms_before`).

Requests of unknown transactions
6. A `commit-requested` that was published while no agent ran may be of a transaction that the agent doesn't know: its intent was
   removed, or its transaction had ended. Its writer waits for an answer. So at the end of the replay the agent publishes
   `unknown-transaction` for it, if no decision about the transaction follows it in the log. An admission doesn't count: it
   answers the intent. A published answer is found by each later replay that reads the request, because a checkpoint has no
   decision before its position that answers a later event. So the answer is published once. Events of other types get theirs
   when the writer's next event is read.
7. The ledger's last transaction of the writer gets no such answer: the request is a repeated delivery. Other repeated requests of
   transactions that ended before the checkpoint look like unanswered ones. They get the answer, which no writer awaits.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from lakewarden import events

Subject: TypeAlias = tuple[str, str, str]
"""What an event or a decision is about: table, transaction, writer. A stranger may use the id with another table or writer."""


def subject(event: events.WriterEventUnion | events.DecisionEventUnion) -> Subject:
    """What an event or a decision is about."""
    return event.table, event.transaction, event.writer


@dataclass(frozen=True, slots=True)
class Position:
    """An offset in `decisions`, and the term in force there (None: unknown)."""

    offset: int
    term: str | None


MAX_FORMER_TERMS = 100
"""Take-overs whose locks are recognised. Older ones are contenders as any other."""
MAX_POSITIONS = 10_000
"""Intents whose positions are kept, about 150 bytes each. With more, every second one is dropped."""


class CheckpointPositions:
    """By intent: the position in `decisions` before which no decision concerns the intent or a later event.

    A checkpoint names the oldest intent that a replay must read, and its position. An earlier intent's position is valid too: the
    replay reads more decisions than it needs. So positions may be dropped while a checkpoint does not move: a table is stopped,
    or a transaction stays open.
    """

    def __init__(self) -> None:
        self._by_intent: dict[int, Position] = {}
        """In the order of the offsets."""
        self._last = -1

    def on_intent(self, offset: int, position: Position) -> None:
        """The owner reads an intent. `position`: before the first decision that is not applied yet."""
        self._by_intent.setdefault(offset, position)
        self._last = max(self._last, offset)
        if len(self._by_intent) > MAX_POSITIONS:
            self._by_intent = dict(list(self._by_intent.items())[::2])

    def at(self, offset: int, end: Position) -> Position:
        """The position for a checkpoint at this offset: that of the intent there, or `end`. Older intents are forgotten."""
        known = [each for each in self._by_intent if each <= offset]
        kept = 0 if offset > self._last else 1
        for old in known[: len(known) - kept]:
            del self._by_intent[old]
        return self._by_intent[known[-1]] if known and kept else end


class PublishedDecisions:
    """The decisions that count, to be applied in step with the events."""

    def __init__(self, start: Position, records: Iterable[tuple[int, events.DecisionRecord]]) -> None:
        self.start = start
        self.lost_ends: list[tuple[int, int]] = []
        """The lost ends of `writers`. Each has the offset after the decisions that came before, and the end that was left."""
        self.term = start.term
        """The term in force at the end."""
        self._terms: dict[str, None] = {} if start.term is None else {start.term: None}
        """In the order of their first `partition-taken`."""
        self._decisions: list[tuple[Position, events.DecisionEventUnion]] = []
        self._applied = 0
        for offset, record in records:
            self.add(offset, record)

    def add(self, offset: int, record: events.DecisionRecord) -> None:
        if isinstance(record, events.PartitionTaken):
            self.term = record.term
            self._terms.setdefault(record.term)
        elif not isinstance(record, events.LocksHandedOver) and events.counts(record, self.term):
            self._decisions.append((Position(offset, self.term), record))

    def terms_before(self, own: str) -> tuple[str, ...]:
        """The last terms before the first `partition-taken` of `own`. None if that is not in the log."""
        terms = list(self._terms)
        return tuple(terms[: terms.index(own)][-MAX_FORMER_TERMS:]) if own in self._terms else ()

    def __len__(self) -> int:
        return len(self._decisions)

    def all(self) -> list[events.DecisionEventUnion]:
        """Every decision that counts, applied or not."""
        return [decision for _, decision in self._decisions]

    def next_position(self) -> Position | None:
        """The position of the first decision that is not applied yet."""
        return self._decisions[self._applied][0] if self._applied < len(self._decisions) else None

    def pop_due(self, offset: int | None) -> list[events.DecisionEventUnion]:
        """Return the next decisions up to this offset in `writers` (None: all) and mark them as applied."""
        first = self._applied
        while self._applied < len(self._decisions):
            position, decision = self._decisions[self._applied]
            if offset is not None and self._due(position, decision) > offset:
                break
            self._applied += 1
        return [decision for _, decision in self._decisions[first : self._applied]]

    def _due(self, position: Position, decision: events.DecisionEventUnion) -> int:
        """The offset of the event after which this decision is applied."""
        ends = [end - 1 for before, end in self.lost_ends if position.offset < before]
        return min([decision.cause_offset, *ends])
