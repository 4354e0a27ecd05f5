"""A pool of processes that run seeds, one per core."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor

import pytest

from tests.simulation.batch import processes


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with processes() as pool:
        yield pool
