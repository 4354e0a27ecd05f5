"""The one commit of a batch, and what is done about files that were staged for nothing.

- *Checked at the last moment.* pypaimon writes manifests for a while before it publishes the snapshot. The check (is
  the grant still ours, is the base still the one that was read) is repeated inside pypaimon's own commit, right before
  the snapshot object is written, on every try: a snapshot id that somebody else took is tried again under the same
  grant, as Paimon does, and aborts nobody.
- *A refusal is final.* pypaimon takes an `Exception` out of the publish for "uncertain" and retries it for many seconds;
  the refusal travels as a `BaseException`, which passes at once.
- *Three answers.* Published; not published, when no try to write the snapshot was left without an answer; else unknown,
  and then the gate asks the table by (user, identifier). What stays unknown is claimed by nobody, and no file removed.
- *Removing.* Only what this transaction staged, and only when nothing was published: by the messages that the driver
  has, and by the transaction's file prefix for those of cancelled tasks, whose messages nobody has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

from lakewarden.spark_jobs.gate.errors import BaseChanged, GateError
from lakewarden.spark_jobs.gate.grant import Grant
from lakewarden.spark_jobs.sinks.paimon.table import find_commit

FILES_CONFLICT = "File deletion conflicts detected"
"""How pypaimon says that a file which this commit removes is gone (it has no class for it)."""


class CommitRefused(BaseException):
    """Carries a refusal through pypaimon's commit; see above why it is no `Exception`."""

    def __init__(self, error: GateError) -> None:
        super().__init__(str(error))
        self.error = error


class CheckedSnapshotCommit:
    """pypaimon's snapshot commit, asked right before it writes; in place of `FileStoreCommit.snapshot_commit`."""

    def __init__(self, inner: Any, check: Callable[[], None]) -> None:
        self._inner = inner
        self._check = check
        self.snapshot_id: int | None = None
        self.unanswered = False

    def commit(self, base_snapshot_uuid: str | None, snapshot: Any, statistics: Any) -> bool:
        """Check, then publish `snapshot`."""
        try:
            self._check()
        except GateError as error:
            raise CommitRefused(error) from error
        before, self.unanswered = self.unanswered, True
        published = bool(self._inner.commit(base_snapshot_uuid, snapshot, statistics))
        self.unanswered = before
        if published:
            self.snapshot_id = int(snapshot.id)
        return published

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self._inner.__exit__(*details)

    def close(self) -> None:
        """Release what the inner one holds."""
        self._inner.close()


def publish(
    table: Any,
    messages: list[Any],
    *,
    user: str,
    identifier: int,
    grant: Grant,
    check: Callable[[], None],
    properties: dict[str, str],
) -> str:
    """Commit all messages as one snapshot; its id. `check` refuses by raising."""
    builder = table.new_stream_write_builder()
    builder.commit_user = user
    committer = builder.new_commit()
    checked = CheckedSnapshotCommit(committer.file_store_commit.snapshot_commit, check)
    committer.file_store_commit.snapshot_commit = checked
    try:
        committer.commit(messages, identifier, snapshot_properties=properties)
    except CommitRefused as refused:
        if not checked.unanswered:
            grant.not_published()
        raise refused.error from None
    except Exception as error:
        if checked.snapshot_id is not None:
            grant.published(str(checked.snapshot_id))
        elif not checked.unanswered:
            grant.not_published()
            if FILES_CONFLICT in str(error):
                raise _files_gone(error, table, user) from error
        raise
    finally:
        committer.close()
    found = checked.snapshot_id or find_commit(table, user, identifier)
    assert found is not None, "pypaimon said that it committed, and no snapshot is there"
    return str(found)


def _files_gone(error: Exception, table: Any, user: str) -> BaseChanged:
    """pypaimon saw it first, between our look at the base and its own."""
    return BaseChanged(
        f"files that this batch replaces are gone: a writer without the agent rewrote them; nothing was "
        f"published; the batch must be computed again; table={table.table_path} writer={user}: {error}"
    )


def remove_staged(table: Any, messages: Iterable[Any]) -> None:
    """Delete the new files of messages that were not, and will not be, committed."""
    committer = table.new_stream_write_builder().new_commit()
    try:
        committer.abort(list(messages))
    finally:
        committer.close()


def sweep(table: Any, partition_paths: Iterable[str], prefix: str) -> int:
    """Delete the files in these partitions whose name begins with `prefix`; how many there were."""
    io = table.file_io
    swept = 0
    for partition in partition_paths:
        folder = "/".join(
            part for part in (table.path_factory().data_file_path().rstrip("/"), partition) if part
        )
        for bucket in _list_files(io, folder):
            if not bucket.rpartition("/")[2].startswith("bucket-"):
                continue
            for file in _list_files(io, f"{folder}/{bucket.rpartition('/')[2]}"):
                name = file.rpartition("/")[2]
                if name.startswith(prefix):
                    io.delete_quietly(f"{folder}/{bucket.rpartition('/')[2]}/{name}")
                    swept += 1
    return swept


def _list_files(io: Any, folder: str) -> list[str]:
    if not io.exists(folder):
        return []
    return [str(status.path).rstrip("/") for status in io.list_status(folder)]
