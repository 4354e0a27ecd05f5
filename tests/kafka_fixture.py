"""The `kafka` fixture: one real broker a session, started before the first test that wants it.

In this order: the one that `LAKEWARDEN_TEST_KAFKA` names (host:port), a container if Docker answers quickly and has the
image already, else the embedded broker that the product ships.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakewarden.agent.embedded import kafka as embedded_kafka
from lakewarden.agent.embedded.kafka import KAFKA_VERSION, EmbeddedKafka

VARIABLE = "LAKEWARDEN_TEST_KAFKA"
IMAGE = f"apache/kafka:{KAFKA_VERSION}"
DOCKER_SECONDS = 3
CONTAINER_SECONDS = 60


@dataclass(frozen=True, slots=True)
class KafkaServer:
    """A broker that tests share; topics are kept apart by `topic_prefix`."""

    bootstrap_servers: str
    used: str
    """Which broker this is, as the suite says at its start."""


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A running broker."""
    if named := os.environ.get(VARIABLE):
        yield KafkaServer(named, f"the broker named in {VARIABLE}: {named}")
    elif _docker_has_image():
        with _container() as server:
            yield server
    else:
        with _embedded(tmp_path_factory.mktemp("kafka")) as server:
            yield server


@pytest.fixture
def topic_prefix(request: pytest.FixtureRequest) -> str:
    """A prefix for this test's topics alone, with its name in it for whoever reads the broker's log."""
    name = re.sub(r"[^A-Za-z0-9_]+", "-", request.node.name)[:60]
    return f"{name}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def swept() -> Iterator[None]:
    """Collect here what aiokafka leaves of a connection that it was making when its client was stopped.

    For tests that take Kafka away from its clients: otherwise whichever test runs when it is collected is blamed.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


TAKES_KAFKA_AWAY = [pytest.mark.usefixtures("swept"), pytest.mark.filterwarnings("ignore::ResourceWarning")]
"""Marks of a module of such tests."""


@contextmanager
def _embedded(data_dir: Path) -> Iterator[KafkaServer]:
    with EmbeddedKafka(data_dir) as broker:
        yield KafkaServer(
            broker.bootstrap_servers, f"the embedded {KAFKA_VERSION} at {broker.bootstrap_servers}"
        )


@contextmanager
def _container() -> Iterator[KafkaServer]:
    """The image, with the port it advertises bound to the same port here."""
    from testcontainers.core.config import testcontainers_config
    from testcontainers.core.container import DockerContainer

    testcontainers_config.ryuk_disabled = (
        True  # its image would have to be pulled; we stop our container ourselves
    )
    port = embedded_kafka._free_port()
    settings = {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:19093",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_LISTENERS": f"PLAINTEXT://:{port},CONTROLLER://:19093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
    }
    with DockerContainer(IMAGE).with_bind_ports(port, port).with_envs(**settings):
        deadline = time.monotonic() + CONTAINER_SECONDS
        while not embedded_kafka._answers(port):
            if time.monotonic() > deadline:
                pytest.fail(f"{IMAGE} in Docker did not answer within {CONTAINER_SECONDS} s", pytrace=False)
            time.sleep(0.1)
        yield KafkaServer(f"127.0.0.1:{port}", f"{IMAGE} in Docker at 127.0.0.1:{port}")


def _docker_has_image() -> bool:
    """Nothing is pulled for a test: an image that isn't here is as good as no Docker."""
    try:
        answer = subprocess.run(
            ["docker", "image", "inspect", IMAGE], capture_output=True, timeout=DOCKER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0
