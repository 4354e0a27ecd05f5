"""Fixtures: tables with locks on the local disk and on S3, and a world with faults on every side."""

import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiokafka.admin import AIOKafkaAdminClient

from lakewarden.agent.settings import Settings
from tests.kafka_fixture import KafkaServer, administering
from tests.own_task import in_own_task
from tests.real.chaos import Chaos, chaos
from tests.real.lock_places import QUICK, Place
from tests.real.writers import World, world
from tests.servers.azure import AzureServer
from tests.servers.gcs import GcsServer
from tests.servers.s3 import S3Server

SEED_VARIABLE = "LAKEWARDEN_TEST_CHAOS_SEED"


@pytest.fixture
def local(tmp_path: Path) -> Place:
    root = tmp_path.resolve()
    settings = Settings(tables=(f"file://{root}/t",), lock_root=f"file://{root}/locks")
    lock = getattr(settings.placement().location(f"file://{root}/t", hudi=False), "uri", "")
    return Place(f"file://{root}/t", lock, {**QUICK, "lock_root": f"file://{root}/locks"})


@pytest.fixture
def on_s3(s3_credentials: S3Server) -> Place:
    table = f"s3://{s3_credentials.bucket()}/warehouse/orders"
    lock = getattr(Settings(tables=(table,)).placement().location(table, hudi=False), "uri", "")
    return Place(table, lock, {**QUICK, "s3_endpoint": s3_credentials.endpoint}, s3_credentials)


@pytest.fixture
def on_google(gcs_credentials: GcsServer) -> Place:
    table = f"gs://{gcs_credentials.bucket()}/warehouse/orders"
    return Place(table, "", {**QUICK, "gcs_endpoint": gcs_credentials.endpoint})


@pytest.fixture
def on_azure(azure_credentials: AzureServer) -> Place:
    table = f"az://{azure_credentials.container()}/warehouse/orders"
    return Place(table, "", {**QUICK, "azure_endpoint": azure_credentials.endpoint})


@pytest.fixture(params=["local", "on_s3"])
def place(request: pytest.FixtureRequest) -> Place:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Place)
    return found


@pytest.fixture
def chaos_seed() -> int:
    """A new seed for each run. The output of a failed run has it."""
    chosen = int(os.environ.get(SEED_VARIABLE, "") or random.SystemRandom().randrange(1_000_000))
    print(f"{SEED_VARIABLE}={chosen}")
    return chosen


@pytest_asyncio.fixture
async def scene(
    request: pytest.FixtureRequest, kafka: KafkaServer, topic_prefix: str, tmp_path: Path
) -> AsyncIterator[World]:
    """A world whose topics exist. `pytest.mark.world(…)` has its agents' settings."""
    mark = request.node.get_closest_marker("world")
    async with world(
        kafka.bootstrap_servers, topic_prefix, tmp_path, **(mark.kwargs if mark else {})
    ) as made:
        yield made


@pytest_asyncio.fixture
async def admin(kafka: KafkaServer) -> AsyncIterator[AIOKafkaAdminClient]:
    async with administering(kafka.bootstrap_servers) as client:
        yield client


@pytest_asyncio.fixture
async def lock_storm(
    kafka: KafkaServer, topic_prefix: str, tmp_path: Path, s3_credentials: S3Server, chaos_seed: int
) -> AsyncIterator[Chaos]:
    storm = chaos(kafka.bootstrap_servers, topic_prefix, tmp_path, s3_credentials, chaos_seed)
    async with in_own_task(storm) as made:
        yield made
