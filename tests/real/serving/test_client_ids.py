"""Every connection to Kafka names its client, so that an operator can set a quota for each kind of client."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import aiokafka.client
import pytest
from anyio import to_thread

from lakewarden.agent.operators.status import status
from lakewarden.spark_jobs.commit_gate import CommitGate
from tests.real.writers import PATIENCE_SECONDS, TEST_CLIENT_ID, World

pytestmark = [pytest.mark.real]


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The client ids of the connections of this process, the test's own clients left out."""
    found: set[str] = set()
    connect = aiokafka.client.create_conn

    async def recorded(*args: Any, **more: Any) -> Any:
        if more["client_id"] != TEST_CLIENT_ID:
            found.add(more["client_id"])
        return await connect(*args, **more)

    monkeypatch.setattr(aiokafka.client, "create_conn", recorded)
    return found


async def test_each_kind_of_client_has_its_own_id(scene: World, connected: set[str]) -> None:
    async with scene.agent():
        assert connected == {"lakewarden-agent"}
        await to_thread.run_sync(_commit, scene)
        assert connected == {"lakewarden-agent", "lakewarden-writer", "lakewarden-executor"}
        await status(scene.settings(), None)

    assert connected == {"lakewarden-agent", "lakewarden-writer", "lakewarden-executor", "lakewarden-cli"}


async def test_an_operator_may_choose_the_ids(scene: World, connected: set[str]) -> None:
    async with scene.agent(kafka_client_id="team-a"):
        await to_thread.run_sync(_commit, scene, {"client_id": "team-b"})

    assert connected == {"team-a", "team-b"}


def _commit(scene: World, kafka: dict[str, str] | None = None) -> None:
    with (
        closing(
            CommitGate(
                scene.bootstrap_servers,
                topic_prefix=scene.prefix,
                kafka=kafka,
                admission_timeout_seconds=PATIENCE_SECONDS,
                send_timeout_seconds=PATIENCE_SECONDS,
            )
        ) as gate,
        gate.transaction(table=scene.table, writer="w", batch_id=1) as txn,
    ):
        txn.executor_channel().touch("p", "x", "merge")
        with txn.commit() as grant:
            grant.version = "1"
