"""Records what real agents show while something fails, and follows the run-book of the alert meanwhile.

Two to eight minutes for each failure on a busy machine: `make test-matrix` runs them, and compares the alerts that a fresh
recording fires with those that are expected. `make record-alerts` also replaces the recordings, on which
`test_alerts.py` runs in `make test`.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from lakewarden.agent.embedded.kafka import EmbeddedKafka, free_port
from tests.kafka_fixture import KafkaServer, administering
from tests.monitoring import defective_agent
from tests.monitoring.expected_alerts import EXPECTED
from tests.monitoring.failing import Failing, failing
from tests.monitoring.recording import Recording, selectors_of
from tests.monitoring.test_alerts import alerts_on, check_recorded
from tests.processes import AGENT_PROGRAM
from tests.real.serving.test_undecodable_decisions import FROM_A_LATER_VERSION
from tests.servers.proxy import CALM, Fault, Weather
from tests.servers.s3 import S3Server
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = [pytest.mark.real, pytest.mark.matrix, pytest.mark.timeout(1200)]

RECORD = os.environ.get("LAKEWARDEN_TEST_RECORD") == "1"
CONDITION = "lakewarden_table_condition_seconds"
AFTER_SCRAPES = 64
"""16 minutes of the alerts' time: more than their longest window."""
PATIENT: dict[str, Any] = {"validity_seconds": 60.0, "session_timeout_seconds": 30.0}
"""Times that an agent keeps on a busy machine, for failures that depend on none of them."""


@asynccontextmanager
async def recorded(
    failure: str,
    kafka: str,
    prefix: str,
    root: Path,
    s3: S3Server,
    *,
    agents: int = 1,
    program: str = AGENT_PROGRAM,
    **settings: Any,
) -> AsyncGenerator[Failing]:
    """Agents, writers and the recording. At the end of the block, the recording must fire the expected alerts."""
    recording, wanted = Recording(failure), selectors_of(alerts_on(failure))
    async with failing(kafka, prefix, root, s3, recording=recording, wanted=wanted, **settings) as scene:
        await scene.start_agents(agents, program)
        async with scene.writing():
            await scene.next_commits()
            async with scene.recorded():
                yield scene
                if "after" in EXPECTED[failure]:
                    await scene.next_commits()
                    await scene.mark("after", AFTER_SCRAPES)
    if RECORD:
        recording.save()
    check_recorded(root, {failure: (recording.notation(), recording.marks)})


Record: TypeAlias = Callable[..., AbstractAsyncContextManager[Failing]]


@pytest.fixture
def record(kafka: KafkaServer, topic_prefix: str, tmp_path: Path, s3_credentials: S3Server) -> Record:
    """`recorded` with the servers and the folder of this test."""
    return lambda failure, **options: recorded(
        failure, kafka.bootstrap_servers, topic_prefix, tmp_path, s3_credentials, **options
    )


async def _lasts(scene: Failing, seconds: float) -> None:
    """Wait until a condition of the table has lasted for so long."""
    await until(
        lambda: any((each or 0.0) > seconds for each in scene.recording.last(CONDITION, 1)),
        seconds=PATIENCE_SECONDS * 2,
    )


async def test_a_store_refuses(record: Record) -> None:
    """As with a session that has expired. Once the store accepts the agent again, nothing needs a restart."""
    async with record("a store refuses") as scene:
        began = scene.recording.scrapes
        scene.proxy.weather = Weather(share=1.0, faults=(Fault.EXPIRED,))
        refusal = await scene.agents["a"].logged("lock.refused")
        probe = await scene.run("lock", "probe", f"s3://{scene.bucket}", check=False)
        await scene.mark("during", 45, since=began)
        scene.proxy.weather = CALM
        assert "ExpiredToken" in json.dumps(refusal)
        assert "ExpiredToken" in probe


async def test_a_publish_hangs(record: Record) -> None:
    """The driver renews its grant, and doesn't end. An operator ends the grant."""
    async with record("a publish hangs") as scene:
        async with scene.publishing() as publish:
            open_ones = {each["writer"]: each for each in (await scene.status())["transactions"]}
            await _lasts(scene, 60)
            await scene.mark("during", 4)
            await scene.run("abort", publish.transaction, "--reason", "its publish hangs")
        assert publish.lost
        assert open_ones.pop(publish.WRITER)["phase"] == "granted"
        assert {each["waiting_on"] for each in open_ones.values()} <= {None, f"the grant of {publish.WRITER}"}


async def test_a_stranger_keeps_the_lock(record: Record) -> None:
    """It renews its lease. The run-book's command names it, and the writers go on after its end."""
    async with record("a stranger keeps the lock") as scene:
        async with scene.holding_the_lock():
            await _lasts(scene, 36)
            word = (await scene.status())["condition"]
            await scene.mark("during", 4)
        assert (word["name"], word["command"][:2]) == ("lock-held", ["lock", "release"])


async def test_a_writer_bypasses_the_gate(record: Record) -> None:
    """Each publish of one writer finds the commit of a stranger, as the sinks report it."""
    async with record("a writer bypasses the gate") as scene:
        for batch in range(3):
            writer = scene.scene.writer("bypassed", scene.table)
            await writer.begin(batch_id=batch)
            await writer.abandon(reason="a writer that bypasses the gate committed", cause="base-changed")
        await _lasts(scene, 5)
        word = (await scene.status())["condition"]
        await scene.mark("during", 8)
        assert (word["name"], word["writer"]) == ("bypassed", "bypassed")


async def test_an_agent_is_killed(record: Record) -> None:
    """The other agent takes its tables over: an alert about the process, and none about a table."""
    async with record("an agent is killed", agents=2) as scene:
        began = scene.recording.scrapes
        scene.agents["a"].kill()
        await scene.next_commits()
        await scene.mark("during", 90, since=began)


async def test_all_agents_are_killed(record: Record) -> None:
    """Writers wait. Once agents run again, nothing is left to do."""
    async with record("all agents are killed", agents=2) as scene:
        began = scene.recording.scrapes
        for agent in scene.agents.values():
            agent.kill()
        await scene.mark("during", 15, since=began)
        members = await scene.run("agents")
        await scene.start_again("a", "b")
        assert "nothing is granted" in members


async def test_an_agent_is_suspended(record: Record) -> None:
    """Another agent has its tables and locks when it goes on. It notices that, and needs no restart."""
    async with record("an agent is suspended", agents=2) as scene:
        agent = scene.agents["a"]
        agent.popen.send_signal(signal.SIGSTOP)
        await scene.scrapes(30)
        await scene.next_commits()
        await scene.mark("during")
        agent.popen.send_signal(signal.SIGCONT)
        waiting = await agent.logged("kafka.waiting")
        assert "suspended" in waiting["problem"]


async def test_kafka_has_lost_records(record: Record) -> None:
    """Those of the writers, while no agent ran. The agent aborts what was open, and the writers begin again by themselves."""
    async with record("Kafka has lost records") as scene:
        scene.agents["a"].kill()
        await scene.delete_records(scene.scene.settings().topics.writers)
        shown = await scene.run("status", check=True)
        await scene.start_again("a")
        line = await scene.agents["a"].logged("log.incomplete")
        await scene.next_commits()
        await scene.mark("during", 5)
        assert "LOG INCOMPLETE" in shown
        assert line["topic"] == scene.scene.settings().topics.writers


async def test_a_topic_is_deleted(record: Record) -> None:
    """While the agent runs. It ends its session and creates the topic again; the writers begin again by themselves."""
    async with record("a topic is deleted") as scene:
        async with administering(scene.scene.bootstrap_servers) as client:
            await client.delete_topics([scene.scene.settings().topics.writers])
        await scene.agents["a"].logged("partitions.live", count=2)
        await scene.next_commits()
        await scene.mark("during", 5)


async def test_a_newer_agent_has_decided(record: Record) -> None:
    """After a rollback. An operator who has no newer agent any more deletes the partition's decisions."""
    async with record("a newer agent has decided", patience_seconds=30.0) as scene:
        decisions = scene.scene.settings().topics.decisions
        await scene.scene.producer.send_and_wait(decisions, FROM_A_LATER_VERSION, key=scene.table.encode())
        scene.agents["a"].kill()
        await scene.start_again("a")
        began = scene.recording.scrapes
        refused = await scene.agents["a"].logged("partition.refused")
        await scene.mark("during", 15, since=began)
        shown = await scene.run("status")
        scene.agents["a"].kill()
        await scene.delete_records(decisions, refused["partition"])
        await scene.start_again("a")
        assert "REFUSED" in shown


async def test_a_table_is_stopped(record: Record) -> None:
    """The agent has a defect, which a conflict of the table enters. One without it serves the table again."""
    async with record("a table is stopped", program=defective_agent.__name__, **PATIENT) as scene:
        began = scene.recording.scrapes
        first, second = (scene.scene.writer(name, scene.table) for name in ("daily", "hourly"))
        for each in (first, second):
            await each.begin()
            await each.touch("f")
        stopped = await scene.agents["a"].logged("table.stopped")
        await scene.mark("during", 10, since=began)
        shown = await scene.status()
        await scene.stop("a")
        await scene.start_again("a")
        assert stopped["reason"] == defective_agent.DEFECT
        assert defective_agent.DEFECT in shown["refused"]


async def test_a_stranger_publishes(record: Record) -> None:
    """Its records are no events. They are kept as dead letters, and the writers go on."""
    async with record("a stranger publishes") as scene:
        for number in range(5):
            await scene.scene.send_raw(b"no event %d" % number, scene.table.encode())
        await scene.agents["a"].logged("event.refused", count=5)
        await scene.next_commits()
        await scene.mark("during", 5)
        refused = await scene.run("refused")
        assert refused.count("Invalid JSON") == 5


@pytest.mark.usefixtures("swept")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_kafka_does_not_answer(tmp_path: Path, s3_credentials: S3Server) -> None:
    """Neither agents nor writers need a restart."""
    with EmbeddedKafka(tmp_path / "kafka", port=free_port()) as kafka:
        arguments = kafka.bootstrap_servers, "outage", tmp_path, s3_credentials
        async with recorded("Kafka does not answer", *arguments) as scene:
            kafka.stop()
            await scene.mark("during", 45)
            kafka.start()
            await scene.next_commits()
