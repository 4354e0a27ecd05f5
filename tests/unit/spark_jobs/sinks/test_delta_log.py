"""The last batch of a writer, found in the commits of a log that grows and is replaced."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lakewarden.spark_jobs.sinks.delta.log import CommitFile, LastBatches


class Log:
    """A `TableLog` of commits with at most one batch each; the first ones may have been removed."""

    def __init__(self, *batches: tuple[str, int] | None, first: int = 0, modified: int = 1) -> None:
        self.batches, self.first, self.modified = list(batches), first, modified
        self.read: list[int] = []
        self.snapshots = 0

    def commits(self, since: int) -> list[CommitFile]:
        versions = range(max(since, self.first), len(self.batches))
        return [CommitFile(version, self.modified, 100) for version in versions]

    def actions(self, version: int, kinds: list[str]) -> list[tuple[str, dict[str, Any]]]:
        assert kinds == ["txn"]
        self.read.append(version)
        batch = self.batches[version]
        return [] if batch is None else [("txn", {"appId": batch[0], "version": batch[1]})]

    def snapshot(self) -> Any:
        self.snapshots += 1
        known: dict[str, int] = {}
        for batch in self.batches:
            known.update([batch] if batch else [])

        def get(writer: str) -> Any:
            return SimpleNamespace(isDefined=lambda: writer in known, get=lambda: known[writer])

        return SimpleNamespace(
            version=lambda: len(self.batches) - 1, transactions=lambda: SimpleNamespace(get=get)
        )


def last_batch(found: LastBatches, log: Log, writer: str = "w") -> int | None:
    return found.last_batch(log, writer)  # type: ignore[arg-type]


def test_only_commits_since_the_last_look_are_read() -> None:
    log, found = Log(None, ("w", 0), ("v", 5)), LastBatches()

    assert last_batch(found, log) == 0
    log.read.clear()
    assert last_batch(found, log) == 0
    assert log.read == []
    log.batches += [("w", 1), ("v", 6)]
    assert last_batch(found, log) == 1
    assert log.read == [3, 4]
    assert log.snapshots == 1


def test_a_long_log_is_summed_up_by_delta_once() -> None:
    log, found = Log(*[("v", number) for number in range(30)], ("w", 3), ("v", 30), first=25), LastBatches()

    assert last_batch(found, log) == 3
    assert log.read == []
    log.batches.append(("w", 4))
    assert last_batch(found, log) == 4
    assert log.snapshots == 1


def test_a_table_that_was_dropped_and_created_again_has_no_batch_of_the_old_one() -> None:
    found = LastBatches()
    assert last_batch(found, Log(None, ("w", 0), ("w", 1))) == 1

    assert last_batch(found, Log(None, None, None, None, modified=2)) is None


def test_a_log_that_is_shorter_than_before_is_another_table() -> None:
    found = LastBatches()
    assert last_batch(found, Log(None, ("w", 0), ("w", 1))) == 1

    assert last_batch(found, Log(None, ("w", 0))) == 0
