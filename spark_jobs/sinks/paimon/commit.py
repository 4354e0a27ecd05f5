"""The one commit of a batch, and the removal of files that were staged in vain.

- *The last check is right before the snapshot.* pypaimon writes manifests for a while before it writes the snapshot. The check
  (does the grant still count, is the base unchanged) runs inside pypaimon's own commit, before each try to write the
  snapshot object. If another commit took the snapshot id, the next one is tried under the same grant, as Paimon does.
- *A refusal is final.* pypaimon treats an `Exception` of the publish as "uncertain" and retries for many seconds. So the
  refusal is a `BaseException`, which passes through at once.
- *Three outcomes.* Published; not published, if no try to write the snapshot was left without an answer; otherwise unknown.
  Then the gate looks the snapshot up by user and identifier. An outcome that stays unknown is not reported, and no file is
  removed.
- *Removal.* Only files that this transaction staged, and only if nothing was published: those in the messages that the driver
  has, and those with the transaction's file prefix, for cancelled tasks whose messages were lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

from lakewarden.spark_jobs.gate.errors import BaseChanged, GateError
from lakewarden.spark_jobs.gate.grant import Grant
from lakewarden.spark_jobs.sinks.paimon.table import find_commit

FILES_CONFLICT = "File deletion conflicts detected"
"""In pypaimon's message for a commit that removes a file which is gone. It has no exception class for it."""


class CommitRefused(BaseException):
    """Carries a refusal through pypaimon's commit. The module says why it is no `Exception`."""

    def __init__(self, error: GateError) -> None:
        super().__init__(str(error))
        self.error = error


class CheckedSnapshotCommit:
    """Replaces `FileStoreCommit.snapshot_commit`: runs a check right before pypaimon writes the snapshot."""

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
        """Close the original snapshot commit."""
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
    """Commit all messages as one snapshot and return its id. `check` raises to refuse."""
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
    assert found is not None, "pypaimon reported a commit, and its snapshot is not in the table"
    return str(found)


def _files_gone(error: Exception, table: Any, user: str) -> BaseChanged:
    """Return the error for a base that changed between this module's check and pypaimon's own."""
    return BaseChanged(
        f"files that this batch replaces are gone: a writer that bypasses the gate rewrote them; nothing was "
        f"published; the batch must be computed again; table={table.table_path} writer={user}: {error}"
    )


def remove_staged(table: Any, messages: Iterable[Any]) -> None:
    """Delete the new files of messages that are not committed and never will be."""
    committer = table.new_stream_write_builder().new_commit()
    try:
        committer.abort(list(messages))
    finally:
        committer.close()


def sweep(table: Any, partition_paths: Iterable[str], prefix: str) -> int:
    """Delete the files in these partitions whose names begin with `prefix`. Return their number."""
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
