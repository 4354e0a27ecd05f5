"""The options of a Hudi write: what the sink adds, and what it refuses (`_FIXED`: the only value, and why)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

from lakewarden.handlers.commit_label import HUDI_LABEL
from lakewarden.spark_jobs.sinks.contract import as_columns
from lakewarden.spark_jobs.sinks.hudi.provider import CLIENTS, LOCK_PROVIDER

HudiOperation: TypeAlias = Literal["upsert", "insert", "delete", "insert_overwrite"]

SQL_EXTRA_METADATA = f"hoodie.{HUDI_LABEL}"
"""The same of a commit by SQL, which passes on only settings of the session that begin with `hoodie.`."""

STORAGE_LOCK = "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider"
"""Hudi's provider that keeps the lock in the table's storage, in the object that the agent uses too."""
FILE_LOCK = "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"
_ONE_PROCESS = "org.apache.hudi.client.transaction.lock.InProcessLockProvider"

FILE_LOCK_MINUTES = "5"
"""After this time another writer takes over the lock file of a driver that was killed. Hudi's default is never."""

PROVIDER = "hoodie.write.lock.provider"
_CALLBACKS = "hoodie.client.init.callback.classes"
_OPERATION = "hoodie.datasource.write.operation"
RECORD_KEY = "hoodie.datasource.write.recordkey.field"
PARTITION_PATH = "hoodie.datasource.write.partitionpath.field"
HIVE_STYLE = "hoodie.datasource.write.hive_style_partitioning"
ORDERING = "hoodie.datasource.write.precombine.field"
_EXTRA_PREFIX = "hoodie.datasource.write.commitmeta.key.prefix"
_TABLE_VERSION = "hoodie.write.table.version"

_OF_THE_TABLE = frozenset(
    {
        "hoodie.table.name",
        _OPERATION,
        RECORD_KEY,
        PARTITION_PATH,
        HIVE_STYLE,
        ORDERING,
    }
)
"""What a SQL statement and its table decide themselves."""

_FIXED: Mapping[str, tuple[str, str]] = {
    "hoodie.write.concurrency.mode": (
        "optimistic_concurrency_control",
        "Hudi would not check for conflicts with writers that bypass the gate",
    ),
    "hoodie.clean.failed.writes.policy": (
        "LAZY",
        "another policy rolls back the running writes of other writers",
    ),
    "hoodie.write.concurrency.early.conflict.detection.enable": (
        "false",
        "the gate detects conflicts earlier, and Hudi's detection aborts writers for the files of one that was aborted",
    ),
    "hoodie.write.num.retries.on.conflict.failures": ("0", "the gate retries, in a new transaction"),
    "hoodie.compact.inline": ("false", "run compaction in a job of its own"),
    "hoodie.compact.schedule.inline": ("false", "schedule compaction in a job of its own"),
    "hoodie.log.compaction.inline": ("false", "run log compaction in a job of its own"),
    "hoodie.clustering.inline": ("false", "run clustering in a job of its own"),
    "hoodie.datasource.clustering.inline.enable": ("false", "run clustering in a job of its own"),
    "hoodie.clustering.schedule.inline": ("false", "schedule clustering in a job of its own"),
    # Off, Hudi's data source would compact merge-on-read tables inline. On, only its streaming sink does anything.
    "hoodie.datasource.compaction.async.enable": ("true", "with false, Hudi compacts in the writer"),
    _EXTRA_PREFIX: ("_", "the sink's own entry in the commit's metadata would not be written"),
}
_OLD_NAMES = {"hoodie.cleaner.policy.failed.writes": "hoodie.clean.failed.writes.policy"}


def table_options(
    *,
    name: str,
    keys: Sequence[str],
    partition_by: Sequence[str],
    order_by: str | None,
    operation: HudiOperation,
    options: Mapping[str, str],
    local: bool,
    hive_style: bool = True,
) -> dict[str, str]:
    """Return the options of every write of a sink, with the user's own. Raise `ValueError` for those that it refuses.

    `hive_style` is what Hudi has recorded of a table that exists: it refuses a write with another value.
    """
    given = {_OLD_NAMES.get(key, key): str(value) for key, value in options.items()}
    if operation not in get_args(HudiOperation):
        raise ValueError(
            f"operation {operation!r} is not supported: use one of {', '.join(get_args(HudiOperation))}; table={name}"
        )
    arguments = {
        "operation": (_OPERATION, operation),
        "keys": (RECORD_KEY, ",".join(as_columns(keys, "keys", name))),
        "partition_by": (PARTITION_PATH, ",".join(as_columns(partition_by, "partition_by", name))),
        "order_by": (ORDERING, order_by or ""),
    }
    for argument, (key, value) in arguments.items():
        if value and given.get(key, value) != value:
            raise ValueError(
                f"{key}={given[key]} and {argument}={value!r}: give {argument} only; table={name}"
            )
    for key, (value, why) in _FIXED.items():
        if given.get(key, value).lower() != value.lower():
            raise ValueError(
                f"{key}={given[key]} is not supported: {why}; leave it out, or set {value}; table={name}"
            )
    if given.get(_TABLE_VERSION) == "6":
        raise ValueError(
            f"{_TABLE_VERSION}=6 is not supported: the sink writes such tables with Hudi 0.15 only; leave it out; table={name}"
        )
    if given.get(PROVIDER) == _ONE_PROCESS:
        raise ValueError(
            f"{PROVIDER}={_ONE_PROCESS} excludes only the writers of one process; leave it out, or set the provider that "
            f"the table's other writers use; table={name}"
        )
    own = {key: value for key, value in arguments.values() if value} | {
        "hoodie.table.name": name,
        PROVIDER: FILE_LOCK if local else STORAGE_LOCK,
        "hoodie.write.lock.filesystem.expire": FILE_LOCK_MINUTES,
    }
    if partition_by:
        own[HIVE_STYLE] = str(hive_style).lower()
    fixed = {key: value for key, (value, _) in _FIXED.items()}
    return own | given | fixed | {old: fixed[new] for old, new in _OLD_NAMES.items()}


def transaction_options(options: Mapping[str, str], transaction: str, entry: str) -> dict[str, str]:
    """Return the options of one write: its sections ask the gate, and its commit contains `entry`."""
    callbacks = [each for each in (options.get(_CALLBACKS, ""), CLIENTS) if each]
    return {
        **options,
        PROVIDER: LOCK_PROVIDER,
        _CALLBACKS: ",".join(callbacks),
        "hoodie.lakewarden.lock.provider": options[PROVIDER],
        "hoodie.lakewarden.transaction": transaction,
        HUDI_LABEL: entry,
    }


def sql_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a session for one SQL statement, from those of a write (`transaction_options`)."""
    kept = {
        key: value for key, value in options.items() if key.startswith("hoodie.") and key not in _OF_THE_TABLE
    }
    entry = options[HUDI_LABEL]
    return kept | {_EXTRA_PREFIX: SQL_EXTRA_METADATA.removesuffix("lakewarden"), SQL_EXTRA_METADATA: entry}
