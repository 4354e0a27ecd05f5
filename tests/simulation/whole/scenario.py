"""What a seed means: everything that is drawn before the run.

Durations are about a third of the production defaults (a lock lease of 10 s, a session of 4 s), within what the settings and
the agent's own constants allow. A run has faults for `fault_free_from` seconds. Then it runs without faults until every batch
of every writer is in its table, at most until `bound`.

| kind | faults |
| --- | --- |
| fault-free | none |
| usual | some |
| hard | as many at once as the promises cover |
| suspended before publish | only this: a writer is suspended between its last check and its publish; others write there |
| suspended after grant | only this: an agent is suspended between a grant and its publication, and loses the partition |
| take-overs reordered | only this: a former owner's `partition-taken` reaches the log after that of its successor |

The last three happen by chance in so few of the others that a missing fence would go unnoticed there, because leases cover it.

The additions are drawn in `additions.py`, each from a random stream of its own, and everything else in `drawing.py`:

| every | from | addition | what happens |
| --- | --- | --- | --- |
| 5th | 0 | strangers | forged events follow the writers' and the agents' records (`strangers.py`) |
| | | hangs | a publish hangs for longer than `max_grant_seconds`, while the heartbeats continue |
| | | errors | an agent's code raises an unexpected exception; after the faults, an operator restarts the agent |
| 10th | 7 | refusals | the store refuses the locks of all agents, or of one, until the faults end |
| | | hung bodies | the work of a transaction hangs until it is aborted, while the heartbeats continue |
| | | used ids | markers on a table that is not allowed bear the transaction and writer of markers before them |
| 10th | 9 | losses | Kafka loses records that a checkpoint relies on (`losses.py`) |
| 40th | 9 | misplaced | instead: writers' events reach another Kafka partition, too, as by a producer with another partitioner |
| 20th | 4 | losses | Kafka loses records of the ledger that a checkpoint relies on |
| | | checkpoints restored | those of Spark are restored from an earlier batch, so that committed batches begin again |
| 20th | 12 | ordered | most transactions are `ordered`; rows are numbered by the version read and by turns, as Paimon's |
| 20th | 1 | operators | an operator requests the end of open transactions (`operators.py`) |
| | | refused intents | an intent has a priority above `max_priority`, or names another lock than its table's |
| | | memory | the agents' memory budget is small, and some transactions touch more than all others together |
| | | rolled back | a newer agent owns a partition for a moment; the older ones return, until they are upgraded (`upgrade.py`) |
| 20th | 8 | watched | each table also has a writer without the gate, which watchers report (`watched.py`) |
| 40th | 38 | deletion | `writers`, perhaps with `decisions`, is deleted while agents run, and with it the group's positions |
| | | corrections | an operator corrects the ledger to what it has (`operators.py`) |
| | | checkpoints restored | as above |
| 40th | 18 | editions | operators lower the last batch of a writer, which begins with that batch again |
| 40th | 6 | suspensions | agents join and leave; some that keep their partitions are suspended then, mostly beyond the session |

`VERSION` counts the changes of what seeds mean, as for the lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Literal, TypeAlias

from lakewarden.agent.settings import Settings
from lakewarden.events import ConflictRule, Marker, Operation, Topics
from tests.simulation import scenario as lock
from tests.simulation.faults import FaultPeriod, FaultProfile
from tests.simulation.whole.connection import Lag

VERSION = 16
TOPICS = Topics("sim")
STRANGER = "stranger"
"""The writer of forged events, unless they bear another's name."""
FORGED = "forged/"
"""Begins the ids of forged events. Nothing else in a log contains it."""

AT = datetime(2026, 1, 1, tzinfo=UTC)
"""The time of events that no simulated process publishes."""

Amount: TypeAlias = Literal["fault-free", "usual", "hard"]
"""How many faults a run has."""
Aim: TypeAlias = Literal["suspended before publish", "suspended after grant", "take-overs reordered"]
"""The only fault of a run."""
Kind: TypeAlias = Amount | Aim
OTHER_LOCK = "s3://lake/elsewhere/lock.json"
"""The lock of no table."""
MANY_MARKERS = 200
"""Of a transaction that touches more than all others together."""
HANG_SECONDS = 35.0
RESTART_SECONDS = 10.0
"""How long after the faults an operator restarts each agent that has stopped a table, and how long before looking again."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a writer writes, and how long it takes. Durations are means, in seconds."""

    think: float
    compute: float
    publish: float
    queued: bool
    priority: int
    rule: ConflictRule
    operation: Operation
    places: tuple[tuple[str, str], ...]
    """Partitions and file groups that it may touch."""
    most: int
    """Most markers of a batch."""

    def draw_touches(self, random: Random) -> tuple[Marker, ...]:
        """Draw the markers of one batch."""
        chosen = random.sample(self.places, k=random.randint(1, min(self.most, len(self.places))))
        return tuple(Marker(partition=p, file_group=f, operation=self.operation) for p, f in chosen)


@dataclass(frozen=True, slots=True)
class Stop(lock.Stop):
    """A stop as in the lock's simulation."""

    orderly: bool = False
    """An agent is stopped in an orderly way instead of killed."""


@dataclass(frozen=True, slots=True)
class Machine(lock.Machine):
    """A machine as in the lock's simulation, with its start."""

    stops: tuple[Stop, ...]
    starts: float


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A table and its writers."""

    uri: str
    fenced: bool
    records_batches: bool
    lock: str | None
    writers: tuple[tuple[Machine, Workload], ...]
    hudi: Machine | None
    """A writer without an agent that acquires the lock object, as Hudi does."""


@dataclass(frozen=True, slots=True)
class PlannedError:
    """An unexpected exception in an agent, in the first step of a table after this time."""

    at: float
    where: Literal["before the step", "after the step", "in building a record"]


@dataclass(frozen=True, slots=True)
class Loss:
    """Kafka loses records of one partition, or of a whole topic."""

    at: float
    """Not before this time."""
    topic: Literal["writers", "decisions", "ledger"]
    what: Literal["beginning", "end", "everything"]
    table: int
    """The one whose partition is concerned, by its place in the scenario."""
    records: int
    """How many the log keeps at its end, or loses before the last one that the checkpoint names."""
    restart: float | None
    """The owner of the partition is killed, and restarted after so many seconds; None: it goes on."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """A person deletes topics. An agent creates them again."""

    at: float
    topics: tuple[str, ...]
    restart: bool
    """Whether all agents are killed and restarted some seconds later: only the ledger shows that the topic is a new one."""


@dataclass(frozen=True, slots=True)
class Additions:
    """The faults that only some seeds have."""

    strangers: float = 0.0
    """Probability that a record is followed by a forged event."""
    errors: tuple[PlannedError, ...] = ()
    hangs: float = 0.0
    """Probability that a publish hangs."""
    refusals: FaultPeriod | None = None
    """When the store refuses locks."""
    hung_bodies: float = 0.0
    """Probability that the work of a transaction hangs after a marker."""
    used_ids: float = 0.0
    """Probability that markers are followed by some with the same id on another table."""
    losses: tuple[Loss, ...] = ()
    misplaced: float = 0.0
    """Probability that a copy of a writer's event reaches another Kafka partition."""
    checkpoints_restored: tuple[tuple[float, int], ...] = ()
    """When the checkpoints of Spark are restored, and how many batches they lose."""
    ordered: bool = False
    """Most transactions are `ordered`. This is no fault."""
    operators: float = 0.0
    """Probability that an operator requests the end of a transaction."""
    refused_intents: float = 0.0
    """Probability that an intent must be refused."""
    memory_mb: float = 0.0
    """The agents' memory budget; 0: that of the default."""
    rolled_back: tuple[float, float] | None = None
    """When a newer agent is tried, and when all agents are upgraded."""
    deletion: Deletion | None = None
    suspensions_before_resume: float = 0.0
    """Probability that an agent is suspended when it wants to resume a partition that it has kept."""
    corrections: float = 0.0
    """Probability that an operator corrects a writer's entry after it was recorded."""
    editions: float = 0.0
    """Probability that an operator lowers a writer's entry after it was recorded, so that the batch is written again."""
    watched: float = 0.0
    """Mean time between the beginnings of two writes without the gate on a table; 0: there are none. This is no fault."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything about a run that is drawn in advance."""

    kind: Kind
    settings: Settings
    partitions: int
    agents: tuple[Machine, ...]
    tables: tuple[TablePlan, ...]
    kafka: FaultProfile
    store: FaultProfile
    lags: tuple[Lag, ...]
    stops_at_requests: float
    """Probability that a process is stopped when it sends a request or receives an answer."""
    stops_at_publish: float
    """Probability that a driver is stopped between its last check and its publish, or right after."""
    suspensions_before_publish: float
    """Probability that a driver is paused between its last check and its publish, until its grant has expired."""
    suspensions_after_grant: float
    """Probability that an agent is paused between a grant and its publication, until its session has expired."""
    checks: tuple[float, ...]
    """When a replay is compared with the live owners."""
    fault_free_from: float
    bound: float
    additions: Additions = Additions()
