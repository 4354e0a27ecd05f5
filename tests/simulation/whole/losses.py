"""Kafka loses records that it had acknowledged, at the times that the scenario has.

| what | how | what the log lacks then |
| --- | --- | --- |
| beginning | retention by size, or a person, removes the oldest records | records from which the next owner must replay |
| end | a replica that lacked the newest records became the leader | the record that the checkpoint names as the last one |
| everything | the topic was deleted and created again | the same |

A loss that would concern nothing that a checkpoint relies on waits for a later checkpoint: it would prove nothing. The agent that
owns the partition may be killed with it, so that a take-over follows.

`lacking` is the simulation's own account of what the log lacks: written from docs/decisions/0016, not from the code under test.
"""

from __future__ import annotations

import json
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

from aiokafka.structs import TopicPartition

from tests.simulation.whole.broker import Record
from tests.simulation.whole.scenario import TOPICS, Loss

if TYPE_CHECKING:
    from tests.simulation.whole.run import World

RETRY_SECONDS = 0.3
"""Delay until a loss is tried again that would concern nothing yet."""


class Losses:
    """Carries out the planned losses, and knows what each partition lacks."""

    def __init__(self, world: World) -> None:
        self._world, self._timeline, self._broker = world, world.timeline, world.broker
        for each in world.scenario.additions.losses:
            self._timeline.plan(each.at, partial(self._try, each))

    def lacking(self, number: int) -> str | None:
        """The topic of which a partition lacks something that its checkpoint relies on, or None."""
        return next((each for each in (TOPICS.writers, TOPICS.decisions) if self._lacks(each, number)), None)

    def ledger_lacks(self, number: int) -> bool:
        """Whether the ledger of a partition lacks something that its checkpoint relies on."""
        return self._lacks(TOPICS.ledger, number)

    def _lacks(self, topic: str, number: int) -> bool:
        where = TopicPartition(topic, number)
        log, beginning = self._broker.logs[where], self._broker.beginnings[where]
        needed, last = self._relied_on(topic, number)
        if not beginning <= (needed or 0) <= len(log):
            return True
        if last is None:
            return False
        offset, known = last
        return offset >= len(log) or (offset >= beginning and _digest(log[offset]) != known)

    def gaps_shown(self, number: int) -> set[str]:
        """The topics of which the checkpoint of a partition names a gap, as `lakewarden status` shows it."""
        known = self._broker.group.committed.get(TopicPartition(TOPICS.writers, number))
        return set() if known is None else {topic for _, topic, *_ in json.loads(known.metadata)["gaps"]}

    def _relied_on(self, topic: str, number: int) -> tuple[int | None, tuple[int, str] | None]:
        """What the checkpoint relies on: from where the replay reads, and the last record with its digest."""
        known = self._broker.group.committed.get(TopicPartition(TOPICS.writers, number))
        if known is None:
            return None, None
        fields = json.loads(known.metadata)
        if topic == TOPICS.writers:
            return known.offset, fields["read"]
        if topic == TOPICS.ledger:
            return fields["ledger_beginning"], fields["entry"]
        return fields["decisions"], fields["published"]

    def _try(self, loss: Loss) -> None:
        if self._timeline.now >= self._world.scenario.fault_free_from:
            return
        number = self._world.partition_of(self._world.scenario.tables[loss.table].uri)
        topic = {"writers": TOPICS.writers, "decisions": TOPICS.decisions, "ledger": TOPICS.ledger}[
            loss.topic
        ]
        if not self._lose(loss, topic, number):
            self._timeline.after(RETRY_SECONDS, partial(self._try, loss))
            return
        if loss.restart is not None:
            self._world.kill_owner(number, loss.restart)

    def _lose(self, loss: Loss, topic: str, number: int) -> bool:
        """Whether something that a checkpoint relies on is lost."""
        where = TopicPartition(topic, number)
        end = len(self._broker.logs[where])
        needed, last = self._relied_on(topic, number)
        if self.lacking(number) is not None or self.ledger_lacks(number) or needed is None:
            return False
        match loss.what:
            case "beginning":
                if needed >= end:
                    return False
                beginning = max(end - loss.records, needed + 1)
                self._broker.remove_before(where, beginning)
                self._lost(loss, where)
            case "end":
                if last is None or last[0] < self._broker.beginnings[where]:
                    return False
                self._broker.remove_from(where, max(last[0] - loss.records, self._broker.beginnings[where]))
                self._lost(loss, where)
            case "everything":
                every = [each for each in self._broker.logs if each.topic == topic]
                if any(self._broker.logs[each] and not self._is_known(each) for each in every):
                    return False
                for each in every:
                    if topic == TOPICS.ledger and not self._broker.logs[each]:
                        continue  # nothing is lost there
                    self._broker.remove_from(each, 0)
                    self._lost(loss, each)
        return True

    def _is_known(self, where: TopicPartition) -> bool:
        """Whether the checkpoint names a record of this log."""
        return self._relied_on(where.topic, where.partition)[1] is not None

    def _lost(self, loss: Loss, where: TopicPartition) -> None:
        beginning, end = self._broker.beginnings[where], len(self._broker.logs[where])
        self._timeline.log(
            "log", f"{loss.topic}-{where.partition} loses its {loss.what}: {beginning} to {end} are left"
        )
        knowledge = self._world.oracles.knowledge
        if where.topic == TOPICS.ledger:
            knowledge.on_ledger_loss(where.partition, self._broker.logs[where][beginning:])
        else:
            knowledge.on_loss(where.topic, where.partition, beginning, end)


def _digest(record: Record) -> str:
    return blake2b(record.value, digest_size=8).hexdigest()
