"""Agent, writer, executor and command line against a real broker that demands a password, a client certificate, or a token.

Certificates, passwords and tokens are rotated while the agent and a writer run. `test_kafka_rights.py` has the rights.

A refusal ends the agent, because only an operator can resolve it. The agent waits for a broker that does not answer
(`test_agent_outage.py`). The writer's client fails within its own timeout in both cases.
"""

import base64
import json
import os
import shutil
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
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
from lakewarden.agent.operators.doctor import diagnose
from lakewarden.events import CommitGranted
from lakewarden.spark_jobs.commit_gate import CommitGate
from lakewarden.spark_jobs.gate.errors import AgentUnreachable
from tests.kafka_fixture import set_scram_password
from tests.processes import AgentProcess, run_command
from tests.real.writers import World, commit_through, world
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
"""The timeout of writers that are expected to fail."""
AGENT, WRITER = "the-agent", "the-writer"
PASSWORDS = {AGENT: "agents-open-sesame", WRITER: "writers-open-sesame"}
WRONG = "not-the-password"
SECRETS = (SECRET, PASSWORD, KEY_PASSWORD, NEXT_KEY_PASSWORD, *PASSWORDS.values(), WRONG)


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
    sasl: str
    tls: str
    folder: Path
    authority: trustme.CA
    retiring: trustme.CA
    """The broker trusts clients of it, too, until a test retires it."""
    issuer: Issuer

    def agent(self, **more: Any) -> dict[str, Any]:
        """The settings of an agent with user and password."""
        options = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_username": AGENT,
            "sasl_password": PASSWORDS[AGENT],
        }
        return _settings(self.sasl, options) | more

    def writer(self, **more: Any) -> dict[str, Any]:
        """The Kafka options of a writer with user and password."""
        return {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": WRITER,
            "sasl_plain_password": PASSWORDS[WRITER],
            **more,
        }

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
            "oauth_extensions": "logicalCluster=lkc-1,identityPoolId=pool-1",
        }


def _encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """PLAINTEXT is the administrator's listener. SASL demands a password, TLS none and no certificate."""
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
    ports = {name: free_port() for name in ("MTLS", "OAUTH", "SASL", "TLS")}
    listeners = ",".join(
        f"{name}://{{host}}:{port}" for name, port in {"PLAINTEXT": "{port}", **ports}.items()
    )
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    module = "org.apache.kafka.common.security"
    properties = {
        "listeners": f"{listeners},CONTROLLER://{{host}}:{{controller_port}}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,MTLS:SSL,OAUTH:SASL_PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL"
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
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl.plain.sasl.jaas.config": f"{module}.plain.PlainLoginModule required {users};",
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        "listener.name.tls.ssl.keystore.type": "PEM",
        "listener.name.tls.ssl.keystore.location": str(folder / "broker.pem"),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={jwks}")
        with EmbeddedKafka(folder / "kafka", port=free_port(), properties=properties) as broker:
            mtls, oauth, sasl, tls = (f"127.0.0.1:{port}" for port in ports.values())
            yield Guarded(broker, mtls, oauth, sasl, tls, folder, authority, retiring, issuer)


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


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_transaction_commits_with_passwords(guarded: Guarded, scene: World, mechanism: str) -> None:
    for name, password in PASSWORDS.items():
        await set_scram_password(guarded.broker.bootstrap_servers, name, password)
    await _commits(
        scene, guarded.agent(kafka_sasl_mechanism=mechanism), guarded.writer(sasl_mechanism=mechanism)
    )


async def test_a_transaction_commits_over_tls(guarded: Guarded, scene: World) -> None:
    cafile = str(guarded.folder / "authority.pem")
    settings = _settings(guarded.tls, {"security_protocol": "SSL", "ssl_cafile": cafile})
    await _commits(scene, settings, partial(_tls_options, cafile))


def _tls_options(cafile: str) -> dict[str, Any]:
    """A function, because an SSL context can't be pickled."""
    return {"security_protocol": "SSL", "ssl_context": ssl.create_default_context(cafile=cafile)}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_wrong_password_ends_the_agent_and_names_what_to_check(
    guarded: Guarded, scene: World, mechanism: str
) -> None:
    settings = guarded.agent(kafka_sasl_password=WRONG, kafka_sasl_mechanism=mechanism)
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
    settings = guarded.agent(kafka_sasl_mechanism="SCRAM-SHA-512")
    line = await _ends_with_one_line(scene, settings)

    assert "kafka_sasl_mechanism (SCRAM-SHA-512)" in line


async def test_a_certificate_of_an_unknown_authority_ends_the_agent(guarded: Guarded, scene: World) -> None:
    line = await _ends_with_one_line(scene, _settings(guarded.tls, {"security_protocol": "SSL"}))

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

    assert "security settings" in await _writer_fails(scene, guarded.sasl, kafka)


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
        scene.gate(guarded.oauth, kafka=kafka) as gate,
    ):
        await agent.ready()
        await to_thread.run_sync(commit_through, gate, scene.table, 1)
        issued = len(endpoint.requests)
        await until(lambda: len(endpoint.requests) >= issued + 4)
        await to_thread.run_sync(commit_through, gate, scene.table, 2)
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
        scene.process(**_settings(guarded.sasl, kafka)) as agent,
        scene.gate(guarded.sasl, kafka=kafka) as gate,
    ):
        await agent.ready()
        await to_thread.run_sync(commit_through, gate, scene.table, 1)
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
        scene.gate(guarded.mtls, kafka=kafka) as gate,
    ):
        await agent.ready()
        await to_thread.run_sync(commit_through, gate, scene.table, 1)
        _write_client(guarded.authority, rotated, NEXT_KEY_PASSWORD)
        (guarded.folder / "trusted.pem").write_bytes(guarded.authority.cert_pem.bytes())
        guarded.broker.stop()
        guarded.broker.start()  # in the main thread, as its start must be
        await to_thread.run_sync(_commit_when_possible, gate, scene, 2)
        await _shows_no_secret(agent)
        assert agent.log.read_text().count("agent.ready") == 1

    assert len({each.transaction for each in await scene.wait_for(CommitGranted, count=2)}) >= 2
    line = await _ends_with_one_line(scene, _settings(guarded.mtls, guarded.certificate(old)))
    assert "refuses the TLS connection" in line


async def test_an_agent_without_a_certificate_ends_and_names_the_settings(
    guarded: Guarded, scene: World
) -> None:
    kafka = {"security_protocol": "SSL", "ssl_cafile": str(guarded.folder / "authority.pem")}
    line = await _ends_with_one_line(scene, _settings(guarded.mtls, kafka))

    assert "refuses the TLS connection" in line
    assert "kafka_ssl_certfile, kafka_ssl_keyfile" in line


async def test_an_agent_whose_token_the_broker_refuses_ends_and_names_the_settings(
    guarded: Guarded, scene: World
) -> None:
    """It has the signature of another issuer."""
    other = Issuer(rsa.generate_private_key(65537, 2048))
    with token_endpoint({CLIENT: SECRET}, other.token) as endpoint:
        line = await _ends_with_one_line(scene, _settings(guarded.oauth, guarded.tokens(endpoint.url)))

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
    failure = await _writer_fails(scene, guarded.oauth, guarded.tokens(endpoint.url))

    assert f"the token endpoint {endpoint.url} answers 401 (invalid_client)" in failure


async def _commits(scene: World, settings: dict[str, Any], kafka: Any) -> None:
    """An agent, a driver and an executor commit a transaction."""
    with scene.process(**settings) as agent, scene.gate(settings["bootstrap_servers"], kafka=kafka) as gate:
        await agent.ready()
        await to_thread.run_sync(commit_through, gate, scene.table)
        await _shows_no_secret(agent)

    assert len(await scene.wait_for(CommitGranted)) == 1


async def _writer_fails(scene: World, servers: str, kafka: dict[str, Any]) -> str:
    """The error of a writer that reaches no agent."""
    patience = dict.fromkeys(("admission_timeout_seconds", "send_timeout_seconds"), SHORT_SECONDS)
    with scene.gate(servers, kafka=kafka, **patience) as gate, pytest.raises(AgentUnreachable) as failure:
        await to_thread.run_sync(commit_through, gate, scene.table)
    assert not any(secret in str(failure.value) for secret in SECRETS)
    return str(failure.value)


async def _ends_with_one_line(scene: World, settings: dict[str, Any]) -> str:
    with scene.process(**settings, log_level="error") as agent:
        assert await agent.ended() == 1
        [line] = agent.log.read_text().splitlines()
    assert not any(secret in line for secret in SECRETS)
    return line


async def _all_clients_connect(scene: World, servers: str, kafka: dict[str, Any]) -> None:
    """An agent, a driver and an executor commit a transaction, and a command prints it."""
    with scene.process(**_settings(servers, kafka)) as agent, scene.gate(servers, kafka=kafka) as gate:
        await agent.ready()
        await to_thread.run_sync(commit_through, gate, scene.table, 1)
        [granted] = await scene.wait_for(CommitGranted)
        command = ("explain", granted.transaction, "--output", "json")
        values = scene.values(**_settings(servers, kafka))
        explained = await to_thread.run_sync(lambda: run_command(*command, **values))
        await _shows_no_secret(agent)

    assert explained.returncode == 0, explained.stderr
    assert json.loads(explained.stdout)["transaction"]["id"] == granted.transaction
    assert not any(secret in explained.stdout for secret in SECRETS)


def _settings(servers: str, kafka: dict[str, Any]) -> dict[str, Any]:
    """The options as settings of an agent."""
    return {"bootstrap_servers": servers, **{f"kafka_{name}": value for name, value in kafka.items()}}


def _commit_when_possible(gate: CommitGate, scene: World, batch_id: int) -> None:
    """As a restarted query does: a send may fail while the broker restarts."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return commit_through(gate, scene.table, batch_id)
        except AgentUnreachable:
            if time.monotonic() > deadline:
                raise


def _write_client(authority: trustme.CA, folder: Path, password: str) -> None:
    """Write a client's certificate, its key, and the key's password."""
    (folder / "key-password").write_text(password)
    write_certificate(authority, folder, "the client", password)


async def _shows_no_secret(agent: AgentProcess) -> None:
    text = agent.log.read_text()
    assert "agent.ready" in text
    assert not any(secret in text for secret in SECRETS)
