"""What is known of Iceberg's swap, with the JVM replaced by a few lines."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lakewarden.spark_jobs.gate.errors import LostToGate
from lakewarden.spark_jobs.sinks.iceberg.driver import CheckedOperations, DriverStagedTable
from lakewarden.spark_jobs.sinks.iceberg.metadata import LastCommit


class Jvm:
    """Answers every call until it has ended."""

    ended = False

    def commit(self, _base: Any, _metadata: Any) -> None:
        """The swap, and the end of the JVM behind it."""
        self.ended = True

    def snapshot(self) -> Any:
        if self.ended:
            raise ConnectionResetError("the JVM has ended")
        return SimpleNamespace(snapshotId=lambda: self.call(7))

    def call(self, found: Any) -> Any:
        if self.ended:
            raise ConnectionResetError("the JVM has ended")
        return found


def operations(jvm: Any) -> CheckedOperations:
    found = CheckedOperations(jvm, seen=lambda _: None, signed=lambda _, metadata: metadata)
    found.check = lambda _: None
    return found


def test_a_swap_that_has_returned_is_published_though_the_jvm_ends_then() -> None:
    jvm = Jvm()
    checked = operations(jvm)

    checked.commit(None, SimpleNamespace(currentSnapshot=jvm.snapshot))

    assert (checked.published, checked.unanswered) == ("7", False)


def _ends(jvm: Jvm) -> Callable[[Any, Any], None]:
    def swap(_base: Any, _metadata: Any) -> None:
        jvm.ended = True
        raise ConnectionResetError("the JVM has ended")

    return swap


def test_a_swap_whose_answer_is_lost_with_the_jvm_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The class of the error can't be asked for, either."""
    jvm = Jvm()
    checked = operations(jvm)
    monkeypatch.setattr(jvm, "commit", _ends(jvm))
    monkeypatch.setattr(
        "lakewarden.spark_jobs.sinks.iceberg.driver.is_instance", lambda *_: jvm.call(found=True)
    )
    monkeypatch.setattr("lakewarden.spark_jobs.sinks.iceberg.driver.java_exception", lambda _: jvm)

    with pytest.raises(ConnectionResetError):
        checked.commit(None, SimpleNamespace(currentSnapshot=jvm.snapshot))

    assert (checked.published, checked.unanswered) == (None, True)
    assert checked.failure is not None


def _last(transaction: str) -> LastCommit:
    return LastCommit(writer="w", batch=5, transaction=transaction, snapshot=3, sequence=1, at_ms=1)


@pytest.mark.parametrize(
    ("staged_on", "now", "is_refused"),
    [
        (None, None, False),
        (_last("earlier"), _last("earlier"), False),
        (_last("earlier"), None, False),
        (None, _last("of-the-dead"), True),
        (_last("earlier"), _last("of-the-dead"), True),
    ],
)
def test_a_publish_is_refused_by_a_later_commit_of_its_writer_and_not_by_the_removal_of_an_old_property(
    monkeypatch: pytest.MonkeyPatch, staged_on: LastCommit | None, now: LastCommit | None, *, is_refused: bool
) -> None:
    """Another writer's commit removes the properties of those that were silent for longest, also while this one stages."""
    jvm = Jvm()
    staged = object.__new__(DriverStagedTable)
    checked = staged._operations = staged._tries = operations(jvm)
    metadata = SimpleNamespace(currentSnapshot=jvm.snapshot)
    staged._transaction = SimpleNamespace(commitTransaction=lambda: checked.commit(None, metadata))
    staged._name, staged._writer, staged._last = "t", "w", staged_on
    monkeypatch.setattr(DriverStagedTable, "_metadata_of", lambda *_: None)
    monkeypatch.setattr(DriverStagedTable, "_replaced", lambda *_: None)
    monkeypatch.setattr(DriverStagedTable, "_last_commit", lambda *_: now)
    grant = SimpleNamespace(check=lambda: None, not_published=lambda: None)

    if is_refused:
        with pytest.raises(
            LostToGate, match="another commit of this writer came after its batch was looked up"
        ):
            staged.publish(grant)  # type: ignore[arg-type]
    else:
        assert staged.publish(grant) == "7"  # type: ignore[arg-type]
