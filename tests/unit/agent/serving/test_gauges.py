"""What a scrape finds in the owners of partitions."""

from __future__ import annotations

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
    table.owner._tables.step(URI, Tick(now, table.owner.position - 1, CaughtUp(table.now, now)))

    assert set(table.owner.tables[URI].lapsed) == {"T1", observed}
    found = await measure([table.owner], table.metrics, now)
    assert dict(found.unreported) == {URI: 1}
