"""What is known of Iceberg's swap, with the JVM replaced by a few lines."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lakewarden.spark_jobs.sinks.iceberg.staging import CheckedOperations


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
    found = CheckedOperations(jvm, seen=lambda _: None, signed=lambda metadata: metadata)
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
        "lakewarden.spark_jobs.sinks.iceberg.staging.is_instance", lambda *_: jvm.call(found=True)
    )
    monkeypatch.setattr("lakewarden.spark_jobs.sinks.iceberg.staging.java_exception", lambda _: jvm)

    with pytest.raises(ConnectionResetError):
        checked.commit(None, SimpleNamespace(currentSnapshot=jvm.snapshot))

    assert (checked.published, checked.unanswered) == (None, True)
    assert checked.failure is not None
