"""The one commit of a batch, and the removal of staged files that nothing publishes.

- *pypaimon prepares, this module publishes.* pypaimon writes manifests for a while before it asks its `SnapshotCommit` to write
  the snapshot. `FencedCommit` takes that place and runs the rule of `handlers/paimon/publish.py`: the check of the grant, the
  put if absent, and what follows it. If the snapshot id is taken, pypaimon prepares the next one under the same grant.
  Without snapshot properties pypaimon might publish by a native library of its own; this module always passes some.
- *A refusal is final.* pypaimon treats an `Exception` of the publish as "uncertain" and retries for many seconds. So every
  failure here is a `BaseException`, which passes through at once.
- *Built on what was looked at.* The snapshots below the id are read before the put. If they have the batch, the store has carried
  out a put of an earlier process late, and the commit is refused. The put fails if the id is taken, so nothing comes between.
- *Three outcomes.* Published; not published, if no put was sent or left without an answer; otherwise unknown. Then the gate looks
  the snapshot up. An outcome that stays unknown is not reported, and no file is removed.
- *Replaced or rolled back.* Another snapshot may have the id of this writer's last one. Either a writer without a conditional
  put has replaced it, and its batch must be committed again. Or an operator has rolled the table back, or created it again,
  and the batch must not come back. A snapshot of a gate user was put on a free id, so ours had been removed. A foreign
  writer that replaces has written its list of base manifests before our put ended; after a rollback it writes that later.
  The times of its list and of ours are of one clock, the store's. If a list is gone, the table was rolled back.
- *Removal.* Only files that this transaction staged, and only if nothing was published: those in the messages that the driver
  has, and those with the transaction's file prefix, for cancelled tasks whose messages were lost.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self, assert_never

from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.handlers.paimon.publish import (
    Active,
    Answer,
    CommitName,
    Contains,
    Excludes,
    Failed,
    Foreign,
    HintWritten,
    LookAtBase,
    Missing,
    Own,
    Present,
    Published,
    PutSnapshot,
    ReadBack,
    Recheck,
    Removed,
    State,
    Taken,
    Trace,
    Undecided,
    Unreadable,
    Unresolved,
    Withdraw,
    Withdrawn,
    WriteHint,
    step,
    traced,
)
from lakewarden.spark_jobs.gate.errors import (
    BaseChanged,
    GateError,
    base_changed,
    committed_meanwhile,
    conflict_found,
)
from lakewarden.spark_jobs.gate.logs import EventLogger
from lakewarden.spark_jobs.sinks.paimon import history
from lakewarden.spark_jobs.sinks.paimon.base import partition_folder, snapshot_manager
from lakewarden.spark_jobs.sinks.paimon.snapshot_store import (
    HINT,
    FolderStore,
    LinkedSnapshots,
    StoredObject,
    snapshot_store,
)
from lakewarden.spark_jobs.sinks.paimon.table import has_dynamic_buckets

FILES_CONFLICT = "File deletion conflicts detected"
"""In pypaimon's message for a commit that removes a file which is gone. It has no exception class for it."""

GRANT_TOKEN: Final = "lakewarden.token"  # noqa: S105 - no secret
"""Snapshot property: the fencing token of the grant."""

PAUSE_SECONDS: Final = 0.2
"""Before an action is repeated that got no answer."""

log = EventLogger("lakewarden.paimon")


class CommitRefused(BaseException):
    """Carries the end of a publish through pypaimon's commit. The module says why it is no `Exception`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class PublishedSnapshot:
    """A snapshot in the table, and what recognises its replacement."""

    snapshot: Any
    version: str
    name: CommitName
    seconds: float
    """From before its manifests were written until its put had an answer."""

    @property
    def number(self) -> int:
        return int(self.snapshot.id)


class FencedCommit:
    """Replaces `FileStoreCommit.snapshot_commit` for one commit."""

    def __init__(
        self,
        table: Any,
        name: CommitName,
        check: Callable[[], None],
        *,
        body: Callable[[Any], bytes] | None = None,
    ) -> None:
        """`body` returns the content of the snapshot's object. By default, it is what pypaimon writes."""
        self._table = table
        self._body = body or _body_of
        self.store: FolderStore = snapshot_store(table)
        """Store of the table's snapshots."""
        self._name = name
        self._check = check
        self._began = time.monotonic()
        self.published: PublishedSnapshot | None = None
        self.unanswered = False
        """Whether a snapshot may be in the table, or may come there, without being reported as published."""

    @property
    def names(self) -> dict[str, str]:
        return {"table": str(self._table.table_path), "writer": self._name.user}

    @staticmethod
    def in_doubt(error: Exception) -> Exception:
        """Return what to raise behind a put without an answer: `BaseChanged` would mean that nothing was published."""
        changed = isinstance(error, BaseChanged)
        return OSError("a put of the snapshot has no answer, and may still take effect") if changed else error

    def commit(self, base_snapshot_uuid: str | None, snapshot: Any, statistics: Any) -> bool:  # noqa: ARG002 - pypaimon's
        """Publish `snapshot`. Return whether it is in the table; if not, its id is taken."""
        number = int(snapshot.id)
        where = f"table={self._table.table_path} writer={self._name.user} snapshot={number}"
        committed = history.property_of(self.store, number, self._name)
        if committed is None:
            raise CommitRefused(committed_meanwhile(where))
        snapshot.properties = {**(snapshot.properties or {}), history.COMMITTED: committed}
        unanswered_before, self.unanswered = self.unanswered, True
        state: State = PutSnapshot()
        while isinstance(state, Active):
            if not isinstance(state, WriteHint) and state.tries > 1:
                time.sleep(PAUSE_SECONDS)
            if isinstance(state, PutSnapshot):
                self._require_grant(unanswered=unanswered_before or state.in_doubt)
            state = step(state, self._answer(state, snapshot))
        self.unanswered = unanswered_before or isinstance(state, Unresolved)
        match state:
            case Published(version):
                self.published = PublishedSnapshot(
                    snapshot, version, self._name, time.monotonic() - self._began
                )
                return True
            case Taken(by, replaced):
                self._began = time.monotonic()
                if replaced:
                    _log_replaced(self._table, self._name, number, by)
                return False
            case Withdrawn():
                self._require_grant(unanswered=unanswered_before)
                raise CommitRefused(
                    base_changed(
                        "the snapshots that this commit was built on expired while the writer was suspended",
                        where,
                    )
                )
            case Failed(why):
                raise CommitRefused(
                    OSError(f"the store refused the snapshot, and nothing was published: {why}; {where}")
                )
            case Unresolved(why):
                raise CommitRefused(
                    OSError(f"it is unknown whether the snapshot is in the table: {why}; {where}")
                )
            case _:
                assert_never(state)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        pass

    def close(self) -> None:
        """There is nothing to close."""

    # one action each

    def _answer(self, state: Active, snapshot: Any) -> Answer:
        name = _name_of(snapshot.id)
        try:
            match state:
                case PutSnapshot():
                    return self.store.put_if_absent(name, self._body(snapshot))
                case ReadBack():
                    return self._owner(self.store.read(name))
                case LookAtBase():
                    return self._look_at_base(int(snapshot.id))
                case Trace():
                    return self._trace(snapshot)
                case Withdraw():
                    self.store.remove(name)
                    return Removed()
                case WriteHint():
                    self._raise_hint(int(snapshot.id))
                    return HintWritten()
                case Recheck(version):
                    found = self.store.version(name)
                    return Own(version) if found == version else self._owner(self.store.read(name))
                case _:
                    assert_never(state)
        except OSError as error:
            return HintWritten() if isinstance(state, WriteHint) else Unreadable(str(error))

    def _require_grant(self, *, unanswered: bool) -> None:
        try:
            self._check()
        except GateError as error:
            self.unanswered = unanswered
            raise CommitRefused(error) from error
        except Exception:  # the table can't be read: pypaimon tries again
            self.unanswered = unanswered
            raise

    def _owner(self, found: StoredObject | None) -> Own | Foreign | Missing:
        if found is None:
            return Missing()
        name = history.facts_of(0, found.body).name
        return Own(found.version) if name == self._name else Foreign(name.user)

    def _look_at_base(self, number: int) -> Present | Missing:
        if number > 1:
            return Missing() if self.store.version(_name_of(number - 1)) is None else Present()
        return Missing() if max(history.numbers_of(self.store), default=1) > 1 else Present()

    def _trace(self, snapshot: Any) -> Contains | Excludes | Undecided:
        number = int(snapshot.id)
        retained = history.numbers_of(self.store)
        added = _next_names_files_of(self._table, snapshot) if number + 1 in retained else None
        return traced(number, retained, added=added)

    def _raise_hint(self, number: int) -> None:
        seen = self.store.read(HINT)
        if seen is None or not seen.body.strip().isdigit() or int(seen.body) < number:
            self.store.replace(HINT, str(number).encode(), seen)


def _name_of(number: int) -> str:
    return f"snapshot-{number}"


def _body_of(snapshot: Any) -> bytes:
    from pypaimon.common.json_util import JSON

    return str(JSON.to_json(snapshot, indent=2)).encode()


def _next_names_files_of(table: Any, snapshot: Any) -> bool | None:
    """Return whether the next snapshot was built on manifests that name files of this one. None: it adds no file, or is gone."""
    from pypaimon.manifest.manifest_file_manager import ManifestFileManager
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    following = table.snapshot_manager().get_snapshot_by_id(int(snapshot.id) + 1)
    if following is None:
        return None
    lists, files = ManifestListManager(table), ManifestFileManager(table)
    own = {manifest.file_name for manifest in lists.read_delta(snapshot)}
    newer = {manifest.file_name for manifest in lists.read_base(following)}
    if own & newer:
        return True
    added = {entry.file.file_name for name in sorted(own) for entry in files.read(name) if entry.kind == 0}
    if not added:
        return None
    return any(entry.file.file_name in added for name in sorted(newer) for entry in files.read(name))


def is_lost(table: Any, published: PublishedSnapshot) -> bool:
    """Return whether a writer without a conditional write has replaced the snapshot, and no later one contains its files.

    It is one request as long as the snapshot is in place. A replacement is logged.
    """
    store, name = snapshot_store(table), _name_of(published.number)
    if store.version(name) in {published.version, None}:  # None: expired, so newer ones are built on it
        return False
    found = store.read(name)
    owner = published.name if found is None else history.facts_of(0, found.body).name
    if found is None or owner == published.name:
        return False
    if (store.fenced and owner.transaction is not None) or _came_later(table, found, published):
        _log_rolled_back(table, published, owner.user)
        return False
    _log_replaced(table, published.name, published.number, owner.user)
    return not _next_names_files_of(table, published.snapshot)


def _came_later(table: Any, found: StoredObject, published: PublishedSnapshot) -> bool:
    """Return whether the base of the snapshot that was found was written after `published` had been put."""
    theirs = _written_at(table, str(json.loads(found.body)["baseManifestList"]))
    ours = _written_at(table, published.snapshot.base_manifest_list)
    unit = 0 if isinstance(snapshot_store(table), LinkedSnapshots) else 1  # object stores count whole seconds
    return theirs is None or ours is None or theirs > ours + published.seconds + unit


def _written_at(table: Any, manifest: str) -> float | None:
    """Return when a list of manifests was written, by the store's clock; None if it is gone."""
    try:
        found = table.file_io.get_file_status(f"{table.path_factory().manifest_path()}/{manifest}").mtime
    except FileNotFoundError:
        return None
    return found.timestamp() if isinstance(found, datetime) else float(found)


def _log_rolled_back(table: Any, published: PublishedSnapshot, by: str) -> None:
    log.warning(
        "paimon.rolled-back",
        table=table.table_path,
        writer=published.name.user,
        batch_id=published.name.identifier,
        snapshot=published.number,
        by=by,
        detail="the table was rolled back to before this snapshot, or created again; its batch stays out of the table "
        "(docs/paimon.md#rollback-and-other-changes-of-the-table)",
    )


def _log_replaced(table: Any, name: CommitName, number: int, by: str) -> None:
    log.error(
        "paimon.snapshot-replaced",
        table=table.table_path,
        writer=name.user,
        batch_id=name.identifier,
        transaction=name.transaction,
        snapshot=number,
        by=by,
        detail="another commit replaced this snapshot: its writer bypasses the gate, or was suspended beyond its lease without a "
        "conditional put; if the batch is lost, it is committed again from its files; let the other writer use a catalog lock "
        "(docs/paimon.md)",
    )


class NothingPublished(Exception):
    """The publish ended, and nothing of it is or can come in the table. `error` is the reason."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def before_the_put() -> Iterator[None]:
    """Whatever the block raises, nothing was sent: raise it as `NothingPublished`."""
    try:
        yield
    except Exception as error:
        raise NothingPublished(error) from error


def publish(
    table: Any, messages: list[Any], *, name: CommitName, token: int, check: Callable[[], None]
) -> PublishedSnapshot:
    """Commit all messages as one snapshot. `check` raises to refuse, before each put.

    Raise `NothingPublished`, also if pypaimon finds the batch while it tries again; any other error leaves the outcome unknown.
    """
    with before_the_put():
        builder = table.new_stream_write_builder()
        builder.commit_user = name.user
        committer = builder.new_commit()
        fenced = FencedCommit(table, name, check)
        committer.file_store_commit.snapshot_commit = fenced
        committer.file_store_commit.snapshot_manager = snapshot_manager(table, fenced.store)
    properties = {TRANSACTION: name.transaction, GRANT_TOKEN: str(token)}

    def commit() -> None:
        history.announce_attempt(table, name)
        committer.commit(messages, name.identifier, snapshot_properties=properties)

    try:
        published = run_fenced(fenced, commit, lambda error: _files_gone(error, table, name.user))
    finally:
        committer.close()
    if published is None:
        nothing = committed_meanwhile(f"table={table.table_path} writer={name.user}")
        raise fenced.in_doubt(nothing) if fenced.unanswered else NothingPublished(nothing)
    return published


def run_fenced(
    fenced: FencedCommit, commit: Callable[[], None], files_gone: Callable[[Exception], Exception | None]
) -> PublishedSnapshot | None:
    """Run the commit of a library that publishes by `fenced`. Return None if it returned without a publish.

    `files_gone` returns an error to raise instead, if the library's own says that files are gone. Raise `NothingPublished`; any
    other error leaves the outcome unknown.
    """
    try:
        commit()
    except CommitRefused as refused:
        if fenced.unanswered:
            raise fenced.in_doubt(refused.error) from refused
        raise NothingPublished(refused.error) from None
    except Exception as error:
        if fenced.published is not None:
            log.warning("paimon.error-after-publish", **fenced.names, error=repr(error))
        elif fenced.unanswered:
            raise
        else:
            raise NothingPublished(files_gone(error) or error) from error
    return fenced.published


def _files_gone(error: Exception, table: Any, user: str) -> BaseChanged | None:
    """Return the error for a base that changed between this module's check and pypaimon's own, or None for another error."""
    if FILES_CONFLICT not in str(error):
        return None
    facts = f"table={table.table_path} writer={user}"
    return conflict_found(f"files that it replaces are gone: {error}", facts, None)


def remove_staged(table: Any, messages: Iterable[Any]) -> None:
    """Delete the new files of messages that are not committed and never will be."""
    committer = table.new_stream_write_builder().new_commit()
    try:
        committer.abort(list(messages))
    finally:
        committer.close()


def sweep(table: Any, partition_paths: Iterable[str], prefix: str) -> int:
    """Delete the files of these partitions, and the index files, whose names begin with `prefix`. Return their number."""
    io = table.file_io
    folders = [table.path_factory().global_index_root_path()] if has_dynamic_buckets(table) else []
    for partition in partition_paths:
        folder = partition_folder(table, partition)
        folders += (f"{folder}/{name}" for name in _names_in(io, folder) if name.startswith("bucket-"))
    staged = [
        f"{folder}/{name}" for folder in folders for name in _names_in(io, folder) if name.startswith(prefix)
    ]
    for file in staged:
        io.delete_quietly(file)
    return len(staged)


def _names_in(io: Any, folder: str) -> list[str]:
    if not io.exists(folder):
        return []
    return [str(status.path).rstrip("/").rpartition("/")[2] for status in io.list_status(folder)]
