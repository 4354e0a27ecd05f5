"""`lakewarden doctor`: checks from where it runs what an agent with these settings needs.

It writes and deletes the probe of each store, as an agent does at its start, and changes nothing else. `handlers/setup.py` has
the rules of the findings, the same that an agent uses. A check that fails becomes a finding; the others go on.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
)

from lakewarden.agent.clock import wall_ms
from lakewarden.agent.errors import AgentError
from lakewarden.agent.kafka import admin_client, start_client, validate_topics
from lakewarden.agent.locks.commands import locate
from lakewarden.agent.log import with_coordinator
from lakewarden.agent.operators.cluster_facts import members_of, rights_on_group, topic_facts
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import LocationError, StoreProbeError, Stores
from lakewarden.agent.time_text import counted
from lakewarden.agent.topic_settings import config_values
from lakewarden.events.access import stop_client
from lakewarden.events.access.batches import readable_codecs
from lakewarden.handlers.setup import (
    GROUP_RIGHTS,
    Check,
    Finding,
    TopicFacts,
    failed,
    hidden_topic,
    judge_agents,
    judge_store_clock,
    judge_topics,
    judge_versions,
    missing_rights,
)

COMPRESSIONS = ("gzip", "snappy", "lz4", "zstd")
"""Those of Kafka. A client may use any of them."""
_BUCKET = re.compile(r"(?!file:)[^:]*://[^/*?\[]+(?=/|$)")
"""The bucket of a glob of tables, if it names one."""
_FORBIDDEN = (TopicAuthorizationFailedError.errno, ClusterAuthorizationFailedError.errno)


async def diagnose(
    settings: Settings, tables: Sequence[str], *, clock: Callable[[], int] = wall_ms
) -> list[Finding]:
    """All findings, Kafka's first. `tables`: canonical URIs. `clock`: this machine's, in Unix milliseconds."""
    found = [*await _check_kafka(settings), _check_codecs()]
    places: list[str] = []
    for table in tables:
        found.append(_check_allowed(settings, table))
        place, where = await _check_lock(settings, table)
        found.append(where)
        if place is not None:
            places.append(place)
    return found + await _check_stores(settings, places, clock)


def _check_codecs() -> Finding:
    readable = readable_codecs()
    missing = [each for each in COMPRESSIONS if each not in readable]
    if not missing:
        return Finding("codecs", "ok", "this installation", f"reads {', '.join(readable)}")
    return Finding(
        "codecs",
        "problem",
        "this installation",
        f"can't read what clients compress with {', '.join(missing)}: such events are refused",
        "install the package with its dependencies (cramjam)",
    )


# -- Kafka -------------------------------------------------------------------------------------------------------------


async def _check_kafka(settings: Settings) -> list[Finding]:
    servers, admin = settings.bootstrap_servers, admin_client(settings)
    try:
        await start_client(admin, settings)
    except AgentError as error:
        rest: tuple[Check, ...] = ("topic", "group", "agents")
        unchecked = (Finding(each, "unchecked", servers, "Kafka can't be reached") for each in rest)
        return [failed("kafka", servers, str(error)), *unchecked]
    try:
        topics = await _check_topics(admin, settings)
        started = any(each.check == "topic" and each.found != "missing" for each in topics)
        return [*topics, *await _check_group(admin, settings, started=started)]
    except (KafkaError, OSError, TimeoutError) as error:
        return [failed("kafka", servers, f"a request failed: {str(error) or repr(error)}; try again")]
    finally:
        await stop_client(admin)


async def _check_topics(admin: AIOKafkaAdminClient, settings: Settings) -> list[Finding]:
    topics, watches = settings.topics, bool(settings.watch)
    names = [each.name for each in topics.settings()]
    brokers, known, denied = await topic_facts(admin, names)
    missing = [name for name in names if name not in known and name not in denied]
    return [
        Finding("kafka", "ok", settings.bootstrap_servers, f"{counted(brokers, 'broker')} reached"),
        *(hidden_topic(topics, name, watches=watches) for name in names if name in denied),
        *(await _check_missing(admin, settings, missing) if missing else ()),
        *judge_topics(topics, await _with_settings(admin, settings, known), watches=watches),
    ]


async def _with_settings(
    admin: AIOKafkaAdminClient, settings: Settings, known: dict[str, TopicFacts]
) -> dict[str, TopicFacts]:
    """The topics, with their settings if this user may see them."""
    found = dict(known)
    for name, facts in known.items():
        wanted = settings.topics.settings(replicas=max(facts.replicas))
        config = {each.name: list(each.config) for each in wanted if each.name == name}
        with suppress(TopicAuthorizationFailedError, ClusterAuthorizationFailedError):
            values = await config_values(admin, ConfigResourceType.TOPIC, config)
            found[name] = replace(facts, values=values.get(name, {}))
    return found


async def _check_missing(
    admin: AIOKafkaAdminClient, settings: Settings, missing: Sequence[str]
) -> list[Finding]:
    """Whether an agent with this user may create the topics that are missing: Kafka validates it, and creates none."""
    present = {each.name for each in settings.topics.settings() if each.name not in missing}
    answers = await validate_topics(
        admin, settings.topics, present, settings.partitions, settings.replication
    )
    return [
        _missing(name, code, " ".join(str(each) for each in text if each)) for name, code, *text in answers
    ]


def _missing(name: str, code: int, text: str) -> Finding:
    if code == 0:
        return Finding("topic", "warning", name, "missing", "start an agent: it creates the topic")
    if code in _FORBIDDEN:
        return Finding(
            "topic",
            "problem",
            name,
            "missing, and Kafka denies this user to create it",
            "create it with the settings of docs/kafka.md, or grant create on it",
        )
    why = f"missing, and Kafka can't create it: {text or f'error {code}'}"
    return Finding("topic", "problem", name, why, "create it yourself")


async def _check_group(admin: AIOKafkaAdminClient, settings: Settings, *, started: bool) -> list[Finding]:
    group, rights = settings.group, " and ".join(GROUP_RIGHTS)
    try:
        members = await with_coordinator(lambda: members_of(admin, group))
        operations = await with_coordinator(lambda: rights_on_group(admin, group))
    except GroupAuthorizationFailedError:
        grant = f"grant {rights} on the group {group}"
        return [
            Finding("group", "problem", group, "Kafka denies this user the consumer group", grant),
            Finding("agents", "unchecked", group, "its members can't be read"),
        ]
    lacking = missing_rights("group", group, operations, GROUP_RIGHTS)
    may = "rights unknown" if operations is None else f"may {rights}"
    agents = judge_agents(group, members, started=started)
    return [lacking or Finding("group", "ok", group, may), agents]


# -- tables and stores -------------------------------------------------------------------------------------------------


def _check_allowed(settings: Settings, table: str) -> Finding:
    if settings.placement().allows(table):
        return Finding("table", "ok", table, "allowed")
    if not settings.tables:
        return Finding(
            "table",
            "unchecked",
            table,
            "tables is not set here, so this command doesn't know which tables the agents serve",
            "run it with the agents' settings (LAKEWARDEN_TABLES or --config)",
        )
    return Finding(
        "table",
        "problem",
        table,
        f"tables doesn't cover it ({', '.join(settings.tables)}), so agents refuse its transactions",
        "add it to tables, and use the same settings for this command as for the agents",
    )


async def _check_lock(settings: Settings, table: str) -> tuple[str | None, Finding]:
    if settings.lock_root is None and table.startswith("file:"):
        return None, Finding(
            "lock",
            "unchecked",
            table,
            "lock_root is not set here, so this command doesn't know where the agents keep the lock",
            "run it with the agents' settings (LAKEWARDEN_LOCK_ROOT or --config)",
        )
    try:
        found = await locate(settings, table, None, hudi=False)
    except (AgentError, ValueError) as error:
        return None, failed("lock", table, str(error))
    shared = ", shared with Hudi's writers" if found.location.shared else ""
    return found.location.uri, Finding("lock", "ok", table, f"{found.location.uri}{shared}")


def _lock_uris(settings: Settings, places: Sequence[str]) -> list[str]:
    """An object in each store that has locks: the lock root, or the buckets that `tables` names, and those of the tables."""
    if settings.lock_root is not None:
        return [f"{settings.lock_root}/locks/probe.json", *places]
    buckets = (_BUCKET.match(each) for each in settings.tables)
    return list(places) or [f"{each[0]}/locks/probe.json" for each in buckets if each is not None]


async def _check_stores(settings: Settings, places: Sequence[str], clock: Callable[[], int]) -> list[Finding]:
    uris = _lock_uris(settings, places)
    found: list[Finding] = []
    if not uris:
        nothing = "no lock root is set, and tables names no bucket"
        found.append(Finding("store", "unchecked", "locks", nothing, "set lock_root, or name a table"))
    async with AsyncExitStack() as stack:
        stores = Stores(settings, stack)
        for root, uri in {stores.root_of(uri): uri for uri in uris}.items():
            try:
                kept = (await stores.for_lock(uri)).keeps_versions
            except (StoreProbeError, LocationError) as error:
                found.append(failed("store", root, str(error)))
            else:
                found.append(Finding("store", "ok", root, "honours both conditions, so it can hold locks"))
                found += judge_versions(root, keeps_versions=kept, renew_seconds=settings.renew_seconds)
            found += await _check_store_clock(settings, root, clock)
    return found


async def _check_store_clock(settings: Settings, root: str, clock: Callable[[], int]) -> list[Finding]:
    from lakewarden.agent.stores.server_clock import ClockUnknownError, read_store_clock  # imports clients

    try:
        reading = await read_store_clock(root, settings, clock)
    except ClockUnknownError as error:
        return [Finding("store-clock", "unchecked", root, str(error))]
    if reading is None:
        return []
    drift, strict = settings.drift_seconds, settings.strict_takeover
    return [judge_store_clock(root, reading, drift_seconds=drift, strict=strict)]
