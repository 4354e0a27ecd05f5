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

Every fifth seed has further faults (`draw_additions`), each from a random stream of its own:

| addition | what goes wrong |
| --- | --- |
| strangers | forged events follow the writers' and the agents' records (`strangers.py`) |
| hangs | a publish hangs for longer than `max_grant_seconds`, while the heartbeats continue |
| errors | an agent's code raises an unexpected exception; after the faults, an operator restarts the agent |

Every tenth seed, beginning with 7, has other ones (`draw_later_additions`):

| addition | what goes wrong |
| --- | --- |
| refusals | the store refuses the locks of all agents, or of one, until the faults end |
| hung bodies | the work of a transaction hangs until it is aborted, while the heartbeats continue |
| used ids | markers on a table that is not allowed bear the transaction and writer of markers before them |

Every tenth seed, beginning with 9, has one of these faults (`draw_log_faults`), but every fortieth of them the other two:

| addition | what goes wrong |
| --- | --- |
| losses | Kafka loses records that a checkpoint relies on (`losses.py`) |
| misplaced | writers' events reach another Kafka partition, too, as by a producer with another partitioner |
| copied again | the copy of the ledger was interrupted, and agents are started; an operator copies it again (`copying.py`) |

Every twentieth seed, beginning with 4, has these faults (`draw_ledger_faults`):

| addition | what goes wrong |
| --- | --- |
| losses | Kafka loses records of the ledger that a checkpoint relies on (`losses.py`) |
| checkpoints restored | the checkpoints of Spark are restored from an earlier batch, so that committed batches begin again |

Every twentieth seed, beginning with 12, has no such faults, but other writers (`draw_ordered`): most transactions on its tables
are `ordered`, and their rows are numbered by the version that they read and by their turns, as Paimon's are.

Every twentieth seed, beginning with 1, has these additions (`draw_requests`):

| addition | what happens |
| --- | --- |
| operators | an operator requests the end of open transactions (`operators.py`) |
| refused intents | an intent has a priority above `max_priority`, or names another lock than its table's |
| memory | the agents' memory budget is small, and some transactions touch more than all others together |
| rolled back | a newer agent owns a partition for a moment, and the older ones return, until they are upgraded (`upgrade.py`) |

`VERSION` counts the changes of what seeds mean, as for the lock. A seed without additions means what it meant in version 2, one
of the first kind what it meant in version 3, one of the second kind what it meant in version 4, one with losses of other topics
what it meant in version 5, one with other faults of the log what it meant in version 6, one with faults of the ledger what it
meant in version 7, and one with `ordered` transactions what it meant in version 8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, TypeAlias

from lakewarden.agent.settings import Settings
from lakewarden.events import TABLE_SERVICE_PRIORITY, ConflictRule, Marker, Operation, Topics
from lakewarden.handlers.lease.placement import HUDI_LOCK
from tests.simulation import scenario as lock
from tests.simulation.clocks import draw_clock
from tests.simulation.faults import FaultPeriod, FaultProfile, PeriodKind
from tests.simulation.whole.connection import Lag

VERSION = 9
TOPICS = Topics("sim")
STRANGER = "stranger"
"""The writer of forged events, unless they bear another's name."""
FORGED = "forged/"
"""Begins the ids of forged events. Nothing else in a log contains it."""

Amount: TypeAlias = Literal["fault-free", "usual", "hard"]
"""How many faults a run has."""
Aim: TypeAlias = Literal["suspended before publish", "suspended after grant", "take-overs reordered"]
"""The only fault of a run."""
Kind: TypeAlias = Amount | Aim
ADDITIONS_EVERY = 5
"""One of so many seeds has additions. None of the seeds that failed before there were any has."""
LATER_ADDITIONS_EVERY, LATER_ADDITIONS_FROM = 10, 7
"""None of the seeds that failed before there were any has later additions."""
LOG_FAULTS_FROM = 9
"""Likewise, one of `LATER_ADDITIONS_EVERY` seeds has faults of the log."""
OTHER_LOG_FAULTS_EVERY = 40
"""One of so many seeds, beginning with `LOG_FAULTS_FROM`, has faults of the log other than losses."""
LEDGER_FAULTS_EVERY, LEDGER_FAULTS_FROM = 20, 4
"""None of the seeds that failed before there were any has faults of the ledger."""
ORDERED_EVERY, ORDERED_FROM = 20, 12
"""None of the seeds that failed before there were any has `ordered` transactions."""
REQUESTS_EVERY, REQUESTS_FROM = 20, 1
"""None of the seeds that failed before there were any has these requests and limits."""
OTHER_LOCK = "s3://lake/elsewhere/lock.json"
"""The lock of no table."""
MANY_MARKERS = 200
"""Of a transaction that touches more than all others together."""
MEMORY_MB = (0.03, 0.045)
"""Budgets in seeds with a small one. A transaction with `MANY_MARKERS` exceeds the first, and fits into the second."""
MAX_TRANSACTION_SECONDS = 30.0
"""In seeds with hung bodies: longer than most transactions take."""
REFUSAL_SECONDS = (3.0, 120.0)
"""In seeds with refusals: most last longer than the first, and none lasts longer than the second."""
MAX_GRANT_SECONDS = 10.0
"""In seeds with hangs: one is no longer than the longest grant lease."""
HANG_SECONDS = 35.0
RESTART_SECONDS = 10.0
"""How long after the faults an operator restarts each agent that has stopped a table, and how long before looking again."""
SHARES: dict[Kind, float] = {
    "fault-free": 0.05,
    "usual": 0.42,
    "hard": 0.38,
    "suspended before publish": 0.05,
    "suspended after grant": 0.05,
    "take-overs reordered": 0.05,
}
"""Share of all seeds."""


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
    copied_again: float | None = None
    """When an interrupted copy of the ledger is repeated; None: the ledger is no copy."""
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


SETTINGS = Settings(
    bootstrap_servers="simulated",
    topic_prefix="sim",
    allow=("s3://lake/*",),
    agent_id="a",
    validity_seconds=10.0,
    renew_seconds=1.0,
    drift_seconds=0.3,
    margin_seconds=0.7,
    request_timeout_seconds=0.5,
    hudi_validity_seconds=10.0,
    hudi_renew_seconds=1.0,
    hudi_drift_seconds=0.5,
    grant_seconds=6.0,
    heartbeat_misses=3,
    max_priority=1,
    check_seconds=0.5,
    session_timeout_seconds=4.0,
    shutdown_seconds=3.0,
    kafka_request_timeout_seconds=5.0,
)


STOPS: dict[Amount, tuple[int, ...]] = {"fault-free": (0,), "usual": (0, 0, 1, 1, 2), "hard": (1, 2, 3)}
"""Stops per process, at drawn times."""
STOPS_AT_REQUESTS: dict[Amount, tuple[float, ...]] = {
    "fault-free": (0.0,),
    "usual": (0.0, 0.001, 0.004),
    "hard": (0.001, 0.004),
}
STOPS_AT_PUBLISH: dict[Amount, tuple[float, ...]] = {
    "fault-free": (0.0,),
    "usual": (0.0, 0.1, 0.3),
    "hard": (0.2, 0.4),
}
LAGS: dict[Amount, float] = {"fault-free": 0.0, "usual": 0.5, "hard": 0.9}
"""Probability for each agent that it reads or writes late for a while."""
PERIODS: dict[Amount, tuple[int, ...]] = {"fault-free": (0,), "usual": (0, 1, 1, 2), "hard": (0, 1, 2)}


def draw_kind(random: Random) -> Kind:
    """Draw the kind of a seed's scenario. This is the first draw."""
    return random.choices(tuple(SHARES), tuple(SHARES.values()))[0]


def draw(random: Random) -> Scenario:
    """Draw the scenario of a seed."""
    kind = draw_kind(random)
    match kind:
        case "suspended before publish":
            return _suspended_before_publish(random, _draw(random, "fault-free"))
        case "suspended after grant":
            return _suspended_after_grant(random, _draw(random, "fault-free"))
        case "take-overs reordered":
            return _takeovers_reordered(random, _draw(random, "fault-free"))
        case _:
            return _draw(random, kind)


def scenario_of(seed: int, stream: Callable[[str], Random]) -> Scenario:
    """Draw the scenario of a seed, with its additions if it has any. `stream`: the seed's random streams by name."""
    scenario = draw(stream("scenario"))
    if seed % LATER_ADDITIONS_EVERY == LATER_ADDITIONS_FROM:
        return _with_later_additions(stream, scenario)
    if seed % ORDERED_EVERY == ORDERED_FROM:
        return draw_ordered(stream("ordered"), scenario)
    if seed % REQUESTS_EVERY == REQUESTS_FROM:
        additions = draw_requests(stream, scenario)
        limits = {"memory_mb": additions.memory_mb} if additions.memory_mb else {}
        return replace(scenario, additions=additions, settings=scenario.settings.model_copy(update=limits))
    if seed % LEDGER_FAULTS_EVERY == LEDGER_FAULTS_FROM:
        return replace(scenario, additions=draw_ledger_faults(stream, scenario))
    if seed % LATER_ADDITIONS_EVERY == LOG_FAULTS_FROM:
        others = seed % OTHER_LOG_FAULTS_EVERY == LOG_FAULTS_FROM
        faults = draw_other_log_faults if others else draw_log_faults
        return replace(scenario, additions=faults(stream, scenario))
    if seed % ADDITIONS_EVERY:
        return scenario
    additions = draw_additions(stream, scenario.fault_free_from)
    limits = {"max_grant_seconds": MAX_GRANT_SECONDS} if additions.hangs else {}
    return replace(scenario, additions=additions, settings=scenario.settings.model_copy(update=limits))


def draw_additions(stream: Callable[[str], Random], fault_free_from: float) -> Additions:
    """Draw the additions. Each has a stream of its own, so that a further one changes none of these."""
    errors = stream("errors")
    return Additions(
        strangers=stream("strangers").choice((0.0, 0.05, 0.2)),
        errors=tuple(
            PlannedError(
                errors.uniform(1.0, fault_free_from),
                errors.choice(("before the step", "after the step", "in building a record")),
            )
            for _ in range(errors.choice((0, 0, 1, 2)))
        ),
        hangs=stream("hangs").choice((0.0, 0.0, 0.1)),
    )


def _with_later_additions(stream: Callable[[str], Random], scenario: Scenario) -> Scenario:
    additions = draw_later_additions(stream, scenario)
    limits = (
        {"refusal_seconds": stream("refusal_seconds").choice(REFUSAL_SECONDS)} if additions.refusals else {}
    )
    if additions.hung_bodies:
        limits["max_transaction_seconds"] = MAX_TRANSACTION_SECONDS
    return replace(scenario, additions=additions, settings=scenario.settings.model_copy(update=limits))


def draw_later_additions(stream: Callable[[str], Random], scenario: Scenario) -> Additions:
    """Draw the later additions, each from a stream of its own."""
    refusals = stream("refusals")
    until = scenario.fault_free_from
    node = refusals.choice((None, None, *(machine.name for machine in scenario.agents)))
    period = FaultPeriod("refusals", refusals.uniform(0.5, until / 4), until, node)
    return Additions(
        refusals=period if refusals.random() < 0.6 else None,
        hung_bodies=stream("hung bodies").choice((0.0, 0.1)),
        used_ids=stream("used ids").choice((0.0, 0.2)),
    )


def draw_log_faults(stream: Callable[[str], Random], scenario: Scenario) -> Additions:
    """Draw when Kafka loses what."""
    losses = stream("losses")
    return Additions(
        losses=tuple(
            Loss(
                losses.uniform(1.5, scenario.fault_free_from * 0.8),
                losses.choice(("writers", "decisions")),
                losses.choice(("beginning", "end", "everything")),
                losses.randrange(len(scenario.tables)),
                losses.choice((0, 1, 3, 8)),
                losses.choice((None, 0.1, 1.0, 5.0)),
            )
            for _ in range(losses.choice((1, 1, 2)))
        ),
    )


def draw_ledger_faults(stream: Callable[[str], Random], scenario: Scenario) -> Additions:
    """Draw when Kafka loses what of the ledger, and when the writers begin again with an earlier batch."""
    losses, restored = stream("ledger losses"), stream("checkpoints restored")
    until = scenario.fault_free_from
    return Additions(
        losses=tuple(
            Loss(
                losses.uniform(1.5, until * 0.6),
                "ledger",
                losses.choice(("beginning", "end", "everything")),
                losses.randrange(len(scenario.tables)),
                losses.choice((0, 1, 3, 8)),
                losses.choice((None, None, None, 0.1, 5.0)),
            )
            for _ in range(losses.choice((1, 1, 2)))
        ),
        checkpoints_restored=tuple(
            (restored.uniform(until * 0.3, until), restored.choice((1, 2, 5)))
            for _ in range(restored.choice((1, 2, 3)))
        ),
    )


def draw_ordered(random: Random, scenario: Scenario) -> Scenario:
    """Let writers of few places be `ordered`, on tables that refuse the publish of a writer whose rows would be older ones."""
    tables = []
    for table in scenario.tables:
        places = tuple((f"d={day}", "f1") for day in range(random.choice((1, 1, 2))))
        writers = tuple(
            (
                machine,
                replace(
                    workload,
                    queued=random.random() < 0.3,
                    priority=random.choice((0, 0, 0, 0, 1, TABLE_SERVICE_PRIORITY)),
                    rule=random.choice(("ordered", "ordered", "ordered", "ordered", "file-group")),
                    operation="merge",
                    places=places,
                    most=2,
                ),
            )
            for machine, workload in table.writers
        )
        tables.append(
            replace(table, fenced=True, records_batches=True, lock=None, hudi=None, writers=writers)
        )
    return replace(scenario, tables=tuple(tables), additions=Additions(ordered=True))


def draw_requests(stream: Callable[[str], Random], scenario: Scenario) -> Additions:
    """Draw what operators request, and what agents must refuse, each from a stream of its own."""
    rolled_back = stream("rolled back")
    tried = rolled_back.uniform(1.0, scenario.fault_free_from / 2)
    upgraded = tried + rolled_back.uniform(8.0, 14.0)
    return Additions(
        operators=stream("operators").choice((0.0, 0.3)),
        refused_intents=stream("refused intents").choice((0.0, 0.2)),
        memory_mb=stream("memory").choice((0.0, *MEMORY_MB)),
        rolled_back=(tried, upgraded) if rolled_back.random() < 0.5 else None,
    )


def draw_other_log_faults(stream: Callable[[str], Random], scenario: Scenario) -> Additions:
    """Draw the other faults of the log, each from a stream of its own."""
    copied_again = stream("copied again")
    at = copied_again.uniform(1.0, scenario.fault_free_from / 2)
    return Additions(
        misplaced=0.3 if scenario.partitions > 1 else 0.0,
        copied_again=at if scenario.partitions == 1 or copied_again.random() < 0.5 else None,
    )


def _draw(random: Random, kind: Amount) -> Scenario:
    settings = SETTINGS.model_copy(
        update={
            "policy": random.choices(("first-intent", "first-committer"), (0.75, 0.25))[0],
            "early_detection": random.random() < 0.9,
            "hold": random.choice(("while-active", "per-commit")),
        }
    )
    fault_free_from = random.uniform(14.0, 24.0) if kind == "hard" else random.uniform(8.0, 20.0)
    agents = random.choice((2, 2, 3)) if kind == "hard" else random.choices((1, 2, 3), (0.25, 0.5, 0.25))[0]
    names = [f"a{n + 1}" for n in range(agents)]
    machines = tuple(
        _machine(
            random,
            name,
            fault_free_from,
            kind=kind,
            starts=random.choice((0.0, 0.0, random.uniform(0, fault_free_from / 2))),
        )
        for name in names
    )
    machines = (replace(machines[0], starts=0.0), *machines[1:])
    tables = tuple(
        _table(random, number, fault_free_from, kind=kind)
        for number in range(1 if kind == "hard" else random.choices((1, 2), (0.6, 0.4))[0])
    )
    everybody = [*names, *(machine.name for table in tables for machine, _ in table.writers)]
    lags = tuple(_lag(random, name, fault_free_from) for name in names if random.random() < LAGS[kind])
    return Scenario(
        kind=kind,
        settings=settings,
        partitions=random.choice((1, 2, 3)),
        agents=machines,
        tables=tables,
        kafka=_fault_profile(random, fault_free_from, [*everybody, *names, *names], kind=kind, late=6.0),
        store=_fault_profile(random, fault_free_from, everybody, kind=kind, late=12.0),
        lags=lags,
        stops_at_requests=random.choice(STOPS_AT_REQUESTS[kind]),
        stops_at_publish=random.choice(STOPS_AT_PUBLISH[kind]),
        suspensions_before_publish=0.0,
        suspensions_after_grant=0.0,
        checks=tuple(random.uniform(1.0, fault_free_from * 1.3) for _ in range(4)),
        fault_free_from=fault_free_from,
        bound=fault_free_from + 240.0,
    )


# -- runs with a single fault ----------------------------------------------------------------------------------------


def _suspended_before_publish(random: Random, scenario: Scenario) -> Scenario:
    """Several writers of one file group: the writer granted during the suspension writes to the same place."""
    place = (("d=1", "f1"),)
    return replace(
        scenario,
        kind="suspended before publish",
        agents=(_machine(random, "a1", scenario.fault_free_from, kind="fault-free"),),
        tables=(
            replace(
                scenario.tables[0],
                fenced=True,
                records_batches=True,
                lock=None,
                hudi=None,
                writers=tuple(
                    (
                        _machine(random, f"w0{each + 1}", scenario.fault_free_from, kind="fault-free"),
                        _quick(random, place),
                    )
                    for each in range(random.choice((3, 4)))
                ),
            ),
        ),
        suspensions_before_publish=0.3,
    )


def _suspended_after_grant(random: Random, scenario: Scenario) -> Scenario:
    """A grant outlives its agent's session, as with the defaults: it is unexpired when it is published after the suspension."""
    agents = random.choice((2, 3))
    return replace(
        scenario,
        kind="suspended after grant",
        settings=scenario.settings.model_copy(update={"grant_seconds": 9.0}),
        agents=tuple(
            _machine(random, f"a{each + 1}", scenario.fault_free_from, kind="fault-free")
            for each in range(agents)
        ),
        tables=tuple(
            replace(
                table,
                lock=None,
                hudi=None,
                writers=tuple(
                    (machine, _quick(random, ((f"d={each}", "f1"),)))
                    for each, (machine, _) in enumerate(table.writers)
                ),
            )
            for table in scenario.tables
        ),
        suspensions_after_grant=0.2,
    )


def _takeovers_reordered(random: Random, scenario: Scenario) -> Scenario:
    """The `partition-taken` of the first owner is delayed for long, that of the second is not. No take-over follows."""
    first, second = (
        _machine(random, f"a{each + 1}", scenario.fault_free_from, kind="fault-free", starts=starts)
        for each, starts in enumerate((0.0, random.uniform(0.3, 2.5)))
    )
    return replace(
        scenario,
        kind="take-overs reordered",
        agents=(first, second),
        lags=(Lag(first.name, "writes", 0.0, 3.0, random.uniform(5.0, 8.0)),),
    )


def _quick(random: Random, places: tuple[tuple[str, str], ...]) -> Workload:
    """A writer that requests grants in quick succession."""
    return Workload(
        think=random.choice((0.1, 0.6)),
        compute=random.choice((0.05, 0.3)),
        publish=random.choice((0.02, 0.2)),
        queued=False,
        priority=0,
        rule="file-group",
        operation="merge",
        places=places,
        most=1,
    )


# -- parts -----------------------------------------------------------------------------------------------------------


def _machine(
    random: Random, name: str, fault_free_from: float, *, kind: Amount, starts: float = 0.0
) -> Machine:
    drift = SETTINGS.drift_seconds
    clock = draw_clock(
        random,
        until=fault_free_from + 300.0,
        band=(-drift / 2, drift / 2),
        rate_error=0.5 * drift / SETTINGS.validity_seconds,
        jumps=random.choice((0.0, 0.5)),
    )
    count = random.choice(STOPS[kind])
    stops = tuple(
        draw_stop(random, random.uniform(0.5, fault_free_from), fault_free_from, name) for _ in range(count)
    )
    return Machine(name, clock, stops, starts)


def draw_stop(random: Random, at: float, fault_free_from: float, name: str) -> Stop:
    """Draw a death, an orderly stop, or a pause about as long as the leases. A paused driver may be replaced."""
    drawn = random.random()
    is_agent = name.startswith("a")
    if drawn < 0.35:
        return Stop(at, None, restart=random.choice((0.1, 1.0, 5.0)))
    if is_agent and drawn < 0.5:
        return Stop(at, None, orderly=True, restart=random.choice((0.1, 2.0, 6.0)))
    seconds = min(
        random.choice((0.5, 2.0, 4.0, 8.0, 14.0)) * random.uniform(0.5, 1.2), max(0.1, fault_free_from - at)
    )
    return _pause(random, at, seconds, replaceable=not is_agent)


def draw_stop_at_publish(random: Random, at: float) -> Stop:
    """Draw a death, or a pause about as long as the rest of the grant, or longer."""
    if random.random() < 0.35:
        return Stop(at, None, restart=random.choice((0.1, 1.0, 5.0)))
    return _pause(random, at, random.uniform(3.0, 14.0), replaceable=True)


def draw_suspension_before_publish(random: Random, at: float) -> Stop:
    """Draw a pause longer than the driver's grant and the next one or two of other writers."""
    return _pause(random, at, random.uniform(8.0, 16.0), replaceable=False)


def draw_suspension_after_grant(random: Random, at: float) -> Stop:
    """Draw a pause in which another agent becomes the owner of the partition; the grant has some seconds left afterwards."""
    return _pause(random, at, random.uniform(5.0, 8.0), replaceable=False)


def _pause(random: Random, at: float, seconds: float, *, replaceable: bool) -> Stop:
    replaced = replaceable and random.random() < 0.4
    return Stop(
        at,
        seconds,
        suspended=random.random() < 0.2,
        restart=seconds * random.uniform(0.2, 1.0) if replaced else None,
    )


def _table(random: Random, number: int, fault_free_from: float, *, kind: Amount) -> TablePlan:
    uri = f"s3://lake/t{number}"
    shared = random.random() < 0.15
    fenced = not shared and random.random() < 0.6
    writers = random.choice((2, 3, 4)) if kind == "hard" else random.choices((1, 2, 3), (0.2, 0.5, 0.3))[0]
    places = [(f"d={day}", group) for day in range(random.choice((1, 1, 2))) for group in ("f1", "f2", "f3")]
    if random.random() < 0.3:
        places = [(partition, "*") for partition in dict.fromkeys(each for each, _ in places)]
    rule: ConflictRule = (
        random.choice(("file-group", "file-group", "deleted-file")) if fenced else "file-group"
    )
    return TablePlan(
        uri,
        fenced=fenced,
        records_batches=fenced or random.random() < 0.5,
        lock=uri + HUDI_LOCK if shared else None,
        writers=tuple(
            (
                _machine(random, f"w{number}{each + 1}", fault_free_from, kind=kind),
                _workload(random, each, rule, tuple(places)),
            )
            for each in range(writers)
        ),
        hudi=_machine(random, f"hudi{number}", fault_free_from, kind="fault-free") if shared else None,
    )


def _workload(
    random: Random, number: int, rule: ConflictRule, places: tuple[tuple[str, str], ...]
) -> Workload:
    compacts = number > 0 and random.random() < 0.2
    operation: Operation = "delete" if compacts else random.choice(("merge", "merge", "append"))
    return Workload(
        think=random.choice((0.1, 0.6, 2.0)),
        compute=random.choice((0.05, 0.3, 1.0, 2.5)),
        publish=random.choice((0.02, 0.2, 1.0)),
        queued=random.random() < 0.2,
        priority=TABLE_SERVICE_PRIORITY if compacts else random.choice((0, 0, 0, 1)),
        rule=rule,
        operation=operation,
        places=places,
        most=random.choice((1, 2, 3)),
    )


def _lag(random: Random, name: str, fault_free_from: float) -> Lag:
    since = random.uniform(0.0, fault_free_from)
    return Lag(
        name,
        random.choice(("reads", "writes")),
        since,
        min(since + random.uniform(3.0, 14.0), fault_free_from),
        random.choice((0.3, 1.5, 3.0, 6.0)),
    )


def _fault_profile(
    random: Random, fault_free_from: float, names: list[str], *, kind: Amount, late: float
) -> FaultProfile:
    worst = 0.0 if kind == "fault-free" else random.choice((0.0, 0.01, 0.05))
    possible: list[tuple[PeriodKind, str | None]] = [
        ("outage", None),
        ("slow", None),
        *(("cut off", name) for name in names),
    ]
    periods: list[FaultPeriod] = []
    for what, node in random.sample(possible, k=random.choice(PERIODS[kind])):
        since = random.uniform(0, fault_free_from)
        periods.append(
            FaultPeriod(what, since, min(since + random.uniform(0.5, 12.0), fault_free_from), node)
        )
    return FaultProfile(
        latency=random.choice((0.002, 0.01, 0.03)),
        spread=random.choice((0.1, 0.5)),
        longest_latency=0.1,
        fault={"cut": random.uniform(0, worst), "silence": random.uniform(0, worst)},
        late_seconds=late,
        periods=tuple(periods),
        fault_free_from=fault_free_from,
    )
