"""`lakewarden losses`: what conflicts have cost in the last hours, per table, partition and pair of writers.

A conflict costs the age of the victim: the seconds since the agent read its intent. If it was about several partitions, each of
them counts it, with an equal share of the seconds. Who loses to several writers at once has a conflict with each, and its seconds
count once, for the first of them. Times are those of Kafka's records.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from aiokafka.structs import ConsumerRecord

from lakewarden.agent.clock import moment
from lakewarden.agent.log import Log
from lakewarden.agent.operators.timelines import Timelines, readers_of
from lakewarden.agent.serving.log_records import decoded
from lakewarden.agent.settings import KafkaSettings
from lakewarden.events import CONFLICT_EVENT
from lakewarden.handlers.explain.life import lane

HOUR_MS = 3_600_000
MAX_ENTRIES = 20_000
"""Tables, partitions and pairs of writers that are counted per hour. What exceeds them is counted as `OTHERS`."""
OTHERS = "(others)"
MAX_LINES = 200
"""Lines of each list of a report."""

_Row = TypeVar("_Row")

Key = tuple[str, str, str]
"""Table, then partition and nothing, or the writers that won and lost."""


@dataclass(frozen=True, slots=True)
class LossRow:
    """What conflicts have cost a table. The field names are JSON, as those of the next ones."""

    table: str
    conflicts: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PartitionLoss(LossRow):
    """The same of a partition."""

    partition: str


@dataclass(frozen=True, slots=True)
class PairLoss(LossRow):
    """The same of two writers."""

    winner: str
    loser: str


@dataclass(frozen=True, slots=True)
class LossReport:
    """What conflicts have cost in the last hours, each list with the largest first."""

    table: str | None
    """The only one that counts. None: all."""
    hours: int
    conflicts: int
    seconds: float
    tables: list[LossRow]
    partitions: list[PartitionLoss]
    pairs: list[PairLoss]


@dataclass(slots=True)
class _Loss:
    conflicts: int = 0
    seconds: float = 0.0

    def add(self, conflicts: int, seconds: float) -> None:
        self.conflicts += conflicts
        self.seconds += seconds


class Losses:
    """The conflicts of the last hours, added up by hour."""

    def __init__(self, hours: int) -> None:
        self.hours = hours
        self._pairs: dict[int, dict[Key, _Loss]] = {}
        self._partitions: dict[int, dict[Key, _Loss]] = {}
        self._last_victims: dict[str, str] = {}
        """By table. The conflicts of one victim follow each other."""

    def add(self, record: ConsumerRecord) -> None:
        event = decoded(CONFLICT_EVENT, record)
        if event is None:
            return
        hour = record.timestamp // HOUR_MS
        seconds = (
            0.0 if self._last_victims.pop(event.table, None) == event.victim else event.victim_age_seconds
        )
        self._last_victims[event.table] = event.victim
        if len(self._last_victims) > MAX_ENTRIES:
            del self._last_victims[next(iter(self._last_victims))]
        self._count(self._pairs, hour, (event.table, lane(event.winner_writer), event.victim_writer), seconds)
        partitions = list(dict.fromkeys(each.partition for each in event.conflicts))
        for each in partitions:
            self._count(self._partitions, hour, (event.table, each, ""), seconds / len(partitions))

    def add_bypassed(self, at_ms: int, table: str, winner: str, writer: str, seconds: float) -> None:
        """Add a transaction that its writer abandoned: under the grant, it found a commit that no conflict showed."""
        self._count(self._pairs, at_ms // HOUR_MS, (table, winner, writer), seconds)

    def report(self, table: str | None = None) -> LossReport:
        """What was counted. `table`: of this table only."""
        since = moment().wall_ms // HOUR_MS - self.hours
        pairs = _sums(self._pairs, since, table)
        partitions = _sums(self._partitions, since, table)
        tables: dict[Key, _Loss] = {}
        for (uri, _, _), loss in pairs.items():
            tables.setdefault((uri, "", ""), _Loss()).add(loss.conflicts, loss.seconds)
        return LossReport(
            table,
            self.hours,
            sum(each.conflicts for each in tables.values()),
            round(sum(each.seconds for each in tables.values()), 3),
            _rows(tables, lambda key, count, seconds: LossRow(key[0], count, seconds)),
            _rows(partitions, lambda key, count, seconds: PartitionLoss(key[0], count, seconds, key[1])),
            _rows(pairs, lambda key, count, seconds: PairLoss(key[0], count, seconds, *key[1:])),
        )

    def _count(self, counted: dict[int, dict[Key, _Loss]], hour: int, key: Key, seconds: float) -> None:
        found = counted.setdefault(hour, {})
        if key not in found and len(found) >= MAX_ENTRIES:
            key = (OTHERS, OTHERS, OTHERS)
        found.setdefault(key, _Loss()).add(1, seconds)
        for old in [each for each in counted if each < max(counted) - self.hours]:
            del counted[old]


def _sums(counted: dict[int, dict[Key, _Loss]], since: int, table: str | None) -> dict[Key, _Loss]:
    found: dict[Key, _Loss] = {}
    for hour, losses in counted.items():
        for key, loss in losses.items():
            if hour > since and table in (None, key[0]):
                found.setdefault(key, _Loss()).add(loss.conflicts, loss.seconds)
    return found


def _rows(losses: dict[Key, _Loss], row: Callable[[Key, int, float], _Row]) -> list[_Row]:
    ordered = sorted(losses.items(), key=lambda each: (-each[1].seconds, each[0]))
    return [row(key, loss.conflicts, round(loss.seconds, 3)) for key, loss in ordered[:MAX_LINES]]


async def losses(settings: KafkaSettings, hours: int, table: str | None) -> LossReport:
    """The report of the last `hours`, the current one included. Of what no conflict shows, it has what `read_timelines` reads."""
    found = Losses(hours)
    since_ms = (moment().wall_ms // HOUR_MS - hours + 1) * HOUR_MS
    async with Log(settings) as log:
        conflicts = await log.offsets_at(await log.partitions(log.topics.conflicts), since_ms)
        bypassed = await readers_of(Timelines(found.add_bypassed), log, since_ms)
        await log.read_once({each: (start, found.add) for each, start in conflicts.items()}, bypassed)
    return found.report(table)
