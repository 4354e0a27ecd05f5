"""The Java classes in the wheel are those of the sources beside them."""

from __future__ import annotations

import pytest

from lakewarden.spark_jobs.sinks.hudi.provider import CLASSES
from tests.servers.java_classes import compiled

pytestmark = [pytest.mark.real]


def test_the_classes_in_the_wheel_are_current() -> None:
    """To renew them: `python -m tests.servers.java_classes`."""
    committed = {path.name: path.read_bytes() for path in CLASSES.iterdir()}

    assert committed == compiled()


def test_the_classes_are_java_8_byte_code() -> None:
    versions = {path.name: int.from_bytes(path.read_bytes()[6:8]) for path in CLASSES.iterdir()}

    assert set(versions.values()) == {52}
