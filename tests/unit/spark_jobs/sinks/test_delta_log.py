"""The last batch of a writer, found in the commits of a log that grows and is replaced."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from lakewarden.spark_jobs import GateError
from lakewarden.spark_jobs.gate.outcome import find_batch
from lakewarden.spark_jobs.sinks.delta.log import MOST_READ, RESTORE, CommitFile, LastBatches, TableLog

REPLACE = "CREATE OR REPLACE TABLE"


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
        assert kinds == ["txn", "commitInfo"]
        self.read.append(version)
        batch = self.batches[version]
        if batch is None:
            return []
        who, number = batch
        if who == RESTORE:
            return [("commitInfo", {"operation": who, "operationParameters": {"version": str(number)}})]
        if who == REPLACE:
            return [("commitInfo", {"operation": who, "operationParameters": {}})]
        return [("txn", {"appId": who, "version": number})]

    def __getattr__(self, name: str) -> Any:
        """What `TableLog` makes of these."""
        return getattr(TableLog, name).__get__(self)

    data_path = "/t"

    def newest(self) -> int:
        self.snapshots += 1
        return len(self.batches) - 1

    def summed_up(self, writer: str) -> int | None:
        known: dict[str, int] = {}
        for batch in self.batches:
            known.update([batch] if batch else [])
        return known.get(writer)


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


def test_a_commit_of_this_process_is_not_read() -> None:
    log, found = Log(("w", 0)), LastBatches()
    assert last_batch(found, log) == 0
    log.read.clear()
    log.batches += [("w", 1), ("v", 6), ("w", 2)]
    found.note("w", 1, "1")
    found.note("w", 2, None)

    assert last_batch(found, log) == 2
    assert log.read == [2, 3]


STATUS = (
    "{path={name}; isDirectory=false; length=5; replication=1; blocksize=10; modification_time=77; access_time=0; owner=; "
    "isErasureCoded=false}"
)
FOLDER = "RawLocalFileStatus{path=file:/t/_delta_log/_sidecars; isDirectory=true; modification_time=6; access_time=6; owner=}"


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("folder", ["s3a://b/t", "file:/a; b=c/7.json", "file:/{path=x}/t"])
def test_the_commits_are_listed_by_one_call_or_by_one_for_each_file(folder: str, *, known: bool) -> None:
    """A file system may have a status of its own, with another text. Then nothing of the text is used."""
    names = [
        f"{folder}/_delta_log/{name}" for name in ("00003.json", "00004.crc", "00004.json", "00005.x.json")
    ]
    texts = [f"LocatedFileStatus{STATUS.replace('{name}', name)} eTag=none" for name in names]
    lines = [*texts, FOLDER if known else "MyStatus[file:/t/_delta_log/00009.json, 5, 77]"]
    calls: list[str] = []

    def status(path: str) -> Any:
        return SimpleNamespace(
            getPath=lambda: SimpleNamespace(getName=lambda: path.rpartition("/")[2]),
            getLen=lambda: 5,
            getModificationTime=lambda: 77,
        )

    def list_from(_path: object, _conf: object) -> Any:
        calls.append("list")
        remaining = [status(name) for name in names]
        iterator = SimpleNamespace(hasNext=lambda: bool(remaining), next=lambda: remaining.pop(0))
        return SimpleNamespace(
            mkString=lambda by: by.join(lines), toList=lambda: SimpleNamespace(iterator=lambda: iterator)
        )

    store = SimpleNamespace(listFrom=list_from)
    log = SimpleNamespace(_folder="f", _store=store, _conf=None, _new_path=lambda *_: None)

    found = TableLog.commits(log, 3)  # type: ignore[arg-type]

    assert found == [CommitFile(3, 77, 5), CommitFile(4, 77, 5)]
    assert len(calls) == (1 if known else 2)


def test_a_long_log_is_summed_up_by_delta_once() -> None:
    log, found = Log(*[("v", number) for number in range(30)], ("w", 3), ("v", 30), first=25), LastBatches()

    assert last_batch(found, log) == 3
    assert min(log.read) > 10, "the last ones, for a RESTORE"
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


@pytest.mark.parametrize(
    ("batches", "found"),
    [
        ([("w", 0), ("w", 1), ("w", 2), (RESTORE, 1)], {0: "1", 1: None, 2: None}),
        ([("w", 0), ("w", 1), (RESTORE, 1), ("w", 1), ("w", 2)], {0: "1", 1: "4", 2: "5", 3: None}),
        ([("w", 0), ("w", 1), (RESTORE, 1), (RESTORE, 2), ("v", 7)], {0: "1", 1: "2", 2: None}),
        ([("w", 0), ("w", 1), (RESTORE, 1), ("w", 1), (RESTORE, 0), ("w", 0)], {0: "6", 1: None}),
        ([("w", 0), ("w", 1), (RESTORE, 1), ("w", 2)], {0: "1", 1: GateError, 2: "4", 3: None}),
        ([("w", 0), ("w", 1), (REPLACE, 0), ("v", 9)], {0: None, 1: None}),
        ([("w", 0), (REPLACE, 0), ("w", 1)], {0: GateError, 1: "3", 2: None}),
    ],
    ids=[
        "restored",
        "written-again",
        "restored-forward",
        "twice",
        "without-it",
        "replaced",
        "replaced-and-on",
    ],
)
@pytest.mark.parametrize("others", [0, 20], ids=["short", "long"])
def test_a_batch_is_in_the_table_if_its_commit_is_in_the_history_of_the_present_version(
    batches: list[tuple[str, int]], found: dict[int, Any], others: int
) -> None:
    """Commit 0 creates the table. Of a look at each commit, the last one says what a look at all of them does."""
    before: list[tuple[str, int] | None] = [*([("v", 1)] * others), None]
    shifted = [(who, number + others if who == RESTORE else number) for who, number in batches]
    whole, log = Log(*before, *shifted), Log(*before)
    looks, grown = LastBatches(), LastBatches()
    for commit in shifted:
        last_batch(grown, log)
        log.batches.append(commit)

    for batch_id, expected in found.items():
        for each, each_log in ((looks, whole), (grown, log)):
            last = last_batch(each, each_log)
            if expected is None and (last is None or last < batch_id):
                continue
            search = partial(find_batch, each_log.history("w"), batch_id, "table=t")
            if expected is GateError:
                with pytest.raises(GateError, match=f"not batch {batch_id}: a rollback removed that one"):
                    search()
                continue
            version = search()
            assert (version and str(int(version) - others)) == expected


def test_batches_of_commits_that_the_log_no_longer_has_are_known_by_the_last_one_or_not_at_all() -> None:
    """Of the commits before a RESTORE it is unknown which ones it has left."""
    old = [("w", number) for number in range(25)]

    assert (
        find_batch(Log(*old, ("v", 1), first=25).history("w"), 24, "")
        == "unknown, with batch 24 of the writer"
    )
    assert find_batch(Log(*old, ("w", 25), first=25).history("w"), 3, "") == "25"
    restored = Log(*old, ("v", 1), (RESTORE, 25), first=25)
    with pytest.raises(
        GateError,
        match="unknown whether this one is among them; run `lakewarden ledger correct` with this batch to skip",
    ):
        find_batch(restored.history("w"), 24, "")
    assert last_batch(LastBatches(), restored) == 24


FOREIGN, OURS, OWN = (None, "t-ours", "t-own")


@pytest.mark.parametrize(
    ("labels", "error", "winner"),
    [
        ([OURS], "A conflicting metadata domain is added.", ("version 1: WRITE, job w1", OURS)),
        ([FOREIGN], "", ("version 1: WRITE, job w1", FOREIGN)),
        ([OWN], "", ("version 1: WRITE, job w1", FOREIGN)),
        ([OURS, FOREIGN], "committed at version 1. The", ("version 1: WRITE, job w1", OURS)),
        ([OURS, FOREIGN], 'Conflicting commit: {"txnId":"id-2"}', ("version 2: WRITE, job w2", FOREIGN)),
        ([OURS, FOREIGN], "another one", None),
        ([OURS, OURS], "", ("one of 2 commits, the newest is version 2: WRITE, job w2", OURS)),
        ([FOREIGN, *[OURS] * MOST_READ], "", None),
        ([FOREIGN, *[OURS] * MOST_READ], "committed at version 1. The", None),
        ([FOREIGN, *[OURS] * MOST_READ], "committed at version 2. The", ("version 2: WRITE, job w2", OURS)),
        ([], "", None),
    ],
)
def test_a_conflict_is_blamed_on_the_commit_that_it_names_or_on_none(
    labels: list[str | None], error: str, winner: tuple[str, str | None] | None
) -> None:
    """Its label says whether it went through the gate. Own: another statement of the same session has this one's label."""
    log = Log(None, *((f"w{number + 1}", 0) for number in range(len(labels))))
    actions = log.actions

    def labelled(version: int, kinds: list[str]) -> list[tuple[str, dict[str, Any]]]:
        info: dict[str, Any] = {"operation": "WRITE", "txnId": f"id-{version}"}
        if (label := labels[version - 1]) is not None:
            info["userMetadata"] = f'{{"lakewarden.transaction": "{label}"}}'
        return [*actions(version, kinds), ("commitInfo", info)]

    log.actions = labelled  # type: ignore[method-assign]
    found = log.winner(0, "t-own", error)

    assert (None if found is None else (found.commit, found.transaction)) == winner
