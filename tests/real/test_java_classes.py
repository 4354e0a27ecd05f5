"""The Java classes in the wheel are those of the sources beside them."""

import pytest

from tests.servers.java_classes import OF_SINKS, JavaClasses

pytestmark = [pytest.mark.real]

each_sink = pytest.mark.parametrize("java", OF_SINKS.values(), ids=OF_SINKS)


@each_sink
def test_the_classes_in_the_wheel_are_current(java: JavaClasses) -> None:
    """To renew them: `python -m tests.servers.java_classes`."""
    committed = {path.name: path.read_bytes() for path in java.classes.iterdir()}

    assert committed == java.compiled()


@each_sink
def test_the_classes_are_byte_code_of_the_oldest_java_that_runs_them(java: JavaClasses) -> None:
    versions = {path.name: int.from_bytes(path.read_bytes()[6:8]) for path in java.classes.iterdir()}

    assert set(versions.values()) == {44 + int(java.java)}
