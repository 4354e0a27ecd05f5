"""Settings of existing topics that weaken a promise."""

from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError
from structlog.testing import capture_logs

from lakewarden.agent.topic_settings import default_replicas, warn_of_differences
from lakewarden.events import Topics
from lakewarden.handlers.setup import RISKS, differences

TOPICS = Topics()
BY_NAME = {each.name: each for each in TOPICS.settings(replicas=3)}


@pytest.mark.parametrize(
    ("topic", "setting", "value"),
    [
        (TOPICS.decisions, "retention.bytes", "1073741824"),
        (TOPICS.writers, "retention.ms", "86400000"),
        (TOPICS.writers, "cleanup.policy", "compact"),
        (TOPICS.ledger, "cleanup.policy", "compact,delete"),
        (TOPICS.ledger, "min.insync.replicas", "1"),
        (TOPICS.ledger, "segment.ms", "604800000"),
        (TOPICS.ledger, "max.compaction.lag.ms", "9223372036854775807"),
        (TOPICS.writers, "unclean.leader.election.enable", "true"),
        (TOPICS.audit, "max.message.bytes", "100000"),
        (TOPICS.writers, "message.timestamp.type", "CreateTime"),
    ],
)
def test_a_setting_that_weakens_a_promise_is_a_difference(topic: str, setting: str, value: str) -> None:
    [found] = differences(BY_NAME[topic], {**BY_NAME[topic].config, setting: value})

    assert (found.topic, found.setting, found.value) == (topic, setting, value)
    assert found.wanted == BY_NAME[topic].config[setting]


@pytest.mark.parametrize(
    ("topic", "setting", "value"),
    [
        (TOPICS.writers, "retention.ms", "-1"),
        (TOPICS.writers, "retention.ms", "2592000000"),
        (TOPICS.writers, "max.message.bytes", "10000000"),
        (TOPICS.decisions, "min.insync.replicas", "3"),
        (TOPICS.ledger, "segment.ms", "60000"),
    ],
)
def test_a_setting_that_promises_more_is_no_difference(topic: str, setting: str, value: str) -> None:
    assert differences(BY_NAME[topic], {**BY_NAME[topic].config, setting: value}) == []


def test_each_setting_has_a_risk() -> None:
    assert {setting for each in BY_NAME.values() for setting in each.config} == set(RISKS)


class Admin:
    """Kafka's answers."""

    def __init__(self, *resources: tuple[Any, ...], error: Exception | None = None) -> None:
        self.resources = resources
        self.error = error

    async def describe_configs(self, _: object) -> list[Any]:
        if self.error is not None:
            raise self.error
        return [type("Response", (), {"resources": self.resources})]

    async def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [{"node_id": 7}]}


def resource(name: str, code: int = 0, **values: str) -> tuple[Any, ...]:
    return (code, None, 2, name, [(key.replace("_", "."), value) for key, value in values.items()])


async def test_a_warning_names_topic_setting_risk_and_remedy() -> None:
    admin: Any = Admin(resource(TOPICS.decisions, retention_bytes="5", retention_ms="604800000"))

    with capture_logs() as lines:
        await warn_of_differences(admin, TOPICS, 3)

    assert lines == [
        {
            "event": "topic.setting",
            "log_level": "warning",
            "topic": TOPICS.decisions,
            "setting": "retention.bytes",
            "value": "5",
            "wanted": "-1",
            "risk": RISKS["retention.bytes"],
            "detail": f"kafka-configs.sh --alter --topic {TOPICS.decisions} --add-config retention.bytes=-1",
        }
    ]


@pytest.mark.parametrize(
    "admin",
    [
        Admin(error=KafkaConnectionError("no broker")),
        Admin(resource(TOPICS.writers, TopicAuthorizationFailedError.errno)),
    ],
)
async def test_an_agent_that_may_not_describe_the_settings_says_so_and_starts(admin: Any) -> None:
    with capture_logs() as lines:
        await warn_of_differences(admin, TOPICS, 3)

    [line] = lines
    assert (line["event"], line["log_level"]) == ("topic.settings-unknown", "warning")
    assert "right to describe" in line["detail"]


@pytest.mark.parametrize(
    ("admin", "expected"),
    [
        (Admin(resource("7", default_replication_factor="3")), 3),
        (Admin(resource("7")), 1),
        (Admin(error=KafkaConnectionError("no broker")), 1),
    ],
)
async def test_the_brokers_default_decides_about_the_replicas_that_must_acknowledge(
    admin: Any, expected: int
) -> None:
    """With one replica, a topic that requires two accepts no record."""
    assert await default_replicas(admin) == expected
