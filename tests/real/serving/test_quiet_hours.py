"""Pauses: load balancers, NATs and brokers drop idle connections, and neither end learns of it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
import pytest_asyncio
from anyio import to_thread

from lakewarden.spark_jobs.commit_gate import CommitGate
from tests.kafka_fixture import KafkaServer
from tests.real.writers import PATIENCE_SECONDS, World, world
from tests.servers.cut_proxy import CutProxy
from tests.waiting import until

pytestmark = [pytest.mark.real]

SOON, NEVER = 0.5, 3_600.0
"""After which a client closes an idle connection."""


@pytest_asyncio.fixture
async def scene(kafka: KafkaServer, topic_prefix: str, tmp_path: Path) -> AsyncIterator[World]:
    async with world(kafka.bootstrap_servers, topic_prefix, tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("idle_seconds", "drop_seconds"), [(SOON, 2.0), pytest.param(NEVER, 5.0, marks=pytest.mark.matrix)]
)
async def test_a_transaction_after_a_pause_costs_a_reconnect(
    kafka: KafkaServer, scene: World, idle_seconds: float, drop_seconds: float
) -> None:
    """Clients close an idle connection before it is dropped. Where it is dropped sooner, a request is repeated on a new one.

    The agent's heartbeats in its group are 2 s apart, so their connection is not idle for 5.
    """

    def idle() -> bool:
        now = time.monotonic()
        return any(now - each.used_at > drop_seconds for each in proxy.connections)

    with CutProxy(f"kafka://{kafka.bootstrap_servers}", drop_idle_seconds=drop_seconds) as proxy:
        brokers = f"127.0.0.1:{proxy.port}"
        gate = CommitGate(
            brokers,
            topic_prefix=scene.prefix,
            kafka={"connections_max_idle_ms": round(idle_seconds * 1000)},
            admission_timeout_seconds=PATIENCE_SECONDS,
        )
        async with scene.agent(bootstrap_servers=brokers, kafka_idle_seconds=idle_seconds):
            with gate:
                await to_thread.run_sync(_commit, gate, scene.table, 1)
                await anyio.sleep(drop_seconds + 1)
                await until(lambda: idle() == (idle_seconds == NEVER))
                await to_thread.run_sync(_commit, gate, scene.table, 2)

    if idle_seconds == NEVER:
        assert proxy.lost, "no connection was dropped"


def _commit(gate: CommitGate, table: str, batch: int) -> None:
    with gate.transaction(table=table, writer="w", batch_id=batch) as txn:
        txn.executor_channel().touch("p", "x", "merge")
        with txn.commit() as grant:
            grant.version = str(batch)
