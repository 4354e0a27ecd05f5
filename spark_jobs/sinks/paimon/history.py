"""Reading and writing which batches a table contains. `handlers/paimon/history.py` has the rule."""

import hashlib
import json
from collections.abc import Iterator
from itertools import tee
from typing import Any, Final, assert_never
from urllib.parse import quote

from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.handlers.paimon import history
from lakewarden.handlers.paimon.publish import CommitName
from lakewarden.spark_jobs.gate.errors import OutcomeUnknown
from lakewarden.spark_jobs.gate.outcome import EXPIRED, find_batch
from lakewarden.spark_jobs.sinks.paimon.base import UNNUMBERED
from lakewarden.spark_jobs.sinks.paimon.snapshot_store import (
    FolderStore,
    StoredObject,
    folder_store,
    snapshot_store,
)

COMMITTED: Final = "lakewarden.committed"
"""Snapshot property: the last batch of each writer."""

MAX_OBJECT_NAME: Final = 200
"""Bytes. File systems take names of 255, and a temporary file has a longer one."""

ATTEMPTS: Final = "_lakewarden/paimon"
"""Folder of a table with an object for each writer: the batch that it is about to publish."""


def facts_of(number: int, body: bytes) -> history.SnapshotFacts:
    """Return what a snapshot's JSON says. Raises `OSError` for anything that is no snapshot."""
    try:
        fields = json.loads(body)
        properties = fields.get("properties") or {}
        name = CommitName(fields["commitUser"], int(fields["commitIdentifier"]), properties.get(TRANSACTION))
        return history.SnapshotFacts(number, name, history.decode(properties.get(COMMITTED)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OSError(f"snapshot {number} can't be read: {error!r}") from error


def numbers_of(store: FolderStore) -> set[int]:
    """Return the ids of all snapshots, by one listing."""
    names = (name.removeprefix("snapshot-") for name in store.names() if name.startswith("snapshot-"))
    return {int(number) for number in names if number.isdigit()}


def _newest_first(store: FolderStore, number: int) -> Iterator[history.SnapshotFacts]:
    """Read snapshots from `number` down, until one doesn't exist."""
    while number > 0:
        found = store.read(f"snapshot-{number}")
        if found is None:
            return
        yield facts_of(number, found.body)
        number -= 1


def property_of(store: FolderStore, number: int, name: CommitName) -> str | None:
    """Return the value of the property `COMMITTED` for snapshot `number`, which this commit is about to put.

    None if the snapshots before it have the batch: an earlier process of the writer put it after the batch was looked up.
    """
    before, again = tee(_newest_first(store, number - 1))
    batches = history.carried(again)
    if name.identifier != UNNUMBERED:
        if isinstance(history.find(name.user, name.identifier, before), history.Committed):
            return None
        batches = history.with_batch(batches, name.user, history.LastBatch(name.identifier, number))
    return history.encode(batches)


def writers_of(table: Any) -> list[str]:
    """Return the writers whose last batches the newest snapshot carries, the one that committed most recently last."""
    store = snapshot_store(table)
    return list(history.carried(_newest_first(store, max(numbers_of(store), default=0))))


def committed_version(table: Any, uri: str, writer: str, batch: int) -> int | None:
    """Return the snapshot in which `writer` committed the batch, or None.

    If that has expired, it is the snapshot of a later batch of the writer. Raises `OutcomeUnknown` if the table can't know, and
    `GateError` as `find_batch` does.
    """
    store = snapshot_store(table)
    newest = max(numbers_of(store), default=0)
    answer = history.find(writer, batch, _newest_first(store, newest))
    if isinstance(answer, history.Undecided):
        answer = history.resolve(
            writer, batch, _attempt_of(_attempts(table), writer), _newest_first(store, newest)
        )
    match answer:
        case history.Committed(snapshot, exact):
            if exact:
                return snapshot
            found = find_batch(_batches(store, newest, writer), batch, f"table={uri} writer={writer}")
            return snapshot if found is None else int(found)
        case history.NotCommitted():
            return None
        case history.Undecided():
            raise OutcomeUnknown(
                f"batch {batch} was about to be published, and no retained snapshot says whether it was: the snapshots since "
                f"are of writers that bypass the gate, or have expired; nothing was written now; look for the batch's rows in "
                f"the table: if they are missing, remove {ATTEMPTS}/{_object_name(writer)} in the table's folder and restart "
                f"the query; if they are there, continue after the batch; table={uri} writer={writer}",
                retriable=False,
            )
        case _:
            assert_never(answer)


def _batches(store: FolderStore, newest: int, writer: str) -> Iterator[tuple[int | None, str]]:
    """Yield the writer's batches in the retained snapshots, the newest first, for `find_batch`."""
    number = newest + 1
    for each in _newest_first(store, newest):
        number = each.number
        if each.name.user == writer and each.name.identifier != UNNUMBERED:
            yield each.name.identifier, str(number)
    if number > 1:
        yield EXPIRED, ""


def announce_attempt(table: Any, name: CommitName) -> None:
    """Write that this batch is about to be published. Call it under the grant. A repeated attempt keeps the first one's base."""
    if name.identifier == UNNUMBERED:
        return
    store, key = _attempts(table), _object_name(name.user)
    seen = store.read(key)
    if seen is None or _decoded(key, seen).batch != name.identifier:
        newest = max(numbers_of(snapshot_store(table)), default=0)
        store.replace(key, json.dumps({"batch": name.identifier, "after": newest}).encode(), seen)


def _attempt_of(store: FolderStore, writer: str) -> history.PublishAttempt | None:
    key = _object_name(writer)
    found = store.read(key)
    return None if found is None else _decoded(key, found)


def _decoded(key: str, found: StoredObject) -> history.PublishAttempt:
    try:
        fields = json.loads(found.body)
        return history.PublishAttempt(int(fields["batch"]), int(fields["after"]))
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"{ATTEMPTS}/{key} can't be read: {error!r}") from error


def _attempts(table: Any) -> FolderStore:
    return folder_store(table, f"{table.table_path.rstrip('/')}/{ATTEMPTS}")


def _object_name(writer: str) -> str:
    name = quote(writer, safe="")
    if len(name) > MAX_OBJECT_NAME:
        name = f"{name[: MAX_OBJECT_NAME - 65]}-{hashlib.sha256(writer.encode()).hexdigest()}"
    return f"{name}.json"
