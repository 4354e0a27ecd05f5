"""Hostile records among the work of a fleet: three agents, twelve partitions, two hundred tables, fifty writers, no other faults.

Strangers (`tests/real/strangers.py`) send fuzzed bytes, events at every limit, and events with forged transactions, writers,
grants, locks, priorities and counters to the topic `writers`. `LAKEWARDEN_TEST_SOAK_SECONDS` is the least length (default: 60;
`make soak` takes 600). `LAKEWARDEN_TEST_CHAOS_SEED` repeats the random choices of a run that has printed it.
"""

import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import pytest_asyncio
import structlog

from tests.kafka_fixture import KafkaServer
from tests.own_task import in_own_task
from tests.real import memory
from tests.real.aftermath import Aftermath, aftermath, check_every_promise
from tests.real.fleet import AGENTS, PARTITIONS, Fleet, fleet
from tests.real.storm_writers import TABLES, WRITERS
from tests.real.strangers import KINDS, Strangers

SECONDS = float(os.environ.get("LAKEWARDEN_TEST_SOAK_SECONDS", "") or 60)
THIRDS = 3
SETTINGS: dict[str, Any] = {
    # As in production. A busy machine suspends processes for seconds, and no lease is to end by that.
    "session_timeout_seconds": 30.0,
    "validity_seconds": 30.0,
    "drift_seconds": 0.5,
}
PAUSED = ("nothing was consumed for", "Kafka has not answered for", "no Kafka broker answers at")
"""How a session ends when its machine suspends it, or suspends Kafka: no record caused it."""

pytestmark = [
    pytest.mark.real,
    pytest.mark.wide,
    pytest.mark.timeout(1_800 + 3 * SECONDS),
    # aiokafka leaves a connection that it is making when its client is stopped.
    pytest.mark.filterwarnings("ignore:Unclosed AIOKafkaConnection:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <StreamWriter:ResourceWarning"),
]


@pytest_asyncio.fixture
async def storm(
    kafka: KafkaServer, topic_prefix: str, tmp_path: Path, chaos_seed: int
) -> AsyncIterator[Fleet]:
    made = fleet(kafka.bootstrap_servers, topic_prefix, tmp_path, chaos_seed, **SETTINGS)
    async with in_own_task(made) as found:
        yield found


async def test_hostile_records_end_no_agent_lose_nothing_and_fill_no_memory(storm: Fleet) -> None:
    tables = [f"{storm.tables}/t-{number}" for number in range(TABLES)]
    strangers = Strangers(storm.scene, storm.tables, tables, PARTITIONS, storm.seed)
    used: dict[str, list[float]] = {}
    await _run(storm, strangers, used)
    async with anyio.create_task_group() as tasks:
        left = await aftermath(storm, tasks)
        _print_figures(left, strangers, used)
        _check_that_no_record_ended_a_session(storm)
        assert all(strangers.sent[kind] for kind in KINDS)
        with structlog.testing.capture_logs():  # a replay logs each hostile record again
            check_every_promise(left, answered=lambda writer: writer.startswith("writer-"))
    together = [sum(each) for each in zip(*used.values(), strict=False)]
    assert memory.levels_off(together), memory.thirds(together)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([100.0] * 30, True),
        ([50.0] * 10 + [100.0] * 20, True),
        ([100.0] * 25 + [300.0] * 4 + [100.0], True),
        ([float(100 + 5 * n) for n in range(30)], False),
        ([100.0] * 20 + [130.0] * 10, False),
    ],
)
def test_growth_is_distinguished_from_a_warm_up_and_from_peaks(samples: list[float], expected: bool) -> None:
    assert memory.levels_off(samples) is expected


async def _run(storm: Fleet, strangers: Strangers, used: dict[str, list[float]]) -> None:
    """Work beside the strangers in three parts, in each of which every writer commits; then end everything in order."""
    began, finished = time.monotonic(), False
    async with strangers.reading(), anyio.create_task_group() as tasks:
        await storm.start()
        tasks.start_soon(storm.sample)
        async with anyio.create_task_group() as soaking:
            soaking.start_soon(strangers.run)
            soaking.start_soon(memory.sample, lambda: _processes(storm), used)
            for _ in range(THIRDS):
                before = storm.line_counts()
                await anyio.sleep(SECONDS / THIRDS)
                await storm.wait_for_progress(before)
            soaking.cancel_scope.cancel()
        print(f"\nsoaked for {time.monotonic() - began:.0f} s")
        await strangers.settle()
        await storm.finish()
        finished = True
        tasks.cancel_scope.cancel()
    assert finished, "a client cancelled a task of the run, which ended it early"
    await storm.sample_once()


def _processes(storm: Fleet) -> dict[str, int]:
    return {name: storm.agents[name].popen.pid for name in AGENTS}


def _check_that_no_record_ended_a_session(storm: Fleet) -> None:
    """`Fleet.finish` has asserted that each agent ran until it was stopped, with status 0."""
    for name in AGENTS:
        lines = storm.agents[name].lines()
        assert [line for line in lines if line["event"] == "table.stopped"] == []
        restarts = [line for line in lines if line["event"] == "kafka.waiting"]
        print(f"{name}: {dict(Counter(line['event'] for line in lines))}")
        assert [line for line in restarts if not line["problem"].startswith(PAUSED)] == []


def _print_figures(left: Aftermath, strangers: Strangers, used: dict[str, list[float]]) -> None:
    decided, how = left.figures()
    print(f"sent by strangers: {sum(strangers.sent.values())}, {dict(strangers.sent)}")
    print(f"decided: {dict(decided)}\nacknowledged: {dict(how)} by {WRITERS} writers")
    print(
        f"records: { ({of: sum(1 for _ in left.records(of)) for of in ('writers', 'decisions', 'ledger')}) }"
    )
    for name, samples in used.items():
        first, middle, last = memory.thirds(samples)
        print(f"{name}: {first:.0f}, {middle:.0f} and {last:.0f} MB in the thirds of the run")
