"""Whether sequence numbers are greater than those in the table: rules 4 and 5 of `handlers/paimon/primary_key.py`."""

from typing import Any

from lakewarden.handlers.paimon.primary_key import SEQUENCE_BITS, first_sequence_number
from lakewarden.spark_jobs.gate.errors import BaseChanged
from lakewarden.spark_jobs.sinks.paimon.primary_key import group_name
from lakewarden.spark_jobs.sinks.paimon.stage import Staging
from lakewarden.spark_jobs.sinks.paimon.table import latest_snapshot_id, partition_path


def require_free_numbers(table: Any) -> None:
    """Raise `ValueError` if a file has a sequence number that the next transaction would give to its rows."""
    splits = (
        table.new_read_builder().new_scan().plan_for_write().splits() if latest_snapshot_id(table) else []
    )
    used = max((file.max_sequence_number for split in splits for file in split.files), default=-1)
    newest = latest_snapshot_id(table)  # after the files: other transactions may have committed since
    if used >= first_sequence_number(newest):
        raise ValueError(
            f"the table has rows with sequence number {used}, more than its {newest} snapshots allow, as in a cloned "
            f"table: new rows would count as older ones; rewrite the table (INSERT OVERWRITE by Java Paimon numbers all "
            f"rows from 0); table={table.table_path}"
        )


def require_greater_numbers(table: Any, staging: Staging, checked: int) -> int:
    """Raise `BaseChanged` if a newer file of the batch's buckets or partitions has a number that isn't smaller.

    Return the newest snapshot's id. Snapshots up to `checked`, and up to the one by which the rows are numbered, aren't read.
    """
    from pypaimon.manifest.manifest_file_manager import ManifestFileManager
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    assert staging.first_sequence is not None
    manager, lists, files = table.snapshot_manager(), ManifestListManager(table), ManifestFileManager(table)
    newest = latest_snapshot_id(table)
    for number in range(max(checked, staging.first_sequence >> SEQUENCE_BITS) + 1, newest + 1):
        snapshot = manager.get_snapshot_by_id(number)
        where = f"table={table.table_path} writer={staging.user} snapshot={number}"
        if snapshot is None:
            raise BaseChanged(
                f"a snapshot expired that was committed while this batch was computed, so its files are unknown; nothing was "
                f"published; the batch must be computed again; {where}"
            )
        for manifest in lists.read_delta(snapshot):
            for entry in files.read(manifest.file_name):
                path = partition_path(table, tuple(entry.partition.values))
                group = group_name(path, entry.bucket)
                own = group in staging.groups or path in (staging.allowed_partitions or ())
                if own and entry.file.max_sequence_number >= staging.first_sequence:
                    raise BaseChanged(
                        f"commit user {snapshot.commit_user!r} has written {group} with sequence numbers that aren't smaller "
                        f"than those of this batch: its publish arrived late; nothing was published; the batch must be computed "
                        f"again; {where}",
                        lost_to=f"commit user {snapshot.commit_user}",
                    )
    return newest
