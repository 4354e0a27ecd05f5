"""Which tables with a primary key can be written, and which of several rows of one key counts.

Paimon merges the rows of a key when the table is read or compacted. Rows with a greater sequence number are newer. So every
reader gives the same answer only if no two transactions give the same number to rows of one bucket, and if the one that commits
later has the greater numbers. pypaimon continues after the greatest number that it finds when it stages, and checks nothing
when it commits.

1. A transaction reads the newest snapshot as soon as it is admitted, and numbers its rows from `first_sequence_number`: by that
   snapshot, then by its turn (docs/decisions/0045).
2. The agent grants the commits of transactions that touch one bucket in the order of their admissions, and their turns rise. So
   the one that commits later has the greater numbers: it read a later snapshot, or the same one and has the later turn.
   Otherwise rule 4 finds it. A pair with another rule than `ordered` conflicts if it computes at the same time.
3. A writer that bypasses the gate continues after the greatest number that it finds. It stays below the numbers of the next
   snapshot, so its rows are older than those of the next transaction.
4. A put may arrive after the writer's grant has lapsed, between another transaction's read of the newest snapshot and its put;
   and a snapshot may be committed between the reads of two transactions, so that the one with the earlier turn reads the later
   snapshot. So before each put a transaction looks whether a newer snapshot has files in its buckets with numbers that aren't
   smaller. Then it is computed again.
5. Snapshot ids rise for the whole life of a table. Where they began again at 1 (a clone), there are files with greater numbers
   than rule 1 gives, and the table is refused.
6. Where every column is aggregated by a function for which no order matters (`commutes`), numbers don't matter either. Rules 2
   and 4 are not needed: two such transactions never conflict, as appends (docs/decisions/0047).
7. With dynamic buckets an index says which bucket has a key, and a new key gets a bucket when it is written. Two transactions
   that look keys up in one snapshot may give a key two buckets, and its row is there twice. So those of one partition conflict,
   whatever the engine, and a transaction reads the snapshot, for rule 1 and for the index, only when its markers are published.
   Before each put it looks whether the index of its partitions has changed (docs/decisions/0055).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lakewarden.events import ConflictRule

SEQUENCE_BITS: Final = 32
"""The lower bits: the turn and the rows. The other 31 bits hold the snapshot's id."""

ROW_BITS: Final = 24
"""The lowest bits. The rows of a bucket beyond 2^24 have the numbers of the next turns, whose transactions rule 4 sends back."""

TURNS: Final = 1 << (SEQUENCE_BITS - ROW_BITS)
"""Turns with numbers of their own. Beyond them they begin again, and rule 4 sends back a transaction that this puts too early."""

ENGINES: Final = frozenset({"deduplicate", "partial-update", "aggregation"})

COMMUTATIVE: Final = frozenset({"sum", "product", "min", "max", "bool_and", "bool_or"})
"""Aggregate functions whose result doesn't depend on the order of the values."""

_FLOATS: Final = frozenset({"FLOAT", "DOUBLE"})
"""Their sums depend on the order, in the last digits. So does what pypaimon makes of NaN, which it compares as Python does."""


def first_sequence_number(snapshot: int, turn: int | None = None) -> int:
    """Return the sequence number of a transaction's first row, by the newest snapshot that it read and by its turn, if any."""
    return (snapshot << SEQUENCE_BITS) | ((turn or 0) % TURNS << ROW_BITS)


@dataclass(frozen=True, slots=True)
class PrimaryKeyTable:
    """What the schema of a table with a primary key says."""

    primary_key: Sequence[str]
    partition_keys: Sequence[str]
    options: Mapping[str, str] = field(repr=False)
    types: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Paimon's type of each column, as `BIGINT NOT NULL`."""

    @property
    def engine(self) -> str:
        return self.options.get("merge-engine", "deduplicate")

    @property
    def keeps_missing_columns(self) -> bool:
        """Whether a null means: leave the value as it is. Otherwise a row replaces the whole row."""
        return self.engine != "deduplicate"

    @property
    def dynamic_buckets(self) -> bool:
        """Whether an index says which bucket has a key. It is Paimon's default."""
        return self.options.get("bucket", "-1") == "-1"

    def is_set(self, option: str) -> bool:
        return self.options.get(option, "false").strip().lower() == "true"

    def is_float(self, column: str) -> bool:
        return self.types.get(column, "").split(" ")[0].upper() in _FLOATS


def refusal(table: PrimaryKeyTable) -> str | None:
    """Return why upserts into this table are refused, and what to do, or None. The first reason that applies is the answer."""
    options, invisible = table.options, "pypaimon's rows are invisible until a compaction"
    if options.get("bucket") == "-2":
        return "the rows of a postpone-bucket table are invisible until a compaction; use a fixed bucket"
    if not set(table.partition_keys) <= set(table.primary_key):
        return (
            "its primary key lacks partition columns, so a key may move between partitions, which needs a global index; add the "
            "partition columns to the primary key"
        )
    if options.get("bucket-function.type", "default") != "default":
        return "pypaimon computes only the default bucket function; use bucket-function.type=default"
    if table.engine not in ENGINES:
        return (
            f"of its merge engine, {invisible}, or it is not known; use one of {', '.join(sorted(ENGINES))}"
        )
    if table.is_set("deletion-vectors.enabled"):
        return f"with deletion vectors, {invisible}; use deletion-vectors.enabled=false"
    if any(name.endswith(".sequence-group") for name in options):
        return (
            "pypaimon can't merge sequence groups; use sequence.field for the whole row, or separate tables"
        )
    deletes = "pypaimon can't merge deletes into this merge engine"
    if any("remove-record-on-" in name and table.is_set(name) for name in options):
        return f"{deletes}; remove the remove-record-on-… option"
    if "rowkind.field" in options and table.engine != "deduplicate":
        return f"{deletes}; use merge-engine=deduplicate, or no rowkind.field"
    if options.get("changelog-producer") == "input":
        return (
            "its changelog would have rows of batches in an order that was never checked; use changelog-producer=none, lookup or "
            "full-compaction"
        )
    if table.is_set("data-file.thin-mode") or table.is_set("sequence.snapshot-ordering"):
        return "pypaimon doesn't write this layout of files; remove data-file.thin-mode and sequence.snapshot-ordering"
    return None


def conflict_rule(table: PrimaryKeyTable) -> ConflictRule:
    """Return the conflict rule of upserts into this table: rules 2, 6 and 7."""
    if table.dynamic_buckets:
        return "file-group"
    return "deleted-file" if commutes(table) else "ordered"


def commutes(table: PrimaryKeyTable) -> bool:
    """Return whether the rows of a key give the same result in every order."""
    values = [name for name in table.types if name not in table.primary_key]
    if table.engine != "aggregation" or table.options.get("sequence.field") or not values:
        return False
    return all(_commutes(table, name) for name in values)


def _commutes(table: PrimaryKeyTable, column: str) -> bool:
    default = table.options.get("fields.default-aggregate-function")
    function = table.options.get(f"fields.{column}.aggregate-function", default)
    return function in COMMUTATIVE and not table.is_float(column)


def missing_columns(table: PrimaryKeyTable, columns: Sequence[str], given: Collection[str]) -> list[str]:
    """Return the columns that a batch must have and lacks, of all `columns` of the table."""
    needed = table.primary_key if table.keeps_missing_columns else columns
    return [name for name in needed if name not in given]
