"""A real agent decides on real transactions over the Kafka of the compose file: the tests of tests/real, on a container."""

from __future__ import annotations

import pytest

from tests.containers.reuse import reused_tests
from tests.real import conftest
from tests.real.serving import test_agent_transactions

pytestmark = [pytest.mark.containers]

scene = conftest.scene
globals().update(reused_tests("scene", test_agent_transactions))
