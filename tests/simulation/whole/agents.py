"""The agents: `agent/serving/agent.py` and all below it as they are, in a process with simulated clock, chance, Kafka and store.

What is put in place of the real thing, and nothing else:

- in `agent/clock.py`, the one place where time and chance are read: the process's own
- aiokafka's three clients, where `agent/kafka.py` and `agent/serving/agent.py` name them
- `Stores` of `agent/serving/agent.py`: stores that are opened already, and answer by the production table (`../store.py`)
- `PartitionOwner`: the same, but that the oracles hear of what it decides (`Watched`)
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from datetime import datetime, tzinfo
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import structlog
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import TopicPartition

from lakewarden.agent import clock, kafka
from lakewarden.agent.publisher import Outgoing
from lakewarden.agent.serving import agent as agent_module
from lakewarden.agent.serving.checkpoint import decisions_position
from lakewarden.agent.serving.partition import PartitionOwner
from lakewarden.agent.settings import Settings
from lakewarden.handlers.table.state import TableState
from tests.simulation.node import Node
from tests.simulation.store import StoreClient
from tests.simulation.whole import clients
from tests.simulation.whole.broker import Broker
from tests.simulation.whole.oracles import Oracles
from tests.simulation.whole.processes import here
from tests.simulation.whole.scenario import TOPICS
from tests.unit.handlers.table.world import facts


class _Time:
    """In place of the module `time`."""

    def clock_gettime(self, _: int) -> float:
        return here().node.now()

    def time_ns(self) -> int:
        return here().node.wall_ms() * 1_000_000


class _Datetime:
    """In place of the class `datetime`."""

    def now(self, zone: tzinfo) -> datetime:
        return datetime.fromtimestamp(here().node.wall_ms() / 1000, zone)


def _chance() -> float:
    return here().random.random()


def _uuid4() -> uuid.UUID:
    return uuid.UUID(int=here().random.getrandbits(128))


async def _no_connection(*_: object, **__: object) -> None:
    raise KafkaConnectionError


class SimStores:
    """In place of `agent/locks/keeper.py`'s `Stores`: one store, open and honest."""

    def __init__(self, *_: object) -> None:
        self._client = StoreClient(here().store)

    async def for_lock(self, uri: str) -> StoreClient:
        del uri
        return self._client


@contextmanager
def simulated(
    broker: Broker, oracles: Oracles, after_grant: Callable[[Node], None]
) -> Iterator[list[Watched]]:
    """Within this, production code runs in simulated processes; the owners of partitions that there are.

    `after_grant` is told of each grant, as it is given: the moment at which it matters most that its agent is stopped.
    """
    owners: list[Watched] = []

    def watched(*given: Any, **shared: Any) -> Watched:
        owner = Watched(broker, oracles, after_grant, *given, **shared)
        owners.append(owner)
        return owner

    kept = structlog.get_config() if structlog.is_configured() else None
    with ExitStack() as stack:
        for where, what, instead in (
            (clock, "time", _Time()),
            (clock, "datetime", _Datetime()),
            (clock, "uuid", SimpleNamespace(uuid4=_uuid4)),
            (clock, "random", SimpleNamespace(random=_chance)),
            (kafka, "AIOKafkaConsumer", clients.SimConsumer),
            (kafka, "AIOKafkaProducer", clients.SimProducer),
            (kafka, "AIOKafkaAdminClient", clients.SimAdmin),
            (agent_module, "AIOKafkaConsumer", clients.SimConsumer),
            (agent_module, "Stores", SimStores),
            (agent_module, "PartitionOwner", watched),
        ):
            stack.enter_context(patch.object(where, what, instead))
        # Asked only why nobody answered: nobody does.
        stack.enter_context(patch.object(kafka, "create_conn", _no_connection, create=True))
        structlog.configure(
            processors=[_into_trace],
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
            cache_logger_on_first_use=False,
        )
        try:
            yield owners
        finally:
            structlog.reset_defaults()
            if kept is not None:
                structlog.configure(**kept)


def _into_trace(_: object, __: str, event: MutableMapping[str, Any]) -> str:
    process = here()
    what = event.pop("event")
    if what == "table.stopped":
        process.oracle("it goes on", f"a table is stopped: {event['reason']}")
    told = " ".join(f"{name}={value}" for name, value in event.items())
    process.node.say(f"{what} {told}")
    raise structlog.DropEvent


class Watched(PartitionOwner):
    """A partition's owner whose decisions the oracles hear of at the instant at which they are made."""

    def __init__(
        self,
        broker: Broker,
        oracles: Oracles,
        after_grant: Callable[[Node], None],
        number: int,
        settings: Settings,
        *rest: Any,
        **shared: Any,
    ) -> None:
        super().__init__(number, settings, *rest, **shared)
        self.node = here().node
        self.broker = broker
        self._oracles = oracles
        self._after_grant = after_grant

    def _publish(self, record: Outgoing) -> None:
        if record.topic != TOPICS.decisions:
            super()._publish(record)
            return
        writers = self.broker.logs[TopicPartition(TOPICS.writers, self.number)]
        self._oracles.decided(self.node, self.number, record.value, writers)
        super()._publish(record)
        if b'"commit-granted"' in record.value:
            self._after_grant(self.node)

    async def compare(self) -> None:
        """Replay the log from where the group stands, and look whether the outcome is what is here."""
        if self.phase != "live" or not self._settled():
            return
        rebuilt, told = _replayed(self)
        mine, theirs = _kept(self.tables), _kept(rebuilt.tables)
        for uri in sorted({*mine, *theirs}):
            if mine.get(uri) != theirs.get(uri):
                self._oracles.violated(
                    "a replay agrees", f"{uri} {_difference(mine.get(uri), theirs.get(uri))}"
                )
                return
        if told:
            self._oracles.violated(
                "a replay agrees", f"a replay decides what the living did not: {told[0]!r}"
            )

    def _settled(self) -> bool:
        """Whether all that was decided is in the log, and the partition is still ours."""
        publisher = self._publisher
        if publisher._waiting or publisher._unacknowledged or self.stopped:
            return False
        decisions = self.broker.logs[TopicPartition(TOPICS.decisions, self.number)]
        taken = [each.value for each in decisions if b'"partition-taken"' in each.value]
        return bool(taken) and self.term.encode() in taken[-1]


class _Told:
    """In place of a publisher: keeps what a replay says."""

    def __init__(self) -> None:
        self.decisions: list[bytes] = []

    def put(self, record: Outgoing) -> None:
        if record.topic == TOPICS.decisions:
            self.decisions.append(record.value)


class _Nobody:
    """In place of a task group: a replay's locks are never asked for."""

    def start_soon(self, *_: object, **__: object) -> None:
        return


def _replayed(owner: Watched) -> tuple[PartitionOwner, list[bytes]]:
    told, nobody, stores = _Told(), _Nobody(), SimStores()
    given: tuple[Any, ...] = (owner.number, owner._settings, told, stores, nobody)
    rebuilt = PartitionOwner(*given)
    logs, writers = owner.broker.logs, TopicPartition(TOPICS.writers, owner.number)
    known = owner.broker.group.committed.get(writers)
    start, decided = (
        (known.offset, decisions_position(known.metadata)) if known else (0, decisions_position(""))
    )
    read: Callable[[str], list[Any]] = lambda topic: logs[TopicPartition(topic, owner.number)]  # noqa: E731
    rebuilt.consume(logs[writers][start : owner.position], 0.0)
    rebuilt.load(
        start, owner.position, decided, read(TOPICS.decisions)[decided.offset :], read(TOPICS.ledger)
    )
    return rebuilt, told.decisions


def _kept(tables: dict[str, TableState]) -> dict[str, dict[str, object]]:
    """What must be the same: all facts but how the ended ones ended, of which a replay sees fewer; and of tables with any."""
    found = {uri: facts(state) for uri, state in tables.items()}
    for each in found.values():
        del each["closed"]
    return {uri: each for uri, each in found.items() if any(each.values())}


def _difference(mine: dict[str, object] | None, theirs: dict[str, object] | None) -> str:
    if mine is None or theirs is None:
        return f"lives as {mine} and is replayed as {theirs}"
    return "; ".join(
        f"{name} is {mine[name]} and is replayed as {theirs[name]}"
        for name in mine
        if mine[name] != theirs[name]
    )
