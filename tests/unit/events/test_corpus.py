"""What version 1 has published stays readable, and what this version publishes is readable for released readers."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from pydantic import TypeAdapter

from lakewarden import events
from lakewarden.events import (
    AUDIT_EVENT,
    CONFLICT_EVENT,
    DECISION_RECORD,
    DEFAULT_PARTITIONS,
    LEDGER_EVENT,
    WRITER_EVENT,
    DeadLetter,
    Event,
    Topics,
    Undecodable,
    decode,
    encode,
)
from tests.corpus import FOLDERS, READERS, V1, Recorded, recorded, recorded_in
from tests.unit.events.building import TYPES, any_event

ROOT = Path(__file__).parents[3]
TOPICS = Topics()
ADAPTERS: dict[str, TypeAdapter[Any]] = {
    TOPICS.writers: WRITER_EVENT,
    TOPICS.decisions: DECISION_RECORD,
    TOPICS.conflicts: CONFLICT_EVENT,
    TOPICS.audit: AUDIT_EVENT,
    TOPICS.ledger: LEDGER_EVENT,
    TOPICS.dead_letters: TypeAdapter(DeadLetter),
}
UNKNOWN = {
    "x_text": "later",
    "x_number": 7,
    "x_null": None,
    "x_object": {"type": "other"},
    "x_list": [{"a": 1}],
}

every_record = pytest.mark.parametrize("record", recorded(), ids=lambda each: each.name)


def with_unknown_fields(node: Any) -> Any:
    """The JSON value with unknown fields in every object, at every depth."""
    if isinstance(node, dict):
        return {name: with_unknown_fields(value) for name, value in node.items()} | UNKNOWN
    return [with_unknown_fields(each) for each in node] if isinstance(node, list) else node


def contains(whole: Any, part: Any) -> bool:
    """Whether every field of `part` is in `whole` with the same value. `whole` may have further fields."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            name in whole and contains(whole[name], value) for name, value in part.items()
        )
    if isinstance(part, list):
        return isinstance(whole, list) and len(whole) == len(part) and all(map(contains, whole, part))
    return bool(whole == part)


# -- the corpus itself ---------------------------------------------------------------------------------------------------


def test_every_event_type_is_recorded() -> None:
    """After adding an event: `python -m tests.corpus.record`."""
    assert {each.type for each in recorded()} == TYPES


AGREED = {"lock-refused", "timed-out", "operator"}
"""Reasons that this version reads and doesn't publish yet. Released readers (`readers.json`) skip such an abort."""


def test_every_abort_reason_is_recorded() -> None:
    """Each reason that is published has its example."""
    reasons = {json.loads(each.value)["reason"] for each in recorded() if each.type == "abort"}

    assert reasons | AGREED == set(get_args(events.AbortReason))


every_folder = pytest.mark.parametrize(
    "folder", [path for path in V1.iterdir() if path.is_dir()], ids=lambda folder: folder.name
)


@every_folder
def test_the_list_of_a_version_names_every_file(folder: Path) -> None:
    """A file without an entry would not be checked."""
    assert {path.name for path in folder.iterdir()} == {
        "records.json",
        *(each.file.name for each in recorded_in(folder)),
    }


@every_folder
def test_the_list_of_a_version_is_never_changed(folder: Path) -> None:
    """Neither is a released folder extended: a new record belongs to the version with which it comes."""
    pinned = json.loads(FOLDERS.read_text(encoding="utf-8"))

    assert hashlib.sha256((folder / "records.json").read_bytes()).hexdigest() == pinned[folder.name]


def test_no_folder_of_a_version_vanishes() -> None:
    assert {path.name for path in V1.iterdir() if path.is_dir()} == set(
        json.loads(FOLDERS.read_text(encoding="utf-8"))
    )


@every_record
def test_a_recorded_file_is_never_changed(record: Recorded) -> None:
    """What is in Kafka stays there. Record a new case under a new name instead."""
    assert hashlib.sha256(record.value).hexdigest() == record.sha256


# -- this version's reader -----------------------------------------------------------------------------------------------


@every_record
def test_a_recorded_event_decodes_to_the_same_fields(record: Recorded) -> None:
    """An agent replays a log that an older version wrote."""
    event = decode(ADAPTERS[record.topic], record.value)

    assert not isinstance(event, Undecodable), event
    assert contains(event.model_dump(mode="json"), json.loads(record.value))


@every_record
def test_the_key_of_a_recorded_event_follows_from_its_fields(record: Recorded) -> None:
    """Compaction and the partition depend on the key, so it must never change either."""
    event = json.loads(record.value)
    if event["type"] == "dead-letter":
        refused = json.loads(base64.b64decode(event["value"]))
        expected = refused["table"]
    elif record.topic == TOPICS.ledger:
        kind = "losses" if event["type"] == "conflicts-lost" else None
        expected = events.ledger_key(event["table"], event["writer"], kind).decode()
    else:
        expected = event["table"]

    assert record.key == expected


@every_record
def test_the_partition_of_a_recorded_event_follows_from_its_table(record: Recorded) -> None:
    """Events of a table that were in two partitions would have no order."""
    if record.topic not in (TOPICS.writers, TOPICS.decisions, TOPICS.ledger):
        return
    table = json.loads(record.value)["table"]
    if table.startswith("lakewarden://partition/"):
        assert table == events.partition_name(record.partition)
        return
    every = list(range(DEFAULT_PARTITIONS))

    assert DefaultPartitioner()(table.encode(), every, every) == record.partition


@every_record
def test_unknown_fields_in_a_recorded_event_are_ignored(record: Recorded) -> None:
    """A later version adds fields, to the event or to an object inside it."""
    later = json.dumps(with_unknown_fields(json.loads(record.value))).encode()

    assert decode(ADAPTERS[record.topic], later) == decode(ADAPTERS[record.topic], record.value)


@given(any_event)
def test_unknown_fields_in_any_event_are_ignored(event: Event) -> None:
    """The same for every event that can be built."""
    later = json.dumps(with_unknown_fields(json.loads(encode(event)))).encode()

    assert decode(events.EVENT, later) == event


# -- released readers ----------------------------------------------------------------------------------------------------

READ = """
import base64, json, sys
from pydantic import TypeAdapter
from lakewarden import events

topics = events.Topics()
adapters = {
    topics.writers: events.WRITER_EVENT,
    topics.decisions: events.DECISION_RECORD,
    topics.conflicts: events.CONFLICT_EVENT,
    topics.audit: events.AUDIT_EVENT,
    topics.ledger: events.LEDGER_EVENT,
    topics.dead_letters: TypeAdapter(events.DeadLetter),
}
print(json.dumps(events.__file__))
for line in sys.stdin:
    topic, value = json.loads(line)
    event = events.decode(adapters[topic], base64.b64decode(value))
    unread = isinstance(event, events.Undecodable)
    print(json.dumps(["unread", event.reason] if unread else ["read", event.model_dump(mode="json")]))
"""
"""Run by the Python of the tests, with the `events` folder of a released commit."""


def readers() -> list[dict[str, Any]]:
    """The released readers: the commit, and the names of the records that came after it and that it can't read."""
    found: list[dict[str, Any]] = json.loads(READERS.read_text(encoding="utf-8"))
    return found


def git(*arguments: str) -> bytes:
    """The output of a git command in the repository."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False, timeout=30)
    if done.returncode != 0:
        pytest.fail(
            f"git {' '.join(arguments)}: {done.stderr.decode().strip()}; released readers are read from the history: "
            "clone the repository with all of it (`git fetch --unshallow`)",
            pytrace=False,
        )
    return done.stdout


def published_now() -> Iterator[tuple[str, str, bytes]]:
    """Name, topic and value of every recorded event as this version encodes it, plain and with unknown fields."""
    for record in recorded():
        event = decode(ADAPTERS[record.topic], record.value)
        assert not isinstance(event, Undecodable), event
        value = encode(event)
        yield record.name, record.topic, value
        yield record.name, record.topic, json.dumps(with_unknown_fields(json.loads(value))).encode()


@pytest.mark.parametrize("reader", readers(), ids=lambda each: each["commit"][:12])
def test_a_released_reader_reads_what_this_version_publishes(reader: dict[str, Any], tmp_path: Path) -> None:
    """Agents and writers are upgraded one after another: older ones read the events of newer ones.

    A record that an older reader can't read is listed in `readers.json`. What that reader does then is in docs/protocol.md.
    """
    archive = git("archive", "--format=tar", reader["commit"], "events")
    package = tmp_path / "lakewarden"
    package.mkdir()
    subprocess.run(["tar", "-x", "-C", str(package)], input=archive, check=True, timeout=30)
    sent = list(published_now())
    lines = [json.dumps([topic, base64.b64encode(value).decode()]) for _, topic, value in sent]

    done = subprocess.run(
        [sys.executable, "-c", READ],
        input="\n".join(lines),
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )

    assert done.returncode == 0, done.stderr
    file, *answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert Path(file).is_relative_to(package), "the reader must be the released one"
    assert len(answers) == len(sent)
    unread = {
        name: found for (name, _, _), (how, found) in zip(sent, answers, strict=True) if how == "unread"
    }
    assert set(unread) == set(reader["cannot_read"]), unread
    for (name, _, value), (how, found) in zip(sent, answers, strict=True):
        assert how == "unread" or contains(json.loads(value), found), (name, found)
