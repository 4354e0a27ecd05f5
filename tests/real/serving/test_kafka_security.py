"""Kafka that asks who we are: passwords, certificates, rights. One real broker with a listener for each, and an authorizer.

A refusal ends the agent: only a person can mend it, and whoever starts agents again and again shows that it fails. A broker that
doesn't answer is waited for (`test_agent_outage.py`). The writer's client fails within its own timeout, either way.
"""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
import pytest_asyncio
import trustme
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest
from anyio import to_thread
from cryptography.hazmat.primitives import serialization

from lakewarden.agent.embedded.kafka import EmbeddedKafka, free_port
from lakewarden.events import CommitGranted
from lakewarden.spark_jobs.commit_gate import CommitGate
from lakewarden.spark_jobs.gate.errors import AgentUnreachable
from tests.real.writers import AgentProcess, World, world

pytestmark = [pytest.mark.real]

AGENT, WRITER = "the-agent", "the-writer"
SECRETS = {AGENT: "agents-open-sesame", WRITER: "writers-open-sesame"}
WRONG = "not-the-password"
READ, WRITE, DESCRIBE = 3, 4, 8
TOPIC, GROUP = 2, 3
LITERAL, ALLOW = 3, 3


@dataclass(frozen=True, slots=True)
class Guarded:
    """A broker, and what clients need for each of its doors."""

    broker: EmbeddedKafka
    sasl: str
    tls: str
    authority: Path

    def agent(self, **more: Any) -> dict[str, Any]:
        """Settings of an agent that names itself."""
        return {
            "bootstrap_servers": self.sasl,
            "kafka_security_protocol": "SASL_PLAINTEXT",
            "kafka_sasl_username": AGENT,
            "kafka_sasl_password": SECRETS[AGENT],
            **more,
        }

    def writer(self, **more: Any) -> dict[str, Any]:
        """The same of a writer, for its gate."""
        return {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": WRITER,
            "sasl_plain_password": SECRETS[WRITER],
            **more,
        }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """PLAINTEXT is the administrator's door, open to all; on SASL everybody is somebody; TLS shows a certificate."""
    folder = tmp_path_factory.mktemp("guarded")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    (folder / "broker.pem").write_bytes(_keystore(authority))
    sasl, tls = free_port(), free_port()
    listeners = f"PLAINTEXT://{{host}}:{{port}},SASL://{{host}}:{sasl},TLS://{{host}}:{tls}"
    users = " ".join(f'user_{name}="{secret}"' for name, secret in SECRETS.items())
    module = "org.apache.kafka.common.security"
    properties = {
        "listeners": f"{listeners},CONTROLLER://{{host}}:{{controller_port}}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl.plain.sasl.jaas.config": f"{module}.plain.PlainLoginModule required {users};",
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        "listener.name.tls.ssl.keystore.type": "PEM",
        "listener.name.tls.ssl.keystore.location": str(folder / "broker.pem"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
    }
    with EmbeddedKafka(folder / "kafka", properties=properties) as broker:
        yield Guarded(broker, f"127.0.0.1:{sasl}", f"127.0.0.1:{tls}", folder / "authority.pem")


@pytest_asyncio.fixture
async def scene(guarded: Guarded, topic_prefix: str, tmp_path: Path) -> AsyncIterator[World]:
    """The topics are made, and heard, through the administrator's door."""
    async with world(guarded.broker.bootstrap_servers, topic_prefix, tmp_path) as made:
        yield made


async def test_a_transaction_commits_where_everybody_has_a_password(guarded: Guarded, scene: World) -> None:
    with scene.process(**guarded.agent()) as agent:
        await agent.ready()
        await to_thread.run_sync(_commit, scene, guarded.sasl, guarded.writer())
        await _says_no_secret(agent)

    assert len(await scene.wait_for(CommitGranted)) == 1


async def test_a_transaction_commits_with_scram(guarded: Guarded, scene: World) -> None:
    for name, secret in SECRETS.items():
        _add_scram_user(guarded, name, secret)
    scram = "SCRAM-SHA-256"
    with scene.process(**guarded.agent(kafka_sasl_mechanism=scram)) as agent:
        await agent.ready()
        await to_thread.run_sync(_commit, scene, guarded.sasl, guarded.writer(sasl_mechanism=scram))
        await _says_no_secret(agent)

    assert len(await scene.wait_for(CommitGranted)) == 1


async def test_a_transaction_commits_over_tls(guarded: Guarded, scene: World) -> None:
    given = {
        "bootstrap_servers": guarded.tls,
        "kafka_security_protocol": "SSL",
        "kafka_ssl_cafile": str(guarded.authority),
    }

    def kafka() -> dict[str, Any]:  # made where it is used: a context does not pickle
        return {
            "security_protocol": "SSL",
            "ssl_context": ssl.create_default_context(cafile=str(guarded.authority)),
        }

    with scene.process(**given) as agent:
        await agent.ready()
        await to_thread.run_sync(_commit, scene, guarded.tls, kafka)

    assert len(await scene.wait_for(CommitGranted)) == 1


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_wrong_password_ends_the_agent_and_names_what_to_check(
    guarded: Guarded, scene: World, mechanism: str
) -> None:
    given = guarded.agent(kafka_sasl_password=WRONG, kafka_sasl_mechanism=mechanism, log_level="error")
    line = await _ends_with_one_line(scene, given)

    assert f"refuses user {AGENT}" in line
    assert f"kafka_sasl_password and kafka_sasl_mechanism ({mechanism})" in line


async def test_a_mechanism_that_the_broker_has_not_ends_the_agent(guarded: Guarded, scene: World) -> None:
    given = guarded.agent(kafka_sasl_mechanism="SCRAM-SHA-512", log_level="error")
    line = await _ends_with_one_line(scene, given)

    assert "kafka_sasl_mechanism (SCRAM-SHA-512)" in line


async def test_a_certificate_of_an_unknown_authority_ends_the_agent(guarded: Guarded, scene: World) -> None:
    given = {"bootstrap_servers": guarded.tls, "kafka_security_protocol": "SSL", "log_level": "error"}
    line = await _ends_with_one_line(scene, given)

    assert "is not trusted" in line
    assert "kafka_ssl_cafile" in line


@pytest.mark.parametrize("door", ["sasl", "tls"])
async def test_an_agent_that_does_not_say_who_it_is_names_the_setting(
    guarded: Guarded, scene: World, door: str
) -> None:
    """The broker hangs up without a word, as a dead one would: it is waited for."""
    with scene.process(bootstrap_servers=getattr(guarded, door)) as agent:
        waiting = await agent.logged("kafka.waiting")

    assert "its listener uses PLAINTEXT (kafka_security_protocol)" in waiting["problem"]


async def test_a_writer_with_a_wrong_password_fails_and_is_told_to_check_security(
    guarded: Guarded, scene: World
) -> None:
    kafka = guarded.writer(sasl_plain_password=WRONG)
    with pytest.raises(AgentUnreachable, match="security settings") as failure:
        await to_thread.run_sync(_commit, scene, guarded.sasl, kafka)

    assert WRONG not in str(failure.value)


@pytest.mark.parametrize(
    ("topic", "rights"),
    [
        ("decisions", (READ, DESCRIBE)),
        ("writers", (WRITE, DESCRIBE)),
        ("ledger", (READ, DESCRIBE)),
        ("audit", ()),
    ],
)
async def test_an_agent_without_its_rights_to_a_topic_ends_and_names_topic_and_rights(
    guarded: Guarded, scene: World, topic: str, rights: tuple[int, ...]
) -> None:
    """Some rights are missed at the start, others when there is something to say."""
    name = f"{scene.prefix}.{topic}"
    await _reserve(guarded, TOPIC, name, AGENT, rights)
    with scene.process(**guarded.agent(log_level="error")) as agent:
        writer = scene.writer("w")
        await writer.send_intent(batch_id=1)
        await writer.request_commit()
        await _complete_when_granted(scene, agent)
        line = await _ended_with_one_line(agent)

    assert f"denies {AGENT} access to the topic {name}" in line
    assert f"grant it read, write and describe on {scene.prefix}.*" in line


async def test_an_agent_that_may_not_join_its_group_ends_and_names_it(guarded: Guarded, scene: World) -> None:
    await _reserve(guarded, GROUP, scene.prefix, AGENT, (DESCRIBE,))
    line = await _ends_with_one_line(scene, guarded.agent(log_level="error"))

    assert f"consumer group {scene.prefix}: grant it read on the group" in line


@pytest.mark.parametrize(("topic", "rights"), [("writers", (READ, DESCRIBE)), ("decisions", (DESCRIBE,))])
async def test_a_writer_without_its_rights_fails_within_its_timeout(
    guarded: Guarded, scene: World, topic: str, rights: tuple[int, ...]
) -> None:
    await _reserve(guarded, TOPIC, f"{scene.prefix}.{topic}", WRITER, rights)
    with scene.process() as agent:
        await agent.ready()
        with pytest.raises(AgentUnreachable) as failure:
            await to_thread.run_sync(_commit, scene, guarded.sasl, guarded.writer())

    assert guarded.sasl in str(failure.value)


def _commit(scene: World, servers: str, kafka: Any) -> None:
    with (
        closing(
            CommitGate(servers, topic_prefix=scene.prefix, kafka=kafka, admission_timeout_seconds=15.0)
        ) as gate,
        gate.transaction(table=scene.table, writer="w", batch_id=1) as txn,
    ):
        txn.touch("p", "x", "merge")
        with txn.commit() as grant:
            grant.version = "1"


async def _complete_when_granted(scene: World, agent: AgentProcess) -> None:
    """Say that the commit is durable, so that the agent has something to say to every topic; it may end before."""
    with anyio.fail_after(60):
        while agent.popen.poll() is None and not (granted := scene.events(CommitGranted)):
            await scene.poll()
    for each in granted if agent.popen.poll() is None else ():
        writer = scene.writer("w")
        writer.transaction = each.transaction
        await writer.complete(each.grant)


async def _ends_with_one_line(scene: World, given: dict[str, Any]) -> str:
    with scene.process(**given) as agent:
        return await _ended_with_one_line(agent)


async def _ended_with_one_line(agent: AgentProcess) -> str:
    assert await agent.ended() == 1
    [line] = agent.log.read_text().splitlines()
    assert not any(secret in line for secret in (*SECRETS.values(), WRONG))
    return line


async def _says_no_secret(agent: AgentProcess) -> None:
    said = agent.log.read_text()
    assert "agent.ready" in said
    assert not any(secret in said for secret in SECRETS.values())


def _keystore(authority: trustme.CA) -> bytes:
    """A certificate for this machine as Kafka reads it: the key in PKCS 8, then the chain."""
    issued = authority.issue_cert("127.0.0.1")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    plain = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return plain + b"".join(each.bytes() for each in issued.cert_chain_pems)


def _add_scram_user(guarded: Guarded, name: str, secret: str) -> None:
    """By Kafka's own tool, from the broker's own jars."""
    command = guarded.broker._command(
        "kafka.admin.ConfigCommand",
        *("--bootstrap-server", guarded.broker.bootstrap_servers, "--alter"),
        *("--entity-type", "users", "--entity-name", name),
        *("--add-config", f"SCRAM-SHA-256=[iterations=4096,password={secret}]"),
    )
    subprocess.run(command, check=True, capture_output=True, timeout=60)


async def _reserve(guarded: Guarded, kind: int, name: str, user: str, rights: tuple[int, ...]) -> None:
    """Take a topic or a group from everybody, and give one user these rights on it; the administrator keeps all."""
    admin = AIOKafkaAdminClient(bootstrap_servers=guarded.broker.bootstrap_servers)
    await admin.start()
    try:
        for who, right in [("User:somebody-else", READ), *((f"User:{user}", right) for right in rights)]:
            answer = await admin._send_request(CreateAclsRequest(kind, name, LITERAL, who, "*", right, ALLOW))
            assert [code for code, _ in answer.creation_responses] == [0]
    finally:
        await admin.close()
