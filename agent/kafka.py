"""Kafka helpers that several modules share: clients, topic creation and checks. `log.py` reads the topics."""

import asyncio
import ssl
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import anyio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    KafkaConnectionError,
    KafkaError,
    PolicyViolationError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
    for_code,
)
from aiokafka.protocol.admin import ApiVersionRequest

from lakewarden.agent.errors import KafkaRefusedError, KafkaUnreachableError, SettingsError
from lakewarden.agent.settings import KafkaSettings
from lakewarden.agent.topic_settings import default_replicas, warn_of_differences
from lakewarden.events import MAX_EVENT_BYTES, Topics, access
from lakewarden.handlers.setup import AGENT_RIGHTS, unequal_counts

BATCH_BYTES = 262_144
"""Bytes of one batch of the producer. A larger record has a batch of its own: a refusal of the batch concerns it alone."""
FETCH_BYTES = 4 * 1024 * 1024
"""Bytes of one partition in one fetch: about 400 events with 100 markers each, so that round trips don't limit a replay."""
_TOPIC_EXISTS = 36
_LASTING = {InvalidPartitionsError.errno, InvalidConfigurationError.errno, PolicyViolationError.errno}
"""Refusals that no retry changes. Brokers that are still starting are too few replicas for a while."""
_FORBIDDEN = (TopicAuthorizationFailedError.errno, ClusterAuthorizationFailedError.errno)
_RIGHTS = "docs/security.md lists the rights of each command"
PROBE_SECONDS = 5.0
START_TIMEOUT_SECONDS = 15.0
"""For a client to connect to a broker; after that, the caller gets an error that names the brokers."""


_Client = TypeVar("_Client", AIOKafkaProducer, AIOKafkaConsumer, AIOKafkaAdminClient)


def producer(settings: KafkaSettings) -> AIOKafkaProducer:
    """A producer that keeps the order of records (idempotent) and waits for all in-sync replicas (`acks=all`)."""
    made = AIOKafkaProducer(
        **settings.kafka_client(),
        acks="all",
        enable_idempotence=True,
        max_request_size=MAX_EVENT_BYTES,
        max_batch_size=BATCH_BYTES,
    )
    return rotating(made, settings)


def reader(settings: KafkaSettings, **more: Any) -> AIOKafkaConsumer:
    """A consumer without a consumer group."""
    made = AIOKafkaConsumer(
        **settings.kafka_client(),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=FETCH_BYTES,
        **more,
    )
    return rotating(made, settings)


def admin_client(settings: KafkaSettings) -> AIOKafkaAdminClient:
    """A client for topics and groups."""
    return rotating(AIOKafkaAdminClient(**settings.kafka_client()), settings)


def rotating(client: _Client, settings: KafkaSettings) -> _Client:
    """The client, which from now on reads its password's file at each connect, and every batch that brokers accept."""
    access.read_password_again(client, settings.access())
    if isinstance(client, AIOKafkaConsumer):
        access.read_every_batch(client)
    return client


async def start_client(client: Any, settings: KafkaSettings) -> None:
    """Start a client within `START_TIMEOUT_SECONDS`.

    Raises `KafkaRefusedError` if a broker answers and refuses access, and `KafkaUnreachableError` if no broker answers.
    """
    try:
        with anyio.fail_after(START_TIMEOUT_SECONDS):
            await client.start()
        if (
            settings.kafka_sasl_mechanism == access.OAUTH
            and settings.access().uses_sasl
            and not access.connections_of(client).cluster.brokers()
        ):
            # Brokers answer a request after a token that they refuse, but name no broker.
            raise KafkaConnectionError("the brokers name no broker")  # noqa: TRY301 - handled like a start that failed
    except (TimeoutError, KafkaConnectionError, OSError) as error:
        await access.stop_client(client)
        problem = await _connection_problem(settings)
        if isinstance(problem, KafkaRefusedError | KafkaUnreachableError):
            raise problem from error
        raise KafkaUnreachableError(
            f"no Kafka broker answers at {settings.bootstrap_servers}; check the address (--bootstrap-servers), the network, "
            f"and that its listener uses {settings.kafka_security_protocol} (kafka_security_protocol)"
        ) from error
    except BaseException:
        await access.stop_client(client)
        raise
    access.repeat_requests(client)


async def _connection_problem(settings: KafkaSettings) -> KafkaRefusedError | KafkaUnreachableError | None:
    """Why no connection is made, if that is not just a broker that is down.

    aiokafka's clients raise the same error for a wrong password as for a broker that is down, so this opens a connection itself.
    """
    options = settings.kafka_client()
    del options["connections_max_idle_ms"]  # the connection is closed at once
    for host, port, _ in collect_hosts(options.pop("bootstrap_servers")):
        try:
            with anyio.fail_after(PROBE_SECONDS):
                connection = await create_conn(host, port, **options)
                try:
                    if options.get("sasl_mechanism") == access.OAUTH:
                        await _require_accepted_token(connection)
                finally:
                    connection.close()
        except access.TokenError as error:
            return KafkaUnreachableError(f"no token for Kafka at {host}:{port}: {error}")
        except (SaslAuthenticationFailed, AuthenticationFailedError, UnsupportedSaslMechanismError) as error:
            why = str(error.args[0] if error.args else error).rstrip(".")
            return KafkaRefusedError(f"Kafka at {host}:{port} refuses {_credentials(settings, why)}")
        except ssl.SSLCertVerificationError as error:
            return KafkaRefusedError(
                f"the certificate of Kafka at {host}:{port} is not trusted: {error.verify_message}; "
                "name its authority's PEM file (kafka_ssl_cafile)"
            )
        except (TimeoutError, KafkaError, OSError) as error:
            if (alert := _tls_alert(error)) is not None:
                return KafkaRefusedError(
                    f"Kafka at {host}:{port} refuses the TLS connection: {alert}; name a client certificate that the brokers "
                    "trust (kafka_ssl_certfile, kafka_ssl_keyfile)"
                )
    return None


async def _require_accepted_token(connection: Any) -> None:
    """Raise `SaslAuthenticationFailed` if the broker has not accepted the token.

    A broker answers a token that it refuses with a challenge. aiokafka takes that for success, and its next request fails.
    """
    refused = "the broker accepts no request after it"
    try:
        answer = await connection.send(ApiVersionRequest())
    except KafkaError as error:
        raise SaslAuthenticationFailed(refused) from error
    if answer.error_code != 0:
        raise SaslAuthenticationFailed(refused)


def _credentials(settings: KafkaSettings, why: str) -> str:
    """What a broker refuses, why, and the settings to check."""
    mechanism = settings.kafka_sasl_mechanism
    if mechanism == access.OAUTH:
        return f"the access token: {why}; check kafka_oauth_… and what the brokers expect of a token (issuer, audience, scope)"
    password = "kafka_sasl_password_file" if settings.kafka_sasl_password_file else "kafka_sasl_password"
    return (
        f"user {settings.kafka_sasl_username}: {why}; check kafka_sasl_username, {password} and kafka_sasl_mechanism "
        f"({mechanism})"
    )


def _tls_alert(error: BaseException | None) -> str | None:
    """The alert by which a broker ended the TLS connection, if it did: TLS 1.3 sends it after the client's handshake."""
    while error is not None:
        if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
            return str(error.reason).lower().replace("_", " ")
        error = error.__cause__
    return None


def missing_right(problem: BaseException | None, settings: KafkaSettings) -> str | None:
    """Which right is missing, if `problem` or one of its causes is an authorization error."""
    user = settings.kafka_sasl_username or "this agent"
    while problem is not None:
        match problem:
            case TopicAuthorizationFailedError():
                topics = problem.args[0] if problem.args else f"below {settings.topic_prefix}"
                names = (
                    ", ".join(sorted(topics))
                    if isinstance(topics, set | frozenset | list | tuple)
                    else topics
                )
                return (
                    f"Kafka denies {user} access to the topic {names}: grant it {_rights(settings, names)}, and create if the "
                    "topic doesn't exist yet; docs/security.md lists the rights of an agent"
                )
            case GroupAuthorizationFailedError():
                return f"Kafka denies {user} access to the consumer group {settings.group}: grant it read on the group"
            case ClusterAuthorizationFailedError():
                return (
                    f"Kafka denies {user} the creation of topics: grant it create on {settings.topic_prefix}.*, "
                    "or create them for it"
                )
            case _:
                problem = problem.__cause__
    return None


def _rights(settings: KafkaSettings, names: str) -> str:
    found = {
        " and ".join(rights)
        for name, rights in AGENT_RIGHTS.items()
        if f"{settings.topic_prefix}.{name}" in names.split(", ")
    }
    return found.pop() if len(found) == 1 else "read and write"


def denied_write(error: KafkaError, topic: str) -> str | None:
    """What a command lacks that publishes to `topic`, if `error` says so.

    A user without `write` on any topic may not even start an idempotent producer.
    """
    if isinstance(error, TopicAuthorizationFailedError | ClusterAuthorizationFailedError):
        return f"Kafka denies this user write on the topic {topic}; {_RIGHTS}"
    return None


def denied_to_command(error: Exception) -> str | None:
    """Which right a reading command lacks, if `error` says so."""
    match error:
        case TopicAuthorizationFailedError(args=(topics, *_)):
            names = topics if isinstance(topics, str) else ", ".join(sorted(topics))
            return f"Kafka denies this user read on the topic {names}; {_RIGHTS}"
        case GroupAuthorizationFailedError():
            return f"Kafka denies this user describe on the agents' consumer group (the setting group); {_RIGHTS}"
        case _:
            return None


def ended_tasks(client: AIOKafkaConsumer | AIOKafkaProducer) -> dict[str, str]:
    """The background tasks of a started client that have ended, each with its error.

    aiokafka starts none of them again, and its methods don't report all of them: a consumer whose fetching has ended returns no
    records, and a producer whose sending has ended never completes a send.
    """
    tasks = {"metadata": access.connections_of(client)._sync_task}  # noqa: SLF001 - aiokafka has no public names for them
    if isinstance(client, AIOKafkaProducer):
        tasks["sending"] = client._sender.sender_task  # noqa: SLF001
    else:
        tasks["fetching"] = client._fetcher.error_future  # noqa: SLF001
    return {name: _end_of(task) for name, task in tasks.items() if task.done()}


def _end_of(task: asyncio.Task[Any]) -> str:
    if task.cancelled():
        return "cancelled"
    return "returned" if (error := task.exception()) is None else repr(error)


async def ensure_topics(
    settings: KafkaSettings, topics: Topics, partitions: int, replication: int, *, check: bool = False
) -> int:
    """Create the missing topics. Return the number of partitions, which `writers`, `decisions` and `ledger` must share.

    `replication` -1: the brokers' default. `check`: log a warning for each setting of a topic that weakens a promise.
    """
    admin = admin_client(settings)
    await start_client(admin, settings)
    try:
        present = set(await admin.list_topics())
        if any(each.name not in present for each in topics.settings()):
            wanted = await _missing_topics(admin, topics, present, partitions, replication)
            # Asked first: a policy that refuses the last topic would leave the others.
            _require_created(await _create(admin, wanted, validate_only=True), wanted)
            answers = await _create(admin, wanted, validate_only=False)
            _require_created(answers, wanted)
            for name, code, *_ in answers:
                if code == _TOPIC_EXISTS:
                    # Another agent has just created it, or this agent may not see it; the latter raises here.
                    await partition_count(admin, name)
        described = {
            name: await _partitions(admin, name) for name in (topics.writers, topics.decisions, topics.ledger)
        }
        counts = {name: len(found) for name, found in described.items()}
        if check:
            fewest = min(len(each["replicas"]) for found in described.values() for each in found)
            await warn_of_differences(admin, topics, fewest)
    finally:
        await access.stop_client(admin)
    require_equal_counts(counts)
    return counts[topics.writers]


async def validate_topics(
    admin: AIOKafkaAdminClient, topics: Topics, present: Collection[str], partitions: int, replication: int
) -> list[Any]:
    """Kafka's answer to the creation of each topic that isn't `present`: name, error code (0: success), text. It creates none.

    `replication` -1: the brokers' default.
    """
    wanted = await _missing_topics(admin, topics, present, partitions, replication)
    return await _create(admin, wanted, validate_only=True)


async def _missing_topics(
    admin: AIOKafkaAdminClient, topics: Topics, present: Collection[str], partitions: int, replication: int
) -> list[NewTopic]:
    replicas = await default_replicas(admin) if replication == -1 else replication
    existing = await partition_count(admin, topics.writers) if topics.writers in present else partitions
    return [
        NewTopic(
            each.name,
            min(each.partitions, existing) if each.partitions == 1 else existing,
            replication,
            replica_assignments={} if replication == -1 else None,  # else aiokafka refuses -1
            topic_configs=each.config,
        )
        for each in topics.settings(partitions, replicas)
        if each.name not in present
    ]


async def _create(admin: AIOKafkaAdminClient, wanted: list[NewTopic], *, validate_only: bool) -> list[Any]:
    await _await_controller(admin)
    return list((await admin.create_topics(wanted, validate_only=validate_only)).topic_errors)


def _require_created(answers: Iterable[Sequence[Any]], wanted: Iterable[NewTopic]) -> None:
    """Raise for the topics that Kafka refuses to create. `answers`: a topic's name, an error code and Kafka's text."""
    refused = {name: (code, *text) for name, code, *text in answers if code not in (0, _TOPIC_EXISTS)}
    if not refused:
        return
    for name, (code, *_) in refused.items():
        if code in _FORBIDDEN:
            raise for_code(code)(name)
    why = "; ".join(
        f"{name}: {' '.join(map(str, filter(None, text))) or 'no reason given'} ({for_code(code).__name__})"
        for name, (code, *text) in refused.items()
    )
    settings = "; ".join(
        f"{each.name}: {each.num_partitions} partitions, "
        + ", ".join(f"{key}={value}" for key, value in each.topic_configs.items())
        for each in wanted
    )
    kind = KafkaRefusedError if {code for code, *_ in refused.values()} <= _LASTING else KafkaError
    raise kind(
        f"Kafka refuses to create topics: {why}; change that, or create the topics yourself, with what their policy demands and "
        f"these settings: {settings}"
    )


def require_equal_counts(counts: Mapping[str, int]) -> None:
    """Raise `SettingsError` unless these topics have the same number of partitions."""
    if (why := unequal_counts(counts)) is not None:
        raise SettingsError(why)


def partitions_known(consumer: AIOKafkaConsumer, topic: str) -> int | None:
    """The number of partitions of a topic in the consumer's cached metadata, or None; sends no request."""
    return len(consumer.partitions_for_topic(topic) or ()) or None


def is_member(consumer: AIOKafkaConsumer) -> bool:
    """Whether the consumer is a member of its group, as far as it knows from Kafka."""
    return int(consumer._coordinator.generation) > 0  # noqa: SLF001 - no public way to it


async def _await_controller(admin: AIOKafkaAdminClient) -> None:
    """Wait until the brokers name their controller. Without one, aiokafka's admin raises AttributeError."""
    client = admin._client  # noqa: SLF001 - no public way to its metadata
    with anyio.fail_after(START_TIMEOUT_SECONDS):
        while client.cluster.controller is None:
            await anyio.sleep(0.1)
            await client.force_metadata_update()


async def partition_count(admin: AIOKafkaAdminClient, topic: str) -> int:
    """The number of partitions of a topic, once Kafka knows it."""
    return len(await _partitions(admin, topic))


async def _partitions(admin: AIOKafkaAdminClient, topic: str) -> list[dict[str, Any]]:
    with anyio.fail_after(START_TIMEOUT_SECONDS):
        while True:
            found = [each for each in await admin.describe_topics([topic]) if each["topic"] == topic]
            if found and found[0]["error_code"] in _FORBIDDEN:
                raise TopicAuthorizationFailedError(topic)
            if found and found[0]["error_code"] == 0 and found[0]["partitions"]:
                return list(found[0]["partitions"])
            await anyio.sleep(0.1)
