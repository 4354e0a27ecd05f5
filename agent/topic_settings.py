"""Compares the settings of the topics in Kafka with those that the agent creates topics with (`events/topics.py`).

A promise rests on each of these settings, so a difference is a warning. The agent changes nothing on a topic that exists: an
operator may have reasons, and Kafka's protocol would replace the topic's other settings, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code

from lakewarden.events import Topics, TopicSettings

log = structlog.get_logger()

UNLIMITED = -1
AT_LEAST = frozenset({"retention.ms", "retention.bytes", "min.insync.replicas", "max.message.bytes"})
AT_MOST = frozenset({"segment.ms", "max.compaction.lag.ms"})
RISKS = {
    "cleanup.policy": "Kafka removes records that the agent needs, or never removes any",
    "retention.ms": "an outage that lasts longer loses events; the open transactions are then aborted",
    "retention.bytes": "the topic may lose its beginning while it is needed; the open transactions are then aborted",
    "min.insync.replicas": "a failover of a broker may lose a grant or a commit that Kafka has acknowledged",
    "unclean.leader.election.enable": "a failover of a broker may lose a grant or a commit that Kafka has acknowledged",
    "max.message.bytes": "Kafka refuses a large record, and its table is stopped",
    "segment.ms": "Kafka doesn't compact the newest segment, so that a take-over reads the ledger's whole history",
    "max.compaction.lag.ms": "Kafka compacts late, so that a take-over reads more of the ledger's history",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting of a topic that weakens a promise."""

    topic: str
    setting: str
    value: str
    wanted: str
    risk: str


def differences(topic: TopicSettings, values: Mapping[str, str]) -> list[Difference]:
    """The settings of a topic that differ for the worse. A setting that Kafka didn't return isn't judged."""
    return [
        Difference(topic.name, setting, values[setting], wanted, RISKS[setting])
        for setting, wanted in topic.config.items()
        if setting in values and not _is_good(setting, values[setting], wanted)
    ]


def _is_good(setting: str, value: str, wanted: str) -> bool:
    if setting in AT_LEAST:
        return int(value) == UNLIMITED or (int(wanted) != UNLIMITED and int(value) >= int(wanted))
    if setting in AT_MOST:
        return int(value) <= int(wanted)
    return value == wanted


async def warn_of_differences(admin: AIOKafkaAdminClient, topics: Topics, replicas: int) -> None:
    """Log a warning for each setting that weakens a promise. `replicas`: the fewest that a partition of the log has."""
    wanted = {each.name: list(each.config) for each in topics.settings(replicas=replicas)}
    try:
        values = await _values(admin, ConfigResourceType.TOPIC, wanted)
    except KafkaError as error:
        log.warning(
            "topic.settings-unknown",
            problem=str(error) or repr(error),
            detail="the agent can't check the topics' settings; it needs the right to describe their configuration",
        )
        return
    for topic in topics.settings(replicas=replicas):
        for each in differences(topic, values.get(topic.name, {})):
            log.warning(
                "topic.setting",
                topic=each.topic,
                setting=each.setting,
                value=each.value,
                wanted=each.wanted,
                risk=each.risk,
            )


async def default_replicas(admin: AIOKafkaAdminClient) -> int:
    """How many replicas the brokers give a topic by default. 1 if they don't tell."""
    try:
        brokers = (await admin.describe_cluster())["brokers"]
        number = str(brokers[0]["node_id"])
        values = await _values(admin, ConfigResourceType.BROKER, {number: ["default.replication.factor"]})
    except KafkaError:
        return 1
    return int(values.get(number, {}).get("default.replication.factor", "1"))


async def _values(
    admin: AIOKafkaAdminClient, kind: ConfigResourceType, settings: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, str]]:
    """The values of these settings, by resource."""
    resources = [ConfigResource(kind, name, dict.fromkeys(wanted)) for name, wanted in settings.items()]
    found: dict[str, dict[str, str]] = {}
    for response in await admin.describe_configs(resources):
        for code, message, _, name, entries, *_ in response.resources:
            if code:
                raise for_code(code)(message or name)
            found[name] = {_text(entry, 0): _text(entry, 1) for entry in entries if entry[1] is not None}
    return found


def _text(entry: Any, index: int) -> str:
    return str(entry[index])
