"""The S3 server of the compose file honours the contract of stores: every test of it in tests/contract, on a container."""

from __future__ import annotations

import pytest

from tests.containers.reuse import reused_tests
from tests.contract import test_stores
from tests.servers.s3 import S3Server

pytestmark = [pytest.mark.containers, pytest.mark.anyio]

anyio_backend = test_stores.anyio_backend
place = test_stores.place
globals().update(reused_tests("place", test_stores))


@pytest.fixture
def which(s3_server: S3Server) -> str:
    """S3 alone, of all the stores that the contract is for."""
    return "s3 on asyncio"
