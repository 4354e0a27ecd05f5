"""Every promise under faults: three agents, twelve partitions, two hundred tables and fifty writers.

The checks use the log, the evidence of the writers with times on CLOCK_MONOTONIC, and the tables. They request nothing from an
agent. `LAKEWARDEN_TEST_STORM_SECONDS` is the least length of the faults (default: 60). `LAKEWARDEN_TEST_CHAOS_SEED` repeats the
random choices of a run that has printed it.
"""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
import pytest_asyncio

from tests.kafka_fixture import KafkaServer
from tests.own_task import in_own_task
from tests.real.aftermath import Aftermath, aftermath, check_every_promise
from tests.real.fleet import PARTITIONS, Fleet, fleet
from tests.real.storm_writers import WRITERS

SECONDS_VARIABLE = "LAKEWARDEN_TEST_STORM_SECONDS"
SECONDS = float(os.environ.get(SECONDS_VARIABLE, "") or 60)

pytestmark = [pytest.mark.real, pytest.mark.wide, pytest.mark.timeout(1_800 + 2 * SECONDS)]


@pytest_asyncio.fixture
async def storm(
    kafka: KafkaServer, topic_prefix: str, tmp_path: Path, chaos_seed: int
) -> AsyncIterator[Fleet]:
    async with in_own_task(fleet(kafka.bootstrap_servers, topic_prefix, tmp_path, chaos_seed)) as made:
        yield made


async def test_every_promise_holds_while_agents_and_writers_are_killed_paused_and_restarted(
    storm: Fleet,
) -> None:
    await _run_faults(storm)
    async with anyio.create_task_group() as tasks:
        left = await aftermath(storm, tasks)
        _check_that_faults_had_effects(storm, left)
        check_every_promise(left)


async def _run_faults(storm: Fleet) -> None:
    began = time.monotonic()
    async with anyio.create_task_group() as tasks:
        await storm.start()
        tasks.start_soon(storm.sample)
        await storm.run_faults(SECONDS)
        print(f"storm over after {time.monotonic() - began:.0f} s: {dict(storm.faults)}")
        await storm.finish()
        tasks.cancel_scope.cancel()
    await storm.sample_once()
    print(f"settled after {time.monotonic() - began:.0f} s")


def _check_that_faults_had_effects(storm: Fleet, left: Aftermath) -> None:
    """Faults of every kind were injected, and every possible effect on a writer occurred."""
    decided, how = left.figures()
    retries = sum(line["admission"] == "queued" for line in left.lines_of("try"))
    print(f"decided: {dict(decided)}\nacknowledged: {dict(how)}, retries: {retries}")
    for fault in ("agent killed", "agent stopped in order", "agent paused", "writers killed"):
        assert storm.faults[fault], fault
    assert decided["abort:conflict"]
    assert decided["partition-taken:"] > PARTITIONS
    assert retries
    assert all(how[each] for each in ("published", "already-committed", "found"))
    assert [table for table, lines in left.tables.items() if not lines] == []
    assert {line["writer"] for line in left.lines_of("acknowledged")} == {
        f"writer-{each}" for each in range(WRITERS)
    }
