"""Kafka and S3 in containers, started with testcontainers from the images of docker-compose.yml."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import yaml
from testcontainers.core.config import ConnectionMode, testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import HttpWaitStrategy, LogMessageWaitStrategy

from lakewarden.agent.embedded.kafka import free_port
from tests.containers import ROOT
from tests.kafka_fixture import KafkaServer
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server

_S3_PORT: Final = 7070

# Ports are published on this machine. Where it is itself a container, testcontainers would choose another address.
testcontainers_config.tc_host_override = "127.0.0.1"
testcontainers_config.connection_mode_override = ConnectionMode.docker_host


def compose_image(service: str) -> str:
    """The image of a service of docker-compose.yml."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return str(services[service]["image"])


@contextmanager
def kafka_container() -> Iterator[KafkaServer]:
    """Kafka's image, running.

    A broker advertises the address at which clients connect, so the container listens on the port that the host publishes.
    """
    image, port = compose_image("kafka"), free_port()
    settings = {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:29093",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_LISTENERS": f"PLAINTEXT://:{port},CONTROLLER://localhost:29093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
    }
    container = (
        DockerContainer(image)
        .with_bind_ports(port, port)
        .with_envs(**settings)
        .waiting_for(LogMessageWaitStrategy("Kafka Server started"))
    )
    with container:
        yield KafkaServer(f"127.0.0.1:{port}", f"{image} in Docker at 127.0.0.1:{port}")


@contextmanager
def s3_container() -> Iterator[S3Server]:
    """The image of the S3 server, running; its objects are in the container and are deleted with it."""
    image = compose_image("s3")
    container = (
        DockerContainer(image)
        .with_exposed_ports(_S3_PORT)
        .with_envs(ROOT_ACCESS_KEY=ACCESS_KEY, ROOT_SECRET_KEY=SECRET_KEY)
        .with_command(["--port", f":{_S3_PORT}", "--region", REGION, "--health", "/health", "posix", "/tmp"])
        .waiting_for(HttpWaitStrategy(_S3_PORT, "/health"))
    )
    with container:
        endpoint = f"http://{container.get_container_host_ip()}:{container.get_exposed_port(_S3_PORT)}"
        yield S3Server(endpoint, ACCESS_KEY, SECRET_KEY, f"{image} in Docker at {endpoint}")
