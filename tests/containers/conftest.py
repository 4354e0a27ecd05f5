"""Servers in containers instead of those of the other tests, and the compose file's services."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.containers.compose_project import ComposeProject, running_project
from tests.containers.servers import kafka_container, s3_container
from tests.kafka_fixture import KafkaServer
from tests.servers.s3 import S3Server


def pytest_collection_modifyitems(config: pytest.Config) -> None:
    """Refuse to run without Docker and its Compose, in one line."""
    if config.option.collectonly:
        return
    for command in (["docker", "version"], ["docker", "compose", "version"]):
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            problem = f"{' '.join(command)} failed ({error}); start Docker with Compose 2, then try again"
            raise pytest.UsageError(problem) from error


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """Kafka in a container; tests that are imported from other folders use it too."""
    with kafka_container() as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """The S3 server in a container; tests that are imported from other folders use it too."""
    with s3_container() as server:
        yield server


@pytest.fixture(scope="module")
def project() -> Iterator[ComposeProject]:
    """The services of docker-compose.yml, running; their containers, volumes and image are removed at the end."""
    with running_project() as running:
        yield running
