"""The `kafka` fixture: one real broker for each test session, started before the first test that needs it.

It is the broker that `LAKEWARDEN_TEST_KAFKA` names (host:port), else the embedded broker of the product.
"""

from __future__ import annotations

import gc
import os
import re
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from lakewarden.agent.embedded.kafka import KAFKA_VERSION, EmbeddedKafka

VARIABLE = "LAKEWARDEN_TEST_KAFKA"
COMPACTION_SOON = {"log.cleaner.backoff.ms": "1000"}
"""Kafka looks every second instead of every 15 for a topic to compact."""


@dataclass(frozen=True, slots=True)
class KafkaServer:
    """A broker that tests share; `topic_prefix` keeps their topics apart."""

    bootstrap_servers: str
    used: str
    """Which broker this is, for the line that the suite prints at its start."""


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A running broker."""
    if named := os.environ.get(VARIABLE):
        yield KafkaServer(named, f"the broker named in {VARIABLE}: {named}")
        return
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), properties=COMPACTION_SOON) as broker:
        yield KafkaServer(
            broker.bootstrap_servers, f"the embedded {KAFKA_VERSION} at {broker.bootstrap_servers}"
        )


@pytest.fixture
def topic_prefix(request: pytest.FixtureRequest) -> str:
    """A prefix for the topics of this test alone; it contains the test's name, which then appears in the broker's log."""
    name = re.sub(r"[^A-Za-z0-9_]+", "-", request.node.name)[:60]
    return f"{name}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def swept() -> Iterator[None]:
    """Collect what aiokafka leaves of a connection that it was opening when its client was stopped.

    For tests that stop Kafka while clients use it, or stop clients that connect again and again. Python warns of the open
    socket when it collects it; without this fixture that warning fails a later test.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


TAKES_KAFKA_AWAY = [pytest.mark.usefixtures("swept"), pytest.mark.filterwarnings("ignore::ResourceWarning")]
"""Marks of a module whose tests stop Kafka while clients use it."""
