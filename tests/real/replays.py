"""Replays a real log with the production code: from the beginning, and from committed checkpoints."""

import json
from collections.abc import Container, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import anyio.abc
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.kafka import BATCH_BYTES
from lakewarden.agent.locks.table_locks import Ownership, Shared
from lakewarden.agent.publisher import Publisher
from lakewarden.agent.serving.checkpoint import Checkpoint
from lakewarden.agent.serving.lasting import Lasting
from lakewarden.agent.serving.memory_budget import MemoryBudget
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.stores import Stores
from lakewarden.handlers.table.replay import Position
from lakewarden.handlers.table.state import TableState
from tests.all_states import all_states
from tests.real.writers import World

NEVER = 2**62
"""An end of the log that a replay never reaches, so that the owner decides nothing."""


@dataclass(slots=True)
class Log:
    """The records of one partition of `writers`, `decisions` and `ledger`."""

    scene: World
    tasks: anyio.abc.TaskGroup
    partition: int
    writers: Sequence[ConsumerRecord]
    decisions: Sequence[ConsumerRecord]
    ledger: Sequence[ConsumerRecord]

    def from_the_beginning(self, cuts: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Replay from the beginning. Yield the state at each of these offsets, which must be sorted."""
        owner = self._owner(0, Position(0, None), self.decisions, ())
        done = 0
        for cut in cuts:
            records = [record for record in self.writers[done:] if record.offset < cut]
            owner.consume(records, 0.0)
            done += len(records)
            yield cut, facts(owner, self._refused_from(cut))

    def from_committed(self, offset: int, metadata: str, ledger_end: int, cut: int) -> dict[str, Any]:
        """Replay from a checkpoint, with the ledger up to `ledger_end`. Return the state at `cut`."""
        decided = Checkpoint.parse(offset, metadata).decisions
        after = [record for record in self.decisions if record.offset >= decided.offset]
        relevant = [number for number, record in enumerate(after) if _cause_offset(record) < cut]
        known = [record for record in self.ledger if record.offset < ledger_end]
        owner = self._owner(offset, decided, after[: max(relevant, default=-1) + 1], known)
        owner.consume([record for record in self.writers if offset <= record.offset < cut], 0.0)
        return facts(owner, self._refused_from(cut))

    def _refused_from(self, cut: int) -> set[str]:
        """The transactions that are refused later. A replay that knows that leaves their footprint out (memory.py, rule 4)."""
        decided = [json.loads(record.value) for record in self.decisions if _cause_offset(record) >= cut]
        return {each["transaction"] for each in decided if each.get("reason") == "not-allowed"}

    def _owner(
        self,
        start: int,
        decided: Position,
        decisions: Sequence[ConsumerRecord],
        ledger: Sequence[ConsumerRecord],
    ) -> PartitionOwner:
        settings = self.scene.settings()
        publisher = Publisher(self.scene.producer, batch_bytes=BATCH_BYTES)
        shared = Shared(settings, publisher, Stores(settings, AsyncExitStack()), self.tasks)
        ownership = Ownership(self.partition, shared, settings.partitions)
        owner = PartitionOwner(ownership, Lasting(settings), MemoryBudget(settings.memory_bytes))
        owner.replay.read_decisions(decided, decisions)
        owner.replay.read_ledger(ledger)
        owner.load(start, NEVER, decided)
        return owner


def _cause_offset(record: ConsumerRecord) -> int:
    """The decision's cause. A `partition-taken` has none: it concerns only later decisions."""
    return int(json.loads(record.value).get("cause_offset", NEVER))


def facts(owner: PartitionOwner, without_footprint: Container[str]) -> dict[str, Any]:
    """The states of an owner's tables without times, and with moments as an order. Empty tables are left out."""
    found = {uri: _of_table(state, without_footprint) for uri, state in all_states(owner).items()}
    return {uri: each for uri, each in found.items() if any(each.values())}


def _of_table(state: TableState, without_footprint: Container[str]) -> dict[str, Any]:
    return {
        "transactions": [
            (
                each.id,
                each.phase,
                each.sequence,
                each.seq,
                each.batch_id,
                each.requested_id,
                each.id not in without_footprint
                and {partition: list(groups) for partition, groups in each.footprint.items()},
                each.grant and (each.grant.id, each.grant.lock_owner, each.grant.seq, each.grant.revoked),
                [
                    (other.ended > each.began, other.requested > each.requested)
                    for other in state.transactions.values()
                ],
            )
            for each in state.transactions.values()
        ],
        "ledger": dict(state.ledger),
        "losses": dict(state.losses),
    }
