"""Draws the scenario of a seed without its additions."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lakewarden.events import TABLE_SERVICE_PRIORITY, ConflictRule, Operation
from lakewarden.handlers.lease.placement import HUDI_LOCK
from tests.simulation.clocks import draw_clock
from tests.simulation.faults import FaultPeriod, FaultProfile, PeriodKind
from tests.simulation.whole.connection import Lag
from tests.simulation.whole.scenario import Amount, Kind, Machine, Scenario, Stop, TablePlan, Workload
from tests.tuned import tuned

SHARES: dict[Kind, float] = {
    "fault-free": 0.05,
    "usual": 0.42,
    "hard": 0.38,
    "suspended before publish": 0.05,
    "suspended after grant": 0.05,
    "take-overs reordered": 0.05,
}
"""Share of all seeds."""


SETTINGS = tuned(
    bootstrap_servers="simulated",
    topic_prefix="sim",
    tables=("s3://lake/*",),
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


def _draw(random: Random, kind: Amount) -> Scenario:
    settings = SETTINGS.model_copy(
        update={
            "conflict_policy": random.choices(("first-intent", "first-committer"), (0.75, 0.25))[0],
            "early_detection": random.random() < 0.9,
            "lock_hold": random.choice(("while-active", "per-commit")),
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


def draw_suspension_before_resume(random: Random, at: float) -> Stop:
    """Draw a pause in which the group mostly assigns the partition to another agent, which decides there."""
    return _pause(random, at, random.uniform(4.5, 8.0), replaceable=False)


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
