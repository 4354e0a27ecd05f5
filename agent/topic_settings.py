"""Reads the settings of the topics in Kafka, and logs those that weaken a promise (`handlers/setup.py`).

The agent changes nothing on a topic that exists: Kafka's protocol would replace the topic's other settings, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import structlog
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code

from lakewarden.events import Topics
from lakewarden.handlers.setup import differences

log = structlog.get_logger()


async def warn_of_differences(admin: AIOKafkaAdminClient, topics: Topics, replicas: int) -> None:
    """Log a warning for each setting that weakens a promise. `replicas`: the fewest that a partition of the log has."""
    wanted = {each.name: list(each.config) for each in topics.settings(replicas=replicas)}
    try:
        values = await config_values(admin, ConfigResourceType.TOPIC, wanted)
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
                **asdict(each),
                detail=f"kafka-configs.sh --alter --topic {each.topic} --add-config {each.setting}={each.wanted}",
            )


async def default_replicas(admin: AIOKafkaAdminClient) -> int:
    """How many replicas the brokers give a topic by default. 1 if they don't say."""
    try:
        brokers = (await admin.describe_cluster())["brokers"]
        number = str(brokers[0]["node_id"])
        values = await config_values(
            admin, ConfigResourceType.BROKER, {number: ["default.replication.factor"]}
        )
    except KafkaError:
        return 1
    return int(values.get(number, {}).get("default.replication.factor", "1"))


async def config_values(
    admin: AIOKafkaAdminClient, kind: ConfigResourceType, settings: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, str]]:
    """The values of these settings, by resource."""
    resources = [ConfigResource(kind, name, dict.fromkeys(wanted)) for name, wanted in settings.items()]
    found: dict[str, dict[str, str]] = {}
    for response in await admin.describe_configs(resources):
        for code, message, _, name, entries, *_ in response.resources:
            if code:
                raise for_code(code)(message or name)
            found[name] = {str(key): str(value) for key, value, *_ in entries if value is not None}
    return found
