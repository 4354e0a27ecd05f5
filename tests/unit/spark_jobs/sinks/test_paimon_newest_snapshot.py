"""The newest snapshot of a table: by its hint, or as pypaimon searches it. On the disk, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pypaimon.snapshot.snapshot_manager import SnapshotManager

from lakewarden.handlers.maker import winner_of
from lakewarden.spark_jobs.sinks.paimon.base import changed_by, latest_snapshot_id, read_base
from lakewarden.spark_jobs.sinks.paimon.snapshot_store import LinkedSnapshots
from lakewarden.spark_jobs.sinks.paimon.table import TableAddress
from tests.unit.spark_jobs.sinks.test_paimon_primary_key import Make, commit, flight, make, stage

__all__ = ["make"]


@pytest.fixture
def table(make: Make) -> TableAddress:
    """Three snapshots."""
    where = make()
    for number in range(3):
        commit(where, stage(where, [flight(number, "a")]), identifier=number)
    return where


def folder(where: TableAddress) -> Path:
    return Path(where.uri.removeprefix("file://")) / "snapshot"


def test_a_right_hint_needs_no_search(table: TableAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint and its snapshot are read, and a look shows that there is no next one."""
    reads: list[str] = []
    read = LinkedSnapshots.read

    def counted(store: LinkedSnapshots, name: str) -> Any:
        reads.append(name)
        return read(store, name)

    monkeypatch.setattr(LinkedSnapshots, "read", counted)
    monkeypatch.delattr(SnapshotManager, "_max_snapshot_id_from_listing")

    assert latest_snapshot_id(table.open()) == 3
    assert reads == ["LATEST", "snapshot-3"]


@pytest.mark.parametrize("hint", ["1", "2", "7", "x", "", None])
def test_any_other_hint_is_not_trusted(table: TableAddress, hint: str | None) -> None:
    """It may be stale, of a removed snapshot, damaged, or missing."""
    file = folder(table) / "LATEST"
    file.unlink()
    if hint is not None:
        file.write_text(hint)

    assert latest_snapshot_id(table.open()) == 3


def test_a_hint_that_can_not_be_read_is_left_to_pypaimon(
    table: TableAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_store: LinkedSnapshots, _name: str) -> Any:
        raise OSError("connection reset")

    monkeypatch.setattr(LinkedSnapshots, "read", failing)

    assert latest_snapshot_id(table.open()) == 3


def test_a_table_without_snapshots(make: Make) -> None:
    where = make()

    assert latest_snapshot_id(where.open()) == 0
    folder(where).mkdir(exist_ok=True)
    (folder(where) / "LATEST").write_text("4")
    with pytest.raises(RuntimeError, match="none could be resolved"):
        latest_snapshot_id(where.open())


@pytest.mark.parametrize("is_expired", [False, True])
def test_a_change_that_may_be_of_an_expired_snapshot_is_nobodys(
    table: TableAddress, *, is_expired: bool
) -> None:
    """The snapshot that is left may be labelled or not: it says nothing of the one that is gone."""
    opened = table.open()
    base, now = (read_base(opened, [(1,)], (number, "")) for number in (1, 3))
    if is_expired:
        (folder(table) / "snapshot-2").unlink()

    changes = changed_by(opened, [(1,)], base, now)

    assert [each.commit.endswith("or an earlier one") for each in changes] == [is_expired]
    assert (winner_of(list(changes)) is None) == is_expired
