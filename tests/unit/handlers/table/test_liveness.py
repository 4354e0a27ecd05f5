"""When a writer is lost, and why an agent that lags loses no writer."""

from __future__ import annotations

import pytest

from tests.unit.handlers.table.stories import Story, stories

STORIES = """
queued and waiting transactions need heartbeats too
    # A dead writer in either queue would block those behind it.
    intent A; touch A p/f; request A; intent B p/f queued
    tick 15.1 → aborted A writer-lost and B writer-lost

silence ends when the agent requested the end of the log
    # Kafka or the agent was slow: a heartbeat may be in the log behind the end that the agent knows.
    intent A; tick 17 request_age=2.5 → no abort
    tick 0.6 request_age=2.5 → aborted A writer-lost

a granted transaction does not time out
    # Its writer may be publishing; `max_grant` bounds the grant.
    world max_transaction=10.0
    intent A; lock; request A; beat A; tick 12 → no abort, A is granted

a writer that misses three heartbeats is lost
    # Its driver was killed. What it touched must not block the other writers.
    where SILENCE is intent A heartbeat_seconds=0.1; tick 0.3 | intent A heartbeat_seconds=5; tick 15
    | intent A heartbeat_seconds=60; tick 180
    SILENCE → no abort
    tick 0.01 → Abort transaction=A reason=writer-lost retriable=True, index is empty

every event of the writer counts as a heartbeat
    # Executors publish markers while the driver's heartbeat is late.
    where EVENT is beat A | touch A | request A
    intent A; tick 14 → no abort
    EVENT; tick 14 → no abort
    EVENT; tick 14 → no abort

after a lag silence counts from when the agent caught up
    # The agent was busy for a minute: the heartbeats are in the log, unread. Each writer gets three full intervals again.
    intent A; lag; tick 60 → no abort
    catch_up; tick 14.9 → no abort
    tick 0.2 → aborted A writer-lost

a transaction that is open for too long times out whatever its writer publishes
    # Its work hangs. Heartbeats come from a thread of their own, so they continue. A is queued, active, or waits for its grant.
    where LIFE is intent A p/f queued | intent A p/f priority=1; abandon other | intent A p/f priority=1; request A; abandon other
    world max_transaction=60.0
    intent other p/f; LIFE; tick 14; beat A; beat other; tick 14; beat A; beat other; tick 14; beat A; beat other; tick 14; beat A
    → no abort
    beat other; tick 3.9 → no abort
    beat A; tick 0.6 → some Abort transaction=A reason=timed-out retriable=True detail~"limit 60 s (max_transaction_seconds)"
    → a replay agrees

a writer that comes back finds its abort
    # It paused for a long garbage collection. Other writers may have committed to the files that it touched.
    intent A; tick 16 → aborted A writer-lost
    beat A → nothing
    touch A p/f → nothing
    request A → Abort reason=writer-lost retriable=True cause=e-3-A, index is empty
"""


@pytest.mark.parametrize("story", stories(STORIES), ids=str)
def test_silence_and_age(story: Story) -> None:
    story.play()
