"""A writer that floods its table with markers harms neither the other tables of its partition nor the agent."""

import json
from dataclasses import dataclass, field

import anyio
import pytest

from lakewarden.events import Abort
from tests.real.writers import World, Writer

PATIENCE_SECONDS = 480.0
BATCH = 1_000
"""Markers per event."""
MEMORY_MB = 40
"""About 200,000 markers."""
pytestmark = [
    pytest.mark.real,
    pytest.mark.wide,
    pytest.mark.world(partitions=1, memory_mb=MEMORY_MB, log_level="info"),
]
FLOOD = 400_000
"""Markers: twice the limit."""
AT_ONCE = 50
"""Events that are sent before the first acknowledgement is awaited."""
AHEAD = 2
"""Rounds of events that the agent may be behind."""
NEIGHBOURS_COMMITS = 5
HEADROOM_MB = 400
"""The memory that the agent may use: the markers up to the limit, about 300 bytes each, and the events that it has fetched."""


@dataclass(slots=True)
class Neighbour:
    """A writer of another table that commits repeatedly."""

    scene: World
    commits: int = 0
    granted_at: list[int] = field(default_factory=list)
    """The offset in `writers` of each grant's cause."""

    async def run(self) -> None:
        """Commit until cancelled."""
        while True:
            writer = self.scene.writer("neighbour", f"{self.scene.table}-neighbour")
            await writer.begin(heartbeat_seconds=100)
            await writer.touch("x")
            grant = await writer.obtain_grant()
            await writer.complete(grant.grant)
            self.granted_at.append(grant.cause_offset)
            self.commits += 1


async def test_too_many_markers_abort_only_their_own_transaction(scene: World) -> None:
    async with scene.running() as agent:
        before = agent.memory_mb()
        flooding, other = scene.writer("flooding"), scene.writer("other")
        for each in (flooding, other):
            await each.begin(heartbeat_seconds=100)
        neighbour = Neighbour(scene)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(neighbour.run)
            began, ended = await _flood(scene, flooding, neighbour)
            tasks.cancel_scope.cancel()
        abort = await flooding.wait_for(Abort)
        await other.obtain_grant()
        peak = agent.memory_mb(peak=True)

    during = [offset for offset in neighbour.granted_at if began < offset < ended]
    print(f"{len(during)} grants of the neighbour during the flood; {before:.0f} MB, at most {peak:.0f} MB")
    assert len(during) >= NEIGHBOURS_COMMITS - 1
    assert (abort.reason, abort.retriable) == ("not-allowed", True)
    assert "memory_mb" in str(abort.detail)
    assert scene.events(Abort, other.mine) == []
    assert peak - before < HEADROOM_MB


async def _flood(scene: World, flooding: Writer, neighbour: Neighbour) -> tuple[int, int]:
    """Send distinct markers until all are sent and the neighbour has committed often enough. Return the first and last offset.

    The agent always has events to consume, and is at most `AHEAD` rounds behind. Events that arrive faster than the agent
    consumes them delay the whole partition, which only Kafka's quotas can prevent.
    """
    offsets: list[int] = []
    read: list[Writer] = []
    count = 0
    with anyio.fail_after(PATIENCE_SECONDS):
        while count < FLOOD or neighbour.commits < NEIGHBOURS_COMMITS:
            values = [
                _markers(flooding, range(start, start + BATCH))
                for start in range(count, count + AT_ONCE * BATCH, BATCH)
            ]
            offsets += await _send_all(scene, values, flooding.table)
            count += AT_ONCE * BATCH
            read.append(scene.writer("stranger"))
            await read[-1].heartbeat()
            while len(read) > AHEAD and not scene.events(Abort, read[-1 - AHEAD].mine):
                await anyio.sleep(0.01)  # the neighbour polls the decisions
    return offsets[0], offsets[-1]


async def _send_all(scene: World, values: list[bytes], table: str) -> list[int]:
    topic = f"{scene.prefix}.writers"
    sent = [await scene.producer.send(topic, value, table.encode()) for value in values]
    return [(await each).offset for each in sent]


def _markers(writer: Writer, numbers: range) -> bytes:
    """An event `marker-created`, built without the product's types for speed."""
    event = {
        "type": "marker-created",
        "protocol": 1,
        "event_id": f"{writer.transaction}-{numbers.start}",
        "table": writer.table,
        "transaction": writer.transaction,
        "writer": writer.name,
        "at": "2026-01-01T00:00:00Z",
        "markers": [
            {"partition": "p", "file_group": f"group-{number}", "operation": "create"} for number in numbers
        ],
    }
    return json.dumps(event, separators=(",", ":")).encode()
