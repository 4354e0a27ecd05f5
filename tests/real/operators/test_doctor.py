"""`lakewarden doctor` on a real Kafka and a real S3 server, and once with each failure that needs no access control.

Passwords and rights: `test_kafka_authentication.py` and `test_kafka_rights.py` in `serving/`, where the guarded brokers are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import cramjam
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from lakewarden.agent.clock import wall_ms
from lakewarden.agent.kafka import ensure_topics
from lakewarden.agent.operators.doctor import _check_codecs, diagnose
from lakewarden.agent.settings import KafkaSettings, Settings
from lakewarden.handlers.setup import AGENT_RIGHTS, Finding
from tests.kafka_fixture import KafkaServer
from tests.printed import as_shown
from tests.processes import run_command
from tests.real.writers import QUICK, world
from tests.servers.faulty_http import ABSENT, WRITTEN, faulty_server
from tests.servers.s3 import S3Server

pytestmark = [pytest.mark.real]

NOWHERE = "127.0.0.1:9"
HOUR_MS = 3_600_000
PREFIX = "doctor"
ROOMY: dict[str, Any] = {"validity_seconds": 150.0, "drift_seconds": 5.0}
"""On a slow machine the store answers in time, and the tests' S3 server computes the time in its answers."""


@pytest.fixture(scope="module")
def topics(kafka: KafkaServer) -> KafkaServer:
    """A Kafka with the topics of `PREFIX`."""
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, topic_prefix=PREFIX)
    anyio.run(ensure_topics, settings, settings.topics, 2, 1)
    return kafka


@pytest.fixture
def values(topics: KafkaServer, s3_credentials: S3Server) -> dict[str, Any]:
    """The settings of an agent whose tables and locks are in a bucket."""
    bucket = f"s3://{s3_credentials.bucket()}"
    return {
        **QUICK,
        **ROOMY,
        "bootstrap_servers": topics.bootstrap_servers,
        "topic_prefix": PREFIX,
        "tables": (f"{bucket}/tables/*",),
        "lock_root": f"{bucket}/locks-of-agents",
        "s3_endpoint": s3_credentials.endpoint,
    }


@pytest.fixture
def settings(values: dict[str, Any]) -> Callable[..., Settings]:
    """Those settings, with changes."""
    return lambda **more: Settings.load(**{**values, **more})


def by_check(findings: list[Finding], check: str) -> list[Finding]:
    return [each for each in findings if each.check == check]


def problems(findings: list[Finding]) -> list[Finding]:
    """All but that no agent runs."""
    return [each for each in findings if each.result == "problem" and each.check != "agents"]


async def test_beside_a_running_agent_everything_is_ok_but_the_single_replica(
    values: dict[str, Any], topic_prefix: str, tmp_path: Path
) -> None:
    table = values["tables"][0].replace("*", "t")
    changes = {**values, "topic_prefix": topic_prefix}
    async with world(values["bootstrap_servers"], topic_prefix, tmp_path) as scene:
        scene.overrides = changes
        async with scene.agent() as agent:
            findings = await diagnose(scene.settings(), [table])

    assert [each for each in findings if each.result != "ok"] == by_check(findings, "partitions")
    [replicas] = by_check(findings, "partitions")
    assert replicas.result == "warning"
    topics = {each.about.rpartition(".")[2]: each.found for each in by_check(findings, "topic")}
    assert {name: tuple(AGENT_RIGHTS[name]) for name in topics} == AGENT_RIGHTS
    for name, found in topics.items():
        assert f", may {' and '.join(AGENT_RIGHTS[name])}, settings" in found
    assert [each.found for each in by_check(findings, "group")] == ["may read"]
    [agents] = by_check(findings, "agents")
    assert agents.found == f"1 agent of version {version('lakewarden')} ({agent.settings.agent_id})"
    [codecs] = by_check(findings, "codecs")
    assert codecs.found == "reads gzip, snappy, lz4, zstd"
    [lock] = by_check(findings, "lock")
    assert lock.found.startswith(f"{scene.overrides['lock_root']}/locks/tables-t-")
    assert [each.about for each in by_check(findings, "store")] == [values["lock_root"]]
    assert {each.result for each in by_check(findings, "store-clock")} == {"ok"}


async def test_a_skewed_clock_is_a_problem_against_the_store(settings: Callable[..., Settings]) -> None:
    """The clock is two hours ahead."""
    findings = await diagnose(settings(), [], clock=lambda: wall_ms() + 2 * HOUR_MS)

    assert [each.check for each in problems(findings)] == ["store-clock"]
    for each in problems(findings):
        assert "ahead of" in each.found
        assert "NTP" in str(each.next)


async def test_the_tries_of_rights_write_nothing(
    settings: Callable[..., Settings], topics: KafkaServer
) -> None:
    await diagnose(settings(), [])

    async with AIOKafkaConsumer(bootstrap_servers=topics.bootstrap_servers) as consumer:
        names = [each.name for each in settings().topics.settings()]
        partitions = [TopicPartition(name, 0) for name in names]
        assert await consumer.end_offsets(partitions) == dict.fromkeys(partitions, 0)


async def test_a_bucket_that_is_refused_is_a_problem_and_the_other_checks_go_on(
    settings: Callable[..., Settings],
) -> None:
    findings = await diagnose(settings(lock_root="s3://no-such-bucket-anywhere"), [])

    [problem] = problems(findings)
    assert (problem.check, problem.about) == ("store", "s3://no-such-bucket-anywhere")
    assert "NoSuchBucket" in f"{problem.found} {problem.next}"
    assert len(by_check(findings, "topic")) == 6


async def test_a_store_that_ignores_conditions_is_a_problem(settings: Callable[..., Settings]) -> None:
    async with faulty_server([ABSENT, WRITTEN, WRITTEN]) as server:
        findings = await diagnose(settings(s3_endpoint=server.endpoint), [])

    [problem] = problems(findings)
    assert problem.check == "store"
    assert problem.found.startswith("this store ignores the condition if-absent")
    assert str(problem.next).startswith("keep the lock in a store with conditional writes")
    [clock] = by_check(findings, "store-clock")
    assert (clock.result, clock.found) == ("unchecked", f"{server.endpoint} answers without a time")


async def test_missing_topics_are_a_warning_because_an_agent_may_create_them(
    settings: Callable[..., Settings], topic_prefix: str
) -> None:
    findings = await diagnose(settings(topic_prefix=topic_prefix), [])

    topics = by_check(findings, "topic")
    assert [(each.result, each.found) for each in topics] == [("warning", "missing")] * 6
    assert {each.next for each in topics} == {"start an agent: it creates the topic"}
    assert problems(findings) == []
    [agents] = by_check(findings, "agents")
    assert agents.found.startswith("no agent is in the group")
    assert agents.result == "warning"


async def test_a_table_outside_of_allow_is_a_problem(
    settings: Callable[..., Settings], values: dict[str, Any]
) -> None:
    table = values["tables"][0].replace("tables/*", "elsewhere/t")

    findings = await diagnose(settings(), [table])

    [problem] = problems(findings)
    assert (problem.check, problem.about) == ("table", table)
    assert "tables doesn't cover it" in problem.found
    assert [each.result for each in by_check(findings, "agents")] == ["problem"]
    bare = await diagnose(settings(tables=(), lock_root=None), [table, "file:///lake/t"])
    assert [(each.about, each.result) for each in bare if each.check in ("table", "lock")] == [
        (table, "unchecked"),
        (table, "ok"),
        ("file:///lake/t", "unchecked"),
        ("file:///lake/t", "unchecked"),
    ]


def test_a_compression_that_can_not_be_read_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a build of the library without it."""
    monkeypatch.delattr(cramjam, "lz4")

    found = _check_codecs()

    assert (found.result, found.next) == ("problem", "install the package with its dependencies (cramjam)")
    assert "compress with lz4:" in found.found


def test_the_command_prints_one_line_per_finding_and_exits_with_1_without_kafka(
    values: dict[str, Any],
) -> None:
    asked = ("doctor", "--bootstrap-servers", NOWHERE)
    printed = [run_command(*asked, *more, **values) for more in ((), ("--output", "json"))]

    assert [each.returncode for each in printed] == [1, 1]
    assert [each.stderr for each in printed] == ["", ""]
    findings = json.loads(printed[1].stdout)
    lines = printed[0].stdout.splitlines()
    assert len(lines) == len(findings)
    first = findings[0]
    assert (first["check"], first["result"]) == ("kafka", "problem")
    assert first["found"] == f"no Kafka broker answers at {NOWHERE}"
    assert "check the address" in first["next"]
    assert [each["result"] for each in findings[1:4]] == ["unchecked"] * 3
    assert ("store", "ok") in [(each["check"], each["result"]) for each in findings]


def test_the_command_exits_with_0_when_nothing_is_a_problem(
    values: dict[str, Any], topic_prefix: str
) -> None:
    """Before the first agent."""
    done = run_command("doctor", **{**values, "topic_prefix": topic_prefix})

    assert (done.returncode, done.stderr) == (0, "")
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"ok", "warning"}
    as_shown("docs/run.md", "lakewarden doctor", done.stdout, {topic_prefix: "lakewarden"})
