"""The topics have the settings that the promises rest on, or the agent warns."""

from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from structlog.testing import capture_logs

from lakewarden.agent.errors import KafkaRefusedError
from lakewarden.agent.kafka import _require_created, ensure_topics
from lakewarden.agent.settings import Settings
from lakewarden.agent.topic_settings import default_replicas
from tests.kafka_fixture import KafkaServer
from tests.real.writers import QUICK

pytestmark = [pytest.mark.real]


@pytest.fixture
def settings(kafka: KafkaServer, topic_prefix: str, tmp_path: Path) -> Settings:
    return Settings.load(
        **QUICK,
        tables=(f"file://{tmp_path}/*",),
        bootstrap_servers=kafka.bootstrap_servers,
        topic_prefix=topic_prefix,
    )


@pytest.mark.parametrize("replication", [1, -1])
async def test_topics_that_the_agent_creates_have_no_difference(settings: Settings, replication: int) -> None:
    with capture_logs() as lines:
        await ensure_topics(settings, settings.topics, 2, replication, check=True)

    assert lines == []


async def test_an_existing_topic_that_weakens_a_promise_is_a_warning(
    settings: Settings, admin: AIOKafkaAdminClient
) -> None:
    """An operator has created the ledger with the brokers' defaults, and `decisions` with a size limit."""
    ledger, decisions = settings.topics.ledger, settings.topics.decisions
    await admin.create_topics(
        [
            NewTopic(ledger, 2, 1, topic_configs={"cleanup.policy": "compact"}),
            NewTopic(decisions, 2, 1, topic_configs={"retention.bytes": "1000000"}),
        ]
    )

    with capture_logs() as lines:
        await ensure_topics(settings, settings.topics, 2, 1, check=True)

    found = {(each["topic"], each["setting"]): (each["value"], each["wanted"]) for each in lines}
    assert found[ledger, "segment.ms"] == ("604800000", "3600000")
    assert found[decisions, "retention.bytes"] == ("1000000", "-1")
    assert {topic for topic, _ in found} == {ledger, decisions}


async def test_the_brokers_default_number_of_replicas_is_known(admin: AIOKafkaAdminClient) -> None:
    assert await default_replicas(admin) == 1


async def test_topics_that_kafka_refuses_are_named_with_its_reason_and_none_is_created(
    settings: Settings, admin: AIOKafkaAdminClient
) -> None:
    """Brokers that are too few are refused as by a policy, but may be starting: the agent tries again."""
    with pytest.raises(KafkaError) as refused:
        await ensure_topics(settings, settings.topics, 2, 3)

    assert "only 1 broker(s) are registered" in str(refused.value)
    assert f"{settings.topics.ledger}: 2 partitions, cleanup.policy=compact" in str(refused.value)
    assert not {each.name for each in settings.topics.settings()} & set(await admin.list_topics())


def test_what_a_policy_refuses_is_not_tried_again() -> None:
    """It needs an operator. The brokers of the tests have no policy: the answer is as `KafkaApis` gives it."""
    wanted = [NewTopic("p.writers", 12, 3, topic_configs={"retention.ms": "604800000"})]

    with pytest.raises(KafkaRefusedError) as refused:
        _require_created(
            [("p.writers", 44, "retention.ms must be below 3 days"), ("p.audit", 0, None)], wanted
        )

    assert str(refused.value) == (
        "Kafka refuses to create topics: p.writers: retention.ms must be below 3 days (PolicyViolationError); change that, or "
        "create the topics yourself, with what their policy demands and these settings: p.writers: 12 partitions, "
        "retention.ms=604800000"
    )
