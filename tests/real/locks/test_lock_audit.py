"""`lakewarden lock audit`, on the log of a real agent and on logs that no agent should write."""

import json
import subprocess
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import anyio.to_thread
import pytest
from aiokafka import AIOKafkaProducer

from lakewarden.agent.kafka import ensure_topics
from lakewarden.agent.settings import Settings
from lakewarden.events import LockAcquired, LockEvent, LockLost, LockRefused, LockReleased, encode
from tests.kafka_fixture import KafkaServer
from tests.printed import as_shown
from tests.processes import environment
from tests.real.lock_places import NOWHERE, Place, failed, run
from tests.real.writers import World

pytestmark = [pytest.mark.real]


async def test_the_log_of_an_agent_is_proven(scene: World) -> None:
    async with scene.agent(agent_id="agent-a"):
        for number in range(2):
            writer = scene.writer(f"w{number}")
            await writer.begin()
            grant = await writer.obtain_grant()
            await writer.complete(grant.grant)
            await scene.wait_for(LockReleased, count=number + 1)
    values = scene.values()
    done = await _audit(values)
    text = (await _audit(values, form="text")).stdout

    assert done.returncode == 0
    result = json.loads(done.stdout)
    [lock] = result["locks"]
    assert result["proven"] is True
    assert lock["tables"] == [scene.table]
    assert (lock["acquisitions"], lock["releases"], lock["violations"]) == (2, 2, 0)
    assert lock["requests"] >= 6
    as_shown("docs/lock.md", "lakewarden lock audit", text)


async def test_two_owners_at_once_are_printed_and_the_exit_code_is_1(
    kafka: KafkaServer, topic_prefix: str
) -> None:
    values = await _topics(kafka, topic_prefix)
    await _publish(
        values,
        _event(LockAcquired, 0, "x", "a"),
        _event(LockAcquired, 2, "y", "b"),
        _event(LockReleased, 5, "x", "a"),
        _event(LockLost, 6, "y", "b", holder="z", detail="another owner is in the lock object"),
        _event(
            LockRefused, 7, "", "b", detail="the object is not a lock record and is left unchanged: not JSON"
        ),
        _event(LockAcquired, 0, "u", "a", table="s3://lake/other", lock="s3://lake/locks/other.json"),
    )

    done, text = await _audit(values), await _audit(values, form="text")
    lenient = await _audit(values, "--drift", "3.5")
    other = await _audit(values, "--table", "s3://lake/other")

    assert done.returncode == text.returncode == 1
    result = json.loads(done.stdout)
    assert (result["proven"], result["violations"]) == (False, 1)
    [overlap] = result["locks"][0]["overlaps"]
    assert (overlap["earlier"]["owner"], overlap["later"]["owner"], overlap["seconds"]) == ("x", "y", 3.0)
    assert "VIOLATION: owner x of agent a and owner y of agent b both held it from 2026-" in text.stdout
    assert (
        "by owner y (agent b): another owner is in the lock object; owner z held it then; at " in text.stdout
    )
    assert "may need an operator: the object is not a lock record and is left unchanged" in text.stdout
    assert text.stdout.splitlines()[-1].startswith(
        "VIOLATED: two owners at once, 1 time; 6 events of 2 locks"
    )
    assert lenient.returncode == 0
    assert json.loads(lenient.stdout)["locks"][0]["within_drift"] == 1
    assert other.returncode == 0
    assert [each["lock"] for each in json.loads(other.stdout)["locks"]] == ["s3://lake/locks/other.json"]


async def test_with_a_record_that_cannot_be_read_nothing_is_proven(
    kafka: KafkaServer, topic_prefix: str
) -> None:
    values = await _topics(kafka, topic_prefix)
    await _publish(values, _event(LockAcquired, 0, "x", "a"))
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        await producer.send_and_wait(f"{topic_prefix}.audit", b"{", key=b"s3://lake/orders", partition=0)

    done, text = await _audit(values), await _audit(values, form="text")

    assert done.returncode == text.returncode == 1
    result = json.loads(done.stdout)
    assert (result["proven"], result["violations"], result["unreadable"]) == (False, 0, 1)
    assert result["unreadable_records"][0]["offset"] == 0 or result["unreadable_records"][0]["partition"] == 0
    assert text.stdout.splitlines()[-1].startswith("not proven: 1 record could not be read")


def test_without_kafka_or_the_topic_the_command_reports_what_is_missing(
    kafka: KafkaServer, local: Place
) -> None:
    failed(local.run("audit", bootstrap_servers=NOWHERE), 1, f"no Kafka broker answers at {NOWHERE}")
    missing = local.run("audit", bootstrap_servers=kafka.bootstrap_servers, topic_prefix="missing")
    failed(missing, 1, "there is no topic missing.audit")


async def _topics(kafka: KafkaServer, prefix: str) -> dict[str, Any]:
    settings = Settings(bootstrap_servers=kafka.bootstrap_servers, topic_prefix=prefix, partitions=2)
    await ensure_topics(settings, settings.topics, settings.partitions, settings.replication)
    return {"bootstrap_servers": kafka.bootstrap_servers, "topic_prefix": prefix}


def _event(kind: type[LockEvent], second: float, owner: str, agent: str, **fields: Any) -> LockEvent:
    at = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp() + second
    common = {
        "event_id": uuid.uuid4().hex,
        "table": "s3://lake/orders",
        "at": datetime.fromtimestamp(at, UTC),
        "agent": agent,
        "lock": "s3://lake/locks/orders.json",
        "owner": owner,
        "valid_until": round((at + 30) * 1000),
        "requests": 1,
        "duration_ms": 0.0,
    }
    return kind.model_validate(common | fields)


async def _publish(values: dict[str, Any], *events: LockEvent) -> None:
    async with AIOKafkaProducer(bootstrap_servers=values["bootstrap_servers"]) as producer:
        for each in events:
            await producer.send_and_wait(
                f"{values['topic_prefix']}.audit", encode(each), key=each.table.encode()
            )


async def _audit(values: dict[str, Any], *more: str, form: str = "json") -> subprocess.CompletedProcess[str]:
    named = {name: values[name] for name in ("bootstrap_servers", "topic_prefix")}
    arguments: Sequence[str] = ("audit", "--output", form, *more)
    done = await anyio.to_thread.run_sync(lambda: run(*arguments, env=environment(named)))
    assert done.stderr == ""
    return done
