"""`lakewarden doctor`: checks from where it runs what an agent with these settings needs.

It writes and deletes the probe of each store, as an agent does at its start, and changes nothing else. `handlers/setup.py` has
the rules of the findings, the same that an agent uses. A check that fails becomes a finding; the others go on.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
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
    Result,
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
    if missing:
        lost = f"can't read what clients compress with {', '.join(missing)}: such events are refused"
        remedy = "install the package with its dependencies (cramjam)"
        return Finding("codecs", "problem", "this installation", lost, remedy)
    return Finding("codecs", "ok", "this installation", f"reads {', '.join(readable)}")


# -- Kafka -------------------------------------------------------------------------------------------------------------


async def _check_kafka(settings: Settings) -> list[Finding]:
    servers = settings.bootstrap_servers
    admin = admin_client(settings)
    try:
        await start_client(admin, settings)
    except AgentError as error:
        rest: tuple[Check, ...] = ("topic", "group", "agents")
        return [
            failed("kafka", servers, str(error)),
            *(Finding(each, "unchecked", servers, "Kafka can't be reached") for each in rest),
        ]
    try:
        topics = await _check_topics(admin, settings)
        started = any(each.check == "topic" and each.found != "missing" for each in topics)
        return [*topics, *await _check_group(admin, settings, started=started)]
    except (KafkaError, OSError, TimeoutError) as error:
        return [failed("kafka", servers, f"a request failed: {str(error) or repr(error)}; try again")]
    finally:
        await stop_client(admin)


async def _check_topics(admin: AIOKafkaAdminClient, settings: Settings) -> list[Finding]:
    topics = settings.topics
    names = [each.name for each in topics.settings()]
    brokers, known, denied = await topic_facts(admin, names)
    found = [Finding("kafka", "ok", settings.bootstrap_servers, f"{counted(brokers, 'broker')} reached")]
    watches = bool(settings.watch)
    known = {name: await _with_settings(admin, settings, facts) for name, facts in known.items()}
    found += [hidden_topic(topics, name, watches=watches) for name in names if name in denied]
    missing = [name for name in names if name not in known and name not in denied]
    if missing:
        found += await _check_missing(admin, settings, missing)
    return found + judge_topics(topics, known, watches=watches)


async def _with_settings(admin: AIOKafkaAdminClient, settings: Settings, facts: TopicFacts) -> TopicFacts:
    [wanted] = [
        each for each in settings.topics.settings(replicas=max(facts.replicas)) if each.name == facts.name
    ]
    try:
        values = await config_values(admin, ConfigResourceType.TOPIC, {facts.name: list(wanted.config)})
    except (TopicAuthorizationFailedError, ClusterAuthorizationFailedError):
        return facts
    return replace(facts, values=values.get(facts.name, {}))


async def _check_missing(
    admin: AIOKafkaAdminClient, settings: Settings, missing: Sequence[str]
) -> list[Finding]:
    """Whether an agent with this user may create the topics that are missing: Kafka validates it, and creates none."""
    present = {each.name for each in settings.topics.settings() if each.name not in missing}
    answers = await validate_topics(
        admin, settings.topics, present, settings.partitions, settings.replication
    )
    found: list[Finding] = []
    for name, code, *text in answers:
        result: Result = "problem"
        if code == 0:
            result, problem, remedy = "warning", "missing", "start an agent: it creates the topic"
        elif code in _FORBIDDEN:
            problem = "missing, and Kafka denies this user to create it"
            remedy = "create it with the settings of docs/kafka.md, or grant create on it"
        else:
            why = " ".join(str(each) for each in text if each) or f"error {code}"
            problem, remedy = f"missing, and Kafka can't create it: {why}", "create it yourself"
        found.append(Finding("topic", result, name, problem, remedy))
    return found


async def _check_group(admin: AIOKafkaAdminClient, settings: Settings, *, started: bool) -> list[Finding]:
    group, rights = settings.group, " and ".join(GROUP_RIGHTS)
    try:
        members = await with_coordinator(lambda: members_of(admin, group))
        operations = await with_coordinator(lambda: rights_on_group(admin, group))
    except GroupAuthorizationFailedError:
        denied, remedy = "Kafka denies this user the consumer group", f"grant {rights} on the group {group}"
        unchecked = Finding("agents", "unchecked", group, "its members can't be read")
        return [Finding("group", "problem", group, denied, remedy), unchecked]
    lacking = missing_rights("group", group, operations, GROUP_RIGHTS)
    may = "rights unknown" if operations is None else f"may {rights}"
    agents = judge_agents(group, members, started=started)
    return [lacking or Finding("group", "ok", group, may), agents]


# -- tables and stores -------------------------------------------------------------------------------------------------


def _check_allowed(settings: Settings, table: str) -> Finding:
    if settings.placement().allows(table):
        return Finding("table", "ok", table, "allowed")
    if not settings.tables:
        unknown = "tables is not set here, so this command doesn't know which tables the agents serve"
        advice = "run it with the agents' settings (LAKEWARDEN_TABLES or --config)"
        return Finding("table", "unchecked", table, unknown, advice)
    refused = f"tables doesn't cover it ({', '.join(settings.tables)}), so agents refuse its transactions"
    advice = "add it to tables, and use the same settings for this command as for the agents"
    return Finding("table", "problem", table, refused, advice)


async def _check_lock(settings: Settings, table: str) -> tuple[str | None, Finding]:
    if settings.lock_root is None and table.startswith("file:"):
        unknown = "lock_root is not set here, so this command doesn't know where the agents keep the lock"
        advice = "run it with the agents' settings (LAKEWARDEN_LOCK_ROOT or --config)"
        return None, Finding("lock", "unchecked", table, unknown, advice)
    try:
        found = await locate(settings, table, None, hudi=False)
    except (AgentError, ValueError) as error:
        return None, failed("lock", table, str(error))
    shared = ", shared with Hudi's writers" if found.location.shared else ""
    return found.location.uri, Finding("lock", "ok", table, f"{found.location.uri}{shared}")


def _lock_uris(settings: Settings, places: Sequence[str]) -> list[str]:
    """An object in each store that has locks: the lock root, or the buckets that `tables` names, and those of the tables."""
    found = list(places)
    if settings.lock_root is not None:
        found.insert(0, f"{settings.lock_root}/locks/probe.json")
    elif not places:
        for glob in settings.tables:
            scheme, _, rest = glob.partition("://")
            bucket = rest.partition("/")[0]
            if bucket and scheme != "file" and not re.search(r"[*?\[]", bucket):
                found.append(f"{scheme}://{bucket}/locks/probe.json")
    return found


async def _check_stores(settings: Settings, places: Sequence[str], clock: Callable[[], int]) -> list[Finding]:
    uris = _lock_uris(settings, places)
    if not uris:
        nothing = "no lock root is set, and tables names no bucket"
        return [Finding("store", "unchecked", "locks", nothing, "set lock_root, or name a table")]
    found: list[Finding] = []
    async with AsyncExitStack() as stack:
        stores = Stores(settings, stack)
        for root, uri in {stores.root_of(uri): uri for uri in uris}.items():
            try:
                store = await stores.for_lock(uri)
            except (StoreProbeError, LocationError) as error:
                found.append(failed("store", root, str(error)))
            else:
                found.append(Finding("store", "ok", root, "honours both conditions, so it can hold locks"))
                kept, renewed = store.keeps_versions, settings.renew_seconds
                found += judge_versions(root, keeps_versions=kept, renew_seconds=renewed)
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
