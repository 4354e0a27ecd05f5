"""Servers in containers instead of those of the other tests, and the compose file's services."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.containers.compose_project import ComposeProject, running_project
from tests.containers.engine import engine_version
from tests.containers.servers import kafka_container, s3_container
from tests.kafka_fixture import KafkaServer
from tests.servers.s3 import S3Server


def pytest_collection_modifyitems(config: pytest.Config) -> None:
    """Refuse to run without Docker, in one line."""
    version, problem = engine_version()
    if version is None and not config.option.collectonly:
        raise pytest.UsageError(f"Docker does not answer ({problem}); `make test-containers` starts it")


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
