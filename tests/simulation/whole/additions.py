"""Draws the additions of a seed, as `scenario.py` lists them. Each has a random stream of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from lakewarden.events import TABLE_SERVICE_PRIORITY
from tests.simulation.faults import FaultPeriod
from tests.simulation.whole.drawing import draw
from tests.simulation.whole.scenario import TOPICS, Additions, Deletion, Loss, PlannedError, Scenario, Stop

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
WATCHED_EVERY, WATCHED_FROM = 20, 8
"""None of the seeds that failed before there were any has writers without the gate."""
REQUESTS_EVERY, REQUESTS_FROM = 20, 1
"""None of the seeds that failed before there were any has these requests and limits."""
DELETION_EVERY, DELETION_FROM = 40, 38
"""None of the seeds that failed before there were any has deletions."""
SUSPENSIONS_EVERY, SUSPENSIONS_FROM = 40, 6
"""None of the seeds that failed before there were any has suspensions at a rebalance."""
EDITIONS_EVERY, EDITIONS_FROM = 40, 18
"""None of the seeds that failed before there were any has editions."""
MEMORY_MB = (0.03, 0.045)
"""Budgets in seeds with a small one. A transaction with `MANY_MARKERS` exceeds the first, and fits into the second."""
MAX_TRANSACTION_SECONDS = 30.0
"""In seeds with hung bodies: longer than most transactions take."""
REFUSAL_SECONDS = (3.0, 120.0)
"""In seeds with refusals: most last longer than the first, and none lasts longer than the second."""
MAX_GRANT_SECONDS = 10.0
"""In seeds with hangs: one is no longer than the longest grant lease."""


def scenario_of(seed: int, stream: Callable[[str], Random]) -> Scenario:
    """Draw the scenario of a seed, with its additions if it has any. `stream`: the seed's random streams by name."""
    scenario = draw(stream("scenario"))
    if seed % LATER_ADDITIONS_EVERY == LATER_ADDITIONS_FROM:
        return _with_later_additions(stream, scenario)
    if seed % ORDERED_EVERY == ORDERED_FROM:
        return draw_ordered(stream("ordered"), scenario)
    if seed % WATCHED_EVERY == WATCHED_FROM:
        return draw_watched(stream("watched"), scenario)
    if seed % DELETION_EVERY == DELETION_FROM:
        return draw_deletion(stream("deletion"), scenario)
    if seed % EDITIONS_EVERY == EDITIONS_FROM:
        return draw_editions(scenario)
    if seed % SUSPENSIONS_EVERY == SUSPENSIONS_FROM:
        return draw_suspensions(stream("suspensions"), scenario)
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


def draw_suspensions(random: Random, scenario: Scenario) -> Scenario:
    """Let agents join and leave, so that the others keep partitions, and suspend some of these then."""
    first = scenario.agents[0]
    times = sorted(random.uniform(2.0, scenario.fault_free_from) for _ in range(3))
    agents = tuple(
        replace(first, name=f"a{number}", starts=0.0, stops=stops)
        for number, stops in enumerate(
            ((), *((Stop(at, None, orderly=True, restart=random.choice((0.1, 2.0))),) for at in times)), 1
        )
    )
    return replace(scenario, agents=agents, additions=Additions(suspensions_before_resume=0.5))


def draw_deletion(random: Random, scenario: Scenario) -> Scenario:
    """Draw which topics are deleted. The writers are quick, and little else goes wrong: a long log becomes a short one.

    They begin again with an earlier batch afterwards, before the new topic is as long as the old one was.
    """
    until = scenario.fault_free_from
    at = random.uniform(until * 0.4, until * 0.6)
    topics = random.choice((*[(TOPICS.writers, TOPICS.decisions)] * 3, (TOPICS.writers,)))
    return replace(
        draw_editions(scenario),
        agents=tuple(replace(each, stops=()) for each in scenario.agents),
        lags=(),
        stops_at_requests=0.0,
        stops_at_publish=0.0,
        settings=scenario.settings.model_copy(update={"partitions": scenario.partitions, "replication": 1}),
        additions=Additions(
            deletion=Deletion(at, topics, random.random() < 0.5),
            corrections=1.0,
            checkpoints_restored=tuple((at + after, 2) for after in (5.0, 6.5, 8.0, 10.0, 12.0)),
        ),
    )


def draw_editions(scenario: Scenario) -> Scenario:
    """Let quick writers commit much, so that an operator lowers what some have committed."""
    tables = tuple(
        replace(
            table,
            writers=tuple(
                (
                    replace(machine, stops=()),
                    replace(workload, think=0.1, compute=0.05, publish=0.02, places=((f"d={number}", "f1"),)),
                )
                for number, (machine, workload) in enumerate(table.writers)
            ),
        )
        for table in scenario.tables
    )
    return replace(scenario, tables=tables, additions=Additions(editions=1.0))


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


def draw_watched(random: Random, scenario: Scenario) -> Scenario:
    """Let each table have a writer that doesn't use the gate. Only the tables' own check protects it, so all have one."""
    tables = tuple(
        replace(table, fenced=True, records_batches=True, lock=None, hudi=None) for table in scenario.tables
    )
    return replace(scenario, tables=tables, additions=Additions(watched=random.choice((2.0, 6.0))))


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
    """Draw the other fault of the log."""
    return Additions(misplaced=0.3 if scenario.partitions > 1 else 0.0)
