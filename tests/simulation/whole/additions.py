"""Draws the additions of a seed, as `scenario.py` lists them. Each has a random stream of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, TypeAlias

from lakewarden.events import TABLE_SERVICE_PRIORITY
from tests.simulation.faults import FaultPeriod
from tests.simulation.whole.drawing import draw
from tests.simulation.whole.scenario import TOPICS, Additions, Deletion, Loss, PlannedError, Scenario, Stop

MEMORY_MB = (0.03, 0.045)
"""Budgets in seeds with a small one. A transaction with `MANY_MARKERS` exceeds the first, and fits into the second."""
MAX_TRANSACTION_SECONDS = 30.0
"""In seeds with hung bodies: longer than most transactions take."""
REFUSAL_SECONDS = (3.0, 120.0)
"""In seeds with refusals: most last longer than the first, and none lasts longer than the second."""
MAX_GRANT_SECONDS = 10.0
"""In seeds with hangs: one is no longer than the longest grant lease."""


Stream: TypeAlias = Callable[[str], Random]


def scenario_of(seed: int, stream: Stream) -> Scenario:
    """Draw the scenario of a seed, with its additions if it has any. `stream`: the seed's random streams by name."""
    scenario = draw(stream("scenario"))
    add = next((each for every, first, each in ADDITIONS if seed % every == first), None)
    return scenario if add is None else add(stream, scenario)


def _with(scenario: Scenario, additions: Additions, **limits: float) -> Scenario:
    """With additions, and settings of the agents that they need."""
    return replace(scenario, additions=additions, settings=scenario.settings.model_copy(update=limits))


def _add_first(stream: Stream, scenario: Scenario) -> Scenario:
    """Each addition has a stream of its own, so that a further one changes none of these."""
    errors = stream("errors")
    hangs = stream("hangs").choice((0.0, 0.0, 0.1))
    additions = Additions(
        strangers=stream("strangers").choice((0.0, 0.05, 0.2)),
        errors=tuple(
            PlannedError(
                errors.uniform(1.0, scenario.fault_free_from),
                errors.choice(("before the step", "after the step", "in building a record")),
            )
            for _ in range(errors.choice((0, 0, 1, 2)))
        ),
        hangs=hangs,
    )
    return _with(scenario, additions, **({"max_grant_seconds": MAX_GRANT_SECONDS} if hangs else {}))


def _add_later(stream: Stream, scenario: Scenario) -> Scenario:
    refusals = stream("refusals")
    until = scenario.fault_free_from
    node = refusals.choice((None, None, *(machine.name for machine in scenario.agents)))
    period = FaultPeriod("refusals", refusals.uniform(0.5, until / 4), until, node)
    additions = Additions(
        refusals=period if refusals.random() < 0.6 else None,
        hung_bodies=stream("hung bodies").choice((0.0, 0.1)),
        used_ids=stream("used ids").choice((0.0, 0.2)),
    )
    limits = {}
    if additions.refusals:
        limits["refusal_seconds"] = stream("refusal_seconds").choice(REFUSAL_SECONDS)
    if additions.hung_bodies:
        limits["max_transaction_seconds"] = MAX_TRANSACTION_SECONDS
    return _with(scenario, additions, **limits)


def _losses(
    random: Random, scenario: Scenario, *topics: Any, until: float, restarts: tuple[float | None, ...]
) -> tuple[Loss, ...]:
    """When Kafka loses what."""
    return tuple(
        Loss(
            random.uniform(1.5, scenario.fault_free_from * until),
            random.choice(topics) if len(topics) > 1 else topics[0],
            random.choice(("beginning", "end", "everything")),
            random.randrange(len(scenario.tables)),
            random.choice((0, 1, 3, 8)),
            random.choice(restarts),
        )
        for _ in range(random.choice((1, 1, 2)))
    )


def _add_log_faults(stream: Stream, scenario: Scenario) -> Scenario:
    restarts = (None, 0.1, 1.0, 5.0)
    losses = _losses(stream("losses"), scenario, "writers", "decisions", until=0.8, restarts=restarts)
    return _with(scenario, Additions(losses=losses))


def _add_misplaced(_: Stream, scenario: Scenario) -> Scenario:
    """The other fault of the log."""
    return _with(scenario, Additions(misplaced=0.3 if scenario.partitions > 1 else 0.0))


def _add_ledger_faults(stream: Stream, scenario: Scenario) -> Scenario:
    """Kafka loses records of the ledger, and the writers begin again with an earlier batch."""
    restored, until = stream("checkpoints restored"), scenario.fault_free_from
    restarts = (None, None, None, 0.1, 5.0)
    additions = Additions(
        losses=_losses(stream("ledger losses"), scenario, "ledger", until=0.6, restarts=restarts),
        checkpoints_restored=tuple(
            (restored.uniform(until * 0.3, until), restored.choice((1, 2, 5)))
            for _ in range(restored.choice((1, 2, 3)))
        ),
    )
    return _with(scenario, additions)


def _add_suspensions(stream: Stream, scenario: Scenario) -> Scenario:
    """Let agents join and leave, so that the others keep partitions, and suspend some of these then."""
    random = stream("suspensions")
    first = scenario.agents[0]
    times = sorted(random.uniform(2.0, scenario.fault_free_from) for _ in range(3))
    agents = tuple(
        replace(first, name=f"a{number}", starts=0.0, stops=stops)
        for number, stops in enumerate(
            ((), *((Stop(at, None, orderly=True, restart=random.choice((0.1, 2.0))),) for at in times)), 1
        )
    )
    return replace(scenario, agents=agents, additions=Additions(suspensions_before_resume=0.5))


def _add_deletion(stream: Stream, scenario: Scenario) -> Scenario:
    """Draw which topics are deleted. The writers are quick, and little else goes wrong: a long log becomes a short one.

    They begin again with an earlier batch afterwards, before the new topic is as long as the old one was.
    """
    random = stream("deletion")
    until = scenario.fault_free_from
    at = random.uniform(until * 0.4, until * 0.6)
    topics = random.choice((*[(TOPICS.writers, TOPICS.decisions)] * 3, (TOPICS.writers,)))
    return replace(
        _add_editions(stream, scenario),
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


def _add_editions(_: Stream, scenario: Scenario) -> Scenario:
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


def _add_ordered(stream: Stream, scenario: Scenario) -> Scenario:
    """Let writers of few places be `ordered`, on tables that refuse the publish of a writer whose rows would be older ones."""
    random = stream("ordered")
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


def _add_watched(stream: Stream, scenario: Scenario) -> Scenario:
    """Let each table have a writer that doesn't use the gate. Only the tables' own check protects it, so all have one."""
    random = stream("watched")
    tables = tuple(
        replace(table, fenced=True, records_batches=True, lock=None, hudi=None) for table in scenario.tables
    )
    return replace(scenario, tables=tables, additions=Additions(watched=random.choice((2.0, 6.0))))


def _add_requests(stream: Stream, scenario: Scenario) -> Scenario:
    """What operators request, and what agents must refuse."""
    rolled_back = stream("rolled back")
    tried = rolled_back.uniform(1.0, scenario.fault_free_from / 2)
    upgraded = tried + rolled_back.uniform(8.0, 14.0)
    memory_mb = stream("memory").choice((0.0, *MEMORY_MB))
    additions = Additions(
        operators=stream("operators").choice((0.0, 0.3)),
        refused_intents=stream("refused intents").choice((0.0, 0.2)),
        memory_mb=memory_mb,
        rolled_back=(tried, upgraded) if rolled_back.random() < 0.5 else None,
    )
    return _with(scenario, additions, **({"memory_mb": memory_mb} if memory_mb else {}))


ADDITIONS: tuple[tuple[int, int, Callable[[Stream, Scenario], Scenario]], ...] = (
    (10, 7, _add_later),
    (20, 12, _add_ordered),
    (20, 8, _add_watched),
    (40, 38, _add_deletion),
    (40, 18, _add_editions),
    (40, 6, _add_suspensions),
    (20, 1, _add_requests),
    (20, 4, _add_ledger_faults),
    (40, 9, _add_misplaced),
    (10, 9, _add_log_faults),
    (5, 0, _add_first),
)
"""One of so many seeds, beginning with this one, has these additions, unless it has others above.

None of the seeds that failed before there were any has them.
"""
