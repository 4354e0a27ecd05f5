"""Transactions of a real agent on the Kafka of the compose file: the tests of tests/real, with Kafka in a container."""
# ruff: noqa: F401 - pytest collects the tests that are imported here

from __future__ import annotations

import pytest

from tests.real.serving.test_agent_transactions import (
    scene,
    test_a_batch_that_was_committed_is_never_granted_again,
    test_of_two_writers_of_one_file_group_the_later_is_stopped_before_it_asks,
    test_the_ledger_outlives_the_agent,
)

pytestmark = [pytest.mark.containers, pytest.mark.timeout(180)]
