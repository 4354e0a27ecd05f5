"""The contract of stores on the S3 server of the compose file: the tests of tests/contract, with S3 in a container."""
# ruff: noqa: F401 - pytest collects the tests that are imported here

from __future__ import annotations

import pytest

from tests.contract.test_stores import (
    anyio_backend,
    place,
    test_a_first_write_if_absent_wins_and_is_read_back_with_its_version,
    test_a_number_counted_up_by_many_tasks_loses_no_step,
    test_a_probe_passes_and_leaves_no_object,
    test_a_second_write_if_absent_loses_and_changes_nothing,
    test_a_write_over_a_stale_version_loses_and_changes_nothing,
    test_a_write_over_the_version_that_was_read_wins_and_makes_another_version,
    test_a_write_over_what_is_not_there_loses_and_creates_nothing,
    test_any_body_up_to_the_bound_comes_back_as_it_was,
    test_objects_are_independent,
    test_of_many_who_create_at_once_one_wins,
    test_what_was_never_written_is_absent,
)
from tests.servers.s3 import S3Server

pytestmark = [pytest.mark.containers, pytest.mark.anyio]


@pytest.fixture
def which(s3_server: S3Server) -> str:
    """S3 alone, of all the stores that the contract is for."""
    return "s3 on asyncio"
