"""Kafka with authentication: a real broker with a SASL listener and a TLS listener. `test_kafka_rights.py` has the rights.

A refusal ends the agent, because only an operator can resolve it. The agent waits for a broker that does not answer
(`test_agent_outage.py`). The writer's client fails within its own timeout in both cases.
"""

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import trustme
from anyio import to_thread
from cryptography.hazmat.primitives import serialization

from lakewarden.agent.embedded.kafka import EmbeddedKafka, free_port
from lakewarden.agent.operators.doctor import diagnose
from lakewarden.events import CommitGranted
from lakewarden.spark_jobs.commit_gate import CommitGate
from lakewarden.spark_jobs.gate.errors import AgentUnreachable
from tests.kafka_fixture import set_scram_password
from tests.processes import AgentProcess
from tests.real.writers import World, world
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.real, pytest.mark.wide]

AGENT, WRITER = "the-agent", "the-writer"
SECRETS = {AGENT: "agents-open-sesame", WRITER: "writers-open-sesame"}
WRONG = "not-the-password"
SHORT_SECONDS = 15.0
"""The timeout of writers that are expected to fail."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """A broker, and what clients need for each of its listeners."""

    broker: EmbeddedKafka
    sasl: str
    tls: str
    authority: Path

    def agent(self, **more: Any) -> dict[str, Any]:
        """The settings of an agent with user and password."""
        return {
            "bootstrap_servers": self.sasl,
            "kafka_security_protocol": "SASL_PLAINTEXT",
            "kafka_sasl_username": AGENT,
            "kafka_sasl_password": SECRETS[AGENT],
            **more,
        }

    def writer(self, **more: Any) -> dict[str, Any]:
        """The Kafka options of a writer with user and password."""
        return {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": WRITER,
            "sasl_plain_password": SECRETS[WRITER],
            **more,
        }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """PLAINTEXT is the administrator's listener; SASL requires a password; TLS has a certificate."""
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
    }
    with EmbeddedKafka(folder / "kafka", properties=properties) as broker:
        yield Guarded(broker, f"127.0.0.1:{sasl}", f"127.0.0.1:{tls}", folder / "authority.pem")


@pytest_asyncio.fixture
async def scene(guarded: Guarded, topic_prefix: str, tmp_path: Path) -> AsyncIterator[World]:
    """The topics are created and consumed through the administrator's listener."""
    async with world(guarded.broker.bootstrap_servers, topic_prefix, tmp_path) as made:
        yield made


async def test_a_transaction_commits_with_passwords(guarded: Guarded, scene: World) -> None:
    with scene.process(**guarded.agent()) as agent:
        await agent.ready()
        await to_thread.run_sync(_commit, scene, guarded.sasl, guarded.writer())
        await _logs_no_secret(agent)

    assert len(await scene.wait_for(CommitGranted)) == 1


async def test_a_transaction_commits_with_scram(guarded: Guarded, scene: World) -> None:
    for name, secret in SECRETS.items():
        await set_scram_password(guarded.broker.bootstrap_servers, name, secret)
    scram = "SCRAM-SHA-256"
    with scene.process(**guarded.agent(kafka_sasl_mechanism=scram)) as agent:
        await agent.ready()
        await to_thread.run_sync(_commit, scene, guarded.sasl, guarded.writer(sasl_mechanism=scram))
        await _logs_no_secret(agent)

    assert len(await scene.wait_for(CommitGranted)) == 1


async def test_a_transaction_commits_over_tls(guarded: Guarded, scene: World) -> None:
    settings = {
        "bootstrap_servers": guarded.tls,
        "kafka_security_protocol": "SSL",
        "kafka_ssl_cafile": str(guarded.authority),
    }

    def kafka() -> dict[str, Any]:  # a function, because an SSL context can't be pickled
        return {
            "security_protocol": "SSL",
            "ssl_context": ssl.create_default_context(cafile=str(guarded.authority)),
        }

    with scene.process(**settings) as agent:
        await agent.ready()
        await to_thread.run_sync(_commit, scene, guarded.tls, kafka)

    assert len(await scene.wait_for(CommitGranted)) == 1


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_wrong_password_ends_the_agent_and_names_what_to_check(
    guarded: Guarded, scene: World, mechanism: str
) -> None:
    settings = guarded.agent(kafka_sasl_password=WRONG, kafka_sasl_mechanism=mechanism, log_level="error")
    line = await _ends_with_one_line(scene, settings)

    assert f"refuses user {AGENT}" in line
    assert f"kafka_sasl_password and kafka_sasl_mechanism ({mechanism})" in line


async def test_the_doctor_reports_a_wrong_password_and_goes_on(guarded: Guarded, scene: World) -> None:
    findings = await diagnose(scene.settings(**guarded.agent(kafka_sasl_password=WRONG)), [])

    [problem] = [each for each in findings if each.result == "problem"]
    assert problem.check == "kafka"
    assert f"refuses user {AGENT}" in problem.found
    assert "kafka_sasl_password" in str(problem.next)
    assert ("store", "ok") in [(each.check, each.result) for each in findings]
    assert WRONG not in repr(findings)


async def test_a_mechanism_that_the_broker_does_not_offer_ends_the_agent(
    guarded: Guarded, scene: World
) -> None:
    settings = guarded.agent(kafka_sasl_mechanism="SCRAM-SHA-512", log_level="error")
    line = await _ends_with_one_line(scene, settings)

    assert "kafka_sasl_mechanism (SCRAM-SHA-512)" in line


async def test_a_certificate_of_an_unknown_authority_ends_the_agent(guarded: Guarded, scene: World) -> None:
    settings = {"bootstrap_servers": guarded.tls, "kafka_security_protocol": "SSL", "log_level": "error"}
    line = await _ends_with_one_line(scene, settings)

    assert "is not trusted" in line
    assert "kafka_ssl_cafile" in line


@pytest.mark.parametrize("listener", ["sasl", "tls"])
async def test_an_agent_with_the_wrong_security_protocol_logs_the_setting(
    guarded: Guarded, scene: World, listener: str
) -> None:
    """The broker closes the connection without an answer, as one that is down would, so the agent waits for it."""
    with scene.process(bootstrap_servers=getattr(guarded, listener)) as agent:
        waiting = await agent.logged("kafka.waiting")

    assert "its listener uses PLAINTEXT (kafka_security_protocol)" in waiting["problem"]


async def test_the_error_of_a_writer_with_a_wrong_password_names_the_security_settings(
    guarded: Guarded, scene: World
) -> None:
    kafka = guarded.writer(sasl_plain_password=WRONG)
    with pytest.raises(AgentUnreachable, match="security settings") as failure:
        await to_thread.run_sync(_commit, scene, guarded.sasl, kafka, SHORT_SECONDS)

    assert WRONG not in str(failure.value)


def _commit(scene: World, servers: str, kafka: Any, timeout: float = PATIENCE_SECONDS) -> None:
    with (
        closing(
            CommitGate(servers, topic_prefix=scene.prefix, kafka=kafka, admission_timeout_seconds=timeout)
        ) as gate,
        gate.transaction(table=scene.table, writer="w", batch_id=1) as txn,
    ):
        txn.touch("p", "x", "merge")
        with txn.commit() as grant:
            grant.version = "1"


async def _ends_with_one_line(scene: World, settings: dict[str, Any]) -> str:
    with scene.process(**settings) as agent:
        assert await agent.ended() == 1
        [line] = agent.log.read_text().splitlines()
    assert not any(secret in line for secret in (*SECRETS.values(), WRONG))
    return line


async def _logs_no_secret(agent: AgentProcess) -> None:
    text = agent.log.read_text()
    assert "agent.ready" in text
    assert not any(secret in text for secret in SECRETS.values())


def _keystore(authority: trustme.CA) -> bytes:
    """A certificate for this machine in Kafka's format: the key in PKCS 8, then the chain."""
    issued = authority.issue_cert("127.0.0.1")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    plain = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return plain + b"".join(each.bytes() for each in issued.cert_chain_pems)
