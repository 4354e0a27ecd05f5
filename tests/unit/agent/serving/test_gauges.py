"""What a scrape finds in the owners of partitions."""

import pytest

from lakewarden.agent.clock import monotonic
from lakewarden.agent.serving.gauges import measure
from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.machine import Tick
from tests.unit.agent.serving.owner_in_memory import Table

URI = "s3://lake/orders"


async def test_an_unreported_outcome_is_one_of_a_granted_transaction() -> None:
    """The run-book of its alert asks for the batch. A transaction that a watcher reports has none."""
    observed = "hudi:20261122135446024"
    table = Table(URI, [("T1", "W"), (observed, observed)])
    table.now = monotonic()
    table.send("commit-intent", 0, batch_id=1, scope=[], heartbeat_seconds=5.0)
    table.lock("confirmed")
    table.send("commit-requested", 0, seq=1, markers=[])
    table.send("commit-intent", 1, observed=True, scope=[], heartbeat_seconds=5.0)

    now = table.now + 21.0
    table.owner.tables.step(URI, Tick(now, table.owner.position - 1, CaughtUp(table.now, now)))

    assert set(table.owner.tables.states[URI].lapsed) == {"T1", observed}
    found = await measure([table.owner], table.metrics, now)
    assert dict(found.unreported) == {(URI,): 1}


@pytest.mark.parametrize(
    "events, seconds, conditions",
    [
        # the default admission: the second writer is queued, none waits for its grant
        ([("queued", 0), ("request", 0), ("queued", 1)], 61, {"publish-hangs": 61}),
        ([("queued", 0), ("request", 0), ("queued", 1)], 59, {}),
        ([("queued", 0), ("queued", 1)], 61, {"queued": 61}),
        ([("abandon", 0), ("abandon", 0)], 5, {"bypassed": 5}),
        ([("abandon", 0)], 5, {}),
    ],
)
async def test_the_condition_of_a_table_is_that_of_status(
    events: list[tuple[str, int]], seconds: float, conditions: dict[str, float]
) -> None:
    names = [("T0", "shop"), ("T1", "crm"), ("T2", "shop")]
    table = Table(URI, names)
    table.now = monotonic()
    place = [{"partition": "day=1", "file_group": "*", "operation": "merge"}]
    attempts = 0
    for kind, which in events:
        if kind == "queued":
            table.send("commit-intent", which, scope=place, heartbeat_seconds=100, admission="queued")
        elif kind == "request":
            table.lock("confirmed")
            table.send("commit-requested", which, seq=1, markers=[])
        else:
            attempt, attempts = (0, 2)[attempts], attempts + 1
            table.send("commit-intent", attempt, heartbeat_seconds=100)
            table.send("transaction-abandoned", attempt, reason="another commit", cause="base-changed")

    found = await measure([table.owner], table.metrics, table.now + seconds)

    assert {name: round(lasts) for (_, name), lasts in found.conditions.items()} == conditions
