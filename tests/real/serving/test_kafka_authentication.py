"""Agent, writer, executor and command line against a real broker that demands a client certificate, or a token.

Certificates, passwords and tokens are rotated while the agent and a writer run.
"""

import base64
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
import pytest_asyncio
import trustme
from anyio import to_thread
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from lakewarden.agent.embedded.kafka import EmbeddedKafka, free_port
from lakewarden.events import CommitGranted
from lakewarden.spark_jobs.commit_gate import CommitGate
from lakewarden.spark_jobs.gate.errors import AgentUnreachable
from lakewarden.spark_jobs.gate.executor import ExecutorChannel
from tests.kafka_fixture import set_scram_password
from tests.processes import AgentProcess, environment
from tests.real.writers import World, world
from tests.unit.events.access.certificates import write_certificate
from tests.unit.events.access.token_endpoint import CLIENT, TokenEndpoint, token_endpoint
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = [pytest.mark.real, pytest.mark.wide]

SECRET = "the-client-secret"
PASSWORD = "the-first-password"
KEY_PASSWORD = "the-password-of-the-key"
NEXT_KEY_PASSWORD = "the-password-of-the-next-key"
AUDIENCE, ISSUER = "kafka", "the-issuer"
TOKEN_SECONDS = 4
"""Lifetime of a token, and so of a connection: the broker closes it then."""
SHORT_SECONDS = 15.0
SECRETS = (SECRET, PASSWORD, KEY_PASSWORD, NEXT_KEY_PASSWORD)


@dataclass(frozen=True)
class Issuer:
    """Signs tokens. The broker has its public key."""

    key: rsa.RSAPrivateKey

    def jwks(self) -> str:
        """The public key as JSON Web Key Set."""
        numbers = self.key.public_key().public_numbers()
        key = {
            "kty": "RSA",
            "kid": "1",
            "alg": "RS256",
            "use": "sig",
            "n": _encoded(numbers.n.to_bytes(256)),
            "e": _encoded(numbers.e.to_bytes(3)),
        }
        return json.dumps({"keys": [key]})

    def token(self, subject: str) -> str:
        """A JSON Web Token."""
        now = int(time.time())
        times = {"iat": now, "exp": now + TOKEN_SECONDS}
        claims = {"sub": subject, "iss": ISSUER, "aud": AUDIENCE, **times, "scope": "kafka"}
        head = _encoded(json.dumps({"alg": "RS256", "kid": "1", "typ": "JWT"}).encode())
        signed = f"{head}.{_encoded(json.dumps(claims).encode())}"
        signature = self.key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_encoded(signature)}"


@dataclass(frozen=True)
class Guarded:
    """A broker with a listener for each way to authenticate."""

    broker: EmbeddedKafka
    mtls: str
    oauth: str
    scram: str
    folder: Path
    authority: trustme.CA
    retiring: trustme.CA
    """The broker trusts clients of it, too, until a test retires it."""
    issuer: Issuer

    def certificate(self, folder: Path | None = None) -> dict[str, Any]:
        """The options of a client whose certificate and encrypted key are in `folder`, or in the broker's."""
        folder = folder or self.folder
        return {
            "security_protocol": "SSL",
            "ssl_cafile": str(self.folder / "authority.pem"),
            "ssl_certfile": str(folder / "client.pem"),
            "ssl_keyfile": str(folder / "client.key"),
            "ssl_key_password_file": str(folder / "key-password"),
        }

    def tokens(self, url: str) -> dict[str, Any]:
        """The options of a client with client credentials."""
        return {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "oauth_token_url": url,
            "oauth_client_id": CLIENT,
            "oauth_client_secret_file": str(self.folder / "client-secret"),
            "oauth_scope": "kafka",
        }


def _encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    authority, retiring = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    (folder / "trusted.pem").write_bytes(authority.cert_pem.bytes() + retiring.cert_pem.bytes())
    write_certificate(authority, folder, "the broker")
    (folder / "broker.pem").write_bytes(
        (folder / "client.key").read_bytes() + (folder / "client.pem").read_bytes()
    )
    _write_client(authority, folder, KEY_PASSWORD)
    (folder / "client-secret").write_text(SECRET)
    issuer = Issuer(rsa.generate_private_key(65537, 2048))
    (folder / "jwks.json").write_text(issuer.jwks())
    jwks = (folder / "jwks.json").as_uri()
    mtls, oauth, scram = free_port(), free_port(), free_port()
    listeners = f"PLAINTEXT://{{host}}:{{port}},MTLS://{{host}}:{mtls},OAUTH://{{host}}:{oauth},SCRAM://{{host}}:{scram}"
    module = "org.apache.kafka.common.security"
    properties = {
        "listeners": f"{listeners},CONTROLLER://{{host}}:{{controller_port}}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,MTLS:SSL,OAUTH:SASL_PLAINTEXT,SCRAM:SASL_PLAINTEXT"
        ),
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.mtls.ssl.keystore.type": "PEM",
        "listener.name.mtls.ssl.keystore.location": str(folder / "broker.pem"),
        "listener.name.mtls.ssl.truststore.type": "PEM",
        "listener.name.mtls.ssl.truststore.location": str(folder / "trusted.pem"),
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.oauth.oauthbearer.sasl.jaas.config": f"{module}.oauthbearer.OAuthBearerLoginModule required;",
        "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class": (
            f"{module}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        "listener.name.oauth.oauthbearer.connections.max.reauth.ms": "3600000",
        # The default validator of Kafka 4.1.0 doesn't verify signatures in a broker.
        "sasl.oauthbearer.jwt.validator.class": f"{module}.oauthbearer.BrokerJwtValidator",
        "sasl.oauthbearer.jwks.endpoint.url": jwks,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.scram.scram-sha-256.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={jwks}")
        with EmbeddedKafka(folder / "kafka", port=free_port(), properties=properties) as broker:
            yield Guarded(
                broker,
                f"127.0.0.1:{mtls}",
                f"127.0.0.1:{oauth}",
                f"127.0.0.1:{scram}",
                folder,
                authority,
                retiring,
                issuer,
            )


@pytest.fixture
def endpoint(guarded: Guarded) -> Iterator[TokenEndpoint]:
    with token_endpoint({CLIENT: SECRET}, guarded.issuer.token) as made:
        made.lifetime = TOKEN_SECONDS
        yield made


@pytest_asyncio.fixture
async def scene(guarded: Guarded, topic_prefix: str, tmp_path: Path) -> AsyncIterator[World]:
    """The topics are created and consumed through the administrator's listener."""
    async with world(guarded.broker.bootstrap_servers, topic_prefix, tmp_path) as made:
        yield made


async def test_all_clients_connect_with_certificates(guarded: Guarded, scene: World) -> None:
    await _all_clients_connect(scene, guarded.mtls, guarded.certificate())


async def test_all_clients_connect_with_tokens_of_an_endpoint(
    guarded: Guarded, scene: World, endpoint: TokenEndpoint
) -> None:
    await _all_clients_connect(scene, guarded.oauth, guarded.tokens(endpoint.url))


async def test_all_clients_connect_with_tokens_of_a_provider(
    guarded: Guarded, scene: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its form is that of the signer of Amazon MSK."""
    (tmp_path / "token").write_text(guarded.issuer.token("the provider"))
    (tmp_path / "my_signer.py").write_text(
        "from pathlib import Path\n\ndef sign(path):\n    return Path(path).read_text(), 1_700_000_000_000\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    options = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "oauth_token_provider": f"my_signer:sign?path={tmp_path}/token",
    }
    async with anyio.create_task_group() as tasks:

        async def refresh() -> None:
            while True:
                (tmp_path / "token.new").write_text(guarded.issuer.token("the provider"))
                (tmp_path / "token.new").replace(tmp_path / "token")
                await anyio.sleep(TOKEN_SECONDS / 4)

        tasks.start_soon(refresh)
        await _all_clients_connect(scene, guarded.oauth, options)
        tasks.cancel_scope.cancel()


async def test_an_agent_and_a_writer_outlive_their_tokens(
    guarded: Guarded, scene: World, endpoint: TokenEndpoint
) -> None:
    """The broker closes each connection when its token expires. The next one is made with a new token."""
    kafka = guarded.tokens(endpoint.url)
    with (
        scene.process(**_settings(guarded.oauth, kafka)) as agent,
        closing(_gate(scene, guarded.oauth, kafka)) as gate,
    ):
        await agent.ready()
        await to_thread.run_sync(_commit, gate, scene, 1)
        issued = len(endpoint.requests)
        await until(lambda: len(endpoint.requests) >= issued + 4)
        await to_thread.run_sync(_commit, gate, scene, 2)
        await _shows_no_secret(agent)

    assert len(await scene.wait_for(CommitGranted, count=2)) == 2


async def test_an_agent_and_a_writer_connect_again_with_a_rotated_password(
    guarded: Guarded, scene: World, tmp_path: Path
) -> None:
    """The broker learns the new password first, then the file changes, then the connections end."""
    servers = guarded.broker.bootstrap_servers
    await set_scram_password(servers, "rotating", PASSWORD)
    (tmp_path / "password").write_text(PASSWORD + "\n")
    kafka = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_username": "rotating",
        "sasl_password_file": str(tmp_path / "password"),
    }
    with (
        scene.process(**_settings(guarded.scram, kafka)) as agent,
        closing(_gate(scene, guarded.scram, kafka)) as gate,
    ):
        await agent.ready()
        await to_thread.run_sync(_commit, gate, scene, 1)
        await set_scram_password(servers, "rotating", "another-password")
        (tmp_path / "password").write_text("another-password")
        guarded.broker.stop()
        guarded.broker.start()  # in the main thread, as its start must be
        await to_thread.run_sync(_commit_when_possible, gate, scene, 2)
        await _shows_no_secret(agent)

    assert len({each.transaction for each in await scene.wait_for(CommitGranted, count=2)}) >= 2


async def test_an_agent_and_a_writer_connect_again_with_a_rotated_certificate(
    guarded: Guarded, scene: World, tmp_path: Path
) -> None:
    """Certificate and key change. Then the broker trusts only the authority of the new ones, and closes all connections."""
    rotated, old = tmp_path / "rotated", tmp_path / "old"
    rotated.mkdir()
    _write_client(guarded.retiring, rotated, KEY_PASSWORD)
    shutil.copytree(rotated, old)
    kafka = guarded.certificate(rotated)
    with (
        scene.process(**_settings(guarded.mtls, kafka)) as agent,
        closing(_gate(scene, guarded.mtls, kafka)) as gate,
    ):
        await agent.ready()
        await to_thread.run_sync(_commit, gate, scene, 1)
        _write_client(guarded.authority, rotated, NEXT_KEY_PASSWORD)
        (guarded.folder / "trusted.pem").write_bytes(guarded.authority.cert_pem.bytes())
        guarded.broker.stop()
        guarded.broker.start()  # in the main thread, as its start must be
        await to_thread.run_sync(_commit_when_possible, gate, scene, 2)
        await _shows_no_secret(agent)
        assert agent.log.read_text().count("agent.ready") == 1

    assert len({each.transaction for each in await scene.wait_for(CommitGranted, count=2)}) >= 2
    with scene.process(**_settings(guarded.mtls, guarded.certificate(old)), log_level="error") as refused:
        assert await refused.ended() == 1
        [line] = refused.log.read_text().splitlines()
    assert "refuses the TLS connection" in line


async def test_an_agent_without_a_certificate_ends_and_names_the_settings(
    guarded: Guarded, scene: World
) -> None:
    kafka = {"security_protocol": "SSL", "ssl_cafile": str(guarded.folder / "authority.pem")}
    with scene.process(**_settings(guarded.mtls, kafka), log_level="error") as agent:
        assert await agent.ended() == 1
        [line] = agent.log.read_text().splitlines()

    assert "refuses the TLS connection" in line
    assert "kafka_ssl_certfile, kafka_ssl_keyfile" in line


async def test_an_agent_whose_token_the_broker_refuses_ends_and_names_the_settings(
    guarded: Guarded, scene: World
) -> None:
    """It has the signature of another issuer."""
    other = Issuer(rsa.generate_private_key(65537, 2048))
    with token_endpoint({CLIENT: SECRET}, other.token) as endpoint:
        settings = _settings(guarded.oauth, guarded.tokens(endpoint.url))
        with scene.process(**settings, log_level="error") as agent:
            assert await agent.ended() == 1
            [line] = agent.log.read_text().splitlines()

    assert "refuses the access token" in line
    assert "check kafka_oauth_" in line


async def test_an_agent_waits_for_a_token_endpoint_that_refuses_it(
    guarded: Guarded, scene: World, endpoint: TokenEndpoint
) -> None:
    """The secret's file may be rotated later than the endpoint."""
    endpoint.secrets[CLIENT] = "rotated"
    with scene.process(**_settings(guarded.oauth, guarded.tokens(endpoint.url))) as agent:
        waiting = await agent.logged("kafka.waiting")
        endpoint.secrets[CLIENT] = SECRET
        await agent.ready()

    assert f"the token endpoint {endpoint.url} answers 401 (invalid_client)" in waiting["problem"]


async def test_a_writer_without_a_token_fails_with_the_endpoints_answer(
    guarded: Guarded, scene: World, endpoint: TokenEndpoint
) -> None:
    endpoint.secrets.clear()
    gate = _gate(scene, guarded.oauth, guarded.tokens(endpoint.url), SHORT_SECONDS)

    with closing(gate), pytest.raises(AgentUnreachable) as failure:
        await to_thread.run_sync(_commit, gate, scene, 1)

    assert f"the token endpoint {endpoint.url} answers 401 (invalid_client)" in str(failure.value)
    assert SECRET not in str(failure.value)


async def _all_clients_connect(scene: World, servers: str, kafka: dict[str, Any]) -> None:
    """An agent, a driver and an executor commit a transaction, and a command prints it."""
    with (
        scene.process(**_settings(servers, kafka)) as agent,
        closing(_gate(scene, servers, kafka)) as gate,
    ):
        await agent.ready()
        await to_thread.run_sync(_commit, gate, scene, 1)
        [granted] = await scene.wait_for(CommitGranted)
        explained = await to_thread.run_sync(
            _command, scene, servers, kafka, "explain", granted.transaction, "--output", "json"
        )
        await _shows_no_secret(agent)

    assert json.loads(explained)["transaction"]["id"] == granted.transaction
    assert not any(secret in explained for secret in SECRETS)


def _settings(servers: str, kafka: dict[str, Any]) -> dict[str, Any]:
    """The options as settings of an agent."""
    return {"bootstrap_servers": servers, **{f"kafka_{name}": value for name, value in kafka.items()}}


def _gate(scene: World, servers: str, kafka: dict[str, Any], timeout: float = PATIENCE_SECONDS) -> CommitGate:
    return CommitGate(
        servers,
        topic_prefix=scene.prefix,
        kafka=kafka,
        admission_timeout_seconds=timeout,
        send_timeout_seconds=timeout,
    )


def _commit(gate: CommitGate, scene: World, batch_id: int) -> None:
    with gate.transaction(table=scene.table, writer="w", batch_id=batch_id) as txn:
        channel = pickle.loads(pickle.dumps(txn.executor_channel()))  # noqa: S301 - its own bytes
        assert isinstance(channel, ExecutorChannel)
        channel.touch("p", "from-an-executor", "merge")
        with txn.commit() as grant:
            grant.version = "1"


def _commit_when_possible(gate: CommitGate, scene: World, batch_id: int) -> None:
    """As a restarted query does: a send may fail while the broker restarts."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return _commit(gate, scene, batch_id)
        except AgentUnreachable:
            if time.monotonic() > deadline:
                raise


def _command(scene: World, servers: str, kafka: dict[str, Any], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "lakewarden.agent", *arguments],
        env=environment(scene.values(**_settings(servers, kafka))),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _write_client(authority: trustme.CA, folder: Path, password: str) -> None:
    """Write a client's certificate, its key, and the key's password."""
    (folder / "key-password").write_text(password)
    write_certificate(authority, folder, "the client", password)


async def _shows_no_secret(agent: AgentProcess) -> None:
    text = agent.log.read_text()
    assert "agent.ready" in text
    assert not any(secret in text for secret in SECRETS)
