"""`lakewarden ledger show` reads the ledger as a stream: the topic may be far longer than what is in force.

A backup of the ledger is read whole, or refused: a part of it would let writers repeat committed batches.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.errors import AgentError
from lakewarden.agent.log import Log
from lakewarden.agent.operators import requests
from lakewarden.agent.operators.ledger import LedgerLine, ledger
from lakewarden.agent.operators.requests import BackupLine, Requester, read_backup, restore
from lakewarden.agent.settings import KafkaSettings
from lakewarden.events import BatchCommitted, ConflictsLost, LedgerRecord, PartitionTaken, encode
from tests.unit.agent.serving.owner_in_memory import consumed
from tests.unit.events.building import made

PARTITIONS = [TopicPartition("lakewarden.ledger", number) for number in range(2)]
BATCHES, WRITERS = 50, 20


class Topic:
    """In place of Kafka: one batch after another, and how many of their records are still referenced."""

    def __init__(self, batches: list[tuple[int, Sequence[LedgerRecord]]]) -> None:
        self._batches = batches
        self.alive = 0
        self.most_alive = 0

    async def partitions(self, topic: str) -> list[TopicPartition]:
        assert topic == PARTITIONS[0].topic
        return PARTITIONS

    async def batches(
        self, *_: object, **__: object
    ) -> AsyncIterator[tuple[TopicPartition, list[ConsumerRecord]]]:
        for number, entries in self._batches:
            yield PARTITIONS[number], [self._record(number, entry) for entry in entries]

    def _record(self, number: int, entry: LedgerRecord) -> ConsumerRecord:
        record = consumed(encode(entry), partition=number)
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        weakref.finalize(record, self._forget)
        return record

    def _forget(self) -> None:
        self.alive -= 1


def _batch(table: str, writer: str, batch_id: int) -> BatchCommitted:
    return made(BatchCommitted, table=table, writer=writer, batch_id=batch_id)


def _lost(table: str, writer: str, losses: int, term: str = "") -> ConflictsLost:
    return made(ConflictsLost, table=table, writer=writer, losses=losses, term=term)


def _use(monkeypatch: pytest.MonkeyPatch, *batches: tuple[int, Sequence[LedgerRecord]]) -> Topic:
    topic = Topic(list(batches))
    for name in ("partitions", "batches"):
        monkeypatch.setattr(Log, name, staticmethod(getattr(topic, name)))
    return topic


async def test_the_records_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million records of a hundred writers are a gigabyte."""
    topic = _use(
        monkeypatch,
        *(
            (0, [_batch("s3://lake/orders", f"w{writer}", batch) for writer in range(WRITERS)])
            for batch in range(BATCHES)
        ),
    )

    lines = await ledger(KafkaSettings())

    assert [(each.writer, each.batch_id) for each in lines] == [
        (writer, BATCHES - 1) for writer in sorted(f"w{number}" for number in range(WRITERS))
    ]
    assert topic.most_alive <= 2 * WRITERS


async def test_a_line_has_the_entries_in_force_of_a_table_and_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that a replaced agent recorded doesn't count, and a writer without a batch and losses has no line."""
    taken = made(PartitionTaken, table="lakewarden://partition/0", agent="a", term="now")
    _use(
        monkeypatch,
        (0, [_batch("s3://lake/b", "w", 8), _lost("s3://lake/b", "w", 2), _lost("s3://lake/b", "v", 1)]),
        (1, [_batch("s3://lake/a", "w", 3)]),
        (0, [taken, _lost("s3://lake/b", "w", 5, term="before"), _lost("s3://lake/b", "v", 0, term="now")]),
        (0, [_batch("s3://lake/b", "w", 7)]),
    )

    found = [(each.table, each.writer, each.batch_id, each.losses) for each in await ledger(KafkaSettings())]

    assert found == [("s3://lake/a", "w", 3, 0), ("s3://lake/b", "w", 8, 2)]
    assert [each.table for each in await ledger(KafkaSettings(), ["s3://lake/a"])] == ["s3://lake/a"]


# -- restore ------------------------------------------------------------------------------------------------------------

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
def test_a_backup_that_is_cut_off_empty_or_absent_restores_nothing(
    text: str, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(AgentError) as caught:
        read_backup(backup(tmp_path, text), None)

    assert complaint in str(caught.value)
    assert str(caught.value).endswith("nothing was restored")
    with pytest.raises(AgentError, match=r"absent\.json can't be read: No such file or directory"):
        read_backup(tmp_path / "absent.json", None)


async def restored_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, had: int | None, *, lower: bool = False, fails: str = ""
) -> list[str]:
    """The writers that are restored from `LINES`, where the ledger has this batch of `w`."""
    read: list[str] = []

    async def known(_settings: KafkaSettings) -> list[LedgerLine]:
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

    monkeypatch.setattr(requests, "ledger", known)
    monkeypatch.setattr(requests, "correct_all", correct_all)
    lines = read_backup(backup(tmp_path, json.dumps(LINES)), None)
    settings = KafkaSettings.model_validate({"bootstrap_servers": "localhost:1"})
    found = [
        each.after.writer
        async for each in restore(settings, lines, Requester("me", "test", 1.0), lower=lower)
    ]
    assert read == ["the whole ledger"], "once, however many writers are restored"
    return found


async def test_the_first_writer_that_fails_ends_a_restore_and_is_counted(
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
