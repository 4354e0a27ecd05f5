"""A backup of the ledger is read whole, or refused: a part of it would let writers repeat committed batches."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from lakewarden.agent.errors import AgentError
from lakewarden.agent.operators import requests as restoring
from lakewarden.agent.operators.ledger import LedgerLine
from lakewarden.agent.operators.requests import BackupLine, Requester, read_backup, restore
from lakewarden.agent.settings import KafkaSettings

LARGE = 2**60 + 1
LINES = [
    {"table": "s3://lake/a", "writer": r"job\1:q", "batch_id": LARGE, "transaction": "t", "losses": 0},
    {"table": "s3://lake/a", "writer": "loser", "batch_id": None, "transaction": None, "losses": 2},
    {"table": "s3://lake/b", "writer": "w", "batch_id": 0, "edition": "2d", "transaction": "t", "losses": 0},
]


def backup(folder: Path, text: str) -> Path:
    path = folder / "ledger.json"
    path.write_text(text)
    return path


def test_a_backup_has_the_writers_with_a_batch_as_they_were_printed(tmp_path: Path) -> None:
    path = backup(tmp_path, json.dumps(LINES))

    assert read_backup(path, None) == [
        BackupLine(table="s3://lake/a", writer=r"job\1:q", batch_id=LARGE),
        BackupLine(table="s3://lake/b", writer="w", batch_id=0, edition="2d"),
    ]
    assert [each.writer for each in read_backup(path, "s3://lake/b")] == ["w"]


@pytest.mark.parametrize(
    "text, complaint",
    [
        (json.dumps(LINES)[:-20], "is not a backup of the ledger"),
        ("", "is not a backup of the ledger"),
        ('[{"table": "s3://lake/a"}]', "0.writer: Field required"),
        (json.dumps(LINES[1:2]), "has no committed batch"),
    ],
)
def test_a_backup_that_is_cut_off_or_empty_restores_nothing(
    text: str, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(AgentError) as caught:
        read_backup(backup(tmp_path, text), None)

    assert complaint in str(caught.value)
    assert str(caught.value).endswith("nothing was restored")


def test_a_backup_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"absent\.json can't be read: No such file or directory"):
        read_backup(tmp_path / "absent.json", None)


async def restored_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, had: int | None, *, lower: bool = False, fails: str = ""
) -> list[str]:
    """The writers that are restored from `LINES`, where the ledger has this batch of `w`."""
    read: list[str] = []

    async def ledger(_settings: KafkaSettings) -> list[LedgerLine]:
        read.append("the whole ledger")
        return [] if had is None else [LedgerLine("s3://lake/b", "w", had, "t", None, None, None, 0)]

    async def correct_all(
        _settings: KafkaSettings, stated: list[tuple[str, str, int | None, str | None]], _requester: Requester
    ) -> AsyncGenerator[LedgerLine]:
        for table, writer, batch_id, edition in stated:
            assert edition == ("2d" if writer == "w" else None)
            if writer == fails:
                raise AgentError("no agent recorded it")
            yield LedgerLine(table, writer, batch_id, "t", None, None, 0, 0)

    monkeypatch.setattr(restoring, "ledger", ledger)
    monkeypatch.setattr(restoring, "correct_all", correct_all)
    lines = read_backup(backup(tmp_path, json.dumps(LINES)), None)
    settings = KafkaSettings.model_validate({"bootstrap_servers": "localhost:1"})
    found = [
        after.writer async for _, after in restore(settings, lines, Requester("me", "test", 1.0), lower=lower)
    ]
    assert read == ["the whole ledger"], "once, however many writers are restored"
    return found


async def test_the_first_writer_that_fails_ends_it_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AgentError, match="1 of 2 writers are restored, then: no agent recorded it"):
        await restored_with(tmp_path, monkeypatch, None, fails="w")


@pytest.mark.parametrize(("had", "lower"), [(None, False), (0, False), (5, True)])
async def test_an_entry_is_never_lowered_unless_the_operator_says_so(
    had: int | None, *, lower: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup is older than an entry that has survived: its writer would commit those batches again."""
    assert await restored_with(tmp_path, monkeypatch, had, lower=lower) == [r"job\1:q", "w"]
    with pytest.raises(
        AgentError, match=r"writer w, table s3://lake/b: batch 5 instead of 0; .* nothing was restored"
    ):
        await restored_with(tmp_path, monkeypatch, 5)
