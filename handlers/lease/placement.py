"""Which tables and lock locations an event may make the agent touch, and where a table's lock object is.

Events come from the network. A table is touched only if one of the configured globs allows it, and a lock named
in an intent only if it lies under the lock root or in the folder of an allowed table. `*` in a glob matches any
run of characters, `/` too; a glob is compared with the whole canonical URI. A glob without a wildcard allows that
table and what lies below it.

Where: for a Hudi table its own lock object, `<table>/.hoodie/.locks/table_lock.json`; for any other `<lock
root>/locks/<cleaned path>-<first 8 hex digits of the table URI's SHA-256>.json`, the lock root being the one
configured, or the table's own bucket where none is; a local table has none. A lock is named canonically, as
tables are.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from lakewarden.events import require_canonical

HUDI_LOCK = "/.hoodie/.locks/table_lock.json"
_UNCLEAN = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class LockPlace:
    """Where a table's lock is; `shared` means unmodified Hudi writers may hold it too."""

    uri: str
    shared: bool


@dataclass(frozen=True, slots=True)
class NotAllowed:
    """Why nothing of this table or lock is touched, and which setting would allow it."""

    why: str


@dataclass(frozen=True, slots=True)
class Placement:
    """The configured bounds of what events may name."""

    allow: tuple[str, ...]
    lock_root: str | None = None

    def allows(self, table: str) -> bool:
        """Whether one of the globs covers this table."""
        return any(_covers(glob, table) for glob in self.allow)

    def locate(self, table: str, lock: str | None) -> LockPlace | NotAllowed:
        """The lock of `table`: the one that its intent names, if that is allowed, else the usual one."""
        if not self.allows(table):
            return NotAllowed(
                f"table {table} is not among the allowed ones; start the agent with --allow {table}"
            )
        if lock is None:
            if self.lock_root is None and table.startswith("file:"):
                return NotAllowed(f"local table {table} has no bucket for its lock; set --lock-root")
            return LockPlace(self._usual(table), shared=False)
        if lock == table + HUDI_LOCK:
            return LockPlace(lock, shared=True)
        try:
            require_canonical(lock)
        except ValueError as error:
            return NotAllowed(f"lock of table {table} is not a plain object URI: {error}")
        inside_root = self.lock_root is not None and lock.startswith(self.lock_root.rstrip("/") + "/")
        folder = lock.rsplit("/", 1)[0]
        if inside_root or any(_covers(glob, folder) for glob in self.allow):
            return LockPlace(lock, shared=lock.endswith(HUDI_LOCK))
        return NotAllowed(f"lock {lock} of table {table} lies outside the lock root and the allowed tables")

    def _usual(self, table: str) -> str:
        scheme, rest = table.split("://", 1)
        authority, path = rest.split("/", 1)
        root = self.lock_root.rstrip("/") if self.lock_root else f"{scheme}://{authority}"
        cleaned = _UNCLEAN.sub("-", path).strip("-")
        digest = hashlib.sha256(table.encode()).hexdigest()[:8]
        return f"{root}/locks/{cleaned}-{digest}.json"


def _covers(glob: str, uri: str) -> bool:
    if any(wild in glob for wild in "*?["):
        return fnmatchcase(uri, glob)
    return uri == glob or uri.startswith(glob.rstrip("/") + "/")
