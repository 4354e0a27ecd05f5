"""Kafka: the logs, the positions committed by a group, and the assignment of partitions to its members.

The broker acts at instants of true time, and loses records only when a run says so (`losses.py`). Replicas, compaction (agents
read the whole ledger) and transactions are left out, because they don't affect the rules under test.

- *Producers* are idempotent: each numbers its records per partition. A number that is already in the log is acknowledged
  again and not written again. If the log has lost some records of a producer and not all, it refuses the producer's later ones.
- *A topic* may be deleted, and is there again, empty, when a client creates it.
- *A fetch* from an offset that the log doesn't have any more, or not yet, is answered with the offset of the first record.
- *The group* rebalances eagerly, as Kafka's coordinator does for aiokafka. A member that joins, leaves or is silent starts a
  round. The others learn of it with their next heartbeat, and must join again within the rebalance timeout, or they are
  removed. Only members of the current generation can commit positions. A removed member doesn't know until its next request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, TypeAlias

from aiokafka.structs import OffsetAndMetadata, TopicPartition

from tests.simulation.timeline import Timeline

FETCH_WAIT_SECONDS = 0.5
"""`fetch.max.wait.ms`: how long an empty fetch waits."""
RECORDS_A_FETCH = 500


class Record(NamedTuple):
    """A record as a consumer reads it, with the true time at which it was written."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    at: float


class Sent(NamedTuple):
    """A record as a producer sends it, with its number in the partition."""

    number: int
    key: bytes | None
    value: bytes


Fetched: TypeAlias = dict[TopicPartition, list[Record]]
FetchAnswer: TypeAlias = dict[TopicPartition, list[Record] | int]
"""By partition: records, or the offset of the first one if the requested offset is out of range."""


@dataclass(slots=True)
class Numbered:
    """The records of one producer in one partition."""

    first: int = 0
    """Number of the first."""
    offsets: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Joined:
    """What a member receives at the end of a round."""

    member: str
    generation: int
    partitions: list[TopicPartition]


@dataclass(slots=True)
class Member:
    """One member of the group. Times in seconds."""

    node: str
    session: float
    rebalance: float
    last_contact_at: float
    joining: Callable[[Joined | None], None] | None = None
    """Answers the member at the end of the round. None while it has not joined."""


class Group:
    """The only consumer group, for one topic."""

    def __init__(self, timeline: Timeline, random: Random, partitions: Sequence[TopicPartition]) -> None:
        self.generation = 0
        self.members: dict[str, Member] = {}
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._timeline = timeline
        self._random = random
        self.partitions = partitions
        """Those of its topic, none while that is deleted."""
        self._rebalancing = False
        self._count = 0

    def join(
        self,
        member: str | None,
        node: str,
        reply: Callable[[Joined | None], None],
        *,
        session: float,
        rebalance: float,
    ) -> None:
        """Join the next round. The reply comes at its end, or at once with None for an unknown member."""
        if member is None:
            self._count += 1
            member = f"{node}#{self._count}"
            self.members[member] = Member(node, session, rebalance, self._timeline.now)
        known = self.members.get(member)
        if known is None:
            reply(None)
            return
        known.joining, known.last_contact_at = reply, self._timeline.now
        self._begin_round(f"{member} joins")
        self._end_round_if_all_joined()

    def heartbeat(self, member: str, generation: int) -> str:
        """Return `ok`; `rebalancing`: join again; or `unknown`: join as a new member."""
        known = self.members.get(member)
        if known is None or generation != self.generation:
            return "unknown"
        known.last_contact_at = self._timeline.now
        self._watch(member, known)
        return "rebalancing" if self._rebalancing else "ok"

    def leave(self, member: str) -> bool:
        """Remove a member. Return whether it was one."""
        known = self.members.pop(member, None) is not None
        if known:
            self._begin_round(f"{member} leaves")
            self._end_round_if_all_joined()
        return known

    def commit(
        self, member: str, generation: int, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> bool:
        """Commit positions, none of a deleted topic. Return False for a node that is no member of this generation."""
        if member not in self.members or generation != self.generation:
            return False
        self.committed.update({each: offsets[each] for each in self.partitions if each in offsets})
        return True

    def rebalance(self, reason: str) -> None:
        """Have all members join again: their metadata of the topic has changed."""
        if self.members:
            self._begin_round(reason)

    def _watch(self, member: str, known: Member) -> None:
        last_contact_at = known.last_contact_at
        self._timeline.plan(
            last_contact_at + known.session, lambda: self._expire(member, known, last_contact_at)
        )

    def _expire(self, member: str, known: Member, last_contact_at: float) -> None:
        silent = known.last_contact_at == last_contact_at and known.joining is None
        if silent and self.members.get(member) is known:
            del self.members[member]
            self._begin_round(f"{member} was silent")
            self._end_round_if_all_joined()

    def _begin_round(self, reason: str) -> None:
        if self._rebalancing:
            return
        self._rebalancing = True
        self._timeline.log("group", f"rebalances: {reason}")
        patience = max((each.rebalance for each in self.members.values()), default=0.0)
        generation = self.generation
        self._timeline.after(patience, lambda: self._end_round(generation))

    def _end_round_if_all_joined(self) -> None:
        if all(each.joining is not None for each in self.members.values()):
            self._end_round(self.generation)

    def _end_round(self, generation: int) -> None:
        if not self._rebalancing or generation != self.generation:
            return
        self.members = {name: each for name, each in self.members.items() if each.joining is not None}
        self._rebalancing = False
        self.generation += 1
        names = sorted(self.members)
        self._random.shuffle(names)
        shares: dict[str, list[TopicPartition]] = {name: [] for name in names}
        for number, partition in enumerate(self.partitions):
            if names:
                shares[names[number % len(names)]].append(partition)
        assignment = {name: [each.partition for each in share] for name, share in shares.items()}
        self._timeline.log("group", f"generation {self.generation}: {assignment}")
        for name, each in self.members.items():
            reply, each.joining, each.last_contact_at = each.joining, None, self._timeline.now
            self._watch(name, each)
            assert reply is not None
            reply(Joined(name, self.generation, shares[name]))


class Broker:
    """The logs and the group."""

    def __init__(
        self, timeline: Timeline, random: Random, counts: Mapping[str, int], group_topic: str
    ) -> None:
        self.counts = counts
        self.logs: dict[TopicPartition, list[Record]] = {
            TopicPartition(topic, number): [] for topic, count in counts.items() for number in range(count)
        }
        """Each record at the index of its offset, also those that retention has removed."""
        self.beginnings: dict[TopicPartition, int] = dict.fromkeys(self.logs, 0)
        """Offset of the first record that retention has left."""
        self._group_partitions = [
            TopicPartition(group_topic, number) for number in range(counts[group_topic])
        ]
        self.group = Group(timeline, random, self._group_partitions)
        self.on_record: Callable[[Record], None] = lambda _: None
        """Called with every record that is written."""
        self._timeline = timeline
        self._numbers: dict[tuple[int, TopicPartition], Numbered] = {}
        self._producers = 0
        self._waiting_fetches: list[tuple[dict[TopicPartition, int], Callable[[FetchAnswer], None]]] = []
        self.missing: set[str] = set()
        """The topics that were deleted and not created again. The broker answers no producer of one."""

    def delete(self, topics: Collection[str]) -> None:
        """Delete topics, and with the group's topic its committed positions and its assignment."""
        self.missing.update(topics)
        for where in self.logs:
            if where.topic in topics:
                self.remove_from(where, 0)
                self.group.committed.pop(where, None)
        self._assign(f"{', '.join(sorted(topics))} deleted")

    def create(self, topics: Collection[str]) -> Collection[str]:
        """Create topics again, empty. Return them, also if they exist."""
        if not self.missing.isdisjoint(topics):
            self.missing.difference_update(topics)
            self._assign(f"{', '.join(sorted(topics))} created")
        return topics

    def _assign(self, reason: str) -> None:
        self.group.partitions = [each for each in self._group_partitions if each.topic not in self.missing]
        self.group.rebalance(reason)

    def new_producer(self) -> int:
        """Return the id of a new producer."""
        self._producers += 1
        return self._producers

    def append(self, where: TopicPartition, key: bytes | None, value: bytes) -> int:
        """Write a record and return its offset."""
        log = self.logs[where]
        record = Record(where.topic, where.partition, len(log), key, value, self._timeline.now)
        log.append(record)
        self.on_record(record)
        self._answer_waiting(where)
        return record.offset

    def remove_before(self, where: TopicPartition, offset: int) -> None:
        """Retention removes the records before this offset."""
        self.beginnings[where] = offset
        self._answer_waiting(where)

    def remove_from(self, where: TopicPartition, offset: int) -> None:
        """Lose the records from this offset on. From offset 0 on: the topic was deleted and created again."""
        del self.logs[where][offset:]
        self.beginnings[where] = min(self.beginnings[where], offset)
        for (_, each), numbered in self._numbers.items():
            if each == where:
                numbered.offsets = [known for known in numbered.offsets if known < offset]
        self._answer_waiting(where)

    def produce(self, producer: int, where: TopicPartition, batch: Sequence[Sent]) -> list[int] | None:
        """Write the records that are not in the log yet, and return the offsets of all. Empty: a number is out of order.

        As Kafka, it accepts any number of a producer of which the log has no record. None: the topic doesn't exist.
        """
        if where.topic in self.missing:
            return None
        numbered = self._numbers.setdefault((producer, where), Numbered())
        if not numbered.offsets:
            numbered.first = batch[0].number
        if not numbered.first <= batch[0].number <= numbered.first + len(numbered.offsets):
            return []
        for each in batch:
            if each.number == numbered.first + len(numbered.offsets):
                numbered.offsets.append(self.append(where, each.key, each.value))
        return [numbered.offsets[each.number - numbered.first] for each in batch]

    def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offsets."""
        return {partition: len(self.logs[partition]) for partition in partitions}

    def fetch(self, positions: dict[TopicPartition, int], reply: Callable[[FetchAnswer], None]) -> None:
        """Fetch records from these positions. If there are none, the reply waits for one for `FETCH_WAIT_SECONDS`."""
        if any(
            len(self.logs[where]) != position and where.topic not in self.missing
            for where, position in positions.items()
        ):
            self._answer(positions, reply)
            return
        held = (positions, reply)
        self._waiting_fetches.append(held)
        self._timeline.after(FETCH_WAIT_SECONDS, lambda: self._end_fetch(held))

    def _end_fetch(self, held: tuple[dict[TopicPartition, int], Callable[[FetchAnswer], None]]) -> None:
        for index, each in enumerate(self._waiting_fetches):
            if each is held:
                del self._waiting_fetches[index]
                self._answer(*held)
                return

    def _answer_waiting(self, where: TopicPartition) -> None:
        for held in [each for each in self._waiting_fetches if where in each[0]]:
            self._waiting_fetches.remove(held)
            self._answer(*held)

    def _answer(self, positions: dict[TopicPartition, int], reply: Callable[[FetchAnswer], None]) -> None:
        found: FetchAnswer = {}
        for where, position in positions.items():
            if where.topic in self.missing:
                continue
            log, beginning = self.logs[where], self.beginnings[where]
            if not beginning <= position <= len(log):
                found[where] = beginning
            elif position < len(log):
                found[where] = log[position : position + RECORDS_A_FETCH]
        reply(found)
